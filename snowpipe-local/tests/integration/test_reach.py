"""What SQL can reach: tables of the catalog and Snowflake's functions; no file, no setting, no engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from snowpipe_local.accounts import sign_key_pair_jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.environment import client_session
from snowpipe_local.testing import LocalService

Run = Callable[[str], tuple[int, str, str]]

_TABLE_FUNCTIONS = (
    "read_text('/etc/passwd')", "read_blob('{data}/databases/LOCAL.duckdb')", "read_csv('/etc/passwd')",
    "read_json('/etc/passwd')", "read_parquet('/etc/passwd')", "parquet_metadata('/etc/passwd')",
    "sniff_csv('/etc/passwd')", "duckdb_tables()", "duckdb_settings()", "duckdb_secrets()",
    "duckdb_functions()",
    "pragma_table_info('_snowpipe.channels')", "query('SELECT 1')", "query_table('_snowpipe.channels')",
    "json_execute_serialized_sql('{{}}')", "which_secret('s3://x', 's3')", "checkpoint()",
    "force_checkpoint()",
    "enable_logging()", "storage_info('t')", "duckdb_databases()", "arrow_scan(1, 1, 1)", "pandas_scan(1)",
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
_SCALARS = (
    "current_setting('temp_directory')", "getenv('HOME')", "current_query()",
    "write_log('x')",
    "sleep_ms(10)", "pg_sleep(1)", "nextval('LOCAL._snowpipe.x')",     "pg_get_viewdef(1)",
    "json_serialize_sql('SELECT 1')", "txid_current()", "__internal_decompress_string(1)", "version()",
    "has_table_privilege('t', 'SELECT')",
)  # fmt: skip
_STATEMENTS = (
    "COPY reached TO '/tmp/stolen.csv'", "COPY (SELECT 1) TO '/tmp/stolen.csv'",
    "ATTACH '/tmp/x.duckdb' AS x",
    "SELECT getvariable('x')",
    "INSTALL httpfs", "LOAD httpfs", "PRAGMA database_list",
    "DETACH local",
    "RESET ALL", "EXPORT DATABASE '/tmp/stolen'", "IMPORT DATABASE '/tmp/stolen'", "CHECKPOINT", "VACUUM",
    "SUMMARIZE reached",
    "CREATE SECRET s (TYPE s3)", "CREATE MACRO m(a) AS a", "CALL pragma_version()", "FORCE CHECKPOINT",
    "SELECT * FROM '/etc/passwd'", "SELECT * FROM \"/etc/passwd\"", "SELECT * FROM _snowpipe.channels",
    "SELECT * FROM local._snowpipe.channels", "SELECT * FROM \"_snowpipe\".\"channels\"",
    "SELECT * FROM local.\"_SnowPipe\".channels", "SELECT * FROM local.main.sqlite_master",
    "SELECT * FROM system.main.duckdb_tables", "SELECT * FROM temp.main.x",
    "SELECT * FROM pg_catalog.pg_tables",
    "INSERT INTO _snowpipe.channels SELECT 1", "DROP TABLE _snowpipe.channels", "DROP SCHEMA _snowpipe",
    "DELETE FROM \"_snowpipe\".channels", "TRUNCATE TABLE \"_snowpipe\".channels",
    "CREATE TABLE \"_snowpipe\".x (n INT)",
    "DESCRIBE TABLE \"_snowpipe\".channels", "USE SCHEMA \"_snowpipe\"", "CREATE DATABASE \"system\"",
    "SELECT * FROM (WITH duckdb_tables AS (SELECT 1) SELECT 1) x, duckdb_tables",
    "SELECT * FROM (WITH sqlite_master AS (SELECT 1) SELECT 1) x, sqlite_master",
    "WITH b AS (SELECT * FROM duckdb_tables), duckdb_tables AS (SELECT 1) SELECT * FROM b",
    "WITH duckdb_tables AS (SELECT * FROM duckdb_tables) SELECT * FROM duckdb_tables",
    "WITH a AS (INSERT INTO reached VALUES (2)) SELECT 1",
    "ALTER TABLE reached ADD ) COLUMN x INT",
    "ALTER TABLE reached ADD COLUMN x INT) AS SELECT * FROM (SELECT 1",
    "CREATE TABLE d (n INT DEFAULT current_setting('threads'))",
    "CREATE TABLE d (n VARCHAR DEFAULT getvariable('x'))",
    "CREATE PIPE p AS COPY INTO reached FROM (SELECT current_setting('threads') "
    "FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(local_service: LocalService) -> Run:
    """Run a statement through the SQL API: HTTP status, code, whole answer."""
    home = DataDirectory(local_service.data_dir)
    http = client_session(home)

    def run(statement: str) -> tuple[int, str, str]:
        answer = http.post(
            f"{local_service.url}/api/v2/statements",
            json={"statement": statement, "database": "LOCAL", "schema": "PUBLIC", "timeout": 20},
            headers={"Authorization": f"Bearer {sign_key_pair_jwt(home)}"},
            timeout=60,
        )
        return answer.status_code, answer.json()["code"], answer.text

    assert run("CREATE TABLE reached (n INT)")[0] == 200
    assert run("INSERT INTO reached VALUES (1)")[0] == 200
    return run


@pytest.mark.parametrize("call", _TABLE_FUNCTIONS)
def test_a_table_function_of_the_engine_is_unknown_wherever_it_stands(
    run: Run, local_service: LocalService, call: str
) -> None:
    called = call.format(data=local_service.data_dir)
    for position in _POSITIONS:
        status, code, text = run(position.format(call=called))
        assert (status, code) in ((422, "002140"), (422, "001003"), (422, "000002")), (position, text)
        assert "root:" not in text
        assert "_snowpipe." not in text.lower() or call.count("_snowpipe."), text


@pytest.mark.parametrize("call", _SCALARS)
def test_a_function_about_the_engine_is_unknown(run: Run, call: str) -> None:
    for position in (
        "SELECT {}",
        "SELECT * FROM reached WHERE {} IS NOT NULL",
        "INSERT INTO reached SELECT {}",
    ):
        status, code, text = run(position.format(call))
        assert (status, code) == (422, "002140"), text


@pytest.mark.parametrize("statement", _STATEMENTS)
def test_a_statement_beyond_the_catalog_is_refused(run: Run, statement: str) -> None:
    status, code, text = run(statement)
    assert status == 422, text
    assert code in ("000002", "001003", "002003", "002043", "002140", "002002", "003001"), text


def test_a_variable_of_the_session_is_no_setting_of_the_engine(run: Run) -> None:
    assert run("SET enable_external_access = true")[0] == 200
    assert run("SELECT * FROM '/etc/passwd'")[0] == 422


def test_nothing_of_that_changed_a_row_or_made_a_table(run: Run) -> None:
    assert '"data":[["1"]]' in run("SELECT count(*) FROM reached")[2]
    assert "stolen" not in run("SHOW TABLES")[2].lower()


@pytest.mark.parametrize(
    ("statement", "data"),
    [
        ("WITH a AS (SELECT 1 n), b AS (SELECT n + 1 m FROM a) SELECT m FROM b", '[["2"]]'),
        ("WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT max(n) FROM r",
        '[["5"]]'),
        ("WITH reached AS (SELECT 7 n) SELECT n FROM reached", '[["7"]]'),
        ("WITH reached AS (SELECT n + 6 AS n FROM reached) SELECT n FROM reached", '[["7"]]'),
        ("SELECT n FROM (WITH q AS (SELECT 3 n) SELECT n FROM q) w", '[["3"]]'),
        ("SELECT repeat('ab', 2)", '[["abab"]]'),
    ],
)  # fmt: skip
def test_names_of_with_clauses_are_seen_where_snowflake_sees_them(
    run: Run, statement: str, data: str
) -> None:
    status, _, text = run(statement)
    assert status == 200, text
    assert f'"data":{data}' in text


def test_a_deeply_nested_statement_is_a_compilation_error(run: Run) -> None:
    for opened in ("(", "[", "NOT ", "f(", "(SELECT "):
        status, code, text = run(f"SELECT {opened * 5000}1")
        assert (status, code) == (422, "001003"), text[:300]
