"""What Kafka topics hold beyond the committed tokens of their channels, as the shape of a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.routing.probes import DataShape, backlog_shape
from airflow_provider_snowpipe.spark.sources.kafka.cluster import KafkaCluster
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition, KafkaSource
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.source import SourceSecrets
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset


def topics_shape(
    spec: KafkaSourceSpec,
    secrets: SourceSecrets,
    channel_prefix: str | None,
    committed: Callable[[Sequence[str]], Mapping[str, str]],
    known: Mapping[str, Any],
) -> DataShape:
    """Ask the brokers for the topics' ends, and the service for the tokens; reads a few records.

    Bytes are those of the records' values, estimated from some of them.

    :param spec: the source
    :param secrets: its passwords and keys
    :param channel_prefix: the first part of the channels' names where the source does not say it; with None a
        partition begins at the offset of the source's group, or at its ``start``
    :param committed: the committed offset tokens of channels, by name
    :param known: what else is known of the data: parameters of :class:`DataShape`
    :raises ConfigurationError: if ``confluent-kafka`` is not installed
    :raises SourceUnavailableError: if no broker answers
    """
    source = KafkaSource(spec, "skip")
    source.take_secrets(secrets)
    partitions = source.partitions()
    prefix = spec.channel_prefix or channel_prefix
    first = {one.name: one.first for one in partitions}
    if prefix is not None:
        channels = {spec.channel(prefix, spec.default_name, one.name): one.name for one in partitions}
        tokens = committed(list(channels))
        for channel in channels.keys() & tokens.keys():
            first[channels[channel]] = IntegerOffset.parse(tokens[channel], channel=channel).value + 1
    bounds = {one.name: (first[one.name], one.bounds.earliest, one.bounds.end) for one in partitions}
    return backlog_shape(bounds, _mean_bytes(partitions, first), **known)


def _mean_bytes(partitions: tuple[KafkaPartition, ...], first: Mapping[str, int]) -> float | None:
    starts = {one.name: max(first[one.name], one.bounds.earliest) for one in partitions}
    longest = max(partitions, key=lambda one: one.bounds.end - starts[one.name], default=None)
    if longest is None or longest.bounds.end <= starts[longest.name]:
        return None
    with KafkaCluster(longest.settings) as cluster:
        return cluster.mean_bytes((longest.topic, longest.number), starts[longest.name])
