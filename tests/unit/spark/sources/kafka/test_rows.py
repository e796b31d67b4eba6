import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.values import RowWriter
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset


def _writer(run="", **changes):
    values = {"kind": "kafka", "bootstrap_servers": "a:9092", "topics": ["orders"], **changes}
    return RowWriter(source_spec(values), "orders", 3, SourceSecrets(), run)


def _records(values, first=10, **columns):
    count = len(values)
    return Records(
        np.arange(first, first + count, dtype=np.int64),
        pa.array(values, pa.large_binary()),
        pa.array(columns.get("timestamps", [1700000000123] * count), pa.int64()),
        pa.array([False] * count),
        pa.array(columns.get("keys", [b"k"] * count), pa.large_binary()),
        columns.get("headers", [None] * count),
    )


def _rows(part):
    body = bytes(part.body)
    assert body.endswith(b"\n")
    lines = body[:-1].split(b"\n")
    assert len(lines) == part.rows
    return [json.loads(line) for line in lines]


def test_json_objects_are_passed_on_byte_by_byte():
    part = _writer().part(_records([b'{"A": 1.10, "B": "\xc3\xa4"}', b'{"A":2}']))

    assert bytes(part.body) == b'{"A": 1.10, "B": "\xc3\xa4"}\n{"A":2}\n'
    assert (str(part.start), str(part.end), part.rows) == ("10", "11", 2)


def test_json_over_several_lines_becomes_one_line():
    part = _writer().part(_records([b' {\n "A": "x\\ny",\r\n "B": 1\n}\n']))

    assert _rows(part) == [{"A": "x\ny", "B": 1}]


@pytest.mark.parametrize(
    "value", [b"[1]", b"1", b'"{}"', b"{", b"}", b"", b"  ", b"null", b'{"A":1', b"\xff"]
)
def test_value_that_is_no_object_is_no_row_and_keeps_its_bytes_key_headers_and_position(value):
    def details(offset):
        return f"key-{offset}".encode(), [("h", b"x")]

    part = _writer().part(replace(_records([b'{"A":1}', value, b'{"A":3}']), details=details))

    assert (bytes(part.body), part.rows) == (b'{"A":1}\n{"A":3}\n', 2)
    (lost,) = part.undecoded
    assert (lost.payload, str(lost.position), lost.key, lost.headers) == (
        value,
        "11",
        b"key-11",
        (("h", b"x"),),
    )
    assert "topic 'orders', partition 3: the value at offset 11" in lost.reason
    assert [str(part.positions(row)) for row in range(2)] == ["10", "12"]


def test_json_with_the_head_of_a_schema_registry_is_read_without_it():
    head = b"\x00\x00\x00\x01\x07"
    values = [head + b'{"A":1}', b'{"A":2}', None, head + b'{\n"A":4}', head]

    part = _writer(tombstones="null", metadata=["offset"]).part(_records(values))

    assert _rows(part) == [
        {"KAFKA_OFFSET": 10, "A": 1},
        {"KAFKA_OFFSET": 11, "A": 2},
        {"KAFKA_OFFSET": 12},
        {"KAFKA_OFFSET": 13, "A": 4},
    ]
    (empty,) = part.undecoded
    assert (str(empty.position), empty.payload) == ("14", head)
    one = _writer(value_column="V").part(_records([head + b"[1]", b"2"]).slice(0, 2))
    assert bytes(one.body) == b'{"V":[1]}\n{"V":2}\n'


def test_any_json_goes_into_a_value_column():
    part = _writer(value_column='V"').part(_records([b"[1,\n2]", b'{"A":1}', b"null", b"1.10"]))

    assert bytes(part.body) == b'{"V\\"":[1, 2]}\n{"V\\"":{"A":1}}\n{"V\\"":null}\n{"V\\"":1.10}\n'
    (lost,) = _writer(value_column="V").part(_records([b'1,"X":2'])).undecoded
    assert "offset 10 (7 bytes) is no JSON" in lost.reason


def test_text_and_bytes_go_into_a_value_column():
    assert _rows(_writer(value_format="text", value_column="T").part(_records(['ä\n"'.encode()]))) == [
        {"T": 'ä\n"'}
    ]
    assert _rows(_writer(value_format="bytes", value_column="B").part(_records([b"\xff\x00"]))) == [
        {"B": "/wA="}
    ]
    part = _writer(value_format="text", value_column="T").part(_records([b"a", b"\xff", b"c"]))
    assert _rows(part) == [{"T": "a"}, {"T": "c"}]
    (lost,) = part.undecoded
    assert "offset 11 (1 bytes) is not UTF-8" in lost.reason


def test_metadata_columns_come_before_the_fields_of_the_value():
    writer = _writer(
        metadata={
            "T": "topic",
            "P": "partition",
            "O": "offset",
            "AT": "timestamp",
            "K": "key",
            "H": "headers",
            "R": "run_id",
        },
        run="r1",
    )
    part = writer.part(
        _records(
            [b'{"A":1}', b" { } "],
            timestamps=[1700000000123, None],
            keys=[b"k1", None],
            headers=[[("a", b"x"), ("a", b"\xff"), ("b", None)], None],
        )
    )

    assert writer.fields == {"topic", "partition", "offset", "timestamp", "key", "headers", "run_id"}
    assert _rows(part) == [
        {
            "T": "orders",
            "P": 3,
            "O": 10,
            "AT": "2023-11-14T22:13:20.123Z",
            "K": "k1",
            "H": [{"key": "a", "value": "x"}, {"key": "a", "base64": "/w=="}, {"key": "b"}],
            "R": "r1",
            "A": 1,
        },
        {"T": "orders", "P": 3, "O": 11, "R": "r1"},
    ]


def test_record_metadata_is_the_object_that_the_connector_writes():
    writer = _writer(value_column="RECORD_CONTENT", record_metadata="RECORD_METADATA")
    part = writer.part(_records([b'{"A":1}', b"2"], keys=[b"k", None], headers=[[("h", b"v")], None]))

    assert writer.fields == {"timestamp", "key", "headers"}
    assert _rows(part) == [
        {
            "RECORD_METADATA": {
                "topic": "orders",
                "partition": 3,
                "offset": 10,
                "CreateTime": 1700000000123,
                "key": "k",
                "headers": {"h": "v"},
            },
            "RECORD_CONTENT": {"A": 1},
        },
        {
            "RECORD_METADATA": {
                "topic": "orders",
                "partition": 3,
                "offset": 11,
                "CreateTime": 1700000000123,
            },
            "RECORD_CONTENT": 2,
        },
    ]


def test_binary_keys_are_base64_or_refused():
    assert _rows(_writer(metadata=["key"], key_format="bytes").part(_records([b"{}"], keys=[b"\xff"]))) == [
        {"KAFKA_KEY": "/w=="}
    ]
    with pytest.raises(EncodingError, match=r"is not UTF-8: use key_format='bytes'"):
        _writer(metadata=["key"]).part(_records([b"{}"], keys=[b"\xff"]))


def test_tombstones_are_dropped_or_loaded_or_refused():
    values = [None, b'{"A":1}', None]

    dropped = _writer(tombstones="drop", metadata=["offset"]).part(_records(values))
    assert (_rows(dropped), str(dropped.start), str(dropped.end)) == (
        [{"KAFKA_OFFSET": 11, "A": 1}],
        "10",
        "12",
    )
    nothing = _writer(tombstones="drop").part(_records([None, None]))
    assert (nothing.rows, str(nothing.start), str(nothing.end)) == (0, "10", "11")
    assert _rows(_writer(tombstones="null").part(_records(values))) == [{}, {"A": 1}, {}]
    assert _rows(_writer(tombstones="null", value_column="V").part(_records([None]))) == [{"V": None}]
    text = _writer(tombstones="null", value_column="V", value_format="text").part(_records([None, b""]))
    assert _rows(text) == [{"V": None}, {"V": ""}]
    with pytest.raises(EncodingError, match=r"offset 10 is a tombstone.*tombstones='drop'"):
        _writer().part(_records(values))


def test_records_are_divided_by_bytes_and_rows_and_never_inside_one():
    records = _records([b"x" * 10, b"x" * 10, b"x" * 50, b"", b"x"], first=100)

    assert [list(piece.offsets) for piece in records.pieces(20, 100)] == [[100, 101], [102], [103, 104]]
    assert [list(piece.offsets) for piece in records.pieces(1000, 2)] == [[100, 101], [102, 103], [104]]
    assert [list(piece.offsets) for piece in records.slice(1, 5).pieces(60, 9)] == [[101, 102, 103], [104]]


SCHEMA = b'{"type":"struct","fields":[{"type":"int64","field":"A"}],"optional":false}'


def _enveloped(payload, schema=SCHEMA):
    return b'{"schema":%b,"payload":%b}' % (schema, payload)


@pytest.mark.parametrize(
    "value",
    [
        _enveloped(b'{"A":1}'),
        b' {\n "payload" : {"A": 1}, "schema" : {"type": "struct", "fields": []} } ',
        _enveloped(b"null"),
    ],
)
def test_first_record_in_the_envelope_of_kafka_connect_is_refused_with_the_choice(value):
    with pytest.raises(EncodingError, match=r"offset 11 .*connect_envelope"):
        _writer(tombstones="drop").part(_records([None, value, b'{"A":1}']))


@pytest.mark.parametrize(
    "value",
    [
        b'{"schema":"public","payload":{"A":1}}',
        b'{"schema":{"type":"struct"},"payload":{},"more":1}',
        b'{"payload":{"A":1}}',
        b'{"schema":{"name":"x"},"payload":1}',
        b'{"schema":{"type":"struct"},"payload":',
    ],
)
def test_columns_that_are_called_schema_and_payload_are_no_envelope(value):
    assert _writer().part(_records([value, b"{}"])).start == IntegerOffset(10)


def test_payloads_are_loaded_byte_by_byte_where_the_source_requests_it():
    other = b'{"type":"struct","name":"v2 \\"}","fields":[]}'
    head = b"\x00\x00\x00\x00\x05"
    values = [
        _enveloped(b'{"A":1.10,"B":"}"}'),
        _enveloped(b'{"A":2}', other),
        b' { "schema" : {"type":"int32"} , "payload" : {"A": 3} } ',
        None,
        _enveloped(b'{"A":4}'),
        _enveloped(b'{"A":5}', b"null"),
        head + _enveloped(b'{"A":6}'),
    ]

    part = _writer(connect_envelope=True, tombstones="null").part(_records(values))

    lines = [line.strip() for line in bytes(part.body).splitlines()]
    assert lines == [
        b'{"A":1.10,"B":"}"}', b'{"A":2}', b'{"A": 3}', b"{}", b'{"A":4}', b'{"A":5}', b'{"A":6}',
    ]  # fmt: skip


def test_record_without_the_envelope_cannot_be_decoded_where_the_source_requires_it():
    values = [b'{"A":1}', _enveloped(b'{"A":2}'), _enveloped(b"1"), b'{"schema":{,"payload":{}}']

    part = _writer(connect_envelope=True).part(_records(values))

    assert _rows(part) == [{"A": 2}]
    assert [(str(one.position), one.payload) for one in part.undecoded] == [
        ("10", values[0]), ("12", values[2]), ("13", values[3]),
    ]  # fmt: skip


def test_envelope_that_the_source_disclaims_is_loaded_as_it_is():
    assert _rows(_writer(connect_envelope=False).part(_records([_enveloped(b"{}")])))[0].keys() == {
        "schema",
        "payload",
    }
