"""Tasks of one write agree that the rows which an earlier run has committed are theirs before one sends.

A task sees its own partition only. Where an earlier run has begun the batch, each one compares the committed
rows of its channel and then says so to the others, in the one place that all of them reach: the pipe, as the
offset token of a channel beside its own into which no row is sent. It sends once every task has said the
same. That takes a task slot for each partition, since a task that waits keeps its slot; where Spark has
fewer, the batch is refused with nothing sent, and ``write_checked`` finishes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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


class _Said(StrEnum):
    COMPARES = "compares"
    AGREES = "agrees"
    REFUSES = "refuses"


class RefusedByAnotherError(SourcePositionError):
    """A task sends nothing because of another one, which knows more about the reason."""


class Agreement:
    """What the tasks of one write have found out about a batch that an earlier run has begun.

    :param client: a client of the channels' pipe
    :param channels: the batch's channels, one for each partition
    :param partition: the number of this task's partition
    :param write: an id of the write, the same for all of its tasks and their attempts, and for no other write
    """

    def __init__(self, client: SnowpipeClient, channels: Sequence[str], partition: int, write: str) -> None:
        self._client = client
        self._channels = {_marker(name): name for name in channels}
        self._own = channels[partition]
        self._write = write
        self._said: _Said | None = None

    def begin(self) -> None:
        """Say that this task runs, so that the others wait for it."""
        self._say(_Said.COMPARES)

    def agree(self) -> None:
        """Say that the committed rows are the first ones of this task's share, or that there are none."""
        self._say(_Said.AGREES)

    def refuse(self) -> None:
        """Say that this task refuses the batch, for whatever reason."""
        self._say(_Said.REFUSES)

    def wait(self) -> None:
        """Agree, and wait until all tasks do.

        :raises RefusedByAnotherError: if one refuses, or if not all of them run at the same time
        :raises AuthenticationError: if the scoped token expires before they have compared
        """
        self.agree()
        began = time.monotonic()
        while True:
            said = self._all_said()
            refusing = [name for name, one in said.items() if one is _Said.REFUSES]
            if refusing:
                raise RefusedByAnotherError(
                    f"channel {self._own!r}: the batch is refused as a whole because of channel "
                    f"{refusing[0]!r}"
                )
            missing = [name for name, one in said.items() if one is None]
            if not missing and all(one is _Said.AGREES for one in said.values()):
                return
            if missing and time.monotonic() - began > STARTED_WITHIN_SECONDS:
                self.refuse()
                raise RefusedByAnotherError(
                    f"channel {self._own!r}: an earlier run has committed a part of the batch, so that all "
                    f"{len(said)} tasks have to compare before one sends, and {len(missing)} of them did not "
                    f"start within {STARTED_WITHIN_SECONDS:g} seconds. Give Spark a task slot for each "
                    "partition; or finish the batch by write_checked(df, options), which compares in a job "
                    "of its own (in a stream, within foreachBatch, with the same checkpoint); or promise by "
                    "the option fixedSpread=true that each row lies in the partition that it lay in then"
                )
            time.sleep(_POLL_SECONDS)

    def _say(self, what: _Said) -> None:
        if what is not self._said:
            self._client.open_channel(_marker(self._own), offset_token=f"{self._write}:{what}")
            self._said = what

    def _all_said(self) -> dict[str, _Said | None]:
        found = self._client.channel_statuses(list(self._channels))
        return {self._channels[name]: self._read(status.committed) for name, status in found.items()}

    def _read(self, token: str | None) -> _Said | None:
        write, _, what = (token or "").partition(":")
        return _Said(what) if write == self._write else None


def forget(client: SnowpipeClient, channels: Sequence[str]) -> None:
    """Drop what the tasks of a write have said; the next write would not believe it either.

    :param client: a client of the channels' pipe
    :param channels: the batch's channels
    """
    found = client.channel_statuses([_marker(name) for name in channels])

    def drop(name: str) -> None:
        with suppress(ChannelInvalidError):  # another driver was faster
            client.drop_channel(name)

    with ThreadPoolExecutor(_DROPPED_AT_ONCE) as pool:
        list(pool.map(drop, [name for name, status in found.items() if status.exists]))


def _marker(channel: str) -> str:
    return with_suffix(channel, COMPARED_SUFFIX)
