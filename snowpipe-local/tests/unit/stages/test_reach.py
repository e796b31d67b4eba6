"""What SQL can reach: tables of the catalog and Snowflake's functions; no file, no setting, no engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from snowpipe_local.errors import SqlError
from tests.unit.sql_sessions import SqlSessions

_TABLE_FUNCTIONS = (
    "read_text('/etc/passwd')", "read_blob('{data}/databases/LOCAL.duckdb')", "read_csv('/etc/passwd')",
    "duckdb_tables()", "pragma_table_info('_snowpipe.channels')", "query('SELECT 1')", "checkpoint()",
    "json_execute_serialized_sql('{{}}')", "which_secret('s3://x', 's3')", "arrow_scan(1, 1, 1)",
)  # fmt: skip
_POSITIONS = (
    "SELECT * FROM {call}",
    "SELECT * FROM TABLE({call})",
    "SELECT * FROM reached, LATERAL {call}",
    "SELECT * FROM reached, TABLE({call})",
    "SELECT (SELECT count(*) FROM {call})",
    "WITH a AS (SELECT * FROM {call}) SELECT * FROM a",
    "CREATE TABLE stolen AS SELECT * FROM reached, LATERAL {call}",
    "INSERT INTO reached SELECT 1 FROM reached, LATERAL {call}",
    "UPDATE reached SET n = (SELECT count(*) FROM reached, LATERAL {call})",
    "DELETE FROM reached WHERE n IN (SELECT count(*) FROM reached, LATERAL {call})",
    "MERGE INTO reached USING (SELECT 1 n FROM reached, LATERAL {call}) s ON s.n = reached.n "
    "WHEN MATCHED THEN DELETE",
)
_STATEMENTS = (
    "COPY reached TO '/tmp/stolen.csv'", "COPY (SELECT 1) TO '/tmp/x.csv'", "ATTACH '/tmp/x.duckdb' AS x",
    "SELECT getvariable('x')", "INSTALL httpfs", "LOAD httpfs", "PRAGMA database_list", "DETACH local",
    "RESET ALL", "EXPORT DATABASE '/tmp/stolen'", "IMPORT DATABASE '/tmp/stolen'", "CHECKPOINT", "VACUUM",
    "SUMMARIZE reached", "CREATE SECRET s (TYPE s3)", "CREATE MACRO m(a) AS a", "CALL pragma_version()",
    "SELECT * FROM '/etc/passwd'", 'SELECT * FROM "/etc/passwd"', "SELECT * FROM _snowpipe.channels",
    "SELECT * FROM local._snowpipe.channels", 'SELECT * FROM local."_SnowPipe".channels',
    "SELECT * FROM local.main.sqlite_master", "SELECT * FROM system.main.duckdb_tables",
    "SELECT * FROM IDENTIFIER('local._snowpipe.tables')", "SELECT * FROM _lent_0123",
    "SELECT * FROM temp.main.x", "SELECT * FROM pg_catalog.pg_tables", "DROP SCHEMA _snowpipe",
    "INSERT INTO _snowpipe.channels SELECT 1", "DROP TABLE _snowpipe.channels",
    'DELETE FROM "_snowpipe".channels', 'TRUNCATE TABLE "_snowpipe".channels',
    'CREATE TABLE "_snowpipe".x (n INT)', 'DESCRIBE TABLE "_snowpipe".channels', 'USE SCHEMA "_snowpipe"',
    'CREATE DATABASE "system"',
    "SELECT * FROM (WITH duckdb_tables AS (SELECT 1) SELECT 1) x, duckdb_tables",
    "WITH b AS (SELECT * FROM duckdb_tables), duckdb_tables AS (SELECT 1) SELECT * FROM b",
    "WITH duckdb_tables AS (SELECT * FROM duckdb_tables) SELECT * FROM duckdb_tables",
    "WITH a AS (INSERT INTO reached VALUES (2)) SELECT 1", "ALTER TABLE reached ADD ) COLUMN x INT",
    "ALTER TABLE reached ADD COLUMN x INT) AS SELECT * FROM (SELECT 1",
    "CREATE TABLE d (n INT DEFAULT current_setting('threads'))",
    "CREATE TABLE d (n VARCHAR DEFAULT getvariable('x'))",
    "CREATE PIPE p AS COPY INTO reached FROM (SELECT current_setting('threads') "
    "FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
)  # fmt: skip


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlSessions]:
    """A catalog with one table, whose rows must be as they were in the end."""
    sql = SqlSessions(tmp_path_factory.mktemp("reach"))
    sql.run("CREATE TABLE reached (n INT)", "INSERT INTO reached VALUES (1)")
    yield sql
    assert sql.values("SELECT count(*) FROM reached") == [(1,)]
    assert [row["name"] for row in sql.run("SHOW TABLES")] == ["REACHED"]
    sql.close()


@pytest.mark.parametrize("call", _TABLE_FUNCTIONS)
def test_a_table_function_of_the_engine_is_unknown_wherever_it_stands(sql: SqlSessions, call: str) -> None:
    for position in _POSITIONS:
        error = sql.refused(position.format(call=call.format(data=sql.folder)))
        assert error.code in ("002140", "001003", "000002"), (position, error)
        assert "_snowpipe." not in error.message.lower() or call.count("_snowpipe."), error


def test_a_statement_beyond_the_catalog_is_refused(sql: SqlSessions) -> None:
    # A variable of the session is no setting of the engine.
    sql.run("SET enable_external_access = true")
    for statement in _STATEMENTS:
        error = sql.refused(statement)
        known = ("000002", "001003", "002003", "002043", "002140", "002002", "003001")
        assert error.code in known, (statement, error)


def test_a_name_of_a_database_or_schema_stays_in_its_folder(sql: SqlSessions) -> None:
    def files() -> set[str]:
        return {str(path) for folder in (sql.folder.parent, sql.folder) for path in folder.iterdir()}

    before = files()
    for name in ("../escaped", "..", ".", "a/../../escaped", "%2e%2e%2fescaped", "a\x00b", "x" * 120):
        try:
            sql.run(f'CREATE DATABASE "{name}"', f'CREATE SCHEMA "{name}"."{name}"')
        except SqlError:
            assert files() == before, name
            continue
        assert all(Path(path).parent == sql.folder for path in files() - before), name
        sql.run(f'DROP DATABASE "{name}"', "USE SCHEMA local.public")
        assert files() == before, name
