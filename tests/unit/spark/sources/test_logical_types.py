"""What schemas say of values, in every framing: envelope, schema registry and file."""

import json
import uuid
from decimal import Decimal

import pytest

from airflow_provider_snowpipe.spark.sources.files.avro_format import rows_of
from airflow_provider_snowpipe.spark.sources.logical_types import connect_of_json_schema, json_types
from airflow_provider_snowpipe.streaming.errors import EncodingError
from tests.unit.spark.sources.kafka.conftest import head, part_of, registry, rows_of_part, undecoded

pytest.importorskip("fastavro", reason="the extra 'kafka' is not installed")

__all__ = ["registry"]

CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium."
SCALED = {"parameters": {"scale": "2"}}
TYPES = [  # the schema's type and name, the value as JSON has it, the row's value, the column's type
    ("int32", f"{CONNECT}Date", 19782, "2024-02-29", "DATE"),
    ("int32", f"{CONNECT}Time", 45296000, "12:34:56", "TIME(9)"),
    ("int64", f"{CONNECT}Timestamp", 1709210096789, "2024-02-29T12:34:56.789Z", "TIMESTAMP_TZ(9)"),
    ("int64", f"{CONNECT}Timestamp", -1, "1969-12-31T23:59:59.999Z", "TIMESTAMP_TZ(9)"),
    ("bytes", f"{CONNECT}Decimal", "BLrpwA==", Decimal("793584.00"), "NUMBER(38,2)"),
    ("bytes", f"{CONNECT}Decimal", "/w==", Decimal("-0.01"), "NUMBER(38,2)"),
    ("int32", f"{DEBEZIUM}time.Date", 100, "1970-04-11", "DATE"),
    ("int32", f"{DEBEZIUM}time.Time", 1000, "00:00:01", "TIME(9)"),
    ("int64", f"{DEBEZIUM}time.MicroTime", 1, "00:00:00.000001", "TIME(9)"),
    ("int64", f"{DEBEZIUM}time.NanoTime", 1, "00:00:00.000000001", "TIME(9)"),
    ("int64", f"{DEBEZIUM}time.Timestamp", 5184000000, "1970-03-02T00:00:00", "TIMESTAMP_NTZ(9)"),
    ("int64", f"{DEBEZIUM}time.MicroTimestamp", 1, "1970-01-01T00:00:00.000001", "TIMESTAMP_NTZ(9)"),
    ("int64", f"{DEBEZIUM}time.NanoTimestamp", 1, "1970-01-01T00:00:00.000000001", "TIMESTAMP_NTZ(9)"),
    ("int32", f"{DEBEZIUM}time.Year", 2024, 2024, "NUMBER(38,0)"),
    ("int64", f"{DEBEZIUM}time.MicroDuration", 5, 5, "NUMBER(38,0)"),
    ("string", f"{DEBEZIUM}time.ZonedTimestamp", *["2024-02-29T12:00Z"] * 2, "TIMESTAMP_TZ(9)"),
    ("string", f"{DEBEZIUM}data.Json", '{"a":1}', '{"a":1}', "VARCHAR(16777216)"),
    ("string", f"{DEBEZIUM}data.Enum", "red", "red", "VARCHAR(16777216)"),
    ("bytes", f"{DEBEZIUM}data.Bits", "AQ==", "AQ==", "BINARY(8388608)"),
]  # fmt: skip
UNKNOWN = [("int64", "com.acme.Ticks"), ("string", "com.acme.Money"), ("bytes", f"{DEBEZIUM}time.Date")]


def _connect(kind, name, **more):
    extra = SCALED if name.endswith("Decimal") else {}
    return {"type": kind, "optional": True, "name": name, "version": 1, **extra, **more}


def _envelopes(field, *values):
    """Envelopes of one row with a field, by itself, in a structure and in a list."""
    inner = {"type": "struct", "fields": [{**field, "field": "X"}], "field": "BEFORE", "name": "shop.Value"}
    several = {"type": "array", "items": {key: one for key, one in field.items() if key != "field"}}
    fields = [{"type": "int32", "field": "ID"}, {**field, "field": "F"}, inner, {**several, "field": "ALL"}]
    schema = {"type": "struct", "fields": fields, "name": "shop.Envelope"}
    rows = [{"ID": 1, "F": one, "BEFORE": {"X": one}, "ALL": [one, None]} for one in values]
    return [json.dumps({"schema": schema, "payload": row}).encode() for row in rows]


OF_TYPES = pytest.mark.parametrize(("kind", "name", "value", "expected", "column"), TYPES)


@OF_TYPES
def test_a_value_of_an_envelope_has_the_type_of_its_schema(kind, name, value, expected, column):
    part = part_of(_envelopes(_connect(kind, name), value, None), connect_envelope=True)
    first, second = rows_of_part(part)
    assert first == {"ID": 1, "F": expected, "BEFORE": {"X": expected}, "ALL": [expected, None]}
    assert (second["F"], second["BEFORE"]["X"]) == (None, None)
    assert part.types["F"] == column


@OF_TYPES
def test_a_value_with_a_json_schema_of_the_registry_has_the_type_of_the_schema(
    registry, kind, name, value, expected, column
):
    kinds = {"int32": "integer", "int64": "integer", "string": "string", "bytes": "string"}
    field = {"type": kinds[kind], "title": name, "connect.version": 1, "connect.type": kind}
    if name.endswith("Decimal"):
        field["connect.parameters"] = {"scale": "2"}
    optional = {"oneOf": [{"type": "null"}, field]}
    registry.add(1, json.dumps({"type": "object", "properties": {"F": optional}}), "JSON")
    part = part_of([head(1) + json.dumps({"F": one}).encode() for one in (value, None)], registry.url)
    assert (rows_of_part(part), part.types) == ([{"F": expected}, {"F": None}], {"F": column})


@pytest.mark.parametrize(("kind", "name"), UNKNOWN)
def test_an_unknown_type_is_refused_by_field_and_name_or_loaded_as_it_is_where_the_author_chooses(kind, name):
    value = "QQ==" if kind != "int64" else 5
    messages = _envelopes(_connect(kind, name), value)

    (refused,) = part_of(messages, connect_envelope=True).undecoded
    (row,) = rows_of_part(part_of(messages, connect_envelope=True, unknown_types="ignore"))

    assert all(one in refused.reason for one in (name, "'F'", "unknown_types"))
    assert row["F"] == value
    of_avro = {"type": kind.replace("int64", "long"), "logicalType": name}
    schema = {"type": "record", "name": "R", "fields": [{"name": "F", "type": of_avro}]}
    with pytest.raises(EncodingError, match="unknown_types"):
        rows_of(schema)
    assert rows_of(schema, "ignore").arrow.names == ["F"]


def test_decimals_are_read_as_numbers_too_and_with_a_scale_of_their_own():
    field = {**_connect("bytes", f"{CONNECT}Decimal"), "field": "F"}
    numbers = [_enveloped(field, f'{{"F": {one}}}') for one in ("1234567890123456789.25", "null")]
    rows = rows_of_part(part_of(numbers, connect_envelope=True))
    assert [row["F"] for row in rows] == [Decimal("1234567890123456789.25"), None]
    inner = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
    scaled = _connect("struct", f"{DEBEZIUM}data.VariableScaleDecimal", fields=inner)
    digits = [{"scale": one, "value": "BLrpwA=="} for one in (3, 100)] + [{"scale": 0, "value": "/w=="}]
    rows = rows_of_part(part_of(_envelopes(scaled, *digits, None), connect_envelope=True))
    assert [row["F"] for row in rows] == ["79358.400", "79358400E-100", "-1", None]
    assert rows[0]["BEFORE"] == {"X": "79358.400"}


def _enveloped(field, payload):
    schema = json.dumps({"type": "struct", "fields": [field]})
    return f'{{"schema":{schema},"payload":{payload}}}'.encode()


def test_a_payload_that_does_not_fit_its_schema_cannot_be_decoded_and_spoils_no_other():
    field = {**_connect("int32", f"{CONNECT}Date"), "field": "F"}
    payloads = ['{"F": "no number"}', '{"F": 1.5}', '{"F": 1, "F": 2}', '{"G": 1}', '{"F": 99999999999}']
    good, *bad = (_enveloped(field, one) for one in ('{"F":1}', *payloads, '{"F":'))
    part = part_of([good, *bad, good], connect_envelope=True)
    assert rows_of_part(part) == [{"F": "1970-01-02"}] * 2
    assert undecoded(part) == list(enumerate(bad, start=11))


@pytest.mark.parametrize("empty", [b'{"schema":null,"payload":null}', b'{"schema": null, "payload": null }'])
def test_a_tombstone_inside_of_an_envelope_is_a_record_without_a_value(empty):
    one, two = (_enveloped({"type": "int32", "field": "ID"}, f'{{"ID": {number}}}') for number in (1, 2))
    messages = [one, empty, two, None]
    for tombstones, rows in (("drop", [{"ID": 1}, {"ID": 2}]), ("null", [{"ID": 1}, {}, {"ID": 2}, {}])):
        part = part_of(messages, connect_envelope=True, tombstones=tombstones)
        assert (rows_of_part(part), part.undecoded) == (rows, ())
    with pytest.raises(EncodingError, match="tombstone"):
        part_of(messages, connect_envelope=True, tombstones="fail")


def test_the_uuid_of_avro_on_sixteen_bytes_is_its_text():
    value = uuid.UUID("12345678-1234-5678-1234-567812345678")
    fixed = {"type": "fixed", "size": 16, "name": "u", "logicalType": "uuid"}
    rows = rows_of({"type": "record", "name": "R", "fields": [{"name": "U", "type": ["null", fixed]}]})
    batch = rows.batch([{"U": value.bytes}, {"U": None}])
    assert batch.column(0).to_pylist() == [value, None]


def test_what_is_null_stays_null_where_what_it_would_hold_has_another_form():
    number = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "U", "type": number}]}
    both = {"S": ["null", inner], "L": ["null", {"type": "array", "items": "U"}]}
    fields = [{"name": name, "type": kind} for name, kind in both.items()]
    one = uuid.UUID(int=7)
    records = [{"S": {"U": one.bytes}, "L": [one.bytes, one.bytes]}, {"S": None, "L": None}]
    batch = rows_of({"type": "record", "name": "R", "fields": fields}).batch(records)
    assert batch.to_pylist() == [{"S": {"U": one}, "L": [one, one]}, {"S": None, "L": None}]


@pytest.mark.parametrize("key", ["oneOf", "anyOf", "allOf"])
def test_a_logical_type_among_the_choices_of_a_json_schema_is_read_or_refused_and_never_guessed(key):
    name = "org.apache.kafka.connect.data.Timestamp"
    instant = {"type": "integer", "title": name, "connect.type": "int64"}

    def types(*choices):
        schema = {"type": "object", "properties": {"AT": {key: [*choices]}}}
        return json_types(json.dumps(schema), "fail")

    assert types(instant).types == {"AT": "TIMESTAMP_TZ(9)"}
    with pytest.raises(EncodingError, match="'AT'"):
        types(instant, {"type": "string"})
    assert not types({"type": "integer"}, {"type": "string"}).translates


def leaf(kind, **more):
    return {"type": kind, "parameters": None, **more}


def test_a_json_schema_stands_for_a_schema_of_kafka_connect():
    day = {"type": "integer", "connect.type": "int32", "title": "io.debezium.time.Date"}
    whole = {"type": "string", "connect.type": "bytes", "title": "D", "connect.parameters": {"scale": "2"}}
    both = {"anyOf": [{"type": "string"}, {"type": "integer", "format": "int16"}]}
    data = {"type": "string", "contentEncoding": "base64"}
    flag = {"type": "object", "additionalProperties": {"type": "boolean"}}
    fields = {
        "REF": ({"$ref": "#/definitions/Day"}, leaf("int32", name="io.debezium.time.Date")),
        "GONE": ({"$ref": "#/definitions/Night"}, {"type": "any"}),
        "ELSEWHERE": ({"$ref": "x#/definitions/Day"}, {"type": "any"}),
        "ONE": (
            {"oneOf": [{"type": "null"}, {"type": "string", "format": "uuid"}]},
            leaf("string", name="uuid"),
        ),
        "ALL": ({"allOf": [{"type": "string", "format": "word", "title": "T"}]}, leaf("string")),
        "TWO": (both, {"type": "any", "choices": [leaf("string"), leaf("int64", name="int16")]}),
        "KINDS": ({"type": ["string", "integer"]}, {"type": "any", "choices": []}),
        "MAYBE": ({"type": ["null", "number"], "format": "double"}, leaf("float64")),
        "MAP": (flag, {"type": "map", "values": leaf("boolean")}),
        "PAIRS": (
            flag | {"connect.type": "map", "properties": {}},
            {"type": "map", "values": leaf("boolean")},
        ),
        "BYTES": ({"type": "array", "items": data}, {"type": "array", "items": leaf("bytes")}),
        "DECIMAL": (whole, leaf("bytes", name="D") | {"parameters": {"scale": "2"}}),
        "ANYTHING": (True, {"type": "any"}),
    }
    given = {"type": "object", "properties": {name: one for name, (one, _) in fields.items()}}
    expected = [{**one, "field": name} for name, (_, one) in fields.items()]
    found = connect_of_json_schema(given | {"definitions": {"Day": day}})
    assert found == {"type": "struct", "fields": expected}
    assert connect_of_json_schema({"$ref": "#"}) == {"type": "any"}
