"""The sensor that lets downstream tasks run only when rows are committed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_snowpipe.assets.events import LoadedChannel, describe_outlets
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.channel_page import (
    CHANNEL_PAGE_LINKS,
    channel_page,
    leave_channel_page,
    page_of_channels,
)
from airflow_provider_snowpipe.sensors.deferral import check_deferral, first_look
from airflow_provider_snowpipe.sensors.reschedule_memory import RescheduleMemory
from airflow_provider_snowpipe.sensors.triggerer_templates import can_start_there, rendered_in_triggerer
from airflow_provider_snowpipe.streaming.commit_wait import (
    CommitTargets,
    CommitVerdict,
    FailureReason,
    WaitState,
)
from airflow_provider_snowpipe.streaming.commit_watch import CommitWatch, Patience
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeFailedOverError
from airflow_provider_snowpipe.streaming.offsets import offset_class
from airflow_provider_snowpipe.streaming.status_look import look_at
from airflow_provider_snowpipe.triggers.commit import POLL_BUDGET_SECONDS, SnowpipeCommitTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

_MEMORY_KEY = "snowpipe_commit_watch"


class SnowpipeCommitSensor(ReportsLineage, BaseSensorOperator):
    """Succeed only when every channel has committed its target token, so that its rows can be read.

    Tokens are compared by their format's order; a channel without a committed token never counts. The
    task's value is the committed token of each channel.

    Deferred sensors that name the same pipe share one poll of its channels, 100 channels a request.

    :param targets: what each channel has to commit: the XCom ``targets`` of a task that loads,
        ``load.output["targets"]``, which also tells the tokens' format and the rows that were rejected
        before; or a mapping of plain target tokens, its JSON text, or a function of ``context`` and
        ``jinja_env`` that returns one of them. Without a channel the sensor succeeds at once (templated)
    :param offset_format: the format of plain tokens: ``file:line``, ``integer``, ``topic:partition:offset``,
        ``batch:row``, ``lexicographic``, or the dotted path of a subclass of ``Offset``; None where the
        targets carry it, or the tokens can have one format only
    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param database: the pipe's database, None for the connection's (templated)
    :param schema: the pipe's schema, None for the connection's (templated)
    :param snowflake_conn_id: the connection's id (templated)
    :param deferrable: True waits in the triggerer, after one look in the worker
    :param start_from_trigger: with ``deferrable``, no look in a worker before; has no effect on mapped tasks
        and, before Airflow 3.3, where an argument is a template
    :param end_from_trigger: with ``deferrable``, success ends the task without a worker; what happens in a
        worker at a task's end, such as asset events and lineage, then does not happen, and Airflow 3.3.2
        hands the task's value on as JSON text
    :param max_consecutive_errors: fail after this many looks in a row that failed for a passing reason
    :param stall_timeout: fail when a channel short of its target commits nothing for this many seconds, None
        to leave that to ``timeout``
    :param fail_on_rejected_rows: True fails as soon as the service has skipped a row of a channel; None, the
        default, where the target carries a baseline, as that of a load with ``on_error="abort"`` does; False
        accepts skipped rows
    :param rejected_baseline: rows skipped before that do not count, by channel, in place of the targets' own;
        with ``fail_on_rejected_rows=True`` and neither, every row skipped in the channel's life counts
        (templated)
    :param poke_interval: seconds between two looks, deferred or not; 5 unless given
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = (
        "targets",
        "table",
        "pipe",
        "database",
        "schema",
        "snowflake_conn_id",
        "rejected_baseline",
    )
    operator_extra_links = CHANNEL_PAGE_LINKS
    ui_color = "#d3edf9"

    def __init__(
        self,
        *,
        targets: Any,
        offset_format: str | None = None,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        max_consecutive_errors: int = 10,
        stall_timeout: float | timedelta | None = None,
        fail_on_rejected_rows: bool | None = None,
        rejected_baseline: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 5)
        super().__init__(**kwargs)
        self.targets = targets
        self.offset_format = offset_format
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.deferrable = deferrable
        self.start_from_trigger = start_from_trigger
        self.end_from_trigger = end_from_trigger
        self.max_consecutive_errors = max_consecutive_errors
        self.stall_timeout = (
            stall_timeout.total_seconds() if isinstance(stall_timeout, timedelta) else stall_timeout
        )
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = rejected_baseline
        self._watch: CommitWatch | None = None
        self._client: SnowpipeClient | None = None
        if table is not None and pipe is not None:
            raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")
        check_deferral(
            deferrable=self.deferrable,
            start_from_trigger=self.start_from_trigger,
            end_from_trigger=self.end_from_trigger,
        )
        self._patience()
        if offset_format is not None:
            offset_class(offset_format)
        if start_from_trigger:
            self.start_trigger_args = arguments = self._start_trigger_args()
            self.start_from_trigger = can_start_there((arguments.trigger_kwargs or {}).values())

    def execute(self, context: Context) -> Any:
        """Look once, then wait in the worker or, when deferrable, in the triggerer."""
        try:
            if not self.deferrable:
                return self._tell(context, super().execute(context))
            seen = first_look(self, context)
        finally:
            self._disconnect()
        if seen.is_done:
            return self._tell(context, seen.xcom_value)
        self.defer(
            trigger=SnowpipeCommitTrigger(**self._trigger_arguments()),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the channels once.

        :raises AirflowFailException: if the wait cannot end well, or the settings are wrong
        :raises AirflowException: if it failed for a reason that may pass
        """
        try:
            verdict = self._look(context)
        except ConfigurationError as error:
            raise AirflowFailException(f"{FailureReason.CONFIGURATION}: {error}") from error
        if verdict.state is WaitState.FAILED:
            raise _failure(str(verdict.reason), verdict.message)
        if verdict.message:
            self.log.warning("%s", verdict)
        else:
            self.log.info("%s", verdict)
        done = verdict.state is WaitState.COMPLETE
        if done:
            self._note_lineage(self._wanted(), verdict.tokens)
        return PokeReturnValue(done, dict(verdict.tokens))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, str]:
        """Turn the trigger's event into the task's end.

        :param event: the payload
        :return: the committed token of each channel
        :raises AirflowFailException: if the wait failed for a reason that a retry cannot mend
        :raises AirflowException: if it failed for another one
        """
        if event["status"] == "success":
            tokens: dict[str, str] = event["tokens"]
            self.log.info("%d of %d channels committed", len(tokens), len(tokens))
            wanted = self._wanted()
            self._leave_link(context, wanted)
            self._tell(context, tokens)
            self._note_lineage(wanted, tokens)
            return tokens
        raise _failure(event["reason"], event["message"])

    def _tell(self, context: Context, tokens: Any) -> Any:
        """Put the tokens into the task's asset events and return them."""
        if isinstance(tokens, Mapping):
            channels = [LoadedChannel(name, token, committed=True) for name, token in tokens.items()]
            describe_outlets(self, context, self._hook(), channels)
        return tokens

    def _look(self, context: Context) -> CommitVerdict:
        memory = None
        if self.reschedule and not self.deferrable:
            memory = RescheduleMemory(context, _MEMORY_KEY, self.stall_timeout)
        if self._watch is None:
            wanted = self._wanted()
            self._leave_link(context, wanted)
            if not wanted.targets:
                self.log.info("targets names no channel: there is nothing to wait for")
                return CommitVerdict(WaitState.COMPLETE, {}, done=0, total=0)
            self._watch = CommitWatch(wanted, self._patience())
            if memory is not None:
                memory.restore(self._watch)
        look = look_at(self._connected(), self._watch.channels)
        if any(isinstance(error, PipeFailedOverError) for error in look.errors.values()):
            self._disconnect()
        verdict = self._watch.see(look, time.time())
        if verdict is None:
            raise RuntimeError(f"the look at {self._watch.channels} said nothing about them")
        if memory is not None:
            memory.keep(self._watch, done=verdict.state is not WaitState.WAITING)
        return verdict

    def _wanted(self) -> CommitTargets:
        return CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            rejected_baseline=self.rejected_baseline,
        )

    def _leave_link(self, context: Context, wanted: CommitTargets) -> None:
        channels = list(wanted.targets)
        address = page_of_channels(self._hook(), channels)
        if len(channels) == 1:
            (target,) = wanted.targets.values()
            address = channel_page(
                self._hook(),
                channels[0],
                target=None if target is None else str(target),
                offset_format=wanted.offset_format,
            )
        leave_channel_page(context["ti"], address)

    def _patience(self) -> Patience:
        return Patience(self.max_consecutive_errors, self.stall_timeout)

    def _connected(self) -> SnowpipeClient:
        from airflow_provider_snowpipe.streaming.retry import RetryPolicy

        if self._client is None:
            self._client = self._hook().get_client(retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS))
        return self._client

    def _hook(self) -> SnowpipeHook:
        return SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )

    def _note_lineage(self, wanted: CommitTargets, tokens: Mapping[str, str | None]) -> None:
        self.task_lineage = TaskLineage.of_commit(self._hook(), wanted.offset_format or "", tokens)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _start_trigger_args(self) -> StartTriggerArgs:
        """Tell the scheduler how to start the trigger, which renders the templates itself."""
        arguments = self._trigger_arguments()
        for name in self.template_fields:
            arguments[name] = rendered_in_triggerer(name, arguments[name])
        return StartTriggerArgs(
            trigger_cls=f"{SnowpipeCommitTrigger.__module__}.{SnowpipeCommitTrigger.__qualname__}",
            trigger_kwargs=arguments,
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def _trigger_arguments(self) -> dict[str, Any]:
        return {
            "targets": self.targets,
            "offset_format": self.offset_format,
            "snowflake_conn_id": self.snowflake_conn_id,
            "table": self.table,
            "pipe": self.pipe,
            "database": self.database,
            "schema": self.schema,
            "poll_interval": self.poke_interval,
            "max_consecutive_errors": self.max_consecutive_errors,
            "fail_on_rejected_rows": self.fail_on_rejected_rows,
            "rejected_baseline": self.rejected_baseline,
            "stall_timeout": self.stall_timeout,
            "end_from_trigger": self.end_from_trigger,
        }


def _failure(reason: str, message: str) -> AirflowException:
    """Build the error that ends the task; only a reason that may pass leaves the task its retries."""
    kind = AirflowException if FailureReason(reason).retryable_by_wait else AirflowFailException
    return kind(f"{reason}: {message}")
