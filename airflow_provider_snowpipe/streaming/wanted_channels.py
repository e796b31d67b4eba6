"""Which channels of a pipe are waited for, and when to ask after which: the pure part of a shared poll."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_SLACK = 0.5
"""A channel counts as due this share of the fastest interval early, so that requests stay full."""


class WantedChannels:
    """The channels of one pipe that are waited for, each at the pace of its most impatient waiter.

    Rounds follow each other at the fastest interval of all waiters. A round asks after the channels that are
    due by their own interval, so a slow waiter's channels are not dragged along at the fastest one's pace. A
    channel that is new is asked after in the next round; it starts no round of its own.

    Not thread-safe: everything happens on one event loop. Times are seconds of any clock that only goes
    forward.
    """

    def __init__(self) -> None:
        self._intervals: dict[str, Counter[float]] = {}
        self._waiters: Counter[float] = Counter()
        self._asked_at: dict[str, float] = {}
        self._round_at: float | None = None

    def __len__(self) -> int:
        return len(self._intervals)

    @property
    def interval(self) -> float | None:
        """Seconds between two rounds: the fastest waiter's; None while nobody waits."""
        return min(self._waiters, default=None)

    def add(self, names: Sequence[str], interval: float) -> None:
        """Take in one waiter.

        :param names: the channels that it waits for
        :param interval: seconds between two looks that it asks for
        """
        self._waiters[interval] += 1
        for name in names:
            self._intervals.setdefault(name, Counter())[interval] += 1

    def remove(self, names: Sequence[str], interval: float) -> None:
        """Let one waiter go, with the values it came with.

        :param names: its channels
        :param interval: its interval
        """
        _take(self._waiters, interval)
        for name in names:
            _take(self._intervals[name], interval)
            if not self._intervals[name]:
                del self._intervals[name]
                self._asked_at.pop(name, None)

    def seconds_to_next_round(self, now: float) -> float | None:
        """How long to wait before the next round; 0 for the first one, None while nobody waits.

        :param now: the time
        """
        interval = self.interval
        if interval is None:
            return None
        return 0.0 if self._round_at is None else max(0.0, self._round_at + interval - now)

    def start_round(self, now: float) -> list[str]:
        """Begin a round: the channels to ask after, in the order in which they were first wanted.

        :param now: the time
        """
        self._round_at = now
        early = _SLACK * (self.interval or 0.0)
        due = [name for name in self._intervals if self._is_due(name, now + early)]
        self._asked_at.update(dict.fromkeys(due, now))
        return due

    def _is_due(self, name: str, now: float) -> bool:
        asked_at = self._asked_at.get(name)
        return asked_at is None or asked_at + min(self._intervals[name]) <= now


def _take(counter: Counter[float], key: float) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
