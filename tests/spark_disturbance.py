"""Something that happens to a write of this process while it has committed some rows and not all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.python_workers import kill_each, workers_of
from tests.spark_session import Door
from tests.waiting import wait_until


class Disturbance(threading.Thread):
    """Does a deed once a channel of numbered partitions is in the middle of a batch."""

    def __init__(self, door: Door, deed: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._door = door
        self._deed = deed
        self.done = False

    def run(self) -> None:
        wait_until(self._under_way, seconds=300, what="the first commit")
        self._deed()
        self.done = True

    def _under_way(self) -> bool:
        tokens = self._door.tokens(0, 1).values()
        return any(token is not None and not token.endswith("-end") for token in tokens)


def kill_python_workers() -> None:
    """SIGKILL the Python workers of the Spark session in this process."""
    workers = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            workers += workers_of(process)
    assert kill_each(workers)
