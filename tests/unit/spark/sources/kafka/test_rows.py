"""Values of records, with a registry and without one: which rows they are, and which are none."""

import base64
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
from tests.jumping_time import JumpingTime
from tests.schema_registry import RegistryService
from tests.unit.spark.sources.kafka.conftest import (
    avro_value,
    head,
    part_of,
    records_of,
    rows_of_part,
    undecoded,
    writer,
)

HEAD = b"\x00\x00\x00\x01\x07"


class TestJson:
    def test_objects_are_passed_on_byte_by_byte_each_in_one_line(self):
        part = part_of([b'{"A": 1.10, "B": "\xc3\xa4"}', b' {\n "A": "x\\ny",\r\n "B": 1\n}\n'])
        first, second, _ = bytes(part.body).split(b"\n")
        with pytest.raises(json.JSONDecodeError):
            rows_of_part(part_of([b'{"A": "x\ny"}']))
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
        assert "topic 'orders', partition 3: the record at offset 11" in first.reason
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
        assert bytes(part.body) == b'{"V\\"":[1,\t2]}\n{"V\\"":{"A":1}}\n{"V\\"":null}\n{"V\\"":1.10}\n'
        (lost,) = part_of([b'1,"X":2'], value_column="V").undecoded
        assert "offset 10 (7 bytes) is not JSON" in lost.reason


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
    first = {"T": "orders", "P": 3, "O": 10, "S": "2023-11-14T22:13:20.123Z", "K": "k1"}
    first |= {"H": shown, "R": "r1"}
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


def test_binary_keys_are_base64_and_metadata_without_a_form_spoils_no_other_record():
    records = records_of([b"{}", None, b"{}"], keys=[b"\xff", b"\xff", b"k"], timestamps=[0, 0, 1 << 60])
    given = {"metadata": ["key"], "tombstones": "null"}
    part = writer(key_format="bytes", **given).part(records)
    assert [row["KAFKA_KEY"] for row in rows_of_part(part)] == ["/w==", "/w==", "aw=="]
    part = writer(**given).part(records)
    assert rows_of_part(part) == [{"KAFKA_KEY": "k"}]
    assert undecoded(part) == [(10, b"{}"), (11, b"")]
    assert "key_format='bytes'" in part.undecoded[0].reason
    assert undecoded(writer(**{**given, "metadata": ["timestamp"]}).part(records)) == [(12, b"{}")]


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
    with pytest.raises(errors.EncodingError, match=r"offset 10 .*tombstones='drop'"):
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
            with pytest.raises(errors.EncodingError, match=r"offset 11 .*connect_envelope"):
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


pytest.importorskip("confluent_kafka.schema_registry", reason="the extra 'kafka' is not installed")

FIELDS = [
    {"name": "ID", "type": "long"},
    {"name": "PRICE", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "AT", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "NOTE", "type": ["null", "string"], "default": None},
]
FIRST = {"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS}
TAGS = {"name": "TAGS", "type": {"type": "array", "items": "string"}}
SECOND = {**FIRST, "fields": [*FIELDS, TAGS]}
AT = datetime(2026, 1, 31, 6, 0, 0, 123456, tzinfo=UTC)
ROW = {"ID": 9007199254740993, "PRICE": Decimal("1.10"), "AT": AT, "NOTE": 'ä"'}


@pytest.fixture(scope="module", autouse=True)
def schemas(registry):
    registry.add(1, json.dumps(FIRST), "AVRO")
    registry.add(70000, json.dumps(SECOND), "AVRO")
    registry.add(3, '"string"', "AVRO")


def _first(number=ROW["ID"]):
    return avro_value(1, FIRST, {**ROW, "ID": number})


def _second(number, *tags):
    return avro_value(70000, SECOND, {**ROW, "ID": number, "TAGS": [*tags]})


class TestAvro:
    @pytest.fixture
    def part(self, registry):
        return lambda values, **spec: part_of(values, registry.url, value_format="avro", **spec)

    def test_becomes_rows_with_every_digit_and_columns_of_its_types(self, part):
        found = part([_first(), _second(1, "x")])

        first, second = rows_of_part(found)
        assert first == {**ROW, "AT": "2026-01-31T06:00:00.123456Z"}
        assert second["TAGS"] == ["x"]
        columns = columns_of_rows(bytes(found.body).splitlines(), found.types)
        assert {one.name: one.type for one in columns} == {
            "ID": "NUMBER(38,0)",
            "PRICE": "NUMBER(9,2)",
            "AT": "TIMESTAMP_TZ(9)",
            "NOTE": "VARCHAR(16777216)",
            "TAGS": "VARIANT",
        }

    def test_of_schemas_that_alternate_keeps_the_order_of_the_records(self, part):
        values = [_first(number) if number % 3 else _second(number, "a") for number in range(100)]
        values.insert(50, None)
        rows = rows_of_part(part(values, tombstones="null", metadata=["offset"]))
        assert [row.get("ID") for row in rows] == [*range(50), None, *range(50, 100)]
        assert [row["KAFKA_OFFSET"] for row in rows] == list(range(10, 111))
        assert [row["ID"] for row in rows if "TAGS" in row] == list(range(0, 100, 3))

    def test_that_cannot_be_decoded_is_no_row_and_the_others_are(self, part):
        bad = {
            b'{"A":1}': "wire format",
            b"": "wire format",
            b"\0\0\0": "wire format",
            b"\1\0\0\0\1x": "wire format",
            head(1) + b"\x02": "schema 1",
            avro_value(9, FIRST, ROW): "HTTP 404",
            avro_value(3, "string", "x"): "",
            _first(1) + b"\x02": "",  # read as one block, it would lend its last byte to the next value
        }
        values = [_first(0), *bad, _first(2), None, _first(3)]

        found = part(values, tombstones="null", metadata=["offset"])

        rows = [(row["KAFKA_OFFSET"], row.get("ID")) for row in rows_of_part(found)]
        assert rows == [(10, 0), (19, 2), (20, None), (21, 3)]
        assert undecoded(found) == list(enumerate(bad, start=11))
        assert all(word in one.reason for one, word in zip(found.undecoded, bad.values(), strict=True))


@pytest.mark.parametrize("name", ["basic.auth.user.info", "bearer.auth.token"])
def test_registry_with_a_password_or_a_token_takes_it_from_the_secrets(name):
    def rows(service, password):
        secrets = {f"schema.registry.{name}": f"loader:{password}"}
        return rows_of_part(part_of([_first()], service.url, secrets, value_format="avro"))

    proof = "Basic bG9hZGVyOmh1bnRlcjI=" if "basic" in name else "Bearer loader:hunter2"
    with RegistryService(proof) as service:
        service.add(1, json.dumps(FIRST), "AVRO")
        assert len(rows(service, "hunter2")) == 1
        with pytest.raises(errors.AuthenticationError, match=r"refused \(HTTP 401\)") as caught:
            rows(service, "wrong1")
    assert "wrong1" not in str(caught.value)


def test_registry_that_does_not_run_is_named_in_time(monkeypatch):
    client = pytest.importorskip("confluent_kafka.schema_registry").SchemaRegistryClient
    monkeypatch.setattr(sys.modules[client.__module__], "time", JumpingTime())
    with pytest.raises(errors.SourceUnavailableError, match=r"http://127.0.0.1:1: schema 1: Conn\w+Error"):
        part_of([_first()], "http://127.0.0.1:1", value_format="avro")


class TestProtobuf:
    @pytest.fixture
    def proto(self, registry):
        return Proto(registry)

    def test_messages_become_their_own_json(self, registry, proto):
        timestamp = "google/protobuf/timestamp.proto"
        file = proto.file("order.proto", "shop", {"Other": {}, "Order": ORDER}, timestamp)
        file.message_type[1].nested_type.add(name="Line").CopyFrom(proto.message("Line", {"sku": "string"}))
        proto.register(file, 5)
        at = {"seconds": 1700000000, "nanos": 5000}
        order = proto.make("shop.Order", order_id=9007199254740993, note="ä", at=at)
        line = proto.make("shop.Order.Line", sku="x")
        good = head(5) + b"\x02\x02" + order

        part = part_of([good, head(5) + b"\x04\x02\x00" + line], registry.url, value_format="protobuf")

        assert part.types == {"order_id": "NUMBER(38,0)", "at": "TIMESTAMP_TZ(9)"}
        assert rows_of_part(part) == [
            {"order_id": "9007199254740993", "note": "ä", "at": "2023-11-14T22:13:20.000005Z"},
            {"sku": "x"},
        ]
        bad = part_of([head(5) + b"\x00\xff\xff", good], registry.url, value_format="protobuf")
        assert [row["note"] for row in rows_of_part(bad)] == ["ä"]
        assert [offset for offset, _ in undecoded(bad)] == [10]

    def test_messages_without_a_json_form_spoil_no_other_and_googles_types_make_one_value(
        self, registry, proto
    ):
        date = proto.file(
            "google/type/date.proto",
            "google.type",
            {"Date": dict.fromkeys(["year", "month", "day"], "int32")},
        )
        decimal = proto.file(
            "confluent/type/decimal.proto",
            "confluent.type",
            {"Decimal": {"value": "bytes", "scale": "int32"}},
        )
        for number, one in enumerate((date, decimal), start=301):
            proto.register(one, number)
            registry.subjects[one.package, 1] = number
        known = [f"google/protobuf/{name}.proto" for name in ("any", "struct", "timestamp")]
        file = proto.file("event.proto", "shop", {"Event": EVENT}, *known, date.name, decimal.name)
        references = [{"name": one.name, "subject": one.package, "version": 1} for one in (date, decimal)]
        proto.register(file, 300, references=references)
        price = {"value": b"\x04\xba\xe9\xc0", "scale": 2}
        values = [
            {"day": {"year": 2024, "month": 2, "day": 29}, "price": price},
            {"day": {"year": 2024}},
            {"any": {"type_url": "x/no.such.Type", "value": b"1"}},
            {"at": {"seconds": 253402300800}},
            {"v": {"number_value": float("nan")}},
            {"day": {"year": 2024, "month": 3, "day": 1}},
        ]

        events = [head(300) + b"\0" + proto.make("shop.Event", **one) for one in values]
        part = part_of(events, registry.url, value_format="protobuf")

        assert rows_of_part(part) == [{"day": "2024-02-29", "price": "793584.00"}, {"day": "2024-03-01"}]
        assert [offset for offset, _ in undecoded(part)] == [11, 12, 13, 14]
        assert "month" in part.undecoded[0].reason
        assert part.types | {"day": "DATE", "at": "TIMESTAMP_TZ(9)"} == part.types


ORDER = {"order_id": "int64", "note": "string", "at": ".google.protobuf.Timestamp"}
EVENT = {
    "at": ".google.protobuf.Timestamp",
    "v": ".google.protobuf.Value",
    "any": ".google.protobuf.Any",
    "day": ".google.type.Date",
    "price": ".confluent.type.Decimal",
}


class Proto:
    """Files of Protobuf: written, registered, and the messages of them."""

    def __init__(self, registry):
        from google.protobuf import any_pb2, struct_pb2, timestamp_pb2
        from google.protobuf.descriptor_pool import DescriptorPool

        self.registry, self.pool = registry, DescriptorPool()
        for module in (any_pb2, struct_pb2, timestamp_pb2):
            self.pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)

    def message(self, name, fields):
        """A message of optional fields, each of a primitive type or of a message's with a dot."""
        from google.protobuf.descriptor_pb2 import DescriptorProto

        made = DescriptorProto(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            of_type = "MESSAGE" if kind.startswith(".") else kind.upper()
            made.field.add(
                name=field,
                number=number,
                type=f"TYPE_{of_type}",
                label="LABEL_OPTIONAL",
                type_name=kind if kind.startswith(".") else None,
            )
        return made

    def file(self, name, package, messages, *dependencies):
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        file = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=dependencies)
        file.message_type.extend(self.message(*one) for one in messages.items())
        return file

    def register(self, file, number, **more):
        serialized = base64.b64encode(file.SerializeToString()).decode()
        self.registry.add(number, "", "PROTOBUF", serialized=serialized, **more)
        self.pool.Add(file)

    def make(self, name, **fields):
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields).SerializeToString()
