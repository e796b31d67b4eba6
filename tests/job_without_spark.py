"""The job without Spark: driver and tasks are processes of their own.

Driver, plan, report and tasks are the real ones; only what spreads the tasks over executors is this module's.
So a test can kill a driver or a task for real without starting Java. A driver is forked from a server process
that has loaded the package: loading it takes longer than the load. Variables of the environment set more:
``DEEDS``, a folder of :func:`tests.spark_deeds.deeds_of`; ``TASK_ATTEMPTS``; and ``READ_SECONDS``, how long
a task waits for an answer.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self
from unittest.mock import patch

from airflow_provider_snowpipe.spark.driver import job, run
from airflow_provider_snowpipe.spark.task import sink
from airflow_provider_snowpipe.streaming.http import Transports
from tests.spark_deeds import deeds_of, doing, read_deeds
from tests.spark_job import SparkJob

_NEVER = 3600.0
_NUMBER = struct.Struct("!Q")


def without_spark(job: SparkJob, deeds: Path, **environment: str) -> SparkJob:
    """Let the runs of a job be runs of this file."""
    deeds_of(deeds, [])
    job.start_process = ForkedDriver
    job.env = {"DEEDS": str(deeds), **environment}
    return job


class ForkedDriver:
    """The process of a driver, and as much of ``Popen`` as the tests use."""

    def __init__(
        self, command: Sequence[str], *, env: dict[str, str], cwd: Path, stdout: Any, stderr: Any, **_: Any
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        given = (command[-1], env, cwd, stdout.name, stderr.name)
        self._process = context.Process(target=_be_a_driver, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the driver", timeout or 0.0)
        return self._process.exitcode


def _be_a_driver(plan: str, env: dict[str, str], cwd: Path, stdout: str, stderr: str) -> None:
    """Be a driver, in a session of its own."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, name in (1, stdout), (2, stderr):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    sys.exit(drive(plan))


class ForkedTasks:
    """As much of a Spark context as the driver uses: a task is a forked process, with some attempts."""

    def __init__(self, attempts: int, daemon: _Daemon) -> None:
        self._attempts, self._daemon = attempts, daemon
        self._work: Callable[[Any], Any] = lambda item: item
        self._items: Sequence[Any] = ()

    def parallelize(self, items: Sequence[Any], _: int) -> Self:
        self._items = items
        return self

    def map(self, work: Callable[[Any], Any]) -> Self:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        """Run all tasks at once and return their results; the first that fails for good ends the others."""
        fork = partial(_Attempt, self._daemon, self._work)
        running = {number: fork(item, 0) for number, item in enumerate(self._items)}
        results: dict[int, Any] = {}
        try:
            while running:
                ready = wait([one.answer for one in running.values()])
                for number in [number for number, one in running.items() if one.answer in ready]:
                    ended = running.pop(number)
                    is_done, results[number] = ended.join()
                    if not is_done and ended.number + 1 < self._attempts:
                        running[number] = fork(self._items[number], ended.number + 1)
                    elif not is_done:
                        raise _as_spark_reports_it(number, self._attempts, results[number])
        finally:
            for one in running.values():
                one.kill()
        return [results[number] for number in range(len(self._items))]


class _Daemon:
    """Forks the attempts, as Spark's daemon does: no client of a store has started threads in it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        if os.fork() == 0:
            self._ours.close()
            _be_the_daemon(theirs)
        theirs.close()

    def fork(self, task: tuple[Callable[[Any], Any], Any, int], answer: Connection) -> int:
        """Start an attempt that writes its answer there; its process."""
        from pyspark import cloudpickle

        body = cloudpickle.dumps(task)
        socket.send_fds(self._ours, [_NUMBER.pack(len(body))], [answer.fileno()])
        self._ours.sendall(body)
        return int(_NUMBER.unpack(self._ours.recv(_NUMBER.size, socket.MSG_WAITALL))[0])


def _be_the_daemon(driver: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        head, fds, _, _ = socket.recv_fds(driver, _NUMBER.size, 1)
        if not head:  # the driver has ended
            os._exit(0)
        body = driver.recv(*_NUMBER.unpack(head), socket.MSG_WAITALL)
        if (pid := os.fork()) == 0:
            driver.close()
            _attempt(*pickle.loads(body), Connection(fds[0]))  # noqa: S301  made by the driver
            os._exit(0)
        os.close(fds[0])
        driver.sendall(_NUMBER.pack(pid))


class _Attempt:
    """One attempt of a task in a process of its own."""

    def __init__(self, daemon: _Daemon, work: Callable[[Any], Any], item: Any, number: int) -> None:
        self.number = number
        self.answer, theirs = multiprocessing.Pipe(duplex=False)
        self._pid = daemon.fork((work, item, number), theirs)
        theirs.close()

    def join(self) -> tuple[bool, Any]:
        """True with the result, or False with what went wrong, as Spark writes it."""
        try:
            answer = self.answer.recv()
        except EOFError:
            crash = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
            answer = (False, crash)
        return answer

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def _attempt(work: Callable[[Any], Any], item: Any, number: int, answer: Connection) -> None:
    from pyspark import TaskContext

    TaskContext._getOrCreate()._attemptNumber = number
    try:
        answer.send((True, work(item)))
    except Exception:  # noqa: BLE001  whatever it is, it goes to the driver
        answer.send((False, traceback.format_exc()))


def _as_spark_reports_it(task: int, times: int, failure: str) -> Exception:
    from pyspark.errors import PySparkException

    return PySparkException(
        f"Task {task} in stage 0.0 failed {times} times, most recent failure: Lost task {task}.{times - 1} "
        f"in stage 0.0 (TID {task}) (127.0.0.1 executor driver): {failure}"
    )


def drive(plan: str) -> int:
    """Run the job of a plan's file past the points of its faults; its exit code."""
    deeds = read_deeds(Path(os.environ["DEEDS"]))
    deeds.note_driver(os.getpid())
    timeouts = (5.0, float(os.environ.get("READ_SECONDS", "30")))
    # A process is forked from one thread only: the one that prints progress would be another.
    quiet = partial(run.ProgressLines, interval=_NEVER)
    attempts = int(os.environ.get("TASK_ATTEMPTS", "4"))
    with (
        patch.object(sink, "Transports", partial(Transports, timeouts=timeouts)),
        patch.object(run, "ProgressLines", quiet),
        doing(deeds),
    ):
        tasks = ForkedTasks(attempts, _Daemon())
        session = SimpleNamespace(start=None, executors=lambda: tasks, stop=lambda: None)
        with patch.object(job, "JobSession", lambda _: nullcontext(session)):
            return job.main([plan])
