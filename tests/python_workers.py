"""The Python processes of a Spark JVM, some of which end while they are read."""

from collections.abc import Iterable

import psutil


def daemons_of(jvm: psutil.Process) -> list[psutil.Process]:
    return [child for child in jvm.children() if _is_daemon(child)]


def children_of(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    """Return the children of a process, none when it has ended."""
    try:
        found: list[psutil.Process] = process.children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
    return found


def kill_each(processes: Iterable[psutil.Process]) -> int:
    """Send SIGKILL to processes and return how many had not ended by themselves."""
    killed = 0
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        killed += 1
    return killed


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.NoSuchProcess:  # a zombie counts as one
        return False
