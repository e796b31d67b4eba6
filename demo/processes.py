"""Child processes that are certain to be gone when their owner is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

TERMINATE_SECONDS = 6.0
KILL_SECONDS = 60.0
POLL_SECONDS = 0.02


class ProcessGroup:
    """Processes, each the leader of a session, remembered in a file and stopped with all their descendants.

    A session survives what a parent-child link does not: a child whose parent died still carries its id.
    The file lets the next run stop what a killed run left behind; a process id counts only together with
    its start time, so that a reused id is never signalled.

    :param state_file: where the ids are kept, removed by `stop`
    """

    def __init__(self, state_file: Path) -> None:
        self._state_file = state_file
        self._leaders: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: list[int] = []

    def start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start one process in a session of its own, its output appended to a log file.

        :param name: what messages call it
        :param command: program and arguments
        :param env: its whole environment
        :param log: the file for stdout and stderr
        :param stdin: as for `subprocess.Popen`
        """
        with log.open("ab") as output:
            self._leaders[name] = subprocess.Popen(
                command,
                env=dict(env),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._remember()

    def ended(self) -> dict[str, int]:
        """Return the exit codes of the processes that are no longer running."""
        codes = {name: leader.poll() for name, leader in self._leaders.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL, and nothing of what it started; `stop` still finds that.

        :param name: as in `start`
        :raises RuntimeError: if it had ended before
        """
        leader = self._leaders.pop(name)
        if (code := leader.poll()) is not None:
            raise RuntimeError(f"{name} had ended before, with exit code {code}")
        self._killed.append(leader.pid)
        leader.kill()
        leader.wait(KILL_SECONDS)
        self._remember()

    def members(self) -> list[psutil.Process]:
        """List every living process of the sessions, descendants that left their session included."""
        return _members([*self._killed, *(leader.pid for leader in self._leaders.values())])

    def terminate(self) -> None:
        """Ask every process to end; `stop` waits for that."""
        _signal(self.members(), signal.SIGTERM)

    def stop(self, grace: float = TERMINATE_SECONDS) -> None:
        """End every process: SIGTERM, then SIGKILL for those still there a while later.

        :param grace: seconds between the two
        :raises RuntimeError: if a process outlives SIGKILL by a minute
        """
        _end(self.members(), grace)
        for leader in self._leaders.values():
            leader.wait(KILL_SECONDS)
        self._leaders.clear()
        self._killed.clear()
        self._state_file.unlink(missing_ok=True)

    def _remember(self) -> None:
        leaders = [
            {"pid": leader.pid, "started": psutil.Process(leader.pid).create_time()}
            for leader in self._leaders.values()
            if leader.poll() is None
        ]
        partial = self._state_file.with_suffix(".partial")
        partial.write_text(json.dumps(leaders))
        partial.replace(self._state_file)


def stop_left_behind(state_file: Path) -> int:
    """Stop what an earlier, killed owner of this state file left running.

    :param state_file: the file a `ProcessGroup` kept
    :returns: the number of processes ended
    """
    if not state_file.exists():
        return 0
    pids = [entry["pid"] for entry in json.loads(state_file.read_text()) if _is_same(entry)]
    members = _members(pids)
    _end(members)
    state_file.unlink()
    return len(members)


def _is_same(entry: Mapping[str, float]) -> bool:
    try:
        started: float = psutil.Process(int(entry["pid"])).create_time()
    except psutil.NoSuchProcess:
        return False
    return abs(started - entry["started"]) < 1


def _members(leaders: Iterable[int]) -> list[psutil.Process]:
    sessions = set(leaders)
    found: dict[int, psutil.Process] = {}
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            if os.getsid(process.pid) not in sessions or process.status() == psutil.STATUS_ZOMBIE:
                continue
            found[process.pid] = process
            found.update({child.pid: child for child in process.children(recursive=True)})
        except (psutil.Error, ProcessLookupError):
            continue
    return list(found.values())


def _end(processes: list[psutil.Process], grace: float = TERMINATE_SECONDS) -> None:
    _signal(processes, signal.SIGTERM)
    alive = _alive_after(grace, processes)
    _signal(alive, signal.SIGKILL)
    if alive := _alive_after(KILL_SECONDS, alive):
        raise RuntimeError(f"still running after SIGKILL: {', '.join(map(str, alive))}")


def _alive_after(seconds: float, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait until all have ended, and return those that have not in this time.

    A zombie has ended: process 1 takes seconds to collect orphans, or, in a container, never does.
    """
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
