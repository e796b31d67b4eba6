"""What schemas say that a value means: one table of logical types for every producer and every framing.

Avro names them by ``logicalType``, Kafka Connect by the name of a schema (``connect.name`` in Avro, ``title``
in JSON Schema), change-data-capture connectors by names of their own. A name that is not in the table is
refused: its value may mean something else than its number or text shows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.arguments import UnknownTypes
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.table_schema import LONGEST_TEXT, column_type

# -- The table: form of the value, and name -> what it is ------------------------------------------------

PLAIN = "plain"
"""Loaded as it is: its number or text shows what it means."""
SCALED = "scaled"
"""A decimal, whose digits are the value's bytes, and whose scale is in the schema."""
SELF_SCALED = "self-scaled"
"""A decimal with its scale in the value."""

_TIMES = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "org.apache.kafka.connect.data.Time": pa.time32("ms"),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("ms", "UTC"),
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Time": pa.time32("ms"),
    "io.debezium.time.MicroTime": pa.time64("us"),
    "io.debezium.time.NanoTime": pa.time64("ns"),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("ns"),
}
_NUMBERS = ("io.debezium.time.Year", "io.debezium.time.MicroDuration", "io.debezium.time.NanoDuration")
_TEXTS = {
    **dict.fromkeys(("uuid", "varchar", "char", "datetime"), LONGEST_TEXT),
    **dict.fromkeys((f"io.debezium.time.Iso{kind}" for kind in ("Date", "Time", "Timestamp")), LONGEST_TEXT),
    **dict.fromkeys(("io.debezium.time.ZonedTime", "io.debezium.time.Interval"), LONGEST_TEXT),
    **{
        f"io.debezium.data.{kind}": LONGEST_TEXT
        for kind in ("Enum", "EnumSet", "Json", "Ltree", "TsVector", "Uuid", "Xml")
    },
    "io.debezium.time.ZonedTimestamp": "TIMESTAMP_TZ(9)",
    "date": "DATE",
    "date-time": "TIMESTAMP_TZ(9)",
}
LOGICAL: dict[tuple[str, str], Any] = {
    **{("int", name): kind for name, kind in _TIMES.items()},
    **{("int", name): PLAIN for name in _NUMBERS},
    **{("string", name): PLAIN for name in _TEXTS},
    ("bytes", "decimal"): SCALED,
    ("bytes", "org.apache.kafka.connect.data.Decimal"): SCALED,
    ("bytes", "uuid"): pa.uuid(),
    ("bytes", "io.debezium.data.Bits"): PLAIN,
    ("array", "map"): PLAIN,
    ("array", "io.debezium.data.FloatVector"): PLAIN,
    ("array", "io.debezium.data.DoubleVector"): PLAIN,
    ("struct", "io.debezium.data.VariableScaleDecimal"): SELF_SCALED,
}
_FORMS = {
    **dict.fromkeys(("int", "long", "int8", "int16", "int32", "int64"), "int"),
    **dict.fromkeys(("float", "double", "float32", "float64"), "float"),
    **dict.fromkeys(("bytes", "fixed"), "bytes"),
    **dict.fromkeys(("string", "enum"), "string"),
    **dict.fromkeys(("struct", "record"), "struct"),
}


def is_known(kind: str, name: str) -> bool:
    """True for a logical type of the table."""
    return (_FORMS.get(kind, kind), name) in LOGICAL


def meaning(kind: str, name: str | None, path: str, unknown: UnknownTypes) -> Any:
    """Look a logical type up.

    :param kind: the type that carries it, as Avro or Kafka Connect names it
    :param name: the logical type, None where the schema has none
    :return: an Arrow type, or one of the words of the table
    """
    form = _FORMS.get(kind, kind)
    found = LOGICAL.get((form, name or ""))
    if found is not None or not name or form == "struct":
        return found or PLAIN
    if unknown == "ignore":
        return PLAIN
    raise EncodingError(
        f"column {path!r} has the logical type {name!r} on {kind}, which is not known here: its value may "
        "mean something else than it shows. Convert it at its producer, or load it as it is with "
        "unknown_types='ignore'"
    )


def logical_name(schema: Any) -> str | None:
    """The name of an Avro type's logical type, of a union that of its only type beside null."""
    if isinstance(schema, list):
        return next((name for one in schema if (name := logical_name(one))), None)
    if not isinstance(schema, Mapping):
        return None
    names = [schema[key] for key in ("logicalType", "connect.name") if key in schema]
    kind = schema["type"]
    return next((one for one in names if is_known(str(kind), one)), next(iter(names), None))


def decimal_type(precision: int, scale: int, path: str) -> pa.DataType:
    """The Arrow type of a decimal."""
    if not 0 <= scale <= precision <= _MOST_DIGITS:
        raise EncodingError(
            f"column {path!r} is a decimal of {precision} digits and scale {scale}: at most {_MOST_DIGITS} "
            "digits and no negative scale can be loaded"
        )
    return (pa.decimal128 if precision <= _DIGITS else pa.decimal256)(precision, scale)


def column_types(schema: pa.Schema | pa.StructType) -> dict[str, str]:
    """The SQL types of the columns that take a schema's fields, as far as the schema shows them."""
    types = {
        one.name: LONGEST_TEXT
        if _is_self_scaled(one.type) or (pa.types.is_decimal(one.type) and column_type(one.type) is None)
        else _TEXTS.get((one.metadata or {}).get(_NAME, b"").decode()) or column_type(one.type)
        for one in schema
    }
    return {name: kind for name, kind in types.items() if kind is not None}


def self_scaled() -> pa.StructType:
    """The type of a decimal with its scale in the value, as it is read; it becomes a text."""
    scale = pa.field("scale", pa.int32(), metadata={_NAME: SELF_SCALED})
    return pa.struct([scale, ("value", pa.large_binary())])


def _is_self_scaled(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_struct(kind)
        and kind.num_fields
        and (kind.field(0).metadata or {}).get(_NAME) == SELF_SCALED.encode()
    )


_DIGITS, _MOST_DIGITS = 38, 76
_NAME = b"logical"


def named(name: str, kind: pa.DataType, logical: str | None) -> pa.Field:
    """An Arrow field that keeps the name of its logical type."""
    return pa.field(name, kind, metadata={_NAME: logical} if logical else None)


# -- Kafka Connect's schemas, and JSON Schema as them: JSON as Arrow arrays, and those as what they mean -
#
# JSON is read by Arrow with the schema's own types; a schema in which no value means something else than
# it shows is not read at all, and its JSON is passed on byte by byte.

_CONNECT_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.large_string(),
}
_FIELD = "v"


@dataclass(frozen=True, slots=True)
class JsonTypes:
    """How JSON that a schema describes is written as rows; it is passed on where nothing ``translates``."""

    field: pa.Field
    translates: bool = field(default=False)

    @classmethod
    def of(cls, schema: Any, unknown: UnknownTypes) -> JsonTypes | None:
        """Translate a schema of Kafka Connect; None for one without a type, which says nothing of values."""
        if not isinstance(schema, Mapping) or not isinstance(schema.get("type"), str):
            return None
        names = list(_logical_names(schema, ""))
        found = [meaning(kind, name, path, unknown) for path, kind, name in names]
        translates = any(one != PLAIN for one in found)
        return cls(_field_of(schema, _FIELD, "", complete=translates), translates)

    @property
    def types(self) -> dict[str, str]:
        """The SQL types of the columns, where the values are objects."""
        return column_types(self.field.type) if pa.types.is_struct(self.field.type) else {}

    def written(self, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Write JSON values as what they mean, each on one line."""
        data = b"".join(b'{"v":%b}\n' % value for value in values.to_pylist())
        failed = ""
        for as_numbers in (False, True):
            try:
                read = _read_json(data, _wire(self.field, as_numbers=as_numbers))
                rows = restored(read.combine_chunks(), self.field.type)
            except (pa.ArrowException, ValueError) as error:
                failed = failed or " ".join(str(error).split())[:200]
                continue
            body = encode_ndjson(pa.table([rows], names=[_FIELD]))
            return pa.array([line[5:-1] for line in body.splitlines()], pa.large_binary())
        raise EncodingError(f"is not what its schema says ({failed})")


def _read_json(data: bytes, wire: pa.Field) -> pa.ChunkedArray:
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=pa.schema([wire]), unexpected_field_behavior="error"),
    ).column(0)


def _logical_names(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str | None]]:
    """Each type in a schema, with its path and the name of its logical type."""
    yield path, str(schema.get("type")), schema.get("name")
    for one in schema.get("fields") or ():
        yield from _logical_names(one, f"{path}.{one['field']}" if path else str(one["field"]))
    for one in schema.get("choices") or ():
        yield from _logical_names(one, path)
    for key, mark in (("items", "[]"), ("values", "{}")):
        if isinstance(schema.get(key), Mapping):
            yield from _logical_names(schema[key], f"{path}.{mark}")


def _field_of(schema: Mapping[str, Any], name: str, path: str, *, complete: bool) -> pa.Field:
    """An Arrow field with the type that a schema's values have.

    :param complete: True if every value has to be read; False takes what cannot be for a text
    """
    kind, logical = str(schema["type"]), schema.get("name")
    form = _FORMS.get(kind, kind)
    found = LOGICAL.get((form, logical or ""), PLAIN)
    if isinstance(found, pa.DataType):
        return named(name, found, logical)
    if found == SCALED:
        parameters = schema.get("parameters") or {}
        digits = int(parameters.get("connect.decimal.precision", _DIGITS))
        return named(name, decimal_type(digits, int(parameters.get("scale", 0)), path), logical)
    if found == SELF_SCALED:
        return pa.field(name, self_scaled())
    if form in _CONNECT_TYPES:
        return named(name, _CONNECT_TYPES[form], logical)
    if form == "bytes":
        return named(name, pa.large_binary(), logical)
    if form == "struct":
        fields = [
            _field_of(one, str(one["field"]), f"{path}.{one['field']}", complete=complete)
            for one in schema["fields"]
        ]
        return pa.field(name, pa.struct(fields))
    if form == "array":
        item = _field_of(schema["items"], "item", f"{path}.[]", complete=complete)
        return pa.field(name, pa.large_list(item))
    if not complete:
        return pa.field(name, pa.map_(pa.string(), pa.string()) if form == "map" else pa.null())
    raise EncodingError(
        f"names a schema with a {kind} at {path.strip('.')!r} beside logical types, which is not supported: "
        "convert them at their producer, or load them as they are with connect_envelope=False"
    )


def _wire(one: pa.Field, *, as_numbers: bool) -> pa.Field:
    """The field as JSON has it: numbers of days and seconds, bytes as BASE64, decimals so or as numbers."""
    kind, is_a = one.type, pa.types
    if _is_self_scaled(kind):
        kind = pa.struct([("scale", pa.int64()), ("value", pa.large_string())])
    elif is_a.is_temporal(kind):
        kind = pa.int64()
    elif (is_a.is_decimal(kind) and not as_numbers) or is_a.is_large_binary(kind) or kind == pa.uuid():
        kind = pa.large_string()
    elif is_a.is_struct(kind):
        kind = pa.struct([_wire(child, as_numbers=as_numbers) for child in kind])
    elif is_a.is_large_list(kind):
        kind = pa.list_(_wire(kind.value_field, as_numbers=as_numbers))
    return pa.field(one.name, kind)


def changes(kind: pa.DataType) -> bool:
    """True for a type that :func:`restored` makes other than Arrow reads it."""
    if _is_self_scaled(kind) or kind == pa.uuid():
        return True
    return any(changes(kind.field(at).type) for at in range(kind.num_fields))


def stored(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow takes Python's values of a type."""
    if kind == pa.uuid():
        return pa.binary(16)
    if pa.types.is_struct(kind) and not _is_self_scaled(kind):
        return pa.struct([pa.field(one.name, stored(one.type)) for one in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(stored(kind.value_type))
    return pa.map_(kind.key_type, stored(kind.item_type)) if pa.types.is_map(kind) else kind


Change = Callable[[pa.Array, pa.Field], pa.Array | None]


def changed(values: pa.Array, one: pa.Field, change: Change) -> pa.Array:
    """Change the values of a column; where ``change`` gives None, those of what it holds."""
    kind, found = one.type, change(values, one)
    if found is not None:
        return found
    if pa.types.is_struct(kind):
        children = [changed(child, kind.field(at), change) for at, child in enumerate(values.flatten())]
        return pa.StructArray.from_arrays(children, [child.name for child in kind], mask=values.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int64())
        items = changed(values.flatten(), kind.value_field, change)
        return pa.LargeListArray.from_arrays(offsets, items, mask=values.is_null())
    if pa.types.is_map(kind):
        items = changed(values.items, kind.item_field, change)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, mask=values.is_null())
    return values


def restored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of JSON or Avro as what they mean."""
    return changed(values, pa.field(_FIELD, kind), _meant)


def _meant(values: pa.Array, one: pa.Field) -> pa.Array | None:
    is_a, kind = pa.types, one.type
    if _is_self_scaled(kind):
        return _self_scaled(values)
    if kind == pa.uuid():
        return pa.ExtensionArray.from_storage(kind, _as_bytes(values).cast(pa.binary(16)))
    if is_a.is_temporal(kind) and is_a.is_integer(values.type):
        return values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    if is_a.is_large_binary(kind) and is_a.is_large_string(values.type):
        return bytes_of_base64(values)
    if is_a.is_decimal(kind) and not is_a.is_decimal(values.type):
        return decimals(_as_bytes(values), kind)
    return values if is_a.is_map(kind) and not changes(kind) else None


def _as_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    if pa.types.is_large_string(values.type):
        return bytes_of_base64(values)
    return values.cast(pa.large_binary())


def _self_scaled(values: pa.StructArray) -> pa.Array:
    """The exact texts of decimals, each with its own scale."""
    scales, digits = (pc.struct_field(values, name) for name in ("scale", "value"))
    digits = _as_bytes(digits)
    texts, indexes = [pa.nulls(scales.null_count, pa.large_string())], [np.flatnonzero(scales.is_null())]
    for scale in pc.unique(scales.drop_null()).to_pylist():
        chosen = np.flatnonzero(pc.fill_null(pc.equal(scales, scale), False))
        # Arrow writes an error's text for other scales.
        kind = pa.decimal256(_MOST_DIGITS, scale if abs(scale) <= _MOST_DIGITS else 0)
        found = decimals(digits.take(pa.array(chosen)), kind).cast(pa.large_string())
        ends = (pa.scalar(one, pa.large_string()) for one in (f"E{-scale}", ""))
        texts.append(found if kind.scale == scale else pc.binary_join_element_wise(found, *ends))
        indexes.append(chosen)
    order = np.argsort(np.concatenate(indexes), kind="stable")
    return pa.concat_arrays(texts).take(pa.array(order))


def bytes_of_base64(values: pa.LargeStringArray) -> pa.LargeBinaryArray:
    """Decode a whole column by one call."""
    filled = pc.fill_null(values, "")
    lengths = pc.binary_length(filled).to_numpy().astype(np.int64)
    pads = sum(pc.ends_with(filled, end).to_numpy(zero_copy_only=False).astype(int) for end in ("=", "=="))
    joined = "".join(filled.to_pylist()).encode()
    if (lengths % 4).any() or joined.count(b"=") != pads.sum():
        raise ValueError("a value is not BASE64")
    data = np.frombuffer(base64.b64decode(joined.replace(b"=", b"A"), validate=True), np.uint8)
    ends = np.cumsum(lengths // 4 * 3)
    kept = np.ones(len(data), bool)
    kept[ends[pads >= 1] - 1] = False
    kept[ends[pads == 2] - 2] = False
    offsets = np.concatenate(([0], np.cumsum(lengths // 4 * 3 - pads)))
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(values),
        [_validity(values), pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data[kept].tobytes())],
    )


def decimals(values: pa.LargeBinaryArray, kind: pa.DataType) -> pa.Array:
    """Decimals from their digits, each a number in two's complement, its highest byte first."""
    width = kind.bit_width // 8
    filled = pc.fill_null(values, b"")
    lengths = pc.binary_length(filled).to_numpy().astype(np.int64)
    data = np.frombuffer(b"".join(filled.to_pylist()), np.uint8)
    ends = np.cumsum(lengths)
    longest = int(lengths.max(initial=0))
    if longest > width:
        raise pa.ArrowInvalid(f"a decimal of {longest} bytes, at most {width} are read")
    numbers = np.zeros((len(values), width), np.uint8)
    given = np.flatnonzero(lengths)
    numbers[given[data[(ends - lengths)[given]] >= 128]] = 255
    for byte in range(longest):
        rows = np.flatnonzero(lengths > byte)
        numbers[rows, byte] = data[ends[rows] - 1 - byte]
    found = pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers.tobytes())])
    found.validate(full=True)
    return found


def _validity(values: pa.Array) -> pa.Buffer | None:
    if not values.null_count:
        return None
    return pa.array(values.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]


# -- JSON Schema, as converters that write it for Kafka Connect's types ----------------------------------

_JSON_TYPES = {"integer": "int64", "number": "float64", "boolean": "boolean", "string": "string"}
_NUMBER_FORMATS = ("int32", "int64", "float", "double")


def connect_of_json_schema(schema: Any) -> Mapping[str, Any]:
    """A JSON Schema as the schema of Kafka Connect that it stands for; ``any`` where there is none."""
    return _JsonSchema(schema if isinstance(schema, Mapping) else {}).connect(schema)


@dataclass(frozen=True, slots=True)
class _JsonSchema:
    """Walks a schema; references lie in its root."""

    root: Mapping[str, Any]

    def connect(self, schema: Any, depth: int = 0) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or depth > 50:
            return {"type": "any"}
        if "$ref" in schema:
            return self.connect(self._referenced(str(schema["$ref"])), depth + 1)
        choices = [one for key in ("oneOf", "anyOf", "allOf") for one in schema.get(key) or ()]
        filled = [one for one in choices if not (isinstance(one, Mapping) and one.get("type") == "null")]
        if len(filled) == 1:
            return self.connect(filled[0], depth + 1)
        kinds = schema.get("type")
        kinds = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if len(kinds) != 1 or filled:
            return {"type": "any", "choices": [self.connect(one, depth + 1) for one in filled]}
        return {**self._typed(schema, str(kinds[0]), depth), **self._named(schema, str(kinds[0]))}

    def _typed(self, schema: Mapping[str, Any], kind: str, depth: int) -> dict[str, Any]:
        given = schema.get("connect.type")
        properties = schema.get("properties")
        if kind == "object" and isinstance(properties, Mapping) and given != "map":
            fields = [{**self.connect(one, depth + 1), "field": name} for name, one in properties.items()]
            return {"type": "struct", "fields": fields}
        if kind == "object":
            return {"type": "map", "values": self.connect(schema.get("additionalProperties"), depth + 1)}
        if kind == "array":
            return {"type": "array", "items": self.connect(schema.get("items"), depth + 1)}
        if given is None and schema.get("contentEncoding") == "base64":
            given = "bytes"
        return {"type": given or _JSON_TYPES.get(kind, "any"), "parameters": schema.get("connect.parameters")}

    @staticmethod
    def _named(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
        title, form = schema.get("title"), schema.get("format")
        if isinstance(title, str) and any(str(key).startswith("connect.") for key in schema):
            return {"name": title}
        if isinstance(form, str) and (kind in ("integer", "number") and form not in _NUMBER_FORMATS):
            return {"name": form}
        return {"name": form} if form in _TEXTS and kind == "string" else {}

    def _referenced(self, reference: str) -> Any:
        found: Any = self.root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if reference.startswith("#") else None


def json_types(text: str, unknown: UnknownTypes) -> JsonTypes | None:
    """Translate a JSON Schema."""
    try:
        schema = json.loads(text)
    except ValueError:
        raise EncodingError("names a schema that is not a JSON Schema: correct value_format") from None
    return JsonTypes.of(connect_of_json_schema(schema), unknown)
