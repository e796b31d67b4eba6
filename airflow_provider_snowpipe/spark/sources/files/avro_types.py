"""Avro schemas as Arrow types, and as the schemas by which rows are read.

A date or a timestamp is read as the number that it is and becomes an Arrow value as a whole column, so that
nanoseconds stay and years beyond 9999 do not stop the load. Decimals are the exception: their bytes become
numbers one by one, in compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import EncodingError

_PRIMITIVE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.large_binary(),
    "string": pa.large_string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_DECIMAL128_DIGITS = 38


@dataclass(frozen=True, slots=True)
class AvroRows:
    """How an Avro file's rows are read.

    :param read_schema: the schema with only those logical types that are decoded row by row
    :param arrow: the columns
    """

    read_schema: Any
    arrow: pa.Schema


def rows_of(schema: Any) -> AvroRows:
    """Translate a file's schema.

    :param schema: the schema as its header says it
    :raises EncodingError: for rows that are no records, or a type without an Arrow form; names the column
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise EncodingError(f"its rows are {_kind(schema)!r}, not records: they have no columns")
    read, arrow = _Translation().translate(schema, "", "")
    return AvroRows(read, pa.schema(list(arrow)))


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    return kind if isinstance(kind, str) else _kind(kind)


@dataclass(slots=True)
class _Translation:
    """Walks a schema; named types are known from where they are defined to the schema's end."""

    named: dict[str, pa.DataType | None] = field(default_factory=dict)

    def translate(self, schema: Any, path: str, space: str) -> tuple[Any, pa.DataType]:
        """Return the schema to read by and the Arrow type.

        :param path: the column, for errors
        :param space: the namespace that names without one belong to
        """
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            return schema, _PRIMITIVE[schema] if schema in _PRIMITIVE else self._by_name(schema, path, space)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.translate(kind, path, space)
        match kind:
            case "record":
                return self._record(schema, path, space)
            case "array":
                read, item = self.translate(schema["items"], f"{path}.[]", space)
                return {"type": "array", "items": read}, pa.large_list(item)
            case "map":
                read, value = self.translate(schema["values"], f"{path}.{{}}", space)
                return {"type": "map", "values": read}, pa.map_(pa.string(), value)
            case "enum" | "fixed":
                return self._named_value(schema, kind, space)
            case _ if kind in _PRIMITIVE:
                return self._primitive(schema, kind)
        return schema, self._by_name(kind, path, space)

    def _record(self, schema: Mapping[str, Any], path: str, space: str) -> tuple[Any, pa.DataType]:
        name, space = _full_name(schema, space)
        self.named[name] = None
        fields, types = [], []
        for one in schema["fields"]:
            inner = f"{path}.{one['name']}" if path else one["name"]
            read, kind = self.translate(one["type"], inner, space)
            fields.append({"name": one["name"], "type": read})
            types.append(pa.field(one["name"], kind))
        self.named[name] = pa.struct(types)
        return {"type": "record", "name": name, "fields": fields}, self.named[name]

    def _named_value(self, schema: Mapping[str, Any], kind: str, space: str) -> tuple[Any, pa.DataType]:
        name, _ = _full_name(schema, space)
        read = {key: schema[key] for key in ("type", "symbols", "size") if key in schema} | {"name": name}
        arrow = pa.large_string() if kind == "enum" else pa.binary(schema["size"])
        if kind == "fixed" and schema.get("logicalType") == "decimal":
            read |= {key: schema[key] for key in ("logicalType", "precision", "scale") if key in schema}
            arrow = _decimal(schema)
        self.named[name] = arrow
        return read, arrow

    def _primitive(self, schema: Mapping[str, Any], kind: str) -> tuple[Any, pa.DataType]:
        logical = schema.get("logicalType", "")
        if kind == "bytes" and logical == "decimal":
            read = {
                key: schema[key] for key in ("type", "logicalType", "precision", "scale") if key in schema
            }
            return read, _decimal(schema)
        return kind, _LOGICAL.get((kind, logical), _PRIMITIVE[kind])

    def _union(self, schema: list[Any], path: str, space: str) -> tuple[Any, pa.DataType]:
        translated = [self.translate(branch, path, space) for branch in schema]
        read = [branch for branch, _ in translated]
        kinds = [(branch, kind) for branch, kind in translated if branch != "null"]
        if len(kinds) < 2:
            return read, kinds[0][1] if kinds else pa.null()
        wider = _WIDER.get(frozenset(branch for branch, _ in kinds if isinstance(branch, str)))
        if wider is None or len(kinds) > 2 or any(kind != _PRIMITIVE[str(one)] for one, kind in kinds):
            raise EncodingError(
                f"column {path!r} is a union of {[_kind(one) for one in schema]}: only unions of one type "
                "with null, and of two numbers, make a column; write the file with one type"
            )
        return read, _PRIMITIVE[wider]

    def _by_name(self, name: str, path: str, space: str) -> pa.DataType:
        full = name if "." in name or not space else f"{space}.{name}"
        found = self.named.get(full, self.named.get(name))
        if found is None:
            state = "holds itself" if full in self.named or name in self.named else "is not defined"
            raise EncodingError(f"column {path!r}: the type {name!r} {state}, so that it is no column")
        return found


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """A named type's full name, and the namespace for the names within it."""
    name = str(schema["name"])
    if "." not in name:
        space = schema.get("namespace", space)
        name = f"{space}.{name}" if space else name
    return name, name.rpartition(".")[0]


def _decimal(schema: Mapping[str, Any]) -> pa.DataType:
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    return (pa.decimal128 if precision <= _DECIMAL128_DIGITS else pa.decimal256)(precision, scale)
