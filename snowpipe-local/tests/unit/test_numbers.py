"""Numbers of 38 digits: what they are computed to, what has no room, and arguments that are whole numbers."""

from decimal import Decimal

import pytest
from tests.unit.sql_sessions import SqlSessions, pairs

_MOST = "9" * 38


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("numbers"))
    sql.run(
        "CREATE TABLE t (i INT, n NUMBER(10, 2), d DATE, s VARCHAR, a ARRAY)",
        "INSERT INTO t SELECT 2, 1.5, '2026-01-31', 'abcb', ARRAY_CONSTRUCT(1, 2, 3)",
    )
    yield sql
    sql.close()


# "Numeric data types": INT and its synonyms are NUMBER(38, 0)
def test_whole_numbers_have_38_digits(sql):
    for expression, value in [
        ("86400 * 1000 * 30", 2_592_000_000), ("3000000000::INT", 3_000_000_000),
        ("'99999999999999999999'::INTEGER + 1", 100_000_000_000_000_000_000), ("1.5::INT", 2),
        ("LENGTH('abc') * 9223372036854775807", 27_670_116_110_564_327_421), (f"{_MOST} + 0", int(_MOST)),
        (f"-{_MOST}", -int(_MOST)),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression}") == [(value,)]


def test_a_name_may_be_of_several_types(sql):
    assert sql.values("WITH c AS (SELECT 100000 AS a) SELECT a * a FROM c") == [(10_000_000_000,)]
    assert sql.values("SELECT SUM(a * a) FROM (SELECT 100000 AS a)") == [(10_000_000_000,)]
    text = "SELECT x.a * y.a, y.a * x.a FROM (SELECT 100000 AS a) x, (SELECT 2.5 AS a) y"
    assert sql.values(text) == [(250_000, 250_000)]
    sql.run("CREATE TABLE one AS SELECT 1.1234567891::NUMBER(38, 10) AS q, 1e-9::FLOAT AS f")
    assert sql.values("SELECT q * q FROM (SELECT f AS q FROM one)") == [(1e-18,)]
    product = "SELECT (p * p)::VARCHAR FROM (SELECT q * q AS p FROM one)"
    assert sql.values(product) == [("1.593035640279",)]


def test_products_with_a_fraction_keep_their_scale(sql):
    sql.run("CREATE OR REPLACE TABLE made AS SELECT a * 2 AS p FROM (SELECT 1.25 AS a)")
    assert sql.run("DESCRIBE TABLE made")[0]["type"].endswith(",2)")
    assert sql.values("SELECT n * 2, n + 1, n * n FROM t") == [
        (Decimal("3"), Decimal("2.5"), Decimal("2.25"))
    ]
    assert sql.values("SELECT a * 2 FROM (SELECT 1.5::FLOAT AS a)") == [(3.0,)]


# "Arithmetic operators", multiplication
def test_a_product_has_at_most_twelve_decimals_or_those_of_a_factor(sql):
    sql.run(
        "CREATE TABLE rates (r NUMBER(38, 10), n NUMBER(10, 2), f NUMBER(38, 20))",
        "INSERT INTO rates VALUES (1.0001234565, 1.5, 1.0000000000000000001)",
    )
    for expression, value in pairs("""
r * r -> 1.000246928242; (r * 1.5) * r -> 1.500370392362; -r * 0.1234567 -> -0.123471941532
n * n * n * n -> 5.06250000; f * 1.5 -> 1.50000000000000000015"""):
        assert [str(cell) for (cell,) in sql.values(f"SELECT {expression} FROM rates")] == [value]


def test_a_result_of_39_digits_is_refused(sql):
    for query in [
        f"SELECT {_MOST} + 1", f"SELECT SUM(x) FROM (SELECT {_MOST} AS x UNION ALL SELECT 1)",
        f"CREATE OR REPLACE TABLE made AS SELECT {_MOST} + 1 AS x", "SELECT FACTORIAL(34)",
    ]:  # fmt: skip
        refused = sql.refused(query)
        assert (refused.code, refused.sqlstate) == ("100046", "22003")
        assert refused.message.startswith("Number out of representable range")


def test_a_literal_that_no_number_has_room_for_is_refused(sql):
    for literal in [
        "1" + "0" * 38,
        "1" + "0" * 38 + ".5",
        "1e400",
    ]:
        refused = sql.refused(f"SELECT {literal}")
        assert refused.code == "100039"
        assert refused.message == f"Numeric value '{literal.lstrip('-')}' is out of range"


def test_a_value_outside_of_a_functions_domain_is_refused_and_a_float_may_be_infinite(sql):
    for call in ["SQRT(-1)", "LN(0)", "LOG(10, -1)", "ACOS(2)", "ASIN(2)", "ATANH(2)"]:
        assert sql.refused(f"SELECT {call}").code == "100054"
    text = "SELECT 'inf'::FLOAT, '-inf'::FLOAT, EXP(1000), 1e308::FLOAT * 10"
    assert sql.values(text) == [(float("inf"), float("-inf"), float("inf"), float("inf"))]


def test_a_column_may_stand_where_a_whole_number_is_asked_for(sql):
    for expression, value in pairs("""
LEFT(s, i) -> ab; RIGHT(s, i) -> cb; SUBSTR(s, i, i) -> bc; CHR(i + 64) -> B; SPLIT_PART(s, 'b', i) -> c
BITAND(i, 3) -> 2; BITOR(i, 1) -> 3; BITXOR(i, 3) -> 1; BITNOT(i) -> -3; FACTORIAL(i + 1) -> 6; GET(a, i) -> 3
NTILE(i) OVER (ORDER BY s) -> 1; LAG(s, i, 'none') OVER (ORDER BY s) -> none; REGEXP_INSTR(s, 'b', i) -> 2
NTH_VALUE(s, i) OVER (ORDER BY s) -> None; REGEXP_SUBSTR(s, 'b', 1, i) -> b; REGEXP_COUNT(s, 'b', i) -> 2
CHARINDEX('b', s, i) -> 2; POSITION('b', s, i + 1) -> 4; INSERT(s, i, 1, 'x') -> axcb; STRTOK(s, 'b', i) -> c
LENGTH(RANDSTR(i, 1)) -> 2; ARRAY_SIZE(ARRAY_GENERATE_RANGE(0, i)) -> 2; GETBIT(i, 1) -> 1; LEFT(s, 1.5) -> ab
TO_CHAR(TIMESTAMP_FROM_PARTS(2020, i, i, i, i, i), 'YYYY-MM-DD HH24:MI:SS') -> 2020-02-02 02:02:02
d + i -> 2026-02-02; d - i * 2 -> 2026-01-27; d + 1::INT -> 2026-02-01; d + k -> 2026-02-03"""):
        [(found,)] = sql.values(f"SELECT {expression} FROM t, (SELECT 3 AS k)")
        assert str(found) == value, expression


# "MEDIAN", "PERCENTILE_CONT", "MOD", "CEIL", "FLOOR", "MONTHS_BETWEEN"
def test_fractions_of_whole_numbers_are_kept(sql):
    for expression, text in [
        ("MEDIAN(a)", "1.500"), ("PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY a)", "1.250"),
        ("APPROX_PERCENTILE(a, 0.5)", "1.5"), ("MOD(MAX(a) + 5, 2.5)", "2.0"), ("CEIL(SUM(a) / 8, 1)", "0.4"),
        ("FLOOR(-975.975, 2)", "-975.98"),
    ]:  # fmt: skip
        query = f"SELECT ({expression})::VARCHAR FROM (SELECT 1::INT AS a UNION ALL SELECT 2::INT)"
        assert sql.values(query)[0] == (text,)


# "Numeric data types": a FLOAT without a fraction is written without a point
def test_a_computed_float_is_written_as_a_float(sql):
    sql.run("CREATE TABLE g AS SELECT 2 AS i, 2.5::FLOAT AS f")
    for expression, text in pairs("""
f * 2 -> 5; -f -> -2.5; f + i -> 4.5; SUM(f) * 2 -> 5; SQRT(4) -> 2; 1e3 -> 1000; IFF(TRUE, f * 2, 0) -> 5
ROUND(f) -> 3; POWER(2, 3) -> 8; TO_DOUBLE('3') -> 3; DIV0(f, 2.5::FLOAT) -> 1"""):
        for query in ("({})::VARCHAR FROM g", "({}) || '' FROM g", "x || '' FROM (SELECT {} AS x FROM g)"):
            assert sql.values(f"SELECT {query.format(expression)}") == [(text,)]
