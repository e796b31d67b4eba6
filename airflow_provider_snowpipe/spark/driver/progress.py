"""How far a run is: rows committed since it began, their pace, what is left; for people alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from airflow_provider_snowpipe.spark.driver.report import ChannelStart, read_start
from airflow_provider_snowpipe.streaming.lag import FileBacklog

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


@dataclass(frozen=True, slots=True)
class Poll:
    """All channels together at one time.

    :param at: when it was, seconds of a clock that only goes forward
    :param rows: rows committed since the run began
    :param rejected: rows skipped since then
    :param bytes_behind: bytes of the source that are not committed, at most; None where nobody knows
    :param rows_behind: the same in rows, or offsets that may be rows
    :param backlog: the files that are not committed, None where no source has files
    :param latency_ms: time from append to commit on the slowest channel, None where none is known
    """

    at: float
    rows: int = 0
    rejected: int = 0
    bytes_behind: int | None = None
    rows_behind: int | None = None
    latency_ms: int | None = None
    backlog: FileBacklog | None = None

    @classmethod
    def of(
        cls,
        at: float,
        channels: Sequence[tuple[ChannelStatus, ChannelStatus]],
        *,
        bytes_behind: int | None = None,
        rows_behind: int | None = None,
        backlog: FileBacklog | None = None,
    ) -> Self:
        """Sum up the channels, each with its status when the run began, and the one now."""
        return cls(
            at,
            sum(max(now.rows_inserted - before.rows_inserted, 0) for before, now in channels),
            sum(max(now.rows_error_count - before.rows_error_count, 0) for before, now in channels),
            bytes_behind,
            rows_behind,
            max((now.latency_ms for _, now in channels if now.latency_ms is not None), default=None),
            backlog,
        )


@dataclass(slots=True)
class Totals:
    """The polls so far; the first one is from when the run began."""

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

    def line(self, channels: str) -> str:
        """Put it in a line behind the number of channels; what is not known is left out."""
        now, left = self.now, self.seconds_left()
        known = [f"{channels} rows={now.rows}"]
        if now.at > self.before.at:
            known.append(f"rows_per_second={self.rows_per_second():.0f}")
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
        if now.backlog is not None:
            known.append(str(now.backlog))
        return " ".join(known)


def sum_known(sizes: Iterable[int | None]) -> int | None:
    """The sum, None where one of them is not known."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


class FollowedChannels:
    """The channels of a run that goes on elsewhere, from what it found on them when it began.

    :param start: what that was, by channel
    :param began: when that was, seconds of the clock of the polls; None for unknown, and the pace is that
        since the first poll
    """

    def __init__(self, start: Mapping[str, ChannelStart], began: float | None = None) -> None:
        self.start = start
        self.rows = -1
        self._known: dict[str, tuple[ChannelStatus, ChannelStatus]] = {}
        self._totals: Totals | None = None
        self._has_line = False
        self._backlogs = {name: one.backlog(None) for name, one in start.items()}
        self._first = None if began is None else self._poll(began)

    @classmethod
    def of_text(cls, text: str, absent_at: float) -> Self:
        """The channels of the start file that somebody has found.

        The driver's clock may be wrong: it has not begun later than now, nor before the reader has seen that
        there is no such file.

        :param absent_at: when the reader has seen that, by the monotonic clock; minus infinity for never
        """
        start = read_start(text)
        began = max((one.began_ms for one in start.values() if one.began_ms is not None), default=None)
        age = -1.0 if began is None else time.time() - began / 1_000
        return cls(start, max(time.monotonic() - age, absent_at) if age >= 0 else None)

    def take(self, statuses: Mapping[str, ChannelStatus], at: float) -> None:
        """Take in one poll of some of the channels, and perhaps of others."""
        polled = statuses.keys() & self.start.keys()
        if not polled:
            return
        for name in polled:
            before = self._known[name][0] if name in self._known else self.start[name].status(statuses[name])
            self._known[name] = before, statuses[name]
            self._backlogs[name] = self.start[name].backlog(statuses[name].committed)
        poll = self._poll(at)
        self._totals = self._totals or Totals(self._first or poll)
        if self._has_line:
            self._totals.take(poll)
        else:
            self._totals.now = poll
        self._has_line = False
        self.rows = poll.rows

    def line(self) -> str:
        """Put it in a line, with the pace since the line before, empty while nothing is known."""
        self._has_line = self._totals is not None
        return "" if self._totals is None else self._totals.line(f"channels={len(self.start)}")

    def _poll(self, at: float) -> Poll:
        return Poll.of(
            at,
            list(self._known.values()),
            bytes_behind=sum_known(None if one is None else one.bytes for one in self._backlogs.values()),
            rows_behind=sum_known(self._rows_behind(name) for name in self.start),
            backlog=FileBacklog.total(self._backlogs.values()),
        )

    def _rows_behind(self, name: str) -> int | None:
        """Rows that are not committed, at most: some of a source may be none of the table's."""
        behind = self.start[name].rows_behind
        if behind is None or name not in self._known:
            return behind
        before, now = self._known[name]
        passed = now.rows_inserted + now.rows_error_count - before.rows_inserted - before.rows_error_count
        return max(behind - passed, 0)
