"""Files in a stage: which an upload leaves out, how PUT is written, and names that need no quotes."""

import hashlib
import re

import pytest

from airflow_provider_snowpipe.bulk.stage import (
    ListedFile,
    PutKind,
    Sameness,
    SourceFile,
    Staging,
    plain_name,
    sameness,
)
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, StagedFileDiffersError
from tests.refusals import refused

MD5 = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
OTHER = hashlib.md5(b"other", usedforsecurity=False).hexdigest()
FILE = SourceFile("day/a b.csv", 7, "/in/day/a b.csv")
STAGED = "in/day/a b.csv"


def read():
    return MD5


def never():
    raise AssertionError("the content is not needed")


def staging(if_staged="skip_same", *, auto_compress=False):
    return Staging(StageReference.parse("@S/in"), auto_compress, if_staged)


class TestUpload:
    def test_list_reports_whether_the_content_is_the_same(self):
        for size, listed, md5, expected in [
            (7, ListedFile(7, MD5), read, Sameness.SAME),
            (7, ListedFile(7, OTHER), read, Sameness.CHANGED),
            (7, ListedFile(7, f"{OTHER}-2"), never, Sameness.UNKNOWN),  # uploaded in parts
            (7, ListedFile(7, ""), never, Sameness.UNKNOWN),
            (7, ListedFile(16, OTHER), never, Sameness.UNKNOWN),  # encrypted
            (7, ListedFile(8, OTHER), never, Sameness.CHANGED),
            (16, ListedFile(32, OTHER), never, Sameness.UNKNOWN),  # a full cipher block grows by one more
        ]:
            assert (listed, sameness(size, md5, listed)) == (listed, expected)

    def test_what_is_staged_decides_how_a_file_goes(self):
        for if_staged, listed, expected in [
            ("skip_same", None, PutKind.NEW),
            ("skip_same", ListedFile(7, MD5), None),
            ("skip_same", ListedFile(7, OTHER), PutKind.OVER),
            ("skip_same", ListedFile(16, OTHER), PutKind.UNLESS_SAME),
            ("skip", ListedFile(99, OTHER), None),
            ("fail", ListedFile(7, MD5), None),
            ("fail", None, PutKind.NEW),
        ]:
            there = {} if listed is None else {STAGED: listed}
            assert staging(if_staged).decide(FILE, there, read) is expected, (if_staged, listed)
        with pytest.raises(StagedFileDiffersError, match=r"/in/day/a b\.csv has 7 bytes.*content, of 9"):
            staging("fail").decide(FILE, {STAGED: ListedFile(9, OTHER)}, read)
        refused(ConfigurationError, staging, ["never"], "if_staged is 'never'")

    def test_a_compressed_file_is_searched_with_its_ending_and_left_to_put(self):
        compressing = staging(auto_compress=True)

        packed = {f"{STAGED}.gz": ListedFile(40, OTHER)}
        assert compressing.decide(FILE, packed, never) is PutKind.UNLESS_SAME
        assert compressing.decide(FILE, {STAGED: ListedFile(7, MD5)}, never) is PutKind.NEW
        for name in ("x.csv.gz", "x.csv.zst", "in/x.parquet"):
            assert compressing.staged_as(name) == name  # PUT finds these compressed
        assert compressing.staged_as("x.gz/a") == "x.gz/a.gz"

    def test_put_quotes_path_and_stage_and_keeps_folders(self):
        written = staging().put(FILE, "/it's/a b.csv", '@"DB"."S"."it\'s"/in/', PutKind.NEW, 4)

        path, options = (
            '\'@"DB"."S"."it\'\'s"/in/day\'',
            "PARALLEL = 4 AUTO_COMPRESS = FALSE OVERWRITE = FALSE",
        )
        assert written == f"PUT 'file:///it''s/a b.csv' {path} {options}"

    def test_listed_files_are_named_below_the_stage_and_an_external_one_is_refused(self):
        row = {"name": "s/in/a.csv", "size": "7", "md5": MD5}

        assert staging().listed([row]) == {"in/a.csv": ListedFile(7, MD5)}
        refused(ConfigurationError, staging().listed, [[{**row, "name": "s3://bucket/a.csv"}]], "external")


@pytest.mark.parametrize("names", [("東京", "大阪"), ("a b", "a_b"), ("a b", "a/b"), ("é", "_")], ids=str)
def test_names_in_a_path_need_no_quotes_and_stay_apart(names):
    first, second = (plain_name(f"{name}.csv.gz") for name in names)

    assert first != second
    assert re.fullmatch(r"[\w.=-]+\.csv\.gz", first, re.ASCII)
    assert plain_name("p_s_a") == "p_s_a"
