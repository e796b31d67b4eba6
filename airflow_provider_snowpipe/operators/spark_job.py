"""A task around one Spark job: it starts the driver, outlives its own worker with it, and stops it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.links.spark_ui import leave_address
from airflow_provider_snowpipe.operators.driver_place import (
    DIRECTORY_PREFIX,
    DriverMemory,
    DriverPlace,
    follow,
    runs,
    start_logged,
    stop_process_tree,
    stop_processes,
)
from airflow_provider_snowpipe.operators.submission import (
    launch_environment,
    require_client_mode,
    require_spark_submit,
    search_path,
    spark_connection,
)
from airflow_provider_snowpipe.spark.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.report import UiAddresses
from airflow_provider_snowpipe.spark.submit.local_spark import ClassDataArchive, QuickStart, is_local
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError, error_line

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context
    from psutil import Process  # type: ignore[import-untyped]

    from airflow_provider_snowpipe.operators.driver_place import DriverMemory, DriverPlace


OWN_ARGUMENTS = ("application", "application_args", "java_class", "conn_id")
"""Arguments of ``SparkSubmitOperator`` that the operators here set by themselves."""
_LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
_KILLED = "the task was killed; no new application is submitted"


class SparkDriverOperator(SparkSubmitOperator):
    """What every operator has that runs a job of ours: one driver in client mode, found again after a death.

    :param application: the job's file
    :param spark_log_level: from which level on Spark's own lines are in the task's log, unless ``conf`` says
        it as ``spark.log.level``
    :param kwargs: options of ``SparkSubmitOperator``
    :raises ConfigurationError: if there is no such level
    """

    def __init__(self, *, application: Path, spark_log_level: str = "WARN", **kwargs: Any) -> None:
        super().__init__(application=str(application), **kwargs)
        self.spark_log_level = spark_log_level
        check_one_of("spark_log_level", spark_log_level, _LOG_LEVELS)
        self._directory: Path | None = None
        self._if_it_runs = "what that one still writes is taken by nobody"
        self._run: DriverRun | None = None
        self._killed = False
        self._is_small = False
        self._archive: ClassDataArchive | None = None

    @abstractmethod
    def _prepare(self, place: DriverPlace, memory: DriverMemory) -> None:
        """Write the plan and whatever belongs to it, and make the plan the application's argument.

        :param place: the driver's place
        :param memory: what earlier tries have left
        """

    def _without_driver(self, memory: DriverMemory) -> Any:
        """Do what there is to do where that takes no driver; None where it does.

        :param memory: what earlier tries have left
        """
        return None

    @abstractmethod
    def _ended(self, place: DriverPlace) -> Any:
        """Take over what a driver has left that has ended well; None if it has not, or left nothing.

        :param place: its place
        """

    @abstractmethod
    def _failure(self, place: DriverPlace, output: str) -> tuple[str, bool] | None:
        """Say why a driver did not end well, and whether a retry is pointless; None if nobody knows.

        :param place: its place
        :param output: the end of what ``spark-submit`` printed
        """

    def _run_driver(self, context: Context, memory: DriverMemory) -> Any:
        """Wait for the driver of an earlier try, or start one; what it has left."""
        self._killed = False
        found = self._rejoin(context, memory)
        return self._start(context, memory) if found is None else found

    def on_kill(self) -> None:
        """Stop Spark, driver and all, and remove what the run left on the disk; the channels resume."""
        self._killed = True
        try:
            if self._run is not None:
                self._run.stop()
            if self._hook is not None:
                super().on_kill()
        finally:
            self._clean_up()

    @contextmanager
    def _ending(self, memory: DriverMemory) -> Iterator[None]:
        """Say what ends the task in the words of ours, and leave the next try what it has to know."""
        try:
            yield
        except SnowpipeError as error:
            if error.retryable:
                raise
            raise AirflowFailException(error_line(type(error).__name__, error)) from error
        except AirflowFailException:
            memory.forget()
            raise
        except AirflowException:
            memory.forget_driver()
            raise
        except OSError as error:
            if not self._killed:
                raise
            # on_kill removed the directory, from a signal between two instructions of this task.
            memory.forget_driver()
            raise AirflowException(_KILLED) from error
        finally:
            run = self._run
            if self._killed or run is None:
                self._clean_up()
            elif not run.place.processes() or memory.place() is None:
                run.hide_ui()
                self._clean_up()
            # else the task has lost its supervisor, and the next try looks for the living driver's directory.

    def _get_hook(self) -> SparkSubmitHook:
        """Make the Spark hook, whose driver runs here and whose executors may have none of our code."""
        try:
            hook = super()._get_hook()
        except NameError as error:  # of the Spark provider 6.3.4, where the Kubernetes provider is missing
            if error.name != "kube_client":
                raise
            raise ConfigurationError(
                f"the Spark connection {self._conn_id!r} names a Kubernetes master: install "
                "apache-airflow-providers-cncf-kubernetes on the worker"
            ) from None
        require_client_mode(hook._connection["deploy_mode"], hook._conf)
        directory, run = self._directory, self._run
        if self._killed:  # the hook's own submit would start a driver that nobody stops
            raise AirflowException(_KILLED)
        if directory is None or run is None:
            return hook
        hook._conf = {"spark.log.level": self.spark_log_level, **hook._conf}
        if not hook._connection["master"].startswith("local"):
            archive = str(write_package_archive(directory))
            hook._py_files = ",".join([*filter(None, [hook._py_files]), archive])
        elsewhere = hook._is_yarn or hook._is_kubernetes
        environment = {
            **launch_environment(
                directory / "java", executor_python="python3" if elsewhere else sys.executable
            ),
            **{name: str(value) for name, value in (self.env_vars or {}).items()},
        }
        if is_local(hook._connection["master"]):
            self._start_quickly(hook, environment)
        hook.submit = partial(run.submit, hook, environment)  # type: ignore[method-assign]
        return hook

    def _start_quickly(self, hook: SparkSubmitHook, environment: dict[str, str]) -> None:
        """Add the settings with which a local master starts quickly to those of the author."""
        quick = QuickStart.of(
            hook._conf,
            {**os.environ, **environment},
            binary=hook._connection["spark_binary"],
            properties_file=hook._properties_file,
            driver_class_path=hook._driver_class_path,
            is_small=self._is_small,
        )
        hook._conf = {**hook._conf, **quick.settings()}
        environment.update(quick.variables())
        self._archive = quick.archive

    def _rejoin(self, context: Context, memory: DriverMemory) -> Any:
        """Wait for the driver of an earlier try, whose worker died; what it has left if it has ended well."""
        place = memory.place()
        if place is None:
            return None
        if not place.is_here():
            self.log.warning(
                "an earlier try ran its driver on %s, of which nothing is to be seen here; a new driver is "
                "submitted, and %s",
                place.host,
                self._if_it_runs,
            )
            return None
        if not place.is_ours():
            return None
        self._directory = Path(place.directory)
        self._run = run = self._new_run(context, place, memory)
        run.rejoin()
        found = self._ended(place)
        if found is not None:
            return found
        text, permanent = self._failure(place, "") or ("it left no report", False)
        if permanent:
            raise AirflowFailException(text)
        self.log.warning("the driver of an earlier try did not finish (%s); a new one resumes", text)
        self._clean_up()
        return None

    def _start(self, context: Context, memory: DriverMemory) -> Any:
        """Submit a new driver and wait for it, unless there is nothing for it to do.

        Its place is remembered before anything is in it: a worker that dies on the way leaves a place where
        nothing runs, never a driver that nobody knows of.
        """
        if self._killed:
            raise AirflowException(_KILLED)
        binary = spark_connection(str(self._conn_id)).extra_dejson.get("spark-binary")
        path = (self.env_vars or {}).get("PATH") or search_path()
        require_spark_submit(self._spark_binary or binary or "spark-submit", path)
        found = self._without_driver(memory)
        if found is not None:
            return found
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        place = DriverPlace.here(self._directory)
        memory.keep_place(place)
        self._run = self._new_run(context, place, memory)
        self._prepare(place, memory)
        self._submit(context, place)
        found = self._ended(place)
        if found is None:
            raise ConfigurationError(
                f"the run report {str(place.report_path)!r} cannot be read: the Spark job ended before it "
                "could write it; its log says why"
            )
        return found

    def _new_run(self, context: Context, place: DriverPlace, memory: DriverMemory) -> DriverRun:
        return DriverRun(place, memory, self.log.info, partial(leave_address, context["ti"]))

    def _submit(self, context: Context, place: DriverPlace) -> None:
        is_whole = False
        try:
            super().execute(context)
            is_whole = True
        except AirflowException as error:
            found = self._failure(place, str(error))
            if found is None:
                raise
            text, permanent = found
            raise (AirflowFailException if permanent else AirflowException)(text) from None
        finally:
            archive, self._archive = self._archive, None
            if archive is not None:
                archive.settle(is_whole=is_whole)

    def _clean_up(self) -> None:
        directory, self._directory, self._run = self._directory, None, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


# -- One run of the job's driver as a task sees it: started by this try, or found still running ----------

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
