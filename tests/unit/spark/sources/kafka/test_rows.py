"""Values of records without a registry: which rows they are, and which are none."""

import json
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.streaming.errors import EncodingError
from tests.unit.spark.sources.kafka.conftest import part_of, records_of, rows_of_part, undecoded, writer

HEAD = b"\x00\x00\x00\x01\x07"


class TestJson:
    def test_objects_are_passed_on_byte_by_byte_each_in_one_line(self):
        part = part_of([b'{"A": 1.10, "B": "\xc3\xa4"}', b' {\n "A": "x\\ny",\r\n "B": 1\n}\n'])
        first, second, _ = bytes(part.body).split(b"\n")
        assert (first, json.loads(second)) == (b'{"A": 1.10, "B": "\xc3\xa4"}', {"A": "x\ny", "B": 1})
        assert (str(part.start), str(part.end), part.rows) == ("10", "11", 2)

    def test_that_is_no_object_is_no_row_and_keeps_its_bytes_key_headers_and_position(self):
        def details(offset):
            return f"key-{offset}".encode(), [("h", b"x")]

        bad = [b"[1]", b"1", b'"{}"', b"{", b"}", b"", b"  ", b"null", b'{"A":1', b"\xff"]
        part = writer().part(replace(records_of([b'{"A":1}', *bad, b'{"A":3}']), details=details))

        assert (bytes(part.body), part.rows) == (b'{"A":1}\n{"A":3}\n', 2)
        assert undecoded(part) == list(enumerate(bad, start=11))
        first = part.undecoded[0]
        assert (first.key, first.headers) == (b"key-11", (("h", b"x"),))
        assert "topic 'orders', partition 3: the value at offset 11" in first.reason
        assert [str(part.positions(row)) for row in range(2)] == ["10", "21"]

    def test_with_the_head_of_a_schema_registry_is_read_without_it(self):
        values = [HEAD + b'{"A":1}', b'{"A":2}', None, HEAD + b'{\n"A":4}', HEAD]
        part = part_of(values, tombstones="null", metadata=["offset"])
        rows = [(row["KAFKA_OFFSET"], row.get("A")) for row in rows_of_part(part)]
        assert rows == [(10, 1), (11, 2), (12, None), (13, 4)]
        assert undecoded(part) == [(14, HEAD)]
        one = writer(value_column="V").part(records_of([HEAD + b"[1]", b"2"]).slice(0, 2))
        assert bytes(one.body) == b'{"V":[1]}\n{"V":2}\n'

    def test_of_any_kind_goes_into_a_value_column(self):
        part = part_of([b"[1,\n2]", b'{"A":1}', b"null", b"1.10"], value_column='V"')
        assert bytes(part.body) == b'{"V\\"":[1, 2]}\n{"V\\"":{"A":1}}\n{"V\\"":null}\n{"V\\"":1.10}\n'
        (lost,) = part_of([b'1,"X":2'], value_column="V").undecoded
        assert "offset 10 (7 bytes) is no JSON" in lost.reason


def test_text_and_bytes_go_into_a_value_column():
    part = part_of(['ä\n"'.encode(), b"\xff", b"c"], value_format="text", value_column="T")
    assert rows_of_part(part) == [{"T": 'ä\n"'}, {"T": "c"}]
    (lost,) = part.undecoded
    assert "offset 11 (1 bytes) is not UTF-8" in lost.reason
    assert rows_of_part(part_of([b"\xff\x00"], value_format="bytes", value_column="B")) == [{"B": "/wA="}]


def test_metadata_columns_come_before_the_fields_of_the_value():
    fields = ["topic", "partition", "offset", "timestamp", "key", "headers", "run_id"]
    columns = dict(zip("TPOSKHR", fields, strict=True))
    made = writer(metadata=columns, run="r1")
    headers = [[("a", b"x"), ("a", b"\xff"), ("b", None)], None]
    times, keys = [1700000000123, None], [b"k1", None]

    part = made.part(records_of([b'{"A":1}', b" { } "], timestamps=times, keys=keys, headers=headers))

    assert made.fields == set(fields)
    shown = [{"key": "a", "value": "x"}, {"key": "a", "base64": "/w=="}, {"key": "b"}]
    first = {
        "T": "orders",
        "P": 3,
        "O": 10,
        "S": "2023-11-14T22:13:20.123Z",
        "K": "k1",
        "H": shown,
        "R": "r1",
    }
    assert rows_of_part(part) == [{**first, "A": 1}, {"T": "orders", "P": 3, "O": 11, "R": "r1"}]
    assert list(rows_of_part(part)[0]) == [*first, "A"]


def test_record_metadata_is_the_object_that_the_connector_writes():
    made = writer(value_column="RECORD_CONTENT", record_metadata="RECORD_METADATA")

    part = made.part(records_of([b'{"A":1}', b"2"], keys=[b"k", None], headers=[[("h", b"v")], None]))

    assert made.fields == {"timestamp", "key", "headers"}
    both = {"topic": "orders", "partition": 3, "CreateTime": 1700000000123}
    first = {**both, "offset": 10, "key": "k", "headers": {"h": "v"}}
    assert rows_of_part(part) == [
        {"RECORD_METADATA": first, "RECORD_CONTENT": {"A": 1}},
        {"RECORD_METADATA": {**both, "offset": 11}, "RECORD_CONTENT": 2},
    ]


def test_binary_keys_are_base64_or_refused():
    records = records_of([b"{}"], keys=[b"\xff"])
    part = writer(metadata=["key"], key_format="bytes").part(records)
    assert rows_of_part(part) == [{"KAFKA_KEY": "/w=="}]
    with pytest.raises(EncodingError, match=r"is not UTF-8: use key_format='bytes'"):
        writer(metadata=["key"]).part(records)


def test_tombstones_are_dropped_or_loaded_or_refused():
    values = [None, b'{"A":1}', None]

    dropped = part_of(values, tombstones="drop", metadata=["offset"])
    assert rows_of_part(dropped) == [{"KAFKA_OFFSET": 11, "A": 1}]
    nothing = part_of([None] * 3, tombstones="drop")
    assert {(str(one.start), str(one.end)) for one in (dropped, nothing)} == {("10", "12")}
    assert nothing.rows == 0
    assert rows_of_part(part_of(values, tombstones="null")) == [{}, {"A": 1}, {}]
    assert rows_of_part(part_of([None], tombstones="null", value_column="V")) == [{"V": None}]
    text = part_of([None, b""], tombstones="null", value_column="V", value_format="text")
    assert rows_of_part(text) == [{"V": None}, {"V": ""}]
    with pytest.raises(EncodingError, match=r"offset 10 is a tombstone.*tombstones='drop'"):
        part_of(values)


def test_records_are_divided_by_bytes_and_rows_and_never_inside_one():
    records = records_of([b"x" * 10, b"x" * 10, b"x" * 50, b"", b"x"], first=100)
    assert [list(piece.offsets) for piece in records.pieces(20, 100)] == [[100, 101], [102], [103, 104]]
    assert [list(piece.offsets) for piece in records.pieces(1000, 2)] == [[100, 101], [102, 103], [104]]
    assert [list(piece.offsets) for piece in records.slice(1, 5).pieces(60, 9)] == [[101, 102, 103], [104]]


SCHEMA = b'{"type":"struct","fields":[{"type":"int64","field":"A"}],"optional":false}'


def enveloped(payload, schema=SCHEMA):
    return b'{"schema":%b,"payload":%b}' % (schema, payload)


class TestEnvelopeOfKafkaConnect:
    def test_around_the_first_record_is_refused_with_the_choice(self):
        for value in [
            enveloped(b'{"A":1}'),
            b' {\n "payload" : {"A": 1}, "schema" : {"type": "struct", "fields": []} } ',
            enveloped(b"null"),
        ]:
            with pytest.raises(EncodingError, match=r"offset 11 .*connect_envelope"):
                part_of([None, value, b'{"A":1}'], tombstones="drop")

    def test_is_not_what_has_columns_called_schema_and_payload(self):
        for value in [
            b'{"schema":"public","payload":{"A":1}}',
            b'{"schema":{"type":"struct"},"payload":{},"more":1}',
            b'{"payload":{"A":1}}',
            b'{"schema":{"name":"x"},"payload":1}',
            b'{"schema":{"type":"struct"},"payload":',
        ]:
            assert str(part_of([value, b"{}"]).start) == "10"

    def test_is_left_out_byte_by_byte_where_the_source_requests_it(self):
        other = b'{"type":"struct","name":"v2 \\"}","fields":[]}'
        values = {
            enveloped(b'{"A":1.10,"B":"}"}'): b'{"A":1.10,"B":"}"}',
            enveloped(b'{"A":2}', other): b'{"A":2}',
            b' { "schema" : {"type":"int32"} , "payload" : {"A": 3} } ': b'{"A": 3}',
            None: b"{}",
            enveloped(b'{"A":4}'): b'{"A":4}',
            enveloped(b'{"A":5}', b"null"): b'{"A":5}',
            HEAD + enveloped(b'{"A":6}'): b'{"A":6}',
        }

        part = part_of(list(values), connect_envelope=True, tombstones="null")

        assert [line.strip() for line in bytes(part.body).splitlines()] == list(values.values())

    def test_that_is_missing_is_no_row_where_the_source_requires_it(self):
        values = [b'{"A":1}', enveloped(b'{"A":2}'), enveloped(b"1"), b'{"schema":{,"payload":{}}']
        part = part_of(values, connect_envelope=True)
        assert rows_of_part(part) == [{"A": 2}]
        assert undecoded(part) == [(10, values[0]), (12, values[2]), (13, values[3])]

    def test_is_loaded_as_it_is_where_the_source_disclaims_it(self):
        (row,) = rows_of_part(part_of([enveloped(b"{}")], connect_envelope=False))
        assert row.keys() == {"schema", "payload"}
