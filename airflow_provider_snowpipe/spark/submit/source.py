"""The source of a run where it is submitted: whole with its connection, its first rows, its backlog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.routing.data_shape import DataShape
from airflow_provider_snowpipe.routing.probes import backlog_shape
from airflow_provider_snowpipe.spark.sources.registry import (
    DEFAULT_KIND,
    open_source,
    source_spec,
    spec_class,
)
from airflow_provider_snowpipe.spark.sources.source import SourcePartition, SourceSecrets, SourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeNotFoundError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.table_schema import common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
    from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


def connected_source(
    source: Any,
    get_connection: Callable[[str], Any],
    kafka_conn_id: str | None = None,
    iceberg_conn_id: str | None = None,
) -> tuple[SourceSpec, SourceSecrets]:
    """Build a source from its rendered dictionary, and complete it from the connection that it names.

    :param source: the dictionary
    :param get_connection: the Airflow connection of an id
    :param kafka_conn_id: the operator's deprecated argument
    :param iceberg_conn_id: the operator's deprecated argument
    :returns: the source without a secret, and the secrets
    :raises ConfigurationError: if the source is wrong, or an argument names a connection of another kind
    """
    if not isinstance(source, Mapping):
        return source_spec(source), SourceSecrets()
    given, own = kafka_conn_id or iceberg_conn_id, source.get("conn_id")
    if given:
        kind = "kafka" if kafka_conn_id else "iceberg"
        if own and given != own:
            raise ConfigurationError(
                f"source conn_id is {own!r}, and {kind}_conn_id is {given!r}: drop the latter"
            )
        if source.get("kind") != kind:
            raise ConfigurationError(
                f"{kind}_conn_id is {given!r} and the source's kind is {source.get('kind')!r}: the argument "
                f"is for the kind {kind!r}"
            )
    conn_id = given or own
    spec = spec_class(source)
    if not conn_id or not spec.takes_connection:
        return source_spec(source), SourceSecrets()
    values = {key: one for key, one in source.items() if key != "conn_id"}
    values, secrets = spec.with_connection(values, get_connection(conn_id))
    return source_spec(values), secrets


def file_source(values: Mapping[str, Any]) -> FileSource | None:
    """The source of files of this machine, None for a source of another kind.

    :param values: the source's dictionary; a Kafka source is whole only with its connection
    :raises ConfigurationError: if a key or value is wrong
    """
    from airflow_provider_snowpipe.spark.sources.files.spec import FileSource

    if values.get("kind", DEFAULT_KIND) != DEFAULT_KIND:
        return None
    spec = source_spec(values)
    return spec if isinstance(spec, FileSource) else None


# -- The first rows of a source, read where the plan is made ---------------------------------------------

SAMPLE_ROWS = 1000
"""Rows from which columns are inferred, over all partitions."""
_MOST_PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a source.

    :param lines: the rows as NDJSON
    :param types: types of columns, by name, where the source's own schema says them
    """

    lines: list[bytes]
    types: Mapping[str, str]


def first_rows(spec: SourceSpec, secrets: SourceSecrets | None = None, count: int = SAMPLE_ROWS) -> FirstRows:
    """Read the first rows of a source's first partitions, as NDJSON.

    :param spec: the source
    :param secrets: its passwords and keys
    :param count: rows in all
    :return: no line where the source has no row
    :raises ConfigurationError: if only Spark can read the source
    :raises SourcePositionError: if the source cannot be seen from this machine
    """
    # It brings PyArrow, for which no DAG file waits that only names an operator.
    from airflow_provider_snowpipe.streaming.row_check import BlockLines

    partitions = open_source(spec, "fail", secrets or SourceSecrets()).partitions()[:_MOST_PARTITIONS]
    share = max(1, count // max(1, len(partitions)))
    found: list[bytes] = []
    types: dict[str, str] = {}
    for partition in partitions:
        if not isinstance(partition, SourcePartition):
            raise ConfigurationError(
                f"source {spec.address!r} is read by Spark alone, so that its columns are not known before "
                "the job starts: make the table first, and leave create_table and evolve_columns out"
            )
        resume_at = partition.resume(None)
        if resume_at is None:
            continue
        got = 0
        for part in partition.read(resume_at, BatchLimits(rows=share)):
            lines = BlockLines.of(part.body)
            taken = min(lines.rows, share - got)
            found += [lines.row(row) for row in range(taken)]
            types = common_types(types, part.types)
            got += taken
            if got == share:
                break
    return FirstRows(found, types)


# -- What Kafka topics hold beyond the committed tokens of their channels, as the shape of a load --------

KAFKA_SCHEME = "kafka://"
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
    brokers, _, topics = address.removeprefix(KAFKA_SCHEME).partition("/")
    named = [one for one in topics.split(",") if one]
    if not brokers or not named:
        raise ConfigurationError(f"source is {address!r}: give {KAFKA_SCHEME}<host>:<port>/<topic>[,<topic>]")
    return {"kind": "kafka", "bootstrap_servers": brokers, "topics": named}


def is_sized(known: Mapping[str, Any]) -> bool:
    """True where the author says how much there is, so that no broker need be asked.

    :param known: parameters of :class:`DataShape`
    """
    return known.get("bounded") is False or any(known.get(name) is not None for name in _SIZED)


@dataclass(frozen=True, slots=True)
class KafkaBacklog:
    """The records of topics that are not in a table yet.

    :param connect: completes the source of a stream, of ``kind="kafka"``, with its connection
    :param statuses: of channels of the table's default pipe, which say how far each partition is; None counts
        from the offsets of the source's group, or from the source's ``start``
    :param channel_prefix: the first part of the channels' names
    :param may_lack_table: True where the stream makes the table
    """

    connect: Callable[[], tuple[SourceSpec, SourceSecrets]]
    statuses: Callable[[Sequence[str]], Mapping[str, ChannelStatus]] | None = None
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
        from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaSource
        from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource as KafkaSpec

        spec, secrets = self.connect()
        assert isinstance(spec, KafkaSpec)  # noqa: S101  is_kafka() has said so
        source = KafkaSource(spec, "skip")
        source.take_secrets(secrets)
        return source.partitions()

    def _next_offsets(self, partitions: tuple[KafkaPartition, ...]) -> dict[str, int]:
        """The next offset to load of each partition."""
        from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

        found = {one.name: one.first for one in partitions}
        if self.statuses is None or not partitions:
            return found
        spec = partitions[0].spec
        prefix = spec.channel_prefix or self.channel_prefix
        if prefix is None:
            return found
        channels = {spec.channel(prefix, spec.default_name, one.name): one.name for one in partitions}
        try:
            statuses = self.statuses(list(channels))
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
