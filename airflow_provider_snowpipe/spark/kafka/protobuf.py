"""Protobuf messages as JSON, by the descriptors that a schema registry gives."""

from __future__ import annotations

import base64
import json
from typing import Any

from airflow_provider_snowpipe.spark.kafka.registry import SchemaRegistry
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_SERIALIZED = "serialized"
_WELL_KNOWN = (
    "any",
    "duration",
    "empty",
    "field_mask",
    "struct",
    "timestamp",
    "wrappers",
)


class MessageReader:
    """Reads messages; builds each schema's classes once.

    :param registry: where the schemas are
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        try:
            import google.protobuf.json_format  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"value_format='protobuf' needs protobuf ({error}): install airflow-provider-snowpipe[kafka] "
                "where Spark runs"
            ) from None
        self._registry = registry
        self._classes: dict[tuple[int, tuple[int, ...]], Any] = {}

    def as_json(self, number: int, value: bytes) -> bytes:
        """Write a message as one line of JSON, with the field names of its schema.

        :param number: its schema
        :param value: message indexes and message
        """
        from google.protobuf.json_format import MessageToDict

        path, start = _indexes(value)
        kind = self._classes.get((number, path)) or self._learn(number, path)
        message = kind()
        message.ParseFromString(value[start:])
        fields = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _learn(self, number: int, path: tuple[int, ...]) -> Any:
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        pool = DescriptorPool()
        _add_well_known(pool)
        file = self._add(pool, self._registry.schema(number, _SERIALIZED), f"schema-{number}.proto")
        messages = list(file.message_types_by_name.values())
        found = messages[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
        self._classes[number, path] = GetMessageClass(found)
        return self._classes[number, path]

    def _add(self, pool: Any, schema: Any, name: str) -> Any:
        """Add a schema's file and those it refers to; the name is the one by which others import it."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        for one in schema.references or ():
            self._add(pool, self._registry.referenced(one.subject, one.version, _SERIALIZED), one.name)
        file = FileDescriptorProto()
        file.ParseFromString(base64.b64decode(schema.schema_str))
        file.name = name
        pool.Add(file)
        return pool.FindFileByName(name)


def _add_well_known(pool: Any) -> None:
    """Make Protobuf's own types known, which no registry holds."""
    import importlib

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for name in _WELL_KNOWN:
        file = FileDescriptorProto()
        importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(file)
        pool.Add(file)


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Read where in its file the message's type is: zigzag numbers behind their count, none for the first."""
    count, place = _varint(value, 0)
    if count == 0:
        return (0,), place
    path = []
    for _ in range(count):
        index, place = _varint(value, place)
        path.append(index)
    return tuple(path), place


def _varint(value: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
