"""ALTER DATABASE and ALTER SCHEMA .. RENAME TO: everything inside keeps working under the new name."""

import pytest
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import resolve_location
from snowpipe_local.stages.files import FolderArea
from tests.unit.sql_sessions import SqlSessions
from tests.unit.streamed_table import MadeTable, row

_INSIDE = (
    "CREATE TABLE t (id INT, n INT IDENTITY(10, 5), q INT DEFAULT counted.NEXTVAL, s VARCHAR)",
    "INSERT INTO t (id, s) VALUES (1, 'a'), (2, 'b')", "CREATE VIEW v AS SELECT id, n, q FROM t",
    "COMMENT ON TABLE t IS 'rows'", "COMMENT ON COLUMN t.s IS 'a text'", "CREATE FILE FORMAT f TYPE = CSV",
    "CREATE STAGE g FILE_FORMAT = (FORMAT_NAME = 'f')", "CREATE PIPE p AS COPY INTO t (id, s) FROM @g",
    "CREATE PIPE streamed AS COPY INTO t (id) "
    "FROM (SELECT $1:id FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))",
)  # fmt: skip


@pytest.fixture
def sql(sql: SqlSessions) -> SqlSessions:
    sql.run("CREATE DATABASE d", "CREATE SCHEMA s", "CREATE SEQUENCE counted START 100")
    sql.run(*_INSIDE)
    sql.run("COMMENT ON SCHEMA d.s IS 'of s'", "COMMENT ON DATABASE d IS 'of d'")
    return sql


def _assert_all_there(sql: SqlSessions, database: str, schema: str) -> None:
    shown = sql.run("SHOW TABLES")
    assert [(r["database_name"], r["schema_name"], r["name"], r["comment"]) for r in shown] == [
        (database, schema, "T", "rows")
    ]
    comments = "SELECT comment FROM information_schema.columns WHERE column_name = 'S'"
    assert sql.values(comments) == [("a text",)]
    (stage,) = sql.run("SHOW STAGES")
    assert (stage["database_name"], stage["schema_name"], stage["name"]) == (database, schema, "G")
    named = {r["property"]: r["property_value"] for r in sql.run("DESC STAGE g")}
    assert named["FORMAT_NAME"] == f"{database}.{schema}.F"
    pipes = [(r["database_name"], r["schema_name"], r["name"]) for r in sql.run("SHOW PIPES")]
    assert pipes == [(database, schema, "P"), (database, schema, "STREAMED")]
    assert "RUNNING" in sql.values(f"SELECT SYSTEM$PIPE_STATUS('{database}.{schema}.p')")[0][0]
    listed = "SELECT table_name FROM information_schema.tables WHERE table_schema <> 'PUBLIC'"
    assert sql.values(listed) == [("T",), ("V",)]


@pytest.mark.parametrize(
    ("statement", "database", "schema"),
    [
        pytest.param("ALTER DATABASE d RENAME TO e", "E", "S", id="database"),
        pytest.param("ALTER SCHEMA d.s RENAME TO r", "D", "R", id="schema"),
        pytest.param('ALTER SCHEMA IF EXISTS s RENAME TO d."a b+2"', "D", "a b+2", id="schema-quoted"),
        pytest.param('ALTER DATABASE IF EXISTS d RENAME TO "d"', "d", "S", id="database-other-case"),
    ],
)
def test_everything_inside_has_the_new_name_now_and_after_a_restart(sql, statement, database, schema):
    engine = sql.catalog.database("D")
    sql.run("CREATE TABLE d.public.other (id INT)")
    table, bystander = MadeTable(engine), MadeTable(engine, "OTHER").open("z")
    channel = table.open(pipe=engine.pipes.resolve("S", "STREAMED"), token="7")
    first = table.take(channel, row(3), token="8")
    sql.run(statement)
    engine = sql.catalog.database(database)
    engine.commit([first, table.take(channel, row(4), token="9")])
    pipe = engine.pipes.resolve(schema, "STREAMED")
    assert engine.channels.find(pipe, "c") is channel
    assert sorted(one.name for one in engine.channels) == ["c", "z"]
    assert (channel.database, channel.pipe, channel.committed.offset_token) == (database, pipe, "9")
    named = [(one["database_name"], one["schema_name"]) for one in (channel.status(), bystander.status())]
    assert named == [(database, schema), (database, "PUBLIC")]
    assert sql.values("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()") == [(database, schema)]
    for restarted in (False, True):
        if restarted:
            sql.restart()
        sql.run(f'USE SCHEMA "{database}"."{schema}"')
        comments = {r["name"]: r["comment"] for r in (*sql.run("SHOW DATABASES"), *sql.run("SHOW SCHEMAS"))}
        assert (comments[database], comments[schema]) == ("of d", "of s")
        assert sql.values("SELECT MAX(n), MAX(s) FROM t") == [(25, "b")]
        sql.run("INSERT INTO t (id) VALUES (9)")
        assert sql.values("SELECT n > 15, q > 101 FROM v WHERE id = 9") == [(True, True)]
        sql.run("DELETE FROM t WHERE id = 9")
    if database.isupper() and schema.isupper():
        _assert_all_there(sql, database, schema)


def test_the_old_name_is_free_for_another(sql):
    sql.run("ALTER SCHEMA d.s RENAME TO r", "CREATE SCHEMA d.s", "CREATE TABLE d.s.t AS SELECT 7 AS id")
    assert sql.values("SELECT COUNT(*), MAX(id) FROM d.r.t") == [(2, 2)]
    _put(sql, "@d.s.%t", "new")
    _put(sql, "@d.r.%t", "old")
    sql.restart()
    assert sql.values("SELECT MAX(id) FROM d.s.t") == [(7,)]
    assert [row[0] for row in sql.values("LIST @d.s.%t")] == ["new"]
    assert [row[0] for row in sql.values("LIST @d.r.%t")] == ["old"]
    sql.run("DROP SCHEMA d.s", "ALTER SCHEMA d.r RENAME TO d.s")
    assert sql.values("SELECT MAX(id) FROM d.s.t") == [(2,)]


def _put(sql: SqlSessions, stage: str, name: str) -> None:
    """Write a file into the stage of a table, which only clients with PUT can do by SQL."""
    area = resolve_location(sql.session(), stage)[0].area
    assert isinstance(area, FolderArea)
    area.root.mkdir(exist_ok=True)
    (area.root / name).write_text("1,x\n")


def test_a_refused_rename_gives_the_reason_and_changes_nothing(sql):
    for statement, code, expected_message in [
        ("ALTER DATABASE d RENAME TO local", "002002", "LOCAL"),
        ('ALTER DATABASE d RENAME TO "Local"', "002002", "Local"),
        ("ALTER DATABASE nope RENAME TO e", "002003", "NOPE"),
        ("ALTER DATABASE d RENAME TO a.b", "001003", "A.B"),
        ("ALTER SCHEMA d.s RENAME TO s", "002002", "S"),
        ("ALTER SCHEMA d.s RENAME TO information_schema", "002002", "INFORMATION_SCHEMA"),
        ("ALTER SCHEMA d.nope RENAME TO r", "002003", "D.NOPE"),
        ("ALTER SCHEMA d.s RENAME TO local.s", "000002", "from D to LOCAL"),
    ]:
        before = (sql.run("SHOW DATABASES"), sql.run("SHOW SCHEMAS IN ACCOUNT"))
        error = sql.refused(statement)
        assert (error.code, expected_message in error.message) == (code, True), error.message
        assert (sql.run("SHOW DATABASES"), sql.run("SHOW SCHEMAS IN ACCOUNT")) == before
        assert sql.values("SELECT COUNT(*) FROM d.s.v") == [(2,)]
    sql.run("ALTER DATABASE IF EXISTS nope RENAME TO e", "ALTER SCHEMA IF EXISTS d.nope RENAME TO r")


def test_grants_and_future_grants_follow(sql):
    sql.run("CREATE ROLE r", "CREATE USER ann DEFAULT_ROLE = r", "GRANT ROLE r TO USER ann")
    sql.run(
        "GRANT USAGE ON DATABASE d TO ROLE r", "GRANT USAGE ON SCHEMA d.s TO ROLE r",
        "GRANT SELECT ON TABLE d.s.t TO ROLE r", "GRANT SELECT ON FUTURE TABLES IN SCHEMA d.s TO ROLE r",
    )  # fmt: skip
    sql.run("ALTER SCHEMA d.s RENAME TO moved", "ALTER DATABASE d RENAME TO e")
    for _ in range(2):
        assert sql.values("SELECT COUNT(*) FROM e.moved.t", "ANN") == [(2,)]
        names = {r["name"] for r in sql.run("SHOW GRANTS TO ROLE r")}
        assert names - {"E.MOVED.LATE"} == {"E", "E.MOVED", "E.MOVED.T"}
        sql.run("CREATE OR REPLACE TABLE e.moved.late (x INT)")
        assert sql.values("SELECT COUNT(*) FROM e.moved.late", "ANN") == [(0,)]
        sql.restart()


def test_a_rename_needs_ownership_and_the_right_to_create(sql):
    sql.run("CREATE ROLE r", "CREATE USER ann DEFAULT_ROLE = r", "GRANT ROLE r TO USER ann")
    sql.run("GRANT USAGE ON DATABASE d TO ROLE r", "GRANT USAGE ON SCHEMA d.s TO ROLE r")
    for statement in ("ALTER DATABASE d RENAME TO e", "ALTER SCHEMA d.s RENAME TO r"):
        assert sql.refused(statement, "ANN").code == "003001", statement
    sql.run("GRANT OWNERSHIP ON SCHEMA d.s TO ROLE r COPY CURRENT GRANTS")
    sql.run("USE DATABASE d", user="ANN")
    assert sql.refused("ALTER SCHEMA d.s RENAME TO r", "ANN").code == "003001"
    sql.run("GRANT CREATE SCHEMA ON DATABASE d TO ROLE r")
    sql.run("ALTER SCHEMA d.s RENAME TO r", user="ANN")
    sql.run("GRANT OWNERSHIP ON DATABASE d TO ROLE r COPY CURRENT GRANTS")
    assert sql.refused("ALTER DATABASE d RENAME TO e", "ANN").code == "003001"
    sql.run("GRANT CREATE DATABASE ON ACCOUNT TO ROLE r")
    sql.run("ALTER DATABASE d RENAME TO e", user="ANN")
    assert sql.values("SELECT CURRENT_DATABASE()", "ANN") == [("E",)]


def test_other_sessions_stay_where_they_are_with_their_temporary_objects(sql):
    other = Session(sql.catalog, "DEMO", "D", "S")
    for statement in (
        "CREATE TEMPORARY TABLE mine (x INT)", "INSERT INTO mine VALUES (5)", "CREATE TEMPORARY STAGE staged",
        "CREATE TEMPORARY FILE FORMAT formatted TYPE = JSON", "BEGIN", "INSERT INTO t (id) VALUES (50)",
    ):  # fmt: skip
        front.execute(other, statement)
    sql.run("CREATE DATABASE x", "CREATE STAGE x.public.g FILE_FORMAT = (FORMAT_NAME = 'd.s.f')")
    sql.run("ALTER SCHEMA d.s RENAME TO d.r", "ALTER DATABASE d RENAME TO e")
    described = {r["property"]: r["property_value"] for r in sql.run("DESC STAGE x.public.g")}
    assert described["FORMAT_NAME"] == "E.R.F"
    assert (other.database, other.schema) == ("E", "R")
    # A transaction that was open goes on.
    front.execute(other, "INSERT INTO t (id) VALUES (51)")
    front.execute(other, "COMMIT")
    assert sql.values("SELECT COUNT(*) FROM e.r.t WHERE id >= 50") == [(2,)]
    assert [tuple(row) for row in front.execute(other, "SELECT x FROM mine").rows] == [(5,)]
    assert [row[0] for row in front.execute(other, "LIST @staged").rows] == []
    front.execute(other, "DESC FILE FORMAT e.r.formatted")
    other.close()
    assert sql.refused("SELECT * FROM e.r.mine").code == "002003"
