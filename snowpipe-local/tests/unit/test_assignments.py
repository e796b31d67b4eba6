"""Types to which values are converted: of choices, of set operations, beside IN, and of assigned columns."""

from decimal import Decimal

import pytest
from tests.unit.sql_sessions import pairs


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (i INT, n NUMBER(10, 2), f FLOAT, s VARCHAR, d DATE, ts TIMESTAMP_NTZ,"
        " tz TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO t SELECT 7, 1.25, 0.5, 'x', '2026-01-02', '2026-01-02 10:20:30.5',"
        """ '2026-01-02 10:20:30 +0200', PARSE_JSON('{"k": "q", "n": 1}')""",
    )
    return module_sql


# "Set operators", "IN", "VALUES"
def test_many_queries_are_brought_to_one_type_and_one_that_is_wrong_leaves_the_transaction(sql):
    chain = " UNION ALL ".join(f"SELECT {n} AS n, '{n}', {n}.{'0' * (n % 3)}5" for n in range(1, 41))
    assert sql.values(f"SELECT COUNT(*), SUM(n) FROM ({chain})") == [(40, 820)]
    assert sql.values(f"SELECT SUM($3) FROM ({chain})".replace("$3", '"1.05"')) == [(Decimal("827.265"),)]
    sql.run("CREATE TABLE w (i INT)", "BEGIN", "INSERT INTO w VALUES (1)")
    assert sql.refused("SELECT nope FROM w UNION ALL SELECT 1").code == "000904"
    sql.run("COMMIT")
    assert sql.values("SELECT i FROM w") == [(1,)]


# "Data type conversion", implicit casting: an assigned VARCHAR is the text that a cast makes
_TEXTS = pairs("""
ts -> 2026-01-02 10:20:30.500; DATEADD(day, 1, ts) -> 2026-01-03 10:20:30.500; d -> 2026-01-02; n -> 1.25
tz -> 2026-01-02 10:20:30.000 +0200; f * 4 -> 2; TRUE -> true; TO_BINARY('41') -> 41; v:k -> q
MAX(ts) -> 2026-01-02 10:20:30.500; v -> {"k":"q","n":1}""")


def test_a_varchar_column_gets_the_text_of_a_value_and_a_text_is_no_variant(sql):
    for expression, text in _TEXTS:
        sql.run("CREATE OR REPLACE TABLE x (a VARCHAR)", f"INSERT INTO x SELECT {expression} FROM t")
        assert sql.values("SELECT a FROM x") == [(text,)]
        sql.run(f"CREATE OR REPLACE TABLE x (a VARCHAR) AS SELECT {expression} FROM t")
        assert sql.values("SELECT a FROM x") == [(text,)]
    sql.run("CREATE OR REPLACE TABLE x (a VARCHAR)", "INSERT INTO x VALUES ('2026-01-01'::TIMESTAMP_NTZ)")
    assert sql.values("SELECT a FROM x") == [("2026-01-01 00:00:00.000",)]
    sql.run("UPDATE x SET a = t.tz FROM t")
    assert sql.values("SELECT a FROM x") == [("2026-01-02 10:20:30.000 +0200",)]
    sql.run("MERGE INTO x USING t ON TRUE WHEN MATCHED THEN UPDATE SET a = t.f * 4")
    assert sql.values("SELECT a FROM x") == [("2",)]
    sql.run("CREATE OR REPLACE TABLE y (v VARIANT, o OBJECT)")
    for statement in (
        "INSERT INTO y (v) SELECT '{}'", "INSERT INTO y (v) VALUES ('{}')", "UPDATE y SET o = 'x'",
    ):  # fmt: skip
        assert sql.refused(statement).code == "002023"
    assert sql.refused("INSERT INTO y (o) SELECT PARSE_JSON('[1]')").code == "100071"
    assert sql.refused("INSERT INTO y (v) VALUES (PARSE_JSON('{}'))").code == "002014"
    sql.run("INSERT INTO y (v) SELECT 'a'::VARIANT", "INSERT INTO y (v) SELECT TO_VARIANT('b')")
    assert sql.values("SELECT v::VARCHAR FROM y ORDER BY 1") == [("a",), ("b",)]


def test_products_keep_their_scale_and_names_may_have_several_types(sql):
    assert sql.values("WITH c AS (SELECT 100000 AS a) SELECT a * a FROM c") == [(10_000_000_000,)]
    assert sql.values("SELECT SUM(a * a) FROM (SELECT 100000 AS a)") == [(10_000_000_000,)]
    text = "SELECT x.a * y.a, y.a * x.a FROM (SELECT 100000 AS a) x, (SELECT 2.5 AS a) y"
    assert sql.values(text) == [(250_000, 250_000)]
    sql.run("CREATE TABLE one AS SELECT 1.1234567891::NUMBER(38, 10) AS q, 1e-9::FLOAT AS f")
    assert sql.values("SELECT q * q FROM (SELECT f AS q FROM one)") == [(1e-18,)]
    product = "SELECT (p * p)::VARCHAR FROM (SELECT q * q AS p FROM one)"
    assert sql.values(product) == [("1.593035640279",)]
    sql.run("CREATE OR REPLACE TABLE made AS SELECT a * 2 AS p FROM (SELECT 1.25 AS a)")
    assert sql.run("DESCRIBE TABLE made")[0]["type"].endswith(",2)")
