"""Ids of topics and tables: that one is still what committed positions came from, which none of them shows.

What is deleted and made again counts its records, versions or snapshots from the start. Once it has grown
past the committed position, the rows before that would be skipped. Kafka, Delta and Iceberg give each
topic and table an id of its own, so a run keeps the id of whatever it loads, and the next one compares.

The id is kept where the tokens are, in the pipe: as the offset token of a channel beside the source's own,
into which no row is ever sent. There it is safe before the first row is sent, whoever is killed later; every
driver finds it that finds the tokens, on any Airflow and without one; it costs no table and no right that the
run does not need anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.errors import (
    OffsetTokenMovedError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.names import TABLE_ID_SUFFIX, with_suffix
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import OnDataLoss, Partition
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient
    from airflow_provider_snowpipe.streaming.offsets import Offset
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

_RENEWED_AFTER_SECONDS = 7 * 24 * 3600
"""The service drops channels after 30 days without rows ("Channels"), and this one never has any."""


@dataclass(frozen=True, slots=True)
class SourceId:
    """The present id of a topic or a table.

    :param what: which one, in words, such as ``topic 'orders'``
    :param channel: the channel that keeps its id
    :param now: the id, None where none is reported
    :param committed: one of its channels and what that has committed, in words; empty if none has anything
    """

    what: str
    channel: str
    now: str | None
    committed: str = ""

    @classmethod
    def of(cls, what: str, channel: str, now: str | None, committed: Mapping[str, Offset | None]) -> Self:
        """The id of what some channels are loaded from."""
        for name, one in committed.items():
            if one is not None:
                position = f"offset {one}" if isinstance(one, IntegerOffset) else repr(str(one))
                return cls(what, channel, now, f"channel {name!r}: {position} is committed")
        return cls(what, channel, now)


class KeptIds:
    """The ids of what channels were loaded from.

    :param client: the client of the channels' pipe
    :param on_data_loss: ``skip`` takes what was made again as if it were the old one
    """

    def __init__(self, client: SnowpipeClient, on_data_loss: OnDataLoss) -> None:
        self._client = client
        self._skips = on_data_loss == "skip"

    def check(self, ids: Sequence[SourceId]) -> None:
        """Refuse what was made again, and keep the present ids for the next run.

        :raises SourcePositionError: if something with a committed position has another id than it had
        :raises SourceUnavailableError: if an id is kept, and none is reported now
        """
        kept = self._client.channel_statuses([one.channel for one in ids])
        for one in ids:
            if one.committed:
                self._compare(one, kept[one.channel].committed)
        for one in ids:
            self._keep(kept[one.channel], one.now)

    def _compare(self, one: SourceId, before: str | None) -> None:
        if before in (None, one.now):
            return
        if one.now is None:
            message = (
                f"{one.committed} of {one.what} with the id {before!r}, and no id of it is reported now, so "
                "that nobody knows whether it is the same"
            )
            remedy = "Run again; where none is reported for good, on_data_loss='skip' goes on"
            if not self._skips:
                raise SourceUnavailableError(f"{message}. Nothing was sent. {remedy}")
        else:
            message = (
                f"{one.committed} of {one.what} with the id {before!r}, and what has that name has the id "
                f"{one.now!r} now: it was deleted and made again, so that the committed position means "
                "nothing for its rows"
            )
            if not self._skips:
                raise SourcePositionError(
                    f"{message}. Nothing was sent. To load it from its beginning, give another "
                    "channel_prefix, or drop its channels; if it was put back with its old positions, "
                    "on_data_loss='skip' goes on behind the committed ones, once: the new id is "
                    f"kept then (in the channel {one.channel!r})"
                )
        log.warning("%s. The run goes on behind the committed position, as on_data_loss='skip' sets", message)

    def _keep(self, found: ChannelStatus, now: str | None) -> None:
        before, name = found.committed, found.channel
        made = (found.created_on_ms or 0) / 1000
        is_old = found.exists and time.time() - made > _RENEWED_AFTER_SECONDS
        if now is None or (before == now and not is_old):
            return
        if is_old:
            self._client.drop_channel(name)
            before = None
        try:
            compare_and_set(self._client, TokenChange(name, now, before))
        except OffsetTokenMovedError as error:
            if error.committed != now:  # not kept by another run, which began at the same time
                raise


def check_table_id(
    client: SnowpipeClient,
    on_data_loss: OnDataLoss,
    table: tuple[str, str],
    partitions: Mapping[str, Partition],
    committed: Mapping[str, Offset | None],
) -> None:
    """Check the id of a table all of whose partitions are loaded by one source; see :meth:`KeptIds.check`.

    :param table: its address and its id
    :param partitions: its partitions by channel, at least one
    """
    address, now = table
    first = min(partitions)
    channel = with_suffix(first.removesuffix(f"_{partitions[first].name}"), TABLE_ID_SUFFIX)
    KeptIds(client, on_data_loss).check([SourceId.of(f"table {address!r}", channel, now, committed)])
