"""The service's wall clock, which a test may move forward to reach an expiry."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

from airflow_provider_snowpipe.local.datadir import write_file
from airflow_provider_snowpipe.local.errors import DataDirectoryError

# Ten years: further away no timestamp of a client or a database would make sense.
_MOST_SECONDS = 10 * 365 * 86_400


class Clock:
    """Wall-clock time, plus what a test has moved it by.

    Everything that is remembered for days asks this clock: load histories and channels. Tokens of clients
    and time-outs of requests do not; they follow the machine's clock.

    :param moved_seconds: how far the clock runs ahead of the machine's.
    :param file: keeps that number over restarts; None forgets it.
    """

    def __init__(self, moved_seconds: float = 0.0, file: Path | None = None) -> None:
        self._moved_seconds = moved_seconds
        self._file = file
        self._lock = threading.Lock()

    @classmethod
    def kept_in(cls, file: Path) -> Clock:
        """Return the clock as the last run of the service left it.

        :param file: holds the seconds by which it was moved; absent until it is moved.
        :raises DataDirectoryError: when the file does not hold a number.
        """
        try:
            moved = float(file.read_text())
        except FileNotFoundError:
            moved = 0.0
        except ValueError as error:
            raise DataDirectoryError(f"{file} does not hold a number of seconds; delete it") from error
        return cls(moved, file)

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
        :raises ValueError: for a negative number, or one that is not finite.
        """
        if not (math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS):
            raise ValueError(
                f"the clock only moves forward, by at most {_MOST_SECONDS} s, not by {seconds} s"
            )
        with self._lock:
            moved = self._moved_seconds + seconds
            if self._file is not None:
                write_file(self._file, f"{moved!r}\n".encode(), mode=0o600)
            self._moved_seconds = moved
