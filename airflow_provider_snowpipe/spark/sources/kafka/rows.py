"""Records as rows: what a value becomes, and the columns for what Kafka knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.kafka.metadata import metadata_objects
from airflow_provider_snowpipe.spark.sources.kafka.objects import add_line_ends, body_of, merged
from airflow_provider_snowpipe.spark.sources.kafka.values import value_writer
from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.batch import Part, Undecoded
from airflow_provider_snowpipe.streaming.errors import EncodingError
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
