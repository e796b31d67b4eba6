"""Something that happens to a write of this process while it has committed some rows and not all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import psutil

from tests.spark_job import wait_until
from tests.spark_session import Door


class Disturbance(threading.Thread):
    """Does a deed once a channel of numbered partitions is in the middle of a batch.

    :param door: the table that is written to
    :param deed: what is done
    """

    def __init__(self, door: Door, deed: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._door = door
        self._deed = deed
        self.done = False

    def run(self) -> None:
        wait_until(self._under_way, seconds=90, what="the first commit")
        self._deed()
        self.done = True

    def _under_way(self) -> bool:
        tokens = self._door.tokens(0, 1).values()
        return any(token is not None and not token.endswith("-end") for token in tokens)


def kill_python_workers() -> None:
    """SIGKILL the Python workers of the Spark session in this process."""
    killed = 0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            parent = process.parent()
            daemons = "pyspark.daemon" in process.cmdline() and parent is not None
            if daemons and parent is not None and "pyspark.daemon" in parent.cmdline():
                process.kill()
                killed += 1
        except psutil.NoSuchProcess:
            """It has ended by itself."""
    assert killed
