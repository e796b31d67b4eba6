"""The committer of one database: groups appends and commits rows, tokens and counters in one transaction."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from snowpipe_local.engine.channel import Append, Channel
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.engine.spool import Spool, disk_full
from snowpipe_local.errors import Refusal
from snowpipe_local.limits import Limits

# -- Which appends form the next commit: low-volume channels share one, a high-volume channel gets its own --
#
# Pure state without threads or clocks: the committer calls every method under its own lock and passes what
# time it is. The order of a channel's appends is never changed, whichever lane they wait in.

GROUP_BYTES = 8 << 20
GROUP_APPENDS = 2048
LINGER_SECONDS = 0.05
# A channel at this rate fills a group of its own in two seconds; it keeps it until it falls to half of that.
OWN_BYTES_PER_SECOND = 4 << 20
SHARED_BYTES_PER_SECOND = 2 << 20
_AVERAGE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """Appends of one commit.

    :param appends: in order of acceptance within each channel.
    :param own: True when they are those of one high-volume channel, from its own lane.
    """

    appends: list[Append]
    own: bool


class ArrivalRate:
    """Bytes per second of one channel, an exponential moving average over about two seconds."""

    __slots__ = ("_rate", "_seen_at")

    def __init__(self) -> None:
        self._rate = 0.0
        self._seen_at = 0.0

    def add(self, size: int, now: float) -> float:
        """Count an append of ``size`` bytes and return the rate."""
        self._rate = self.at(now) + size / _AVERAGE_SECONDS
        self._seen_at = now
        return self._rate

    def at(self, now: float) -> float:
        """Return the rate at a time, in bytes per second."""
        return self._rate * math.exp(-max(now - self._seen_at, 0.0) / _AVERAGE_SECONDS)


class _Lane:
    """Appends that wait, in order of arrival, and groups that were cut from them already."""

    __slots__ = ("appends", "clustering", "cut", "own", "size")

    def __init__(self, *, own: bool) -> None:
        self.own = own
        self.appends: deque[Append] = deque()
        self.cut: deque[list[Append]] = deque()
        self.size = 0
        self.clustering = 0

    def __iter__(self) -> Iterator[Append]:
        for group in self.cut:
            yield from group
        yield from self.appends

    def add(self, append: Append) -> None:
        self.appends.append(append)
        self.size += append.size
        self.clustering += _clusters(append)

    def is_full(self) -> bool:
        return self.size >= GROUP_BYTES or len(self.appends) >= GROUP_APPENDS

    def head(self) -> float:
        """Time at which the oldest append was received; the lane is not empty."""
        if self.cut:
            return min(append.received_at for append in self.cut[0])
        return self.appends[0].received_at

    def due_at(self, delay: float) -> float:
        """Time from which a group may be taken; the lane is not empty."""
        if self.cut:
            return 0.0
        return self.head() + delay + (0.0 if self.is_full() else LINGER_SECONDS)

    def take(self, now: float, delay: float) -> list[Append]:
        """Remove the next group: appends that have waited long enough, up to the size of a group."""
        if not self.cut:
            self.cut.extend(_cut(self._ripe(now, delay)))
        return self.cut.popleft()

    def _ripe(self, now: float, delay: float) -> list[Append]:
        # Appends of clustering pipes are considered together, so that neighbours in name share a group.
        everything = self.clustering > 0
        taken: list[Append] = []
        size = 0
        # The same sum as in due_at: a lane that is due by it has a first append that is ripe by it.
        while self.appends and self.appends[0].received_at + delay <= now:
            if not everything and (size >= GROUP_BYTES or len(taken) >= GROUP_APPENDS):
                break
            taken.append(self.appends.popleft())
            size += taken[-1].size
        self.size -= size
        if everything:
            self.clustering -= sum(map(_clusters, taken))
        return taken


class Schedule:
    """Accepted appends that wait for their commit."""

    def __init__(self) -> None:
        self._shared = _Lane(own=False)
        self._own: dict[Channel, _Lane] = {}
        self._rates: WeakKeyDictionary[Channel, ArrivalRate] = WeakKeyDictionary()

    def __iter__(self) -> Iterator[Append]:
        for lane in self._lanes():
            yield from lane

    def __bool__(self) -> bool:
        return any(lane.appends or lane.cut for lane in self._lanes())

    def rate(self, channel: Channel, now: float) -> float:
        """Return the measured arrival rate of a channel in bytes per second."""
        rate = self._rates.get(channel)
        return 0.0 if rate is None else rate.at(now)

    def has_own_group(self, channel: Channel) -> bool:
        """True while the channel commits alone."""
        return channel in self._own

    def add(self, append: Append, now: float) -> bool:
        """Let an append wait.

        :param now: ``time.monotonic()``.
        :returns: True when the time of the next group may have changed.
        """
        lane = self._lane(append, now)
        was_empty, was_full = not lane.appends, lane.is_full()
        lane.add(append)
        return was_empty or (lane.is_full() and not was_full)

    def take(self, now: float, delay: float = 0.0, *, flush: bool = False) -> Group | None:
        """Remove and return the group whose time has come, the longest waiting first, or None.

        :param now: ``time.monotonic()``.
        :param delay: seconds that an append must have waited.
        :param flush: do not wait for more appends, nor for the delay.
        """
        if flush:
            now = math.inf
        due = [lane for lane in self._lanes() if (lane.appends or lane.cut) and lane.due_at(delay) <= now]
        if not due:
            return None
        lane = min(due, key=_Lane.head)
        return Group(lane.take(now, delay), lane.own)

    def due_at(self, delay: float = 0.0) -> float | None:
        """Return the time of the next group, or None when nothing waits."""
        return min((lane.due_at(delay) for lane in self._lanes() if lane.appends or lane.cut), default=None)

    def remove(self, channel: Channel) -> list[Append]:
        """Remove and return all appends of a channel, and forget its own lane."""
        own = self._own.pop(channel, None)
        gone = list(own) if own is not None else []
        return [*_extract(self._shared, channel), *gone]

    def _lane(self, append: Append, now: float) -> _Lane:
        channel = append.channel
        rate = self._rates.setdefault(channel, ArrivalRate()).add(append.size, now)
        own = self._own.get(channel)
        if own is not None and not own.appends and not own.cut and rate < SHARED_BYTES_PER_SECOND:
            del self._own[channel]
            return self._shared
        is_fast = own is None and rate >= OWN_BYTES_PER_SECOND
        if is_fast and not any(one.channel is channel for group in self._shared.cut for one in group):
            own = self._own[channel] = _Lane(own=True)
            for earlier in _extract(self._shared, channel):
                own.add(earlier)
        return own if own is not None else self._shared

    def _lanes(self) -> Iterable[_Lane]:
        yield self._shared
        yield from self._own.values()


def _clusters(append: Append) -> bool:
    definition = append.channel.pipe.definition
    return definition is not None and definition.cluster_at_ingest_time


def _cut(appends: list[Append]) -> list[list[Append]]:
    """Cut appends into groups; those of clustering pipes over channels in the order of their names."""
    if any(_clusters(append) for append in appends):
        # The sort is stable: the order within a channel stays.
        appends = sorted(appends, key=lambda append: append.channel.name if _clusters(append) else "")
    groups: list[list[Append]] = []
    size = GROUP_BYTES
    for append in appends:
        if size >= GROUP_BYTES or len(groups[-1]) >= GROUP_APPENDS:
            groups.append([])
            size = 0
        groups[-1].append(append)
        size += append.size
    return groups


def _extract(lane: _Lane, channel: Channel) -> list[Append]:
    gone = [append for append in lane if append.channel is channel]
    if gone:
        kept = [[append for append in group if append.channel is not channel] for group in lane.cut]
        lane.cut = deque(group for group in kept if group)
        lane.appends = deque(append for append in lane.appends if append.channel is not channel)
        lane.size = sum(append.size for append in lane.appends)
        lane.clustering = sum(map(_clusters, lane.appends))
    return gone


log = logging.getLogger(__name__)

CHECKPOINT_IDLE_SECONDS = 5.0
# A delay of commits is a fault for tests, which may be cleared while the committer waits for it.
_DELAY_POLL_SECONDS = 0.05
_REMEMBERED_COMMITS = 64


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit that was made, for ``status``.

    :param own: True for the group of one high-volume channel.
    """

    channels: int
    appends: int
    size: int
    own: bool
    seconds: float


@dataclass(slots=True)
class Backlog:
    """What of one channel waits for its commit.

    :param received_at: ``time.monotonic()`` of the oldest.
    """

    appends: int
    size: int
    received_at: float


class Committer:
    """One thread that turns accepted appends into commits.

    :param file: the file that the commits go to; a checkpoint follows when it is idle.
    :param delay: returns the seconds an append must wait before its commit (a fault for tests, normally 0).
    :param limits: how many bytes may wait, in all and in memory.
    :param spool: where rows wait above the bound of memory; None keeps all of them there.
    """

    def __init__(
        self,
        file: DatabaseFile,
        commit: Callable[[Sequence[Append]], None],
        delay: Callable[[], float],
        limits: Limits,
        spool: Spool | None = None,
    ) -> None:
        self._file = file
        self._commit = commit
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
        self._thread = threading.Thread(target=self._run, name=f"committer-{file.name}", daemon=True)

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
        if not self._file.has_space(2 * append.size):
            raise disk_full()
        with self._changed:
            if self._queued_bytes and self._queued_bytes + append.size > self._limits.queued_bytes:
                raise Refusal(
                    429, "RECEIVER_SATURATED", "too many rows wait for their commit; send again later"
                )
            self._queued_bytes += append.size
            fits = self._bytes_in_memory + append.size <= self._limits.queued_bytes_in_memory
            if fits or self._spool is None:
                self._bytes_in_memory += append.size
        if not fits and self._spool is not None:
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
            raise disk_full() from error

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
                self._file.checkpoint()
                continue
            began = time.monotonic()
            try:
                self._commit(group.appends)
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
        return idle_since + CHECKPOINT_IDLE_SECONDS - now if self._file.dirty else None


def _abandon(channel: Channel, appends: list[Append]) -> None:
    channel.discarded(len(appends))
    for append in appends:
        append.durable.cancel()
        if append.upload is not None:
            append.upload.remove()
        append.unpark()
