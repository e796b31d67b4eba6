"""Topic ids: that a topic is still the one whose offsets are committed, which no offset can show.

A topic that is deleted and made again counts its records from 0. Once it has grown past the committed
offset, the records before that would be passed over. Kafka gives each topic an id of its own (KIP-516), so a
run keeps the id of every topic that it loads, and the next one compares.

The id is kept where the tokens are, in the pipe: as the offset token of a channel beside the topic's own,
into which no row is ever sent. There it is safe before the first row is sent, whoever is killed later; every
driver finds it that finds the tokens, on any Airflow and without one; it costs no table and no right that the
run does not need anyway. The token of the partition's own channel stays the decimal offset that the Kafka
connector reads. The consumer group would not do: Kafka forgets its offsets and their metadata when
the topic is deleted, and after some days without a commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.errors import SourcePositionError, SourceUnavailableError
from airflow_provider_snowpipe.streaming.names import TOPIC_ID_SUFFIX, with_suffix

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.offsets import Offset
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

_RENEWED_AFTER_SECONDS = 7 * 24 * 3600
"""The service drops channels after 30 days without rows ("Channels"), and this one never has any."""


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
        self._client = client
        self._skips = on_data_loss == "skip"

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
        id_channels = {
            topic: id_channel(channels[0], partitions[channels[0]]) for topic, channels in by_topic.items()
        }
        kept = self._client.channel_statuses(list(id_channels.values()))
        for topic, channels in by_topic.items():
            loaded = [name for name in channels if committed[name] is not None]
            if loaded:
                first = f"channel {loaded[0]!r}: offset {committed[loaded[0]]} is committed"
                self._compare(
                    topic, first, kept[id_channels[topic]].committed, ids[topic], id_channels[topic]
                )
        unknown = sorted(topic for topic in id_channels if ids[topic] is None)
        if unknown:
            log.warning(
                "the brokers report no id of topic %s%s: a topic that is deleted and made again is noticed "
                "only while it is shorter than the committed offset",
                unknown[0],
                f" and {len(unknown) - 1} more" if unknown[1:] else "",
            )
        for topic, channel in id_channels.items():
            self._keep(kept[channel], ids[topic])

    def _compare(self, topic: str, where: str, before: str | None, now: str | None, channel: str) -> None:
        if before in (None, now):
            return
        if now is None:
            message = (
                f"{where} of topic {topic!r} with the id {before!r}, and the brokers report no id of the "
                "topic now, so that nobody knows whether it is the same"
            )
            remedy = "Run again; where the brokers report none for good, on_data_loss='skip' goes on"
            if not self._skips:
                raise SourceUnavailableError(f"{message}. Nothing was sent. {remedy}")
        else:
            message = (
                f"{where} of topic {topic!r} with the id {before!r}, and the topic of that name has the id "
                f"{now!r} now: it was deleted and made again, so that the committed offset means nothing for "
                "its records"
            )
            if not self._skips:
                raise SourcePositionError(
                    f"{message}. Nothing was sent. To load it from its first record, give another "
                    "channel_prefix, or drop the topic's channels; if the topic was put back with its old "
                    "offsets, on_data_loss='skip' goes on behind the committed ones, once: the new id is "
                    f"kept then (in the channel {channel!r})"
                )
        log.warning("%s. The run goes on behind the committed offset, as on_data_loss='skip' sets", message)

    def _keep(self, found: ChannelStatus, now: str | None) -> None:
        before, name = found.committed, found.channel
        made = (found.created_on_ms or 0) / 1000
        is_old = found.exists and time.time() - made > _RENEWED_AFTER_SECONDS
        if now is None or (before == now and not is_old):
            return
        if is_old:
            self._client.drop_channel(name)
            before = None

        def set_token(channel: str, token: str) -> None:
            self._client.open_channel(channel, offset_token=token)

        compare_and_set(self._client, TokenChange(name, now, before), set_token=set_token)


def id_channel(channel: str, partition: TopicPartition) -> str:
    """Name the channel that keeps a topic's id: ``<prefix>_<topic>__topic_id``.

    No partition's channel is named so: their names end in a number.

    :param channel: the channel of one of the topic's partitions
    """
    return with_suffix(channel.removesuffix(f"_{partition.number}"), TOPIC_ID_SUFFIX)
