import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from snowpipe_local.errors import SqlError
from snowpipe_local.sql.reader import check_count, split_statements
from snowpipe_local.sql.results import Result, ResultColumn, encode, encode_streams
from snowpipe_local.tables import ColumnType

NUMBER_10_2 = ColumnType("NUMBER", precision=10, scale=2)
NUMBER_38 = ColumnType("NUMBER", precision=38, scale=0)


def _column(kind: ColumnType, *values: Any) -> tuple[pa.Field, pa.ChunkedArray]:
    result = Result((ResultColumn("C", kind),), [(value,) for value in values])
    (stream,) = encode_streams(result, [len(values)])
    table = pa.ipc.open_stream(stream).read_all()
    return table.schema.field(0), table.column(0)


def test_numbers_and_times_have_their_width():
    field, column = _column(NUMBER_10_2, Decimal("-1.25"), None)
    assert (field.type, column.to_pylist()) == (pa.int64(), [-125, None])
    assert field.metadata[b"scale"] == b"2"
    field, column = _column(NUMBER_38, 10**37, -1)
    assert (field.type, column.to_pylist()) == (pa.decimal128(38, 0), [Decimal(10**37), Decimal(-1)])
    with pytest.raises(pa.ArrowException):  # it is left to text
        _column(NUMBER_38, 10**38)
    for kind, fields, width in [
        ("TIMESTAMP_NTZ", 2, b"8"), ("TIMESTAMP_LTZ", 2, b"8"), ("TIMESTAMP_TZ", 3, b"16"),
    ]:  # fmt: skip
        zone = None if kind == "TIMESTAMP_NTZ" else dt.UTC
        before = dt.datetime(1969, 12, 31, 23, 59, 59, 250000, zone)
        field, column = _column(ColumnType(kind, precision=9), before, None)
        assert field.type.num_fields == fields
        assert field.metadata[b"byteLength"] == width
        first, second = column.to_pylist()
        assert (first["epoch"], first["fraction"]) == (-1, 250_000_000)
        assert first.get("timezone") in {None, 1440}
        assert second is None


# JSON_INDENT of "Parameters"; the connector's own tests compare with Python's json.dumps(.., indent=2).
def test_nested_values_are_indented_json():
    for kind in ["VARIANT", "ARRAY", "OBJECT"]:
        for stored, shown in [
            ([1, "ü"], '[\n  1,\n  "ü"\n]'),
            (
                '{"a":{"b":[1.10,null]},"c":{}}',
                '{\n  "a": {\n    "b": [\n      1.10,\n      null\n    ]\n  },\n  "c": {}\n}',
            ),
            (r'{"a:,[]{}\"\\":"\\"}', "{\n  " + r'"a:,[]{}\"\\": "\\"' + "\n}"),
            ("[ 1 , [ ] ]", "[\n  1,\n  []\n]"),
            ('"[1,2]"', '"[1,2]"'),
            ("[]", "[]"),
            ("-17", "-17"),
            (None, None),
        ]:
            _, column = _column(ColumnType(kind), stored)
            assert column.to_pylist() == [shown]
            assert encode(stored, kind) == shown


def test_statements_are_split_outside_of_strings_and_comments_and_counted():
    for text, statements in [
        ("SELECT 1", ["SELECT 1"]), ("SELECT ';'; SELECT \";\";", ["SELECT ';'", 'SELECT ";"']),
        ("-- a;b\nSELECT 1; /* ; */ SELECT 2", ["-- a;b\nSELECT 1", "/* ; */ SELECT 2"]), (" ;; ", []),
    ]:  # fmt: skip
        assert split_statements(text) == statements
    with pytest.raises(SqlError, match="syntax"):
        split_statements("SELECT 'x")
    for count, expected, code in [(0, 0, "000900"), (2, 1, "000008"), (1, 2, "000008")]:
        with pytest.raises(SqlError) as error:
            check_count(["SELECT 1"] * count, expected)
        assert error.value.code == code
