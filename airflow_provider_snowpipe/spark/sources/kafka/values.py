"""Records as rows: the writer of one topic-partition, and what the values of each format become."""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.table_schema import column_type, common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
    from airflow_provider_snowpipe.streaming.limits import BatchLimits


class RowWriter:
    """Writes the records of one topic-partition as NDJSON."""

    def __init__(self, spec: KafkaSourceSpec, topic: str, number: int, secrets: SourceSecrets) -> None:
        self._spec = spec
        self._topic = topic
        self._number = number
        self._where = f"topic {topic!r}, partition {number}"
        self._values = _value_writer(spec, self._where, secrets)
        every = ("timestamp", "key", "headers") if spec.record_metadata else ()
        self.fields = frozenset((*every, *spec.metadata))

    def piece_bytes(self, limits: BatchLimits) -> int:
        """Bytes of values that make a part at most as large as parts may be."""
        return part_bytes(limits, self._values.growth)

    def part(self, records: Records) -> Part:
        """Write some records as one part; one without rows passes them.

        :raises EncodingError: for a tombstone or a key that the source does not take, naming its offset
        """
        start, end = IntegerOffset(int(records.offsets[0])), IntegerOffset(int(records.offsets[-1]))
        records = self._without_tombstones(records)
        if not len(records):
            return Part(b"", start, end, 0)
        rows, faults = self._values.objects(records)
        undecoded = tuple(self._undecoded(records, row, faults[row]) for row in sorted(faults))
        if faults:
            good = np.ones(len(records), bool)
            good[list(faults)] = False
            rows, records = rows.filter(pa.array(good)), records.taken(good)
        if not len(records):
            return Part(b"", start, end, 0, undecoded=undecoded)
        metadata = metadata_objects(records, self._topic, self._number, self._spec)
        if metadata is not None:
            rows = merged(metadata, rows)
        body = body_of(add_line_ends(rows))
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

    def _undecoded(self, records: Records, row: int, reason: str) -> Undecoded:
        offset = int(records.offsets[row])
        key, headers = (None, None) if records.details is None else records.details(offset)
        payload = records.values[row].as_py()
        reason = f"the value at offset {offset} ({len(payload)} bytes) {reason}"
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
    "is no JSON object: value_column='…' loads any JSON into one column, value_format='text' or 'bytes' "
    "loads it as it is"
)
_NO_PAYLOAD = "is not in the envelope of Kafka Connect with an object as its payload"
_SCHEMA = re.compile(r'\{\s*"schema"\s*:\s*')
_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_MOST_SCHEMAS = 64
"""Envelopes that are parsed for all values that begin like them, in one block; later ones for themselves."""
_NO_JSON = "is no JSON: value_format='text' or 'bytes' loads it as it is"


Faults = Mapping[int, str]
"""Why a value has no form as a row, by the number of its record."""


class _ValueWriter(ABC):
    """Writes the values of records as rows.

    :param where: the topic-partition in words, for errors
    """

    growth: ClassVar[int] = 1
    """How many times longer a value may be as a row."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.types: dict[str, str] = {}
        """Types of columns, by name, as the schemas of the values met so far have them."""

    @abstractmethod
    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Write each value on one line without its end; a tombstone is a row of nulls.

        :return: a line for each record, and the values that have no form as a row, where it means nothing
        """


class _JsonObjects(_ValueWriter):
    """Objects whose keys are columns: passed on as they are.

    :param envelope: True loads the payloads of Kafka Connect's envelopes; None refuses a first value that is
        in one, whose keys are no columns
    """

    def __init__(self, where: str, envelope: bool | None) -> None:
        super().__init__(where)
        self._envelope = envelope

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Check that each value has the braces of an object, and put it on one line."""
        values = without_schema_ids(records.values)
        if self._envelope is None:
            self._refuse_envelope(records.offsets, values)
        elif self._envelope:
            values = payloads(values)
        rows = on_one_line(values.fill_null(b"{}") if values.null_count else values)
        reason = _NO_PAYLOAD if self._envelope else _NO_JSON_OBJECT
        return rows, dict.fromkeys(map(int, np.flatnonzero(~are_objects(rows))), reason)

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


class _JsonValues(_ValueWriter):
    """Any JSON, as the value of one column.

    Each value is parsed: one that is no JSON could end its column and begin another.

    :param envelope: True loads the payloads of Kafka Connect's envelopes
    """

    def __init__(self, where: str, column: str, *, envelope: bool) -> None:
        super().__init__(where)
        self._envelope = envelope
        self._column = json.dumps(column).encode()

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, Faults]:
        """Parse each value and wrap its text."""
        values = without_schema_ids(records.values)
        if self._envelope:
            values = payloads(values)
        rows = on_one_line(values.fill_null(b"null") if values.null_count else values)
        faults = {row: _NO_JSON for row, value in enumerate(rows.to_pylist()) if not _is_json(value)}
        return wrapped(rows, self._column), faults


class _OneColumn(_ValueWriter):
    """Text, or bytes as BASE64, as the value of one column.

    :param text: True for text in UTF-8
    """

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


def _value_writer(spec: KafkaSourceSpec, where: str, secrets: SourceSecrets) -> _ValueWriter:
    """Choose how values are written."""
    if spec.value_format in ("avro", "protobuf"):
        registry = SchemaRegistry(spec.schema_registry_url or "", secrets)
        return (_AvroValues if spec.value_format == "avro" else _ProtobufValues)(where, registry)
    if spec.value_format in ("text", "bytes"):
        return _OneColumn(where, spec.value_column or "", text=spec.value_format == "text")
    if spec.value_column:
        return _JsonValues(where, spec.value_column, envelope=spec.connect_envelope is True)
    return _JsonObjects(where, spec.connect_envelope)


def payloads(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """The payloads of Kafka Connect's JSON envelopes, byte by byte; a blank where a value is in none.

    Values with the same schema begin with the same bytes, so that one of them is parsed for all.

    :param values: JSON values, some of them null
    """
    trimmed = bytes_of(pc.ascii_trim_whitespace(text_of(values)))
    lengths = pc.fill_null(pc.binary_length(trimmed), 0).to_numpy().astype(np.int64)
    left = pc.fill_null(pc.ends_with(text_of(trimmed), "}"), False).to_numpy(zero_copy_only=False)
    # What is cut away whole is no JSON and stays null where it was null.
    heads = lengths.copy()
    tails = np.zeros(len(values), np.int64)
    parsed = 0
    while left.any():
        first = int(np.argmax(left))
        head = _envelope_head(trimmed[first].as_py())
        same = np.zeros(len(values), bool)
        same[first] = True
        if head is not None:
            if parsed < _MOST_SCHEMAS:
                begins = pc.starts_with(text_of(trimmed), head)
                same = left & pc.fill_null(begins, False).to_numpy(zero_copy_only=False)
            parsed += 1
            heads[same], tails[same] = len(head), 1
        left = left & ~same
    return cut(trimmed, heads, tails)


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


def _envelope_head(value: bytes) -> bytes | None:
    """What stands in an envelope ahead of its payload, None for a value that is in none."""
    try:
        text = value.decode()
        begin = _SCHEMA.match(text)
        if begin is None:
            return None
        _, end = json.JSONDecoder().raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return None
    payload = _PAYLOAD.match(text, end)
    return None if payload is None else text[: payload.end()].encode()


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _not_utf8(values: pa.LargeBinaryArray) -> Iterator[int]:
    """Find the values that are not UTF-8."""
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

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where)
        self._registry = registry

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
            lines, unreadable = self._lines(int(number), values.take(pa.array(chosen)))
            blocks.append(lines)
            indexes.append(rows[chosen])
            faults.update((int(rows[chosen[one]]), reason) for one, reason in unreadable.items())
        empty = np.setdiff1d(np.arange(len(records)), rows)
        blocks.append(pa.array([b"{}"] * len(empty), pa.large_binary()))
        indexes.append(empty)
        order = np.argsort(np.concatenate(indexes), kind="stable")
        return pa.concat_arrays(blocks).take(pa.array(order)), faults

    def _lines(self, number: int, values: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Faults]:
        """Decode values of one schema at once, and one by one where some of them cannot be decoded."""
        try:
            return self._decoded(number, values), {}
        except EncodingError:
            lines, faults = [], {}
        for row in range(len(values)):
            try:
                lines.append(self._decoded(number, values.slice(row, 1)))
            except EncodingError as error:
                lines.append(pa.array([b"{}"], pa.large_binary()))
                faults[row] = str(error)
        return pa.concat_arrays(lines), faults

    @abstractmethod
    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode values of one schema.

        :raises EncodingError: if one of them cannot be decoded
        """


def _unreadable(number: int, reason: str) -> EncodingError:
    return EncodingError(f"was not written with schema {number}, which it names ({reason})")


class _AvroValues(_RegisteredValues):
    """Avro records."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        self._avro = required_module("fastavro", "value_format='avro'", "fastavro", "kafka")
        self._known: dict[int, AvroRows] = {}

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode records one behind the other, each of which must end where its value does."""
        rows = self._known.get(number) or self._learn(number)
        stream = io.BytesIO(body_of(values))
        read, schema, position = self._avro.schemaless_reader, rows.read_schema, stream.tell
        records = []
        try:
            for end in np.cumsum(pc.binary_length(values)).tolist():
                records.append(read(stream, schema, None))
                if position() != end:
                    raise _unreadable(number, "it is too long or too short")
            array = pa.array(records, pa.struct(list(rows.arrow)))
        except (ValueError, LookupError, TypeError, EOFError, pa.ArrowException) as error:
            raise _unreadable(number, type(error).__name__) from None
        batch = pa.RecordBatch.from_struct_array(array)
        return lines_of(encode_ndjson(batch)) if len(batch) else pa.array([], pa.large_binary())

    def _learn(self, number: int) -> AvroRows:
        found = self._registry.schema(number)
        if found.references:
            raise EncodingError(
                f"names the Avro schema {number}, which refers to others, which is not supported: register "
                "it with its types inside"
            )
        try:
            rows = rows_of(json.loads(found.schema_str))
        except EncodingError as error:
            raise EncodingError(f"names the Avro schema {number}: {error}") from None
        types = {field.name: kind for field in rows.arrow if (kind := column_type(field.type))}
        self.types = common_types(self.types, types)
        self._known[number] = replace(rows, read_schema=self._avro.parse_schema(rows.read_schema))
        return self._known[number]


class _ProtobufValues(_RegisteredValues):
    """Protobuf messages, in the JSON form that Protobuf itself defines: 64-bit integers are texts there."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        self._messages = MessageReader(registry)
        self.types = self._messages.types

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        from google.protobuf.message import DecodeError

        try:
            lines = [self._messages.as_json(number, value) for value in values.to_pylist()]
        except (DecodeError, IndexError) as error:
            raise _unreadable(number, type(error).__name__) from None
        return pa.array(lines, pa.large_binary())
