"""Every type, wide rows and long rows of a Spark table, compared value by value in the table."""

from __future__ import annotations

import json

import pytest

from airflow_provider_snowpipe.streaming.errors import EncodingError, SnowpipeError
from tests.table_loads import loads

__all__ = ["loads"]

pytestmark = pytest.mark.spark


# name, Snowflake type, Spark expression, how it is read back, expected text
_TYPES = [
    ("TRUTH", "BOOLEAN", "true", "{}::VARCHAR", "true"),
    ("BIG", "NUMBER(38, 0)", "9223372036854775807L", "{}::VARCHAR", "9223372036854775807"),
    ("TINY", "NUMBER(38, 0)", "cast(-128 as tinyint)", "{}::VARCHAR", "-128"),
    (
        *("DEC", "NUMBER(38, 18)", "cast('12345678901234567890.000000000000000001' as decimal(38, 18))"),
        *("{}::VARCHAR", "12345678901234567890.000000000000000001"),
    ),
    ("SMALL", "NUMBER(38, 18)", "cast('0.000000000000000001' as decimal(38, 18))", "{}::VARCHAR", None),
    ("F32", "FLOAT", "cast(0.1 as float)", "({} = 0.1)::VARCHAR", "true"),
    ("F64", "FLOAT", "1.7976931348623157e308D", "({} = 1.7976931348623157e308)::VARCHAR", "true"),
    ("TXT", "VARCHAR", r"'a\"b\\c\tä日\n'", "{}", 'a"b\\c\tä日\n'),
    ("BYTES", "BINARY", "X'00FF41'", "HEX_ENCODE({})", "00FF41"),
    ("DAY", "DATE", "date'0001-01-01'", "{}::VARCHAR", "0001-01-01"),
    (
        *("NTZ", "TIMESTAMP_NTZ(9)", "timestamp_ntz'1969-12-31 23:59:59.999999'"),
        *("TO_VARCHAR({}, 'YYYY-MM-DD HH24:MI:SS.FF6')", "1969-12-31 23:59:59.999999"),
    ),
    (
        *("TZ", "TIMESTAMP_TZ(9)", "timestamp'2024-02-29 23:59:59.123456+05:30'"),
        "TO_VARCHAR(CONVERT_TIMEZONE('UTC', {}), 'YYYY-MM-DD HH24:MI:SS.FF6')",
        "2024-02-29 18:29:59.123456",
    ),
    ("VAR", "VARIANT", """parse_json('{"a": [1, null], "b": 12345678901234567890}')""", "{}", None),
    ("STRU", "VARIANT", "named_struct('x', 1, 'y', cast(null as string), 'b', X'00FF')", "{}", None),
    ("DICT", "VARIANT", "map('k', 1.50, 'z', null)", "{}", None),
    ("LIST", "ARRAY", "array(timestamp_ntz'2024-01-01 00:00:00.000001', null)", "{}", None),
    ("NOTHING", "VARCHAR", "null", "{}", None),
]
_SPECIAL = {
    "VAR": {"a": [1, None], "b": 12345678901234567890},
    "STRU": {"x": 1, "y": None, "b": "AP8="},
    "DICT": {"k": 1.5, "z": None},
    "LIST": ["2024-01-01T00:00:00.000001", None],
}


@pytest.mark.parametrize("writer", ["jvm", "arrow"])
def test_every_type_arrives_with_its_value_and_null_stays_null(loads, writer):
    types = [one for one in _TYPES if writer == "jvm" or one[0] != "VAR"]
    columns = ", ".join(f"{name} {kind}" for name, kind, *_ in types)
    loads.service.sql(f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{loads.table} (ID NUMBER, {columns})")
    values = ", ".join(f"if(id = 0, {value}, null) AS {name}" for name, _, value, *_ in types)

    loads.load(loads.spec(query=f"SELECT id AS ID, {values} FROM range(2)", name="types"))

    read = ", ".join(f"{form.format(name)} AS {name}" for name, _, _, form, _ in types)
    full, empty = loads.service.sql(f"SELECT {read} FROM LOCAL.PUBLIC.{loads.table} ORDER BY ID")
    for name, _, _, _, expected in types:
        if name in _SPECIAL:
            found = json.loads(full[name]) if isinstance(full[name], str) else full[name]
            assert found == _SPECIAL[name], name
        elif expected is not None:
            assert full[name][: len(expected)] == expected, name
    assert float(full["SMALL"]) == 1e-18
    assert set(empty.values()) == {None}
    nulls = " AND ".join(f"{name} IS NULL" for name, *_ in types)
    (count,) = loads.service.sql(f"SELECT COUNT(*) AS N FROM LOCAL.PUBLIC.{loads.table} WHERE {nulls}")
    assert int(count["N"]) == 1


@pytest.mark.parametrize(
    ("columns", "evidence"),
    [
        ("1 AS a, 2 AS A", "'a' and 'A'"),
        ("map(1, 2) AS M", "'M'"),
        ("named_struct('m', map(date'2024-01-01', 1)) AS S", "'S.m'"),
        ("array(interval '1' month) AS I", r"interval month"),
        ("make_interval(1) AS I", "interval"),
    ],
    ids=["same-names", "map-keys", "nested-map-keys", "interval", "calendar-interval"],
)
def test_type_without_a_faithful_form_is_refused_by_column(loads, columns, evidence):
    with pytest.raises(EncodingError, match=evidence):
        loads.load(loads.spec(query=f"SELECT id AS ID, {columns} FROM range(2)", name="bad"))
    assert loads.ids == []


_NAN = "SELECT id AS ID, named_struct('v', array(if(id = 1, {}, NULL))) AS NOTE{} FROM range(3)"
_WRITERS = {"jvm": ", parse_json('1') AS V", "arrow": ""}


@pytest.mark.parametrize(
    ("value", "writer"),
    [
        pytest.param(value, writer, marks=[] if daily else pytest.mark.nightly)
        for value, daily_writer in (
            ("double('NaN')", "jvm"),
            ("double('Infinity')", "arrow"),
            ("double('-Infinity')", "jvm"),
            ("date '+10000-01-01'", "jvm"),
            ("date '-0001-12-31'", "arrow"),
            ("timestamp_micros(9223372036854775807)", "arrow"),
            ("cast(timestamp_micros(9223372036854775807) AS timestamp_ntz)", "jvm"),
        )
        for writer in _WRITERS
        for daily in [writer == daily_writer]
    ],
)
def test_value_that_json_cannot_hold_is_refused_before_any_row_moves(loads, value, writer):
    with pytest.raises(SnowpipeError, match="NOTE"):
        loads.load(loads.spec(query=_NAN.format(value, _WRITERS[writer]), name="nan"))
    assert loads.ids == []


@pytest.mark.parametrize("writer", [pytest.param("jvm", marks=pytest.mark.nightly), "arrow"])
def test_number_that_json_cannot_hold_is_null_where_the_author_allows_it(loads, writer):
    query = _NAN.format("double('NaN')", _WRITERS[writer])
    loads.load(loads.spec(query=query, name="nan", non_finite="null"))

    rows = loads.service.sql(f"SELECT NOTE FROM LOCAL.PUBLIC.{loads.table} ORDER BY ID")
    assert [json.loads(row["NOTE"]) for row in rows] == [{"v": [None]}] * 3


def test_binary_is_written_as_the_pipe_reads_it(loads):
    query = "SELECT id AS ID, X'00FF' AS FILE, array(X'C3A4') AS NOTE FROM range(1)"

    loads.load(loads.spec(query=query, name="hex", binary="HEX"))

    (row,) = loads.service.sql(f"SELECT FILE, NOTE FROM LOCAL.PUBLIC.{loads.table}")
    assert (row["FILE"].upper(), json.loads(row["NOTE"].upper())) == ("00FF", ["C3A4"])
    with pytest.raises(SnowpipeError, match="UTF-8"):
        loads.load(loads.spec(query=query, name="text", binary="UTF-8"), source_name="text")


def test_null_left_out_lets_the_default_apply(loads):
    loads.service.sql(
        f"CREATE OR REPLACE TABLE LOCAL.PUBLIC.{loads.table} (ID NUMBER, NOTE VARCHAR DEFAULT 'none')"
    )
    query = "SELECT id AS ID, cast(null as string) AS NOTE FROM range(1)"

    loads.load(loads.spec(query=query, name="q", explicit_nulls=False))

    assert [row["NOTE"] for row in loads.service.sql(f"SELECT NOTE FROM LOCAL.PUBLIC.{loads.table}")] == [
        "none"
    ]


def test_rows_of_a_megabyte_arrive_one_by_one(loads):
    query = "SELECT id AS ID, concat(id, repeat(chr(97 + id % 26), 1048576)) AS NOTE FROM range(24)"

    (report,) = loads.load(loads.spec(query=query, name="long"))

    assert report.rows == 24
    rows = loads.service.sql(
        f"SELECT ID, LENGTH(NOTE) AS L, RIGHT(NOTE, 1) AS C FROM LOCAL.PUBLIC.{loads.table} ORDER BY ID"
    )
    assert [(int(row["ID"]), int(row["L"]), row["C"]) for row in rows] == [
        (number, 1048576 + len(str(number)), chr(97 + number)) for number in range(24)
    ]
