"""Dates, times and timestamps of the local service; above each test the page of Snowflake's documentation."""

import datetime as dt
import io

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.local_catalog import local_catalog
from tests.unit.sql_sessions import SqlSessions, pairs

INDIA = dt.timezone(dt.timedelta(hours=5, minutes=30))


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    sql = SqlSessions(tmp_path_factory.mktemp("timestamps"))
    sql.run(
        "CREATE TABLE z (id INT, tz TIMESTAMP_TZ, ltz TIMESTAMP_LTZ, ntz TIMESTAMP_NTZ, d DATE, t TIME)",
        "INSERT INTO z VALUES (1, '2026-01-01 10:00:00 +0530', '2026-01-01 10:00:00 +0530', "
        "'2026-01-01 10:00:00 +0530', '2026-01-01', '10:11:12')",
    )
    yield sql
    sql.close()


# Date & time data types
def test_a_timestamp_keeps_its_offset_and_is_computed_with_it(sql):
    for expression, value in [
        ("tz", dt.datetime(2026, 1, 1, 10, tzinfo=INDIA)),
        ("ltz", dt.datetime(2026, 1, 1, 4, 30, tzinfo=dt.UTC)), ("ntz", dt.datetime(2026, 1, 1, 10)),
        ("tz::VARCHAR", "2026-01-01 10:00:00.000 +0530"), ("t::VARCHAR(5)", "10:11"),
        ("TO_CHAR(tz, 'YYYY-MM-DD HH24:MI TZH:TZM')", "2026-01-01 10:00 +05:30"),
        ("tz::TIMESTAMP_NTZ", dt.datetime(2026, 1, 1, 10)),
        ("tz::TIMESTAMP_LTZ", dt.datetime(2026, 1, 1, 4, 30, tzinfo=dt.UTC)),
        ("tz = '2026-01-01 04:30:00'", True), ("tz BETWEEN '2026-01-01' AND '2026-01-02'", True),
        ("DATEADD(DAY, 1, DATEADD(MONTH, 1, tz))", dt.datetime(2026, 2, 2, 10, tzinfo=INDIA)),
        ("ADD_MONTHS(DATEADD(DAY, 30, tz), 1)", dt.datetime(2026, 2, 28, 10, tzinfo=INDIA)),
        ("HOUR(DATEADD(HOUR, 2, tz))", 12), ("DATEDIFF(HOUR, tz, '2026-01-02')", 14),
        ("COALESCE(tz, ltz)", dt.datetime(2026, 1, 1, 10, tzinfo=INDIA)),
        ("tz::VARIANT", '"2026-01-01 10:00:00.000 +0530"'),
        ("'2026-01-01T10:00:00Z'::TIMESTAMP_TZ", dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)),
        ("TO_TIMESTAMP_TZ(1700000000, 0)", dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)),
        ("TO_TIMESTAMP_LTZ(1700000000123, 3)::VARCHAR", "2023-11-14 22:13:20.123 +0000"),
        ("TO_TIMESTAMP(1700000000123456789, 9)", dt.datetime(2023, 11, 14, 22, 13, 20, 123456)),
        ("TO_TIMESTAMP(-1, 9)", dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ('TO_TIMESTAMP_NTZ(PARSE_JSON(\'{"a":"17.5"}\'):a, 0)', dt.datetime(1970, 1, 1, 0, 0, 17, 500000)),
        ("CONVERT_TIMEZONE('Asia/Kolkata', ltz)", dt.datetime(2026, 1, 1, 10, tzinfo=INDIA)),
    ]:  # fmt: skip
        ((found,),) = sql.values(f"SELECT {expression} FROM z")
        assert found == value
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            assert found.utcoffset() == value.utcoffset()


# Aggregate functions: the engine does not show the type of what they return before it has chosen a macro.
def test_aggregates_of_timestamps_are_cast_and_shown(sql):
    for expression, value in [
        ("MAX(tz)::VARCHAR", "2026-01-01 10:00:00.000 +0530"), ("MAX(tz)::DATE", dt.date(2026, 1, 1)),
        ("TO_TIMESTAMP(MAX(d::VARCHAR))", dt.datetime(2026, 1, 1)),
        ("DATEADD(DAY, 1, MAX(tz))", dt.datetime(2026, 1, 2, 10, tzinfo=INDIA)),
        ("MAX(ntz) OVER (ORDER BY id)::DATE", dt.date(2026, 1, 1)),
        ("ARRAY_AGG(tz)", '["2026-01-01 10:00:00.000 +0530"]'),
        ("MAX(DATE_PART(EPOCH_SECOND, tz))", 1767241800),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression} FROM z") == [(value,)]
    query = "SELECT MIN(tz)::DATE FROM z GROUP BY id HAVING MIN(tz) < '2026-01-01 04:30:01 Z'"
    assert sql.values(query) == [(dt.date(2026, 1, 1),)]


# DATEADD, DATEDIFF
def test_date_functions_take_texts(sql):
    for expression, value in pairs("""
DATEADD(DAY, 1, '2026-01-01') -> 2026-01-02 00:00:00
DATEADD(HOUR, 1, '2026-01-01 10:00') -> 2026-01-01 11:00:00
DATEDIFF(DAY, '1/1/2026', '01/05/2026'::DATE) -> 4; '2024-01-31 10:00'::TIMESTAMP + 1 -> 2024-02-01 10:00:00
DATEDIFF(HOUR, '2026-01-01 00:00:00', '2026-01-01 05:59:59') -> 5
TIMESTAMPDIFF(MINUTE, '2026-01-01 00:00:00', '2026-01-01 01:00:00'::TIMESTAMP_NTZ) -> 60"""):
        assert [str(found) for (found,) in sql.values(f"SELECT {expression}")] == [value]


# Parameters: TIMEZONE, TIMESTAMP_NTZ_OUTPUT_FORMAT, ...
def test_the_sessions_time_zone_and_formats_hold(sql):
    user = {"user": "DEMO", "role": "SYSADMIN"}
    sql.run("ALTER SESSION SET TIMEZONE = 'America/New_York'", **user)
    query = (
        "SELECT '2026-01-01 10:00'::TIMESTAMP_LTZ::VARCHAR, '2026-01-01 10:00'::TIMESTAMP_TZ::VARCHAR, "
        "'2026-01-01 10:00'::TIMESTAMP_NTZ::TIMESTAMP_TZ::VARCHAR, "
        "'2026-01-01 15:00:00 Z'::TIMESTAMP_LTZ::TIMESTAMP_NTZ::VARCHAR"
    )
    new_york = "2026-01-01 10:00:00.000 -0500"
    assert sql.values(query, **user) == [(new_york, new_york, new_york, "2026-01-01 10:00:00.000")]
    sql.run("ALTER SESSION SET TIMESTAMP_NTZ_OUTPUT_FORMAT = 'DD.MM.YYYY HH24:MI', "
            "TIMESTAMP_TZ_OUTPUT_FORMAT = 'YYYY TZH:TZM', DATE_OUTPUT_FORMAT = 'DD/MM/YYYY', "
            "TIME_OUTPUT_FORMAT = 'HH12:MI AM'", **user)  # fmt: skip
    query = (
        "SELECT '2026-01-01 10:00'::TIMESTAMP_NTZ::VARCHAR, '2026-01-01'::TIMESTAMP_TZ::VARCHAR, "
        "'2026-01-31'::DATE::VARCHAR, TO_CHAR('13:05:00'::TIME)"
    )
    assert sql.values(query, **user) == [("01.01.2026 10:00", "2026 -05:00", "31/01/2026", "01:05 PM")]
    assert sql.refused("ALTER SESSION SET TIMEZONE = 'Nowhere/Land'", **user).code == "001006"
    sql.run("ALTER SESSION UNSET TIMEZONE", **user)
    assert sql.values("SELECT '2026-01-01'::TIMESTAMP_TZ::VARCHAR", **user) == [("2026 +00:00",)]


# DATEADD, ADD_MONTHS, CONVERT_TIMEZONE, TIMESTAMP_FROM_PARTS, ...: the value has the type of its words.
def test_a_computed_time_is_written_in_the_format_of_its_type(sql):
    for expression, text in pairs("""
DATEADD(DAY, 1, ntz) -> 2026-01-02 10:00:00.000; DATEADD(HOUR, 1, ltz) -> 2026-01-01 05:30:00.000 +0000
DATEADD(HOUR, 1, ntz::DATE) -> 2026-01-01 01:00:00.000; DATEADD(DAY, 1, ntz::DATE) -> 2026-01-02
TIMEADD(HOUR, 1, tz) -> 2026-01-01 11:00:00.000 +0530; ADD_MONTHS(ntz::DATE, 1) -> 2026-02-01
ntz + INTERVAL '1 day' -> 2026-01-02 10:00:00.000; DATE_TRUNC('MONTH', ltz) -> 2026-01-01 00:00:00.000 +0000
TRUNC(ntz, 'MONTH') -> 2026-01-01 00:00:00.000; TIME_SLICE(ntz, 2, 'HOUR') -> 2026-01-01 10:00:00.000
CONVERT_TIMEZONE('UTC', 'Asia/Tokyo', ntz) -> 2026-01-01 19:00:00.000
TIMESTAMP_LTZ_FROM_PARTS(2026, 1, 2, 3, 4, 5) -> 2026-01-02 03:04:05.000 +0000
TIMESTAMP_TZ_FROM_PARTS(2026, 1, 2, 3, 4, 5) -> 2026-01-02 03:04:05.000 +0000
TIMESTAMP_TZ_FROM_PARTS(2026, 1, 2, 3, 4, 5, 0, 'Asia/Tokyo') -> 2026-01-02 03:04:05.000 +0900
TO_TIMESTAMP(1700000000) -> 2023-11-14 22:13:20.000; IFF(TRUE, ntz, ntz) -> 2026-01-01 10:00:00.000
CASE WHEN id = 1 THEN ntz ELSE tz END -> 2026-01-01 10:00:00.000 +0000
CASE WHEN id = 2 THEN ntz WHEN id = 1 THEN tz ELSE ltz END -> 2026-01-01 10:00:00.000 +0530
DECODE(id, 1, tz, ntz) -> 2026-01-01 10:00:00.000 +0530; DECODE(id, 1, ntz, NULL) -> 2026-01-01 10:00:00.000
NULLIF(ntz, '2020-01-01') -> 2026-01-01 10:00:00.000; (SELECT ntz FROM z) -> 2026-01-01 10:00:00.000
FIRST_VALUE(ntz) OVER (ORDER BY id) -> 2026-01-01 10:00:00.000; ARRAY_AGG(ntz)[0] -> 2026-01-01 10:00:00.000
TO_VARIANT(ntz) -> 2026-01-01 10:00:00.000; ARRAY_AGG(ntz) -> ["2026-01-01 10:00:00.000"]
SPLIT('a,b', ',') -> ["a","b"]; OBJECT_CONSTRUCT('a', ltz):a -> 2026-01-01 04:30:00.000 +0000
LISTAGG(ntz, ',') -> 2026-01-01 10:00:00.000"""):
        assert sql.values(f"SELECT ({expression})::VARCHAR FROM z") == [(text,)]
    a = "WITH a AS (SELECT x, x AS y FROM (SELECT DATEADD(DAY, 1, ntz) AS x FROM z))"
    assert sql.values(f"{a} SELECT x || '', y::VARCHAR FROM a") == [("2026-01-02 10:00:00.000",) * 2]


def test_the_system_date_is_a_clock_in_utc_and_the_present_time_has_no_fraction_as_text(sql):
    user = {"user": "DEMO", "role": "USERADMIN"}
    sql.run("ALTER SESSION SET TIMEZONE = 'Asia/Tokyo'", **user)
    query = (
        "SELECT DATEDIFF(MINUTE, SYSDATE(), CONVERT_TIMEZONE('UTC', CURRENT_TIMESTAMP)::TIMESTAMP_NTZ), "
        "LENGTH(SYSDATE()::VARCHAR), LENGTH(CURRENT_TIME()::VARCHAR)"
    )
    assert sql.values(query, **user) == [(0, len("2026-01-01 10:00:00.000"), len("10:00:00"))]


def test_changes_and_copies_keep_the_offset(sql):
    sql.run(
        "CREATE TABLE copied AS SELECT id, tz FROM z", "UPDATE copied SET tz = DATEADD(HOUR, 1, tz)",
        "MERGE INTO copied USING (SELECT 1 AS i, '2027-01-01 00:00:00 +0100'::TIMESTAMP_TZ AS n) s "
        "ON copied.id = s.i AND copied.tz > s.n WHEN MATCHED THEN UPDATE SET tz = s.n",
        "CREATE TABLE again CLONE copied", "INSERT INTO again SELECT 2, ltz FROM z",
        "CREATE TABLE defaults (id INT, at TIMESTAMP_TZ DEFAULT CURRENT_TIMESTAMP())",
        "INSERT INTO defaults (id) VALUES (1)",
    )  # fmt: skip
    assert sql.values("SELECT tz::VARCHAR FROM again ORDER BY id") == [
        ("2026-01-01 11:00:00.000 +0530",), ("2026-01-01 04:30:00.000 +0000",),
    ]  # fmt: skip
    assert sql.values("SELECT COUNT(at) FROM defaults") == [(1,)]
    sql.run("SELECT tz FROM again ORDER BY id")
    scanned = "SELECT tz::VARCHAR FROM TABLE(RESULT_SCAN(LAST_QUERY_ID())) ORDER BY 1 DESC LIMIT 1"
    assert sql.values(scanned) == [("2026-01-01 11:00:00.000 +0530",)]


def test_a_bound_timestamp_keeps_its_offset_and_the_protocol_carries_it(service):
    session = service.connect(SESSION_PARAMETERS={"TIMEZONE": "Asia/Tokyo"})
    session.query("CREATE TABLE o (at TIMESTAMP_TZ)")
    for kind, text in (
        ("TIMESTAMP_TZ", "1767241800000000000 1770"),
        ("TIMESTAMP_NTZ", "1767348000000000000"),
    ):
        session.query("INSERT INTO o VALUES (?)", bindings={"1": {"type": kind, "value": text}})
    session.query("INSERT INTO o VALUES ('2026-01-01')")
    result = session.query("SELECT at::VARCHAR, at FROM o ORDER BY at")["data"]
    assert result["rowset"] == [
        ["2026-01-01 00:00:00.000 +0900", "1767193200.000000000 1980"],
        ["2026-01-01 10:00:00.000 +0530", "1767241800.000000000 1770"],
        ["2026-01-02 10:00:00.000 +0900", "1767315600.000000000 1980"],
    ]
    zone = [entry["value"] for entry in result["parameters"] if entry["name"] == "TIMEZONE"]
    assert zone == ["Asia/Tokyo"]


# COPY INTO <table>
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_files_keep_offsets_and_adjusted_parquet_times(tmp_path, unit):
    with local_catalog(tmp_path) as local:
        local.sql("CREATE TABLE o (tz TIMESTAMP_TZ, ltz TIMESTAMP_LTZ, ntz TIMESTAMP_NTZ, d DATE)")
        local.put(
            "rows.csv", b"2026-01-01 10:00:00 -0330,2026-01-01 10:00:00 -0330,2026-01-01 10:00:00 -0330,\n"
        )
        local.sql("COPY INTO o FROM @s FILES = ('rows.csv')")
        at = pa.array([dt.datetime(2026, 1, 1)], pa.timestamp(unit, tz="UTC"))
        buffer = io.BytesIO()
        parquet.write_table(pa.table({"TZ": at, "LTZ": at, "NTZ": at, "D": at}), buffer)
        local.put("rows.parquet", buffer.getvalue())
        local.sql(
            "COPY INTO o FROM @s FILES = ('rows.parquet') FILE_FORMAT = (TYPE = PARQUET) "
            "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        )
        shown = "SELECT tz::VARCHAR AS tz, ltz::VARCHAR AS ltz, ntz::VARCHAR AS ntz, d FROM o ORDER BY ltz"
        assert local.sql(shown) == [
            {"tz": "2026-01-01 00:00:00.000 +0000", "ltz": "2026-01-01 00:00:00.000 +0000",
             "ntz": "2026-01-01 00:00:00.000", "d": dt.date(2026, 1, 1)},
            {"tz": "2026-01-01 10:00:00.000 -0330", "ltz": "2026-01-01 13:30:00.000 +0000",
             "ntz": "2026-01-01 10:00:00.000", "d": None},
        ]  # fmt: skip


# "Date and time input and output formats", "TO_TIMESTAMP", "DATEADD", "Interval constants"
def test_a_time_is_read_and_written_in_its_format(sql):
    for expression, text in pairs("""
TO_CHAR('2026-01-02 10:20:30.789'::TIMESTAMP, 'HH24:MI:SS.FF3') -> 10:20:30.789
TO_CHAR(DATE_TRUNC('hour', '2026-01-02 10:20:30'::TIMESTAMP), 'SS.FF9') -> 00.000000000
TO_VARCHAR('2026-01-02'::DATE, '"on" DD/MM') -> on 02/01; DATEADD(day, 1.6, '2026-01-01'::DATE) -> 2026-01-03
TO_TIMESTAMP_TZ('2026 -03:30', 'YYYY TZH:TZM') -> 2026-01-01 00:00:00.000 -0330
TO_TIMESTAMP('2026-01-02 10:00 -0330', 'YYYY-MM-DD HH24:MI TZHTZM') -> 2026-01-02 10:00:00.000
TO_TIMESTAMP('02.01.2026', 'DD.MM.YYYY') -> 2026-01-02 00:00:00.000
'2026-01-31'::DATE + INTERVAL '1 month' -> 2026-02-28; '05-Jan-2026'::DATE -> 2026-01-05
'2026-01-31'::DATE + INTERVAL '1 hour' -> 2026-01-31 01:00:00.000
COALESCE('2026-01-31'::DATE, '2026-01-31'::TIMESTAMP) -> 2026-01-31 00:00:00.000
'2026-01-02 10'::TIMESTAMP -> 2026-01-02 10:00:00.000
LEFT('2026-01-02'::DATE, 4) || LPAD(7, 3, '0') -> 2026007"""):
        assert sql.values(f"SELECT ({expression})::VARCHAR") == [(text,)]


def test_what_would_be_read_or_written_otherwise_is_refused(sql):
    for statement in [
        "SELECT TO_CHAR('2026-01-02'::TIMESTAMP, 'SS.FF2')",
        "SELECT TO_TIMESTAMP('+02:00 2026', 'TZH:TZM YYYY')",
        "SELECT '2026-01-02'::TIMESTAMP - '2026-01-01'::TIMESTAMP",
        "ALTER SESSION SET DATE_INPUT_FORMAT = 'DD/MM/YYYY'", "ALTER SESSION SET WEEK_START = 7",
        "ALTER SESSION SET TIMESTAMP_TYPE_MAPPING = 'TIMESTAMP_LTZ'",
    ]:  # fmt: skip
        assert sql.refused(statement).code == "000002"


# "EQUAL_NULL": as IS NOT DISTINCT FROM, and times with offsets are compared by their instants
def test_equal_null_compares_as_the_operators_do(sql):
    for expression, value in [
        ("EQUAL_NULL('2026-01-02 03:04:05 +0200'::TIMESTAMP_TZ, '2026-01-02 01:04:05Z'::TIMESTAMP_TZ)", True),
        ("EQUAL_NULL('2026-01-02 03:04:05 +0200'::TIMESTAMP_TZ, NULL)", False),
        ("EQUAL_NULL(PARSE_JSON('\"q\"'), 'q')", True),
    ]:  # fmt: skip
        assert sql.values(f"SELECT {expression}") == [(value,)]
