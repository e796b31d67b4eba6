"""Dates, times and timestamps of the local service; above each test the page of Snowflake's documentation."""

import datetime as dt
import io

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.local_catalog import local_catalog


@pytest.fixture(scope="module")
def sql(module_sql):
    module_sql.run(
        "CREATE TABLE z (id INT, tz TIMESTAMP_TZ, ltz TIMESTAMP_LTZ, ntz TIMESTAMP_NTZ, d DATE, t TIME)",
        "INSERT INTO z VALUES (1, '2026-01-01 10:00:00 +0530', '2026-01-01 10:00:00 +0530', "
        "'2026-01-01 10:00:00 +0530', '2026-01-01', '10:11:12')",
    )
    return module_sql


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
