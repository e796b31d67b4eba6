"""A time in which nobody waits."""

from __future__ import annotations

import time
from typing import Self

import pytest

_WAITING = (
    "streaming.auth",
    "streaming.channel",
    "streaming.channel_session",
    "streaming.exchange",
    "streaming.lifecycle",
    "streaming.reset",
    "streaming.retry",
    "streaming.small_load",
    "spark.sink",
)
"""The modules that wait, or ask how long a token lives."""


class JumpingTime:
    """A clock that stands still until somebody sleeps; then it is that much later at once.

    :param slept: every sleep, in seconds
    """

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._began, self._passed = time.time(), 0.0

    @classmethod
    def everywhere(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Make one the time of the modules that wait, for one test."""
        clock = cls()
        for module in _WAITING:
            monkeypatch.setattr(f"airflow_provider_snowpipe.{module}.time", clock)
        return clock

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._passed += seconds

    def monotonic(self) -> float:
        return self._passed

    def time(self) -> float:
        return self._began + self._passed
