"""The data source ``snowpipe_kafka`` of PySpark: topics as a stream of rows for the sink ``snowpipe``.

Spark keeps one reader on its driver, in a helper process, for as long as a query runs, and pickles it to the
tasks (observed with PySpark 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_provider_snowpipe.spark.data_source.schema import KAFKA_PARTITION
from airflow_provider_snowpipe.spark.sources.kafka.stream_options import StreamOptions
from airflow_provider_snowpipe.spark.sources.kafka.stream_places import StreamOffset, StreamPlaces
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader

    from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition
    from airflow_provider_snowpipe.spark.sources.kafka.records import Records

NAME = "snowpipe_kafka"
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
ARROW_SCHEMA = pa.schema(
    [
        pa.field("channel", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    ]
)
"""Columns of the stream. ``channel`` and ``offset`` are the sink's ``channelColumn`` and ``offsetColumn``."""
_FIELDS = frozenset({"timestamp", "key", "headers"})


class KafkaDataSource(DataSource):
    """Topics of a cluster, each topic-partition in order, from behind its channel's committed token."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> StructType:
        """The columns, whatever the topics hold."""
        header = StructType([StructField("key", StringType(), False), StructField("value", BinaryType())])
        return StructType(
            [
                StructField("channel", StringType(), False, {KAFKA_PARTITION: True}),
                StructField("topic", StringType(), False),
                StructField("partition", IntegerType(), False),
                StructField("offset", LongType(), False),
                StructField("timestamp", TimestampType()),
                StructField("key", BinaryType()),
                StructField("value", BinaryType()),
                StructField("headers", ArrayType(header)),
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse ``spark.read``: what a batch would have loaded nobody could tell afterwards.

        :raises ConfigurationError: always
        """
        raise ConfigurationError(
            f"format({NAME!r}) is for readStream, which with trigger(availableNow=True) ends at what is there"
        )

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802  Spark's name
        """Check the options; neither the cluster nor the service is asked yet.

        :raises ConfigurationError: if one is wrong
        """
        return KafkaStreamReader(StreamOptions.parse(self.options))


class TopicRange(InputPartition):
    """What one task reads: part of a topic-partition."""

    def __init__(self, partition: KafkaPartition) -> None:
        super().__init__(partition)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of the stream.

    :param options: what the stream's options say
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._places = StreamPlaces(options)

    def initialOffset(self) -> StreamOffset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return self._places.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the query's end."""
        self._places.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxOffsetsPerTrigger``."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Where the next micro-batch ends."""
        return self._places.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """One task for each topic-partition that has records."""
        return [TopicRange(one) for one in self._places.ranges(start, end)]

    def commit(self, end: StreamOffset) -> None:
        """Let the consumer group follow the committed tokens."""
        self._places.keep()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in order; called in a task.

        :raises SourcePositionError: if retention has taken records meanwhile
        """
        from airflow_provider_snowpipe.spark.sources.kafka.consumer import read_records

        one: KafkaPartition = partition.value
        for records in read_records(
            one.settings,
            one.topic,
            one.number,
            max(one.first, one.bounds.earliest),
            one.bounds.end,
            fields=_FIELDS,
            on_data_loss=one.on_data_loss,
        ):
            yield arrow_rows(one.name, one.topic, one.number, records)


def arrow_rows(channel: str, topic: str, number: int, records: Records) -> pa.RecordBatch:
    """Records as rows of the stream.

    :param channel: what follows the prefix in the channel's name
    :param topic: the topic
    :param number: the partition
    :param records: with timestamps, keys and headers
    """
    rows = len(records)
    stamps: Any = records.timestamps
    keys: Any = records.keys
    headers = [
        [{"key": name, "value": value} for name, value in found] if found else None
        for found in records.headers or ()
    ]
    columns = [
        pa.repeat(pa.scalar(channel, pa.string()), rows),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.repeat(pa.scalar(number, pa.int32()), rows),
        pa.array(records.offsets, pa.int64()),
        stamps.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        keys.cast(pa.binary()),
        records.values.cast(pa.binary()),
        pa.array(headers, ARROW_SCHEMA.field("headers").type),
    ]
    return pa.record_batch(columns, schema=ARROW_SCHEMA)
