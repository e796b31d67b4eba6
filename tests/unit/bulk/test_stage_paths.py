"""A path in a stage means the same files in every statement, whatever characters it has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from snowflake.connector.converter import SnowflakeConverter
from snowpipe_local.sql.reader import Reader, split_statements
from snowpipe_local.stages.definition import read_literal

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.file_pipe_admin import KnownPipe, PipeDefinition, PipeTarget
from airflow_provider_snowpipe.bulk.stage import PutKind, SourceFile, Staging
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.bulk_driver import RunStage
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

TABLE = ("DB", "S", "T")
OPTIONS = CopyOptions(pattern=".*[.]csv", on_error="SKIP_FILE", file_format={"type": "CSV"})
HARD = ("--", "/*", "*/", "$$", "''", "\\'", "  ", "%s", "//x", *"'\"\\\n\r ;%(@")
CHARACTERS = st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))
PATHS = st.lists(
    st.one_of(st.sampled_from(HARD), st.text(CHARACTERS, max_size=4)), min_size=1, max_size=6
).map("".join)


def meant(path: str) -> str:
    """The location of a path: that of a folder, whatever slashes the path has at its ends."""
    inner = path.strip("/")
    return '@"DB"."S".ST' + (f"/{inner}/" if inner else "")


def location_of(path: str) -> str:
    return StageReference.parse(f"@ST/{path}").location("", database="DB", schema="S")


def each_hard_path(test: Any) -> Any:
    for hard in HARD:
        test = example(f"a{hard}b")(example(hard)(test))
    return test


@each_hard_path
@given(PATHS)
def test_copy_takes_the_path_as_it_is(path: str) -> None:
    statement = CopyInto(TABLE, location_of(path), OPTIONS).statement(["a'b", "c--d"])
    read, rest = read_literal(statement.partition(" FROM ")[2])
    reader = Reader(rest)
    settings = reader.settings()

    assert read == meant(path)
    assert list(settings) == ["FILES", "FILE_FORMAT", "PATTERN", "ON_ERROR"]
    assert reader.is_at_end


@each_hard_path
@given(PATHS)
def test_a_pipe_keeps_the_path_in_its_statement(path: str) -> None:
    definition = PipeDefinition(CopyInto(TABLE, location_of(path), OPTIONS))
    written = definition.create(PipeName("DB", "S", "P"))
    stored = written.partition(" AS ")[2]

    assert read_literal(stored.partition(" FROM ")[2])[0] == meant(path)
    assert PipeTarget.of(PipeName("DB", "S", "P"), stored).stage == StageReference.parse(meant(path))
    assert KnownPipe(stored, auto_ingest=False).differs_from(definition) is None


@each_hard_path
@given(PATHS)
def test_put_get_and_list_take_the_path_as_it_is(path: str) -> None:
    hook = SnowpipeBulkHook("c", table=None, pipe="ANY", database="DB", schema="S")
    with pytest.MonkeyPatch.context() as patch:
        run: list[tuple[str, Any]] = []
        patch.setattr(SnowpipeBulkHook, "database_and_schema", lambda _: ("DB", "S"))
        patch.setattr(
            SnowpipeBulkHook, "run_sql", lambda _, text, values=None: run.append((text, values)) or []
        )
        hook.put_file("/files/it's", location_of(path))
        hook.get_file(f"@ST/{path}", "/files/f")
        hook.list_files(f"@ST/{path}")
    (put, _), (get, _), (_, listed) = run
    source, rest = read_literal(put.removeprefix("PUT "))
    upload = Staging(StageReference.parse("@ST"), auto_compress=False, if_staged="skip").put(
        SourceFile("f", 1, "f"), "/files/f", location_of(path), PutKind.NEW, 1
    )

    assert source == "file:///files/it's"
    assert read_literal(rest)[0] == meant(path)
    assert read_literal(get.removeprefix("GET "))[0] == meant(path).rstrip("/")
    assert listed == (meant(path),)
    assert read_literal(read_literal(upload.removeprefix("PUT "))[1])[0] == meant(path).rstrip("/")


@each_hard_path
@given(PATHS)
def test_remove_takes_the_path_as_it_is(path: str) -> None:
    hook = SnowpipeBulkHook("c", table=None, pipe="ANY", database="DB", schema="S")
    inner = path.strip("/")
    below = f"{inner}/run" if inner else "run"
    removed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SnowpipeBulkHook, "database_and_schema", lambda _: ("DB", "S"))
        patch.setattr(SnowpipeBulkHook, "stage_url", lambda *_: None)
        patch.setattr(SnowpipeBulkHook, "run_sql", lambda _, *given: removed.append(_bound(*given)))
        RunStage(hook, f"@ST/{path}", "run").sweep()

    (statement,) = removed
    assert read_literal(statement.removeprefix("REMOVE ")) == (f'@"DB"."S".ST/{below}/', "")
    assert len(split_statements(statement)) == 1


def _bound(statement: str, values: tuple[str, ...]) -> str:
    """The text that the connector sends for a statement and its values."""
    converter = SnowflakeConverter()
    return statement % tuple(converter.quote(converter.escape(converter.to_snowflake(one))) for one in values)


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
def test_a_character_that_no_statement_can_have_is_refused_with_the_path(path: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        CopyInto(TABLE, f"@ST/{path}").statement()
    assert repr(path)[1:-1] in str(refused.value)


def test_a_pipe_with_other_blanks_in_its_path_is_another_one() -> None:
    definition = PipeDefinition(CopyInto(TABLE, '@"DB"."S".ST/a b', OPTIONS))
    other = CopyInto(TABLE, '@"DB"."S".ST/a  b', OPTIONS).statement()

    assert KnownPipe(other, auto_ingest=False).differs_from(definition) is not None
