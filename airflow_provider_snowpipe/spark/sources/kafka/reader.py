"""The Kafka source: each topic-partition is a partition, its position the offset of a record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.source import Behind, OnDataLoss, Source, SourcePartition, SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka.cluster import (
    Bounds,
    ClientSettings,
    DeadLetterTopic,
    KafkaCluster,
    LastError,
    TopicAndNumber,
    kafka_error,
    require_client,
)
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.spec import REGISTRY_TOKEN, REGISTRY_USER_INFO, SECRETS
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource as KafkaSourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checked_values import dead_letter_topic
from airflow_provider_snowpipe.streaming.checkpoint import Binding, position_of
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, Offset
from airflow_provider_snowpipe.streaming.row_gate import DeadLetterFolder, DeadLetterStore

if TYPE_CHECKING:
    from airflow_provider_snowpipe.routing.probes import DataShape

log = logging.getLogger(__name__)


class KafkaSource(Source):
    """Topics of a cluster, with ends that are fixed when the driver lists the partitions."""

    def __init__(self, spec: KafkaSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._settings = ClientSettings(spec)
        self._listed: tuple[KafkaPartition, ...] = ()

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take passwords and keys of the brokers and the registry, by librdkafka's names."""
        unknown = sorted(set(secrets.values) - SECRETS)
        if unknown:
            raise ConfigurationError(
                f"the Kafka source takes no secret {unknown[0]!r}: use {', '.join(sorted(SECRETS))}"
            )
        registry = {REGISTRY_USER_INFO, REGISTRY_TOKEN} & set(secrets.values)
        if registry and not self._spec.schema_registry_url:
            raise ConfigurationError(
                f"the Kafka source has the secret {min(registry)!r} and no schema_registry_url: give the "
                "URL, or leave the secret out"
            )
        self._settings = replace(self._settings, secrets=secrets)

    def partitions(self) -> tuple[KafkaPartition, ...]:
        """List the topic-partitions and how far they reach now."""
        spec = self._spec
        with KafkaCluster(self._settings) as cluster:
            bounds = cluster.bounds(cluster.partitions(spec.topics, spec.topic_pattern))
            ids = cluster.topic_ids({topic for topic, _ in bounds})
            of_cluster = f"of cluster {cluster.cluster_id()}" if None in ids.values() else ""
            known = cluster.group_offsets(bounds) if spec.group_id else {}
            first = {**self._starts(cluster, bounds, known), **known}
        whose = {topic: of_cluster if one is None else f"with the id {one}" for topic, one in ids.items()}
        self._listed = tuple(
            KafkaPartition(
                name=f"{topic}_{number}",
                binding=Binding(f"Kafka topic {topic!r} {whose[topic]}, partition {number}"),
                topic=topic,
                number=number,
                first=first[topic, number],
                bounds=bounds[topic, number],
                spec=spec,
                settings=self._settings,
                on_data_loss=self._on_data_loss,
                run=self.run,
            )
            for topic, number in bounds
        )
        unknown = sorted(topic for topic, known_id in ids.items() if known_id is None)
        if unknown:
            log.warning(
                "the brokers report no id of topic %s%s: a topic that is deleted and created again is "
                "noticed only while it is shorter than the committed offset",
                unknown[0],
                f" and {len(unknown) - 1} more" if unknown[1:] else "",
            )
        return self._listed

    def finish(self, committed: Mapping[str, Offset]) -> None:
        """Move the group's offsets behind the committed records; elsewhere keep where the source began."""
        if not self._spec.group_id:
            return
        listed = {one.name: one for one in self._listed}
        offsets = {(one.topic, one.number): one.first for one in self._listed}
        for name, position in committed.items():
            offsets[listed[name].topic, listed[name].number] = _integer(position).value + 1
        with KafkaCluster(self._settings) as cluster:
            cluster.move_group(offsets)

    def _starts(
        self,
        cluster: KafkaCluster,
        bounds: Mapping[TopicAndNumber, Bounds],
        known: Mapping[TopicAndNumber, int],
    ) -> dict[TopicAndNumber, int]:
        """Where partitions begin that have neither a token nor a group's offset.

        With ``latest``, a partition that was added to a topic which the group knows begins with its first
        record: all of it is newer than the start.
        """
        if self._spec.start == "timestamp":
            return cluster.offsets_at(bounds, self._spec.start_milliseconds)
        seen = {topic for topic, _ in known}
        late = self._spec.start == "latest"
        return {
            one: bound.end if late and one[0] not in seen else bound.earliest for one, bound in bounds.items()
        }


@dataclass(frozen=True, slots=True)
class KafkaPartition(SourcePartition[int]):
    """One topic-partition; ``first`` is where it begins if the channel has no token."""

    name: str
    binding: Binding
    topic: str
    number: int
    first: int
    bounds: Bounds
    spec: KafkaSourceSpec
    settings: ClientSettings
    on_data_loss: OnDataLoss
    run: str = ""
    offset_class: ClassVar[type[Offset]] = IntegerOffset
    gaps_legal: ClassVar[bool] = True
    """Compaction takes records away, and transactions end with markers that are not records."""

    def check(self, committed: Offset | None) -> None:
        """Make sure that the next record has not been taken by retention, and that the topic is the same."""
        self.resume(committed)

    def is_quick(self, committed: Offset | None) -> bool:
        """True: nothing is read for it."""
        return True

    def resume(self, committed: Offset | None) -> int | None:
        """Find the offset after the committed one; asks no broker."""
        required = self.first if committed is None else _integer(committed).value + 1
        bounds = self.bounds
        if required > bounds.high:
            raise SourcePositionError(
                f"{self._position(committed)}, but partition {self.number} of topic {self.topic!r} ends "
                f"before {bounds.high}: it is another topic of that name, or the brokers have lost records. "
                "Nothing was sent. If the topic was recreated, drop the channel by 'airflow snowpipe offsets "
                "rebind CHANNEL restart', and reset the group's offset"
            )
        if required < bounds.earliest and self.on_data_loss != "skip":
            raise SourcePositionError(
                f"{self._position(committed)}, but the earliest offset that partition {self.number} of topic "
                f"{self.topic!r} still has is {bounds.earliest}: retention has taken up to "
                f"{bounds.earliest - required} records that were never loaded. Nothing was sent. "
                f"on_data_loss='skip' goes on at {bounds.earliest}"
            )
        start = max(required, bounds.earliest)
        return start if start < bounds.end else None

    def read(self, resume_at: int, limits: BatchLimits) -> Iterator[Part]:
        """Read the records from an offset to the end that was fixed on the driver."""
        from airflow_provider_snowpipe.spark.sources.kafka.values import RowWriter

        writer = RowWriter(self.spec, self.topic, self.number, self.settings.secrets, self.run)
        reader = _Reader(
            self.settings, self.topic, self.number, resume_at, self.bounds.end, self.on_data_loss
        )
        following = resume_at
        with closing(reader):
            for block in reader.blocks(writer.fields):
                for piece in block.pieces(writer.piece_bytes(limits), limits.rows):
                    yield writer.part(piece)
                following = int(block.offsets[-1]) + 1
        if following < self.bounds.end:
            # Markers of transactions, aborted and compacted records: nothing of them is ever delivered.
            yield Part(b"", IntegerOffset(following), IntegerOffset(self.bounds.end - 1), 0)

    def behind(self, committed: Offset | None) -> Behind:
        """Count the offsets up to the end; some may be no records."""
        after = self.first if committed is None else _integer(committed).value + 1
        left = max(self.bounds.end - max(after, self.bounds.earliest), 0)
        return Behind(None, left)

    def row_keys(self) -> Sequence[tuple[str, ...]]:
        """Topic and number."""
        return [(self.topic, str(self.number))]

    def open_dead_letters(
        self, path: str, channel: str, offset_class: type[Offset], after: Offset | None
    ) -> DeadLetterStore:
        """Open a folder, or a topic of the cluster that the records come from."""
        topic = dead_letter_topic(path)
        if topic is None:
            return DeadLetterFolder(path, channel, offset_class, after)
        return DeadLetterTopic(topic, channel, self.settings)

    def _position(self, committed: Offset | None) -> str:
        if committed is not None:
            return f"offset {committed} is committed"
        who = "the run" if self.spec.group_id is None else f"group {self.spec.group_id!r}"
        return f"{who} is to go on at offset {self.first}"


def _integer(position: Offset) -> IntegerOffset:
    if isinstance(position, IntegerOffset):
        return position
    raise SourcePositionError(f"{position!r} is not a Kafka offset, which a Kafka source needs")


# -- Reads one topic-partition from an offset to a fixed end ---------------------------------------------
#
# A consumer is assigned its partition and joins no group, so that nothing rebalances and nothing is
# committed. The client hands its records over one by one (a Python object and a call for each of its
# fields); everything behind that is Arrow's.

_BLOCK_BYTES = 4 << 20
_MOST_RECORDS = 20_000
_FEWEST_RECORDS = 8
_POLL_SECONDS = 0.1
_NO_TIMESTAMP, _LOG_APPEND_TIME = 0, 2


class _Reader:
    """Reads from an offset up to an end, whether or not the last offsets are records.

    The end has come with the first record at or behind it, or when the broker reports that nothing is left
    ahead of an offset at or behind it: offsets of transaction markers and of compacted records are never
    delivered. The partition may grow meanwhile; nothing behind the end is returned.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        number: int,
        start: int,
        end: int,
        on_data_loss: OnDataLoss,
    ) -> None:
        require_client()
        from confluent_kafka import Consumer, TopicPartition

        self._settings = settings
        self._what = f"partition {number} of topic {topic!r}"
        self._next = start
        self._end = end
        self._on_data_loss = on_data_loss
        self._last_error = LastError()
        self._found_end = False
        config = {
            **settings.consumer_config(),
            "auto.offset.reset": "earliest" if on_data_loss == "skip" else "error",
        }
        self._consumer = settings.client(Consumer, config, self._last_error)
        self._consumer.assign([TopicPartition(topic, number, start)])

    def close(self) -> None:
        self._consumer.close()

    def blocks(self, fields: Set[str]) -> Iterator[Records]:
        """Read the records, and of their ``timestamp``, ``key`` and ``headers`` what is required."""
        count = _FEWEST_RECORDS
        answered = time.monotonic()
        while not self._found_end:
            messages = self._consumer.consume(count, _POLL_SECONDS)
            if not messages:
                self._refuse_silence(time.monotonic() - answered)
                continue
            answered = time.monotonic()
            required = self._required(messages)
            if required:
                records = _columns(required, fields)
                yield records
                mean = max(records.bytes // len(records), 1)
                count = min(max(_BLOCK_BYTES // mean, _FEWEST_RECORDS), _MOST_RECORDS)
                answered = time.monotonic()

    def _required(self, messages: list[Any]) -> list[Any]:
        """Leave out the client's notices and what lies behind the end."""
        if any(message.error() is not None for message in messages):
            messages = [message for message in messages if not self._is_notice(message)]
        if not messages:
            return messages
        last = messages[-1].offset()
        self._next = last + 1
        if last + 1 >= self._end:
            self._found_end = True
            while messages and messages[-1].offset() >= self._end:
                messages.pop()
        return messages

    def _is_notice(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._found_end = self._found_end or message.offset() >= self._end
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if self._on_data_loss != "skip":
                raise SourcePositionError(
                    f"{self._what}: offset {self._next} was there when the run began and is not any more "
                    f"({error.str()}): retention has taken it, or the topic was recreated. What was sent "
                    "before it is kept; on_data_loss='skip' goes on with what is left"
                )
        elif not error.retriable():
            raise kafka_error(error, self._what, self._settings, self._last_error.text)
        return True

    def _refuse_silence(self, seconds: float) -> None:
        if self._last_error.refused:
            raise AuthenticationError(
                f"Kafka at {self._settings.spec.bootstrap_servers}: {self._what}: the brokers refuse the "
                f"credentials ({self._last_error.text}): fix the connection"
            )
        if seconds > self._settings.spec.timeout_seconds:
            raise SourceUnavailableError(
                f"Kafka at {self._settings.spec.bootstrap_servers}: {self._what}: nothing came for "
                f"{seconds:.0f} s at offset {self._next}, ahead of the end {self._end}"
                f"{f' ({self._last_error.text})' if self._last_error.text else ''}: check the brokers, "
                "or raise the source's timeout_seconds"
            )


def _columns(messages: list[Any], fields: Set[str]) -> Records:
    offsets = np.fromiter((message.offset() for message in messages), np.int64, len(messages))
    values = pa.array([message.value() for message in messages], pa.large_binary())
    stamps = [message.timestamp() for message in messages] if "timestamp" in fields else None

    def details(offset: int) -> tuple[bytes | None, list[tuple[str, bytes | None]] | None]:
        message = messages[int(np.searchsorted(offsets, offset))]
        return message.key(), message.headers()

    return Records(
        offsets,
        values,
        stamps and pa.array([None if kind == _NO_TIMESTAMP else at for kind, at in stamps], pa.int64()),
        stamps and pa.array([kind == _LOG_APPEND_TIME for kind, _ in stamps], pa.bool_()),
        pa.array([message.key() for message in messages], pa.large_binary()) if "key" in fields else None,
        [message.headers() for message in messages] if "headers" in fields else None,
        details,
    )


# -- What topics hold beyond the committed tokens of their channels, as the shape of a load -------------


def topics_shape(
    spec: KafkaSourceSpec,
    secrets: SourceSecrets,
    channel_prefix: str | None,
    committed: Callable[[Sequence[str]], Mapping[str, str]],
    known: Mapping[str, Any],
) -> DataShape:
    """Ask the brokers for the topics' ends, and the service for the tokens; reads a few records.

    Bytes are those of the records' values, estimated from some of them.

    :param channel_prefix: the first part of the channels' names where the source does not set it; with None a
        partition begins at the offset of the source's group, or at its ``start``
    :param known: what else is known of the data: parameters of :class:`DataShape`
    """
    from airflow_provider_snowpipe.routing.probes import (
        backlog_shape,  # drivers and executors have no routing
    )

    source = KafkaSource(spec, "skip")
    source.take_secrets(secrets)
    partitions = source.partitions()
    prefix = spec.channel_prefix or channel_prefix
    first = {one.name: one.first for one in partitions}
    if prefix is not None:
        channels = {spec.channel(prefix, spec.default_name, one.name): one.name for one in partitions}
        tokens = committed(list(channels))
        for channel in channels.keys() & tokens.keys():
            first[channels[channel]] = (
                _integer(position_of(tokens[channel], IntegerOffset, channel=channel)).value + 1
            )
    bounds = {one.name: (first[one.name], one.bounds.earliest, one.bounds.end) for one in partitions}
    mean_bytes = None
    starts = {one.name: max(first[one.name], one.bounds.earliest) for one in partitions}
    longest = max(partitions, key=lambda one: one.bounds.end - starts[one.name], default=None)
    if longest is not None and longest.bounds.end > starts[longest.name]:
        with KafkaCluster(longest.settings) as cluster:
            mean_bytes = cluster.mean_bytes((longest.topic, longest.number), starts[longest.name])
    return backlog_shape(bounds, mean_bytes, **known)
