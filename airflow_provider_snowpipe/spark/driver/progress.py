"""Progress of a running job: one line a second for all channels together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType
from typing import Self

from airflow_provider_snowpipe.spark.sources.source import Partition
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

_INTERVAL_SECONDS = 1.0
_CHANNELS_A_SECOND = 1_000
"""More channels are asked after less often: a status request names a hundred of them."""
_JOIN_SECONDS = 5.0


class ProgressLines:
    """Prints what the service has committed while the Spark job runs.

    A context manager with a thread of its own and a client of its own; the thread ends with the block, or at
    the latest when its last request has timed out.

    :param client: makes the thread's client
    :param partitions: the source's partitions by channel name
    :param start: the channels' statuses when the run began
    :param began: when that was, by the monotonic clock
    :param done: returns how many channels have finished
    :param interval: seconds between two lines, None for one, or more where there are many channels
    """

    def __init__(
        self,
        client: Callable[[], SnowpipeClient],
        partitions: Mapping[str, Partition],
        start: Mapping[str, ChannelStatus],
        *,
        began: float,
        done: Callable[[], int] = lambda: 0,
        interval: float | None = None,
    ) -> None:
        self._done = done
        self._client = client
        self._partitions = dict(partitions)
        self._start = dict(start)
        self._began = began
        self._interval = interval or max(_INTERVAL_SECONDS, len(partitions) / _CHANNELS_A_SECOND)
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
        totals = Totals(self._poll(self._began, self._start))
        with self._client() as client:
            while not self._stop.wait(self._interval):
                try:
                    statuses = client.channel_statuses(list(self._partitions))
                except SnowpipeError as error:
                    print(f"snowpipe progress unknown: {error}", file=sys.stderr, flush=True)
                    continue
                totals.take(self._poll(time.monotonic(), statuses))
                print(totals.line(min(self._done(), len(statuses)), len(statuses)), flush=True)

    def _poll(self, at: float, statuses: Mapping[str, ChannelStatus]) -> Poll:
        known = [(self._start[name], statuses[name], one) for name, one in self._partitions.items()]
        behind = [partition.behind(now.committed) for _, now, partition in known]
        return Poll(
            at,
            sum(max(now.rows_inserted - start.rows_inserted, 0) for start, now, _ in known),
            sum(max(now.rows_error_count - start.rows_error_count, 0) for start, now, _ in known),
            _sum_known(one.bytes for one in behind),
            _sum_known(one.rows for one in behind),
            max((now.latency_ms for _, now, _ in known if now.latency_ms is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Poll:
    """All channels together at one time.

    :param at: when it was, seconds of a clock that only goes forward
    :param rows: rows committed since the run began
    :param rejected: rows skipped since then
    :param bytes_behind: bytes of the source that are not committed, at most; None where nobody knows
    :param rows_behind: the same in rows, or offsets that may be rows
    :param latency_ms: time from append to commit on the slowest channel, None where none is known
    """

    at: float
    rows: int = 0
    rejected: int = 0
    bytes_behind: int | None = None
    rows_behind: int | None = None
    latency_ms: int | None = None


@dataclass(slots=True)
class Totals:
    """The polls so far.

    :param first: what there was when the run began
    """

    first: Poll
    before: Poll = field(init=False)
    now: Poll = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.now = self.first

    def take(self, poll: Poll) -> None:
        """Take in one poll."""
        self.before, self.now = self.now, poll

    def rows_per_second(self) -> float:
        """Rows a second since the poll before."""
        seconds = self.now.at - self.before.at
        return max(self.now.rows - self.before.rows, 0) / seconds if seconds > 0 else 0.0

    def seconds_left(self) -> float | None:
        """Seconds to the end at the pace since the run began, None where that is not known."""
        for was, left in (
            (self.first.bytes_behind, self.now.bytes_behind),
            (self.first.rows_behind, self.now.rows_behind),
        ):
            if was is not None and left is not None:
                moved = was - left
                return left * (self.now.at - self.first.at) / moved if moved > 0 else None
        return None

    def line(self, done: int, channels: int) -> str:
        """Put it in a line; what is not known is left out.

        :param done: channels that have finished
        :param channels: all of them
        """
        now, left = self.now, self.seconds_left()
        known = [f"done={done}/{channels} rows={now.rows} rows_per_second={self.rows_per_second():.0f}"]
        if now.rejected:
            known.append(f"rejected={now.rejected}")
        if now.rows_behind is not None:
            known.append(f"rows_behind<={now.rows_behind}")
        if now.bytes_behind is not None:
            known.append(f"bytes_behind<={now.bytes_behind}")
        if left is not None:
            known.append(f"seconds_left<={left:.0f}")
        if now.latency_ms is not None:
            known.append(f"latency_ms<={now.latency_ms}")
        return " ".join(["snowpipe progress total", *known])


def _sum_known(sizes: Iterable[int | None]) -> int | None:
    """The sum, None where one of them is not known."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)
