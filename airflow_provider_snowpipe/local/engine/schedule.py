"""Which appends form the next commit: low-volume channels share one, a high-volume channel gets its own.

Pure state without threads or clocks: the committer calls every method under its own lock and says what time
it is. The order of a channel's appends is never changed, whichever lane they wait in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from airflow_provider_snowpipe.local.engine.append import Append
from airflow_provider_snowpipe.local.engine.channel import Channel

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
        # Appends of clustering pipes are looked at together, so that neighbours in name share a group.
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
        if own is None and rate >= OWN_BYTES_PER_SECOND and not _in(self._shared.cut, channel):
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


def _in(groups: Iterable[list[Append]], channel: Channel) -> bool:
    return any(append.channel is channel for group in groups for append in group)


def _extract(lane: _Lane, channel: Channel) -> list[Append]:
    gone = [append for append in lane if append.channel is channel]
    if gone:
        kept = [[append for append in group if append.channel is not channel] for group in lane.cut]
        lane.cut = deque(group for group in kept if group)
        lane.appends = deque(append for append in lane.appends if append.channel is not channel)
        lane.size = sum(append.size for append in lane.appends)
        lane.clustering = sum(map(_clusters, lane.appends))
    return gone
