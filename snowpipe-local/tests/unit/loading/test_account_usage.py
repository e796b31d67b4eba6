import datetime as dt

import pytest
from snowpipe_local.engine.load_history import DAY_MS
from tests.local_catalog import LocalCatalog
from tests.unit.sql_sessions import SqlSessions

COPIES = "SNOWFLAKE.ACCOUNT_USAGE.COPY_HISTORY"
FILES = f"SELECT table_catalog_name, file_name FROM {COPIES} ORDER BY last_load_time, file_name"
DAY = DAY_MS / 1000


@pytest.fixture
def local(local):
    for statement in ("CREATE TABLE t (id INT)", "CREATE ROLE r", "GRANT ROLE r TO USER demo"):
        local.sql(statement)
    local.put("a.csv", b"1\nbad\n")
    local.sql("COPY INTO t FROM @s ON_ERROR = CONTINUE")
    return local


@pytest.fixture
def other(local):
    """A session with the role R only."""
    session = local.new_session()
    session.role, session.secondary_roles = "R", False
    yield session
    session.close()


def files(local: LocalCatalog) -> list[tuple[object, ...]]:
    return local.values(FILES)


def test_loads_of_all_databases_show_with_their_tables(local):
    local.sql("CREATE DATABASE d")
    local.sql("CREATE TABLE u (id INT)")
    local.sql("COPY INTO u FROM @local.public.s ON_ERROR = CONTINUE")

    assert files(local) == [("LOCAL", "a.csv"), ("D", "a.csv")]
    (row,) = local.sql(f"SELECT * FROM {COPIES} h WHERE h.table_name = 'T'")
    assert (row["status"], row["row_count"], row["error_count"]) == ("Partially loaded", 1, 1)
    assert row["first_error_column_name"] == '"T"["ID":1]'
    assert (row["stage_location"], row["table_schema_name"]) == ("LOCAL.PUBLIC.S", "PUBLIC")
    assert (row["pipe_name"], row["table_id"]) == (None, None)
    assert isinstance(row["last_load_time"], dt.datetime)
    (row,) = local.sql("SELECT * FROM snowflake.account_usage.load_history WHERE table_name = 'T'")
    assert (row["catalog_name"], row["schema_name"], row["catalog_id"]) == ("LOCAL", "PUBLIC", None)
    assert (row["file_name"], row["status"]) == ("a.csv", "PARTIALLY_LOADED")


def test_the_time_of_a_query_follows_the_clock_that_loads_are_dated_by(local):
    local.catalog.clock.move(30 * DAY)
    recent = f"SELECT file_name FROM {COPIES} WHERE last_load_time > DATEADD(day, -{{}}, CURRENT_TIMESTAMP())"
    assert local.sql(recent.format(29)) == []
    assert local.sql(recent.format(31)) == [{"file_name": "a.csv"}]
    (row,) = local.sql("SELECT CURRENT_TIMESTAMP() AS now, CURRENT_DATE AS today, SYSDATE() AS utc")
    ahead = dt.datetime.now(dt.UTC) + dt.timedelta(days=30)
    assert abs(row["now"] - ahead) < dt.timedelta(hours=1)
    assert row["today"] in {(ahead - dt.timedelta(hours=1)).date(), ahead.date()}
    assert abs(row["utc"] - ahead.replace(tzinfo=None)) < dt.timedelta(hours=1)


def test_a_year_is_kept_also_of_dropped_tables_of_a_schema_by_any_name_and_copy_forgets_them(local):
    local.sql("CREATE OR REPLACE TABLE t (id INT)")
    local.sql("COPY INTO t FROM @s ON_ERROR = CONTINUE")
    local.sql("DROP TABLE t")
    assert files(local) == [("LOCAL", "a.csv"), ("LOCAL", "a.csv")]
    assert local.sql("SELECT * FROM SNOWFLAKE.ACCOUNT_USAGE.LOAD_HISTORY") == []
    local.sql("ALTER SCHEMA public RENAME TO former")
    assert {row["name"] for row in local.sql(f"SELECT table_schema_name AS name FROM {COPIES}")} == {"FORMER"}
    local.catalog.clock.move(364 * DAY)
    assert len(files(local)) == 2
    local.catalog.clock.move(2 * DAY)
    assert files(local) == []


def test_a_temporary_tables_loads_are_its_sessions_own(local):
    local.sql("CREATE TEMPORARY TABLE own (id INT)")
    local.sql("COPY INTO own FROM @s ON_ERROR = CONTINUE")
    assert len(files(local)) == 1
    local.sql("DROP TABLE own")
    assert len(files(local)) == 1


def test_the_views_are_hidden_from_roles_without_the_right(local, other):
    for right in ["IMPORTED PRIVILEGES ON DATABASE snowflake", "DATABASE ROLE snowflake.usage_viewer"]:
        hidden = local.refused(FILES, session=other)
        assert (hidden.code, "'SNOWFLAKE' does not exist or" in hidden.message) == ("002003", True)
        assert local.refused(f"GRANT {right} TO ROLE r", session=other).code == "003001"
        local.sql(f"GRANT {right} TO ROLE r")
        assert len(local.sql(FILES, session=other)) == 1
        (shown,) = local.sql("SHOW GRANTS TO ROLE r")
        kind = "DATABASE" if right.startswith("IMPORTED") else "DATABASE_ROLE"
        assert (shown["privilege"], shown["granted_on"]) == ("USAGE", kind)
        local.sql(f"REVOKE {right} FROM ROLE r")
        assert local.refused(FILES, session=other).code == "002003"


def test_another_database_role_does_not_show_them_and_the_right_outlives_a_restart(sql: SqlSessions):
    sql.run("CREATE ROLE r", "GRANT ROLE r TO USER demo")
    sql.run("GRANT DATABASE ROLE SNOWFLAKE.OBJECT_VIEWER TO ROLE r")
    assert sql.refused(FILES, role="R").code == "002003"
    sql.run("GRANT IMPORTED PRIVILEGES ON DATABASE SNOWFLAKE TO ROLE r")
    shown = sql.run("SHOW GRANTS TO ROLE r")
    sql.restart()
    assert sql.run("SHOW GRANTS TO ROLE r") == shown
    assert sql.values(FILES, role="R") == []


def test_nothing_in_the_database_can_be_changed(local):
    for statement, code in [
        (f"INSERT INTO {COPIES} (file_name) VALUES ('x')", "003001"), (f"DELETE FROM {COPIES}", "003001"),
        ("CREATE TABLE snowflake.account_usage.t (id INT)", "003001"),
        ("CREATE SCHEMA snowflake.s", "003001"), ("DROP DATABASE snowflake", "003001"),
        (f"DROP VIEW {COPIES}", "003001"), ("ALTER DATABASE snowflake RENAME TO d", "003001"),
        ("COMMENT ON DATABASE snowflake IS 'x'", "003001"), ("USE DATABASE snowflake", "003001"),
        ("CREATE DATABASE snowflake", "002002"), ("ALTER DATABASE local RENAME TO snowflake", "002002"),
        ("SELECT * FROM snowflake.account_usage.tables", "002003"),
        ("GRANT USAGE ON DATABASE snowflake TO ROLE r", "001003"),
        ("GRANT SELECT ON FUTURE TABLES IN DATABASE snowflake TO ROLE r", "001003"),
        ("GRANT DATABASE ROLE snowflake.nobody TO ROLE r", "002003"),
        ("GRANT DATABASE ROLE snowflake.usage_viewer TO ROLE nobody", "002043"),
    ]:  # fmt: skip
        assert local.refused(statement).code == code
        assert local.sql("SHOW GRANTS TO ROLE r") == []
        assert [row["name"] for row in local.sql("SHOW DATABASES")] == ["LOCAL"]
