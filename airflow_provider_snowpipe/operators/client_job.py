"""A Spark driver on this machine that outlives the worker that started it: location, processes, memory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators.submission import (
    SubmitHook,
    launch_environment,
    search_path,
    worker_environment,
)
from airflow_provider_snowpipe.spark.driver.report import UI_FILE, UiAddresses
from airflow_provider_snowpipe.spark.submit.source import SubmittedLoad

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from psutil import Process  # type: ignore[import-untyped]

    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.streaming.auth import Credentials


DIRECTORY_PREFIX = "snowpipe-"
REPORT_FILE = "report.json"
_DRIVER_KEY = "snowpipe_driver"
_APPLICATION_KEY = "snowpipe_application"
_SENT_KEY = "snowpipe_sent"
_MAX_TRIES = "max_tries"
_RESUMABLE = "airflow.sdk.bases.resumablejobmixin"
"""Is there where Airflow keeps a task's state, and only there."""


@dataclass(frozen=True, slots=True)
class DriverLocation:
    """Where a try put its driver. Its plan's path is in the driver's command line and in no other's.

    :param directory: holds plan, log and report
    """

    host: str
    directory: str

    @classmethod
    def here(cls, directory: Path) -> Self:
        """Name a location on this machine."""
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
        return Path(self.directory, REPORT_FILE)

    @classmethod
    def of(cls, kept: Any) -> Self | None:
        """Read a location that an earlier try kept.

        :returns: None if it is not a location
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
        """List the living processes that run this location's plan, ``spark-submit`` and the driver."""
        return processes_with(str(self.plan_path))


def processes_with(argument: str) -> list[Process]:
    """List the living processes of this machine that have an argument.

    psutil's own iterator keeps processes from one call to the next, and takes another one that has got the
    number of an ended one for that (observed with 7.2): it is missing, or cannot be ended.
    """
    import psutil

    found = []
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(pid)
            if argument in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class DriverMemory:
    """What a task instance knows from one try to the next, in the task state that Airflow has since 3.3.

    Before that, and with ``durable=False``, it knows only whether this is a retry, and its run.

    :param durable: False forgets everything; before Airflow 3.3 the Spark provider sets it to False whatever
        the author specified
    """

    def __init__(self, context: Context, *, durable: bool) -> None:
        values: Any = context
        self.may_follow = durable or find_spec("airflow.sdk") is None or find_spec(_RESUMABLE) is None
        """Whether a try may go on with what an earlier one started."""
        self._store = values.get("task_state_store") if durable else None
        self._try_number = max(1, getattr(values.get("ti"), "try_number", 1))
        self._max_tries = getattr(values.get("ti"), "max_tries", None)

    def location(self) -> DriverLocation | None:
        """Where the try before put its driver, None if there was none or it ended in order."""
        return DriverLocation.of(self._get(_DRIVER_KEY))

    def keep_location(self, location: DriverLocation) -> None:
        """Remember where the driver is about to run."""
        if self._store is not None:
            self._store.set(_DRIVER_KEY, asdict(location))

    def application(self) -> Any:
        """What the try before kept of its application on a cluster, None if there was none."""
        return self._get(_APPLICATION_KEY)

    def keep_application(self, kept: Mapping[str, str | None]) -> None:
        """Remember an application on a cluster, before it is submitted and when it has its id."""
        if self._store is not None:
            self._store.set(_APPLICATION_KEY, dict(kept))

    def sent(self) -> SubmittedLoad | None:
        """What the try before has sent and not seen committed, None if there is nothing of the kind.

        Nothing either where the task was cleared since, which shows by more tries that it may have: whoever
        clears it has it read its source again, where there may be more rows by now.
        """
        kept = self._get(_SENT_KEY)
        if kept is None or kept[_MAX_TRIES] != self._max_tries:
            return None
        return SubmittedLoad.of(kept)

    def keep_sent(self, sent: SubmittedLoad) -> None:
        """Remember what the driver has sent.

        Where it ran on this machine is still remembered, since its directory may not be removed yet; an
        application on a cluster has nothing more to report.
        """
        if self._store is not None:
            self._store.set(_SENT_KEY, {**sent.to_kept(), _MAX_TRIES: self._max_tries})
            self._store.delete(_APPLICATION_KEY)

    def forget(self) -> None:
        """Forget the driver and what it sent, so that the next try starts a new one."""
        if self._store is not None:
            self._store.delete(_DRIVER_KEY)
            self._store.delete(_APPLICATION_KEY)
            self._store.delete(_SENT_KEY)

    def _get(self, key: str) -> Any:
        return None if self._store is None else self._store.get(key)


# -- Starting ``spark-submit`` such that it outlives its worker, following it, and stopping all it started --

_GRACE_SECONDS = 3.0
"""Airflow kills a task five seconds after it asked it to end; the driver has to be gone by then."""
_REAP_SECONDS = 1.5
_POLL_SECONDS = 0.05
_FOLLOW_SECONDS = 0.05


def run_logged(
    hook: SubmitHook,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    stopped: Event,
    noticed: Callable[[Iterable[str]], Iterator[str]],
) -> int:
    """Run ``spark-submit`` with its output in a file, since a pipe would break with the worker.

    :param hook: gives it the environment, knows the process, and writes its lines to the task's log
    :param stopped: set when the task is killed
    :param noticed: takes from the lines what the task has to know
    :return: the exit code
    :raises AirflowException: if the task was killed before
    """
    if stopped.is_set():
        raise AirflowException("the task was killed before it submitted its application")
    with log.open("ab") as output:
        process = hook.process = subprocess.Popen(  # noqa: S603  the hook's own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**worker_environment(), **environment, **hook.env},
            text=True,
        )
    if stopped.is_set():  # by a signal, between the question and the start
        stop_process_tree(process)
    hook.log(noticed(follow(log, lambda: process.poll() is None)))
    return process.wait()


def follow(log: Path, still_runs: Callable[[], bool], *, from_start: bool = True) -> Iterator[str]:
    """Read lines of a file that is being written, until its writer has ended.

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
    """
    if process is None or process.poll() is not None:
        return
    import psutil

    with suppress(psutil.NoSuchProcess):
        stop_processes([psutil.Process(process.pid)])
    process.poll()


def stop_processes(leaders: Sequence[Process]) -> None:
    """The same for processes that somebody else started.

    :param leaders: processes; their descendants end too
    """
    import psutil

    everyone = {leader.pid: leader for leader in leaders}
    for leader in leaders:
        with suppress(psutil.NoSuchProcess):
            everyone |= {process.pid: process for process in leader.children(recursive=True)}
    for signal, seconds in ((psutil.Process.terminate, _GRACE_SECONDS), (psutil.Process.kill, _REAP_SECONDS)):
        for process in everyone.values():
            with suppress(psutil.NoSuchProcess):
                signal(process)
        if not _wait(list(everyone.values()), seconds):
            return


def _wait(processes: list[Process], seconds: float) -> list[Process]:
    """Give processes time to end; return those that still run. A zombie has ended."""
    deadline = time.monotonic() + seconds
    while (running := [one for one in processes if runs(one)]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return running


def runs(process: Process) -> bool:
    """True while a process runs; a zombie does not."""
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- One run of the job's driver in client mode: started by this try, or found still running --------------

_UI_KNOWN = "snowpipe ui "


class ClientRun:
    """A driver in client mode on this machine: one that this try starts, or one that still runs.

    :param log: writes a line to the task's log
    :param show: gets the address of the application's page once it is known
    :param remote: address of a Spark Connect server, where the driver is a client of one
    :param local_master: a local master whose tasks the driver runs itself, without Spark; empty for Spark
    """

    def __init__(
        self,
        location: DriverLocation,
        memory: DriverMemory,
        log: Callable[..., None],
        show: Callable[[str | None], None],
        remote: str | None = None,
        local_master: str = "",
    ) -> None:
        self.location = location
        self._remote = remote
        self._local_master = local_master
        self._memory = memory
        self._log = log
        self._show = show
        self._hook: SubmitHook | None = None
        self._stopped = Event()

    @classmethod
    def new(
        cls,
        memory: DriverMemory,
        log: Callable[..., None],
        show: Callable[[str | None], None],
        remote: str | None = None,
        local_master: str = "",
    ) -> Self:
        """Make a location for a new driver.

        It is remembered before anything is in it: a worker that dies on the way leaves a location where
        nothing runs, never a driver that nobody knows of.
        """
        location = DriverLocation.here(Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX)))
        memory.keep_location(location)
        return cls(location, memory, log, show, remote, local_master)

    @classmethod
    def find(
        cls, memory: DriverMemory, log: Any, show: Callable[[str | None], None], if_it_runs: str
    ) -> Self | None:
        """Find the driver of an earlier try, None where nothing of it is on this machine.

        :param if_it_runs: what becomes of a driver on another machine
        """
        location = memory.location()
        if location is None:
            return None
        if not location.is_here():
            log.warning(
                "an earlier try ran its driver on %s, and nothing of it is to be seen here; a new driver is "
                "submitted, and %s",
                location.host,
                if_it_runs,
            )
            return None
        return cls(location, memory, log.info, show) if location.is_ours() else None

    @property
    def directory(self) -> Path:
        """What this task writes for ``spark-submit`` and the driver."""
        return Path(self.location.directory)

    def plan_keys(self) -> dict[str, str]:
        """Paths of report and credentials in the plan, and whose tasks the driver runs itself."""
        return {
            "report_path": str(self.location.report_path),
            "credentials_path": str(self.directory / "credentials.json"),
            "local_master": self._local_master,
        }

    def put(self, file: Path) -> str:
        """The path of our code's archive: ``spark-submit`` takes it from there."""
        return str(file)

    def write_plan(self, text: str) -> str:
        """Write the plan; the application's argument that names it."""
        self.location.plan_path.write_text(text, encoding="utf-8")
        return str(self.location.plan_path)

    def write_secrets(self, credentials: Credentials, secrets: SourceSecrets | None) -> None:
        """Write the file from which the driver takes its credentials."""
        from airflow_provider_snowpipe.spark.driver.credentials import write_credentials

        write_credentials(credentials, self.plan_keys()["credentials_path"], secrets)

    def prepare(self, hook: SubmitHook, env_vars: Mapping[str, Any]) -> dict[str, str]:
        """The environment of the driver, or of ``spark-submit``, on this machine."""
        if self._is_python_alone:
            # The token is in the address, which nobody else reads in the environment of a process.
            remote = {} if self._remote is None else {"SPARK_REMOTE": self._remote}
            environment = {"PATH": search_path(), **remote}
        else:
            python = "python3" if hook.is_on_nodes else sys.executable
            environment = launch_environment(self.directory / "java", executor_python=python)
        return {**environment, **{name: str(value) for name, value in env_vars.items()}}

    @property
    def _is_python_alone(self) -> bool:
        return self._remote is not None or bool(self._local_master)

    def text(self, name: str) -> str | None:
        """Read what the driver has left, None if there is nothing."""
        path = self.directory / name
        return path.read_text("utf-8") if path.is_file() else None

    def is_over(self) -> bool:
        """True where nothing runs, or nobody will search for what does."""
        return not self.location.processes() or self._memory.location() is None

    def remove(self) -> None:
        """Remove the driver's directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def submit(
        self, hook: SubmitHook, environment: Mapping[str, str], application: str = "", **_: Any
    ) -> None:
        """Start the driver and wait for its end, instead of the hook's own ``submit``.

        :raises AirflowException: if ``spark-submit`` fails
        """
        self._hook = hook
        if self._is_python_alone:
            command = [sys.executable, application, *hook.arguments]
        else:
            command = hook.command(application)
        code = run_logged(hook, command, environment, self.location.log_path, self._stopped, self._noticed)
        if code:
            raise AirflowException(hook.failure(command, code))
        hook.has_submitted()

    def follow(self) -> None:
        """Follow a driver that an earlier try started, until it has ended; nothing where this one did."""
        if self._hook is not None:
            return
        running = self.location.processes()
        if not running:
            return
        self._log(
            "reconnecting to the driver that an earlier try started (process %s); nothing is submitted",
            ", ".join(str(process.pid) for process in running),
        )
        self._show_ui()
        lines = follow(self.location.log_path, partial(self._still_runs, running), from_start=False)
        for line in self._noticed(lines):
            self._log("%s", line.rstrip())

    def hide_ui(self) -> None:
        """Take back the address of the application's page, which ended with it, for the history server's."""
        addresses = UiAddresses.read(self.directory / UI_FILE)
        if addresses is not None and addresses.running is not None:
            self._show(addresses.ended)

    def stop(self) -> None:
        """End the driver and everything that it started, within a few seconds; none is started any more."""
        self._stopped.set()
        if self._hook is not None:
            stop_process_tree(self._hook.process)
        stop_processes(self.location.processes())

    def _still_runs(self, known: list[Process]) -> bool:
        """Check the known processes; only when they have ended, search for others of this location."""
        known[:] = [process for process in known if runs(process)] or self.location.processes()
        return bool(known)

    def _noticed(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith(_UI_KNOWN):
                self._show_ui()
            yield line

    def _show_ui(self) -> None:
        addresses = UiAddresses.read(self.directory / UI_FILE)
        if addresses is not None and addresses.running is not None:
            self._show(addresses.running)
