"""Schemas by their number in a schema registry, the format that carries it, and Protobuf messages as JSON."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.kafka.records import SCHEMA_ID_BYTES, without_head
from airflow_provider_snowpipe.spark.sources.kafka.spec import REGISTRY_TOKEN, REGISTRY_USER_INFO
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    EncodingError,
    SnowpipeError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.table_schema import common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets


_REFUSED = (401, 403)
_MISSING = 404


class SchemaRegistry:
    """A registry; its client keeps what it has read.

    :param url: its address
    :param secrets: of the source, with those of the registry among them
    """

    def __init__(self, url: str, secrets: SourceSecrets) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigurationError(
                f"a schema registry needs the client for it ({error}): install "
                f"airflow-provider-snowpipe[kafka] "
                "where Spark runs, on the driver's and the executors' Python"
            ) from None
        config: dict[str, Any] = {"url": url}
        if REGISTRY_USER_INFO in secrets.values:
            config["basic.auth.user.info"] = secrets.values[REGISTRY_USER_INFO]
        if REGISTRY_TOKEN in secrets.values:
            config["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            config["bearer.auth.token"] = secrets.values[REGISTRY_TOKEN]
        self._url = url
        self._client = SchemaRegistryClient(config)

    def schema(self, number: int, form: str | None = None) -> Any:
        """Read a schema.

        :param number: its number
        :param form: ``serialized`` for Protobuf's descriptors, None for the text
        :raises SourceUnavailableError: if the registry does not answer
        """
        try:
            return self._client.get_schema(number, fmt=form)
        except Exception as error:  # noqa: BLE001  of the HTTP client beneath, which is the library's affair
            raise self._error(f"schema {number}", error) from None

    def referenced(self, subject: str, version: int, form: str | None = None) -> Any:
        """Read a schema that another one refers to.

        :param subject: its subject
        :param version: its version
        :param form: as for :meth:`schema`
        """
        try:
            return self._client.get_version(subject, version, fmt=form).schema
        except Exception as error:  # noqa: BLE001
            raise self._error(f"version {version} of subject {subject!r}", error) from None

    def _error(self, what: str, error: Exception) -> SnowpipeError:
        status = getattr(error, "http_status_code", None)
        where = f"schema registry {self._url}: {what}"
        if status in _REFUSED:
            return AuthenticationError(
                f"{where}: refused (HTTP {status}): put {REGISTRY_USER_INFO!r} or {REGISTRY_TOKEN!r} into "
                "the Kafka connection"
            )
        if status == _MISSING:
            return EncodingError(f"{where}: not there (HTTP 404): records name a schema of another registry")
        return SourceUnavailableError(f"{where}: {type(error).__name__}: check that it runs")


def schema_numbers(values: pa.LargeBinaryArray) -> tuple[np.ndarray, pa.LargeBinaryArray]:
    """Read the numbers that stand ahead of the values, and take their heads off.

    :param values: values in the wire format, none null
    :return: for each value its schema's number, -1 where it has no head; and those that have one, without it
    """
    data = np.frombuffer(memoryview(values.buffers()[2] or b""), np.uint8)
    ends = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)
    starts = ends[:-1]
    numbers = np.full(len(values), -1, np.int64)
    whole = np.flatnonzero(np.diff(ends) >= SCHEMA_ID_BYTES)
    whole = whole[data[starts[whole]] == 0]
    begins = starts[whole]
    numbers[whole] = sum(data[begins + byte].astype(np.int64) << (8 * (4 - byte)) for byte in range(1, 5))
    headed = values if len(whole) == len(values) else values.take(pa.array(whole))
    return numbers, without_head(headed, SCHEMA_ID_BYTES)


# -- Protobuf messages as JSON, by the descriptors that a schema registry gives --------------------------

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
_MESSAGES = {
    "google.protobuf.Timestamp": "TIMESTAMP_TZ(9)",
    "google.protobuf.BytesValue": "BINARY(8388608)",
    "google.protobuf.Int64Value": "NUMBER(38,0)",
    "google.protobuf.UInt64Value": "NUMBER(38,0)",
}


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
        self.types: dict[str, str] = {}
        """Types of the columns, by field, as the messages met so far declare them."""

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
        types = {field.name: kind for field in found.fields if (kind := _column_type(field))}
        self.types.update(common_types(self.types, types))
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


def _column_type(field: Any) -> str | None:
    """The type of a field's column, None where the JSON form of its values shows as much."""
    repeated = getattr(field, "is_repeated", None)
    if field.label == field.LABEL_REPEATED if repeated is None else repeated:
        return "VARIANT"
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return _MESSAGES.get(field.message_type.full_name)
    if field.type == field.TYPE_BYTES:
        return "BINARY(8388608)"
    if field.cpp_type in (
        field.CPPTYPE_INT32,
        field.CPPTYPE_INT64,
        field.CPPTYPE_UINT32,
        field.CPPTYPE_UINT64,
    ):
        return "NUMBER(38,0)"
    return "FLOAT" if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else None


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
    count, at = _varint(value, 0)
    if count == 0:
        return (0,), at
    path = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
