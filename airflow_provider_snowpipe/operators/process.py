"""Stopping ``spark-submit`` with everything it started."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psutil import Process  # type: ignore[import-untyped]

_GRACE_SECONDS = 10.0
_REAP_SECONDS = 5.0
_POLL_SECONDS = 0.05


def stop_process_tree(process: subprocess.Popen[str] | None) -> None:
    """Ask a process to end, then end it and its descendants by force.

    A killed Java process would leave its Python driver behind, which holds the pipe that the task reads.

    :param process: the process, None if there is none
    """
    if process is None or process.poll() is not None:
        return
    import psutil

    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    for survivor in _wait(descendants):
        try:
            survivor.kill()
        except psutil.NoSuchProcess:
            continue
    _wait(descendants)


def _wait(processes: list[Process]) -> list[Process]:
    """Give processes time to end; return those that still run. A zombie has ended."""
    deadline = time.monotonic() + _REAP_SECONDS
    while (running := [one for one in processes if _runs(one)]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return running


def _runs(process: Process) -> bool:
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
