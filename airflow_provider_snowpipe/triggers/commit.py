"""The trigger behind the deferrable commit sensor."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.commit_wait import (
    CommitTargets,
    CommitVerdict,
    FailureReason,
    WaitState,
)
from airflow_provider_snowpipe.streaming.commit_watch import CommitWatch, Patience
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import DEFAULT_PIPE_SUFFIX
from airflow_provider_snowpipe.streaming.status_look import StatusLook
from airflow_provider_snowpipe.streaming.status_poll import StatusPoll, shared_poll
from airflow_provider_snowpipe.triggers.shared_wait import SharedWaitTrigger

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

POLL_BUDGET_SECONDS = 20.0
"""Longest time for one status request with its repetitions; after it the look counts as an error."""
LOG_SECONDS = 60.0
"""A wait whose number of finished channels stays the same is reported this often at most."""


class SnowpipeCommitTrigger(SharedWaitTrigger[StatusLook]):
    """Wait until every channel has committed its target token, then send one event.

    The event is ``{"status": "success", "tokens": {channel: token}}`` or ``{"status": "failure",
    "reason": …, "message": …}`` with a reason of :class:`FailureReason`. There is no time limit here: the
    deferred task's own ends the wait.

    All triggers that name the same pipe of the same connection share one poll: since Airflow 3.3 through the
    triggerer's shared streams, before that, and wherever ``run`` is called, through a poll of their event
    loop. The most impatient of them sets its pace.

    :param targets: what each channel has to commit, as the XCom ``targets`` of a load or as plain tokens, or
        its JSON text
    :param offset_format: the format of plain tokens, None where they show it
    :param snowflake_conn_id: the connection's id
    :param table: the channels belong to this table's default pipe
    :param pipe: the channels belong to this pipe
    :param database: the pipe's database, None for the connection's
    :param schema: the pipe's schema, None for the connection's
    :param poll_interval: seconds between two looks
    :param max_consecutive_errors: give up after this many looks in a row that failed for a passing reason
    :param fail_on_rejected_rows: True fails when the service has skipped a row, None where the channel's
        target has a baseline
    :param rejected_baseline: skipped rows that do not count, by channel, or its JSON text
    :param stall_timeout: give up when a channel short of its target commits nothing for this many seconds
    :param end_from_trigger: True ends the task from here on success, without a worker
    """

    supports_triggerer_queue = True

    def __init__(
        self,
        *,
        targets: Mapping[str, Any] | str,
        snowflake_conn_id: str,
        offset_format: str | None = None,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        poll_interval: float = 5.0,
        max_consecutive_errors: int = 10,
        fail_on_rejected_rows: bool | None = None,
        rejected_baseline: Mapping[str, int] | str | None = None,
        stall_timeout: float | None = None,
        end_from_trigger: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.targets = targets
        self.offset_format = offset_format
        self.snowflake_conn_id = snowflake_conn_id
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.poll_interval = poll_interval
        self.max_consecutive_errors = max_consecutive_errors
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = rejected_baseline
        self.stall_timeout = stall_timeout
        self.end_from_trigger = end_from_trigger
        self._reported_done = -1
        self._reported_at = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "targets": self.targets,
                "offset_format": self.offset_format,
                "snowflake_conn_id": self.snowflake_conn_id,
                "table": self.table,
                "pipe": self.pipe,
                "database": self.database,
                "schema": self.schema,
                "poll_interval": self.poll_interval,
                "max_consecutive_errors": self.max_consecutive_errors,
                "fail_on_rejected_rows": self.fail_on_rejected_rows,
                "rejected_baseline": self.rejected_baseline,
                "stall_timeout": self.stall_timeout,
                "end_from_trigger": self.end_from_trigger,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common: connection and pipe, as they were named."""
        pipe = self.table + DEFAULT_PIPE_SUFFIX if self.table is not None else self.pipe
        return ("snowpipe channel status", self.snowflake_conn_id, pipe, self.database, self.schema)

    async def _wait(self, looks: AsyncIterator[StatusLook]) -> TriggerEvent:
        try:
            watch = self._watch()
        except ConfigurationError as error:
            return TriggerEvent(_failure(FailureReason.CONFIGURATION, str(error)))  # type: ignore[no-untyped-call]
        with self._poll().waiting(watch.channels, self.poll_interval):
            async for look in looks:
                verdict = watch.see(look, time.time())
                if verdict is None:
                    continue
                self._report(verdict)
                if verdict.state is not WaitState.WAITING:
                    return self._event(verdict)
        raise RuntimeError("the poll of channel statuses ended, which it never does by itself")

    def _watch(self) -> CommitWatch:
        wanted = CommitTargets.parse(
            self.targets,
            self.offset_format,
            fail_on_rejected_rows=self.fail_on_rejected_rows,
            rejected_baseline=self.rejected_baseline,
        )
        return CommitWatch(
            wanted, Patience(self.max_consecutive_errors, self.stall_timeout, self.poll_interval)
        )

    def _poll(self) -> StatusPoll:
        names = {"table": self.table, "pipe": self.pipe, "database": self.database, "schema": self.schema}
        return shared_poll(self.shared_stream_key(), partial(connect, self.snowflake_conn_id, names))

    def _report(self, verdict: CommitVerdict) -> None:
        """Log what changed; a thousand waits that each say every five seconds that they wait are a load."""
        now = time.monotonic()
        if verdict.message and verdict.state is WaitState.WAITING:
            self.log.warning("%s", verdict)
        elif verdict.done != self._reported_done or now - self._reported_at >= LOG_SECONDS:
            self.log.info("%s", verdict)
            self._reported_done, self._reported_at = verdict.done, now

    def _event(self, verdict: CommitVerdict) -> TriggerEvent:
        if self.end_from_trigger and verdict.state is WaitState.COMPLETE:
            return TaskSuccessEvent(xcoms={"return_value": dict(verdict.tokens)})
        return TriggerEvent(event_of(verdict))  # type: ignore[no-untyped-call]


async def connect(conn_id: str, names: Mapping[str, str | None]) -> SnowpipeClient:
    """Make the client of a poll.

    :param conn_id: the connection's id
    :param names: which pipe, as :class:`SnowpipeHook` takes it
    :raises ConfigurationError: if there is no such connection, or it lacks something
    """
    from airflow_provider_snowpipe.streaming.retry import RetryPolicy

    hook = SnowpipeHook(conn_id, **names)
    try:
        return await hook.async_get_client(retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS))
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"connection {conn_id!r} does not exist: add it, or name another") from error


def event_of(verdict: CommitVerdict) -> dict[str, Any]:
    """Put a decided wait in an event's payload.

    :param verdict: complete or failed
    """
    if verdict.state is WaitState.COMPLETE:
        return {"status": "success", "tokens": dict(verdict.tokens)}
    return _failure(verdict.reason or FailureReason.REFUSED, verdict.message)


def _failure(reason: FailureReason, message: str) -> dict[str, Any]:
    return {"status": "failure", "reason": reason.value, "message": message}
