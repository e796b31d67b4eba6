"""Lengths of VARCHAR and BINARY, and text that stands for BINARY or for a time."""

import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions

SHORT = {"1": {"type": "TEXT", "value": "abc"}, "2": {"type": "BINARY", "value": "ff00"}}


@pytest.fixture
def sql(sql: SqlSessions) -> SqlSessions:
    sql.run("CREATE TABLE t (id INT, s VARCHAR(3), b BINARY(2))", "INSERT INTO t VALUES (1, 'x', 'ff')")
    sql.run("CREATE TABLE long (s VARCHAR, b BINARY)", "INSERT INTO long VALUES ('abcd', 'ff0011')")
    return sql


def test_dml_never_writes_what_is_too_long(sql: SqlSessions) -> None:
    for statement in [
        "INSERT INTO t (s) VALUES ('abcd')", "INSERT INTO t (id, s) SELECT 1, s FROM long",
        "INSERT INTO t (b) SELECT b FROM long", "INSERT OVERWRITE INTO t (s) SELECT s FROM long",
        "UPDATE t SET s = s || 'abc'", "UPDATE t SET s = long.s FROM long",
        "MERGE INTO t USING long ON t.s = long.s WHEN NOT MATCHED THEN INSERT (s) VALUES (long.s)",
        "MERGE INTO t USING long ON t.id = 1 WHEN MATCHED THEN UPDATE SET t.b = long.b",
    ]:  # fmt: skip
        error = sql.refused(statement)
        assert (error.code, error.sqlstate, "too long" in error.message) == ("100078", "22000", True)
        assert sql.values("SELECT * FROM t") == [(1, "x", b"\xff")]
    merge = (
        "MERGE INTO t USING (SELECT 1 AS i UNION ALL SELECT 1) s ON t.id = s.i "
        "WHEN MATCHED THEN UPDATE SET t.s = 'y'"
    )
    assert sql.refused(merge).code == "100090"


def test_what_fits_is_written(sql: SqlSessions) -> None:
    sql.run(
        "INSERT INTO t (s, id) VALUES ('abc', 2), (UPPER('de'), 3)",
        "INSERT INTO t WITH w AS (SELECT 4 AS i) SELECT i, LEFT(s, 3), NULL FROM w, long",
        "INSERT INTO t (id, s, b) VALUES (5, DEFAULT, 'FF00')",
        "UPDATE t SET s = NULL, b = TO_BINARY('01') WHERE id = 1",
    )
    front.execute(sql.session(), "INSERT INTO t (s, b, id) VALUES (?, ?, 6)", SHORT)
    assert sql.values("SELECT * FROM t ORDER BY id") == [
        (1, None, b"\x01"), (2, "abc", None), (3, "DE", None), (4, "abc", None), (5, None, b"\xff\x00"),
        (6, "abc", b"\xff\x00"),
    ]  # fmt: skip
    with pytest.raises(SqlError) as error:
        front.execute(
            sql.session(), "INSERT INTO t (s) VALUES (?)", {"1": {"type": "TEXT", "value": ["abc", "abcd"]}}
        )
    assert error.value.code == "100078"
