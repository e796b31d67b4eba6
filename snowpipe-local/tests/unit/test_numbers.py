"""Numbers of 38 digits: what they are computed to, what has no room, and arguments that are whole numbers."""

from decimal import Decimal

import pytest
from tests.unit.sql_sessions import pairs

_MOST = "9" * 38


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (i INT, n NUMBER(10, 2), d DATE, s VARCHAR, a ARRAY)",
        "INSERT INTO t SELECT 2, 1.5, '2026-01-31', 'abcb', ARRAY_CONSTRUCT(1, 2, 3)",
    )
    return module_sql


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
    assert sql.values("SELECT n * 2, n + 1, n * n FROM t") == [
        (Decimal("3"), Decimal("2.5"), Decimal("2.25"))
    ]
    assert sql.values("SELECT a * 2 FROM (SELECT 1.5::FLOAT AS a)") == [(3.0,)]


def test_what_no_number_has_room_for_is_refused(sql):
    for query in [
        f"SELECT {_MOST} + 1", f"SELECT SUM(x) FROM (SELECT {_MOST} AS x UNION ALL SELECT 1)",
        f"CREATE OR REPLACE TABLE made AS SELECT {_MOST} + 1 AS x", "SELECT FACTORIAL(34)",
    ]:  # fmt: skip
        refused = sql.refused(query)
        assert (refused.code, refused.sqlstate) == ("100046", "22003")
        assert refused.message.startswith("Number out of representable range")
    for literal in ["1" + "0" * 38, "1" + "0" * 38 + ".5", "1e400"]:
        refused = sql.refused(f"SELECT {literal}")
        assert refused.code == "100039"
        assert refused.message == f"Numeric value '{literal.lstrip('-')}' is out of range"
    text = "SELECT 'inf'::FLOAT, '-inf'::FLOAT, EXP(1000), 1e308::FLOAT * 10"
    assert sql.values(text) == [(float("inf"), float("-inf"), float("inf"), float("inf"))]


# "Numeric data types": a FLOAT without a fraction is written without a point
def test_a_computed_float_is_written_as_a_float(sql):
    sql.run("CREATE TABLE g AS SELECT 2 AS i, 2.5::FLOAT AS f")
    for expression, text in pairs("""
f * 2 -> 5; -f -> -2.5; f + i -> 4.5; SUM(f) * 2 -> 5; SQRT(4) -> 2; 1e3 -> 1000; IFF(TRUE, f * 2, 0) -> 5
ROUND(f) -> 3; POWER(2, 3) -> 8; TO_DOUBLE('3') -> 3; DIV0(f, 2.5::FLOAT) -> 1"""):
        for query in ("({})::VARCHAR FROM g", "({}) || '' FROM g", "x || '' FROM (SELECT {} AS x FROM g)"):
            assert sql.values(f"SELECT {query.format(expression)}") == [(text,)]
