"""Topic ids: that a topic is still the one whose offsets are committed, which no offset can show (KIP-516).

The token of a partition's own channel stays the decimal offset that the Kafka connector reads. The group
would not do: Kafka forgets its offsets and their metadata when the topic is deleted, and after some days
without a commit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from airflow_provider_snowpipe.spark.sources.kept_ids import KeptIds, SourceId
from airflow_provider_snowpipe.streaming.names import TOPIC_ID_SUFFIX, with_suffix

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.offsets import Offset

log = logging.getLogger(__name__)


class TopicPartition(Protocol):
    """As much of a partition as this module needs."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def number(self) -> int:
        """Its number in the topic."""


class TopicIds:
    """The ids of the topics that channels were loaded from.

    :param on_data_loss: ``skip`` takes a topic that was made again as if it were the old one
    """

    def __init__(self, client: SnowpipeClient, on_data_loss: OnDataLoss) -> None:
        self._kept = KeptIds(client, on_data_loss)

    def check(
        self,
        partitions: Mapping[str, TopicPartition],
        committed: Mapping[str, Offset | None],
        ids: Mapping[str, str | None],
    ) -> None:
        """Refuse topics that were made again, and keep the present ids for the next run.

        :param partitions: the topic-partitions by channel
        :param committed: the committed position of each channel, None for NULL
        :param ids: the present id of each topic, None where the brokers report none
        :raises SourcePositionError: if a topic with committed positions has another id than those
        :raises SourceUnavailableError: if an id is kept, and the brokers report none now
        """
        by_topic: dict[str, list[str]] = {}
        for channel, partition in partitions.items():
            by_topic.setdefault(partition.topic, []).append(channel)
        found = []
        for topic, channels in by_topic.items():
            loaded = next((name for name in channels if committed[name] is not None), None)
            first = "" if loaded is None else f"channel {loaded!r}: offset {committed[loaded]} is committed"
            keeper = id_channel(channels[0], partitions[channels[0]])
            found.append(SourceId(f"topic {topic!r}", keeper, ids[topic], first))
        self._kept.check(found)
        unknown = sorted(topic for topic in by_topic if ids[topic] is None)
        if unknown:
            log.warning(
                "the brokers report no id of topic %s%s: a topic that is deleted and made again is noticed "
                "only while it is shorter than the committed offset",
                unknown[0],
                f" and {len(unknown) - 1} more" if unknown[1:] else "",
            )


def id_channel(channel: str, partition: TopicPartition) -> str:
    """Name the channel that keeps a topic's id: ``<prefix>_<topic>__topic_id``.

    No partition's channel is named so: their names end in a number.

    :param channel: the channel of one of the topic's partitions
    """
    return with_suffix(channel.removesuffix(f"_{partition.number}"), TOPIC_ID_SUFFIX)
