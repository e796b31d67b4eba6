"""A Spark driver on this machine that outlives the worker that started it, and how the next try finds it."""

from __future__ import annotations

import datetime as dt
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.operators.sent_load import SentLoad

if TYPE_CHECKING:
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
