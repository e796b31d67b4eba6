"""Which files an upload passes over, and how PUT is written for the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from airflow_provider_snowpipe.bulk.stage import (
    ListedFile,
    PutKind,
    Sameness,
    SourceFile,
    Staging,
    sameness,
)
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, StagedFileDiffersError

MD5 = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
OTHER = hashlib.md5(b"other", usedforsecurity=False).hexdigest()
FILE = SourceFile("day/a b.csv", 7, "/in/day/a b.csv")


def read() -> str:
    return MD5


def never() -> str:
    raise AssertionError("the content is not needed")


def staging(if_staged: str = "skip_same", *, auto_compress: bool = False) -> Staging:
    return Staging(StageReference.parse("@S/in"), auto_compress, if_staged)


@pytest.mark.parametrize(
    ("listed", "md5", "expected"),
    [
        (ListedFile(7, MD5), read, Sameness.SAME),
        (ListedFile(7, MD5.upper()), read, Sameness.SAME),
        (ListedFile(7, OTHER), read, Sameness.CHANGED),
        (ListedFile(7, f"{OTHER}-2"), never, Sameness.UNKNOWN),
        (ListedFile(7, ""), never, Sameness.UNKNOWN),
        (ListedFile(16, OTHER), never, Sameness.UNKNOWN),
        (ListedFile(8, OTHER), never, Sameness.CHANGED),
        (ListedFile(32, OTHER), never, Sameness.CHANGED),
    ],
    ids=["same", "capitals", "changed", "parts", "no-md5", "encrypted", "size", "encrypted-size"],
)
def test_list_reports_whether_the_content_is_the_same(
    listed: ListedFile, md5: Callable[[], str], expected: Sameness
) -> None:
    assert sameness(7, md5, listed) is expected


def test_a_file_of_a_full_cipher_block_grows_by_one_more() -> None:
    assert sameness(16, never, ListedFile(32, OTHER)) is Sameness.UNKNOWN
    assert sameness(0, never, ListedFile(16, OTHER)) is Sameness.UNKNOWN


@pytest.mark.parametrize(
    ("if_staged", "listed", "expected"),
    [
        ("skip_same", None, PutKind.NEW),
        ("skip_same", ListedFile(7, MD5), None),
        ("skip_same", ListedFile(7, OTHER), PutKind.OVER),
        ("skip_same", ListedFile(16, OTHER), PutKind.UNLESS_SAME),
        ("skip", ListedFile(99, OTHER), None),
        ("overwrite", ListedFile(7, MD5), PutKind.OVER),
        ("fail", ListedFile(7, MD5), None),
        ("fail", None, PutKind.NEW),
        ("fail", ListedFile(16, OTHER), PutKind.NEW),
    ],
)
def test_what_is_staged_decides_how_a_file_goes(
    if_staged: str, listed: ListedFile | None, expected: PutKind | None
) -> None:
    there = {} if listed is None else {"in/day/a b.csv": listed}

    assert staging(if_staged).decide(FILE, there, read) is expected


def test_another_content_is_an_objection_where_it_is_asked_for() -> None:
    with pytest.raises(StagedFileDiffersError, match=r"/in/day/a b\.csv has 7 bytes.*another content, of 9"):
        staging("fail").decide(FILE, {"in/day/a b.csv": ListedFile(9, OTHER)}, read)


def test_a_compressed_file_is_searched_with_its_ending_and_left_to_put() -> None:
    compressing = staging(auto_compress=True)
    there = {"in/day/a b.csv.gz": ListedFile(40, OTHER)}

    assert compressing.decide(FILE, there, never) is PutKind.UNLESS_SAME
    assert compressing.decide(FILE, {"in/day/a b.csv": ListedFile(7, MD5)}, never) is PutKind.NEW
    for name in ("x.csv.gz", "x.tgz", "x.csv.bz2", "x.csv.br", "x.csv.zst", "in/x.parquet", "x.orc"):
        assert compressing.staged_as(name) == name  # PUT finds these compressed
    assert compressing.staged_as("x.gz/a") == "x.gz/a.gz"


def test_put_quotes_path_and_stage_and_keeps_folders() -> None:
    root = '@"DB"."S"."it\'s"/in/'
    written = staging().put(FILE, "/folder/it's/a b.csv", root, PutKind.NEW, 4)

    assert written == (
        "PUT 'file:///folder/it''s/a b.csv' '@\"DB\".\"S\".\"it''s\"/in/day' "
        "PARALLEL = 4 AUTO_COMPRESS = FALSE OVERWRITE = FALSE"
    )
    flat = SourceFile("a.csv", 1, "a.csv")
    assert "'@S' " in staging().put(flat, "/a.csv", "@S", PutKind.OVER, 1)


def test_listed_files_are_named_below_the_stage() -> None:
    rows = [{"name": "s/in/a.csv", "size": "7", "md5": MD5}]

    assert staging().listed(rows) == {"in/a.csv": ListedFile(7, MD5)}


def test_an_external_stage_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is external, where PUT writes nothing"):
        staging().listed([{"name": "s3://bucket/a.csv", "size": 7, "md5": MD5}])


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="if_staged is 'never'"):
        staging("never")
