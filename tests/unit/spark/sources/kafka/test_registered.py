"""Avro and Protobuf values, written by the libraries that writers use, read through a registry over HTTP."""

import base64
import io
import json
import struct
import sys
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.values import RowWriter
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.row_values import columns_of_rows
from tests.jumping_time import JumpingTime
from tests.schema_registry import RegistryService

pytest.importorskip("confluent_kafka.schema_registry", reason="the extra 'kafka' is not installed")
fastavro = pytest.importorskip("fastavro", reason="the extra 'kafka' is not installed")

FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "ID", "type": "long"},
        {"name": "PRICE", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "AT", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "NOTE", "type": ["null", "string"], "default": None},
    ],
}
SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "TAGS", "type": {"type": "array", "items": "string"}}],
}
ROW = {
    "ID": 9007199254740993,
    "PRICE": Decimal("1.10"),
    "AT": datetime(2026, 1, 31, 6, 0, 0, 123456, tzinfo=UTC),
    "NOTE": 'ä"',
}


@pytest.fixture(scope="module")
def registry():
    with RegistryService() as service:
        service.add(1, json.dumps(FIRST), "AVRO")
        service.add(70000, json.dumps(SECOND), "AVRO")
        service.add(3, '"string"', "AVRO")
        yield service


def _avro(number, schema, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return b"\0" + struct.pack(">I", number) + out.getvalue()


def _part(registry, values, kind="avro", secrets=None, **changes):
    spec = source_spec(
        {
            "kind": "kafka",
            "bootstrap_servers": "a:9092",
            "topics": ["orders"],
            "value_format": kind,
            "schema_registry_url": registry if isinstance(registry, str) else registry.url,
            **changes,
        }
    )
    records = Records(np.arange(10, 10 + len(values)), pa.array(values, pa.large_binary()))
    return RowWriter(spec, "orders", 3, SourceSecrets(secrets or {})).part(records)


def _lines(part):
    return [json.loads(line, parse_float=Decimal) for line in bytes(part.body).splitlines()]


def test_types_of_avro_schemas_make_the_columns(registry):
    part = _part(registry, [_avro(1, FIRST, ROW), _avro(70000, SECOND, {**ROW, "TAGS": ["x"]})])

    columns = columns_of_rows(bytes(part.body).splitlines(), part.types)

    assert [(one.name, one.type) for one in columns] == [
        ("ID", "NUMBER(38,0)"),
        ("PRICE", "NUMBER(9,2)"),
        ("AT", "TIMESTAMP_TZ(9)"),
        ("NOTE", "VARCHAR(16777216)"),
        ("TAGS", "VARIANT"),
    ]


def test_avro_records_become_rows_with_every_digit(registry):
    (row,) = _lines(_part(registry, [_avro(1, FIRST, ROW)]))

    assert row == {
        "ID": 9007199254740993,
        "PRICE": Decimal("1.10"),
        "AT": "2026-01-31T06:00:00.123456Z",
        "NOTE": 'ä"',
    }


def test_schemas_that_alternate_keep_the_order_of_the_records(registry):
    values = [
        _avro(1, FIRST, {**ROW, "ID": number})
        if number % 3
        else _avro(70000, SECOND, {**ROW, "ID": number, "TAGS": ["a"]})
        for number in range(100)
    ]
    values.insert(50, None)

    rows = _lines(_part(registry, values, tombstones="null", metadata=["offset"]))

    assert [row.get("ID") for row in rows] == [*range(50), None, *range(50, 100)]
    assert [row["KAFKA_OFFSET"] for row in rows] == list(range(10, 111))
    assert [row["ID"] for row in rows if "TAGS" in row] == list(range(0, 100, 3))


@pytest.mark.parametrize("value", [b'{"A":1}', b"", b"\0\0\0", b"\1\0\0\0\1x"], ids=repr)
def test_value_without_the_wire_formats_head_is_no_row_and_the_others_are(registry, value):
    part = _part(
        registry, [_avro(1, FIRST, ROW), value, _avro(1, FIRST, {**ROW, "ID": 2})], metadata=["offset"]
    )

    assert [(row["KAFKA_OFFSET"], row["ID"]) for row in _lines(part)] == [(10, ROW["ID"]), (12, 2)]
    (lost,) = part.undecoded
    assert (str(lost.position), lost.payload) == ("11", value)
    assert "wire format" in lost.reason


def test_values_that_their_schema_cannot_read_are_no_rows_and_the_others_are(registry):
    head = b"\0" + struct.pack(">I", 1)
    good = [_avro(1, FIRST, {**ROW, "ID": number}) for number in range(3)]
    values = [good[0], head + b"\x02", _avro(9, FIRST, ROW), good[1], _avro(3, "string", "x"), None, good[2]]

    part = _part(registry, values, tombstones="null", metadata=["offset"])

    assert [row.get("ID") for row in _lines(part)] == [0, 1, None, 2]
    assert [row["KAFKA_OFFSET"] for row in _lines(part)] == [10, 13, 15, 16]
    assert [(str(one.position), one.payload) for one in part.undecoded] == [
        ("11", values[1]), ("12", values[2]), ("14", values[4]),
    ]  # fmt: skip
    assert ["schema 1" in part.undecoded[0].reason, "HTTP 404" in part.undecoded[1].reason] == [True, True]


def test_value_with_bytes_to_spare_does_not_shift_the_values_behind_it(registry):
    """Read as one block, a value with a byte too many would lend it to the next."""
    values = [_avro(1, FIRST, {**ROW, "ID": 1}) + b"\x02", _avro(1, FIRST, {**ROW, "ID": 2})]

    part = _part(registry, values)

    assert [row["ID"] for row in _lines(part)] == [2]
    assert [str(one.position) for one in part.undecoded] == ["10"]


def test_registry_with_a_password_takes_it_from_the_secrets():
    with RegistryService("loader:hunter2") as service:
        service.add(1, json.dumps(FIRST), "AVRO")
        secrets = {"schema.registry.basic.auth.user.info": "loader:hunter2"}
        assert len(_lines(_part(service, [_avro(1, FIRST, ROW)], secrets=secrets))) == 1
        with pytest.raises(AuthenticationError, match=r"refused \(HTTP 401\)") as caught:
            _part(
                service,
                [_avro(1, FIRST, ROW)],
                secrets={"schema.registry.basic.auth.user.info": "loader:wrong1"},
            )
        assert "wrong1" not in str(caught.value)


def test_registry_that_does_not_run_is_named_in_time(monkeypatch):
    client = pytest.importorskip("confluent_kafka.schema_registry").SchemaRegistryClient
    monkeypatch.setattr(sys.modules[client.__module__], "time", JumpingTime())
    with pytest.raises(SourceUnavailableError, match=r"schema registry http://127.0.0.1:1: schema 1"):
        _part("http://127.0.0.1:1", [_avro(1, FIRST, ROW)])


def test_protobuf_messages_become_their_own_json(registry):
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from google.protobuf.timestamp_pb2 import DESCRIPTOR, Timestamp

    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    message = file.message_type.add(name="Order")
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name="order_id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=optional)
    message.field.add(name="note", number=2, type=FieldDescriptorProto.TYPE_STRING, label=optional)
    message.field.add(
        name="at",
        number=3,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=optional,
    )
    line = message.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING, label=optional)
    registry.add(5, "", "PROTOBUF", serialized=base64.b64encode(file.SerializeToString()).decode())
    pool = DescriptorPool()
    pool.AddSerializedFile(DESCRIPTOR.serialized_pb)
    pool.Add(file)
    order = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(order_id=9007199254740993, note="ä")
    order.at.ParseFromString(Timestamp(seconds=1700000000, nanos=5000).SerializeToString())
    nested = GetMessageClass(pool.FindMessageTypeByName("shop.Order.Line"))(sku="x")
    head = b"\0" + struct.pack(">I", 5)

    part = _part(
        registry,
        [
            head + b"\x02\x02" + order.SerializeToString(),
            head + b"\x04\x02\x00" + nested.SerializeToString(),
        ],
        "protobuf",
    )

    assert part.types == {"order_id": "NUMBER(38,0)", "at": "TIMESTAMP_TZ(9)"}
    assert _lines(part) == [
        {"order_id": "9007199254740993", "note": "ä", "at": "2023-11-14T22:13:20.000005Z"},
        {"sku": "x"},
    ]
    bad = _part(
        registry, [head + b"\x00\xff\xff", head + b"\x02\x02" + order.SerializeToString()], "protobuf"
    )
    assert [row["note"] for row in _lines(bad)] == ["ä"]
    assert [str(one.position) for one in bad.undecoded] == ["10"]


def test_a_message_without_a_json_form_spoils_no_other_and_google_types_make_one_value(registry):
    from google.protobuf import any_pb2, struct_pb2, timestamp_pb2
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    date = FileDescriptorProto(name="google/type/date.proto", package="google.type", syntax="proto3")
    decimal = FileDescriptorProto(
        name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3"
    )
    optional, kinds = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto
    for file, name, fields in (
        (date, "Date", [("year", kinds.TYPE_INT32), ("month", kinds.TYPE_INT32), ("day", kinds.TYPE_INT32)]),
        (decimal, "Decimal", [("value", kinds.TYPE_BYTES), ("scale", kinds.TYPE_INT32)]),
    ):
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, start=1):
            message.field.add(name=field, number=number, type=kind, label=optional)
    file = FileDescriptorProto(name="event.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Event")
    names = ("protobuf.Timestamp", "protobuf.Value", "protobuf.Any", "type.Date", "Decimal")
    for number, (field, name) in enumerate(
        zip(("at", "v", "any", "day", "price"), names, strict=True), start=1
    ):
        full = ".confluent.type.Decimal" if name == "Decimal" else f".google.{name}"
        message.field.add(name=field, number=number, type=kinds.TYPE_MESSAGE, type_name=full, label=optional)
    pool = DescriptorPool()
    for module in (any_pb2, struct_pb2, timestamp_pb2):
        file.dependency.append(module.DESCRIPTOR.name)
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    references = []
    for number, one in enumerate((date, decimal), start=301):
        file.dependency.append(one.name)
        registry.add(number, "", "PROTOBUF", serialized=base64.b64encode(one.SerializeToString()).decode())
        registry.subjects[one.package, 1] = number
        references.append({"name": one.name, "subject": one.package, "version": 1})
        pool.Add(one)
    registry.add(
        300,
        "",
        "PROTOBUF",
        serialized=base64.b64encode(file.SerializeToString()).decode(),
        references=references,
    )
    pool.Add(file)
    event = GetMessageClass(pool.FindMessageTypeByName("shop.Event"))
    values = [
        event(day={"year": 2024, "month": 2, "day": 29}, price={"value": b"\x04\xba\xe9\xc0", "scale": 2})
    ]
    values += [event(day={"year": 2024}), event(any={"type_url": "x/no.such.Type", "value": b"1"})]
    late, unclear = event(), event()
    late.at.seconds, unclear.v.number_value = 253402300800, float("nan")
    values += [late, unclear, event(day={"year": 2024, "month": 3, "day": 1})]
    head = b"\0" + struct.pack(">I", 300) + b"\0"

    part = _part(registry, [head + one.SerializeToString() for one in values], "protobuf")

    assert _lines(part) == [{"day": "2024-02-29", "price": "793584.00"}, {"day": "2024-03-01"}]
    assert [str(one.position) for one in part.undecoded] == ["11", "12", "13", "14"]
    assert part.types | {"day": "DATE", "at": "TIMESTAMP_TZ(9)"} == part.types
