"""Avro and Protobuf values, written by the libraries that writers use, read through a registry over HTTP."""

import base64
import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from airflow_provider_snowpipe.streaming.errors import AuthenticationError, SourceUnavailableError
from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
from tests.jumping_time import JumpingTime
from tests.schema_registry import RegistryService
from tests.unit.spark.sources.kafka.conftest import avro_value, head, part_of, rows_of_part, undecoded

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


def test_registry_with_a_password_takes_it_from_the_secrets():
    def rows(service, password):
        secrets = {"schema.registry.basic.auth.user.info": f"loader:{password}"}
        return rows_of_part(part_of([_first()], service.url, secrets, value_format="avro"))

    with RegistryService("loader:hunter2") as service:
        service.add(1, json.dumps(FIRST), "AVRO")
        assert len(rows(service, "hunter2")) == 1
        with pytest.raises(AuthenticationError, match=r"refused \(HTTP 401\)") as caught:
            rows(service, "wrong1")
    assert "wrong1" not in str(caught.value)


def test_registry_that_does_not_run_is_named_in_time(monkeypatch):
    client = pytest.importorskip("confluent_kafka.schema_registry").SchemaRegistryClient
    monkeypatch.setattr(sys.modules[client.__module__], "time", JumpingTime())
    with pytest.raises(SourceUnavailableError, match=r"schema registry http://127.0.0.1:1: schema 1"):
        part_of([_first()], "http://127.0.0.1:1", value_format="avro")


class TestProtobuf:
    @pytest.fixture
    def proto(self, registry):
        return Proto(registry)

    def test_messages_become_their_own_json(self, registry, proto):
        file = proto.file(
            "order.proto", "shop", {"Other": {}, "Order": ORDER}, "google/protobuf/timestamp.proto"
        )
        file.message_type[1].nested_type.add(name="Line").CopyFrom(proto.message("Line", {"sku": "string"}))
        proto.register(file, 5)
        order = proto.make(
            "shop.Order", order_id=9007199254740993, note="ä", at={"seconds": 1700000000, "nanos": 5000}
        )
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
        self.registry.add(
            number, "", "PROTOBUF", serialized=base64.b64encode(file.SerializeToString()).decode(), **more
        )
        self.pool.Add(file)

    def make(self, name, **fields):
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields).SerializeToString()
