"""The data source ``snowpipe_kafka`` of PySpark: topics as a stream of rows for the sink ``snowpipe``.

Spark keeps one reader on its driver, in a helper process, for as long as a query runs, and pickles it to the
tasks (observed with PySpark 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

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

from airflow_provider_snowpipe.spark.credentials import standing_secrets
from airflow_provider_snowpipe.spark.data_source.options import OPTIONS as WRITE_OPTIONS
from airflow_provider_snowpipe.spark.data_source.options import one_of
from airflow_provider_snowpipe.spark.data_source.schema import SOURCE_PARTITION
from airflow_provider_snowpipe.spark.sources.kafka.cluster import Bounds, TopicAndNumber
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition, KafkaSource
from airflow_provider_snowpipe.spark.sources.kafka.spec import SECRETS, KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName, check_channel_name
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

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
                StructField("channel", StringType(), False, {SOURCE_PARTITION: True}),
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
        self._positions = StreamPositions(options)

    def initialOffset(self) -> StreamOffset:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return self._positions.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the query's end."""
        self._positions.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxOffsetsPerTrigger``."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Where the next micro-batch ends."""
        return self._positions.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """One task for each topic-partition that has records."""
        return [TopicRange(one) for one in self._positions.ranges(start, end)]

    def commit(self, end: StreamOffset) -> None:
        """Let the consumer group follow the committed tokens."""
        self._positions.keep()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range in order; called in a task.

        :raises SourcePositionError: if retention has taken records meanwhile
        """
        from airflow_provider_snowpipe.spark.sources.kafka.reader import read_records

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


# -- The options of ``readStream.format("snowpipe_kafka")``: topics, and the channels that their rows go to --

_CLIENT = "kafka."
"""How options begin whose rest is a setting of librdkafka."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the options of one stream say; holds no credential.

    :param spec: the topics
    :param on_data_loss: what to do if retention has taken the record after the committed one
    :param max_offsets: offsets of one micro-batch over all partitions, None for all that is there
    :param account_url: the account's address
    :param pipe: the pipe that the sink writes to
    :param channel_prefix: first part of the sink's channels
    :param credentials_file: path of the credentials file on the driver, None for the environment's
    :param ca_bundle: PEM file of trusted roots
    """

    spec: KafkaSourceSpec
    on_data_loss: OnDataLoss
    max_offsets: int | None
    account_url: str
    pipe: PipeName
    channel_prefix: str
    credentials_file: str | None
    ca_bundle: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options as Spark gives them; their names have no case.

        :param options: names and texts
        :raises ConfigurationError: for an option that is unknown, missing, wrong, or at odds with another
        """
        values, client = _checked(options)
        table, pipe = values["table"], values["pipe"]
        if (table is None) == (pipe is None):
            raise ConfigurationError("give exactly one of the options table and pipe, as for the sink")
        location = values["database"], values["schema"]
        check_channel_name(f"{values['channelPrefix']}_0")
        keys = {key: values[name] for name, key in _OF_SOURCE.items() if values[name] is not None}
        return cls(
            spec=KafkaSourceSpec.from_mapping({**keys, "options": client}),
            on_data_loss=values["onDataLoss"] or "fail",
            max_offsets=values["maxOffsetsPerTrigger"],
            account_url=values["accountUrl"],
            pipe=PipeName(*location, pipe)
            if pipe is not None
            else PipeName.default_for_table(*location, table),
            channel_prefix=values["channelPrefix"],
            credentials_file=values["credentialsFile"],
            ca_bundle=values["caBundle"],
        )

    def channel(self, partition: str) -> str:
        """Name the channel of a topic-partition, as the job and the connector do."""
        return self.spec.channel(self.channel_prefix, self.spec.default_name, partition)


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise ConfigurationError(f"option {name} is empty: give it a value, or leave it out")
    return value


def _names(name: str, value: str) -> list[str]:
    return [_text(name, one).strip() for one in value.split(",")]


def _seconds(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(f"option {name} is {value!r}: it must be seconds above 0") from None


def _count(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ConfigurationError(f"option {name} is {value!r}: it must be a whole number, 1 or more")
    return int(value)


_OF_SOURCE = {
    "bootstrapServers": "bootstrap_servers",
    "topics": "topics",
    "topicPattern": "topic_pattern",
    "start": "start",
    "startTimestamp": "start_timestamp",
    "isolation": "isolation",
    "groupId": "group_id",
    "timeoutSeconds": "timeout_seconds",
}
"""Options that are keys of a Kafka source, whose own checks they pass."""
_OF_SINK = (
    "accountUrl",
    "credentialsFile",
    "caBundle",
    "database",
    "schema",
    "table",
    "pipe",
    "channelPrefix",
)
"""Options that the sink has, too, and that have to say the same on both sides."""
_READ: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(_OF_SOURCE, _text),
    "topics": _names,
    "timeoutSeconds": _seconds,
    "onDataLoss": one_of("fail", "skip"),
    "maxOffsetsPerTrigger": _count,
    **{name: WRITE_OPTIONS[name].read for name in _OF_SINK},
}
_REQUIRED = ("bootstrapServers", *(name for name in _OF_SINK if WRITE_OPTIONS[name].required))
_BY_LOWER = {name.lower(): name for name in _READ}


def _checked(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    given: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in options.items():
        known = _BY_LOWER.get(name.lower())
        if known is not None:
            given[known] = value
        elif name.lower().startswith(_CLIENT):
            client[name.lower().removeprefix(_CLIENT)] = value
        else:
            raise ConfigurationError(
                f"option {name!r} is unknown: use {', '.join(sorted(_READ))}, or {_CLIENT}<setting of "
                "librdkafka>; no credential is an option"
            )
    for name in sorted(SECRETS & set(client)):
        raise ConfigurationError(
            f"option {_CLIENT}{name} is a secret, and options are shown in plans and logs: write it into the "
            "credentials file with write_credentials(..., secrets=SourceSecrets(...)), and replace what was "
            "given here if others may have seen it"
        )
    for name in _REQUIRED:
        if name not in given:
            raise ConfigurationError(f"option {name} is missing: add .option({name!r}, ...) to the read")
    return {name: read(name, given[name]) if name in given else None for name, read in _READ.items()}, client


# -- Where a stream of topics begins and ends its micro-batches ------------------------------------------
#
# An offset of the stream is an object of topics, each an object of partitions, with the next offset to
# read. Spark keeps it in its checkpoint. The bookmark is the channels' committed tokens all the same:
# whenever a query starts, with or without a checkpoint, its first micro-batch begins just behind them.

StreamOffset = dict[str, dict[str, int]]
_Positions = dict[TopicAndNumber, int]


class StreamPositions:
    """The positions of one query, kept on the driver while it runs.

    :param options: what the stream's options say
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._known: dict[TopicAndNumber, KafkaPartition] = {}
        self._source = KafkaSource(options.spec, options.on_data_loss)
        self._started = False
        self._last: _Positions | None = None

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint begins: behind the tokens, else as the options say.

        :raises SnowpipeError: if the cluster or the service cannot be asked
        """
        known = self._look()
        committed = self._committed(known, checked=True)
        self._keep_start(committed)
        return _offset({one: committed.get(one, partition.first - 1) + 1 for one, partition in known.items()})

    def fix_end(self) -> None:
        """Let the query end at what is there now."""
        self._last = {one: partition.bounds.end for one, partition in self._look().items()}

    def latest(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """Where the next micro-batch ends.

        :param start: where it begins
        :param limit: offsets over all partitions, None for all that is there
        :raises SourcePositionError: if a topic is not the one that the query has read before
        """
        begins, ends = _positions(start), self._ends()
        for one, begin in begins.items():
            if one in self._known:
                _refuse_beyond(self._known[one], begin)
        first = {one: begins.get(one, self._known[one].bounds.earliest) for one in ends}
        left = {one: max(end - first[one], 0) for one, end in ends.items()}
        if limit is not None and sum(left.values()) > limit:
            left = _shares(left, limit)
        return _offset({one: first[one] + left[one] for one in ends})

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[KafkaPartition]:
        """What the tasks of a micro-batch read, one range for each topic-partition that has some.

        :param start: where the micro-batch begins by Spark's checkpoint
        :param end: where it ends
        :raises SourcePositionError: if a range is not in its topic any more
        """
        begins, ends = _positions(start), _positions(end)
        known = self._known
        if not self._started or not set(ends) <= set(known):
            known = self._look()
        begins = {one: begins.get(one, known[one].bounds.earliest) for one in ends if one in known}
        if not self._started:
            committed = self._committed(known, checked=True)
            begins |= {one: offset + 1 for one, offset in committed.items() if one in begins}
            self._keep_start(committed)
        ranges = [
            _between(self._of(known, one), begins.get(one, 0), stop) for one, stop in sorted(ends.items())
        ]
        return [one for one in ranges if one.resume(_before(one.first)) is not None]

    def keep(self) -> None:
        """Move the group's offsets behind the committed tokens; called when a micro-batch is done."""
        if self._options.spec.group_id is not None:
            self._finish(self._committed(self._known or self._look()))

    def _keep_start(self, committed: Mapping[TopicAndNumber, int]) -> None:
        self._started = True
        if self._options.spec.group_id is not None:
            self._finish(committed)

    def _finish(self, committed: Mapping[TopicAndNumber, int]) -> None:
        self._source.finish({self._known[one].name: IntegerOffset(at) for one, at in committed.items()})

    def _ends(self) -> _Positions:
        """How far partitions reach, at most to where the query is to end."""
        ends = {one: partition.bounds.end for one, partition in self._look().items()}
        if self._last is None:
            return ends
        return {one: min(ends.get(one, last), last) for one, last in self._last.items()}

    def _look(self) -> dict[TopicAndNumber, KafkaPartition]:
        """Ask the cluster, with the secrets that the credentials file holds now."""
        secrets = standing_secrets(self._options.credentials_file)[1]
        self._source.take_secrets(secrets)
        self._known = {(one.topic, one.number): one for one in self._source.partitions()}
        return self._known

    def _committed(
        self, known: Mapping[TopicAndNumber, KafkaPartition], *, checked: bool = False
    ) -> _Positions:
        """The offsets that channels have committed; others have none.

        :param known: the topic-partitions
        :param checked: True makes sure that the offsets are of these topics
        """
        options = self._options
        names = {options.channel(partition.name): one for one, partition in known.items()}
        credentials = standing_secrets(options.credentials_file)[0]
        with SnowpipeClient(
            options.account_url, credentials, options.pipe, ca_bundle=options.ca_bundle
        ) as client:
            offsets = {
                name: None
                if status.committed is None
                else IntegerOffset.parse(status.committed, channel=name)
                for name, status in client.channel_statuses(list(names)).items()
            }
            if checked:
                own = {name: known[one] for name, one in names.items()}
                self._source.check_identity(client, own, offsets)
        return {names[name]: offset.value for name, offset in offsets.items() if offset is not None}

    def _of(self, known: Mapping[TopicAndNumber, KafkaPartition], one: TopicAndNumber) -> KafkaPartition:
        if one not in known:
            raise SourcePositionError(
                f"the checkpoint has partition {one[1]} of topic {one[0]!r}, which is not there now: bring "
                "it back, or begin with a new checkpointLocation; the committed tokens say where"
            )
        return known[one]


def _between(partition: KafkaPartition, begin: int, end: int) -> KafkaPartition:
    """The part of a partition that one micro-batch reads."""
    _refuse_beyond(partition, end)
    bounds = partition.bounds
    return replace(partition, first=begin, bounds=Bounds(bounds.earliest, end, bounds.high))


def _refuse_beyond(partition: KafkaPartition, offset: int) -> None:
    if offset > partition.bounds.high:
        raise SourcePositionError(
            f"by the checkpoint or the channel's token, offset {offset} is the next one of partition "
            f"{partition.number} of topic {partition.topic!r}, which ends before {partition.bounds.high}: it "
            "is another topic of that name, or the brokers have lost records. Begin with a new "
            "checkpointLocation; where channels have tokens of the old topic, with another channelPrefix, too"
        )


def _before(begin: int) -> IntegerOffset | None:
    return IntegerOffset(begin - 1) if begin else None


def _shares(left: Mapping[TopicAndNumber, int], limit: int) -> _Positions:
    """Divide a limit by what is left of each partition; one that has some gets at least one."""
    total = sum(left.values())
    return {one: min(count, max(1, limit * count // total)) if count else 0 for one, count in left.items()}


def _offset(positions: Mapping[TopicAndNumber, int]) -> StreamOffset:
    found: StreamOffset = {}
    for (topic, number), offset in sorted(positions.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _positions(offset: Mapping[str, Mapping[str, Any]]) -> _Positions:
    return {
        (topic, int(number)): int(at) for topic, numbers in offset.items() for number, at in numbers.items()
    }
