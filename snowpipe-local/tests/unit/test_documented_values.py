"""Values of functions and operators as the pages of Snowflake's documentation have them, and their types."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions, listed, pairs


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
def test_equal_values_have_the_same_hash_whatever_their_numeric_type(sql):
    for one, other in [
        ("10::NUMBER(38,0)", "10::NUMBER(5,3)"), ("10::NUMBER(38,0)", "10::FLOAT"),
        ("100000000000000000000", "1e20"), ("n", "2.00"), ("x, s", "x::NUMBER(20,5), '2.5'"),
        ("'2024-01-01 10:00:00 +0000'::TIMESTAMP_TZ", "'2024-01-01 12:00:00 +0200'::TIMESTAMP_TZ"),
        ("NULL::INT", "NULL::FLOAT"),
    ]:  # fmt: skip
        [(first, second)] = sql.values(f"SELECT HASH({one}), HASH({other}) FROM t")
        assert first == second
        assert -(2**63) <= first < 2**63
    for one, other in [("10", "'10'"), ("1, 2", "2, 1"), ("NULL", "''"), ("TRUE", "1")]:
        assert sql.values(f"SELECT HASH({one}) = HASH({other})") == [(False,)]


# RATIO_TO_REPORT, examples
def test_the_ratio_of_numbers_is_a_number_with_the_scale_of_a_quotient(sql):
    query = "SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (1.00), (3.00) v(a) ORDER BY 1"
    assert sql.values(query) == [(Decimal("0.25000000"),), (Decimal("0.75000000"),)]
    assert value(sql, "RATIO_TO_REPORT(x) OVER ()") == (1, "NUMBER")
    assert value(sql, "RATIO_TO_REPORT(f) OVER ()") == (1.0, "FLOAT")
    assert sql.values("SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (0), (0) v(a)") == [(None,), (None,)]


def test_a_float_is_written_with_fifteen_digits(sql):
    for number, text in [
        ("1e15", "1e+15"), ("123456789012345678", "1.23456789012346e+17"), ("0.1 + 0.2::FLOAT", "0.3"),
        ("0.0001", "0.0001"), ("0", "0"), ("'nan'", "NaN"),
    ]:  # fmt: skip
        for form in ("({})::FLOAT::VARCHAR", "TO_VARCHAR(({})::FLOAT)", "({})::FLOAT || ''"):
            assert value(sql, form.format(number)) == (text, "VARCHAR")


# PARSE_JSON, arguments
def test_a_key_that_stands_twice_in_an_object_is_no_json_unless_the_last_is_asked_for(sql):
    for text in ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', '{"a":{},"b":{"x":[],"x":0}}']:
        for options in ("", ", 's'"):
            assert sql.refused(f"SELECT PARSE_JSON('{text}'{options})").code == "100069"
        assert sql.values(f"SELECT TRY_PARSE_JSON('{text}')") == [(None,)]
        assert sql.values(f"SELECT PARSE_JSON('{text}', 'd') IS NOT NULL") == [(True,)]
    assert sql.values("""SELECT PARSE_JSON('{"a":{"b":1,"b":2}}', 'd'):a.b::INT""") == [(2,)]
    assert sql.values("""SELECT TRY_PARSE_JSON('{"a":1,"a":2}', 'd'):a::INT""") == [(2,)]
    assert sql.values("""SELECT PARSE_JSON('{"a":{"a":{"a":"a"}}}'):a.a.a::VARCHAR""") == [("a",)]
    assert sql.refused("SELECT PARSE_JSON('{}', 'x')").code == "001015"


def test_a_text_in_arithmetic_is_a_number(sql):
    for expression, expected in [
        ("'2' + 1", 3), ("7 / '2'", Decimal("3.5")), ("'7' % 2", 1), ("-0.5::VARCHAR", Decimal("-0.5")),
        ("s + n", Decimal("4.5")), ("s + f", 3.0), ("-s", Decimal("-2.5")), ("UPPER(s) + 1", Decimal("3.5")),
        ("s::VARCHAR(1) + 1", 3), ("MAX(s) + 1", Decimal("3.5")), ("NVL(s, '0') + 1", Decimal("3.5")),
        ("ABS('-3')", 3), ("ROUND(s)", 3), ("ROUND('1.55', 1)", Decimal("1.6")), ("CEIL(s)", 3),
    ]:  # fmt: skip
        found, kind = value(sql, expression)
        assert found == expected
        assert kind == ("FLOAT" if isinstance(expected, float) else "NUMBER")
    for text in ["'abc' + 1", "'' + 1", "-'x'", "'2024-01-01' + 1"]:
        assert sql.refused(f"SELECT {text}").code == "100038"
    compared = "s > 1, s = 2.50, s < n, s BETWEEN 1 AND 3, s IN (1, 2.5), n <= s, n = '2.0'"
    assert sql.values(f"SELECT {compared} FROM t") == [(True, True, False, True, True, True, True)]


def test_a_choice_of_a_text_and_a_number_is_a_number(sql):
    for choice, expected in [
        ("COALESCE(s, n)", Decimal("2.5")), ("IFF(n > 2, s, n)", 2),
        ("CASE WHEN n = 2 THEN s ELSE n END", Decimal("2.5")), ("COALESCE(f, s)", 0.5),
    ]:  # fmt: skip
        found, kind = value(sql, choice)
        assert (found, kind) == (expected, "FLOAT" if isinstance(expected, float) else "NUMBER")


# The page of each function, usage notes and examples
def test_a_function_returns_the_documented_value(sql):
    for expression, expected in pairs("""
DATE_PART(TZH, z) -> 2 NUMBER; DATE_PART('epoch', '2024-05-01'::DATE) -> 1714521600 NUMBER
EXTRACT(TIMEZONE_HOUR FROM '2024-01-01 10:00:00 +0530'::TIMESTAMP_TZ) -> 5 NUMBER
DATE_PART(TIMEZONE_MINUTE, '2024-01-01 10:00:00 +0530'::TIMESTAMP_TZ) -> 30 NUMBER
EXTRACT(TZH FROM '2024-01-01 10:00:00 -0330'::TIMESTAMP_TZ) -> -3 NUMBER
ADD_MONTHS('2024-02-29'::DATE, 1)::VARCHAR -> 2024-03-31 VARCHAR
ADD_MONTHS('2024-01-31 10:00:00'::TIMESTAMP, 1)::VARCHAR -> 2024-02-29 10:00:00.000 VARCHAR
ADD_MONTHS('2024-01-15 10:00:00'::TIMESTAMP, n)::VARCHAR -> 2024-03-15 10:00:00.000 VARCHAR
ADD_MONTHS('2024-02-29 10:00:00 +0500'::TIMESTAMP_TZ, 1)::VARCHAR -> 2024-03-31 10:00:00.000 +0500 VARCHAR
MONTHS_BETWEEN('2019-03-01 02:00:00'::TIMESTAMP, '2019-02-15 01:00:00'::TIMESTAMP) -> 0.549731 NUMBER
MONTHS_BETWEEN('2019-02-28'::DATE, '2019-01-31'::DATE) -> 1.000000 NUMBER
MONTHS_BETWEEN('2019-02-15 10:00:00'::TIMESTAMP, '2019-03-15'::TIMESTAMP) -> -1.000000 NUMBER
REGEXP_SUBSTR_ALL('a1_a2', 'a([0-9])', 1, 1, 'e')[1]::VARCHAR -> 2 VARCHAR; CEIL(5) -> 5 NUMBER
AS_NUMBER(1.55::VARIANT, 10, 1) -> 1.6 NUMBER; AS_DECIMAL(1.50::VARIANT, 5, 2) -> 1.50 NUMBER
AS_NUMBER(12::VARIANT) -> 12 NUMBER; AS_DECIMAL('1'::VARIANT) -> None NUMBER; FLOOR(COUNT(*)) -> 1 NUMBER
CBRT(27) -> 3.0 FLOAT; LPAD('abc', 5, '') -> abc VARCHAR; RPAD('abc', 2, '') -> ab VARCHAR
CONTAINS('a', NULL) -> None BOOLEAN; DATEADD(day, 1, NULL) -> None TIMESTAMP_NTZ
COUNT(s, NULL, n) -> 0 NUMBER; COUNT(s, n) -> 1 NUMBER
('2024-01-01'::TIMESTAMP + INTERVAL '1 day, 2 hours, 3 minutes')::VARCHAR -> 2024-01-02 02:03:00.000 VARCHAR
TIMESTAMP_NTZ_FROM_PARTS(2024, 1, 2, 3, 4, 5, 123456789)::VARCHAR -> 2024-01-02 03:04:05.123 VARCHAR
TO_CHAR(TIMESTAMP_FROM_PARTS(2013, 4, 5, 12, 0, -3600, 999999), 'HH24:MI:SS.FF6') -> 11:00:00.000999 VARCHAR
TIMESTAMP_FROM_PARTS(2024, 13, 32, 25, 61, 61)::VARCHAR -> 2025-02-02 02:02:01.000 VARCHAR
TRY_TO_DATE('20240101')::VARCHAR -> 1970-08-23 VARCHAR; TRY_TO_DATE('x', 'AUTO') -> None DATE
TO_TIMESTAMP('2024-01-02 03:04:05', 'auto')::VARCHAR -> 2024-01-02 03:04:05.000 VARCHAR
EQUAL_NULL(s, 2) -> False BOOLEAN; s IS DISTINCT FROM 3 -> True BOOLEAN
CASE s WHEN 3 THEN 'three' ELSE 'no' END -> no VARCHAR; DECODE(s, 3, 'three', 'no') -> no VARCHAR"""):
        found, kind = value(sql, expression)
        assert f"{found} {kind}" == expected, expression


def test_an_array_column_gets_an_array(sql):
    sql.run(
        "CREATE TABLE nested (a ARRAY, o OBJECT)",
        "INSERT INTO nested SELECT PARSE_JSON('{\"k\":1}'), PARSE_JSON('{\"k\":1}')",
        "UPDATE nested SET o = {'k': 2}",
    )
    assert sql.values("SELECT a[0]:k, IS_ARRAY(a), o:k FROM nested") == [("1", True, "2")]
    sql.run("UPDATE nested SET a = PARSE_JSON('7')")
    assert sql.values("SELECT a FROM nested") == [("[7]",)]
    assert sql.refused("UPDATE nested SET o = PARSE_JSON('7')").code == "100071"


# SPLIT_TO_TABLE, examples
def test_each_text_of_a_table_is_split(sql):
    sql.run("CREATE TABLE splittable (v VARCHAR)", "INSERT INTO splittable VALUES ('a.b'), ('c'), (NULL)")
    rows = [("a.b", 1, "a"), ("a.b", 2, "b"), ("c", 1, "c")]
    for joined in (", LATERAL SPLIT_TO_TABLE(v, '.') AS p", ", TABLE(SPLIT_TO_TABLE(splittable.v, '.')) p"):
        query = f"SELECT v, index, p.value FROM splittable{joined} ORDER BY 1, 2"
        assert sql.values(query) == rows
    outer = "SELECT v, value FROM splittable LEFT JOIN LATERAL SPLIT_TO_TABLE(v, '.') WHERE v IS NULL"
    assert sql.values(outer) == [(None, None)]


# OBJECT_CONSTRUCT, HASH: arguments
def test_a_star_as_an_argument_stands_for_the_columns(sql):
    sql.run(
        "CREATE TABLE stars (a INT, b VARCHAR, z TIMESTAMP_TZ, v VARIANT)",
        "INSERT INTO stars SELECT 1, NULL, '2024-01-01 10:00:00 +0200', PARSE_JSON('null')",
    )
    built = "SELECT OBJECT_CONSTRUCT(*)::VARCHAR FROM"
    whole = '{"A":1,"V":null,"Z":"2024-01-01 10:00:00.000 +0200"}'
    assert sql.values(f"{built} stars s") == [(whole,)]
    assert sql.values(f"{built} (SELECT 1 AS x, a FROM stars)") == [('{"A":1,"X":1}',)]
    same = "SELECT HASH(*) = HASH(a, b, z, v), HASH(*) = HASH(a, b, z) FROM stars"
    assert sql.values(same) == [(True, False)]
    joined = "SELECT HASH(*) = HASH(s.a, s.b, s.z, s.v, q.c) FROM stars s JOIN (SELECT 5 c) q ON TRUE"
    assert sql.values(joined) == [(True,)]
    assert sql.refused("SELECT HASH(*) FROM (SELECT * FROM stars)").code == "000002"


def test_a_choice_of_a_variant_and_another_value_is_a_variant(sql):
    chosen = (
        "NVL(v:q, 'y'), COALESCE(v:q, 2), IFF(v:n = 2, v:a, 'z'), NVL2(v:q, v:a, 'w'), "
        "CASE v:n WHEN 2 THEN v:a ELSE 'z' END, DECODE(v:n, 2, v:a, 'z'), CASE WHEN FALSE THEN v END"
    )
    assert sql.values(f"""SELECT {chosen} FROM (SELECT PARSE_JSON('{{"a":"x","n":1}}') v)""") == [
        ('"y"', "2", '"z"', '"w"', '"z"', '"z"', None)
    ]


def test_the_same_name_may_be_a_text_in_one_table_and_a_number_in_another(sql):
    sql.run(
        "CREATE TABLE source (k INT, amount VARCHAR, at VARCHAR)",
        "CREATE TABLE target (k INT, amount NUMBER(10,1), at DATE)",
        "INSERT INTO source VALUES (1, '10.5', 'x')", "INSERT INTO target VALUES (1, 1, '2024-01-01')",
    )  # fmt: skip
    merge = (
        "MERGE INTO target t USING {} s ON t.k = s.k WHEN MATCHED THEN UPDATE SET t.amount = s.amount + {}"
    )
    sql.run(merge.format("source", "1"))
    assert sql.values("SELECT amount FROM target") == [(Decimal("11.5"),)]
    sql.run(merge.format("(SELECT k, MAX(amount) AS amount FROM source GROUP BY k)", "t.amount"))
    assert sql.values("SELECT t.amount, s.amount < t.amount, t.at || s.at FROM target t, source s") == [
        (Decimal("22.0"), True, "2024-01-01x")
    ]


@pytest.fixture(scope="module")
def mixed(sql):
    sql.run(
        "CREATE TABLE mixed (s VARCHAR, n INT, k INT, m NUMBER(10,4), f FLOAT, b BINARY, d DATE, z TIME, "
        "w VARIANT)",
        "INSERT INTO mixed SELECT '01', 1, 2, -123.4567, 123.4567, 'CDEF01', '2024-02-29', '15:00', "
        "PARSE_JSON('true')",
    )
    return sql


# Data type conversion; IN; NULLIF; ROUND; TRUNC; SUBSTR
def test_a_value_is_read_as_the_type_beside_it(mixed):
    for expression, value in [
        ("w::INT", 1), ("PARSE_JSON('true')::FLOAT", 1.0), ("PARSE_JSON('true')::VARCHAR", "true"),
        ("n IN (SELECT s FROM mixed)", True), ("s IN (SELECT n FROM mixed)", True),
        ("n = ANY (SELECT s FROM mixed)", True), ("n = (SELECT MAX(s) FROM mixed)", True),
        ("NULLIF(s, 1)", None), ("SUBSTR(b, 2)::VARCHAR", "EF01"), ("SUBSTR(b, -2, n)::VARCHAR", "EF"),
        ("LEFT(b, 2)::VARCHAR", "CDEF"), ("ROUND(m, k)", Decimal("-123.46")),
        ("ROUND(m, NULLIF(k, 2))", None), ("TRUNC(m, k)", Decimal("-123.45")),
        ("d IN ('29-FEB-2024', '2024-03-01')", True), ("d = '29-FEB-2024'", True),
        ("d BETWEEN '28-FEB-2024' AND '01-MAR-2024'", True), ("CASE d WHEN '29-FEB-2024' THEN 1 END", 1),
        ("z = '03:00 PM'", True), ("b IN ('CD', 'cdef01')", True), ("'CDEF02' > b", True),
    ]:  # fmt: skip
        assert mixed.values(f"SELECT {expression} FROM mixed") == [(value,)]


def test_a_text_that_is_not_of_the_type_beside_it_is_refused(mixed):
    assert mixed.refused("SELECT NULLIF('x', 1)").code == "100038"
    assert mixed.refused("SELECT b = 'x' FROM mixed").code == "100115"
    assert mixed.refused("SELECT n IN (SELECT 'x') FROM mixed").code == "100038"


def test_what_sqlglot_reads_and_snowflake_does_not_is_a_syntax_error(sql):
    for written in ["5 DIV 2", "[1,]", "{'a': 1,}", "ARRAY_CONSTRUCT(1,)", "1 IN (1,)", "COALESCE(1, 2,)"]:
        assert sql.refused(f"SELECT {written}").code == "001003"


# TRY_CAST, TRY_TO_DATE, "Date and time input and output formats"
def test_every_way_to_a_date_reads_the_formats_of_auto(sql):
    for read in [
        "TRY_CAST({} AS TIMESTAMP)::DATE", "TRY_CAST({} AS DATE)", "TRY_TO_DATE({})", "TO_DATE({})",
        "TRY_TO_TIMESTAMP({})::DATE", "TRY_TO_TIMESTAMP_NTZ({})::DATE", "{}::DATE", "DATE({})",
    ]:  # fmt: skip
        for text in ["s", "TRIM(s)", "'05-Mar-2016'"]:
            sql.run("CREATE OR REPLACE TABLE dated (s VARCHAR)", "INSERT INTO dated VALUES ('05-Mar-2016')")
            assert sql.values(f"SELECT {read.format(text)} FROM dated") == [(dt.date(2016, 3, 5),)]


def test_what_is_no_time_is_null_where_it_is_tried(sql):
    for tried in [
        "TRY_CAST(s AS TIMESTAMP)", "TRY_CAST(s AS DATE)", "TRY_CAST(s AS TIME)", "TRY_TO_DATE(TRIM(s))",
    ]:  # fmt: skip
        sql.run("CREATE OR REPLACE TABLE odd (s VARCHAR)", "INSERT INTO odd VALUES ('zz'), ('infinity')")
        assert sql.values(f"SELECT {tried} FROM odd") == [(None,), (None,)]


# SUBSTR , SUBSTRING: a start outside of the text gives an empty one
def test_a_substring_starts_within_its_text(sql):
    for expression, text in [
        ("SUBSTR('abc', -5)", ""), ("SUBSTR('abc', -3, 2)", "ab"), ("SUBSTR(s, -n - 2)", ""),
        ("SUBSTR(s, NULL)", None), ("SUBSTR('0A0B'::BINARY, -1)", b"\x0b"),
    ]:  # fmt: skip
        assert value(sql, expression)[0] == text


# ALTER SESSION; the words of the error are those that clients of Snowflake's report
def test_a_session_has_no_parameter_of_another_name(sql):
    for statement in ("ALTER SESSION SET QUERY_TAGG = 'x'", "ALTER SESSION UNSET QUERY_TAGG"):
        error = sql.refused(statement)
        assert (error.code, error.sqlstate) == ("001006", "22023")
        assert "invalid parameter 'QUERY_TAGG'" in error.message
    sql.run("ALTER SESSION SET SEARCH_PATH = '$current', client_something_new = 1")
    assert sql.refused("ALTER SESSION SET DEFAULT_NULL_ORDERING = 'FIRST'").code == "000002"


def test_parts_since_1970_are_cut_and_not_rounded(sql):
    zoned = "'2024-01-01 15:00:00.789999 +02:00'::TIMESTAMP_TZ"
    for time in ("'2024-01-01 13:00:00.789999'::TIMESTAMP", zoned, "'2024-01-01 13:00:00.789999'"):
        for part, whole in (("epoch", 1704114000), ("epoch_millisecond", 1704114000789)):
            assert sql.values(f"SELECT DATE_PART({part}, {time})") == [(whole,)], (part, time)
    assert sql.values("SELECT EXTRACT(epoch FROM '1969-12-31 23:59:59.5'::TIMESTAMP)") == [(-1,)]


def test_columns_that_differ_by_case_only_are_never_mixed_up(sql):
    sql.run(
        'CREATE TABLE upper_one ("AB" INT)', 'CREATE TABLE lower_one ("ab" INT)',
        "CREATE TABLE pair (x INT, y INT)",
    )  # fmt: skip
    for statement in listed("""
SELECT "ab" AS x FROM @; SELECT * FROM @; SELECT count(*) FROM @ u
WITH c AS (SELECT 1 AS "AB", 2 AS "ab") SELECT "ab" FROM c; SELECT 1 AS "AB", 2 AS "ab", "ab" + 1 AS c
WITH c("AB", "ab") AS (SELECT 1, 2) SELECT "ab" FROM c; SELECT 1 AS "AB", 2 AS "ab" ORDER BY "ab"
SELECT "ab" FROM (SELECT * FROM upper_one, lower_one); SELECT "ab" FROM (VALUES (1, 2)) AS v("AB", "ab")
SELECT s."ab" FROM (SELECT u.*, l.* FROM upper_one u, lower_one l) s
WITH u AS (SELECT 1 AS "AB"), l AS (SELECT 2 AS "ab") SELECT "ab" FROM (SELECT * FROM u, l)
INSERT INTO pair SELECT "ab", "AB" FROM @; UPDATE pair SET x = s."ab" FROM @ s
MERGE INTO pair USING @ s ON x = s."ab" WHEN NOT MATCHED THEN INSERT VALUES (s."ab", 1)
DELETE FROM pair USING @ s WHERE x = s."ab"; CREATE TABLE made AS SELECT "ab" FROM @
CREATE VIEW seen AS SELECT "ab" FROM @"""):
        assert sql.refused(statement.replace("@", '(SELECT 1 AS "AB", 2 AS "ab")')).code == "000002", (
            statement
        )
    assert sql.values('SELECT 1 AS "AB", 2 AS "ab"') == [(1, 2)]
    sql.run('INSERT INTO pair SELECT 1 AS "AB", 2 AS "ab"')
    assert sql.values("SELECT * FROM pair") == [(1, 2)]
