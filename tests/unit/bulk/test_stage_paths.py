"""A path in a stage means the same files in every statement, whatever characters it has."""

from contextlib import nullcontext

import pytest
from hypothesis import example, given, settings
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
from tests.local_catalog import local_catalog
from tests.refusals import refused

TABLE = ("DB", "S", "T")
OPTIONS = CopyOptions(pattern=".*[.]csv", on_error="SKIP_FILE", file_format={"type": "CSV"})
HARD = (
    *("--", "/*", "*/", "$$", "'", "''", '"', "\\", "\\'", "\n", "\r"),
    *(" ", "  ", ";", "%", "%s", "(", "@", "//x"),
)  # fmt: skip
CHARACTERS = st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))
PATHS = st.lists(
    st.one_of(st.sampled_from(HARD), st.text(CHARACTERS, max_size=4)), min_size=1, max_size=6
).map("".join)


def meant(path):
    """The location of a path: that of a folder, whatever slashes the path has at its ends."""
    inner = path.strip("/")
    return '@"DB"."S".ST' + (f"/{inner}/" if inner else "")


def location_of(path):
    return StageReference.parse(f"@ST/{path}").location("", database="DB", schema="S")


def each_hard_path(test):
    for hard in HARD:
        test = example(f"a{hard}b")(example(hard)(test))
    return settings(max_examples=15)(given(PATHS)(test))


@each_hard_path
def test_copy_takes_the_path_as_it_is(path):
    statement = CopyInto(TABLE, location_of(path), OPTIONS).statement(["a'b", "c--d"])
    read, rest = read_literal(statement.partition(" FROM ")[2])
    reader = Reader(rest)
    settings = reader.settings()

    assert read == meant(path)
    assert list(settings) == ["FILES", "FILE_FORMAT", "PATTERN", "ON_ERROR"]
    assert reader.is_at_end


@each_hard_path
def test_a_pipe_keeps_the_path_in_its_statement(path):
    definition = PipeDefinition(CopyInto(TABLE, location_of(path), OPTIONS))
    written = definition.create(PipeName("DB", "S", "P"))
    stored = written.partition(" AS ")[2]

    assert read_literal(stored.partition(" FROM ")[2])[0] == meant(path)
    assert PipeTarget.of(PipeName("DB", "S", "P"), stored).stage == StageReference.parse(meant(path))
    assert KnownPipe(stored, auto_ingest=False).differs_from(definition) is None


@each_hard_path
def test_put_get_and_list_take_the_path_as_it_is(path):
    hook = SnowpipeBulkHook("c", table=None, pipe="ANY", database="DB", schema="S")
    with pytest.MonkeyPatch.context() as patch:
        run = []
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
def test_remove_takes_the_path_as_it_is_and_leaves_the_outcome(path):
    hook = SnowpipeBulkHook("c", table=None, pipe="ANY", database="DB", schema="S")
    inner = path.strip("/")
    below = f"{inner}/run" if inner else "run"
    listed = [{"name": f"st/{below}/{name}"} for name in ("a1/part-1", "a1/attempt.json", "loaded.json")]
    removed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SnowpipeBulkHook, "database_and_schema", lambda _: ("DB", "S"))
        patch.setattr(SnowpipeBulkHook, "stage_url", lambda *_: None)
        patch.setattr(SnowpipeBulkHook, "list_files", lambda *_: listed)
        patch.setattr(
            SnowpipeBulkHook,
            "sql_session",
            lambda *_: nullcontext(lambda *given: removed.append(_bound(*given))),
        )
        RunStage(hook, f"@ST/{path}", "run").sweep()

    (statement,) = removed
    assert read_literal(statement.removeprefix("REMOVE ")) == (f'@"DB"."S".ST/{below}/a1', "")
    assert len(split_statements(statement)) == 1


def _bound(statement, values):
    """The text that the connector sends for a statement and its values."""
    converter = SnowflakeConverter()
    return statement % tuple(converter.quote(converter.escape(converter.to_snowflake(one))) for one in values)


def test_a_character_that_no_statement_can_have_is_refused_with_the_path():
    def copy(path):
        CopyInto(TABLE, f"@ST/{path}").statement()

    for path in ("a\0b", "a\ud800b"):
        refused(ConfigurationError, copy, [path], repr(path)[1:-1])


def test_a_pipe_is_the_same_without_quotes_and_another_one_with_other_blanks_in_its_path():
    def known(path):
        return CopyInto(TABLE, f'@"DB"."S".ST/{path}', OPTIONS)

    def differs(statement, path):
        definition = PipeDefinition(known(path))
        return KnownPipe(statement, auto_ingest=False).differs_from(definition) is not None

    assert differs(known("a  b").statement(), "a b")
    plain = known("a-b").statement().replace('\'@"DB"."S".ST/a-b\'', '@"DB"."S".ST/a-b')
    assert "FROM @" in plain
    assert not differs(plain, "a-b")


class TestLocalService:
    """The service's own SQL loads exactly the files meant."""

    @pytest.fixture
    def local(self, tmp_path):
        with local_catalog(tmp_path) as made:
            made.sql("CREATE TABLE t (name VARCHAR)")
            yield made

    def test_one_of_four_files_is_loaded_for_one_that_is_named(self, local):
        local.put("a/1.csv", b"neighbour\n")
        for inner in ("--", "/*", "*/", "$$", "'", '"', " ", "\n", ";", "%", "(", "@", "ß"):
            self.load_one(local, f"a{inner}b")
            local.sql("TRUNCATE TABLE t")

    def load_one(self, local, folder):
        for name in ("1.csv", "2.csv", "3.csv"):
            local.put(f"{folder}/{name}", f"{name}\n".encode())
        copy = CopyInto(
            ("LOCAL", "PUBLIC", "T"), f'@"LOCAL"."PUBLIC".S/{folder}', CopyOptions(on_error="SKIP_FILE")
        )

        assert local.sql(copy.validation("RETURN_ERRORS", ["2.csv"])) == []
        assert local.sql("SELECT name FROM t") == []
        local.sql(copy.statement(["2.csv"]))
        assert [row["name"] for row in local.sql("SELECT name FROM t")] == ["2.csv"]
        listed = local.sql(f"LIST {copy.statement().partition(' FROM ')[2].rpartition(' ON_ERROR')[0]}")
        assert len(listed) == 3
        local.sql(_bound("REMOVE %s", (f"@LOCAL.PUBLIC.S/{folder}/2.csv",)))
        left = {str(row["name"]).removeprefix("s/") for row in local.sql("LIST @S")}
        assert {f"{folder}/1.csv", f"{folder}/3.csv", "a/1.csv"} <= left
        assert f"{folder}/2.csv" not in left
        assert len(split_statements(copy.statement())) == 1

    def test_a_transformation_reads_from_the_path_as_well(self, local):
        local.put("a--b/1.csv", b"1\n")
        local.put("a--b/2.csv", b"2\n")
        table_name = ("LOCAL", "PUBLIC", "T")
        copy = CopyInto(table_name, "@S/a--b", expressions=["$1 || '!'"], columns=["NAME"])

        local.sql(copy.statement(["2.csv"]))
        assert [row["name"] for row in local.sql("SELECT name FROM t")] == ["2!"]
