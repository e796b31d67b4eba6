"""Types to which values are converted: of choices, of set operations, beside IN, and of assigned columns."""

from decimal import Decimal

import pytest
from tests.unit.sql_sessions import SqlSessions, pairs


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("assignments"))
    sql.run(
        "CREATE TABLE t (i INT, n NUMBER(10, 2), f FLOAT, s VARCHAR, d DATE, ts TIMESTAMP_NTZ,"
        " tz TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO t SELECT 7, 1.25, 0.5, 'x', '2026-01-02', '2026-01-02 10:20:30.5',"
        """ '2026-01-02 10:20:30 +0200', PARSE_JSON('{"k": "q", "n": 1}')""",
    )
    yield sql
    sql.close()


# "COALESCE", "CASE", "IFF", "DECODE", "GREATEST": the values have one type
def test_a_choice_keeps_the_digits_of_each_of_its_values(sql):
    for expression, value in [
        ("IFF(FALSE, i, 2.5)", "2.5"), ("COALESCE(NULL::INT, 0.5)", "0.5"),
        ("CASE WHEN FALSE THEN 1 WHEN FALSE THEN i ELSE n / 3 END", "0.41666667"),
        ("GREATEST(i, 7.5)", "7.5"), ("DECODE(1, 2, i, 0.5)", "0.5"),
        ("LAG(i, 1, 0.5) OVER (ORDER BY i)", "0.5"), ("IFF(FALSE, i, IFF(FALSE, n, 0.125))", "0.125"),
        ("COALESCE(NULLIF(i, 7), f)", "0.5"), ("COALESCE(v:z, 0.5)", "0.5"),
    ]:  # fmt: skip
        assert sql.values(f"SELECT x::VARCHAR FROM (SELECT {expression} AS x FROM t)") == [(value,)]


# "Set operators", "IN", "VALUES"
def test_two_queries_are_brought_to_the_type_that_holds_both(sql):
    for query, rows in [
        ("SELECT i FROM t UNION ALL SELECT 2.5 ORDER BY 1", [(Decimal("2.5"),), (Decimal("7.0"),)]),
        ("SELECT i FROM t UNION SELECT n / 3 FROM t ORDER BY 1", [(Decimal("0.41666667"),), (Decimal(7),)]),
        ("WITH a AS (SELECT i FROM t UNION ALL SELECT 0.5) SELECT SUM(i) FROM a", [(Decimal("7.5"),)]),
        ("SELECT i FROM t UNION ALL SELECT '5' ORDER BY 1", [(5,), (7,)]),
        ("SELECT x::VARCHAR FROM (SELECT v:k AS x FROM t UNION ALL SELECT 'l') ORDER BY 1", [("l",), ("q",)]),
        ("SELECT i FROM t WHERE i IN (SELECT 7.4)", []),
        ("SELECT i FROM t WHERE i NOT IN (SELECT 6.6)", [(7,)]),
        ("SELECT column1 FROM VALUES (1::INT), (2.5) ORDER BY 1", [(Decimal(1),), (Decimal("2.5"),)]),
        (
            "SELECT 1 UNION ALL SELECT 2.5 UNION ALL SELECT '3' UNION ALL SELECT 10.25 ORDER BY 1",
            [(Decimal(1),), (Decimal("2.5"),), (Decimal(3),), (Decimal("10.25"),)],
        ),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) "
            "SELECT SUM(n) FROM r",
            [(6,)],
        ),
    ]:
        assert sql.values(query) == rows


# A column is of the relation that it is named after, in the scope where it stands
def test_columns_of_one_name_have_the_types_of_their_relations(sql):
    for query, row in [
        ("SELECT p.y || 'a', q.y::VARCHAR FROM (SELECT v:k AS y FROM t) q, (SELECT 'x' AS y) p", ("xa", "q")),
        (
            "SELECT p.y::VARCHAR, q.y::VARCHAR FROM (SELECT tz AS y FROM t) q, (SELECT f AS y FROM t) p",
            ("0.5", "2026-01-02 10:20:30.000 +0200"),
        ),
        (
            "SELECT (SELECT MAX(o.tz)::VARCHAR FROM t o WHERE o.i = t.i) FROM t",
            ("2026-01-02 10:20:30.000 +0200",),
        ),
        ("SELECT v:k::VARCHAR AS v FROM t ORDER BY v", ("q",)),
    ]:
        assert sql.values(query) == [row]


def test_a_chain_of_set_operations_has_one_type_a_column(sql):
    chain = " UNION ALL ".join(f"SELECT {n} AS n, '{n}', {n}.{'0' * (n % 3)}5" for n in range(1, 41))
    assert sql.values(f"SELECT COUNT(*), SUM(n) FROM ({chain})") == [(40, 820)]
    assert sql.values(f"SELECT SUM($3) FROM ({chain})".replace("$3", '"1.05"')) == [(Decimal("827.265"),)]


def test_a_transaction_stays_open_when_a_side_cannot_be_described_alone(sql):
    assert sql.refused("SELECT i FROM t UNION ALL SELECT 'x'").code == "100038"
    sql.run("CREATE TABLE w (i INT)", "BEGIN", "INSERT INTO w VALUES (1)")
    assert sql.refused("SELECT nope FROM w UNION ALL SELECT 1").code == "000904"
    sql.run("COMMIT")
    assert sql.values("SELECT i FROM w") == [(1,)]


# "Data type conversion", implicit casting: an assigned VARCHAR is the text that a cast makes
_TEXTS = pairs("""
ts -> 2026-01-02 10:20:30.500; DATEADD(day, 1, ts) -> 2026-01-03 10:20:30.500; d -> 2026-01-02; n -> 1.25
tz -> 2026-01-02 10:20:30.000 +0200; f * 4 -> 2; TRUE -> true; TO_BINARY('41') -> 41; v:k -> q
MAX(ts) -> 2026-01-02 10:20:30.500; v -> {"k":"q","n":1}""")


def test_a_varchar_column_gets_the_text_of_a_value(sql):
    for expression, text in _TEXTS:
        sql.run("CREATE OR REPLACE TABLE x (a VARCHAR)", f"INSERT INTO x SELECT {expression} FROM t")
        assert sql.values("SELECT a FROM x") == [(text,)]
        sql.run(f"CREATE OR REPLACE TABLE x (a VARCHAR) AS SELECT {expression} FROM t")
        assert sql.values("SELECT a FROM x") == [(text,)]


def test_update_merge_and_values_assign_the_same_texts(sql):
    sql.run("CREATE OR REPLACE TABLE x (a VARCHAR)", "INSERT INTO x VALUES ('2026-01-01'::TIMESTAMP_NTZ)")
    assert sql.values("SELECT a FROM x") == [("2026-01-01 00:00:00.000",)]
    sql.run("UPDATE x SET a = t.tz FROM t")
    assert sql.values("SELECT a FROM x") == [("2026-01-02 10:20:30.000 +0200",)]
    sql.run("MERGE INTO x USING t ON TRUE WHEN MATCHED THEN UPDATE SET a = t.f * 4")
    assert sql.values("SELECT a FROM x") == [("2",)]


def test_a_text_is_no_variant(sql):
    sql.run("CREATE OR REPLACE TABLE y (v VARIANT, o OBJECT)")
    for statement in (
        "INSERT INTO y (v) SELECT '{}'", "INSERT INTO y (v) VALUES ('{}')", "UPDATE y SET o = 'x'",
    ):  # fmt: skip
        assert sql.refused(statement).code == "002023"
    assert sql.refused("INSERT INTO y (o) SELECT PARSE_JSON('[1]')").code == "100071"
    assert sql.refused("INSERT INTO y (v) VALUES (PARSE_JSON('{}'))").code == "002014"
    sql.run("INSERT INTO y (v) SELECT 'a'::VARIANT", "INSERT INTO y (v) SELECT TO_VARIANT('b')")
    assert sql.values("SELECT v::VARCHAR FROM y ORDER BY 1") == [("a",), ("b",)]
