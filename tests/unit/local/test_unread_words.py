"""Words at the end of a statement that belong to nothing in it are refused, and named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.local.sql_sessions import SqlSessions

SETUP = (
    "CREATE TABLE t (id INT)", "CREATE STAGE st", "CREATE FILE FORMAT ff TYPE = CSV",
    "CREATE VIEW v AS SELECT 1 AS a", "CREATE SEQUENCE sq", "CREATE PIPE p AS COPY INTO t FROM @st",
    "CREATE ROLE ro", "CREATE USER us", "CREATE WAREHOUSE wh", "CREATE DATABASE dd", "CREATE SCHEMA local.ss",
    "USE SCHEMA local.public",
)  # fmt: skip
STATEMENTS = (
    "CREATE DATABASE x1", "CREATE SCHEMA x2 COMMENT = 'x'",
    "DROP TABLE t", "DROP VIEW v", "DROP SEQUENCE sq", "DROP STAGE st", "DROP FILE FORMAT ff", "DROP PIPE p",
    "DROP ROLE ro", "DROP USER us", "DROP WAREHOUSE wh", "DROP SCHEMA ss CASCADE", "DROP DATABASE dd",
    "DROP TABLE IF EXISTS nope", "TRUNCATE TABLE t", "DESCRIBE TABLE t", "DESC VIEW v", "DESC STAGE st",
    "DESC FILE FORMAT ff", "DESC PIPE p", "DESC SEQUENCE sq", "DESC USER us", "DESC WAREHOUSE wh",
    "DESC SCHEMA ss", "DESC DATABASE dd", "ALTER TABLE t RENAME TO t2", "ALTER TABLE t RENAME COLUMN id TO j",
    "ALTER STAGE st RENAME TO st2", "ALTER FILE FORMAT ff RENAME TO f2", "ALTER WAREHOUSE wh SUSPEND",
    "GRANT ROLE ro TO USER us", "REVOKE ROLE ro FROM USER us", "USE DATABASE dd", "USE SCHEMA ss",
    "USE ROLE PUBLIC", "USE WAREHOUSE wh", "USE SECONDARY ROLES ALL", "ALTER SESSION SET QUERY_TAG = 'x'",
    "ALTER SESSION UNSET QUERY_TAG", "UNSET a", "COMMIT", "ROLLBACK WORK", "SHOW TABLES",
    "SHOW TABLES LIKE 'T%' IN SCHEMA ss LIMIT 3", "SHOW TERSE SCHEMAS IN ACCOUNT", "SHOW COLUMNS IN TABLE t",
    "SHOW GRANTS TO ROLE ro", "SHOW GRANTS ON TABLE t", "SHOW FILE FORMATS", "SHOW CHANNELS IN ACCOUNT",
    "SHOW PARAMETERS LIKE 'A%' IN SESSION", "SHOW FUTURE GRANTS IN SCHEMA ss", "SHOW STREAMS",
)  # fmt: skip


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlSessions]:
    sessions = SqlSessions(tmp_path_factory.mktemp("unread"))
    sessions.run(*SETUP)
    yield sessions
    sessions.close()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_unread_words_are_refused_before_anything_happens(sql: SqlSessions, statement: str) -> None:
    error = sql.refused(f"{statement}\n  garbage -- 'x'")
    assert (error.code, error.sqlstate) == ("001003", "42000")
    assert "line 2 at position 2 unexpected 'garbage'" in error.message


def test_comments_are_no_words(sql: SqlSessions) -> None:
    assert sql.run("DESC TABLE t /* all */ -- of it")
    sql.run("CREATE SCHEMA said DATA_RETENTION_TIME_IN_DAYS = 0 COMMENT = 'for all' -- of us")
    assert sql.run("SHOW SCHEMAS LIKE 'SAID'")[0]["comment"] == "for all"
    sql.run("CREATE DATABASE told COMMENT = 'mine'", "USE SCHEMA local.public")
    assert sql.run("SHOW DATABASES LIKE 'TOLD'")[0]["comment"] == "mine"
