"""One source partition has one channel of a pipe, and a lost offset token does not make a new partition.

A channel without a token looks like that of a new partition. It may be the channel of a DAG that was renamed,
of another prefix, or one that the service deleted after 30 days without rows: its rows would be loaded twice.
So what other channels have committed, and earlier runs have seen, is compared before anything is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_snowpipe.streaming.admin import TokenChange, compare_and_set, mark_reported
from airflow_provider_snowpipe.streaming.channel import take_over
from airflow_provider_snowpipe.streaming.checkpoint import (
    ChannelSource,
    Checkpoint,
    OnImbalance,
    check_balance,
    excess_of,
    is_begun,
    same_position,
    source_of_token,
)
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    RowsRejectedError,
    SnowpipeError,
    SourceChangedError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ListedChannel

log = logging.getLogger(__name__)

LastCheckpoints = Mapping[str, tuple[str, str]]
"""Channel and checkpoint that each source partition had last, by the digits that stand for the partition; a
channel with bare tokens by its name."""
_RECORD = "source-log"
"""Stands for the run in a checkpoint if the source alone shows its position."""


@dataclass(frozen=True, slots=True)
class OwnChannel:
    """A channel that a load is about to write to.

    :param recorded: the last position that the source's own record shows as committed
    """

    source: ChannelSource
    status: ChannelStatus
    recorded: Offset | None = None

    @property
    def name(self) -> str:
        """The channel's name."""
        return self.status.channel

    @property
    def partition(self) -> str:
        """The digits that stand for its source partition."""
        return self.source.binding.source_digest

    @property
    def is_new(self) -> bool:
        """True where nothing shows that it has ever loaded a row."""
        return self.status.committed is None and not self.source.is_bare

    def is_unknown_to(self, last: LastCheckpoints) -> bool:
        """True where it has no token, and no run has recorded that it would get rows."""
        known = last.get(self._key)
        is_known = known is not None and (self._waits(*known) or not is_begun(known[1]))
        return self.status.committed is None and self.recorded is None and not is_known

    def last_in(self, last: LastCheckpoints) -> tuple[str, str] | None:
        """The last checkpoint of its source partition, None where it has not committed a row since then."""
        known = last.get(self._key)
        return None if known is None or self._waits(*known) else known

    def _waits(self, channel: str, token: str) -> bool:
        """True where it is the channel that was recorded before its first row."""
        return channel == self.name and is_begun(token, self.status)

    @property
    def _key(self) -> str:
        return self.name if self.source.is_bare else self.partition

    @property
    def is_of_another(self) -> bool:
        """True where its token is that of another source partition."""
        return self.status.committed is not None and source_of_token(self.status.committed) != self.partition


def _known(channels: Sequence[OwnChannel], last: LastCheckpoints | None) -> LastCheckpoints:
    """The last checkpoints of channels: by the record of earlier runs, without one by the source's own.

    A record of runs that all died before their end shows nothing that the source's own one lacks.
    """
    begun = last or {}
    if last is not None and not (last and all(is_begun(token) for _, token in last.values())):
        return last
    return {
        one.partition: (one.name, replace(one.source, run=_RECORD).token(one.recorded, 0, 0))
        for one in channels
        if one.recorded is not None
    } | dict(begun)


def _rows_before(one: OwnChannel, last: str) -> tuple[int, int] | None:
    """Rows of a channel that stands where a run saw it last, and counts fewer: it was restored.

    So does one that has taken a position over in a run that died.
    """
    if one.source.is_bare or not same_position(one.status.committed, last):
        return None
    tokens = last, str(one.status.committed)
    before, now = (Checkpoint.parse(token, one.source.positions, channel=one.name) for token in tokens)
    rows = before.rows - now.rows
    return (rows - before.errors, before.errors) if rows > 0 else None


def refuse_lost(channels: Sequence[OwnChannel], last: LastCheckpoints | None) -> None:
    """Refuse a channel without a token where an earlier run has seen one of the same source partition."""
    last = _known(channels, last)
    for one in channels:
        lost = one.source.binding.lost
        if lost and last and one.is_new and one.source.rebind != "restart":
            earlier = ", ".join(sorted({f"{name!r} {token!r}" for name, token in last.values()})[:3])
            raise SourcePositionError(
                f"channel {one.name!r} has no offset token, and this source was loaded before: {earlier}. "
                f"Nothing was sent. {lost}Set rebind='restart' where its rows are not in the table"
            )
        known = one.last_in(last)
        if known is None or one.status.committed is not None or one.source.rebind == "restart":
            continue
        if is_begun(known[1]):
            raise SourcePositionError(
                f"channel {one.name!r} has no offset token, and a run was about to send rows on "
                f"channel {known[0]!r} (up to {known[1]!r}): it was dropped since, or deleted after 30 days "
                "without rows. Nothing was sent. Some of those rows may be in the table: delete them, and "
                "set rebind='restart'"
            )
        if one.source.is_bare:
            raise SourcePositionError(
                f"channel {one.name!r} has no offset token, and an earlier run has seen {known[1]!r}: it was "
                "dropped, or deleted after 30 days without rows. Nothing was sent. Set the token of the last "
                "row that is in the table (SnowpipeResetOffsetOperator), or rebind='restart' where none is"
            )
        if one.source.rebind is None:
            raise SourcePositionError(
                f"channel {one.name!r} has no offset token, and channel {known[0]!r} had committed "
                f"{known[1]!r} of the same source: it was dropped, or deleted after 30 days without rows. "
                "Nothing was sent. Set rebind='continue' to go on behind it, where the table has no later "
                "row of a run that died; or rebind='restart' if the table lacks its rows"
            )


@dataclass(frozen=True, slots=True)
class EarlierChannels:
    """The other channels of a pipe, which may have loaded the same source partitions.

    :param accepts_rejected: True where rejected rows are counted and do not fail the load
    """

    client: SnowpipeClient
    list_channels: Callable[[], Sequence[ListedChannel]]
    last: LastCheckpoints | None
    on_imbalance: OnImbalance = "warn"
    accepts_rejected: bool = False

    def hand_over(
        self, channels: Sequence[OwnChannel], check: Callable[[str, Offset], None] = lambda *_: None
    ) -> dict[str, tuple[int, int]]:
        """Refuse channels whose source partition another one has loaded, or give them its position.

        With ``rebind="continue"`` a new channel takes the other one's position, and the other one is dropped;
        without another one it takes the last position that is known. One that has rows of another source is
        refused: until it has committed a row of this one, only the other channel shows the position.

        :param check: refuses a position that is not in the source any more, from the channel's name
        :return: for each channel that got a position, the rows of the other one in the table, and its
            rejected ones
        :raises SourceChangedError: if another channel has loaded a source partition; names both
        :raises SourcePositionError: if a channel has lost its token
        :raises RowsRejectedError: if the other one has rejected rows that nobody has reported; they are now
        """
        asked = {
            one.partition: one
            for one in channels
            if not one.source.is_bare
            and (one.source.rebind == "continue" or (one.is_new and one.source.rebind is None))
        }
        names = {one.name for one in channels}
        taken: list[tuple[OwnChannel, str]] = []
        for other in self._listed() if asked else ():
            mine = asked.get(source_of_token(other.offset_token or ""))
            if mine is None or other.name in names:
                continue
            if mine.source.rebind is None or mine.is_of_another:
                how = "has rows of another source" if mine.is_of_another else "is new"
                raise SourceChangedError(
                    f"channel {mine.name!r} {how}, and channel {other.name!r} of pipe {self.client.pipe} has "
                    f"loaded {mine.source.binding.source} up to {other.offset_token}: the rows would be in "
                    "the table twice. Nothing was sent. Use the channel_prefix and source_name of that "
                    "channel; or set rebind='continue' on a new channel to take its position over and drop "
                    "it, or rebind='restart' to load everything again"
                )
            taken.append((mine, other.name))
        taking = {mine.name for mine, _ in taken}
        refuse_lost([one for one in channels if one.name not in taking], self.last)
        moved = self._take(taken, check)
        last = _known(channels, self.last)
        for one in channels:
            known = one.last_in(last)
            if known is None or one.name in moved:
                continue
            if one.is_new and one.source.rebind == "continue":
                found = Checkpoint.parse(known[1], one.source.positions, channel=one.name)
                check(one.name, found.position)
                self._set_start(one, found.position)
                moved[one.name] = (found.rows - found.errors, found.errors)
            elif found_before := _rows_before(one, known[1]):
                moved[one.name] = found_before
        return moved

    def refuse_twins(self, channels: Sequence[OwnChannel]) -> None:
        """Refuse channels that were new, where another one has loaded the same source partition meanwhile."""
        new = {one.partition: one for one in channels if one.is_new and one.source.rebind is None}
        names = {one.name for one in channels}
        for other in self._listed() if new else ():
            mine = new.get(source_of_token(other.offset_token or ""))
            if mine is not None and other.name not in names:
                raise SourceChangedError(
                    f"channels {mine.name!r} and {other.name!r} of pipe {self.client.pipe} have both loaded "
                    f"{mine.source.binding.source} at one time: its rows are in the table twice. Stop one of "
                    "the two tasks, delete its rows, and drop its channel"
                )

    def _take(
        self, taken: Sequence[tuple[OwnChannel, str]], check: Callable[[str, Offset], None]
    ) -> dict[str, tuple[int, int]]:
        """Give new channels the positions of the first ones that they take over, and drop all of these."""
        starts: dict[str, tuple[OwnChannel, Checkpoint, int]] = {}
        statuses: list[tuple[ChannelStatus, Checkpoint]] = []
        for mine, other in taken:
            # Its token is read once its writer is shut out and its rows are committed or discarded.
            status = take_over(self.client, other).status
            found = Checkpoint.parse(str(status.committed), mine.source.positions, channel=other)
            statuses.append((status, found))
            if mine.is_new and mine.name not in starts:
                check_balance(other, excess_of(status), self.on_imbalance)
                check(mine.name, found.position)
                starts[mine.name] = mine, found, status.rows_error_count
        self._report(statuses)
        for mine, found, _ in starts.values():
            self._set_start(mine, found.position)
        for mine, other in taken:
            self.client.drop_channel(other)
            log.info("channel %r has taken over the position of %r, which was dropped", mine.name, other)
        return {name: (found.rows - rejected, rejected) for name, (_, found, rejected) in starts.items()}

    def _listed(self) -> Sequence[ListedChannel]:
        """The channels of the pipe; none where they cannot be listed."""
        try:
            return self.list_channels()
        except SnowpipeError as error:
            log.warning("whether other channels have loaded the source is not known: %s", error)
            return ()

    def _set_start(self, one: OwnChannel, position: Offset) -> None:
        token = one.source.token(position, one.status.rows_counted, one.status.rows_error_count)
        compare_and_set(self.client, TokenChange.after(one.status, token))

    def _report(self, statuses: Sequence[tuple[ChannelStatus, Checkpoint]]) -> None:
        """Report rejected rows of channels that are about to be dropped with their counters."""
        bad = [(status, found) for status, found in statuses if status.rows_error_count > found.errors]
        if not bad:
            return
        total = sum(status.rows_error_count - found.errors for status, found in bad)
        status, found = bad[0]
        error = RowsRejectedError(
            f"the service rejected {counted(total, 'row')} that nobody has reported, on "
            f"{counted(len(bad), 'channel')} with positions to take over; channel {status.channel!r} "
            f"(run {found.run}): {status.last_error_message or 'no message'}. Nothing was sent; the next "
            "try takes the positions over",
            channel=status.channel,
            rejected=total,
            last_error=status.last_error_message,
        )
        log.warning("%s", error)  # before the tokens show that they are reported
        mark_reported(self.client, {one.channel: one for one, _ in bad})
        if not self.accepts_rejected:
            raise error
