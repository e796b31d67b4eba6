"""Transactions of SQL sessions: what a failed statement, DDL and AUTOCOMMIT do to an open one."""

import itertools

import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions

FAILING = (
    "SELECT 1/0", "SELEC", "INSERT INTO t VALUES (90), (NULL)", "UPDATE t SET id = 1/0",
    "COPY INTO @%t FROM (SELECT 1/0)", "COPY INTO t FROM @%t FILES = ('missing.csv')",
)  # fmt: skip


def begin(sql):
    """Begin again, with what each test needs."""
    sql.empty()
    sql.run("CREATE TABLE t (id INT NOT NULL)", "INSERT INTO t VALUES (1)")


@pytest.fixture
def sql(sql):
    begin(sql)
    return sql


# A role of its own is a session of its own.
OTHER = "ACCOUNTADMIN"


def ids(sql: SqlSessions, role: str = "") -> list[int]:
    return [row[0] for row in sql.values("SELECT id FROM t ORDER BY id", role=role)]


def test_a_failed_statement_leaves_the_transaction_open(sql: SqlSessions) -> None:
    for ending in ["COMMIT", "ROLLBACK"]:
        for failing in FAILING:
            begin(sql)
            sql.run("BEGIN", "INSERT INTO t VALUES (2)", "UPDATE t SET id = id + 10 WHERE id = 1")
            sql.refused(failing)
            assert ids(sql) == [2, 11]
            assert ids(sql, OTHER) == [1]
            sql.run("INSERT INTO t VALUES (3)", "DELETE FROM t WHERE id = 2")
            sql.refused(failing)
            sql.run(ending)
            assert ids(sql) == ([3, 11] if ending == "COMMIT" else [1])


def test_a_failed_insert_into_many_tables_leaves_none_of_its_parts(sql: SqlSessions) -> None:
    for before in [[], ["INSERT INTO t VALUES (2)"]]:
        for start, failing in itertools.product(
            ["BEGIN", "ALTER SESSION SET AUTOCOMMIT = FALSE"],
            # The engine refuses the second part; the front refuses it, which the engine never gets.
            ["INTO t (id) VALUES (NULL)", "INTO missing (id) VALUES (i)"],
        ):
            begin(sql)
            sql.run(start, *before)
            sql.refused(f"INSERT OVERWRITE ALL INTO t (id) VALUES (i) {failing} SELECT 20 AS i")
            kept = [1, 2] if before else [1]
            assert (ids(sql), ids(sql, OTHER)) == (kept, [1])
            sql.run("INSERT INTO t VALUES (3)")
            sql.refused("SELECT 1/0")
            sql.run("COMMIT")
            assert ids(sql, OTHER) == [*kept, 3]


def test_a_failed_change_of_several_bound_rows_leaves_none_of_them(sql: SqlSessions) -> None:
    sql.run(
        "CREATE TABLE new (was INT, id INT)", "INSERT INTO new VALUES (2, 20), (3, 30), (3, 31)",
        "ALTER SESSION SET ERROR_ON_NONDETERMINISTIC_UPDATE = TRUE", "BEGIN", "INSERT INTO t VALUES (2), (3)",
    )  # fmt: skip
    update = "UPDATE t SET id = new.id FROM new WHERE t.id = new.was AND t.id = ?"
    with pytest.raises(SqlError) as error:
        front.execute(sql.session(), update, {"1": {"type": "FIXED", "value": ["2", "3"]}})
    assert error.value.code == "100090"
    sql.run("COMMIT")
    assert ids(sql, OTHER) == [1, 2, 3]


def test_a_transaction_that_cannot_be_kept_fails_until_it_is_rolled_back(sql: SqlSessions) -> None:
    sql.run("BEGIN", "INSERT INTO t SELECT id + 1 FROM t")
    sql.run("INSERT INTO t VALUES (50)", role=OTHER)
    sql.refused("SELECT 1/0")
    for statement in ("COMMIT", "SELECT 1", "CREATE TABLE other (id INT)", "BEGIN"):
        assert sql.refused(statement).code == "000625"
    sql.run("ROLLBACK", "COMMIT")
    assert ids(sql) == [1, 50]
    # A change that is repeated finds again what it read.
    sql.run("BEGIN", "SELECT 7 AS id", "INSERT INTO t SELECT * FROM TABLE(RESULT_SCAN(LAST_QUERY_ID()))")
    sql.refused("SELECT 1/0")
    sql.run("COMMIT")
    assert ids(sql) == [1, 7, 50]


def test_truncate_does_not_commit_and_a_change_of_autocommit_does(sql: SqlSessions) -> None:
    sql.run("INSERT INTO t VALUES (2)", "BEGIN", "TRUNCATE TABLE t")
    assert ids(sql) == []
    sql.refused("SELECT 1/0")
    assert (ids(sql), ids(sql, OTHER)) == ([], [1, 2])
    sql.run("ROLLBACK")
    assert ids(sql) == [1, 2]
    begin(sql)
    sql.run("ALTER SESSION SET AUTOCOMMIT = FALSE", "INSERT INTO t VALUES (2)")
    sql.refused("SELECT 1/0")
    assert ids(sql, OTHER) == [1]
    sql.run("ALTER SESSION SET AUTOCOMMIT = FALSE", "ROLLBACK", "INSERT INTO t VALUES (3)")
    sql.run("ALTER SESSION UNSET AUTOCOMMIT", "ROLLBACK", "INSERT INTO t VALUES (4)")
    assert ids(sql, OTHER) == [1, 3, 4]


def test_ddl_that_cannot_be_read_commits_nothing_and_what_was_read_commits(sql: SqlSessions) -> None:
    for unread in [
        "CREATE TABLE other (id INT", "CREATE TABLE other (id NOTYPE)",
        "CREATE TABLE other (id INT) NO_SUCH_OPTION = 1", "CREATE TABLE other AS SELECT nope FROM t",
        "ALTER TABLE t ADD COLUMN other NOTYPE", "ALTER TABLE t ALTER COLUMN id SET DATA TYPE NOTYPE",
        "ALTER TABLE t SET COMMENT = 'x' garbage", "ALTER TABLE t RENAME TO other garbage",
    ]:  # fmt: skip
        sql.run("BEGIN", "INSERT INTO t VALUES (2)")
        sql.refused(unread)
        assert ids(sql) == [1, 2]
        sql.run("ROLLBACK")
        assert ids(sql) == [1]
    for ddl in [
        "CREATE TABLE other AS SELECT id FROM t", "CREATE TABLE IF NOT EXISTS t (id INT)",
        "ALTER TABLE t SET COMMENT = 'x'", "ALTER TABLE IF EXISTS nope SUSPEND RECLUSTER",
    ]:  # fmt: skip
        sql.run("BEGIN", "INSERT INTO t VALUES (2)", ddl, "ROLLBACK")
        assert ids(sql) == [1, 2]
        sql.run("DELETE FROM t WHERE id = 2")
