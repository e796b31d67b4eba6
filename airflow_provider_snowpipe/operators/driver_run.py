"""One run of the job's driver as a task sees it: started by this try, or found still running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.operators.process import (
    follow,
    runs,
    start_logged,
    stop_process_tree,
    stop_processes,
)
from airflow_provider_snowpipe.spark.ui_address import UiAddresses

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from psutil import Process  # type: ignore[import-untyped]

    from airflow_provider_snowpipe.operators.driver_place import DriverMemory, DriverPlace

_STARTED = "snowpipe start "
_UI_KNOWN = "snowpipe ui "


class DriverRun:
    """A driver in its place.

    :param place: where it runs
    :param memory: what the next try will know
    :param say: writes a line to the task's log
    :param show: is told the address of the application's page once it is known
    """

    def __init__(
        self,
        place: DriverPlace,
        memory: DriverMemory,
        say: Callable[..., None],
        show: Callable[[str | None], None],
    ) -> None:
        self.place = place
        self._memory = memory
        self._say = say
        self._show = show
        self._hook: SparkSubmitHook | None = None
        self._stopped = Event()

    def submit(
        self, hook: SparkSubmitHook, environment: Mapping[str, str], application: str = "", **_: Any
    ) -> None:
        """Start the driver and wait for its end, in the place of the hook's own ``submit``.

        :param hook: builds the command and reads the output
        :param environment: what the driver needs on this machine; the hook's own settings win
        :param application: the job's file
        :raises AirflowException: if ``spark-submit`` fails
        """
        self._hook = hook
        command = hook._build_spark_submit_command(application)
        if self._stopped.is_set():
            raise AirflowException("the task was killed before it submitted its application")
        process = start_logged(hook, command, environment, self.place.log_path)
        if self._stopped.is_set():  # by a signal, between the question and the start
            stop_process_tree(process)
        lines = follow(self.place.log_path, lambda: process.poll() is None)
        hook._process_spark_submit_log(self._noticed(lines))
        code = process.wait()
        if code:
            raise AirflowException(
                f"Cannot execute: {hook._mask_cmd(command)}. Error code is: {code}.{hook._submit_log_tail}"
            )
        hook._run_post_submit_commands()

    def rejoin(self) -> None:
        """Follow a driver that an earlier try started, until it has ended."""
        self._keep_start()
        running = self.place.processes()
        if not running:
            return
        self._say(
            "reconnecting to the driver that an earlier try started (process %s); nothing is submitted",
            ", ".join(str(process.pid) for process in running),
        )
        self._show_ui()
        lines = follow(self.place.log_path, partial(self._still_runs, running), from_start=False)
        for line in self._noticed(lines):
            self._say("%s", line.rstrip())

    def hide_ui(self) -> None:
        """Take back the address of the application's page, which ended with it, for the history server's."""
        addresses = UiAddresses.read(self.place.ui_path)
        if addresses is not None and addresses.running is not None:
            self._show(addresses.ended)

    def stop(self) -> None:
        """End the driver and everything that it started, within a few seconds; none is started any more."""
        self._stopped.set()
        if self._hook is not None:
            stop_process_tree(self._hook._submit_sp)
        stop_processes(self.place.processes())

    def _still_runs(self, known: list[Process]) -> bool:
        """Look at the known processes; only when they have ended, look for others of this place."""
        known[:] = [process for process in known if runs(process)] or self.place.processes()
        return bool(known)

    def _noticed(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith(_STARTED):
                self._keep_start()
            elif line.startswith(_UI_KNOWN):
                self._show_ui()
            yield line

    def _show_ui(self) -> None:
        addresses = UiAddresses.read(self.place.ui_path)
        if addresses is not None and addresses.running is not None:
            self._show(addresses.running)

    def _keep_start(self) -> None:
        if self.place.start_path.is_file():
            self._memory.keep_rejected_before(json.loads(self.place.start_path.read_text("utf-8")))
