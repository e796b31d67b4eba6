"""From what an author names to the shape of the data there: a stage, a table's past, an address, a shape."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.storage import storage_path
from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.probes import (
    ListedFile,
    backlog_shape,
    folder_shape,
    listing_shape,
    past_loads_shape,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeNotFoundError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition


_PAST = "table:"


@dataclass(frozen=True, slots=True)
class ShapeSource:
    """Something that has a shape.

    :param source: ``@stage/path``; ``table:NAME`` for what its past loads say; a folder, a file or a URL such
        as ``s3://bucket/path``; ``kafka://host:port/topic``, or the mapping of a source from Kafka; or the
        shape itself; these two as a mapping or its JSON text
    :param hook: asks the account about stages, past loads and, where it has a table, the table's channels
    :param storage_conn_id: the connection of a URL, None for none
    :param kafka_conn_id: the connection of a Kafka source, None for none
    :param channel_prefix: the first part of the names of a Kafka source's channels
    """

    source: Any
    hook: SnowpipeBulkHook
    storage_conn_id: str | None = None
    kafka_conn_id: str | None = None
    channel_prefix: str | None = None

    def shape(self, known: Mapping[str, Any]) -> DataShape:
        """Look, and say what shape the data has.

        :param known: what the author knows of it: parameters of :class:`DataShape`, which go before what is
            found
        :raises ConfigurationError: if the source is nothing of the kind, or there is nothing to list
        :raises SqlError: if the account cannot be asked
        """
        source, now = self.source, dt.datetime.now(dt.UTC)
        if isinstance(source, DataShape):
            source = source.as_json()
        if isinstance(source, str) and source.lstrip().startswith("{"):
            source = _json(source)
        if isinstance(source, str) and source.startswith(SCHEME):
            source = kafka_source(source)
        if is_kafka(source):
            return self._backlog(source).shape(known)
        if isinstance(source, Mapping):
            return DataShape.from_json({**source, **known})
        if not isinstance(source, str) or not source:
            raise ConfigurationError(
                f"source is {source!r}: give a stage (@…), table:NAME, a path, a URL, kafka://…, or the "
                "shape as JSON"
            )
        if source.startswith("@"):
            files = map(ListedFile.from_list_row, self.hook.list_files(source))
            return listing_shape(files, now, staged=True, **known)
        if source.startswith(_PAST):
            return past_loads_shape(self.hook.past_loads(source.removeprefix(_PAST)), **_endless(known))
        if "://" in source:
            return listing_shape(self._objects(source), now, **known)
        return folder_shape(source, now, **known)

    def _backlog(self, source: Mapping[str, Any]) -> KafkaBacklog:
        channels = self.hook if self.hook.table is not None else None
        return KafkaBacklog(source, self.kafka_conn_id, channels, self.channel_prefix)

    def _objects(self, address: str) -> Iterator[ListedFile]:
        path = storage_path(address, self.storage_conn_id)
        for name, entry in path.fs.find(path.path, detail=True).items():
            yield ListedFile(str(name), int(entry.get("size") or 0), _moment(entry))


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigurationError(f"source is {text[:80]!r}: it begins like JSON and is none") from None
    return found if isinstance(found, dict) else {}


def _endless(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name != "bounded"}


def _moment(entry: Mapping[str, Any]) -> dt.datetime | None:
    """When an object was written, under whichever name its file system says it."""
    for name in ("LastModified", "last_modified", "updated", "mtime"):
        value = entry.get(name)
        if isinstance(value, dt.datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        if isinstance(value, int | float):
            return dt.datetime.fromtimestamp(value, dt.UTC)
        if isinstance(value, str) and value:
            return dt.datetime.fromisoformat(value)
    return None


# -- What Kafka topics hold beyond the committed tokens of their channels, as the shape of a load --------

SCHEME = "kafka://"
_SIZED = ("rows", "bytes")


def is_kafka(source: Any) -> bool:
    """True for the source of a stream from Kafka topics.

    :param source: the source as the author gives it
    """
    return isinstance(source, Mapping) and source.get("kind") == "kafka"


def kafka_source(address: str) -> dict[str, Any]:
    """Read ``kafka://host:port[,host:port]/topic[,topic]``.

    :param address: the text
    :raises ConfigurationError: if it names no broker or no topic
    """
    brokers, _, topics = address.removeprefix(SCHEME).partition("/")
    named = [one for one in topics.split(",") if one]
    if not brokers or not named:
        raise ConfigurationError(f"source is {address!r}: give {SCHEME}<host>:<port>/<topic>[,<topic>]")
    return {"kind": "kafka", "bootstrap_servers": brokers, "topics": named}


def is_sized(known: Mapping[str, Any]) -> bool:
    """True where the author says how much there is, so that no broker need be asked.

    :param known: parameters of :class:`DataShape`
    """
    return known.get("bounded") is False or any(known.get(name) is not None for name in _SIZED)


@dataclass(frozen=True, slots=True)
class KafkaBacklog:
    """The records of topics that are not in a table yet.

    :param source: the source of a stream, with ``kind="kafka"``
    :param conn_id: the Kafka connection that completes it, None for none
    :param hook: of the table's default pipe, whose channels say how far each partition is; None counts from
        the offsets of the source's group, or from the source's ``start``
    :param channel_prefix: the first part of the channels' names
    :param may_lack_table: True where the stream makes the table
    """

    source: Mapping[str, Any]
    conn_id: str | None = None
    hook: SnowpipeHook | None = None
    channel_prefix: str | None = None
    may_lack_table: bool = False

    def shape(self, known: Mapping[str, Any]) -> DataShape:
        """Ask the brokers for the topics' ends, and the service for the tokens; reads a few records.

        Bytes are those of the records' values, estimated from some of them.

        :param known: what else is known of the data: parameters of :class:`DataShape`
        :raises ConfigurationError: if the source is none, or ``confluent-kafka`` is not installed
        :raises SourceUnavailableError: if no broker answers
        """
        if is_sized(known):
            return DataShape.from_json(dict(known))
        partitions = self._partitions()
        committed = self._next_offsets(partitions)
        places = {one.name: (committed[one.name], one.bounds.earliest, one.bounds.end) for one in partitions}
        return backlog_shape(places, self._mean_bytes(partitions, committed), **known)

    def _partitions(self) -> tuple[KafkaPartition, ...]:
        from airflow_provider_snowpipe.operators.source_connection import connected_source
        from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaSource
        from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec

        spec, secrets = connected_source(self.source, self.conn_id)
        assert isinstance(spec, KafkaSourceSpec)  # noqa: S101  is_kafka() has said so
        source = KafkaSource(spec, "skip")
        source.take_secrets(secrets)
        return source.partitions()

    def _next_offsets(self, partitions: tuple[KafkaPartition, ...]) -> dict[str, int]:
        """The next offset to load of each partition."""
        from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

        found = {one.name: one.first for one in partitions}
        if self.hook is None or not partitions:
            return found
        spec = partitions[0].spec
        prefix = spec.channel_prefix or self.channel_prefix
        if prefix is None:
            return found
        channels = {spec.channel(prefix, spec.default_name, one.name): one.name for one in partitions}
        try:
            statuses = self.hook.channel_statuses(list(channels))
        except PipeNotFoundError:
            if not self.may_lack_table:
                raise
            statuses = {}
        for channel, name in channels.items():
            token = statuses[channel].committed if channel in statuses else None
            if token is not None:
                found[name] = IntegerOffset.parse(token, channel=channel).value + 1
        return found

    def _mean_bytes(
        self, partitions: tuple[KafkaPartition, ...], committed: Mapping[str, int]
    ) -> float | None:
        from airflow_provider_snowpipe.spark.sources.kafka.cluster import KafkaCluster

        starts = {one.name: max(committed[one.name], one.bounds.earliest) for one in partitions}
        longest = max(partitions, key=lambda one: one.bounds.end - starts[one.name], default=None)
        if longest is None or longest.bounds.end <= starts[longest.name]:
            return None
        with KafkaCluster(longest.settings) as cluster:
            return cluster.mean_bytes((longest.topic, longest.number), starts[longest.name])
