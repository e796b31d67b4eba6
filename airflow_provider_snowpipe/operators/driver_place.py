"""A Spark driver on this machine that outlives the worker that started it: place, processes, memory."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.operators.submission import SentLoad

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context
    from psutil import Process  # type: ignore[import-untyped]


DIRECTORY_PREFIX = "snowpipe-"
_DRIVER_KEY = "snowpipe_driver"
_REJECTED_KEY = "snowpipe_rejected_before"
_SENT_KEY = "snowpipe_sent"
_CLOCKS = dt.timedelta(minutes=1)
"""By so much the clocks of Airflow and Snowflake may differ."""


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """Where a try put its driver. Its plan's path is in the driver's command line and in no other's.

    :param host: the machine's name
    :param directory: holds plan, log and report
    """

    host: str
    directory: str

    @classmethod
    def here(cls, directory: Path) -> Self:
        """Name a place on this machine.

        :param directory: the directory of this try
        """
        return cls(socket.gethostname(), str(directory))

    @property
    def plan_path(self) -> Path:
        """The plan that the driver reads."""
        return Path(self.directory, "plan.json")

    @property
    def log_path(self) -> Path:
        """What ``spark-submit`` prints; a file, since a pipe would break with the worker."""
        return Path(self.directory, "driver.log")

    @property
    def report_path(self) -> Path:
        """The run report, there when the driver has ended by itself."""
        return Path(self.directory, "report.json")

    @property
    def start_path(self) -> Path:
        """Rows that were skipped before the run began, by channel; there when the run has begun."""
        return Path(self.directory, "start.json")

    @property
    def ui_path(self) -> Path:
        """The addresses of the application's page; there when Spark has started."""
        return Path(self.directory, "ui.json")

    @classmethod
    def of(cls, kept: Any) -> Self | None:
        """Read a place that an earlier try kept.

        :param kept: what the task state holds
        :returns: None if it is no place
        """
        if not isinstance(kept, Mapping) or not all(isinstance(kept.get(f.name), str) for f in fields(cls)):
            return None
        return cls(host=kept["host"], directory=kept["directory"])

    def is_here(self) -> bool:
        """True when this is the machine."""
        return self.host == socket.gethostname()

    def is_ours(self) -> bool:
        """True when the directory is there and one that a try has made: it will be read, and removed."""
        directory = Path(self.directory)
        return (
            directory.parent == Path(tempfile.gettempdir())
            and directory.name.startswith(DIRECTORY_PREFIX)
            and directory.is_dir()
            and not directory.is_symlink()
            and directory.stat().st_uid == os.getuid()
        )

    def processes(self) -> list[Process]:
        """List the living processes that run this place's plan, ``spark-submit`` and the driver."""
        import psutil

        plan = str(self.plan_path)
        found = []
        for process in psutil.process_iter():
            try:
                if plan in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


class DriverMemory:
    """What a task instance knows from one try to the next, in the task state that Airflow has since 3.3.

    Before that, and with ``durable=False``, it knows only whether this is a retry, and of which run.

    :param context: the task's context
    :param durable: False forgets everything
    """

    def __init__(self, context: Context, *, durable: bool) -> None:
        values: Any = context
        self._store = values.get("task_state_store") if durable else None
        self._try_number = max(1, getattr(values.get("ti"), "try_number", 1))
        self._run_began = getattr(values.get("dag_run"), "start_date", None)

    def place(self) -> DriverPlace | None:
        """Where the try before put its driver, None if there was none or it ended in order."""
        return DriverPlace.of(self._get(_DRIVER_KEY))

    def rejected_before(self) -> Mapping[str, int]:
        """Rows that were skipped before the first of the tries that have not reported yet, by channel."""
        kept: Mapping[str, int] = self._get(_REJECTED_KEY) or {}
        return kept

    def rejected_since_ms(self) -> int | None:
        """From when on rows that were skipped are of this task, where no earlier try could say what it found.

        The run's start, less what clocks may differ by: so what another run had skipped in the time between
        is reported once more rather than what an earlier try had skipped is not. None for a first try, and
        where there is a task state, which is exact.
        """
        if self._store is not None or self._try_number == 1:
            return None
        if self._run_began is None:
            return 0
        return int((self._run_began - _CLOCKS).timestamp() * 1_000)

    def keep_place(self, place: DriverPlace) -> None:
        """Remember where the driver is about to run.

        :param place: the place
        """
        if self._store is not None:
            self._store.set(_DRIVER_KEY, asdict(place))

    def keep_rejected_before(self, counts: Mapping[str, int]) -> None:
        """Remember the first counts that a try has seen; later ones would hide what it skipped.

        :param counts: skipped rows by channel
        """
        if self._store is not None:
            self._store.set(_REJECTED_KEY, {**counts, **self.rejected_before()})

    def sent(self) -> SentLoad | None:
        """What the try before has sent and not seen committed, None if there is nothing of the kind."""
        return SentLoad.of(self._get(_SENT_KEY))

    def keep_sent(self, sent: SentLoad) -> None:
        """Remember what the driver has sent, and still where it ran, whose directory may not be removed yet.

        :param sent: the load
        """
        if self._store is not None:
            self._store.set(_SENT_KEY, sent.to_kept())

    def forget_driver(self) -> None:
        """Forget the driver and what it sent, so that the next try starts a new one."""
        if self._store is not None:
            self._store.delete(_DRIVER_KEY)
            self._store.delete(_SENT_KEY)

    def forget(self) -> None:
        """Forget everything: what there was to report has been reported."""
        self.forget_driver()
        if self._store is not None:
            self._store.delete(_REJECTED_KEY)

    def _get(self, key: str) -> Any:
        return None if self._store is None else self._store.get(key)


# -- Starting ``spark-submit`` such that it outlives its worker, following it, and stopping all it started --

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
