"""Tasks of a small load on a local master: threads of the driver do what executors do, without Spark."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

_T = TypeVar("_T")
_R = TypeVar("_R")
_LOCAL = re.compile(r"local(\[(?P<threads>\d+|\*)(\s*,\s*(?P<attempts>\d+))?\])?")


def is_local(master: str) -> bool:
    """True for a master whose driver is the only process that runs tasks: ``local``, ``local[*]``."""
    return _LOCAL.fullmatch(master) is not None


class LocalTasks:
    """Runs tasks as a local master does: as many at once, and each as often until it succeeds.

    :param master: ``local``, ``local[threads]`` or ``local[threads, attempts]``
    :raises ConfigurationError: if it is another master
    """

    def __init__(self, master: str) -> None:
        found = _LOCAL.fullmatch(master)
        if found is None:
            raise ConfigurationError(f"plan local_master is {master!r}: give a master such as 'local[*]'")
        threads = found["threads"] or "1"
        self._threads = max(1, (os.cpu_count() or 1) if threads == "*" else int(threads))
        self._attempts = max(1, int(found["attempts"] or 1))
        self._running: list[Future[Any]] = []

    @property
    def finished(self) -> int:
        """How many tasks of the last :meth:`run` have ended."""
        return sum(one.done() for one in self._running)

    def run(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Run one task for each item; after a failure none begins, and those that run come to their end.

        :raises SnowpipeError: the first error that no attempt could fix
        """
        with ThreadPoolExecutor(min(self._threads, len(items)), "snowpipe-task") as pool:
            running = [pool.submit(self._attempted, work, item) for item in items]
            self._running = list(running)
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        for one in ended:
            one.result()
        return [one.result() for one in running]

    def _attempted(self, work: Callable[[_T], _R], item: _T) -> _R:
        for attempt in range(1, self._attempts):
            try:
                return work(item)
            except SnowpipeError as error:
                print(f"snowpipe attempt {attempt} of a task failed: {error}", file=sys.stderr, flush=True)
        return work(item)
