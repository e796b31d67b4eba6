"""Arrow to NDJSON: every type as Snowflake's columns take it."""

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson
from tests.refusals import refused

INT = pa.int64()


def texts(values, kind=None, **options):
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    lines = encode_ndjson(pa.table({"c": array}), NdjsonOptions(**options)).decode().split("\n")
    assert lines.pop() == ""
    return [line.removeprefix('{"c":').removesuffix("}") for line in lines]


def test_values_are_written_exactly():
    for values, kind, expected in [
        ([1, None, -(2**63), 2**63 - 1], INT, ["1", "null", str(-(2**63)), str(2**63 - 1)]),
        ([2**64 - 1], pa.uint64(), [str(2**64 - 1)]),
        ([0.1, None], pa.float32(), ["0.1", "null"]),
        ([Decimal("1.2300"), None], pa.decimal128(18, 4), ["1.2300", "null"]),
        ([Decimal("-0.5")], pa.decimal256(60, 4), ['"-0.5000"']),
        (['q"\n\t\\é\u2028', ""], pa.string(), [r'"q\"\n\t\\é' + '\u2028"', '""']),
        (["v", None], pa.string_view(), ['"v"', "null"]),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), ['"0001-01-01"', '"9999-12-31"']),
        ([dt.time(1, 2, 3, 4)], pa.time64("us"), ['"01:02:03.000004"']),
        ([dt.datetime(2013, 1, 1, 5, 15, 0, 123456)], pa.timestamp("us"), ['"2013-01-01T05:15:00.123456"']),
        ([1], pa.timestamp("ns"), ['"1970-01-01T00:00:00.000000001"']),
        ([{"x": 1}, None, {"x": None}], pa.struct([("x", INT)]), ['{"x":1}', "null", '{"x":null}']),
        ([[1, None], None, []], pa.list_(INT), ["[1,null]", "null", "[]"]),
        ([[1, 2]], pa.list_(INT, 2), ["[1,2]"]),
        ([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), INT), ['{"a":1,"b":null}', "null", "{}"]),
        ([[(7, "x")]], pa.map_(INT, pa.string()), ['{"7":"x"}']),
        ([b"\x00\xff", None, b""], pa.binary(), ['"AP8="', "null", '""']),
        ([uuid.UUID(int=7).bytes, None], pa.uuid(), [f'"{uuid.UUID(int=7)}"', "null"]),
        ([[b"a", None]], pa.list_(pa.binary()), ['["YQ==",null]']),
        ([{"k": b"zz"}], pa.struct([("k", pa.binary())]), ['{"k":"eno="}']),
    ]:
        assert (kind, texts(values, kind)) == (kind, expected)
    assert texts(pa.array(["q", None, "q"]).dictionary_encode()) == ['"q"', "null", '"q"']
    assert texts(pa.RunEndEncodedArray.from_arrays([2, 3], ["q", None])) == ['"q"', '"q"', "null"]


def test_timestamps_are_written_in_utc_where_they_have_a_zone():
    naive = pa.array([dt.datetime(2013, 7, 1, 5, 15)], pa.timestamp("us"))
    assert texts(pc.assume_timezone(naive, "America/New_York")) == ['"2013-07-01T09:15:00Z"']
    assert texts(naive) == ['"2013-07-01T05:15:00"']


@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1), st.integers(0, 5))
def test_binary_survives_both_text_forms_and_slicing(values, skip):
    array = pa.array(values, pa.binary()).slice(min(skip, len(values) - 1))
    kept = values[min(skip, len(values) - 1) :]
    encoded = [json.loads(text) for text in texts(array)]
    assert [None if v is None else base64.b64decode(v, validate=True) for v in encoded] == kept
    hexed = [json.loads(text) for text in texts(array, binary="HEX")]
    assert [None if v is None else bytes.fromhex(v) for v in hexed] == kept


def test_numbers_that_json_lacks_are_refused_or_become_null_and_bytes_that_utf8_lacks_are_refused():
    assert texts([b"\xc3\xa9"], pa.binary(), binary="UTF-8") == ['"é"']
    refused(EncodingError, lambda one: texts([one], pa.binary(), binary="UTF-8"), [b"\xff"], "'c'")
    bad = [float("nan"), float("inf"), float("-inf")]
    refused(EncodingError, lambda one: texts([1.0, one]), bad, "'c'", "row 1")
    refused(EncodingError, lambda one: texts([{"x": one}], pa.struct([("x", pa.float64())])), bad, "c.x")
    assert texts([1.0, *bad, None], non_finite="null") == ["1.0", "null", "null", "null", "null"]


def test_tables_and_types_that_no_line_can_hold_are_refused_and_no_rows_are_no_bytes():
    one = pa.array([1])
    duration = pa.array([dt.timedelta(seconds=1)], pa.duration("s"))
    odd_keys = pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", INT)]), INT))
    refused(EncodingError, texts, [duration, odd_keys, pa.array([{}], pa.struct([]))], "'c'")
    refused(EncodingError, encode_ndjson, [pa.table({"id": [1], "ID": [2]})], "'id' and 'ID'", "same column")
    refused(EncodingError, encode_ndjson, [pa.table({})], "no columns")
    for name in ("n", "é"):
        two, three = [name] * 2, ["id", *[name] * 2]
        doubles = [pa.Table.from_arrays([one] * len(names), names) for names in (two, three)]
        refused(EncodingError, encode_ndjson, doubles, "same column")
        doubled = pa.StructArray.from_arrays([one] * 3, three)
        refused(EncodingError, texts, [doubled], f"two fields {name!r}")
    assert encode_ndjson(pa.table({"a": pa.array([], INT)})) == b""
    refused(ConfigurationError, lambda o: NdjsonOptions(**o), [{"binary": "base64"}, {"non_finite": "zero"}])


def test_nulls_are_written_or_left_out_and_a_slice_like_the_rows_it_holds():
    table = pa.table({"a": [1, None], "b": pa.array([None, "x"])})
    assert encode_ndjson(table) == b'{"a":1,"b":null}\n{"a":null,"b":"x"}\n'
    assert encode_ndjson(table, NdjsonOptions(explicit_nulls=False)) == b'{"a":1}\n{"b":"x"}\n'
    maps = pa.array([[("k", i)] for i in range(10)], pa.map_(pa.string(), INT))
    table = pa.table({"a": list(range(10)), "l": [[i] for i in range(10)], "m": maps})
    rows = b"".join(encode_ndjson(table).splitlines(keepends=True)[3:7])
    assert encode_ndjson(table.slice(3, 4)) == rows
    some = pa.array([[("k", 1)], None, [("k", 2)], [], None], maps.type)
    assert texts(some.slice(1)) == ["null", '{"k":2}', "{}", "null"]
    assert encode_ndjson(table.slice(3, 4).to_batches()[0]) == rows


DAY = 86_400
UNITS = [("s", 1), ("ms", 1000), ("us", 10**6)]
OUTSIDE = [
    (pa.date32(), [-719_529, 2_932_897, 2**31 - 1, -(2**31)]),
    (pa.date64(), [-719_529 * DAY * 1000, 2_932_897 * DAY * 1000, 2**63 - 1, -(2**63)]),
    *((pa.time32(unit), [DAY * many, -1]) for unit, many in UNITS[:2]),
    *((pa.time64(unit), [DAY * many, -1, 2**63 - 1]) for unit, many in [UNITS[2], ("ns", 10**9)]),
    *(
        (pa.timestamp(unit, zone), [-719_529 * DAY * many, 2_932_897 * DAY * many, 2**63 - 1, -(2**63)])
        for unit, many in UNITS
        for zone in (None, "UTC", "Asia/Tokyo")
    ),
]


@pytest.mark.parametrize(("kind", "numbers"), OUTSIDE, ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_a_date_or_time_beyond_the_calendar_is_refused_or_null_and_never_an_errors_text(
    kind, numbers, nested
):
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    for number in numbers:
        values = pa.array([0, number, None], whole).view(kind)
        if nested:
            values = pa.array([[one] for one in values], pa.list_(kind))
        with pytest.raises(EncodingError, match=rf"'c.*{number}.*row 1"):
            texts(values)
        first, bad, empty = texts(values, non_finite="null")
        assert {bad, empty} == ({"[null]"} if nested else {"null"})
        assert first != bad


def test_the_first_and_the_last_of_the_calendar_and_of_a_day_are_written():
    for kind, numbers, expected in [
        (pa.date32(), [-719_528, 2_932_896], ['"0000-01-01"', '"9999-12-31"']),
        (pa.time64("ns"), [0, DAY * 10**9 - 1], ['"00:00:00"', '"23:59:59.999999999"']),
        (pa.timestamp("s"), [-719_528 * DAY], ['"0000-01-01T00:00:00"']),
        (pa.timestamp("us", "UTC"), [2_932_897 * DAY * 10**6 - 1], ['"9999-12-31T23:59:59.999999Z"']),
        (pa.timestamp("ns"), [2**63 - 1], ['"2262-04-11T23:47:16.854775807"']),
    ]:
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        assert texts(pa.array(numbers, whole).view(kind)) == expected
