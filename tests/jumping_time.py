"""A time in which nobody waits."""

import asyncio
import time
from typing import Any, Self

import pytest

_WAITING = (
    "streaming.admin",
    "streaming.append",
    "streaming.auth",
    "streaming.batch",
    "streaming.channel",
    "streaming.http",
    "spark.task.sink",
)
"""The modules that wait, or ask how long a token lives."""


class JumpingTime:
    """A clock that stands still until somebody sleeps; then it is that much later at once."""

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


@pytest.fixture
def jumping_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``asyncio.run`` of the test has a loop in which nobody waits."""
    monkeypatch.setattr(asyncio.events, "new_event_loop", JumpingLoop)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which nobody waits either: with nothing to do it is at once as late as its next timer.

    Threads of its executors are waited for in real time; of sockets it knows nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed, self._in_threads = 0.0, 0

    def time(self) -> float:
        return super().time() + self._passed

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self._in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._in_threads -= 1

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = [one for one in self._scheduled if not one.cancelled()]
        if not self._ready and not self._in_threads and timers:
            self._passed += max(0.0, min(one.when() for one in timers) - self.time())
        super()._run_once()
