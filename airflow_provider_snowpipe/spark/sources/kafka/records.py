"""Records of one topic-partition as Arrow columns, what Kafka knows of them, and JSON objects as bytes."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, time
from decimal import Context, Decimal
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.source import required_module, row_ranges, varint
from airflow_provider_snowpipe.spark.sources.kafka.spec import REGISTRY_TOKEN, REGISTRY_USER_INFO
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    EncodingError,
    SnowpipeError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson
from airflow_provider_snowpipe.streaming.table_schema import LONGEST_TEXT, common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource


Details = Callable[[int], tuple[bytes | None, Sequence[tuple[str, bytes | None]] | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records, as far as there are some: offsets may have gaps.

    :param offsets: their offsets, rising; int64
    :param values: their values, null for tombstones; large_binary
    :param timestamps: milliseconds since 1970-01-01 UTC, null where the record has none; int64; None if
        nobody asked
    :param log_append_time: True where the broker gave the timestamp; bool; None if nobody asked
    :param keys: their keys; large_binary; None if nobody asked
    :param headers: for each record its headers' names and values, None if it has none; None if nobody asked
    :param details: finds the key and the headers of a record by its offset, whether or not somebody asked
    """

    offsets: np.ndarray
    values: pa.LargeBinaryArray
    timestamps: pa.Array | None = None
    log_append_time: pa.Array | None = None
    keys: pa.Array | None = None
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    details: Details | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        """Bytes of the values."""
        ends = _value_ends(self.values)
        return int(ends[-1] - ends[0])

    def slice(self, start: int, length: int) -> Records:
        """Some of the records, without a copy."""
        return self._each(lambda column: column[start : start + length])

    def taken(self, mask: np.ndarray) -> Records:
        """The records where a mask is true."""
        chosen = pa.array(mask)

        def some(column: Any) -> Any:
            if isinstance(column, pa.Array):
                return column.filter(chosen)
            if isinstance(column, np.ndarray):
                return column[mask]
            return list(compress(column, mask))

        return self._each(some)

    def _each(self, some: Callable[[Any], Any]) -> Records:
        """The records with another form of each column that there is."""
        columns = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "details"}
        return replace(self, **{name: some(one) for name, one in columns.items() if one is not None})

    def pieces(self, most_bytes: int, most_rows: int) -> Iterator[Records]:
        """Divide the records into pieces of bounded size; one record that is larger is its own piece."""
        ends = _value_ends(self.values)
        for start, stop in row_ranges(ends[1:] - ends[0], most_bytes, most_rows):
            yield self if (start, stop) == (0, len(self)) else self.slice(start, stop - start)


def _value_ends(values: Any) -> np.ndarray:
    return np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)


# -- JSON objects as Arrow columns of bytes: checked at their ends, joined and ended as lines, never parsed --

EMPTY = pa.scalar(b"", pa.large_binary())
_LINE_END = pa.scalar(b"\n", pa.large_binary())
_NO_FIELDS = pa.scalar(b"{}", pa.large_binary())
SCHEMA_ID_BYTES = 5
"""A zero and the schema's number in four bytes ("Wire format", Confluent's schema registry)."""


def text_of(values: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """The same bytes as text, for Arrow's functions that take text only; nothing is copied or checked."""
    return values.view(pa.large_string())


def bytes_of(text: pa.LargeStringArray) -> pa.LargeBinaryArray:
    """The same text as bytes."""
    return text.view(pa.large_binary())


def body_of(values: pa.LargeBinaryArray) -> memoryview:
    """All values one behind the other, without a copy; there must be no nulls."""
    if not len(values) or values.buffers()[2] is None:
        return memoryview(b"")
    ends = _value_ends(values)
    return memoryview(values.buffers()[2])[int(ends[0]) : int(ends[-1])]


def add_line_ends(rows: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """End each row."""
    return pc.binary_join_element_wise(rows, EMPTY, _LINE_END)


def lines_of(ndjson: bytes) -> pa.LargeBinaryArray:
    """The lines of NDJSON that ends with a line end, each without its own."""
    data = pa.py_buffer(ndjson)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    offsets = pa.py_buffer(np.concatenate(([0], ends)).astype(np.int64))
    lines = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, offsets, data])
    return bytes_of(pc.ascii_rtrim(text_of(lines), "\n"))


def on_one_line(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Replace line ends by tabs: between JSON's tokens both mean nothing, in its strings both are errors."""
    data = np.frombuffer(body_of(values), np.uint8)
    if not (data == ord("\n")).any():
        return values
    return bytes_of(pc.replace_substring(text_of(values), "\n", "\t"))


def are_objects(values: pa.LargeBinaryArray) -> np.ndarray:
    """True where a value begins with an opening and ends with a closing brace, blanks aside.

    What stands between is for the service to read; a line that is not JSON is skipped and counted there.
    """
    text = text_of(values)
    found: np.ndarray = _has_braces(text)
    if not found.all():
        found = _has_braces(pc.ascii_trim_whitespace(text))
    return found


def _has_braces(text: pa.LargeStringArray) -> np.ndarray:
    both = pc.and_(
        pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")),
        pc.greater_equal(pc.binary_length(text), 2),
    )
    found: np.ndarray = both.to_numpy(zero_copy_only=False)
    return found


def wrapped(values: pa.LargeBinaryArray, column: bytes) -> pa.LargeBinaryArray:
    """Objects with one field.

    :param values: the field's values, as JSON
    :param column: the field's name, as JSON
    """
    head = pa.scalar(b"{" + column + b":", pa.large_binary())
    return pc.binary_join_element_wise(head, values, pa.scalar(b"}", pa.large_binary()), EMPTY)


def merged(first: pa.LargeBinaryArray, second: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Join two columns of objects, row by row, into one.

    The first one's fields come first. Since it is well-formed, the result is an object exactly where the
    second one is: nothing in a record can change the columns that stand before it.

    :param first: objects of ours
    :param second: rows, each with braces around it
    """
    tail = without_ends(bytes_of(pc.ascii_trim_whitespace(text_of(second))), 1)
    empty = pc.or_(
        pc.equal(bytes_of(pc.ascii_ltrim_whitespace(text_of(tail))), pa.scalar(b"}", pa.large_binary())),
        pc.equal(first, _NO_FIELDS),
    )
    comma = pc.if_else(empty, EMPTY, pa.scalar(b",", pa.large_binary()))
    return pc.binary_join_element_wise(without_ends(first, 0, 1), comma, tail, EMPTY)


def without_ends(values: pa.LargeBinaryArray, head: int, tail: int = 0) -> pa.LargeBinaryArray:
    """Each value without as many first and last bytes; none is null.

    Arrow's ``binary_slice`` fails on some columns ("Negative buffer resize", observed with PyArrow 26.0.1).
    """
    data, ends = np.frombuffer(body_of(values), np.uint8), _value_ends(values)
    ends = ends - ends[0]
    kept = np.ones(len(data), bool)
    for byte in range(head):
        kept[ends[:-1] + byte] = False
    for byte in range(tail):
        kept[ends[1:] - 1 - byte] = False
    offsets = ends - (head + tail) * np.arange(len(ends))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[kept])]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def without_schema_ids(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """JSON without the schema registry's head, where a value has one: a zero, which begins no JSON."""
    data, ends = np.frombuffer(body_of(values), np.uint8), _value_ends(values)
    ends = ends - ends[0]
    long_enough = np.flatnonzero(np.diff(ends) >= SCHEMA_ID_BYTES)
    headed = long_enough[data[ends[long_enough]] == 0]
    if not len(headed):
        return values
    heads = np.zeros(len(values), np.int64)
    heads[headed] = SCHEMA_ID_BYTES
    return cut(values, heads, np.zeros(len(values), np.int64))


def cut(values: pa.LargeBinaryArray, heads: np.ndarray, tails: np.ndarray) -> pa.LargeBinaryArray:
    """Values without some bytes at their beginning and at their end; nulls stay."""
    data, ends = np.frombuffer(body_of(values), np.uint8), _value_ends(values)
    ends = ends - ends[0]
    edges = np.zeros(len(data) + 1, np.int8)
    for bounds, step in (
        (ends[:-1], 1), (ends[:-1] + heads, -1), (ends[1:] - tails, 1), (ends[1:], -1),
    ):  # fmt: skip
        np.add.at(edges, bounds, step)
    kept = np.cumsum(edges[:-1], dtype=np.int8) == 0
    offsets = ends - np.concatenate(([0], np.cumsum(heads + tails)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[kept])]
    bare = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    return (
        pc.if_else(values.is_valid(), bare, pa.scalar(None, pa.large_binary())) if values.null_count else bare
    )


# -- What Kafka knows of a record, as columns of its row -------------------------------------------------

_HEADER = pa.struct([("key", pa.large_string()), ("value", pa.large_string()), ("base64", pa.large_binary())])
_OPTIONS = NdjsonOptions(explicit_nulls=False)


def metadata_objects(
    records: Records, topic: str, number: int, spec: KafkaSource, run: str = ""
) -> pa.LargeBinaryArray:
    """Write the metadata of records as JSON objects."""
    fields = _Fields(records, topic, number, spec, run)
    columns = {column: getattr(fields, field)() for column, field in spec.metadata_columns.items()}
    if spec.record_metadata:
        columns[spec.record_metadata] = fields.record_metadata()
    return lines_of(encode_ndjson(pa.table(columns), _OPTIONS))


class _Fields:
    """The columns; each method is named as its field."""

    def __init__(self, records: Records, topic: str, number: int, spec: KafkaSource, run: str) -> None:
        self._records = records
        self._run = run
        self._topic = topic
        self._number = number
        self._key_format = spec.key_format

    def topic(self) -> Any:
        return pa.repeat(pa.scalar(self._topic, pa.large_string()), len(self._records))

    def run_id(self) -> Any:
        return pa.repeat(pa.scalar(self._run, pa.large_string()), len(self._records))

    def partition(self) -> Any:
        return pa.repeat(pa.scalar(self._number, pa.int32()), len(self._records))

    def offset(self) -> Any:
        return pa.array(self._records.offsets)

    def timestamp(self) -> Any:
        assert self._records.timestamps is not None  # noqa: S101  asked for by RowWriter.fields
        return self._records.timestamps.cast(pa.timestamp("ms", "UTC"))

    def key(self) -> Any:
        keys = self._records.keys
        assert keys is not None  # noqa: S101
        if self._key_format == "bytes":
            return keys
        try:
            return keys.cast(pa.large_string())
        except pa.ArrowInvalid:
            raise EncodingError("a key is not UTF-8: use key_format='bytes'") from None

    def headers(self) -> Any:
        """A list of objects with ``key`` and ``value``, or ``base64`` where a value is not UTF-8."""
        return pa.array(
            [[_object(*one) for one in found] if found else None for found in self._records.headers or ()],
            pa.large_list(_HEADER),
        )

    def record_metadata(self) -> Any:
        """What the connector writes to ``RECORD_METADATA``; of headers with the same name the last."""
        records = self._records
        created = pc.if_else(records.log_append_time, pa.scalar(None, pa.int64()), records.timestamps)
        appended = pc.if_else(records.log_append_time, records.timestamps, pa.scalar(None, pa.int64()))
        headers = pa.array(
            [
                [
                    (name, None if value is None else value.decode("utf-8", "replace"))
                    for name, value in dict(found).items()
                ]
                if found
                else None
                for found in records.headers or ()
            ],
            pa.map_(pa.string(), pa.large_string()),
        )
        columns = {
            "topic": self.topic(),
            "partition": self.partition(),
            "offset": self.offset(),
            "CreateTime": created,
            "LogAppendTime": appended,
            "key": self.key(),
            "headers": headers,
        }
        return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _object(key: str, value: bytes | None) -> dict[str, Any]:
    try:
        return {"key": key, "value": None if value is None else value.decode(), "base64": None}
    except UnicodeDecodeError:
        return {"key": key, "value": None, "base64": value}


# -- Schemas by their number in a schema registry, and Protobuf messages as JSON -------------------------

_REFUSED = (401, 403)
_MISSING = 404


class SchemaRegistry:
    """A registry; its client keeps what it has read."""

    def __init__(self, url: str, secrets: SourceSecrets) -> None:
        module = "confluent_kafka.schema_registry"
        client = required_module(module, "a schema registry", "confluent-kafka[schemaregistry]", "kafka")
        config: dict[str, Any] = {"url": url}
        if REGISTRY_USER_INFO in secrets.values:
            config["basic.auth.user.info"] = secrets.values[REGISTRY_USER_INFO]
        if REGISTRY_TOKEN in secrets.values:
            config["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            config["bearer.auth.token"] = secrets.values[REGISTRY_TOKEN]
            # Required by the client, and read by Confluent Cloud alone.
            config |= {"bearer.auth.logical.cluster": "", "bearer.auth.identity.pool.id": ""}
        self._url = url
        self._client = client.SchemaRegistryClient(config)

    def schema(self, number: int, form: str | None = None) -> Any:
        """Read a schema; the form ``serialized`` gives Protobuf's descriptors."""
        return self._asked(f"schema {number}", lambda: self._client.get_schema(number, fmt=form))

    def referenced(self, subject: str, version: int, form: str) -> Any:
        """Read a schema that another one refers to."""
        what = f"version {version} of subject {subject!r}"
        return self._asked(what, lambda: self._client.get_version(subject, version, fmt=form).schema)

    def _asked(self, what: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:  # noqa: BLE001  of the HTTP client beneath, which is the library's affair
            raise self._error(what, error) from None

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
    """Take off the numbers of schemas; a value without one has -1, and is left out of the others."""
    data = np.frombuffer(memoryview(values.buffers()[2] or b""), np.uint8)
    ends = _value_ends(values)
    starts = ends[:-1]
    numbers = np.full(len(values), -1, np.int64)
    whole = np.flatnonzero(np.diff(ends) >= SCHEMA_ID_BYTES)
    whole = whole[data[starts[whole]] == 0]
    begins = starts[whole]
    numbers[whole] = sum(data[begins + byte].astype(np.int64) << (8 * (4 - byte)) for byte in range(1, 5))
    headed = values if len(whole) == len(values) else values.take(pa.array(whole))
    return numbers, without_ends(headed, SCHEMA_ID_BYTES)


# -- Protobuf messages as JSON, by the descriptors that a schema registry gives --------------------------

_SERIALIZED = "serialized"
_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_MESSAGES = {
    "google.protobuf.Timestamp": "TIMESTAMP_TZ(9)",
    "google.protobuf.BytesValue": "BINARY(8388608)",
    "google.protobuf.Int64Value": "NUMBER(38,0)",
    "google.protobuf.UInt64Value": "NUMBER(38,0)",
    "google.type.Date": "DATE",
    "google.type.TimeOfDay": "TIME(9)",
    "google.type.Decimal": LONGEST_TEXT,
    "confluent.type.Decimal": LONGEST_TEXT,
}
_EXACT = Context(prec=100_000)
_VALUES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "google.type.Date": lambda one: date(one["year"], one["month"], one["day"]).isoformat(),
    "google.type.TimeOfDay": lambda one: (
        f"{time(one['hours'], one['minutes'], one['seconds'])}.{one['nanos']:09d}"
    ),
    "google.type.Decimal": lambda one: str(one["value"]),
    "confluent.type.Decimal": lambda one: str(
        Decimal(int.from_bytes(base64.b64decode(one["value"]), "big", signed=True)).scaleb(
            -one["scale"], _EXACT
        )
    ),
}
"""The value of a message whose fields make one, by the message's name."""


class MessageReader:
    """Reads messages; builds each schema's classes once."""

    def __init__(self, registry: SchemaRegistry) -> None:
        required_module("google.protobuf.json_format", "value_format='protobuf'", "protobuf", "kafka")
        self._registry = registry
        self._classes: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._meant: set[Any] = set()
        """Messages that hold one whose fields make one value."""
        self.types: dict[str, str] = {}
        """Types of the columns, by field, as the messages met so far declare them."""

    def as_json(self, number: int, value: bytes) -> bytes:
        """Write a message, behind its indexes, as one line of JSON, with the field names of its schema."""
        from google.protobuf.json_format import MessageToDict

        path, start = _indexes(value)
        kind = self._classes.get((number, path)) or self._learn(number, path)
        message = kind()
        message.ParseFromString(value[start:])
        fields = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        if kind.DESCRIPTOR in self._meant:
            try:
                fields = _meant(kind.DESCRIPTOR, fields)
            except ValueError as error:
                raise EncodingError(f"holds a date or a time of day that is none ({error})") from None
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _learn(self, number: int, path: tuple[int, ...]) -> Any:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message_factory import GetMessageClass

        pool = DescriptorPool()
        for name in _WELL_KNOWN:  # Protobuf's own types, which no registry holds
            own = FileDescriptorProto()
            importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(own)
            pool.Add(own)
        file = self._add(pool, self._registry.schema(number, _SERIALIZED), f"schema-{number}.proto")
        messages = list(file.message_types_by_name.values())
        found = messages[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
        types = {field.name: kind for field in found.fields if (kind := _column_type(field))}
        self.types.update(common_types(self.types, types))
        if _holds_values(found, set()):
            self._meant.add(found)
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
    signed = (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    if field.cpp_type in (*signed, field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return "NUMBER(38,0)"
    return "FLOAT" if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) else None


def _holds_values(message: Any, seen: set[str]) -> bool:
    if message.full_name in _VALUES:
        return True
    if message.full_name in seen:
        return False
    seen.add(message.full_name)
    return any(_holds_values(one.message_type, seen) for one in message.fields if one.message_type)


def _meant(message: Any, value: Any) -> Any:
    """The JSON of a message with one value for each message whose fields make one."""
    if isinstance(value, list):
        return [_meant(message, one) for one in value]
    if not isinstance(value, dict):
        return value
    if message.full_name in _VALUES:
        return _VALUES[message.full_name](value)
    if message.GetOptions().map_entry:
        held = message.fields_by_name["value"].message_type
        return {key: _meant(held, one) if held else one for key, one in value.items()}
    kinds = {one.name: one.message_type for one in message.fields if one.message_type}
    return {name: _meant(kinds[name], one) if name in kinds else one for name, one in value.items()}


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Read where in its file the message's type is: zigzag numbers behind their count, none for the first."""
    count, at = _zigzag(value, 0)
    if count == 0:
        return (0,), at
    path = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        path.append(index)
    return tuple(path), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, at = varint(value, at)
    return (number >> 1) ^ -(number & 1), at
