"""Words at the end of a statement that belong to nothing in it are refused, and named."""

import re

import pytest
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions, listed, pairs

SETUP = (
    "CREATE TABLE t (id INT) ERROR_LOGGING = TRUE", "CREATE ICEBERG TABLE ice (a INT, b INT)",
    "CREATE STAGE st", "CREATE FILE FORMAT ff TYPE = CSV",
    "CREATE VIEW v AS SELECT 1 AS a", "CREATE SEQUENCE sq", "CREATE PIPE p AS COPY INTO t FROM @st",
    "CREATE ROLE ro", "CREATE USER us", "CREATE WAREHOUSE wh", "CREATE DATABASE dd", "CREATE SCHEMA local.ss",
    "USE SCHEMA local.public",
)  # fmt: skip
STATEMENTS = listed("""
CREATE DATABASE x1; CREATE SCHEMA x2 COMMENT = 'x'; DROP TABLE t; DROP VIEW v; DROP SEQUENCE sq; DROP STAGE st
DROP FILE FORMAT ff; DROP PIPE p; DROP ROLE ro; DROP USER us; DROP WAREHOUSE wh; DROP SCHEMA ss CASCADE
DROP DATABASE dd; DROP TABLE IF EXISTS nope; TRUNCATE TABLE t; DESCRIBE TABLE t; DESC VIEW v; DESC STAGE st
DESC FILE FORMAT ff; DESC PIPE p; DESC SEQUENCE sq; DESC USER us; DESC WAREHOUSE wh; DESC SCHEMA ss
DESC DATABASE dd; ALTER TABLE t RENAME TO t2; ALTER TABLE t RENAME COLUMN id TO j
ALTER STAGE st RENAME TO st2; ALTER FILE FORMAT ff RENAME TO f2; ALTER WAREHOUSE wh SUSPEND
GRANT ROLE ro TO USER us; REVOKE ROLE ro FROM USER us; USE DATABASE dd; USE SCHEMA ss; USE ROLE PUBLIC
USE WAREHOUSE wh; USE SECONDARY ROLES ALL; ALTER SESSION SET QUERY_TAG = 'x'; ALTER SESSION UNSET QUERY_TAG
UNSET a; COMMIT; ROLLBACK WORK; SHOW TABLES; SHOW TABLES LIKE 'T%' IN SCHEMA ss LIMIT 3
SHOW TERSE SCHEMAS IN ACCOUNT; SHOW COLUMNS IN TABLE t; SHOW GRANTS TO ROLE ro; SHOW GRANTS ON TABLE t
SHOW FILE FORMATS; SHOW CHANNELS IN ACCOUNT; SHOW PARAMETERS LIKE 'A%' IN SESSION
SHOW FUTURE GRANTS IN SCHEMA ss; SHOW STREAMS; SHOW PRIMARY KEYS IN TABLE t; SHOW UNIQUE KEYS
CREATE STAGE x3 TAG (a = 'b'); CREATE STAGE x3 FILE_FORMAT = (TYPE = CSV); ALTER STAGE st SET COMMENT = 'x'
CREATE TEMPORARY FILE FORMAT x4 TYPE = CSV; ALTER FILE FORMAT ff SET SKIP_HEADER = 1
CREATE SEQUENCE x5 START 2; ALTER SEQUENCE sq UNSET COMMENT; CREATE TABLE x6 LIKE t
CREATE VIEW x7 (a) COPY GRANTS; CREATE PIPE x8 AS COPY INTO t FROM @st; ALTER PIPE p SET COMMENT = 'x'
ALTER PIPE p REFRESH; CREATE ROLE x9 COMMENT = 'x'; ALTER ROLE ro UNSET COMMENT; CREATE USER x10
ALTER USER us SET COMMENT = 'x'; ALTER USER us ADD PAT x11; CREATE WAREHOUSE x12 WITH AUTO_RESUME = TRUE
ALTER WAREHOUSE wh SET AUTO_SUSPEND = 5; GRANT SELECT ON TABLE t TO ROLE ro
REVOKE SELECT ON TABLE t FROM ROLE ro; GRANT USAGE ON ALL STAGES IN SCHEMA ss TO ROLE ro
GRANT DATABASE ROLE snowflake.object_viewer TO ROLE ro
REVOKE DATABASE ROLE snowflake.object_viewer FROM ROLE ro; COMMENT ON TABLE t IS 'x'
ALTER SCHEMA ss SET COMMENT = 'x'; ALTER DATABASE dd RENAME TO d2; ALTER TABLE t ALTER COLUMN id SET NOT NULL
ALTER TABLE t DROP CONSTRAINT k; ALTER TABLE t SET CHANGE_TRACKING = TRUE; ALTER TABLE t CLUSTER BY (id)
COPY INTO t FROM @st FORCE = TRUE; COPY INTO t FROM (SELECT $1 FROM @st/x); LIST @st PATTERN = 'x'
REMOVE @st/x; BEGIN TRANSACTION NAME x; START TRANSACTION; SELECT SYSTEM$PIPE_STATUS('p') AS x
CALL SYSTEM$WAIT(0); EXECUTE IMMEDIATE 'COMMIT'; TRUNCATE ERROR_TABLE(t); TRUNCATE t
TRUNCATE TABLE ERROR_TABLE(t); SHOW VARIABLES; SHOW OBJECTS; SHOW VIEWS; SHOW STAGES; SHOW PIPES
SHOW SEQUENCES; SHOW DATABASES; SHOW ICEBERG TABLES; SHOW ROLES; SHOW USERS; SHOW WAREHOUSES
ALTER ICEBERG TABLE ice DROP COLUMN b; DROP ICEBERG TABLE ice; TRUNCATE ICEBERG TABLE ice
DESC ICEBERG TABLE ice
""")
# Read to the end by sqlglot, or by the client; another word is refused in other words.
OTHERS = {
    "CREATE TABLE": "CREATE TABLE x13 (a INT)", "CREATE ICEBERG TABLE": "CREATE ICEBERG TABLE x14 (a INT)",
    "CREATE VIEW": "CREATE VIEW x15 AS SELECT 1 AS a FROM t AS u", "SET": "SET x = 1",
    "UNDROP": "UNDROP TABLE t", "PUT": "PUT file:///tmp/x @st", "GET": "GET @st file:///tmp/x",
}  # fmt: skip


def _kind(words: str) -> str:
    """Return what a statement, or a declaration of one, is about: no more than its verb and its kind."""
    plain = " ".join(re.sub(r"\[.*?\]|\b(?:TERSE|TEMPORARY)\b", "", words).split()).replace(
        "DESC ", "DESCRIBE "
    )
    known = (" ".join(plain.replace("(", " ").split()[:count]) for count in (4, 3, 2, 1))
    declared = {" ".join(re.sub(r"\[.*?\]", "", each).split()) for each in front.STATEMENTS}
    return next((words for words in known if words in declared), plain)


def test_every_declared_statement_has_an_example_here() -> None:
    declared = {_kind(words) for words in front.STATEMENTS}
    assert declared == {_kind(statement) for statement in (*STATEMENTS, *OTHERS.values())} | {
        f"SHOW {kind}" for kind in front._NOTHING
    }


@pytest.fixture(scope="module")
def sql(module_sql: SqlSessions) -> SqlSessions:
    module_sql.run(*SETUP)
    return module_sql


def test_words_that_belong_to_nothing_are_refused_and_named(sql: SqlSessions) -> None:
    for statement in STATEMENTS:
        error = sql.refused(f"{statement}\n  garbage -- 'x'")
        assert (error.code, error.sqlstate) == ("001003", "42000")
        assert "line 2 at position 2 unexpected 'garbage'" in error.message
    for statement in OTHERS.values():
        sql.session().moves_files = True
        assert sql.refused(f"{statement} garbage more").code in {"001003", "000002"}
    assert "'NOT'" in sql.refused("DROP STAGE IF NOT EXISTS st").message
    assert "EXISTS" in sql.refused("CREATE STAGE IF EXISTS st").message
    assert "already dropped" in sql.run("DROP STAGE IF EXISTS nowhere.at.all")[0]["status"]
    for statement in [
        "ALTER ROLE ro SET", "ALTER ROLE ro UNSET COMMENT COMMENT = 'x'", "ALTER USER us SET",
        "ALTER USER us REMOVE PAT x COMMENT = 'x'", "ALTER PIPE p SET",
        "ALTER PIPE p UNSET COMMENT PREFIX = 'x'", "ALTER PIPE IF EXISTS nope SET COMMENT = 'x' more",
        "ALTER STAGE st SET", "ALTER WAREHOUSE wh SET", "ALTER TABLE t SET", "ALTER SESSION SET",
        "ALTER SCHEMA ss SET", "ALTER SEQUENCE sq",
    ]:  # fmt: skip
        assert sql.refused(statement).code in {"001003", "000002"}
    for written in ("PASSWORD = 'secret", "PASSWORD = 'a' 'secret'", "PASSWORD = ('secret' 'b')"):
        assert "secret" not in sql.refused(f"CREATE USER leak {written}").message


def test_a_semicolon_and_comments_are_no_words(sql: SqlSessions) -> None:
    assert sql.run("SHOW TABLES LIKE 'T' ; -- it")[0]["name"] == "T"
    sql.run("CREATE OR REPLACE VIEW ended AS SELECT 1 AS a; -- it")
    assert sql.run("SHOW VIEWS LIKE 'ENDED'")[0]["text"].endswith("AS a")
    assert sql.run("DESC TABLE t /* all */ -- of it")
    sql.run("CREATE SCHEMA noted DATA_RETENTION_TIME_IN_DAYS = 0 COMMENT = 'for all' -- of us")
    assert sql.run("USE SCHEMA local.public", "SHOW SCHEMAS LIKE 'NOTED'")[0]["comment"] == "for all"


def test_a_name_in_a_text_is_read_to_its_end(sql: SqlSessions) -> None:
    for name in ["{} garbage", "{}''s", "local.public.{}-2"]:
        for call in [
            "SELECT SYSTEM$PIPE_STATUS('{}')", "SELECT SYSTEM$PIPE_FORCE_RESUME('{}')",
            "SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN('{}', 'c', '1')",
            "SELECT GET_DDL('PIPE', '{}')",
            "SELECT * FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => '{}', "
            "START_TIME => CURRENT_DATE))",
            "SELECT * FROM TABLE(INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => 't', PIPE_NAME => '{}', "
            "START_TIME => CURRENT_DATE))",
        ]:  # fmt: skip
            text = name.format("p" if "PIPE" in call else "t")
            error = sql.refused(call.format(text))
            assert (error.code, text.replace("''", "'") in error.message) == ("001003", True)


# What differs between the statements is how they are read: each kind had a reader of literals of its own.
ESCAPED = """
CREATE DATABASE e1 COMMENT = @ -> SHOW DATABASES LIKE 'E1'
CREATE TABLE public.e3 (id INT) COMMENT = @ -> SHOW TABLES LIKE 'E3'
CREATE VIEW public.e5 COMMENT = @ AS SELECT 1 AS a -> SHOW VIEWS LIKE 'E5'
CREATE STAGE public.e6 COMMENT = @ -> SHOW STAGES LIKE 'E6'
ALTER USER us SET COMMENT = @ -> SHOW USERS LIKE 'US'
CREATE SEQUENCE public.e8 COMMENT = @ -> SHOW SEQUENCES LIKE 'E8'
CREATE PIPE public.e9 COMMENT = @ AS COPY INTO public.t FROM ~st -> SHOW PIPES LIKE 'E9'
COMMENT ON TABLE public.t IS @ -> SHOW TABLES LIKE 'T'
ALTER PIPE public.p SET COMMENT = @ -> SHOW PIPES LIKE 'P'"""


def test_a_backslash_keeps_a_quote_in_the_text_of_every_kind_of_statement(sql: SqlSessions) -> None:
    for statement, shown in pairs(ESCAPED):
        sql.run("USE SCHEMA local.public", statement.replace("@", r"'it\'s'").replace("~", "@"))
        assert [row["comment"] for row in sql.run("USE SCHEMA local.public", shown)] == ["it's"]
