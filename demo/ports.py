"""Ports for programs that need a number, and cannot take 0 and report which one they got."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_COUNT = 12_000
_locks: list[int] = []
"""Open lock files: a port is reserved as long as this process lives."""


def reserved_port() -> int:
    """A port of the loopback interface on which nobody listens, and which nobody else gets.

    It is below those that the kernel gives to connections and to who asks for port 0: one of these may be
    taken between the question and the start of the program. A lock file keeps it from other runs.

    :raises OSError: if there is none
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    ports = list(range(max(first - _COUNT, 1024), first))
    random.shuffle(ports)
    for port in ports:
        with suppress(OSError):
            return _reserve(port)
    raise OSError("no free port")


def _reserve(port: int) -> int:
    lock = os.open(Path(tempfile.gettempdir(), f"snowpipe-port-{port}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        raise
    _locks.append(lock)
    return port
