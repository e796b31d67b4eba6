"""The trigger that waits in the triggerer for the end of a SQL statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import ApiError, SnowpipeError, SqlError
from airflow_provider_snowpipe.triggers.commit import ENDED, LOST, StoredTrigger, end_event, poll_retry

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.statement_client import StatementClient


@dataclass(kw_only=True, eq=False, repr=False)
class SnowpipeStatementTrigger(StoredTrigger):
    """Wait until a statement that was submitted to the SQL API has ended, well or not.

    The event has only ``ended``, or ``lost`` with a message; the task itself reads the result.

    Marking the deferred task, or clearing it, cancels the statement (Airflow 3.3 and later, which tells a
    trigger of that). Before that the statement goes on; the next try of the task finds it.

    :param handle: the statement's handle
    :param statement: the words that it begins with, for the log
    :param snowflake_conn_id: the connection's id
    :param poll_interval: seconds between two polls
    :param max_consecutive_errors: give up after this many polls in a row that failed
    :param deadline: cancel the statement when it still runs then, seconds since 1970; None for never
    """

    supports_triggerer_queue = True

    handle: str
    statement: str
    snowflake_conn_id: str
    poll_interval: float = 5.0
    max_consecutive_errors: int = 10
    deadline: float | None = None

    async def run(self) -> AsyncGenerator[TriggerEvent]:
        """Poll until the statement has ended; one event."""
        try:
            with closing(await self._client()) as client:
                event = await self._ended(client)
        except (SnowpipeError, AirflowNotFoundException) as error:
            event = end_event(LOST, str(error))
        yield event

    async def _ended(self, client: StatementClient) -> TriggerEvent:
        errors = 0
        while True:
            try:
                state = await asyncio.to_thread(client.state, self.handle, self.statement)
            except (SqlError, ApiError):  # what the service reports of the statement, the task reads itself
                return end_event(ENDED)
            except SnowpipeError as error:
                errors += 1
                if not error.retryable or errors >= self.max_consecutive_errors:
                    return end_event(LOST, str(error))
                self.log.warning("%s: %s", self.statement, error)
            else:
                errors = 0
                if not state.is_running:
                    return end_event(ENDED)
            if self.deadline is not None and time.time() >= self.deadline:
                return await self._out_of_time(client)
            await asyncio.sleep(self.poll_interval)

    async def _out_of_time(self, client: StatementClient) -> TriggerEvent:
        try:
            if not await asyncio.to_thread(client.cancel, self.handle, self.statement):
                return end_event(ENDED)
        except SnowpipeError as error:
            return end_event(
                LOST, f"the task's execution_timeout is over, and no statement cancelled: {error}"
            )
        return end_event(LOST, "the task's execution_timeout is over, and its statement cancelled")

    async def on_kill(self) -> None:
        """Cancel the statement: somebody has marked or cleared the deferred task."""
        try:
            with closing(await self._client()) as client:
                await asyncio.to_thread(client.cancel, self.handle, self.statement)
        except (SnowpipeError, AirflowNotFoundException) as error:
            self.log.warning("%s is not cancelled: %s", self.statement, error)

    async def _client(self) -> StatementClient:
        hook = SnowpipeBulkHook(self.snowflake_conn_id)
        return await hook.in_thread(hook.get_statement_client, retry=poll_retry())
