"""A Spark driver on a cluster, YARN or Kubernetes: checked, submitted once, found, followed and stopped."""

from __future__ import annotations

import math
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.hooks.storage import file_system, read_text, storage_path
from airflow_provider_snowpipe.operators.client_job import (
    DIRECTORY_PREFIX,
    REPORT_FILE,
    DriverLocation,
    DriverMemory,
    processes_with,
    run_logged,
    stop_process_tree,
    stop_processes,
)
from airflow_provider_snowpipe.operators.cluster_delivery import (
    SECRET_VARIABLE,
    SUBMISSION_TAG,
    ClusterSettings,
    Submission,
    delivery_of,
    hadoop_address,
    is_of_this_machine,
)
from airflow_provider_snowpipe.operators.submission import SubmitHook, launch_environment
from airflow_provider_snowpipe.spark.driver.progress import FollowedChannels
from airflow_provider_snowpipe.spark.driver.report import START_FILE
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError
from airflow_provider_snowpipe.triggers.application import (
    UNREACHABLE_SECONDS,
    Application,
    FollowedApplication,
    SnowpipeApplicationTrigger,
)
from airflow_provider_snowpipe.triggers.commit import poll_retry

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.source import SourceSecrets
    from airflow_provider_snowpipe.streaming.auth import Credentials

_CHANNELS_SECONDS = 1.0
"""Between two polls of the channels, and two lines about them, at least."""
_KILLED = "the task was killed; its application on the cluster was stopped"


def is_cluster_mode(deploy_mode: str | None, conf: Mapping[str, Any] | None) -> bool:
    """True where the driver runs on the cluster."""
    mode = (deploy_mode or "client").lower()
    if mode not in ("client", "cluster"):
        raise ConfigurationError(f"the deploy mode is {deploy_mode!r}: give 'client' or 'cluster'")
    setting = (conf or {}).get("spark.submit.deployMode")
    if setting and str(setting).lower() != mode:
        raise ConfigurationError(
            f"the conf 'spark.submit.deployMode' is {setting!r} and the deploy mode {mode!r}: set it by "
            "deploy_mode=… or 'deploy-mode' in the Spark connection's extra, which this task reads, too"
        )
    return mode == "cluster"


class ClusterRun:
    """One run of the job's driver on a cluster: submitted by this try, or found there."""

    def __init__(
        self,
        settings: ClusterSettings,
        submission: Submission,
        memory: DriverMemory,
        log: Any,
        show: Callable[[str | None], None],
    ) -> None:
        self.submission = submission
        self.application: Application | None = None
        self._settings = settings
        self._memory = memory
        self._log = log
        self._show = show
        self._cluster = settings.cluster()
        self._delivery = delivery_of(settings, submission)
        self._hook: SubmitHook | None = None
        self._stopped = Event()

    @classmethod
    def new(
        cls, settings: ClusterSettings, memory: DriverMemory, log: Any, show: Callable[[str | None], None]
    ) -> Self:
        """Prepare a new submission, which is remembered before anything is started."""
        tag = f"{settings.task_tag}-{uuid4().hex[:8]}"
        submission = Submission(tag, socket.gethostname(), tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        memory.keep_application(asdict(submission))
        run = cls(settings, submission, memory, log, show)
        try:
            run._sweep()
            run._make_folder()
        except OSError as error:
            run.remove()
            raise ConfigurationError(
                f"work_path {settings.work_path!r} cannot be written by this worker ({error}): name a folder "
                "that it and the driver write. Nothing was submitted"
            ) from None
        return run

    @classmethod
    def find(
        cls, settings: ClusterSettings, memory: DriverMemory, log: Any, show: Callable[[str | None], None]
    ) -> Self | None:
        """Find the application of an earlier try; None where there is none that this try could take over.

        What Airflow kept of that try names the application. A try whose worker died between submission and
        that is found by its tag, and so is a running one where Airflow keeps nothing (before 3.3).
        """
        if not memory.may_follow:
            return None
        submission = Submission.of(memory.application())
        if submission is None:
            running = [one for one in settings.cluster().tagged(settings.task_tag) if one.is_active]
            tags = [tag for one in running[:1] for tag in one.tags if SUBMISSION_TAG.fullmatch(tag)]
            if not tags:
                return None
            submission = Submission(tags[0], "", "", running[0].id)
        run = cls(settings, submission, memory, log, show)
        run._end_submission()
        if submission.application_id is None and not run._found_by_tag():
            log.info("an earlier try submitted no application; a new one is submitted")
            run.remove()
            memory.forget()
            return None
        log.info(
            "following the application %s, which an earlier try submitted; nothing is submitted",
            run.submission.application_id,
        )
        return run

    @property
    def directory(self) -> Path:
        """What this task writes for ``spark-submit``; it is gone when that has ended."""
        return Path(self.submission.directory)

    @property
    def folder(self) -> str:
        """The address of this submission's folder, where the driver leaves its report."""
        return self._settings.folder(self.submission.tag)

    def plan_keys(self) -> dict[str, str]:
        """Paths of report and credentials in the plan."""
        own = self._settings.driver_credentials
        return {
            "report_path": f"{hadoop_address(self.folder)}/{REPORT_FILE}",
            **({"credentials_from": own} if own else {"credentials_variable": SECRET_VARIABLE}),
        }

    def put(self, file: Path) -> str:
        """Take the archive of our code; its address for ``--py-files``, empty where the job brings it."""
        return self._delivery.put(file)

    def write_plan(self, text: str) -> str:
        """Write the plan; the application's argument."""
        return self._delivery.write_plan(text)

    def write_secrets(self, credentials: Credentials, secrets: SourceSecrets | None) -> None:
        """Put the credentials where the driver, and nobody else, takes them, unless it has its own."""
        from airflow_provider_snowpipe.spark.driver.credentials import credentials_text

        if self._settings.driver_credentials:
            return
        self._delivery.write_secrets(credentials_text(credentials, secrets))

    def prepare(self, hook: SubmitHook, env_vars: Mapping[str, Any]) -> dict[str, str]:
        """Complete the settings of the submission; the environment of ``spark-submit``."""
        self._delivery.complete(hook)
        environment = launch_environment(self.directory / "java")
        # The driver's Python is that of its machine: Spark hands these two on to it.
        environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(
            env_vars.get("PYSPARK_PYTHON", "python3")
        )
        environment |= {name: str(value) for name, value in env_vars.items()}
        return environment

    def text(self, name: str) -> str | None:
        """Read what the driver has left, None if there is nothing."""
        return read_text(storage_path(f"{self.folder}/{name}", None))

    def submit(
        self, hook: SubmitHook, environment: Mapping[str, str], application: str = "", **_: Any
    ) -> None:
        """Submit, instead of the hook's own ``submit``; ``spark-submit`` ends when it is taken."""
        self._hook = hook
        try:
            self._delivery.put_job(application)
            command = hook.command(self._delivery.job)
            log = self.directory / "submit.log"
            code = run_logged(hook, command, environment, log, self._stopped, self._noticed)
            hook.has_submitted()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._stopped.is_set():
            raise AirflowException(_KILLED)
        if self.submission.application_id is None and not self._found_by_tag():
            raise AirflowException(
                hook.failure(command, code)
                if code
                else "spark-submit ended well, and the cluster has no application with the tag "
                f"{self.submission.tag!r}: {self._cluster.elsewhere}"
            )
        self._log.info("submitted the application %s", self.submission.application_id)

    def trigger(self) -> SnowpipeApplicationTrigger:
        """What follows the application while no worker does."""
        return SnowpipeApplicationTrigger(
            application_id=str(self.submission.application_id),
            spark_conn_id=self._settings.conn_id,
            poll_interval=self._settings.poll_seconds,
            start_path=f"{self.folder}/{START_FILE}" if self._settings.pipe else None,
            **self._settings.pipe,
        )

    def follow(self) -> None:
        """Follow the application until it has ended."""
        followed = FollowedApplication(self._log, UNREACHABLE_SECONDS, _CHANNELS_SECONDS)
        polled, ended = not self._settings.pipe, Event()
        try:
            while not self._stopped.is_set():
                try:
                    application = self._cluster.application(str(self.submission.application_id))
                except SnowpipeError as error:
                    if not error.retryable or followed.has_failed(error):
                        raise
                else:
                    followed.has_seen(application)
                    if self.application is None or application.tracking_url != self.application.tracking_url:
                        self._show(application.tracking_url)
                    self.application = application
                    if not application.is_active:
                        return
                    if not polled:
                        polled = True
                        _poll_channels(self._settings, partial(self.text, START_FILE), followed, ended)
                self._stopped.wait(self._settings.poll_seconds)
        finally:
            ended.set()
        raise AirflowException(_KILLED)

    def stop(self) -> None:
        """Stop the submission and the application; none is started any more."""
        self._stopped.set()
        if self._hook is not None:
            stop_process_tree(self._hook.process)
        self._end_submission()
        try:
            if self.submission.application_id is not None or self._found_by_tag():
                self._cluster.kill(str(self.submission.application_id))
                self._log.info(
                    "the cluster was asked to stop the application %s", self.submission.application_id
                )
        except SnowpipeError as error:
            self._log.error(
                "the application %s is not stopped: %s. Stop it by: %s",
                self.submission.application_id,
                error,
                self._cluster.kill_command(str(self.submission.application_id)),
            )

    def last_lines(self) -> str:
        """The end of the driver's log, empty where the cluster does not show it."""
        return "" if self.application is None else self._cluster.last_lines(self.application)

    def log_command(self) -> str:
        """What shows the driver's log by hand."""
        return self._cluster.log_command(str(self.submission.application_id))

    def is_over(self) -> bool:
        """True where the application has ended and nobody will read its report again."""
        if self.application is None:
            ended = self.submission.application_id is None
        else:
            ended = not self.application.is_active
        return ended and self._memory.application() is None

    def remove(self) -> None:
        """Remove the submission's folder and secret, and what ``spark-submit`` read."""
        location = DriverLocation(self.submission.host, self.submission.directory)
        if location.is_here() and location.is_ours():
            shutil.rmtree(location.directory, ignore_errors=True)
        self._remove(self.submission, self.application)

    def hide_ui(self) -> None:
        """Nothing: YARN's address leads to the history server's page, or its own, when it has ended."""

    def _end_submission(self) -> None:
        """Stop a ``spark-submit`` here whose worker is gone, before the cluster is asked what it did."""
        if self.submission.host == socket.gethostname():
            stop_processes(processes_with(self._delivery.job))

    def _found_by_tag(self) -> bool:
        found = self._cluster.tagged(self.submission.tag)
        if found:
            self._keep(found[0].id)
        return bool(found)

    def _keep(self, application_id: str) -> None:
        self.submission = replace(self.submission, application_id=application_id)
        self._memory.keep_application(asdict(self.submission))

    def _noticed(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            found = None if self.submission.application_id else self._delivery.submitted(line)
            if found:
                self._keep(found)
            yield line

    def _make_folder(self) -> None:
        path = storage_path(self.folder, None)
        if not is_of_this_machine(path):
            return  # an object store has no folders, and Hadoop makes its own
        folder = Path(path.path)
        folder.mkdir()
        # The driver may run as another user, who writes where work_path lets him.
        folder.chmod(folder.parent.stat().st_mode & 0o7777)

    def _sweep(self) -> None:
        """Remove folders of earlier tries that ended without it, as a killed worker's."""
        root = storage_path(self._settings.work_path, None)
        files = file_system(root)
        for found in files.ls(root.path, detail=False) if files.exists(root.path) else []:
            name = str(found).rstrip("/").rpartition("/")[2]
            if name.startswith(f"{self._settings.task_tag}-") and SUBMISSION_TAG.fullmatch(name):
                self._remove(Submission(name, "", ""))

    def _remove(self, submission: Submission, application: Application | None = None) -> None:
        try:
            delivery_of(self._settings, submission).remove(application)
        except SnowpipeError as error:
            self._log.error("pod or secret of the submission %s are left behind: %s", submission.tag, error)
        address = self._settings.folder(submission.tag)
        path = storage_path(address, None)
        try:
            files = file_system(path)
            if files.exists(path.path):
                files.rm(path.path, recursive=True)
        except OSError as error:
            self._log.warning("%s is left behind: %s", address, error)


def _poll_channels(
    settings: ClusterSettings, start: Callable[[], str | None], followed: FollowedApplication, ended: Event
) -> None:
    """Poll what a load's channels commit while its driver runs on a cluster, for the log alone.

    In a daemon thread: a service or a storage that hangs holds up neither the wait nor the end of the task.
    """
    names = dict(settings.pipe)
    try:
        # Connections are asked for where the task asks for its others: in its own thread.
        client = SnowpipeHook(names.pop("snowflake_conn_id"), **names).get_client(retry=poll_retry())
    except Exception as error:  # noqa: BLE001  whatever a connection lacks, the application decides
        followed.has_lost_channels(error)
        return

    def poll() -> None:
        absent_at = -math.inf
        with client:
            while not ended.is_set():
                try:
                    asked_at = time.monotonic()
                    if followed.channels is None and (text := start()) is not None:
                        followed.channels = FollowedChannels.of_text(text, absent_at)
                    if (channels := followed.channels) is None:
                        absent_at = asked_at
                    else:
                        statuses = client.channel_statuses(list(channels.start))
                        channels.take(statuses, time.monotonic())
                except Exception as error:  # noqa: BLE001  whatever a storage or a service raises
                    if not ended.is_set():
                        followed.has_lost_channels(error)
                ended.wait(max(settings.poll_seconds, _CHANNELS_SECONDS))

    Thread(target=poll, name="snowpipe-channels", daemon=True).start()
