"""Starting ``spark-submit`` such that it outlives its worker, following it, and stopping all it started."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from psutil import Process  # type: ignore[import-untyped]

_GRACE_SECONDS = 3.0
"""Airflow kills a task five seconds after it asked it to end; the driver has to be gone by then."""
_REAP_SECONDS = 1.5
_POLL_SECONDS = 0.05
_FOLLOW_SECONDS = 0.2


def start_logged(
    hook: SparkSubmitHook, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[str]:
    """Start ``spark-submit`` with its output in a file; a pipe would break with the worker.

    :param hook: whose environment it gets, and who knows the process afterwards
    :param command: program and arguments
    :param environment: variables that the hook does not set
    :param log: the file
    """
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  the hook's own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, **(hook._env or {})},
            text=True,
        )
    hook._submit_sp = process
    return process


def follow(log: Path, still_runs: Callable[[], bool], *, from_start: bool = True) -> Iterator[str]:
    """Read lines of a file that is being written, until its writer has ended.

    :param log: the file
    :param still_runs: tells whether the writer still runs
    :param from_start: False begins at the present end
    """
    with log.open(encoding="utf-8", errors="replace") as lines:
        if not from_start:
            lines.seek(0, os.SEEK_END)
        part = ""
        while True:
            last = not still_runs()
            for piece in lines:
                part += piece
                if part.endswith("\n"):
                    yield part
                    part = ""
            if last:
                break
            time.sleep(_FOLLOW_SECONDS)
        if part:
            yield part


def stop_process_tree(process: subprocess.Popen[str] | None) -> None:
    """Ask a process and its descendants to end, then end them by force.

    A killed Java process would leave its Python driver behind.

    :param process: the process, None if there is none
    """
    if process is None or process.poll() is not None:
        return
    import psutil

    try:
        leader = psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        return
    stop_processes([leader])
    process.poll()


def stop_processes(leaders: Sequence[Process]) -> None:
    """The same for processes that somebody else started.

    :param leaders: processes; their descendants end too
    """
    import psutil

    everyone = {process.pid: process for leader in leaders for process in (leader, *_descendants(leader))}
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in everyone.values():
            try:
                signal(process)
            except psutil.NoSuchProcess:
                continue
        if not _wait(
            list(everyone.values()),
            _GRACE_SECONDS if signal is psutil.Process.terminate else _REAP_SECONDS,
        ):
            return


def _descendants(process: Process) -> list[Process]:
    import psutil

    try:
        found: list[Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _wait(processes: list[Process], seconds: float) -> list[Process]:
    """Give processes time to end; return those that still run. A zombie has ended."""
    deadline = time.monotonic() + seconds
    while (running := [one for one in processes if runs(one)]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return running


def runs(process: Process) -> bool:
    """True while a process runs; a zombie does not.

    :param process: the process
    """
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
