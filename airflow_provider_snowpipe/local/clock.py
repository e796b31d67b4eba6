"""The service's wall clock, which a test may move forward to reach an expiry."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock time, plus what a test has moved it by.

    Everything that is remembered for days asks this clock: load histories and channels. Tokens of clients
    and time-outs of requests do not; they follow the machine's clock.

    :param moved_seconds: how far the clock runs ahead of the machine's.
    """

    def __init__(self, moved_seconds: float = 0.0) -> None:
        self._moved_seconds = moved_seconds

    @property
    def moved_seconds(self) -> float:
        """How far the clock runs ahead of the machine's, in seconds."""
        return self._moved_seconds

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time() + self._moved_seconds

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return int(self.now() * 1000)

    def move(self, seconds: float) -> None:
        """Move the clock forward.

        :param seconds: by how much; not negative, because what has expired stays expired.
        :raises ValueError: for a negative number.
        """
        if seconds < 0:
            raise ValueError(f"the clock only moves forward, not by {seconds} s")
        self._moved_seconds += seconds
