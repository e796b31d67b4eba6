"""Values of functions and operators as the pages of Snowflake's documentation have them, and their types."""

from decimal import Decimal as D
from typing import Any

import pytest

from airflow_provider_snowpipe.local.sql import front
from tests.unit.local.sql_sessions import SqlSessions


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("values"))
    sql.run(
        "CREATE TABLE t (s VARCHAR, n INT, f FLOAT, x NUMBER(10,2), z TIMESTAMP_TZ)",
        "INSERT INTO t VALUES ('2.5', 2, 0.5, 1.25, '2024-01-01 10:00:00 +0200')",
    )
    yield sql
    sql.close()


def value(sql: SqlSessions, expression: str) -> tuple[Any, str]:
    """Return the value of an expression over the one row of T, and its type."""
    result = front.execute(sql.session(), f"SELECT {expression} FROM t")
    return result.rows[0][0], result.columns[0].type.kind


# HASH, usage notes
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10::NUMBER(38,0)", "10::NUMBER(5,3)"),
        ("10::NUMBER(38,0)", "10::FLOAT"),
        ("1.5", "1.50::FLOAT"),
        ("0.00001", "1e-5"),
        ("100000000000000000000", "1e20"),
        ("n", "2.00"),
        ("sum(n)", "2"),
        ("x, s", "x::NUMBER(20,5), '2.5'"),
        ("'2024-01-01 10:00:00 +0000'::TIMESTAMP_TZ", "'2024-01-01 12:00:00 +0200'::TIMESTAMP_TZ"),
        ("NULL::INT", "NULL::FLOAT"),
    ],
)
def test_equal_values_have_the_same_hash_whatever_their_numeric_type(sql, one, other):
    group = " GROUP BY ALL" if "sum(" not in one else ""
    first, second = (
        sql.values(f"SELECT HASH({arguments}) FROM t{group}")[0][0] for arguments in (one, other)
    )
    assert first == second
    assert -(2**63) <= first < 2**63


@pytest.mark.parametrize(
    ("one", "other"),
    [("10", "'10'"), ("1", "2"), ("1, 2", "2, 1"), ("NULL", "''"), ("TRUE", "1"),
     ("12345678901234567890", "12345678901234567891")],
)  # fmt: skip
def test_values_that_differ_have_other_hashes(sql, one, other):
    assert sql.values(f"SELECT HASH({one}) = HASH({other})") == [(False,)]


# RATIO_TO_REPORT, examples
def test_the_ratio_of_numbers_is_a_number_with_the_scale_of_a_quotient(sql):
    query = "SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (1.00), (3.00) v(a) ORDER BY 1"
    assert sql.values(query) == [(D("0.25000000"),), (D("0.75000000"),)]
    assert value(sql, "RATIO_TO_REPORT(x) OVER ()") == (1, "NUMBER")
    assert value(sql, "RATIO_TO_REPORT(f) OVER ()") == (1.0, "FLOAT")
    assert sql.values("SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (0), (0) v(a)") == [(None,), (None,)]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1e15", "1e+15"),
        ("1e14", "100000000000000"),
        ("123456789012345678", "1.23456789012346e+17"),
        ("0.1 + 0.2::FLOAT", "0.3"),
        ("1e-5", "1e-05"),
        ("0.0001", "0.0001"),
        ("-2.50", "-2.5"),
        ("0", "0"),
        ("'nan'", "NaN"),
        ("'-inf'", "-inf"),
    ],
)
def test_a_float_is_written_with_fifteen_digits(sql, number, text):
    for form in ("({})::FLOAT::VARCHAR", "TO_VARCHAR(({})::FLOAT)", "({})::FLOAT || ''"):
        assert value(sql, form.format(number)) == (text, "VARCHAR")


# PARSE_JSON, arguments
@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', '{"a":{},"b":{"x":[],"x":0}}'])
def test_a_key_that_stands_twice_in_an_object_is_no_json(sql, text):
    assert sql.refused(f"SELECT PARSE_JSON('{text}')").code == "100069"
    assert sql.refused(f"SELECT PARSE_JSON('{text}', 's')").code == "100069"
    assert sql.values(f"SELECT TRY_PARSE_JSON('{text}')") == [(None,)]
    assert sql.values(f"SELECT PARSE_JSON('{text}', 'd') IS NOT NULL") == [(True,)]


def test_of_a_key_that_may_stand_twice_the_last_value_counts(sql):
    assert sql.values("""SELECT PARSE_JSON('{"a":{"b":1,"b":2}}', 'd'):a.b::INT""") == [(2,)]
    assert sql.values("""SELECT TRY_PARSE_JSON('{"a":1,"a":2}', 'd'):a::INT""") == [(2,)]
    assert sql.values("""SELECT PARSE_JSON('{"a":{"a":{"a":"a"}}}'):a.a.a::VARCHAR""") == [("a",)]
    assert sql.refused("SELECT PARSE_JSON('{}', 'x')").code == "001015"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'2' + 1", 3),
        ("'10' * 2", 20),
        ("'1.5' + 1", D("2.5")),
        ("'2' + '2.5'", D("4.5")),
        ("10 - '2'", 8),
        ("'10' / 4", D("2.5")),
        ("7 / '2'", D("3.5")),
        ("'7' % 2", 1),
        ("-'5'", -5),
        ("-0.5::VARCHAR", D("-0.5")),
        ("s + n", D("4.5")),
        ("s * s", D("6.25")),
        ("s + f", 3.0),
        ("-s", D("-2.5")),
        ("n - s", D("-0.5")),
        ("UPPER(s) + 1", D("3.5")),
        ("(s || '') + 1", D("3.5")),
        ("s::VARCHAR(1) + 1", 3),
        ("MAX(s) + 1", D("3.5")),
        ("SUM(s + 1)", D("3.5")),
        ("NVL(s, '0') + 1", D("3.5")),
        ("ABS('-3')", 3),
        ("ROUND(s)", 3),
        ("ROUND('1.55', 1)", D("1.6")),
        ("FLOOR(s)", 2),
        ("CEIL(s)", 3),
    ],
)
def test_a_text_in_arithmetic_is_a_number(sql, expression, expected):
    found, kind = value(sql, expression)
    assert found == expected
    assert kind == ("FLOAT" if isinstance(expected, float) else "NUMBER")


@pytest.mark.parametrize("text", ["'abc' + 1", "'' + 1", "-'x'", "'2024-01-01' + 1"])
def test_a_text_that_is_no_number_is_refused_in_arithmetic(sql, text):
    assert sql.refused(f"SELECT {text}").code == "100038"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("s > 1", True), ("s = 2.50", True), ("s < n", False), ("s BETWEEN 1 AND 3", True), ("s IN (1, 2.5)", True),
     ("n <= s", True), ("s <> 2.5", False), ("n = '2.0'", True)],
)  # fmt: skip
def test_a_text_beside_a_number_is_compared_as_one(sql, condition, expected):
    assert sql.values(f"SELECT {condition} FROM t") == [(expected,)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("COALESCE(s, n)", D("2.5")), ("NVL(n, s)", 2), ("IFF(n > 2, s, n)", 2), ("GREATEST(s, n)", D("2.5")),
     ("CASE WHEN n = 2 THEN s ELSE n END", D("2.5")), ("COALESCE(f, s)", 0.5)],
)  # fmt: skip
def test_a_choice_of_a_text_and_a_number_is_a_number(sql, choice, expected):
    found, kind = value(sql, choice)
    assert (found, kind) == (expected, "FLOAT" if isinstance(expected, float) else "NUMBER")


def test_aggregates_read_the_texts_of_a_subquery(sql):
    assert sql.values("SELECT SUM(a), AVG(a) FROM VALUES ('1'), ('2.5') v(a)") == [(3.5, 1.75)]
    assert sql.values("SELECT SUM(a) FROM (SELECT '1' a UNION ALL SELECT '2.5') q") == [(3.5,)]
