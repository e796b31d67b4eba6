"""Files in a stage: which an upload leaves out, and paths that mean the same in every statement."""

import hashlib
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from snowflake.connector.converter import SnowflakeConverter
from snowpipe_local.sql.reader import Reader, split_statements
from snowpipe_local.stages.definition import read_literal

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.file_pipe_admin import KnownPipe, PipeDefinition, PipeTarget
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
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, StagedFileDiffersError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.refusals import refused

MD5 = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
OTHER = hashlib.md5(b"other", usedforsecurity=False).hexdigest()
FILE = SourceFile("day/a b.csv", 7, "/in/day/a b.csv")
STAGED = "in/day/a b.csv"


@pytest.fixture
def here(tmp_path):
    path = tmp_path / "content"
    path.write_bytes(b"content")
    return lambda: path


def never():
    raise AssertionError("the content is not needed")


def staging(if_staged="skip_same", *, auto_compress=False):
    return Staging(StageReference.parse("@S/in"), auto_compress, if_staged)


class TestUpload:
    def test_list_reports_whether_the_content_is_the_same(self, here):
        for content, listed, expected in [
            (b"content", ListedFile(7, MD5), Sameness.SAME),
            (b"content", ListedFile(7, OTHER), Sameness.CHANGED),
            (b"content", ListedFile(7, f"{OTHER}-2"), Sameness.UNKNOWN),  # uploaded in parts
            (b"content", ListedFile(7, ""), Sameness.UNKNOWN),
            (b"content", ListedFile(16, OTHER), Sameness.UNKNOWN),  # encrypted
            (b"content", ListedFile(8, OTHER), Sameness.CHANGED),
            (bytes(16), ListedFile(32, OTHER), Sameness.UNKNOWN),  # a full cipher block grows by one more
        ]:
            here().write_bytes(content)
            assert (listed, sameness(here, listed, len(content))) == (listed, expected)
            assert (listed, sameness(here, listed, None)) == (listed, expected)

    def test_what_is_staged_decides_how_a_file_goes(self, here):
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
            assert staging(if_staged).decide(FILE, there, here) is expected, (if_staged, listed)
        with pytest.raises(StagedFileDiffersError, match=r"/in/day/a b\.csv.* 7 .* 9"):
            staging("fail").decide(FILE, {STAGED: ListedFile(9, OTHER)}, never)
        assert staging("fail").decide(FILE, {STAGED: ListedFile(16, OTHER)}, never) is PutKind.NEW
        refused(ConfigurationError, staging, ["never"], "if_staged is 'never'")

    def test_a_compressed_file_is_searched_with_its_ending(self, here):
        compressing = staging(auto_compress=True)
        assert compressing.decide(FILE, {f"{STAGED}.gz": ListedFile(7, MD5)}, here) is None
        assert compressing.decide(FILE, {STAGED: ListedFile(7, MD5)}, never) is PutKind.NEW
        for name in ("x.csv.gz", "x.csv.zst", "in/x.parquet", "X.CSV.GZ"):
            assert compressing.staged_as(name) == name
        assert compressing.staged_as("x.gz/a") == "x.gz/a.gz"

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


TABLE = ("DB", "S", "T")
OPTIONS = CopyOptions(pattern=".*[.]csv", on_error="SKIP_FILE", file_format={"type": "CSV"})
HARD = ("--", "/*", "*/", "$$", "''", "\\'", "  ", "%s", "//x", *"'\"\\\n\r ;%(@")
CHARACTERS = st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))
PIECES = st.one_of(st.sampled_from(HARD), st.text(CHARACTERS, max_size=4))
PATHS = st.lists(PIECES, min_size=1, max_size=6).map("".join)


def meant(path: str) -> str:
    """The location of a path: that of a folder, whatever slashes the path has at its ends."""
    inner = path.strip("/")
    return '@"DB"."S".ST' + (f"/{inner}/" if inner else "")


def location_of(path: str) -> str:
    return StageReference.parse(f"@ST/{path}", "DB", "S").location()


def each_hard_path(test: Any) -> Any:
    for hard in HARD:
        test = example(f"a{hard}b")(example(hard)(test))
    return test


@each_hard_path
@given(PATHS)
def test_copy_and_a_pipe_take_the_path_as_it_is(path: str) -> None:
    copy = CopyInto(TABLE, location_of(path), OPTIONS)
    read, rest = read_literal(copy.statement(["a'b", "c--d"]).partition(" FROM ")[2])
    reader = Reader(rest)
    assert list(reader.settings()) == ["FILES", "FILE_FORMAT", "PATTERN", "ON_ERROR"]
    assert (read, reader.is_at_end) == (meant(path), True)
    definition, name = PipeDefinition(copy), PipeName("DB", "S", "P")
    stored = definition.create(name).partition(" AS ")[2]
    assert read_literal(stored.partition(" FROM ")[2])[0] == meant(path)
    assert PipeTarget.of(name, stored).stage == StageReference.parse(meant(path))
    assert KnownPipe(stored, auto_ingest=False).differs_from(definition) is None


@each_hard_path
@given(PATHS)
def test_put_list_and_remove_take_the_path_as_it_is(path: str) -> None:
    hook = SnowpipeBulkHook("c", table=None, pipe="ANY", database="DB", schema="S")
    run: list[tuple[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SnowpipeBulkHook, "database_and_schema", lambda _: ("DB", "S"))
        patch.setattr(SnowpipeBulkHook, "stage_url", lambda *_: None)
        patch.setattr(
            SnowpipeBulkHook, "run_sql", lambda _, sql, values=None: run.append((sql, values)) or []
        )
        hook.list_files(f"@ST/{path}")
        RunStage(hook, f"@ST/{path}", "run").sweep()
    (_, listed), remove = run
    assert listed == (meant(path),)
    removed, folder = _bound(*remove), f"{meant(path)}run/" if path.strip("/") else f"{meant(path)}/run/"
    assert read_literal(removed.removeprefix("REMOVE ")) == (folder, "")
    assert len(split_statements(removed)) == 1

    file = SourceFile("day/f", 1, "day/f")
    upload = staging().put(file, "/it's/f", location_of(path), PutKind.NEW, 4)
    source, rest = read_literal(upload.removeprefix("PUT "))
    target, rest = read_literal(rest)
    assert (source, target) == ("file:///it's/f", f"{meant(path).rstrip('/')}/day")
    assert rest.strip() == "PARALLEL = 4 AUTO_COMPRESS = FALSE OVERWRITE = FALSE"


def _bound(statement: str, values: tuple[str, ...]) -> str:
    """The text that the connector sends for a statement and its values."""
    converter = SnowflakeConverter()
    return statement % tuple(converter.quote(converter.escape(converter.to_snowflake(one))) for one in values)


def test_a_pipe_with_other_blanks_in_its_path_is_another_one() -> None:
    definition = PipeDefinition(CopyInto(TABLE, '@"DB"."S".ST/a b', OPTIONS))
    other = CopyInto(TABLE, '@"DB"."S".ST/a  b', OPTIONS).statement()
    assert KnownPipe(other, auto_ingest=False).differs_from(definition) is not None
