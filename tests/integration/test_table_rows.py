"""Every type, wide rows and long rows of a Spark table, compared value by value in the table."""

import json

import pytest

from airflow_provider_snowpipe.streaming.errors import EncodingError, SnowpipeError
from tests.integration.spark_values import TYPES, assert_arrived, values_query
from tests.table_loads import loads

__all__ = ["loads"]

pytestmark = pytest.mark.spark


_OF_STREAMS = [
    ("TINY", "NUMBER(38, 0)", "cast(-128 as tinyint)", "{}::VARCHAR", "-128"),
    ("F32", "FLOAT", "cast(0.1 as float)", "({} = 0.1)::VARCHAR", "true"),
]


@pytest.mark.parametrize("writer", ["jvm", "arrow"])
def test_every_type_arrives_with_its_value_and_null_stays_null(loads, writer):
    types = [one for one in (*TYPES, *_OF_STREAMS) if writer == "jvm" or one[0] != "VAR"]
    query = values_query(loads.service, loads.table, types)
    loads.load(loads.spec(query=query, name="types"))
    assert_arrived(loads.service, loads.table, types)


def test_type_without_a_faithful_form_is_refused_by_column(loads):
    for columns, evidence in (
        ("1 AS a, 2 AS A", "'a' and 'A'"),
        ("named_struct('m', map(date'2024-01-01', 1)) AS S", "'S.m'"),
        ("array(interval '1' month) AS I", "interval month"),
        ("make_interval(1) AS I", "interval"),
    ):
        with pytest.raises(EncodingError, match=evidence):
            loads.load(loads.spec(query=f"SELECT id AS ID, {columns} FROM range(2)", name="bad"))
    assert loads.ids == []


_NAN = "SELECT id AS ID, named_struct('v', array(if(id = 1, {}, NULL))) AS NOTE{} FROM range(3)"
_WRITERS = {"jvm": ", parse_json('1') AS V", "arrow": ""}


@pytest.mark.parametrize(
    ("value", "writer"),
    [
        ("double('NaN')", "jvm"),
        ("double('-Infinity')", "arrow"),
        ("date '+10000-01-01'", "jvm"),
        ("timestamp_micros(9223372036854775807)", "arrow"),
    ],
)
def test_value_that_json_cannot_hold_is_refused_before_any_row_moves(loads, value, writer):
    with pytest.raises(SnowpipeError, match="NOTE"):
        loads.load(loads.spec(query=_NAN.format(value, _WRITERS[writer]), name="nan"))
    assert loads.ids == []


def test_number_that_json_cannot_hold_is_null_where_the_author_allows_it(loads):
    loads.load(loads.spec(query=_NAN.format("double('NaN')", ""), name="nan", non_finite="null"))
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
