"""How far a pipe and its channels are, as far as tasks have seen it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, TypeVar

from airflow_provider_snowpipe.plugins.history import ChannelWork, TaskWork
from airflow_provider_snowpipe.plugins.rendering import Series
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import known_formats, offset_class
from airflow_provider_snowpipe.streaming.progress import REJECTED_ROWS

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.names import PipeName

EXPIRY = dt.timedelta(days=30)
"""A channel without appends for so long is deleted with its token ("Channels and exactly-once delivery")."""
EXPIRES_SOON = dt.timedelta(days=7)


@dataclass(slots=True)
class ChannelState:
    """How far a channel is, as far as tasks have seen it.

    :param committed: the last committed offset token that a task saw
    :param target: the last offset token that a task owed
    :param rows: rows that tasks sent
    :param rejected: rows of them that were rejected
    :param latency_ms: the last known average time from append to commit
    :param committed_at: when a task last saw a commit
    :param written_at: when a task last wrote
    :param owed: rows of loads whose commit no task has seen, and when each ended
    """

    channel: str
    committed: str | None = None
    target: str | None = None
    rows: int = 0
    rejected: int = 0
    latency_ms: int | None = None
    committed_at: dt.datetime | None = None
    written_at: dt.datetime | None = None
    owed: list[tuple[ChannelWork, dt.datetime]] = field(default_factory=list)

    @property
    def lag_rows(self) -> int:
        """Rows that were sent and not seen committed."""
        return sum(work.rows or 0 for work, _ in self.owed)

    @property
    def behind_since(self) -> dt.datetime | None:
        """Since when."""
        return self.owed[0][1] if self.owed else None

    @property
    def word(self) -> str:
        """Its state."""
        return _word(self.rejected, bool(self.owed), self.committed_at, self.expires_at)

    @property
    def expires_at(self) -> dt.datetime | None:
        """When it is deleted unless somebody writes."""
        return None if self.written_at is None else self.written_at + EXPIRY

    def take(self, work: ChannelWork, time: dt.datetime) -> int:
        """Go on with what a task did.

        :returns: rows that are known to be committed now and were not before
        """
        self.rows += work.rows or 0
        self.rejected += work.rejected
        self.latency_ms = work.latency_ms if work.latency_ms is not None else self.latency_ms
        self.target = work.target or self.target
        if work.rows:
            self.owed.append((work, time))
            self.written_at = time
        done = [one for one in self.owed if _is_covered(one[0], work)]
        self.owed = [one for one in self.owed if one not in done]
        if work.committed is not None:
            self.committed, self.committed_at = work.committed, time
        elif work.found is not None:
            self.committed = work.found
        return sum(one.rows or 0 for one, _ in done)


def _is_covered(owed: ChannelWork, seen: ChannelWork) -> bool:
    """True when a task saw that what another, or itself, owed is committed."""
    if owed is seen or owed.target is None:
        return seen.committed is not None
    token = seen.committed or seen.found
    if token is None:
        return False
    if token == owed.target or (seen.committed is not None and seen.rows is not None):
        return True  # a channel commits in order
    if owed.offset_format not in known_formats():
        return False
    try:
        spelled = offset_class(owed.offset_format)
        return not spelled.parse(token) < spelled.parse(owed.target)
    except (OffsetTokenError, ConfigurationError):
        return False


def _word(
    rejected: int, is_behind: bool, committed_at: dt.datetime | None, expires_at: dt.datetime | None
) -> str:
    now = dt.datetime.now(dt.UTC)
    if rejected:
        return REJECTED_ROWS
    if is_behind:
        return "BEHIND"
    if expires_at is not None and expires_at <= now + EXPIRES_SOON:
        return "EXPIRED" if expires_at <= now else "EXPIRES SOON"
    return "COMMITTED" if committed_at else "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Point:
    """How many rows were sent and committed at a time, since the history begins.

    :param sent: rows up to the targets of the tasks
    :param committed: rows of them that a task had seen committed
    """

    time: dt.datetime
    sent: int
    committed: int


@dataclass(frozen=True, slots=True)
class PipeState:
    """How far a pipe is, as far as tasks have seen it.

    :param tasks: what worked on it, from the oldest
    """

    connection: str
    pipe: PipeName
    tasks: Sequence[TaskWork]
    channels: Sequence[ChannelState]
    points: Sequence[Point]

    @classmethod
    def of(
        cls, connection: str, pipe: PipeName, tasks: Sequence[TaskWork], channel: str | None = None
    ) -> Self:
        """Go through what tasks did.

        :param tasks: from the oldest
        :param channel: this channel only, None for all
        """
        states: dict[str, ChannelState] = {}
        points: list[Point] = []
        own: list[TaskWork] = []
        sent = committed = 0
        for task in tasks:
            works = [one for one in task.channels if channel in (None, one.channel)]
            if works or channel is None:
                own.append(task if channel is None else replace(task, channels=tuple(works)))
            for work in works:
                state = states.setdefault(work.channel, ChannelState(work.channel))
                sent += work.rows or 0
                committed += state.take(work, task.time)
            if works and not (task.is_running and not task.has_sent):
                points.append(Point(task.time, sent, committed))
        return cls(connection, pipe, own, list(states.values()), points)

    @property
    def rows_over_time(self) -> list[Series]:
        """For a chart: rows that tasks owed, and those of them that are committed."""
        return [
            Series("target", [(one.time, one.sent) for one in self.points]),
            Series("committed", [(one.time, one.committed) for one in self.points]),
        ]

    def over_time(self, name: str, attribute: str) -> list[Series]:
        """For a chart: what each load has of something, such as ``rows_per_second``."""
        loads = [task for task in self.tasks if task.has_sent]
        return [Series(name, [(task.time, getattr(task, attribute)) for task in loads])]

    @property
    def rows(self) -> int:
        """Rows that tasks sent."""
        return sum(one.rows for one in self.channels)

    @property
    def rejected(self) -> int:
        """Rows of them that were rejected."""
        return sum(one.rejected for one in self.channels)

    @property
    def rows_per_second(self) -> float | None:
        """Rows a second of the last task that sent some."""
        return next(_known(task.rows_per_second for task in reversed(self.tasks)), None)

    @property
    def latency_ms(self) -> int | None:
        """The longest average time from append to commit, of the last task that knew one."""
        return next(_known(task.latency_ms for task in reversed(self.tasks)), None)

    @property
    def lag_rows(self) -> int:
        """Rows that were sent and not seen committed."""
        return sum(one.lag_rows for one in self.channels)

    @property
    def lag_seconds(self) -> float | None:
        """Seconds since the first of them was sent, None where nothing is behind."""
        since = min(_known(one.behind_since for one in self.channels), default=None)
        return None if since is None else (dt.datetime.now(dt.UTC) - since).total_seconds()

    @property
    def oldest_commit(self) -> dt.datetime | None:
        """The last commit of the channel that has committed nothing for the longest time."""
        return min(_known(one.committed_at for one in self.channels), default=None)

    @property
    def expires_at(self) -> dt.datetime | None:
        """When the first of its channels is deleted unless somebody writes."""
        return min(_known(one.expires_at for one in self.channels), default=None)

    @property
    def word(self) -> str:
        """Its state: what is worst, in one word."""
        last = {(task.key.dag_id, task.key.task_id, task.key.map_index): task for task in self.tasks}
        if any(task.is_failed for task in last.values()):
            return "FAILED"
        oldest = self.oldest_commit
        found = _word(self.rejected, any(one.owed for one in self.channels), oldest, self.expires_at)
        is_loading = any(task.is_running for task in last.values())
        return "LOADING" if is_loading and found != REJECTED_ROWS else found


Value = TypeVar("Value")


def _known(values: Iterable[Value | None]) -> Iterator[Value]:
    return (value for value in values if value is not None)
