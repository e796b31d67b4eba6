"""Progress of a running job: a line for each channel that moved and one for all, every other second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType
from typing import Self

from airflow_provider_snowpipe.spark.source import Partition
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.status import ChannelStatus

_INTERVAL_SECONDS = 2.0
_JOIN_SECONDS = 5.0
_MOST_LINES = 20
"""A look at ten thousand channels must not be ten thousand lines."""


class ProgressLines:
    """Prints what the service has committed while the Spark job runs.

    A context manager with a thread of its own and a client of its own; the thread ends with the block, or at
    the latest when its last request has timed out.

    :param client: makes the thread's client
    :param partitions: the source's partitions by channel name
    :param start: the channels' statuses when the run began
    :param done: tells how many channels have finished
    """

    def __init__(
        self,
        client: Callable[[], SnowpipeClient],
        partitions: Mapping[str, Partition],
        start: Mapping[str, ChannelStatus],
        *,
        done: Callable[[], int] = lambda: 0,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        self._done = done
        self._client = client
        self._partitions = dict(partitions)
        self._start = dict(start)
        self._committed = {name: status.committed for name, status in start.items()}
        self._interval = interval
        self._stop = Event()
        self._thread = Thread(target=self._run, name="snowpipe-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        totals = Totals(time.monotonic())
        with self._client() as client:
            while not self._stop.wait(self._interval):
                try:
                    statuses = client.channel_statuses(list(self._partitions))
                except SnowpipeError as error:
                    print(f"snowpipe progress unknown: {error}", file=sys.stderr, flush=True)
                    continue
                for name in channels_to_show(statuses, self._partitions, self._committed):
                    print(
                        progress_line(statuses[name], self._start[name], self._partitions[name]), flush=True
                    )
                self._committed = {name: status.committed for name, status in statuses.items()}
                rows = sum(
                    max(status.rows_inserted - self._start[name].rows_inserted, 0)
                    for name, status in statuses.items()
                )
                behind = _sum_known(
                    self._partitions[name].behind(status.committed).bytes for name, status in statuses.items()
                )
                latencies = [one.latency_ms for one in statuses.values() if one.latency_ms is not None]
                totals.take(time.monotonic(), rows, behind, max(latencies, default=None))
                print(totals.line(min(self._done(), len(statuses)), len(statuses)), flush=True)


@dataclass(slots=True)
class Totals:
    """All channels together, as far as the looks so far tell.

    :param began: when the run began, seconds of a clock that only goes forward
    """

    began: float
    at: float = field(init=False)
    rows: int = field(init=False, default=0)
    rate: float = field(init=False, default=0.0)
    behind: int | None = field(init=False, default=None)
    latency_ms: int | None = field(init=False, default=None)
    behind_at_first: int | None = field(init=False, default=None)
    first_at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.at = self.began

    def take(self, now: float, rows: int, behind: int | None, latency_ms: int | None = None) -> None:
        """Take in one look.

        :param now: when it was made
        :param rows: rows committed since the run began
        :param behind: bytes of the source that are not committed, at most; None where nobody knows
        :param latency_ms: time from append to commit on the slowest channel, None where none is known
        """
        self.rate = max(rows - self.rows, 0) / (now - self.at) if now > self.at else 0.0
        self.at, self.rows, self.behind, self.latency_ms = now, rows, behind, latency_ms
        if self.behind_at_first is None:
            self.behind_at_first, self.first_at = behind, now

    def seconds_left(self) -> float | None:
        """Seconds to the end at the pace since the first look, None where nothing tells."""
        if self.behind is None or self.behind_at_first is None or self.at <= self.first_at:
            return None
        pace = (self.behind_at_first - self.behind) / (self.at - self.first_at)
        return self.behind / pace if pace > 0 else None

    def line(self, done: int, channels: int) -> str:
        """Put it in a line; what is not known yet is left out.

        :param done: channels that have finished
        :param channels: all of them
        """
        left = self.seconds_left()
        known = [f"done={done}/{channels}"]
        if self.rows:
            known.append(f"rows={self.rows} rows_per_second={self.rate:.0f}")
        if self.behind is not None:
            known.append(f"bytes_behind<={self.behind}")
        if left is not None:
            known.append(f"seconds_left<={left:.0f}")
        if self.latency_ms is not None:
            known.append(f"latency_ms<={self.latency_ms}")
        return " ".join(["snowpipe progress total", *known])


def channels_to_show(
    statuses: Mapping[str, ChannelStatus],
    partitions: Mapping[str, Partition],
    before: Mapping[str, str | None],
) -> list[str]:
    """Choose the channels that get a line: those that moved, and of many the ones furthest behind.

    :param statuses: every channel's status now
    :param partitions: what each loads
    :param before: the committed tokens of the look before
    """
    moved = [name for name, status in statuses.items() if status.committed != before.get(name)]
    if len(moved) <= _MOST_LINES:
        return moved
    behind = {name: partitions[name].behind(statuses[name].committed).bytes or 0 for name in moved}
    return sorted(moved, key=behind.__getitem__, reverse=True)[:_MOST_LINES]


def progress_line(status: ChannelStatus, start: ChannelStatus, partition: Partition) -> str:
    """Put one channel's progress in a line.

    :param status: the channel's status now
    :param start: its status when the run began
    :param partition: what it loads
    """
    behind = partition.behind(status.committed)
    rows = status.rows_inserted - start.rows_inserted
    rejected = status.rows_error_count - start.rows_error_count
    line = (
        f"snowpipe progress channel={status.channel} committed={status.committed or 'NULL'} "
        f"rows={max(rows, 0)} rejected={max(rejected, 0)} {behind.text}"
        + ("" if behind.bytes is None else f" bytes_behind<={behind.bytes}")
    )
    latency = "" if status.latency_ms is None else f" latency_ms={status.latency_ms}"
    return line + latency


def _sum_known(sizes: Iterable[int | None]) -> int | None:
    """The sum, None where one of them is not known."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)
