"""The trigger behind the deferrable commit sensor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.commit_wait import (
    CommitTargets,
    CommitVerdict,
    FailureReason,
    WaitState,
    judge,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.offsets import offset_class

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

POLL_BUDGET_SECONDS = 20.0
"""Longest time for one poll with its repetitions; after it the poll counts as an error."""


class SnowpipeCommitTrigger(BaseTrigger):
    """Wait until every channel has committed its target token, then send one event.

    The event is ``{"status": "success", "tokens": {channel: token}}`` or ``{"status": "failure",
    "reason": …, "message": …}`` with a reason of :class:`FailureReason`. There is no time limit here: the
    deferred task's own ends the wait.

    :param targets: the target offset token of each channel
    :param offset_format: the tokens' format
    :param snowflake_conn_id: the connection's id
    :param table: the channels belong to this table's default pipe
    :param pipe: the channels belong to this pipe
    :param database: the pipe's database, None for the connection's
    :param schema: the pipe's schema, None for the connection's
    :param poll_interval: seconds between two polls
    :param max_consecutive_errors: give up after this many polls in a row that failed for a passing reason
    :param fail_on_rejected_rows: True fails when the service has skipped a row
    :param rejected_baseline: skipped rows that do not count, by channel
    """

    def __init__(
        self,
        *,
        targets: Mapping[str, str],
        offset_format: str,
        snowflake_conn_id: str,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        poll_interval: float = 5.0,
        max_consecutive_errors: int = 10,
        fail_on_rejected_rows: bool = False,
        rejected_baseline: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.targets = dict(targets)
        self.offset_format = offset_format
        self.snowflake_conn_id = snowflake_conn_id
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.poll_interval = poll_interval
        self.max_consecutive_errors = max_consecutive_errors
        self.fail_on_rejected_rows = fail_on_rejected_rows
        self.rejected_baseline = None if rejected_baseline is None else dict(rejected_baseline)

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
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the wait is decided; one event."""
        yield TriggerEvent(await self._decide())  # type: ignore[no-untyped-call]

    async def _decide(self) -> dict[str, Any]:
        try:
            wanted = CommitTargets.parse(
                self.targets,
                offset_class(self.offset_format),
                fail_on_rejected_rows=self.fail_on_rejected_rows,
                rejected_baseline=self.rejected_baseline,
            )
            return await self._poll(wanted)
        except ConfigurationError as error:
            return _failure(FailureReason.CONFIGURATION, str(error))
        except SnowpipeError as error:
            return _failure(FailureReason.REFUSED, str(error))

    async def _poll(self, wanted: CommitTargets) -> dict[str, Any]:
        client = await self._client()
        errors = 0
        try:
            while True:
                try:
                    statuses = await asyncio.to_thread(client.channel_statuses, list(wanted.targets))
                except (RetriesExhaustedError, PipeFailedOverError) as error:
                    errors += 1
                    if errors >= self.max_consecutive_errors:
                        text = f"{errors} polls in a row failed, the last: {error}"
                        return _failure(FailureReason.TOO_MANY_ERRORS, text)
                    self.log.warning("poll failed (%d in a row): %s", errors, error)
                    if isinstance(error, PipeFailedOverError):
                        client.close()
                        client = await self._client()
                else:
                    errors = 0
                    verdict = judge(statuses, wanted)
                    self.log.info("%s", verdict)
                    if verdict.state is not WaitState.WAITING:
                        return event_of(verdict)
                await asyncio.sleep(self.poll_interval)
        finally:
            client.close()

    async def _client(self) -> SnowpipeClient:
        from airflow_provider_snowpipe.streaming.retry import RetryPolicy

        hook = SnowpipeHook(
            self.snowflake_conn_id,
            table=self.table,
            pipe=self.pipe,
            database=self.database,
            schema=self.schema,
        )
        return await hook.async_get_client(retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS))


def event_of(verdict: CommitVerdict) -> dict[str, Any]:
    """Put a decided wait in an event's payload.

    :param verdict: complete or failed
    """
    if verdict.state is WaitState.COMPLETE:
        return {"status": "success", "tokens": dict(verdict.tokens)}
    return _failure(verdict.reason or FailureReason.REFUSED, verdict.message)


def _failure(reason: FailureReason, message: str) -> dict[str, Any]:
    return {"status": "failure", "reason": reason.value, "message": message}
