"""Waiting in the triggerer: for commits, in one poll; and what other triggers share with it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.common.compat.triggers import BaseEventTrigger
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_snowpipe.bulk.files_watch import FilesVerdict, FilesWatch, HistoryPoll
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, names_of
from airflow_provider_snowpipe.streaming.checkpoint import OnImbalance
from airflow_provider_snowpipe.streaming.commits import (
    CommitVerdict,
    CommitWatch,
    FailureReason,
    RetryBudget,
    WaitState,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import DEFAULT_PIPE_SUFFIX
from airflow_provider_snowpipe.streaming.polling import StatusPoll, shared_poll
from airflow_provider_snowpipe.streaming.progress import CommitTargets

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:
    try:
        from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]  # Airflow 3.1
    except ImportError:
        from airflow.exceptions import TaskDeferralError as TaskDeferralTimeout  # type: ignore[no-redef]

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator

    from airflow_provider_snowpipe.streaming.limits import RetryPolicy


POLL_BUDGET_SECONDS = 20.0
"""Longest time for one request with its repetitions; after it the poll counts as an error."""
ENDED, LOST = "ended", "lost"
LOG_SECONDS = 60.0
"""A wait without progress is reported this often at most."""

Source = TypeVar("Source")


class StoredTrigger(BaseTrigger):
    """A trigger that is a dataclass, whose fields are the arguments with which Airflow makes it again."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again."""
        kind: Any = type(self)
        arguments = {one.name: getattr(self, one.name) for one in fields(kind)}
        return f"{kind.__module__}.{kind.__qualname__}", arguments


@dataclass(kw_only=True, eq=False, repr=False)
class WaitTrigger(StoredTrigger, BaseEventTrigger):
    """Wait in a poll that many triggers share, and send one event.

    Since Airflow 3.3 the triggerer shares the poll among all triggers of one ``shared_stream_key()``. Before
    that, and wherever ``run`` is called, they share it by themselves, within their event loop.

    :param snowflake_conn_id: the connection's id
    :param table: a table
    :param pipe: a pipe
    :param database: where they are, None for the connection's
    :param schema: the same
    :param poll_interval: seconds between two polls
    :param max_consecutive_errors: give up after this many polls in a row that failed for a passing reason
    :param end_from_trigger: True ends the task from here on success, without a worker
    """

    supports_triggerer_queue = True
    value_key: ClassVar[str]

    snowflake_conn_id: str
    poll_interval: float
    table: str | None = None
    pipe: str | None = None
    database: str | None = None
    schema: str | None = None
    max_consecutive_errors: int = 10
    end_from_trigger: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reported_done = -1
        self._reported_at = 0.0

    @abstractmethod
    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common."""

    @abstractmethod
    def _poll(self) -> StatusPoll | HistoryPoll:
        """The poll of this trigger's key."""

    @abstractmethod
    def _watch(self) -> CommitWatch | FilesWatch:
        """What is waited for."""

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Any]:
        """Poll for all triggers of one key; what each of them waits for, the poll knows by itself."""
        async with aclosing(cls(**kwargs)._poll().answers()) as answers:
            async for answer in answers:
                yield answer

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncGenerator[TriggerEvent]:
        """Wait in the shared poll; one event."""
        yield await self._wait(shared_stream)

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Wait where the triggerer shares no streams; one event."""
        async with aclosing(self._poll().follow()) as answers:
            event = await self._wait(answers)
        yield event

    async def _wait(self, answers: AsyncIterator[Any]) -> TriggerEvent:
        try:
            watch = self._watch()
        except ConfigurationError as error:
            return failure_event(FailureReason.CONFIGURATION, str(error))
        verdict: CommitVerdict | FilesVerdict | None = watch.at_once()
        if verdict is not None:
            return self._event(verdict, watch)
        question: Any = watch.question
        with self._poll().waiting(question, self.poll_interval):
            async for answer in answers:
                verdict = watch.see(answer, time.time())
                if verdict is None:
                    continue
                if verdict.state is not WaitState.WAITING:
                    return self._event(verdict, watch)
                self._report(verdict)
        raise RuntimeError("a shared poll ended, which it never does by itself")

    def _report(self, verdict: CommitVerdict | FilesVerdict) -> None:
        """Log what changed; a thousand waits that each log every five seconds that they wait are a load."""
        now = time.monotonic()
        if verdict.message:
            self.log.warning("%s", verdict)
        elif verdict.done != self._reported_done or now - self._reported_at >= LOG_SECONDS:
            self.log.info("%s", verdict)
            self._reported_done, self._reported_at = verdict.done, now

    def _event(self, verdict: CommitVerdict | FilesVerdict, watch: CommitWatch | FilesWatch) -> TriggerEvent:
        if verdict.state is not WaitState.COMPLETE:
            more = {"channels": watch.observed()} if isinstance(watch, CommitWatch) else {}
            return failure_event(verdict.reason or FailureReason.REFUSED, verdict.message, **more)
        if self.end_from_trigger:
            value: Any = verdict.value
            return TaskSuccessEvent(xcoms={"return_value": value})
        payload: dict[str, Any] = {"status": "success", self.value_key: verdict.value}
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def failure_event(reason: StrEnum, message: str, **more: Any) -> TriggerEvent:
    """The event of a wait that failed."""
    payload = {"status": "failure", "reason": reason.value, "message": message, **more}
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def end_event(status: str, message: str = "") -> TriggerEvent:
    """The event of a trigger whose task asks by itself how the work has ended."""
    return TriggerEvent({"status": status, "message": message})  # type: ignore[no-untyped-call]


def deferral_limit(task: BaseOperator, seconds: float | None = None) -> timedelta | None:
    """How long a task may be deferred: its ``execution_timeout`` holds there as well, for each wait.

    Airflow 3.3.2 applies that to what runs in a worker alone (``task_runner.py`` has it as still to do).
    """
    limits = [timedelta(seconds=seconds)] if seconds is not None else []
    if task.execution_timeout is not None:
        limits.append(task.execution_timeout)
    return min(limits, default=None)


def is_deferral_timeout(error: BaseException | None) -> bool:
    """True when a deferral's own time was over, and not when its trigger failed.

    Airflow 2 has one error for both, whose text is ``Trigger/execution timeout`` (observed with 2.11.2).
    """
    return isinstance(error, TaskDeferralTimeout) and "timeout" in str(error)


def poll_retry() -> RetryPolicy:
    """Pauses and budget of the requests of one poll."""
    from airflow_provider_snowpipe.streaming.limits import RetryPolicy

    return RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS)


async def connect(make: Callable[..., Source], conn_id: str, names: Mapping[str, str | None]) -> Source:
    """Make the client of a poll.

    :param make: the method of the hook that makes it
    """
    hook = SnowpipeHook(conn_id, **names)
    try:
        return await hook.in_thread(make, hook, retry=poll_retry())
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"connection {conn_id!r} does not exist: add it, or name another") from error


def named_pipe(trigger: Any) -> tuple[str | None, ...]:
    """The connection and the pipe of a trigger, as they were named."""
    pipe = trigger.table + DEFAULT_PIPE_SUFFIX if trigger.table is not None else trigger.pipe
    return (trigger.snowflake_conn_id, pipe, trigger.database, trigger.schema)


def status_poll(trigger: Any, key: Hashable) -> StatusPoll:
    """The poll of the channels of a trigger's pipe, shared by all triggers with this key."""
    make = partial(connect, SnowpipeHook.get_client, trigger.snowflake_conn_id, names_of(trigger))
    return shared_poll(key, make)


# -- The trigger of commits ------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class SnowpipeCommitTrigger(WaitTrigger):
    """Wait until every channel has committed its target token, then send one event.

    The event is ``{"status": "success", "tokens": {channel: token}}`` or ``{"status": "failure",
    "reason": …, "message": …, "channels": …}`` with a reason of
    :class:`~airflow_provider_snowpipe.streaming.commits.FailureReason` and what was seen. There is no
    time limit here: the deferred task's own ends the wait.

    All triggers that name the same pipe of a connection share one poll, at the pace of the fastest.

    :param targets: by channel, as the XCom ``targets`` of a load, or as tokens, or the JSON text
    :param offset_format: the format of bare positions; checkpoints need none
    :param poll_interval: seconds between two polls
    :param fail_on_rejected_rows: True fails at new rejected rows, None where the target counts them
    :param on_imbalance: ``fail`` fails where a channel counts other rows than its checkpoint
    :param stall_timeout: give up when a channel short of its target commits nothing for this many seconds
    """

    value_key = "tokens"

    targets: Mapping[str, Any] | Sequence[Any] | str
    offset_format: str | None = None
    poll_interval: float = 5.0
    fail_on_rejected_rows: bool | None = None
    on_imbalance: OnImbalance = "warn"
    stall_timeout: float | None = None

    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common: connection and pipe, as they were named."""
        return ("snowpipe channel status", *named_pipe(self))

    def _poll(self) -> StatusPoll:
        return status_poll(self, self.shared_stream_key())

    def _watch(self) -> CommitWatch:
        expected = CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            on_imbalance=self.on_imbalance,
        )
        budget = RetryBudget(self.max_consecutive_errors, self.stall_timeout, self.poll_interval)
        return CommitWatch(expected, budget)
