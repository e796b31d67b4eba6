"""The committer of one database: groups appends and commits rows, tokens and counters in one transaction."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.local.engine.channels import Append, Channel
from airflow_provider_snowpipe.local.engine.ingest import commit_group
from airflow_provider_snowpipe.local.errors import Refusal

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.database import Database

log = logging.getLogger(__name__)

GROUP_BYTES = 8 << 20
GROUP_APPENDS = 2048
LINGER_SECONDS = 0.05
MAX_QUEUED_BYTES = 256 << 20
CHECKPOINT_IDLE_SECONDS = 5.0


class Committer:
    """One thread that turns accepted appends into commits.

    :param database: the database it writes to; its write lock is held during a commit only.
    :param delay: returns the seconds an append must wait before its commit (a fault for tests, normally 0).
    """

    def __init__(self, database: Database, delay: Callable[[], float]) -> None:
        self._database = database
        self._delay = delay
        self._changed = threading.Condition()
        self._queue: deque[Append] = deque()
        self._queued_bytes = 0
        self._in_flight: list[Append] = []
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
        """Queue one accepted append.

        :raises Refusal: 429 while too many bytes wait for their commit.
        """
        with self._changed:
            size = len(append.lines.body)
            if self._queued_bytes + size > MAX_QUEUED_BYTES and self._queue:
                raise Refusal(
                    429, "RECEIVER_SATURATED", "too many rows wait for their commit; send again later"
                )
            self._queue.append(append)
            self._queued_bytes += size
            self._changed.notify_all()

    def discard(self, channel: Channel, *, wait: bool = True) -> None:
        """Remove a channel's queued appends.

        :param wait: wait for a commit that already holds some of them. A caller that holds the database's
            write lock must not: that commit may be waiting for the lock, and then leaves out the appends of
            a dropped channel by itself.
        """
        with self._changed:
            while wait and any(append.channel is channel for append in self._in_flight):
                self._changed.wait()
            gone = [append for append in self._queue if append.channel is channel]
            self._queue = deque(append for append in self._queue if append.channel is not channel)
            self._queued_bytes -= sum(len(append.lines.body) for append in gone)
        _abandon(channel, gone)

    def _run(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                return
            if not group:
                self._database.checkpoint()
                continue
            try:
                commit_group(self._database, group)
            finally:
                with self._changed:
                    self._in_flight = []
                    self._changed.notify_all()

    def _next_group(self) -> list[Append] | None:
        """Wait for a group; an empty one means idle, None means stop."""
        with self._changed:
            idle_since = time.monotonic()
            while True:
                ready = self._ready()
                if ready:
                    self._in_flight = [self._queue.popleft() for _ in range(ready)]
                    self._queued_bytes -= sum(len(append.lines.body) for append in self._in_flight)
                    return self._in_flight
                if self._stopping and not self._queue:
                    return None
                wait = self._seconds_to_wait()
                if wait is None:
                    wait = (
                        idle_since + CHECKPOINT_IDLE_SECONDS - time.monotonic()
                        if self._database.dirty
                        else None
                    )
                    if wait is not None and wait <= 0:
                        return []
                self._changed.wait(wait)

    def _ready(self) -> int:
        """Return how many appends from the head of the queue form the next group."""
        now, delay = time.monotonic(), 0.0 if self._stopping else self._delay()
        count, size = 0, 0
        for append in self._queue:
            if append.received_at + delay > now or size >= GROUP_BYTES or count >= GROUP_APPENDS:
                break
            count += 1
            size += len(append.lines.body)
        full = size >= GROUP_BYTES or count >= GROUP_APPENDS or self._stopping
        if count and not full and self._queue[0].received_at + delay + LINGER_SECONDS > now:
            return 0
        return count

    def _seconds_to_wait(self) -> float | None:
        if not self._queue:
            return None
        due = self._queue[0].received_at + self._delay() + LINGER_SECONDS
        return max(due - time.monotonic(), 0.001)


def _abandon(channel: Channel, appends: list[Append]) -> None:
    channel.discarded(len(appends))
    for append in appends:
        append.durable.cancel()
        if append.upload is not None:
            append.upload.unlink(missing_ok=True)
