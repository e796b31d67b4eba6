"""Values of functions and operators as the pages of Snowflake's documentation have them, and their types."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from snowpipe_local.sql import front
from tests.unit.sql_sessions import SqlSessions, listed


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE t (s VARCHAR, n INT, f FLOAT, x NUMBER(10,2), z TIMESTAMP_TZ)",
        "INSERT INTO t VALUES ('2.5', 2, 0.5, 1.25, '2024-01-01 10:00:00 +0200')",
    )
    return module_sql


def value(sql: SqlSessions, expression: str) -> tuple[Any, str]:
    """Return the value of an expression over the one row of T, and its type."""
    result = front.execute(sql.session(), f"SELECT {expression} FROM t")
    return result.rows[0][0], result.columns[0].type.kind


# RATIO_TO_REPORT, examples
def test_numbers_are_written_with_their_digits(sql):
    query = "SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (1.00), (3.00) v(a) ORDER BY 1"
    assert sql.values(query) == [(Decimal("0.25000000"),), (Decimal("0.75000000"),)]
    assert value(sql, "RATIO_TO_REPORT(x) OVER ()") == (1, "NUMBER")
    assert value(sql, "RATIO_TO_REPORT(f) OVER ()") == (1.0, "FLOAT")
    assert sql.values("SELECT RATIO_TO_REPORT(a) OVER () FROM VALUES (0), (0) v(a)") == [(None,), (None,)]
    for number, text in [
        ("123456789012345678", "1.23456789012346e+17"), ("0.1 + 0.2::FLOAT", "0.3"), ("'nan'", "NaN"),
    ]:  # fmt: skip
        assert value(sql, f"({number})::FLOAT::VARCHAR") == (text, "VARCHAR")


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


def test_choices_and_assignments_of_variants(sql):
    chosen = (
        "NVL(v:q, 'y'), COALESCE(v:q, 2), IFF(v:n = 2, v:a, 'z'), NVL2(v:q, v:a, 'w'), "
        "CASE v:n WHEN 2 THEN v:a ELSE 'z' END, DECODE(v:n, 2, v:a, 'z'), CASE WHEN FALSE THEN v END"
    )
    assert sql.values(f"""SELECT {chosen} FROM (SELECT PARSE_JSON('{{"a":"x","n":1}}') v)""") == [
        ('"y"', "2", '"z"', '"w"', '"z"', '"z"', None)
    ]
    sql.run(
        "CREATE TABLE nested (a ARRAY, o OBJECT)",
        "INSERT INTO nested SELECT PARSE_JSON('{\"k\":1}'), PARSE_JSON('{\"k\":1}')",
        "UPDATE nested SET o = {'k': 2}",
    )
    assert sql.values("SELECT a[0]:k, IS_ARRAY(a), o:k FROM nested") == [("1", True, "2")]
    sql.run("UPDATE nested SET a = PARSE_JSON('7')")
    assert sql.values("SELECT a FROM nested") == [("[7]",)]
    assert sql.refused("UPDATE nested SET o = PARSE_JSON('7')").code == "100071"


def test_what_is_not_known_to_snowflake_is_refused(sql):
    # ALTER SESSION; the words of the error are those that clients of Snowflake's report
    for statement in ("ALTER SESSION SET QUERY_TAGG = 'x'", "ALTER SESSION UNSET QUERY_TAGG"):
        error = sql.refused(statement)
        assert (error.code, error.sqlstate) == ("001006", "22023")
        assert "invalid parameter 'QUERY_TAGG'" in error.message
    sql.run("ALTER SESSION SET SEARCH_PATH = '$current', client_something_new = 1")
    assert sql.refused("ALTER SESSION SET DEFAULT_NULL_ORDERING = 'FIRST'").code == "000002"


# TRY_CAST, TRY_TO_DATE, "Date and time input and output formats"
def test_every_way_to_a_time_reads_the_formats_of_auto_and_is_null_where_it_is_tried(sql):
    for read in [
        "TRY_CAST({} AS TIMESTAMP)::DATE", "TRY_CAST({} AS DATE)", "TRY_TO_DATE({})", "TO_DATE({})",
        "TRY_TO_TIMESTAMP({})::DATE", "TRY_TO_TIMESTAMP_NTZ({})::DATE", "{}::DATE", "DATE({})",
    ]:  # fmt: skip
        for text in ["s", "TRIM(s)", "'05-Mar-2016'"]:
            found = sql.values(f"SELECT {read.format(text)} FROM (SELECT '05-Mar-2016' AS s)")
            assert found == [(dt.date(2016, 3, 5),)]
    for tried in [
        "TRY_CAST(s AS TIMESTAMP)", "TRY_CAST(s AS DATE)", "TRY_CAST(s AS TIME)", "TRY_TO_DATE(TRIM(s))",
    ]:  # fmt: skip
        sql.run("CREATE OR REPLACE TABLE odd (s VARCHAR)", "INSERT INTO odd VALUES ('zz'), ('infinity')")
        assert sql.values(f"SELECT {tried} FROM odd") == [(None,), (None,)]
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
SELECT "ab" FROM @; WITH c AS (SELECT 1 AS "AB", 2 AS "ab") SELECT "ab" FROM c
WITH c("AB", "ab") AS (SELECT 1, 2) SELECT "ab" FROM c; SELECT "ab" FROM (VALUES (1, 2)) AS v("AB", "ab")
WITH u AS (SELECT 1 AS "AB"), l AS (SELECT 2 AS "ab") SELECT "ab" FROM (SELECT * FROM u, l)
SELECT "ab" FROM @ WHERE "AB" = 1 GROUP BY "ab", "AB" ORDER BY "ab"; SELECT * EXCLUDE ("AB") FROM @
SELECT max(l."ab") FROM @ l JOIN @ r USING ("AB")"""):
        assert sql.values(statement.replace("@", '(SELECT 1 AS "AB", 2 AS "ab")')) == [(2,)], statement
    for statement in listed("""
SELECT "ab" FROM (SELECT * FROM upper_one, lower_one); SELECT "Ab" FROM (SELECT 1 AS "AB", 2 AS "ab")
SELECT s."ab" FROM (SELECT u.*, l.* FROM upper_one u, lower_one l) s
CREATE TABLE made AS SELECT 1 AS "AB", 2 AS "ab"; CREATE VIEW seen AS SELECT 1 AS "AB", 2 AS "ab" """):
        assert sql.refused(statement).code in {"000002", "000904", "001003", "002025"}, statement
    sql.run('CREATE VIEW seen AS SELECT "ab" FROM (SELECT 1 AS "AB", 2 AS "ab")')
    assert sql.values('SELECT "ab" FROM seen') == [(2,)]
    assert sql.values('SELECT object_construct(*) FROM (SELECT 1 AS "AB", 2 AS "ab")') == [
        ('{"AB":1,"ab":2}',)
    ]
    assert sql.values('SELECT 1 AS "AB", 2 AS "ab"') == [(1, 2)]
    sql.run('INSERT INTO pair SELECT 1 AS "AB", 2 AS "ab"')
    assert sql.values("SELECT * FROM pair") == [(1, 2)]
