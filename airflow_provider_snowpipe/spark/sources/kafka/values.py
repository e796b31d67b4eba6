"""Records as rows: the writer of one topic-partition, and what the values of each format become."""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.source import part_bytes, required_module
from airflow_provider_snowpipe.spark.sources.files.avro_format import AvroRows, rows_of
from airflow_provider_snowpipe.spark.sources.kafka.records import (
    MessageReader,
    Records,
    SchemaRegistry,
    add_line_ends,
    are_objects,
    body_of,
    bytes_of,
    cut,
    lines_of,
    merged,
    metadata_objects,
    on_one_line,
    schema_numbers,
    text_of,
    without_schema_ids,
    wrapped,
)
from airflow_provider_snowpipe.spark.sources.logical_types import JsonTypes, column_types, json_types
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.errors import EncodingError, SnowpipeError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.table_schema import common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource
    from airflow_provider_snowpipe.streaming.arguments import UnknownTypes
    from airflow_provider_snowpipe.streaming.limits import BatchLimits


class RowWriter:
    """Writes the records of one topic-partition as NDJSON."""

    def __init__(
        self, spec: KafkaSource, topic: str, number: int, secrets: SourceSecrets, run: str = ""
    ) -> None:
        self._spec = spec
        self._run = run
        self._topic = topic
        self._number = number
        self._where = f"topic {topic!r}, partition {number}"
        self._values = _value_writer(spec, self._where, secrets)
        every = ("timestamp", "key", "headers") if spec.record_metadata else ()
        self.fields = frozenset((*every, *spec.metadata_columns.values()))

    def piece_bytes(self, limits: BatchLimits) -> int:
        """Bytes of values that make a part at most as large as parts may be."""
        return part_bytes(limits, self._values.growth)

    def part(self, records: Records) -> Part:
        """Write some records as one part; one without rows passes them."""
        start, end = IntegerOffset(int(records.offsets[0])), IntegerOffset(int(records.offsets[-1]))
        records = self._without_tombstones(self._values.with_tombstones(records))
        if not len(records):
            return Part(b"", start, end, 0)
        rows, faults = self._values.objects(records)
        metadata, unwritten = _one_by_one(self._metadata, records) if self.fields else (rows, {})
        faults = {**unwritten, **faults}
        undecoded = tuple(self._undecoded(records, row, faults[row]) for row in sorted(faults))
        if faults:
            good = np.ones(len(records), bool)
            good[list(faults)] = False
            rows, metadata = (one.filter(pa.array(good)) for one in (rows, metadata))
            records = records.taken(good)
        if not len(records):
            return Part(b"", start, end, 0, undecoded=undecoded)
        body = body_of(add_line_ends(merged(metadata, rows) if self.fields else rows))
        offsets = records.offsets
        return Part(
            body,
            start,
            end,
            len(records),
            lambda row: IntegerOffset(int(offsets[row])),
            undecoded,
            self._values.types,
        )

    def _metadata(self, records: Records) -> pa.LargeBinaryArray:
        try:
            return metadata_objects(records, self._topic, self._number, self._spec, self._run)
        except EncodingError as error:
            raise EncodingError(f"has metadata that no row can have: {error}") from None

    def _undecoded(self, records: Records, row: int, reason: str) -> Undecoded:
        offset = int(records.offsets[row])
        key, headers = (None, None) if records.details is None else records.details(offset)
        payload = records.values[row].as_py() or b""
        reason = f"the record at offset {offset} ({len(payload)} bytes) {reason}"
        return Undecoded(
            IntegerOffset(offset), f"{self._where}: {reason}", payload, key, tuple(headers or ())
        )

    def _without_tombstones(self, records: Records) -> Records:
        if not records.values.null_count or self._spec.tombstones == "null":
            return records
        filled: np.ndarray = records.values.is_valid().to_numpy(zero_copy_only=False)
        if self._spec.tombstones == "drop":
            return records.taken(filled)
        offset = int(records.offsets[~filled][0])
        raise EncodingError(
            f"topic {self._topic!r}, partition {self._number}: the record at offset {offset} is a tombstone "
            "(it has no value): tombstones='drop' leaves such records out, 'null' loads a row for them"
        )


_NO_JSON_OBJECT = (
    "is not a JSON object: value_column='…' loads any JSON into one column, value_format='text' or 'bytes' "
    "loads it as it is"
)
_NO_PAYLOAD = "is not in the envelope of Kafka Connect with an object as its payload"
_SCHEMA = re.compile(r'\{\s*"schema"\s*:\s*')
_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_MOST_SCHEMAS = 64
"""Envelopes that are parsed for all values that begin like them, in one block; later ones for themselves."""
_NO_JSON = "is not JSON: value_format='text' or 'bytes' loads it as it is"


Faults = Mapping[int, str]
"""Why a value has no form as a row, by the number of its record."""


class _ValueWriter(ABC):
    """Writes the values of records as rows."""

    growth: ClassVar[int] = 1
    """How many times longer a value may be as a row."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.types: dict[str, str] = {}
        """Types of columns, by name, as the schemas of the values met so far have them."""

    def with_tombstones(self, records: Records) -> Records:
        """Records whose values are null where they stand for a record without one."""
        return records

    @abstractmethod
    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Write each value on one line without its end; a tombstone is a row of nulls.

        :return: a line for each record, and the values that have no form as a row, where it means nothing
        """


OpenRegistry = Callable[[], SchemaRegistry]
"""Opens a schema registry when the first value names a schema of it."""


class _Json(_ValueWriter):
    """Values that are JSON; a schema may say what they mean, in their envelope or in a registry.

    :param envelope: True loads the payloads of Kafka Connect's envelopes
    :param registry: where the schemas of the registry's wire format are, None to leave them unread
    """

    def __init__(
        self, where: str, unknown: UnknownTypes, registry: OpenRegistry | None, envelope: bool | None
    ) -> None:
        super().__init__(where)
        self._unknown, self._registry, self._envelope = unknown, registry, envelope
        self._known: dict[bytes | int, JsonTypes | EncodingError | None] = {}

    def with_tombstones(self, records: Records) -> Records:
        """Take an envelope without a payload for a record without a value."""
        if not self._envelope:
            return records
        found, _ = payloads(without_schema_ids(records.values))
        empty = pc.fill_null(pc.equal(found, pa.scalar(b"null", pa.large_binary())), False)
        if not pc.any(empty).as_py():
            return records
        nothing = pa.scalar(None, pa.large_binary())
        return replace(records, values=pc.if_else(empty, nothing, records.values))

    def _bodies(self, values: pa.LargeBinaryArray, empty: bytes) -> tuple[pa.LargeBinaryArray, Faults]:
        """The JSON of values, each on one line, as what its schema says; ``empty`` stands for null."""
        schemas: list[tuple[bytes | int, np.ndarray]] = []
        bodies = without_schema_ids(values)
        if self._envelope:
            bodies, schemas = payloads(bodies)
        elif self._registry is not None:
            filled = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            numbers, _ = schema_numbers(values.drop_null())
            schemas = [(int(one), filled[numbers == one]) for one in np.unique(numbers[numbers >= 0])]
        rows = on_one_line(bodies.fill_null(empty) if bodies.null_count else bodies)
        faults: dict[int, str] = {}
        blocks, indexes = [rows], [np.arange(len(rows))]
        for schema, chosen in schemas:
            types = self._types(schema)
            if isinstance(types, EncodingError):
                faults.update(dict.fromkeys(map(int, chosen), str(types)))
            elif types is not None and types.translates:
                lines, unreadable = _one_by_one(types.written, rows.take(pa.array(chosen)))
                faults.update((int(chosen[one]), reason) for one, reason in unreadable.items())
                blocks.append(lines)
                indexes.append(chosen)
        if len(blocks) > 1:
            latest = np.zeros(len(rows), np.int64)
            latest[np.concatenate(indexes)] = np.arange(sum(map(len, indexes)))
            rows = pa.concat_arrays(blocks).take(pa.array(latest))
        return rows, faults

    def _types(self, schema: bytes | int) -> JsonTypes | EncodingError | None:
        if schema not in self._known:
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            try:
                self._known[schema] = types = self._learn(schema)
                self.types = common_types(self.types, {} if types is None else types.types)
            except EncodingError as error:
                self._known[schema] = error
        return self._known[schema]

    def _learn(self, schema: bytes | int) -> JsonTypes | None:
        if isinstance(schema, bytes):
            return JsonTypes.of(json.loads(schema), self._unknown)
        if self._registry is None:
            return None
        return json_types(self._registry().schema(schema).schema_str, self._unknown)


class _JsonObjects(_Json):
    """Objects whose keys are columns: passed on as they are, where no schema says what a value means.

    An ``envelope`` of None refuses a first value that is in one, whose keys are not columns.
    """

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Check that each value has the braces of an object, and put it on one line."""
        if self._envelope is None:
            self._refuse_envelope(records.offsets, without_schema_ids(records.values))
        rows, faults = self._bodies(records.values, b"{}")
        reason = _NO_PAYLOAD if self._envelope else _NO_JSON_OBJECT
        return rows, {**dict.fromkeys(map(int, np.flatnonzero(~are_objects(rows))), reason), **faults}

    def _refuse_envelope(self, offsets: np.ndarray, values: pa.LargeBinaryArray) -> None:
        """Read the first value alone: a topic is written by one converter."""
        filled = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        if not len(filled):
            return
        first = int(filled[0])
        if _is_envelope(values[first].as_py()):
            raise EncodingError(
                f"{self._where}: the value at offset {int(offsets[first])} is in the envelope of Kafka "
                "Connect (schema and payload, from JsonConverter with schemas.enable): connect_envelope=True "
                "loads the payload's keys, connect_envelope=False the columns SCHEMA and PAYLOAD"
            )
        self._envelope = False


class _JsonValues(_Json):
    """Any JSON, as the value of one column.

    Each value is parsed: one that is not JSON could end its column and begin another.
    """

    column: str = ""

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Parse each value and wrap its text."""
        rows, faults = self._bodies(records.values, b"null")
        bad = {row: _NO_JSON for row, value in enumerate(rows.to_pylist()) if not _is_json(value)}
        self.types = {}
        return wrapped(rows, json.dumps(self.column).encode()), {**bad, **faults}


class _OneColumn(_ValueWriter):
    """Text, or bytes as BASE64, as the value of one column."""

    growth = 8

    def __init__(self, where: str, column: str, *, text: bool) -> None:
        super().__init__(where)
        self._column = column
        self._text = text

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Write the values by Arrow."""
        values: Any = records.values
        faults: Faults = {}
        if self._text:
            try:
                values = values.cast(pa.large_string())
            except pa.ArrowInvalid:
                faults = dict.fromkeys(_not_utf8(values), "is not UTF-8 text: use value_format='bytes'")
                good = [row not in faults for row in range(len(values))]
                values = pc.if_else(pa.array(good), values, pa.scalar(None, values.type)).cast(
                    pa.large_string()
                )
        return lines_of(encode_ndjson(pa.table({self._column: values}))), faults


def _value_writer(spec: KafkaSource, where: str, secrets: SourceSecrets) -> _ValueWriter:
    url, unknown = spec.schema_registry_url, spec.unknown_types
    if spec.value_format in ("avro", "protobuf"):
        registry = SchemaRegistry(url or "", secrets)
        if spec.value_format == "avro":
            return _AvroValues(where, registry, unknown)
        return _ProtobufValues(where, registry, unknown)
    if spec.value_format in ("text", "bytes"):
        return _OneColumn(where, spec.value_column or "", text=spec.value_format == "text")
    schemas = cache(partial(SchemaRegistry, url, secrets)) if url else None
    if spec.value_column:
        writer = _JsonValues(where, unknown, schemas, spec.connect_envelope is True)
        writer.column = spec.value_column
        return writer
    return _JsonObjects(where, unknown, schemas, spec.connect_envelope)


def payloads(values: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, list[tuple[bytes | int, np.ndarray]]]:
    """The payloads of Kafka Connect's JSON envelopes, byte by byte; a blank where a value is in none.

    Values with the same schema begin with the same bytes, so that one of them is parsed for all.

    :return: the payloads, and the schemas that there are, each with the values that it describes
    """
    trimmed = bytes_of(pc.ascii_trim_whitespace(text_of(values)))
    lengths = pc.fill_null(pc.binary_length(trimmed), 0).to_numpy().astype(np.int64)
    left = pc.fill_null(pc.ends_with(text_of(trimmed), "}"), False).to_numpy(zero_copy_only=False)
    # What is cut away whole is not JSON and stays null where it was null.
    heads = lengths.copy()
    tails = np.zeros(len(values), np.int64)
    schemas: list[tuple[bytes | int, np.ndarray]] = []
    while left.any():
        first = int(np.argmax(left))
        found = _envelope_head(trimmed[first].as_py())
        same = np.zeros(len(values), bool)
        same[first] = True
        if found is not None:
            head, schema = found
            if len(schemas) < _MOST_SCHEMAS:
                begins = pc.starts_with(text_of(trimmed), head)
                same = left & pc.fill_null(begins, False).to_numpy(zero_copy_only=False)
            schemas.append((schema, np.flatnonzero(same)))
            heads[same], tails[same] = len(head), 1
        left = left & ~same
    bare = cut(trimmed, heads, tails)
    return bytes_of(pc.ascii_trim_whitespace(text_of(bare))), schemas


def _is_envelope(value: bytes) -> bool:
    if b'"payload"' not in value:
        return False
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(found, dict)
        and found.keys() == {"schema", "payload"}
        and isinstance(found["schema"], dict)
        and isinstance(found["schema"].get("type"), str)
    )


def _envelope_head(value: bytes) -> tuple[bytes, bytes] | None:
    """What stands in an envelope ahead of its payload, and the schema; None for a value that is in none."""
    try:
        text = value.decode()
        begin = _SCHEMA.match(text)
        if begin is None:
            return None
        _, end = json.JSONDecoder().raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return None
    payload = _PAYLOAD.match(text, end)
    if payload is None:
        return None
    return text[: payload.end()].encode(), text[begin.end() : end].encode()


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _not_utf8(values: pa.LargeBinaryArray) -> Iterator[int]:
    for row, value in enumerate(values.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            yield row


# -- Avro and Protobuf values whose schemas are in a schema registry -------------------------------------
#
# Their rows become Python objects on the way: for Avro inside compiled code (fastavro and Arrow), for
# Protobuf one by one.

_NO_HEAD = "does not begin as the schema registry's wire format does: use the value_format that wrote it"


class _RegisteredValues(_ValueWriter):
    """Values that name their schema."""

    growth: ClassVar[int] = 8

    def __init__(self, where: str, registry: SchemaRegistry, unknown: UnknownTypes) -> None:
        super().__init__(where)
        self._registry, self._unknown = registry, unknown

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Decode the values, those of each schema at once, in their order."""
        filled: np.ndarray = records.values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(filled)
        numbers, values = schema_numbers(records.values.drop_null())
        faults = dict.fromkeys(map(int, rows[numbers < 0]), _NO_HEAD)
        rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        blocks, indexes = [], []
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            decode = partial(self._decoded, int(number))
            lines, unreadable = _one_by_one(decode, values.take(pa.array(chosen)))
            blocks.append(lines)
            indexes.append(rows[chosen])
            faults.update((int(rows[chosen[one]]), reason) for one, reason in unreadable.items())
        empty = np.setdiff1d(np.arange(len(records)), rows)
        blocks.append(pa.array([b"{}"] * len(empty), pa.large_binary()))
        indexes.append(empty)
        order = np.argsort(np.concatenate(indexes), kind="stable")
        return pa.concat_arrays(blocks).take(pa.array(order)), faults

    @abstractmethod
    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode values of one schema.

        :raises EncodingError: if one of them cannot be decoded
        """


def _one_by_one(
    decode: Callable[[Any], pa.LargeBinaryArray], values: pa.LargeBinaryArray | Records
) -> tuple[pa.LargeBinaryArray, Faults]:
    """Decode values at once, and one by one where some of them cannot be decoded."""
    try:
        return decode(values), {}
    except EncodingError:
        lines, faults = [], {}
    for row in range(len(values)):
        try:
            lines.append(decode(values.slice(row, 1)))
        except EncodingError as error:
            lines.append(pa.array([b"{}"], pa.large_binary()))
            faults[row] = str(error)
    return pa.concat_arrays(lines), faults


def _unreadable(number: int, reason: str) -> EncodingError:
    return EncodingError(f"was not written with schema {number}, which it names ({reason})")


class _AvroValues(_RegisteredValues):
    def __init__(self, where: str, registry: SchemaRegistry, unknown: UnknownTypes) -> None:
        super().__init__(where, registry, unknown)
        self._avro = required_module("fastavro", "value_format='avro'", "fastavro", "kafka")
        self._known: dict[int, AvroRows] = {}

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode records one behind the other; each must end where its value does."""
        rows = self._known.get(number) or self._learn(number)
        stream = io.BytesIO(body_of(values))
        read, schema, position = self._avro.schemaless_reader, rows.read_schema, stream.tell
        records = []
        try:
            for end in np.cumsum(pc.binary_length(values)).tolist():
                records.append(read(stream, schema, None))
                if position() != end:
                    raise _unreadable(number, "it is too long or too short")
            batch = rows.batch(records)
        except SnowpipeError:
            raise
        except Exception as error:
            raise _unreadable(number, type(error).__name__) from error
        return lines_of(encode_ndjson(batch)) if len(batch) else pa.array([], pa.large_binary())

    def _learn(self, number: int) -> AvroRows:
        found = self._registry.schema(number)
        if found.references:
            raise EncodingError(
                f"names the Avro schema {number}, which refers to others, which is not supported: register "
                "it with its types inside"
            )
        try:
            rows = rows_of(json.loads(found.schema_str), self._unknown)
        except EncodingError as error:
            raise EncodingError(f"names the Avro schema {number}: {error}") from None
        self.types = common_types(self.types, column_types(rows.arrow))
        self._known[number] = replace(rows, read_schema=self._avro.parse_schema(rows.read_schema))
        return self._known[number]


class _ProtobufValues(_RegisteredValues):
    """Protobuf messages, in the JSON form that Protobuf itself defines: 64-bit integers are texts there."""

    def __init__(self, where: str, registry: SchemaRegistry, unknown: UnknownTypes) -> None:
        super().__init__(where, registry, unknown)
        self._messages = MessageReader(registry)
        self.types = self._messages.types

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        try:
            lines = [self._messages.as_json(number, value) for value in values.to_pylist()]
        except SnowpipeError:
            raise
        except Exception as error:
            raise _unreadable(number, type(error).__name__) from error
        return pa.array(lines, pa.large_binary())
