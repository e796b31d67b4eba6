"""The operator that loads rows into channels with Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, BaseHook, conf

from airflow_provider_snowpipe.assets.events import describe_outlets
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, names_of
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_LINKS,
    SnowsightLink,
    SparkUiLink,
    leave_observed,
    pipe_page,
)
from airflow_provider_snowpipe.metrics import count_load
from airflow_provider_snowpipe.operators.account_operator import check_arguments, leave_links
from airflow_provider_snowpipe.operators.client_job import REPORT_FILE, ClientRun, DriverMemory
from airflow_provider_snowpipe.operators.cluster_delivery import SECRET_VARIABLE
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.row_policy import RowPolicyOperator
from airflow_provider_snowpipe.operators.source_record import (
    LoadedSource,
    SeenChannel,
    SourceRecord,
    with_earlier_source,
)
from airflow_provider_snowpipe.operators.spark_job import SparkDriverOperator, refuse_own_arguments
from airflow_provider_snowpipe.operators.submission import (
    end_of_task,
    end_of_wait,
    job_error,
    loaded_channels,
    report_lines,
    report_of,
    settle_load,
    settled,
    targets_of,
    value_of,
)
from airflow_provider_snowpipe.sources import stream_values
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.submit.source import (
    SubmittedLoad,
    connected_source,
    run_of,
    with_log_path,
)
from airflow_provider_snowpipe.streaming.arguments import check_one_of, mapping_argument
from airflow_provider_snowpipe.streaming.checked_values import checked_values
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError, error_line
from airflow_provider_snowpipe.streaming.limits import DEFAULT_RETRY, BatchLimits, RetryPolicy
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.triggers.commit import (
    SnowpipeCommitTrigger,
    deferral_limit,
    is_deferral_timeout,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.operators.spark_job import DriverRun
    from airflow_provider_snowpipe.spark.driver.plan import JobPlan
    from airflow_provider_snowpipe.spark.driver.report import ChannelReport, RunReport
    from airflow_provider_snowpipe.spark.source import SourceSecrets, SourceSpec


TARGETS_KEY = "targets"


class SnowpipeStreamOperator(ReportsLineage, RowPolicyOperator, SparkDriverOperator):
    """Load ordered files or Kafka topics into a table through channels, each row exactly once, with Spark.

    The job resumes each channel from its committed offset token, so that a retry or the next run sends only
    what is not committed yet. The task succeeds when every channel has committed (``wait_for_commit``), or
    when the service has received all rows; then a :class:`SnowpipeCommitSensor` waits for the commit.

    The task's value describes the run; the XCom ``targets`` holds what the run owes on each channel: target
    offset token, the token's format, rows that were rejected before, rows sent. It is what the sensor takes:
    ``SnowpipeCommitSensor(targets=load.output["targets"])``.

    With ``deferrable`` the task gives its worker back once the service has received all rows, and the
    triggerer waits for the commit; value, XComs and errors are the same. A driver in client mode needs the
    worker while rows move; a deferred task has no Spark that could be left running.

    With ``deploy_mode="cluster"``, here or in the Spark connection, YARN or Kubernetes runs the driver. The
    task submits it once, whatever becomes of its worker: a retry follows the running application. What is
    committed decides, not what the cluster reports of the application's end. By ``deferrable`` the worker is
    given back as soon as the cluster has the application. Needed are ``work_path`` and, for YARN,
    ``yarn_resourcemanager_webapp_address`` in the connection's extra, for Kubernetes ``namespace`` in it, an
    image, a service account and ``driver_secret``.

    With a connection of the type ``spark_connect`` the job is a client of that server and needs no Java.

    The arguments of :class:`RowPolicyOperator` decide about the table, and rows that do not fit it.

    Credentials go to the driver in a file that only this user can read and that the driver removes; they are
    in no argument, setting, environment variable or template. A driver on YARN finds them in the
    application's file, which no executor gets, one on Kubernetes in a secret; or as ``driver_secret`` says.

    :param source: what to read: a :class:`~airflow_provider_snowpipe.sources.FileSource`, ``KafkaSource``,
        ``TableSource``, ``DeltaSource`` or ``IcebergSource``; or a mapping of its fields and its ``kind``,
        which is ``files`` where there is none (templated)
    :param table: load into this table through its default pipe (templated)
    :param pipe: load through this pipe; not together with ``table`` (templated)
    :param spark_conn_id: the Spark connection; by ``spark_connect`` for files and topics only
    :param channel_prefix: first part of the channels' names, stable over runs; None for the
        connector's, where a Kafka source has a ``connector_name``, else for the DAG's id (templated)
    :param source_name: second part of the channels' names, stable; None for the source's own (templated)
    :param on_data_loss: ``fail``, or ``skip`` to go on after a committed position that is not in the source
    :param deferrable: True waits in the triggerer, for a driver on the cluster and for the commit
    :param poll_interval: with ``deferrable``, seconds between two polls of the channels
    :param batch_limits: when a batch is sent, a mapping or JSON by the keys of ``BatchLimits`` (templated)
    :param sdk_profile: path, on every machine with executors, of the profile file with which Snowflake's SDK
        carries the rows, in files where they are many; None for this package's own client (templated)
    :param work_path: for a driver on the cluster, a folder that it and this worker reach (templated)
    :param kwargs: options of ``SparkSubmitOperator``, such as ``conf``, ``driver_memory``, ``deploy_mode``;
        its ``status_poll_interval`` is the time between two polls of an application on a cluster, 10 s;
        ``spark_log_level``, the lowest level of Spark's own lines in the log (``WARN``); and
        ``driver_secret``, for a driver on a cluster: ``file:/path`` of a credentials file on its machine, or
        ``python:module:function`` that returns the file's content; on Kubernetes also ``name:key`` of a
        secret, or ``create`` to make one for each submission
    :raises ConfigurationError: if an argument is wrong
    """

    _observed: tuple[RunReport, str] | None = None
    template_fields: Sequence[str] = (
        "source",
        "channel_prefix",
        "source_name",
        "batch_limits",
        "sdk_profile",
        "work_path",
        *RowPolicyOperator.template_fields,
        *SparkDriverOperator.template_fields,
    )
    operator_extra_links = (SnowsightLink(), SparkUiLink(), *CHANNEL_PAGE_LINKS)
    _runs_over_connect = True

    def __init__(
        self,
        *,
        source: SourceSpec | Mapping[str, Any],
        channel_prefix: str | None = None,
        source_name: str | None = None,
        on_data_loss: str = "fail",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 5.0,
        batch_limits: Mapping[str, Any] | str | None = None,
        sdk_profile: str | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_own_arguments(kwargs)
        super().__init__(application=job_file(), **kwargs)
        self._if_it_runs = "shuts that one out of its channels if it still runs"
        self.source = stream_values(source)
        self.channel_prefix = channel_prefix
        self.source_name = source_name
        self.on_data_loss = on_data_loss
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.batch_limits = batch_limits
        self.sdk_profile = sdk_profile
        self._run_mark = "0"
        self._known: SourceRecord | None = None
        self._check_arguments()

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the job, wait for it, and report what it loaded.

        :return: application, pipe, offset format, rows, bytes, and what each channel loaded
        """
        with self._working(context) as memory:
            hook, source = self._pipe_hook(), self._source()[0]
            leave_links(context, hook, pipe_page(hook, self._channels(source)))
            sent = self._sent_before(memory) or self._run_driver(context, memory)
            return self._after_driver(context, sent, memory)

    def driver_ended(
        self, context: Context, event: Mapping[str, Any], submission: Mapping[str, Any], is_earlier: bool
    ) -> dict[str, Any]:
        """Go on where the task gave its worker back while a driver on the cluster ran.

        :param is_earlier: whether an earlier try made it
        """
        with self._working(context) as memory:
            sent = self._resumed(context, memory, event, submission, is_earlier=is_earlier)
            return self._after_driver(context, sent, memory)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], sent: Mapping[str, str]
    ) -> dict[str, Any]:
        """Go on where the deferred task stopped: check what is committed and report it."""
        with self._working(context) as memory:
            load = SubmittedLoad.of(sent)
            self._reported(load.report, load.offset_format)
            if event["status"] != "success":
                self._leave_observed(context, event["reason"])
                raise end_of_wait(event)
            return self._conclude(context, self._settled(load, awaited=True), memory)

    def _settled(self, load: SubmittedLoad, *, awaited: bool) -> SubmittedLoad:
        return settle_load(
            load, self._pipe_hook(), on_error=self.on_error, awaited=awaited, observe=self._reported
        )

    @contextmanager
    def _working(self, context: Context) -> Iterator[DriverMemory]:
        """Name the run; where it fails, leave what is known of the channels: such a task has no value."""
        memory = DriverMemory(context, durable=self.durable)
        self._name_application(context)
        self._run_mark = self._name_run(context)
        with self._ending(memory):
            try:
                yield memory
            except (AirflowException, SnowpipeError) as error:
                self._leave_observed(context, type(error.__cause__ or error).__name__)
                raise
            finally:
                self._known = None

    def _leave_observed(self, context: Context, reason: str) -> None:
        if self._observed is None:
            return
        (report, spelled), self._observed = self._observed, None
        value = value_of(report, self._pipe_hook().pipe_name(), spelled, self.dead_letter_path)
        leave_observed(context["ti"], report.error_type or reason, value["channels"], value["unloaded"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the deferred task; raises AirflowException if the deferral timed out."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as error:
            if not is_deferral_timeout(error):
                raise
            memory = DriverMemory(context, durable=self.durable)
            if (sent := memory.sent()) is not None:
                self._reported(sent.report, sent.offset_format)
                self._leave_observed(context, "CommitTimeoutError")
            self._stop_on_cluster(context, memory, error)
            memory.forget()
            limit = deferral_limit(self, self.commit_timeout)
            seconds = self.commit_timeout if limit is None else limit.total_seconds()
            name = "commit_timeout" if seconds == self.commit_timeout else "execution_timeout"
            raise AirflowException(
                error_line(
                    "CommitTimeoutError",
                    f"pipe {self._pipe_hook().pipe_name()}: not every channel has committed its target "
                    f"within {seconds:g} s; the task's log shows which. Run again, which resumes "
                    f"from the committed tokens, or raise {name}",
                )
            ) from error

    @property
    def _defers(self) -> bool:
        return self.deferrable and self.wait_for_commit

    @property
    def _follows_in_triggerer(self) -> bool:
        return self.deferrable

    @property
    def _followed_pipe(self) -> Mapping[str, Any]:
        return {"snowflake_conn_id": self.snowflake_conn_id, **names_of(self)}

    def _after_driver(self, context: Context, sent: SubmittedLoad, memory: DriverMemory) -> dict[str, Any]:
        """Conclude what a driver has sent, or wait for its commit in the triggerer."""
        if not self._defers:
            if self.wait_for_commit and isinstance(self._run, ClusterRun):
                # Its report came a long way, and may be old by now.
                sent = self._settled(sent, awaited=True)
            return self._conclude(context, sent, memory)
        memory.keep_sent(sent)
        seen = self._first_poll(sent)
        if seen is not None:
            return self._conclude(context, seen, memory)
        self.defer(
            trigger=self._trigger(sent),
            method_name="execute_complete",
            kwargs={"sent": sent.to_kept()},
            timeout=deferral_limit(self, self.commit_timeout),
        )

    def _sent_before(self, memory: DriverMemory) -> SubmittedLoad | None:
        """What an earlier try has sent, whose worker died before Airflow had deferred the task, or after."""
        sent = memory.sent() if self._defers else None
        if sent is not None:
            self.log.info("an earlier try has sent all rows; nothing is submitted, the commit is awaited")
            location = memory.location()
            if location is not None and location.is_here() and location.is_ours():
                # of a worker that died before it removed this
                self._run = ClientRun(location, memory, self.log.info, lambda _: None)
        return sent

    def _reported(self, report: RunReport, offset_format: str) -> None:
        self._observed = (report, offset_format)
        address = self._source()[0].address
        self.task_lineage = TaskLineage(
            self._pipe_hook(),
            offset_format,
            loaded_channels(report),
            sources=(address,),
            rows=report.rows,
            size=report.bytes,
        )

    def _ended(self, run: DriverRun) -> SubmittedLoad | None:
        report = report_of(run.text(REPORT_FILE))
        if report is None or report.error is not None or report.begun:
            return None
        return self._sent(report, self._source()[0].offset_format)

    def _goes_on(self, run: DriverRun) -> bool:
        report = report_of(run.text(REPORT_FILE))
        return report is not None and self._has_begun(report)

    def _has_begun(self, report: RunReport) -> bool:
        """Record channels that are about to get their first rows; False where there are none."""
        if not report.begun:
            return False
        self.log.info("recorded before the first row: %s", counted(len(report.begun), "new channel"))
        seen = [SeenChannel(*one) for one in report.begun.items()]
        self._write_record(self._pipe_hook(), seen, report.reading, sends=True)
        return True

    def _sent(self, report: RunReport, offset_format: str) -> SubmittedLoad:
        for line in report_lines(report):
            self.log.info("%s", line)
        self._reported(report, offset_format)
        return SubmittedLoad(report, offset_format)

    def _failure(self, run: DriverRun, output: str) -> tuple[str, bool] | None:
        report = report_of(run.text(REPORT_FILE))
        if report is not None:
            self._reported(report, self._source()[0].offset_format)
            self._keep_record(self._pipe_hook(), report, is_done=False)
        found = job_error(report, output)
        return None if found is None else (with_earlier_source(found[0]), found[1])

    def _prepare(self, run: DriverRun, memory: DriverMemory) -> None:
        hook = self._pipe_hook()
        source, secrets = self._source()
        rules = self._schema_policy().prepare(
            hook,
            source,
            self.log.info,
            secrets,
            channel_of=partial(source.channel, self._prefix(source), self.source_name or source.default_name),
            on_data_loss="skip" if self.on_data_loss == "skip" else "fail",
        )
        plan = self._plan(hook, run.plan_keys(), rules, memory)
        self.application_args = [run.write_plan(plan.to_json())]
        run.write_secrets(settled(hook.credentials()), secrets)
        self.log.info(
            "loading %s through pipe %s as %s (channels %s_%s_<partition>)",
            plan.source.address,
            plan.pipe,
            plan.application,
            plan.channel_prefix,
            plan.source_name,
        )

    def _without_driver(self, memory: DriverMemory) -> SubmittedLoad | None:
        """Do a run without rows here, by the driver's own code; any doubt is for the driver.

        On a local master it decides whether Spark starts: the service is asked as long as by a driver.
        """
        self._small_on, master = "", self._local_master()
        hook = self._pipe_hook()
        rules = {"on_error": "continue" if self.on_error == "continue" else "abort"}
        plan = self._plan(hook, {"credentials_variable": SECRET_VARIABLE}, rules, memory)
        report, run, begun = None, None, None
        try:
            with hook.get_client(retry=DEFAULT_RETRY if master else RetryPolicy(budget_seconds=0)) as client:
                run = run_of(plan, client, self._source()[1])
                report = run.without_rows()
                begun = run.begin() if report is None else None
        except (SnowpipeError, OSError, ImportError) as error:
            if master and isinstance(error, SnowpipeError) and error.retryable:
                raise end_of_task(error) from error
            self.log.info("whether there are new rows is left to the driver: %s", error)
        if begun is not None:
            self._has_begun(begun)
        is_unread = report is None or all(one.from_token is None for one in report.channels)
        if report is None or (is_unread and self._schema_policy().changes_table):
            if master and run is not None and run.is_small():
                self._small_on = master
                self.log.info("few rows on %s: a Python process loads them, Spark is not started", master)
            return None
        if self._run is None:
            self.log.info(
                "0 new rows: all that %s holds is committed; Spark is not started", plan.source.address
            )
        return self._sent(report, plan.offset_format)

    def _plan(
        self, hook: SnowpipeHook, keys: Mapping[str, str], rules: Mapping[str, Any], memory: DriverMemory
    ) -> JobPlan:
        from airflow_provider_snowpipe.spark.driver.plan import JobPlan

        source = self._source()[0]
        record = self._record(hook, source)
        record.require_split(source.split, self.rebind)
        values: dict[str, Any] = {
            "application": self.name,
            "account_url": hook.account_url(),
            "ca_bundle": hook.ca_bundle(),
            "channel_prefix": self._prefix(source),
            "source_name": self.source_name or source.default_name,
            "wait_for_commit": self.wait_for_commit and not self._defers,
            "sdk_profile": self.sdk_profile or None,
            "run": self._run_mark,
            **{
                one: getattr(self, one)
                for one in ("on_data_loss", "commit_timeout", "rebind", "on_imbalance")
            },
            "last_checkpoints": record.last_checkpoints(),
            **self._copied(hook, record),
            "renew": tuple(record.quiet(dt.datetime.now(dt.UTC))),
            "is_recorded": True,
            **keys,
            **rules,
        }
        limits = BatchLimits(
            **checked_values(BatchLimits, mapping_argument("batch_limits", self.batch_limits), "batch_limits")
        )
        return JobPlan(pipe=hook.pipe_name(), source=source, limits=limits, **values)

    def _record(self, hook: SnowpipeHook, source: SourceSpec) -> SourceRecord:
        """What earlier runs have left of the source's channels."""
        if self._known is None:
            self._known = SourceRecord.read(hook.pipe_name().address(hook.account_url()), source)
        return self._known

    def _keep_record(self, hook: SnowpipeHook, report: RunReport, *, is_done: bool = True) -> None:
        """Write down what is committed on the source's channels, for the next run and for the audit.

        :param is_done: False for a run that has renewed no quiet channel
        """
        seen = [
            SeenChannel(one.channel, _left(one, is_done=is_done), one.rows_before, one.rejected_earlier)
            for one in report.channels
        ]
        self._write_record(hook, seen, report.reading, renews=is_done)

    def _write_record(
        self,
        hook: SnowpipeHook,
        seen: Sequence[SeenChannel],
        reading: str,
        *,
        renews: bool = False,
        copied: Mapping[str, Any] | None = None,
        sends: bool = False,
    ) -> None:
        source, pipe, now = self._source()[0], hook.pipe_name(), dt.datetime.now(dt.UTC)
        record = self._record(hook, source)
        loaded = LoadedSource(
            self.source,
            reading,
            source.split,
            self._channels(source),
            (pipe.database, pipe.schema, pipe.pipe),
            self.snowflake_conn_id,
            self.dag_id,
            self.task_id,
            self.on_error,
            self.dead_letter_path or None,
            **(copied or record.copied),
        )
        self._known = record.write(seen, record.quiet(now) if renews else (), now, loaded, sends=sends)

    def _copied(self, hook: SnowpipeHook, record: SourceRecord) -> dict[str, Any]:
        """The logs by which COPY and pipes have loaded files of it, and when the table was created."""
        from airflow_provider_snowpipe.bulk.source_loads import SourceLoads

        logs, table = record.copied.get("source_logs"), hook.pipe_name().default_table
        if not logs or table is None:
            return {}
        bulk = self.bulk_hook(table)
        if self.rebind == "restart":  # whose log may be lost
            SourceLoads(bulk, table, self._source()[0].address, record.copied["ledgers"]).end("")
        return {"source_logs": logs, "table_created": bulk.table_created(table) or ""}

    def _channels(self, source: SourceSpec) -> str:
        """What the names of its channels begin with."""
        return f"{self._prefix(source)}_{self.source_name or source.default_name}_"

    def _prefix(self, source: SourceSpec) -> str:
        return str(self.channel_prefix or source.channel_prefix or self.dag_id)

    def _source(self) -> tuple[SourceSpec, SourceSecrets]:
        """What to read, and the secrets that no plan holds."""
        self.source = with_log_path(self.source, conf.get("snowpipe", "log_path", fallback=""))
        return connected_source(self.source, BaseHook.get_connection)

    def _first_poll(self, sent: SubmittedLoad) -> SubmittedLoad | None:
        """Poll the channels once; the load if all of it is committed, None if there is to wait."""
        try:
            seen = self._settled(sent, awaited=False)
        except SnowpipeError as error:
            if not error.retryable:
                raise
            self.log.warning("the first look at the channels failed (%s); the triggerer goes on", error)
            return None
        return seen if seen.is_committed else None

    def _trigger(self, sent: SubmittedLoad) -> SnowpipeCommitTrigger:
        return SnowpipeCommitTrigger(
            targets=targets_of(sent.report, sent.offset_format, self.on_error),
            poll_interval=self.poll_interval,
            # The task settles them itself when it comes back, in the words of a driver that has waited.
            fail_on_rejected_rows=False,
            **self._followed_pipe,
        )

    def _conclude(self, context: Context, load: SubmittedLoad, memory: DriverMemory) -> dict[str, Any]:
        """Report a load, forget it, and give the task its value."""
        report = load.report
        self._reported(report, load.offset_format)
        context["ti"].xcom_push(key=TARGETS_KEY, value=targets_of(report, load.offset_format, self.on_error))
        hook = self._pipe_hook()
        pipe = hook.pipe_name()
        waited = self.wait_for_commit and not self._defers
        name = type(self).__name__
        count_load(report.channels, pipe, name, waited=waited, run_seconds=report.seconds)
        describe_outlets(self, context, hook, loaded_channels(report))
        value = value_of(report, pipe, load.offset_format, self.dead_letter_path)
        self._warn_of_unknown(report.unknown_columns, pipe)
        self._keep_record(hook, report)
        memory.forget()
        self._refuse_lost_columns(hook, report.columns, report.rows)
        return {"source": self._source()[0].address, **value}

    def _check_arguments(self) -> None:
        check_one_of("on_data_loss", self.on_data_loss, ("fail", "skip"))
        check_arguments(self, seconds=["poll_interval"], switches=["deferrable"])
        if not self.commit_timeout > 0:
            raise ConfigurationError(f"commit_timeout is {self.commit_timeout}: give seconds above 0")
        if isinstance(self.source, Mapping) and not (self.source.get("path") or self.source.get("kind")):
            raise ConfigurationError(
                f"source is {dict(self.source)!r}: give the 'path' of files, or the 'kind' of another source"
            )


def _left(one: ChannelReport, *, is_done: bool) -> str | None:
    """The token that a run has left, None where it is not known; empty where it is known to have none."""
    if one.committed:
        return one.to_token or ("" if is_done else None)
    return one.from_token if one.rows_before >= 0 else None
