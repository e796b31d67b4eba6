"""A task around one Spark job: it starts the driver, outlives its own worker with it, and stops it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf

from airflow_provider_snowpipe.links.snowpipe import SparkUiLink
from airflow_provider_snowpipe.operators.account_operator import failing_at_once
from airflow_provider_snowpipe.operators.client_job import ClientRun, DriverMemory
from airflow_provider_snowpipe.operators.cluster_delivery import ClusterSettings, Submission
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun, is_cluster_mode
from airflow_provider_snowpipe.operators.submission import (
    SPARK_CONNECT,
    SubmitHook,
    application_name,
    connect_url,
    require_spark_submit,
    search_path,
)
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.driver.plan import LOCAL_MASTER
from airflow_provider_snowpipe.spark.driver.report import UnreadableReportError
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.triggers.application import spark_connection
from airflow_provider_snowpipe.triggers.commit import ENDED, deferral_limit

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context


_OWN_ARGUMENTS = ("application", "application_args", "java_class", "conn_id")
_LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
_ONLY_SUBMITTED = frozenset(
    (
        *("conf", "files", "py_files", "archives", "jars", "packages", "exclude_packages", "repositories"),
        *("driver_class_path", "driver_memory", "executor_cores", "executor_memory", "num_executors"),
        *("total_executor_cores", "keytab", "principal", "proxy_user", "properties_file", "yarn_queue"),
        "spark_binary",
    )
)
"""Arguments of ``SparkSubmitOperator`` for which a Spark Connect server has settings of its own."""
_KILLED = "the task was killed; no new application is submitted"


def refuse_own_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of ``SparkSubmitOperator`` that the operators here set by themselves."""
    for name in _OWN_ARGUMENTS:
        if name in given:
            raise ConfigurationError(
                f"{name}={given[name]!r} cannot be given: this operator runs its own application; the "
                "Spark connection is spark_conn_id=…"
            )


DriverRun = ClientRun | ClusterRun
"""One run of the job's driver as a task sees it: what surrounds ``spark-submit`` in one deploy mode."""


class SparkDriverOperator(SparkSubmitOperator):
    """What every operator has that runs a job of ours: one driver, found again after a worker's death.

    :param spark_log_level: lowest level of Spark's own lines, unless ``conf`` sets ``spark.log.level``
    :param work_path: a folder that worker and driver reach, for a driver on the cluster
    :param driver_secret: for a driver on a cluster, ``file:/path`` of a credentials file on its machine, or
        ``python:module:function`` that returns the file's content; on Kubernetes also ``name:key`` of a
        secret in its namespace, or ``create`` to make one for each submission and remove it afterwards
    :param status_poll_interval: with a driver on the cluster, seconds between two polls of its application
    """

    # Private members of SparkSubmitOperator (Spark provider 6.3.4), which no other file uses: what
    # default_args have of deploy_mode, yarn_rm_auth and spark_binary is nowhere else; _get_hook() alone gives
    # the hook its settings; and execute() would take the _hook of an earlier try.
    _runs_over_connect = False

    def __init__(
        self,
        *,
        application: Path,
        spark_conn_id: str = "spark_default",
        spark_log_level: str = "WARN",
        work_path: str | None = None,
        driver_secret: str | None = None,
        status_poll_interval: int = 10,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", "")
        super().__init__(
            application=str(application),
            conn_id=spark_conn_id,
            status_poll_interval=status_poll_interval,
            **kwargs,
        )
        self.spark_conn_id = spark_conn_id
        self.spark_log_level = spark_log_level
        self.status_poll_interval = status_poll_interval
        self.work_path = work_path
        self.driver_secret = driver_secret
        check_one_of("spark_log_level", spark_log_level, _LOG_LEVELS)
        if self._deploy_mode is not None:
            is_cluster_mode(self._deploy_mode, None)
        self._submit_options = sorted(name for name in _ONLY_SUBMITTED if kwargs.get(name) is not None)
        self._if_it_runs = "what that one still writes is taken by nobody"
        self._run: DriverRun | None = None
        self._killed = False
        self._small_on = ""

    @abstractmethod
    def _prepare(self, run: DriverRun, memory: DriverMemory) -> None:
        """Write the plan and whatever belongs to it, and make the plan the application's argument."""

    def _check_master(self, master: str) -> None:
        """Refuse a master on which the job cannot run."""

    def _without_driver(self, memory: DriverMemory) -> Any:
        """Do what there is to do where that takes no driver; None where it does.

        ``_small_on`` is then the local master of a load that is known to be small, for which no Spark starts.
        """
        return None

    @abstractmethod
    def _ended(self, run: DriverRun) -> Any:
        """Take over what a driver has left that has ended well; None if it has not, or left nothing."""

    def _goes_on(self, run: DriverRun) -> bool:
        """Return whether a driver has ended well that leaves the work to another one, which begins now."""
        return False

    @abstractmethod
    def _failure(self, run: DriverRun, output: str) -> tuple[str, bool] | None:
        """Return why a driver did not end well, and whether a retry is pointless; None if nobody knows.

        :param output: the end of what ``spark-submit`` printed
        """

    def _name_application(self, context: Context) -> None:
        self.name = self.name or application_name(context["ti"])

    def _run_driver(self, context: Context, memory: DriverMemory) -> Any:
        """Wait for the driver of an earlier try, or start one; what it has left."""
        self._killed = False
        self._run = run = self._found_run(context, memory)
        if run is None:
            return self._start(context, memory)
        self._wait(run, is_earlier=True)
        return self._left_by_earlier(run, context, memory)

    @property
    def _is_on_cluster(self) -> bool:
        """True where the driver runs on the cluster: by the operator, or else by the Spark connection."""
        connection = spark_connection(self.spark_conn_id)
        mode = self._deploy_mode or connection.extra_dejson.get("deploy-mode")
        on_cluster = is_cluster_mode(mode, self.conf)
        if on_cluster and connection.conn_type == SPARK_CONNECT:
            raise ConfigurationError(
                f"the deploy mode is 'cluster' and {self.spark_conn_id!r} is a Spark Connect server, whose "
                "clients run where the task does: drop the one or name another connection"
            )
        return on_cluster

    def _connect_url(self) -> str | None:
        """The address of a Spark Connect server, None where the job is submitted by ``spark-submit``."""
        url = connect_url(self.spark_conn_id)
        if url is not None and not self._runs_over_connect:
            raise ConfigurationError(
                f"{self.spark_conn_id!r} is a Spark Connect server, over which {type(self).__name__} does "
                "not run, since it shows neither sizes nor plans: name a connection of the type 'spark'"
            )
        if url is not None and self._submit_options:
            self.log.warning(
                "not used, since the Spark Connect server of %r has its own settings: %s",
                self.spark_conn_id,
                ", ".join(self._submit_options),
            )
        return url

    def _cluster_settings(self, context: Context) -> ClusterSettings:
        in_extra = spark_connection(self.spark_conn_id).extra_dejson.get("namespace")
        return ClusterSettings(
            conn_id=self.spark_conn_id,
            work_path=self.work_path or "",
            identity=application_name(context["ti"]),
            poll_seconds=self.status_poll_interval,
            auth=self._yarn_rm_auth,
            namespace=str((self.conf or {}).get("spark.kubernetes.namespace") or in_extra or ""),
            driver_secret=self.driver_secret,
            pipe=self._followed_pipe,
        )

    def _show_page(self, context: Context) -> Callable[[str | None], None]:
        return partial(SparkUiLink().leave, context["ti"])

    def _found_run(self, context: Context, memory: DriverMemory) -> DriverRun | None:
        """The run of an earlier try, None where there is none to go on with."""
        show = self._show_page(context)
        if not self._is_on_cluster:
            return ClientRun.find(memory, self.log, show, self._if_it_runs)
        settings = self._cluster_settings(context)
        settings.check(self.conf, self.properties_file)
        if self._follows_in_triggerer and self._yarn_rm_auth is not None:
            raise ConfigurationError(
                "yarn_rm_auth and deferrable are both given, and no trigger can keep the former: drop one of "
                "them, or let Kerberos sign in by keytab and principal of the Spark connection"
            )
        return ClusterRun.find(settings, memory, self.log, show)

    def _wait(self, run: DriverRun, *, is_earlier: bool) -> None:
        """Wait for a driver's end: here, or in the triggerer, from which :meth:`driver_ended` goes on."""
        if isinstance(run, ClusterRun) and self._follows_in_triggerer:
            kept = {"submission": asdict(run.submission), "is_earlier": is_earlier}
            limit = deferral_limit(self)
            self.defer(trigger=run.trigger(), method_name="driver_ended", kwargs=kept, timeout=limit)
        run.follow()

    @property
    def _followed_pipe(self) -> Mapping[str, str | None]:
        """Connection and names of the pipe whose channels show how far the driver is, empty without one."""
        return {}

    @property
    def _follows_in_triggerer(self) -> bool:
        """True where the worker is not needed while a driver on the cluster runs."""
        return False

    def _resumed(
        self,
        context: Context,
        memory: DriverMemory,
        event: Mapping[str, Any],
        submission: Mapping[str, Any],
        *,
        is_earlier: bool,
    ) -> Any:
        """Go on with a driver that the triggerer has followed to its end; what it, or another, has left.

        :param is_earlier: whether an earlier try made it; then this one resumes where it has failed
        """
        if event["status"] != ENDED:
            raise RetriesExhaustedError(f"{event['message']}. The application was not stopped; run again")
        settings, show = self._cluster_settings(context), self._show_page(context)
        self._run = run = ClusterRun(settings, Submission(**submission), memory, self.log, show)
        run.follow()
        return (
            self._left_by_earlier(run, context, memory) if is_earlier else self._outcome(run, context, memory)
        )

    def _stop_on_cluster(self, context: Context, memory: DriverMemory, error: AirflowException) -> None:
        """Stop an application that still runs when the time of its deferred task is over."""
        try:
            on_cluster = self._is_on_cluster
        except ConfigurationError:
            return  # without a Spark connection nothing was submitted: the wait was one for files
        run = self._found_run(context, memory) if on_cluster else None
        if not isinstance(run, ClusterRun):
            return
        run.stop()
        run.remove()
        memory.forget()
        raise AirflowException(
            f"the task's execution_timeout ended while the application {run.submission.application_id} ran, "
            "which was stopped; a retry resumes from the committed tokens"
        ) from error

    def _taken(self, run: DriverRun) -> Any:
        """What a driver has left that has ended well, whatever the cluster calls its end; else None."""
        found = self._ended(run)
        application = run.application if isinstance(run, ClusterRun) else None
        if found is not None and application is not None and not application.has_succeeded:
            self.log.warning("%s; its report shows that all is done, which counts", application)
        return found

    def _outcome(self, run: DriverRun, context: Context, memory: DriverMemory) -> Any:
        """What a driver has left; its report and what is committed decide, not what the cluster reports."""
        left, failure = "left no report", None
        try:
            found = self._taken(run)
            if found is not None:
                return found
            if self._goes_on(run):
                self._clean_up()
                return self._start(context, memory)
            failure = self._failure(run, _last_lines(run))
        except UnreadableReportError as error:
            if not isinstance(run, ClusterRun):
                raise
            left = f"left a report that cannot be read ({error})"
        if failure is not None:
            text, permanent = failure
            raise (AirflowFailException if permanent else AirflowException)(text)
        if not isinstance(run, ClusterRun):
            raise ConfigurationError(
                f"there is no run report in {str(run.directory)!r}: the log of the Spark job shows why"
            )
        found = self._without_driver(memory)
        if found is not None:
            self.log.warning(
                "%s %s, and all of the source is committed: the load is done", run.application, left
            )
            return found
        raise AirflowException(
            f"{run.application} ended and {left} in {run.folder}: see the driver's log "
            f"({run.log_command()}), and that it can write there. A retry resumes from what is committed"
        )

    def on_kill(self) -> None:
        """Stop Spark, driver and all, and remove what the run left on the disk; the channels resume."""
        self._killed = True
        try:
            if self._run is not None:
                self._run.stop()
            if self._hook is not None and not isinstance(self._run, ClusterRun):
                super().on_kill()
        finally:
            self._clean_up()

    @contextmanager
    def _ending(self, memory: DriverMemory) -> Iterator[None]:
        """Translate what ends the task, and leave the next try what it has to know."""
        with failing_at_once():
            try:
                yield
            except AirflowException:
                memory.forget()
                raise
            except OSError as error:
                if not self._killed:
                    raise
                # on_kill removed the directory, from a signal between two instructions of this task.
                memory.forget()
                raise AirflowException(_KILLED) from error
            finally:
                run = self._run
                if self._killed or run is None:
                    self._clean_up()
                elif run.is_over():
                    run.hide_ui()
                    self._clean_up()
                # else the task has lost its supervisor, and the next try finds the driver's directory.

    def _local_master(self) -> str:
        """The master of the Spark connection where it is a local one, on which small loads need no Spark."""
        is_on = conf.getboolean("snowpipe", "local_rows_without_spark", fallback=True)
        if not is_on or self._is_on_cluster:
            return ""
        master = SubmitHook(self._plain_hook()).master
        return master if LOCAL_MASTER.fullmatch(master) else ""

    def _plain_hook(self) -> SparkSubmitHook:
        try:
            return super()._get_hook()
        except NameError as error:  # of the Spark provider 6.3.4, where the Kubernetes provider is missing
            if error.name != "kube_client":
                raise
            raise ConfigurationError(
                f"the Spark connection {self.spark_conn_id!r} names a Kubernetes master: install "
                "apache-airflow-providers-cncf-kubernetes on the worker"
            ) from None

    def _get_hook(self) -> SparkSubmitHook:
        """Make the Spark hook, whose driver and executors may run where none of our code is."""
        hook, run = self._plain_hook(), self._run
        if self._killed:  # the hook's own submit would start a driver that nobody stops
            raise AirflowException(_KILLED)
        if run is None:
            return hook
        submit = SubmitHook(hook)
        self._check_master(submit.master)
        submit.conf = {"spark.log.level": self.spark_log_level, **submit.conf}
        # Over Spark Connect the job itself gives the server our code.
        if not submit.master.startswith(("local", f"{SPARK_CONNECT}://")):
            submit.add_py_files(run.put(write_package_archive(run.directory)))
        environment = run.prepare(submit, self.env_vars or {})
        submit.submit_by(partial(run.submit, submit, environment))
        return hook

    def _left_by_earlier(self, run: DriverRun, context: Context, memory: DriverMemory) -> Any:
        """What the driver of an earlier try has left if it has ended well, else what a new one leaves."""
        try:
            found = self._taken(run)
            if found is not None:
                return found
            text, permanent = "", False
            if not self._goes_on(run):
                text, permanent = self._failure(run, _last_lines(run)) or ("it left no report", False)
        except UnreadableReportError as error:
            text, permanent = str(error), False
        if permanent:
            raise AirflowFailException(text)
        if text:
            self.log.warning("the driver of an earlier try did not finish (%s); a new one resumes", text)
        self._clean_up()
        return self._start(context, memory)

    def _start(self, context: Context, memory: DriverMemory) -> Any:
        """Submit a new driver and wait for it, unless there is nothing for it to do."""
        if self._killed:
            raise AirflowException(_KILLED)
        remote = self._connect_url()
        found = self._without_driver(memory)
        if found is not None:
            return found
        if remote is None and not self._small_on:
            binary = spark_connection(self.spark_conn_id).extra_dejson.get("spark-binary")
            path = (self.env_vars or {}).get("PATH") or search_path()
            require_spark_submit(self._spark_binary or binary or "spark-submit", path)
        show = self._show_page(context)
        run: DriverRun
        if self._is_on_cluster:
            self._run = run = ClusterRun.new(self._cluster_settings(context), memory, self.log, show)
        else:
            self._run = run = ClientRun.new(memory, self.log.info, show, remote, self._small_on)
        self._hook = None
        try:
            self._prepare(run, memory)
        except SnowpipeError:
            memory.forget()  # nothing was submitted
            raise
        try:
            super().execute(context)
        except AirflowException as error:
            found = self._failure(run, str(error))
            if found is None:
                raise
            text, permanent = found
            raise (AirflowFailException if permanent else AirflowException)(text) from None
        self._wait(run, is_earlier=False)
        return self._outcome(run, context, memory)

    def _clean_up(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.remove()


def _last_lines(run: DriverRun) -> str:
    """The end of the log of a driver on the cluster; that of one beside the task is in the task's own."""
    return run.last_lines() if isinstance(run, ClusterRun) else ""
