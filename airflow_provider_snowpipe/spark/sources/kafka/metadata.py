"""What Kafka knows of a record, as columns of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.sources.kafka.objects import lines_of
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.kafka.records import Records
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec

_HEADER = pa.struct([("key", pa.large_string()), ("value", pa.large_string()), ("base64", pa.large_binary())])
_OPTIONS = NdjsonOptions(explicit_nulls=False)


def metadata_objects(
    records: Records, topic: str, number: int, spec: KafkaSourceSpec
) -> pa.LargeBinaryArray | None:
    """Write the metadata of records as JSON objects, None where none is wanted.

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
