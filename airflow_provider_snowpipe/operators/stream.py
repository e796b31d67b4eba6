"""The operator that loads rows into channels with Spark."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowsight import SNOWSIGHT_KEY, SnowsightLink, snowsight_url
from airflow_provider_snowpipe.metrics import count_load
from airflow_provider_snowpipe.operators.driver_place import (
    DIRECTORY_PREFIX,
    DriverMemory,
    DriverPlace,
)
from airflow_provider_snowpipe.operators.driver_run import DriverRun
from airflow_provider_snowpipe.operators.submission import (
    application_name,
    job_error,
    launch_environment,
    limits_argument,
    report_lines,
    report_or_none,
    require_client_mode,
    settled,
    targets_of,
    value_of,
)
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.spark.plan import JobPlan

TARGETS_KEY = "targets"
_OWN_ARGUMENTS = ("application", "application_args", "java_class", "conn_id")


class SnowpipeStreamOperator(ReportsLineage, SparkSubmitOperator):
    """Load ordered files into a table through channels, each row exactly once, with a Spark job.

    The job resumes each channel from its committed offset token, so that a retry or the next run sends only
    what is not committed yet. The task succeeds when every channel has committed (``wait_for_commit``), or
    when the service has received all rows; then a :class:`SnowpipeCommitSensor` waits for the commit.

    The task's value describes the run; the XCom ``targets`` holds the target offset token of each channel,
    which is what the sensor takes: ``SnowpipeCommitSensor(targets=load.output["targets"])``.

    Credentials go to the driver in a file that only this user can read and that the driver removes; they are
    in no argument, setting, environment variable or template.

    :param source: what to read, by the keys of ``FileSourceSpec``; ``path`` is required (templated)
    :param table: load into this table through its default pipe (templated)
    :param pipe: load through this pipe; not together with ``table`` (templated)
    :param database: the pipe's database, None for the connection's (templated)
    :param schema: the pipe's schema, None for the connection's (templated)
    :param snowflake_conn_id: a connection of type ``snowflake`` or ``snowpipe`` (templated)
    :param spark_conn_id: the Spark connection; client deploy mode only
    :param channel_prefix: first part of the channels' names, stable over runs; None for the DAG's id
        (templated)
    :param source_name: second part of the channels' names, stable over runs; None for the last part of the
        source's path (templated)
    :param on_error: ``abort`` fails the task when the service skips a row, ``continue`` reports them
    :param on_data_loss: ``fail`` fails the task when the committed position is not in the source any more,
        ``skip`` goes on after it
    :param wait_for_commit: False ends the task when the rows are received, committed or not
    :param commit_timeout: seconds to wait for a channel's commit
    :param batch_limits: when a batch of rows is closed and sent, by the keys of ``BatchLimits``;
        a mapping or its JSON text (templated)
    :param kwargs: options of ``SparkSubmitOperator``, such as ``conf`` and ``driver_memory``
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "source",
        "table",
        "pipe",
        "database",
        "schema",
        "channel_prefix",
        "source_name",
        "snowflake_conn_id",
        "batch_limits",
        *SparkSubmitOperator.template_fields,
    )
    operator_extra_links = (SnowsightLink(),)
    ui_color = "#29b5e8"

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        spark_conn_id: str = "spark_default",
        channel_prefix: str | None = None,
        source_name: str | None = None,
        on_error: str = "abort",
        on_data_loss: str = "fail",
        wait_for_commit: bool = True,
        commit_timeout: float = 600.0,
        batch_limits: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _OWN_ARGUMENTS:
            if name in kwargs:
                raise ConfigurationError(
                    f"{name}={kwargs[name]!r} cannot be given: this operator runs its own application; the "
                    "Spark connection is spark_conn_id=…"
                )
        kwargs.setdefault("name", "")
        super().__init__(application=str(job_file()), conn_id=spark_conn_id, **kwargs)
        self.source = source
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.channel_prefix = channel_prefix
        self.source_name = source_name
        self.on_error = on_error
        self.on_data_loss = on_data_loss
        self.wait_for_commit = wait_for_commit
        self.commit_timeout = commit_timeout
        self.batch_limits = batch_limits
        self._directory: Path | None = None
        self._run: DriverRun | None = None
        self._rejected_before: Mapping[str, int] = {}
        self._killed = False
        self._check_arguments()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the job, wait for it, and report what it loaded.

        :return: application, pipe, offset format, rows, bytes, and what each channel loaded
        """
        ti = context["ti"]
        self.name = self.name or application_name(ti.dag_id, ti.task_id, ti.run_id, ti.map_index)
        memory = DriverMemory(context, durable=self.durable)
        self._killed = False
        try:
            self._leave_link(context)
            plan = self._rejoin(memory) or self._start(context, memory)
            value = self._finish(context, plan)
            memory.forget()
            return value
        except (ConfigurationError, AuthenticationError) as error:
            raise AirflowFailException(f"snowpipe error: {type(error).__name__}: {error}") from error
        except AirflowFailException:
            memory.forget()
            raise
        except AirflowException:
            memory.forget_place()
            raise
        finally:
            self._clean_up()

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

    def _get_hook(self) -> SparkSubmitHook:
        """Make the Spark hook, with the environment that a driver on this machine needs."""
        hook = super()._get_hook()
        require_client_mode(hook._connection["deploy_mode"], hook._conf)
        if not (hook._is_yarn or hook._is_kubernetes) and self._directory is not None:
            hook._env_vars = {
                **launch_environment(self._directory / "java"),
                **{name: str(value) for name, value in (self.env_vars or {}).items()},
            }
        if self._run is not None:
            hook.submit = partial(self._run.submit, hook)  # type: ignore[method-assign]
        return hook

    def _rejoin(self, memory: DriverMemory) -> JobPlan | None:
        """Wait for the driver of an earlier try, whose worker died; its plan if it has loaded everything."""
        from airflow_provider_snowpipe.spark.plan import read_plan

        place = memory.place()
        if place is None:
            return None
        if not place.is_here():
            self.log.warning(
                "an earlier try ran its driver on %s, of which nothing is to be seen here; a new driver is "
                "submitted, and shuts that one out of its channels if it still runs",
                place.host,
            )
            return None
        if not place.is_ours():
            return None
        self._directory = Path(place.directory)
        self._run = DriverRun(place, memory, self.log.info)
        self._run.rejoin()
        report = report_or_none(str(place.report_path))
        if report is not None and report.error is None:
            return read_plan(place.plan_path)
        text, permanent = job_error(report, "") or ("it left no report", False)
        if permanent:
            raise AirflowFailException(text)
        self.log.warning("the driver of an earlier try did not finish (%s); a new one resumes", text)
        self._clean_up()
        return None

    def _start(self, context: Context, memory: DriverMemory) -> JobPlan:
        """Submit a new driver and wait for it.

        Its place is remembered before anything is in it: a worker that dies on the way leaves a place where
        nothing runs, never a driver that nobody knows of.
        """
        if self._killed:
            raise AirflowException("the task was killed; no new application is submitted")
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        self._rejected_before = memory.rejected_before()
        place = DriverPlace.here(self._directory)
        memory.keep_place(place)
        self._run = DriverRun(place, memory, self.log.info)
        plan = self._prepare(self._directory)
        self._submit(context, plan)
        return plan

    def _pipe_hook(self) -> SnowpipeHook:
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )

    def _leave_link(self, context: Context) -> None:
        url = snowsight_url(self._pipe_hook())
        if url is not None:
            context["ti"].xcom_push(key=SNOWSIGHT_KEY, value=url)

    def _prepare(self, directory: Path) -> JobPlan:
        from airflow_provider_snowpipe.spark.credentials import write_credentials
        from airflow_provider_snowpipe.spark.plan import write_plan

        hook = self._pipe_hook()
        plan = self._plan(hook, directory)
        path = directory / "plan.json"
        write_plan(plan, path)
        self.application_args = [str(path)]
        self._hook = None
        write_credentials(settled(hook.credentials()), plan.credentials_path)
        self.log.info(
            "loading %s through pipe %s as %s (channels %s_%s_<partition>)",
            plan.source.path,
            plan.pipe,
            plan.application,
            plan.channel_prefix,
            plan.source_name,
        )
        return plan

    def _plan(self, hook: SnowpipeHook, directory: Path) -> JobPlan:
        from airflow_provider_snowpipe.spark.plan import FileSourceSpec, JobPlan, checked_values
        from airflow_provider_snowpipe.streaming.limits import BatchLimits

        source = FileSourceSpec.from_mapping(self.source)
        values: dict[str, Any] = {
            "application": self.name,
            "account_url": hook.account_url(),
            "ca_bundle": hook.ca_bundle(),
            "channel_prefix": self.channel_prefix or self.dag_id,
            "source_name": self.source_name or Path(source.path).name,
            "on_error": self.on_error,
            "on_data_loss": self.on_data_loss,
            "wait_for_commit": self.wait_for_commit,
            "commit_timeout": self.commit_timeout,
            "report_path": str(directory / "report.json"),
            "credentials_path": str(directory / "credentials.json"),
            "rejected_before": dict(self._rejected_before),
        }
        limits = BatchLimits(
            **checked_values(BatchLimits, limits_argument(self.batch_limits), "batch_limits")
        )
        return JobPlan(pipe=hook.pipe_name(), source=source, limits=limits, **values)

    def _submit(self, context: Context, plan: JobPlan) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            report = report_or_none(plan.report_path)
            if report is not None:
                self.task_lineage = TaskLineage.of_run(self._pipe_hook(), plan, report)
            found = job_error(report, str(error))
            if found is None:
                raise
            text, permanent = found
            raise (AirflowFailException if permanent else AirflowException)(text) from None

    def _finish(self, context: Context, plan: JobPlan) -> dict[str, Any]:
        from airflow_provider_snowpipe.spark.report import RunReport

        report = RunReport.read(plan.report_path)
        self.task_lineage = TaskLineage.of_run(self._pipe_hook(), plan, report)
        for line in report_lines(report):
            self.log.info("%s", line)
        context["ti"].xcom_push(key=TARGETS_KEY, value=targets_of(report))
        count_load(
            pipe=str(plan.pipe),
            operator=type(self).__name__,
            rows=report.rows,
            raw_bytes=report.bytes,
            rejected=sum(channel.rejected for channel in report.channels),
            retries=sum(channel.retries for channel in report.channels),
            append_seconds=max((channel.append_seconds for channel in report.channels), default=None),
            commit_seconds=max((channel.commit_seconds for channel in report.channels), default=None)
            if self.wait_for_commit
            else None,
            run_seconds=report.seconds,
            lag_channels=sum(
                channel.target_token is not None and not channel.committed for channel in report.channels
            ),
        )
        return value_of(report, plan)

    def _clean_up(self) -> None:
        directory, self._directory, self._run = self._directory, None, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def _check_arguments(self) -> None:
        if self.table is not None and self.pipe is not None:
            raise ConfigurationError(
                f"table {self.table!r} and pipe {self.pipe!r} are both given: drop one of them"
            )
        for name, value, choices in (
            ("on_error", self.on_error, ("abort", "continue")),
            ("on_data_loss", self.on_data_loss, ("fail", "skip")),
        ):
            if value not in choices:
                raise ConfigurationError(f"{name} is {value!r}: it must be one of {list(choices)}")
        if not self.commit_timeout > 0:
            raise ConfigurationError(f"commit_timeout is {self.commit_timeout}: give seconds above 0")
        if isinstance(self.source, Mapping) and not self.source.get("path"):
            raise ConfigurationError(
                f"source is {dict(self.source)!r}: it needs a 'path', the directory that holds the files"
            )
        require_client_mode(self._deploy_mode, None)
