"""Tasks of one write agree that the rows which an earlier run has committed are theirs before one sends.

A task sees its own partition only. Where an earlier run has begun the batch, each one compares the committed
rows of its channel and then reports it to others, by the service that all of them reach: the pipe, as the
offset token of a channel beside its own into which no row is sent. The task of the first partition reads what
all have reported and decides for all of them, once: they send, or none does. That takes a task slot for each
partition, since a task that waits keeps its slot; where Spark has fewer, the batch is refused with nothing
sent, and ``write_checked`` finishes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum

from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ChannelInvalidError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX, with_suffix

STARTED_WITHIN_SECONDS = 30.0
"""So long a task waits until every other one runs. Spark starts as many at once as it has slots."""

_POLL_SECONDS = 0.25
_DROPPED_AT_ONCE = 8


class _Report(StrEnum):
    COMPARES = "compares"
    AGREES = "agrees"
    REFUSES = "refuses"
    SENDS = "sends"  # by the first partition's task alone, for all


_FINAL = (_Report.REFUSES, _Report.SENDS)


class RefusedByAnotherError(SourcePositionError):
    """A task sends nothing because of another one, which knows more about the reason."""


class Agreement:
    """What the tasks of one write have found out about a batch that an earlier run has begun.

    A refusal stands, and so does the decision: a later attempt at a partition goes by what an earlier
    one has reported, since other tasks may have ended or sent by that.

    :param write: an id of the write, the same for all of its tasks and their attempts, and for no other write
    """

    def __init__(self, client: SnowpipeClient, channels: Sequence[str], partition: int, write: str) -> None:
        self._client = client
        self._channels = channels
        self._first, self._own = channels[0], channels[partition]
        self._write = write
        self._reported: _Report | None = None

    def begin(self) -> None:
        """Report that this task runs, so that the others wait for it."""
        before = self._read([self._own])[self._own]
        if before in _FINAL:
            self._reported = before
        self._report(_Report.COMPARES)

    def refuse(self) -> None:
        """Report that this task refuses the batch, for whatever reason."""
        self._report(_Report.REFUSES)

    def finish(self) -> None:
        """Agree, as a task does that has nothing to send or has sent it."""
        if self._own == self._first and self._reported not in _FINAL:
            self.wait()
        self._report(_Report.AGREES)

    def wait(self) -> None:
        """Agree, and wait until all tasks do.

        :raises SourcePositionError: if not all of them run at the same time
        :raises AuthenticationError: if the scoped token expires before they have compared
        """
        self._report(_Report.AGREES)
        began = time.monotonic()
        reported = self._read(self._channels)
        while reported[self._first] is not _Report.SENDS:
            if reported[self._own] is None:
                raise RefusedByAnotherError(
                    f"channel {self._own!r}: another write of the batch has begun: run it once"
                )
            late = time.monotonic() - began > STARTED_WITHIN_SECONDS
            if self._own == self._first:
                self._decide(reported, late=late)
            else:
                self._follow(reported, late=late)
            if self._reported is _Report.SENDS:
                return
            time.sleep(_POLL_SECONDS)
            reported = self._read(self._channels if self._own == self._first else (self._first, self._own))

    def _decide(self, reported: dict[str, _Report | None], *, late: bool) -> None:
        refusing = [name for name, one in reported.items() if one is _Report.REFUSES]
        missing = [name for name, one in reported.items() if one is None]
        if refusing:
            self.refuse()
            raise self._refused_by(refusing[0])
        if missing and late:
            self.refuse()
            raise self._not_started(missing[0])
        if all(one is _Report.AGREES for one in reported.values()):
            self._report(_Report.SENDS)

    def _follow(self, reported: dict[str, _Report | None], *, late: bool) -> None:
        first = reported[self._first]
        refusing = [name for name, one in reported.items() if one is _Report.REFUSES]
        if first is None and (late or refusing):
            # Written before it is read again: the first task either finds this refusal when it begins, or has
            # begun; then it may have decided by what was reported before, and its decision is waited for.
            self.refuse()
            first = self._read([self._first])[self._first]
            if first is None:
                raise self._refused_by(refusing[0]) if refusing else self._not_started(self._first)
        if first is _Report.REFUSES:
            raise self._refused_by(self._first)

    def _refused_by(self, channel: str) -> SourcePositionError:
        return RefusedByAnotherError(
            f"channel {self._own!r}: the batch is refused as a whole because of channel {channel!r}"
        )

    def _not_started(self, channel: str) -> SourcePositionError:
        return SourcePositionError(
            f"channel {self._own!r}: an earlier run has begun the batch, so all tasks compare before one "
            f"sends; that of {channel!r} did not start within {STARTED_WITHIN_SECONDS:g} s. Give Spark "
            f"{len(self._channels)} task slots; or finish the batch by write_checked (in a stream, "
            "within foreachBatch); or promise fixedSpread=true"
        )

    def _report(self, what: _Report) -> None:
        if self._reported not in (what, *_FINAL):
            self._client.open_channel(_marker(self._own), offset_token=f"{self._write}:{what}")
            self._reported = what

    def _read(self, channels: Iterable[str]) -> dict[str, _Report | None]:
        names = {_marker(name): name for name in channels}
        found = self._client.channel_statuses(list(names))
        return {names[marker]: self._meaning(status.committed) for marker, status in found.items()}

    def _meaning(self, token: str | None) -> _Report | None:
        write, _, what = (token or "").partition(":")
        return _Report(what) if write == self._write else None


def forget(client: SnowpipeClient, channels: Sequence[str]) -> None:
    """Drop what the tasks of a write have reported; the next write would not believe it either."""
    found = client.channel_statuses([_marker(name) for name in channels])

    def drop(name: str) -> None:
        with suppress(ChannelInvalidError):  # another driver was faster
            client.drop_channel(name)

    with ThreadPoolExecutor(_DROPPED_AT_ONCE) as pool:
        list(pool.map(drop, [name for name, status in found.items() if status.exists]))


def _marker(channel: str) -> str:
    return with_suffix(channel, COMPARED_SUFFIX)
