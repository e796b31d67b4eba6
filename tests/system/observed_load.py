"""The load of all 336,776 flights, and what all of Airflow's processes showed while it ran."""

from __future__ import annotations

import os
import threading
import time

import psutil
from conftest import Stack
from flights_run import FlightsRun

COMMAND_LINE_SECONDS, LISTENER_SECONDS = 0.2, 2.0


class ObservedLoad:
    """One run of ``flights_to_snowflake``, with the command lines and the listeners of every process.

    :param stack: what it runs against
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.command_lines: set[str] = set()
        self.listeners: set[tuple[str, str]] = set()
        self._sessions: set[int] = set()
        self._error: Exception | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._observe, daemon=True)
        self._thread.start()
        self.run = FlightsRun(stack, "FLIGHTS_OBSERVED", {})

    def finish(self) -> FlightsRun:
        """Wait until the run has succeeded, and end the observation."""
        self.run.wait()
        self._end.set()
        self._thread.join(60)
        assert self._error is None
        return self.run

    def _observe(self) -> None:
        try:
            due = 0.0
            while not self._end.wait(COMMAND_LINE_SECONDS):
                if time.monotonic() >= due:
                    self._listen()
                    due = time.monotonic() + LISTENER_SECONDS
                self._read_command_lines()
        except Exception as error:  # noqa: BLE001 - raised by finish()
            self._error = error

    def _listen(self) -> None:
        for process in self.stack.airflow.members():
            try:
                self._sessions.add(os.getsid(process.pid))
                self.listeners.update(
                    (process.name(), connection.laddr.ip)
                    for connection in process.net_connections("inet")
                    if connection.status == psutil.CONN_LISTEN
                )
            except (psutil.Error, ProcessLookupError):
                continue

    def _read_command_lines(self) -> None:
        for pid in psutil.pids():
            try:
                if os.getsid(pid) in self._sessions:
                    self.command_lines.add(" ".join(psutil.Process(pid).cmdline()))
            except (psutil.Error, ProcessLookupError):
                continue
