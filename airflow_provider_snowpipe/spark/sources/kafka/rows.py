"""Records as rows: what a value becomes, and the columns for what Kafka knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.sources.kafka.records import add_line_ends, body_of, lines_of, merged
from airflow_provider_snowpipe.spark.sources.kafka.values import value_writer
from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.kafka.records import Records
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
    from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
    from airflow_provider_snowpipe.streaming.limits import BatchLimits


class RowWriter:
    """Writes the records of one topic-partition as NDJSON.

    :param spec: the source
    :param topic: the topic
    :param number: the partition
    :param secrets: for the schema registry
    """

    def __init__(self, spec: KafkaSourceSpec, topic: str, number: int, secrets: SourceSecrets) -> None:
        self._spec = spec
        self._topic = topic
        self._number = number
        self._where = f"topic {topic!r}, partition {number}"
        self._values = value_writer(spec, self._where, secrets)
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
        rows, is_object, faults = self._values.objects(records)
        undecoded = tuple(self._undecoded(records, row, faults[row]) for row in sorted(faults))
        if faults:
            good = np.ones(len(records), bool)
            good[list(faults)] = False
            rows, is_object, records = rows.filter(pa.array(good)), is_object[good], records.taken(good)
        if not len(records):
            return Part(b"", start, end, 0, undecoded=undecoded)
        metadata = metadata_objects(records, self._topic, self._number, self._spec)
        if metadata is not None:
            rows = merged(metadata, rows, is_object)
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
            f"topic {self._topic!r}, partition {self._number}: the record at offset {offset} is a "
            f"tombstone (it "
            "has no value): tombstones='drop' leaves such records out, 'null' loads a row for them"
        )


# -- What Kafka knows of a record, as columns of its row -------------------------------------------------

_HEADER = pa.struct([("key", pa.large_string()), ("value", pa.large_string()), ("base64", pa.large_binary())])
_OPTIONS = NdjsonOptions(explicit_nulls=False)


def metadata_objects(
    records: Records, topic: str, number: int, spec: KafkaSourceSpec
) -> pa.LargeBinaryArray | None:
    """Write the metadata of records as JSON objects, None where none is required.

    :param records: the records, with the fields that the spec wants
    :param topic: their topic
    :param number: their partition
    :param spec: which fields go to which columns
    """
    if not spec.metadata and not spec.record_metadata:
        return None
    fields = _Fields(records, topic, number, spec)
    columns = {column: getattr(fields, field)() for field, column in spec.metadata_columns.items()}
    if spec.record_metadata:
        columns[spec.record_metadata] = fields.record_metadata()
    return lines_of(encode_ndjson(pa.table(columns), _OPTIONS))


class _Fields:
    """The columns; each method is named as its field."""

    def __init__(self, records: Records, topic: str, number: int, spec: KafkaSourceSpec) -> None:
        self._records = records
        self._topic = topic
        self._number = number
        self._key_format = spec.key_format

    def topic(self) -> Any:
        return pa.repeat(pa.scalar(self._topic, pa.large_string()), len(self._records))

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
            raise EncodingError(
                f"topic {self._topic!r}, partition {self._number}: a key at offsets "
                f"{self._records.offsets[0]} to {self._records.offsets[-1]} is not UTF-8: use "
                f"key_format='bytes'"
            ) from None

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
            [_last_by_name(found) if found else None for found in records.headers or ()],
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
    text = _text(value)
    return {"key": key, "value": text, "base64": value if text is None else None}


def _last_by_name(headers: list[tuple[str, bytes | None]]) -> list[tuple[str, str | None]]:
    named = dict(headers)
    return [
        (name, None if value is None else value.decode("utf-8", "replace")) for name, value in named.items()
    ]


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
