"""The committer of one database: groups appends and commits rows, tokens and counters in one transaction."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.local.engine.append import Append
from airflow_provider_snowpipe.local.engine.channel import Channel
from airflow_provider_snowpipe.local.engine.ingest import commit_group
from airflow_provider_snowpipe.local.engine.schedule import Group, Schedule
from airflow_provider_snowpipe.local.engine.spool import Spool
from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.limits import Limits

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.database import Database

log = logging.getLogger(__name__)

CHECKPOINT_IDLE_SECONDS = 5.0
# A delay of commits is a fault for tests, which may be cleared while the committer waits for it.
_DELAY_POLL_SECONDS = 0.05
_REMEMBERED_COMMITS = 64


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit that was made, for ``status``.

    :param channels: how many channels it held.
    :param appends: how many appends.
    :param size: bytes of their rows.
    :param own: True for the group of one high-volume channel.
    :param seconds: how long it took.
    """

    channels: int
    appends: int
    size: int
    own: bool
    seconds: float


@dataclass(slots=True)
class Backlog:
    """What of one channel waits for its commit.

    :param appends: how many.
    :param size: bytes of their rows.
    :param received_at: ``time.monotonic()`` of the oldest.
    """

    appends: int
    size: int
    received_at: float


class Committer:
    """One thread that turns accepted appends into commits.

    :param database: the database it writes to; its write lock is held during a commit only.
    :param delay: returns the seconds an append must wait before its commit (a fault for tests, normally 0).
    :param limits: how many bytes may wait, in all and in memory.
    :param spool: where rows wait above the bound of memory; None keeps all of them there.
    """

    def __init__(
        self, database: Database, delay: Callable[[], float], limits: Limits, spool: Spool | None = None
    ) -> None:
        self._database = database
        self._delay = delay
        self._limits = limits
        self._spool = spool
        self._bytes_in_memory = 0
        self._changed = threading.Condition()
        self._schedule = Schedule()
        self._queued_bytes = 0
        self._in_flight: list[Append] = []
        self._records: deque[CommitRecord] = deque(maxlen=_REMEMBERED_COMMITS)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"committer-{database.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is queued, without further delay, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def enqueue(self, append: Append) -> None:
        """Queue one accepted append; its rows go to disk while too many wait in memory.

        :raises Refusal: 429 while too many bytes wait for their commit, 503 when the disk takes no more.
        """
        if not self._database.has_room(2 * append.size):
            raise Refusal(503, "SERVICE_UNAVAILABLE", "the disk of the local service is full; send again")
        with self._changed:
            if self._queued_bytes and self._queued_bytes + append.size > self._limits.queued_bytes:
                raise Refusal(
                    429, "RECEIVER_SATURATED", "too many rows wait for their commit; send again later"
                )
            self._queued_bytes += append.size
            room = self._bytes_in_memory + append.size <= self._limits.queued_bytes_in_memory
            if room or self._spool is None:
                self._bytes_in_memory += append.size
        if not room and self._spool is not None:
            self._park(append, self._spool)
        with self._changed:
            if self._schedule.add(append, time.monotonic()):
                self._changed.notify_all()

    def _park(self, append: Append, spool: Spool) -> None:
        try:
            append.park(spool)
        except OSError as error:
            with self._changed:
                self._queued_bytes -= append.size
            log.warning("rows cannot wait on disk: %s", error)
            raise Refusal(
                503, "SERVICE_UNAVAILABLE", "the disk of the local service takes no more rows; send again"
            ) from error

    def _left_queue(self, appends: list[Append]) -> None:
        self._queued_bytes -= sum(append.size for append in appends)
        self._bytes_in_memory -= sum(append.size for append in appends if append.parked is None)

    def discard(self, channel: Channel, *, wait: bool = True) -> None:
        """Remove a channel's queued appends.

        :param wait: wait for a commit that already holds some of them. A caller that holds the database's
            write lock must not: that commit may be waiting for the lock, and then leaves out the appends of
            a dropped channel by itself.
        """
        with self._changed:
            while wait and any(append.channel is channel for append in self._in_flight):
                self._changed.wait()
            gone = self._schedule.remove(channel)
            self._left_queue(gone)
        _abandon(channel, gone)

    @property
    def records(self) -> list[CommitRecord]:
        """The last commits, the oldest first."""
        with self._changed:
            return list(self._records)

    def backlog(self) -> dict[Channel, Backlog]:
        """Return what waits for its commit, or is in it."""
        waiting: dict[Channel, Backlog] = {}
        with self._changed:
            for append in (*self._in_flight, *self._schedule):
                entry = waiting.setdefault(append.channel, Backlog(0, 0, append.received_at))
                entry.appends += 1
                entry.size += append.size
        return waiting

    def arrival(self, channel: Channel) -> tuple[float, bool]:
        """Return a channel's measured bytes per second, and whether it commits alone."""
        with self._changed:
            return self._schedule.rate(channel, time.monotonic()), self._schedule.has_own_group(channel)

    def _run(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if not group.appends:
                self._database.checkpoint()
                continue
            began = time.monotonic()
            try:
                commit_group(self._database, group.appends)
            finally:
                self._committed(group, time.monotonic() - began)

    def _committed(self, group: Group, seconds: float) -> None:
        channels = len({append.channel for append in group.appends})
        size = sum(append.size for append in group.appends)
        with self._changed:
            self._records.append(CommitRecord(channels, len(group.appends), size, group.own, seconds))
            self._in_flight = []
            self._changed.notify_all()

    def _next_group(self) -> Group | None:
        """Wait for a group; an empty one means idle, None means stop."""
        with self._changed:
            idle_since = time.monotonic()
            while True:
                delay = self._delay()
                group = self._schedule.take(time.monotonic(), delay, flush=self._stopping)
                if group is not None:
                    self._in_flight = group.appends
                    self._left_queue(group.appends)
                    return group
                if self._stopping and not self._schedule:
                    return None
                wait = self._seconds_to_wait(delay, idle_since)
                if wait is not None and wait <= 0:
                    return Group([], own=False)
                self._changed.wait(wait)

    def _seconds_to_wait(self, delay: float, idle_since: float) -> float | None:
        """Return the seconds until the next group; not positive when it is time to checkpoint."""
        now, due = time.monotonic(), self._schedule.due_at(delay)
        if due is not None:
            wait = max(due - now, 0.001)
            return min(wait, _DELAY_POLL_SECONDS) if delay else wait
        return idle_since + CHECKPOINT_IDLE_SECONDS - now if self._database.dirty else None


def _abandon(channel: Channel, appends: list[Append]) -> None:
    channel.discarded(len(appends))
    for append in appends:
        append.durable.cancel()
        if append.upload is not None:
            append.upload.remove()
        append.unpark()
