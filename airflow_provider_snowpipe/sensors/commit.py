"""The sensor that waits for commits, and what it shares with that of files: in a worker, or the triggerer."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    XComArg,
    conf,
)
from airflow.triggers.base import BaseTrigger, StartTriggerArgs

from airflow_provider_snowpipe.assets.events import LoadedChannel, describe_outlets
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesVerdict, FilesWatch
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, refuse_two_pipes
from airflow_provider_snowpipe.lineage import ReportsLineage, TaskLineage
from airflow_provider_snowpipe.links.snowpipe import (
    CHANNEL_PAGE_LINKS,
    channel_page,
    leave_channel_page,
    leave_observed,
    page_of_channels,
)
from airflow_provider_snowpipe.streaming.arguments import check_one_of, check_switch
from airflow_provider_snowpipe.streaming.checkpoint import OnImbalance
from airflow_provider_snowpipe.streaming.commits import (
    CommitVerdict,
    CommitWatch,
    FailureReason,
    PolledStatuses,
    RetryBudget,
    WaitState,
    poll_statuses,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, PipeFailedOverError, SnowpipeError
from airflow_provider_snowpipe.streaming.offsets import offset_class
from airflow_provider_snowpipe.streaming.progress import CommitTargets, all_targets
from airflow_provider_snowpipe.triggers.commit import (
    SnowpipeCommitTrigger,
    WaitTrigger,
    deferral_limit,
    is_deferral_timeout,
    poll_retry,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


_TEMPLATE_MARKS = ("{{", "{%")
_TIMEOUT = "timeout"
_PULL, _MAP_INDEX = "xcom_pull(", "map_indexes"


class WaitSensor(BaseSensorOperator):
    """Poll until a wait is complete; fail when it cannot end well.

    :param table: a table, see the sensors (templated)
    :param pipe: a pipe, see the sensors (templated)
    :param database: where they are, None for the connection's (templated)
    :param schema: the same (templated)
    :param snowflake_conn_id: the connection's id (templated)
    :param deferrable: True waits in the triggerer, after one poll in the worker
    :param start_from_trigger: with ``deferrable``, no poll in a worker before; has no effect on mapped tasks
        and, before Airflow 3.3, where an argument is a template
    :param end_from_trigger: with ``deferrable``, success ends the task without a worker; what happens in a
        worker at a task's end, such as asset events and lineage, then does not happen, and Airflow 3.3.2
        hands the task's value on as JSON text
    :param max_consecutive_errors: fail after this many polls in a row that failed for a passing reason
    :raises ConfigurationError: if an argument is wrong
    """

    trigger_class: ClassVar[type[WaitTrigger]]
    reasons: ClassVar[type[FailureReason] | type[FilesFailure]]
    memory_key: ClassVar[str]
    margin_seconds: ClassVar[float] = 0.0
    """Airflow's own time limit of the deferred task lies so much after the sensor's."""
    ui_color = "#d3edf9"

    def __init__(
        self,
        *,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str = SnowpipeHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        max_consecutive_errors: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.deferrable = deferrable
        self.start_from_trigger = start_from_trigger
        self.end_from_trigger = end_from_trigger
        self.max_consecutive_errors = max_consecutive_errors
        self.stall_timeout: float | None = None
        self._watch: Any = None
        self._client: Any = None
        check_switch("deferrable", deferrable)
        for name, given in (
            ("start_from_trigger", start_from_trigger),
            ("end_from_trigger", end_from_trigger),
        ):
            check_switch(name, given)
            if given and not deferrable:
                raise ConfigurationError(f"{name} is True: it needs deferrable=True as well")
        if deferrable and not self.poke_interval > 0:
            raise ConfigurationError(
                f"poke_interval is {self.poke_interval:g} with deferrable=True, where all sensors of a pipe "
                "share the fastest one's polls: give seconds above 0"
            )

    @abstractmethod
    def _begin(self, context: Context, kept: Mapping[str, Any] | None) -> CommitWatch | FilesWatch:
        """What is waited for; ``kept`` is what an earlier poll of a rescheduled sensor knew."""

    @abstractmethod
    def _ask(self, watch: Any) -> Any:
        """Ask the service once."""

    @abstractmethod
    def _ended(self, context: Context, value: Any, *, resumed: bool) -> Any:
        """Report the complete wait; the task's value."""

    def execute(self, context: Context) -> Any:
        """Poll once, then wait in the worker or, when deferrable, in the triggerer."""
        try:
            if not self.deferrable:
                return self._ended(context, super().execute(context), resumed=False)
            seen = self.poke(context)
        except AirflowSensorTimeout:
            self._leave_observed(context, _TIMEOUT)
            raise
        except AirflowException as error:
            # Before a deferral ``soft_fail`` and ``never_fail`` mean what they do in the mode ``poke``.
            is_soft = self.never_fail or (self.soft_fail and isinstance(error, AirflowFailException))
            if self.deferrable and is_soft:
                raise AirflowSkipException(str(error)) from error
            raise
        finally:
            self._disconnect()
        if seen.is_done:
            return self._ended(context, seen.xcom_value, resumed=False)
        self.defer(
            trigger=self.trigger_class(**{**self._trigger_arguments(), **self._found()}),
            method_name="execute_complete",
            timeout=deferral_limit(self, self.timeout + self.margin_seconds),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        memory = None
        try:
            if self.reschedule and not self.deferrable:
                memory = RescheduleMemory(context, self.memory_key, self.stall_timeout)
            if self._watch is None:
                kept = None if memory is None else memory.kept()
                self._watch = self._begin(context, kept)
                if kept is not None:
                    self._watch.recall(kept)
            verdict: CommitVerdict | FilesVerdict | None = self._watch.at_once()
            if verdict is None:
                verdict = self._watch.see(self._ask(self._watch), time.time())
                if verdict is None:
                    raise RuntimeError(f"the poll of {self._watch.question} reported nothing about it")
                if memory is not None:
                    done = verdict.state is not WaitState.WAITING
                    memory.keep({**self._watch.memory(), **self._worked_out()}, done=done)
        except ConfigurationError as error:
            raise self._failure(FailureReason.CONFIGURATION.value, str(error)) from error
        except SnowpipeError as error:
            reason = FailureReason.TOO_MANY_ERRORS if error.retryable else FailureReason.REFUSED
            raise self._failure(reason.value, str(error)) from error
        if verdict.state is WaitState.FAILED:
            self._leave_observed(context, str(verdict.reason))
            raise self._failure(str(verdict.reason), verdict.message)
        self.log.log(logging.WARNING if verdict.message else logging.INFO, "%s", verdict)
        return PokeReturnValue(verdict.state is WaitState.COMPLETE, verdict.value)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Turn the trigger's event into the task's end."""
        if event["status"] == "success":
            return self._ended(context, event[self.trigger_class.value_key], resumed=True)
        self._leave_observed(context, event["reason"], event.get("channels"))
        raise self._failure(event["reason"], event["message"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the deferred task; where its time is over, leave what can be seen by then."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as error:
            if isinstance(error, AirflowSensorTimeout) or is_deferral_timeout(error):
                self._observe(context)
            raise

    def _observe(self, context: Context) -> None:
        """Look once more at what was waited for, and leave it; the triggerer keeps nothing of a wait."""
        try:
            self._watch = self._begin(context, None)
            self._watch.see(self._ask(self._watch), time.time())
            self._leave_observed(context, _TIMEOUT)
        except SnowpipeError as error:
            self.log.warning("what was committed by then is not known: %s", error)
        finally:
            self._disconnect()

    def _leave_observed(
        self, context: Context, reason: str, channels: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Leave what was seen of channels until the wait failed, None for what this process saw."""
        if channels is None and isinstance(self._watch, CommitWatch):
            channels = self._watch.observed()
        if channels is not None:
            leave_observed(context["ti"], reason, channels)

    def _found(self) -> dict[str, Any]:
        """More arguments of the trigger of a deferred wait, which the first poll has found out."""
        return {}

    def _worked_out(self) -> dict[str, Any]:
        """What every poll of a rescheduled sensor would find out again, and maybe otherwise; JSON."""
        return {}

    def _failure(self, reason: str, message: str) -> AirflowException:
        """Build the error that ends the task; only a reason that may pass leaves the task its retries."""
        if reason == FilesFailure.TIMEOUT.value:
            return AirflowSensorTimeout(f"{reason}: {message}")
        kind = AirflowException if self.reasons(reason).retryable_by_wait else AirflowFailException
        return kind(f"{reason}: {message}")

    def _hook(self) -> SnowpipeHook:
        return SnowpipeHook.of(self)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _allow_start(self) -> None:
        """Give the scheduler what starts the trigger, which renders the templates itself."""
        if not self.start_from_trigger:
            return
        arguments = self._trigger_arguments()
        for name in self.template_fields:
            if name in arguments:
                arguments[name] = rendered_in_triggerer(name, arguments[name])
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{self.trigger_class.__module__}.{self.trigger_class.__qualname__}",
            trigger_kwargs=arguments,
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout + self.margin_seconds),
        )
        # Before Airflow 3.3 the triggerer renders no template.
        self.start_from_trigger = hasattr(BaseTrigger, "render_template_fields") or not any(
            mark in str(argument) for argument in arguments.values() for mark in _TEMPLATE_MARKS
        )

    def _trigger_arguments(self) -> dict[str, Any]:
        """The trigger's arguments as they were given, also as templates; they have the sensor's names."""
        given = {
            one.name: vars(self)[one.name] for one in fields(self.trigger_class) if one.name in vars(self)
        }
        return {**given, "poll_interval": self.poke_interval}


class RescheduleMemory:
    """A watch's memory in the task's state, which Airflow has since 3.3 and ``stall_timeout`` needs."""

    def __init__(self, context: Context, key: str, stall_timeout: float | None = None) -> None:
        values: Any = context
        self._key = key
        self._store = values.get("task_state_store")
        self._try_number = getattr(values.get("ti"), "try_number", 1)
        if self._store is None and stall_timeout is not None:
            raise ConfigurationError(
                f"stall_timeout is {stall_timeout:g} in the mode 'reschedule', where this Airflow keeps no "
                "state between polls (3.3 does): use deferrable=True or the mode 'poke'"
            )

    def kept(self) -> dict[str, Any] | None:
        """What this try's earlier polls knew, None where there was none or nothing is kept."""
        kept: dict[str, Any] | None = None if self._store is None else self._store.get(self._key)
        return kept if kept is not None and kept["try_number"] == self._try_number else None

    def keep(self, known: Mapping[str, Any], *, done: bool) -> None:
        """Keep what this poll found out for the next one."""
        if self._store is None:
            return
        if done:
            self._store.delete(self._key)
        else:
            self._store.set(self._key, {**known, "try_number": self._try_number})


def rendered_in_triggerer(name: str, value: Any) -> Any:
    """Write an argument such that the triggerer can render it.

    A task's XCom becomes a template whose text is JSON. It has to name the map index: the triggerer of
    Airflow 3.3.2 leaves ``xcom_pull`` without one unanswered, and the trigger would wait for ever.
    """
    if callable(value):
        raise ConfigurationError(
            f"{name} is a function, which does not reach the triggerer: give a mapping or a template"
        )
    if isinstance(value, XComArg):
        text = str(value)
        if not (text.startswith("{{ task_instance.xcom_pull(") and text.endswith(") }}")):
            raise ConfigurationError(
                f"{name} is {text}: a sensor with start_from_trigger=True takes a mapping, a template, or a "
                'plain XCom such as load.output["targets"], nothing made of one'
            )
        if hasattr(getattr(value, "operator", None), "expand_input"):
            raise ConfigurationError(f"{name} is the XCom of a mapped task: leave start_from_trigger off")
        return f"{text.removesuffix(') }}')}, {_MAP_INDEX}=-1) | tojson }}}}"
    if isinstance(value, str) and _PULL in value and _MAP_INDEX not in value:
        raise ConfigurationError(
            f"{name} is the template {value!r}: with start_from_trigger=True write xcom_pull with "
            f"{_MAP_INDEX}=-1, without which the triggerer does not answer it"
        )
    return value


# -- The sensor of commits -------------------------------------------------------------------------------


class SnowpipeCommitSensor(ReportsLineage, WaitSensor):
    """Succeed only when every channel has committed its target token, so that its rows can be read.

    Tokens are compared by their format's order; NULL never counts. The value is each channel's token.

    Deferred sensors that name the same pipe share one poll of its channels, 100 channels a request.

    :param targets: what each channel has to commit: the XCom ``targets`` of a task that loads,
        ``load.output["targets"]``; that of a mapped task, which is a list of them; or a mapping of target
        tokens, its JSON text, or a function of ``context`` and ``jinja_env`` that returns one of them.
        Without a channel the sensor succeeds at once (templated)
    :param offset_format: the format of bare positions, as a program outside of this package writes them:
        ``file:line``, ``integer``, ``topic:partition:offset``, ``batch:row``, ``lexicographic``, or the
        dotted path of a subclass of ``Offset``. Checkpoints need none
    :param table: the channels belong to this table's default pipe (templated)
    :param pipe: the channels belong to this pipe; not together with ``table`` (templated)
    :param stall_timeout: fail when a channel short of its target commits nothing for so many seconds; None
    :param fail_on_rejected_rows: True fails as soon as a row was rejected that was not reported before; None,
        the default, does for targets of a load with ``on_error="abort"``; False accepts rejected rows
    :param on_imbalance: ``fail`` fails where a channel counts other rows than its checkpoint, ``warn`` logs
        it; None for ``on_imbalance`` of the section ``snowpipe`` of Airflow's configuration
    :param poke_interval: seconds between two polls, deferred or not; 5 unless given
    :param kwargs: those of :class:`~airflow_provider_snowpipe.sensors.commit.WaitSensor` and of all sensors
    :raises ConfigurationError: if an argument is wrong
    """

    template_fields: Sequence[str] = ("targets", "table", "pipe", "database", "schema", "snowflake_conn_id")
    operator_extra_links = CHANNEL_PAGE_LINKS
    trigger_class = SnowpipeCommitTrigger
    reasons = FailureReason
    memory_key = "snowpipe_commit_watch"

    def __init__(
        self,
        *,
        targets: Any,
        offset_format: str | None = None,
        stall_timeout: float | timedelta | None = None,
        fail_on_rejected_rows: bool | None = None,
        on_imbalance: OnImbalance | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("poke_interval", 5)
        super().__init__(**kwargs)
        self.targets = targets
        self._is_function = callable(targets)
        self.offset_format = offset_format
        self.stall_timeout = (
            stall_timeout.total_seconds() if isinstance(stall_timeout, timedelta) else stall_timeout
        )
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.on_imbalance = on_imbalance or conf.get("snowpipe", "on_imbalance", fallback="warn")
        check_one_of("on_imbalance", self.on_imbalance, ("warn", "fail"))
        refuse_two_pipes(self.table, self.pipe)
        if fail_on_rejected_rows is not None:
            check_switch("fail_on_rejected_rows", fail_on_rejected_rows)
        self._budget()
        if offset_format is not None:
            offset_class(offset_format)
        self._allow_start()

    def _begin(self, context: Context, kept: Mapping[str, Any] | None) -> CommitWatch:
        if kept is not None and "targets" in kept:
            self.targets = kept["targets"]
        expected = self._expected()
        self._leave_link(context, expected)
        if not expected.targets:
            self.log.info("targets names no channel: there is nothing to wait for")
        return CommitWatch(expected, self._budget())

    def _ask(self, watch: CommitWatch) -> PolledStatuses:
        if self._client is None:
            self._client = self._hook().get_client(retry=poll_retry())
        answer = poll_statuses(self._client, watch.question)
        if any(isinstance(error, PipeFailedOverError) for error in answer.errors.values()):
            self._disconnect()
        return answer

    def _ended(self, context: Context, value: Any, *, resumed: bool) -> Any:
        expected = self._expected()
        if resumed:
            self.log.info("%d of %d channels committed", len(value), len(value))
            self._leave_link(context, expected)
        if isinstance(value, Mapping):
            channels = [LoadedChannel(name, token, committed=True) for name, token in sorted(value.items())]
            describe_outlets(self, context, self._hook(), channels)
            spelled = expected.offset_format or ""
            self.task_lineage = TaskLineage(self._hook(), spelled, channels, loads=False)
        return value

    def _found(self) -> dict[str, Any]:
        return {"targets": all_targets(self.targets)}  # an XCom of mapped tasks does not reach the triggerer

    def _worked_out(self) -> dict[str, Any]:
        return {"targets": all_targets(self.targets)} if self._is_function else {}

    def _expected(self) -> CommitTargets:
        return CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            on_imbalance=self.on_imbalance,
        )

    def _failure(self, reason: str, message: str) -> AirflowException:
        """Build the error; rejected rows that it reports are recorded as reported in the channels' tokens."""
        if reason == FailureReason.ROWS_REJECTED.value:
            try:
                hook = self._hook()
                hook.report_rejected(hook.channel_statuses(list(self._expected().targets)))
            except (SnowpipeError, AirflowException) as error:
                self.log.warning("the next load reports the rejected rows once more: %s", error)
        return super()._failure(reason, message)

    def _leave_link(self, context: Context, expected: CommitTargets) -> None:
        channels = list(expected.targets)
        address = page_of_channels(self._hook(), channels)
        if len(channels) == 1:
            (target,) = expected.targets.values()
            address = channel_page(
                self._hook(), channels[0], target=target.token, offset_format=expected.offset_format
            )
        leave_channel_page(context["ti"], address)

    def _budget(self) -> RetryBudget:
        return RetryBudget(self.max_consecutive_errors, self.stall_timeout)
