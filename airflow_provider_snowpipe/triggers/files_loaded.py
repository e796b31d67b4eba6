"""The trigger behind the deferrable sensor of loaded files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_snowpipe.bulk.file_choice import number_of_files
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesVerdict, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.history_poll import HistoryPoll, shared_poll
from airflow_provider_snowpipe.bulk.load_history import HistoryLook, moment
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles, file_names
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.streaming.commit_watch import Patience
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.shared_wait import SharedWaitTrigger

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.load_history import LoadHistory

POLL_BUDGET_SECONDS = 20.0
"""Longest time for one request with its repetitions; after it the look counts as an error."""
LOG_SECONDS = 60.0
"""A wait whose number of loaded files stays the same is reported this often at most."""


class SnowpipeFilesLoadedTrigger(SharedWaitTrigger[HistoryLook]):
    """Wait until the loads of files have ended, then send one event.

    The event is ``{"status": "success", "files": {path: result}}`` or ``{"status": "failure", "reason": …,
    "message": …}`` with a reason of :class:`FilesFailure`.

    All triggers that name the same table and pipe of the same connection share one poll: since Airflow 3.3
    through the triggerer's shared streams, before that, and wherever ``run`` is called, through a poll of
    their event loop. The most impatient of them sets its pace.

    :param files: paths below the stage, or the JSON text of a list of them
    :param prefix: instead of files, the start of the paths
    :param count: with it, how many different files
    :param table: the table that they are loaded into
    :param pipe: the file pipe that loads them, None for any load
    :param database: where table and pipe are, None for the connection's
    :param schema: the same
    :param snowflake_conn_id: the connection's id
    :param since: loads before this moment, in ISO 8601, do not count
    :param on_partial: ``fail`` or ``report``
    :param on_failed: ``fail`` or ``report``
    :param poll_interval: seconds between two looks
    :param max_consecutive_errors: give up after this many looks in a row that failed for a passing reason
    :param deadline: when to give up, seconds since 1970; None for ``timeout`` seconds from here
    :param timeout: how long the whole wait was to take, in seconds; None for ever
    :param end_from_trigger: True ends the task from here on success, without a worker
    """

    supports_triggerer_queue = True

    def __init__(
        self,
        *,
        files: Sequence[str] | str | None = None,
        prefix: str | None = None,
        count: int | str | None = None,
        table: str | None = None,
        pipe: str | None = None,
        database: str | None = None,
        schema: str | None = None,
        snowflake_conn_id: str,
        since: str | None = None,
        on_partial: str = "fail",
        on_failed: str = "fail",
        poll_interval: float = 15.0,
        max_consecutive_errors: int = 10,
        deadline: float | None = None,
        timeout: float | None = None,
        end_from_trigger: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.files = list(files) if isinstance(files, tuple) else files
        self.prefix = prefix
        self.count = count
        self.table = table
        self.pipe = pipe
        self.database = database
        self.schema = schema
        self.snowflake_conn_id = snowflake_conn_id
        self.since = since
        self.on_partial = on_partial
        self.on_failed = on_failed
        self.poll_interval = poll_interval
        self.max_consecutive_errors = max_consecutive_errors
        self.deadline = deadline
        self.timeout = timeout
        self.end_from_trigger = end_from_trigger
        self._reported_done = -1
        self._reported_at = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and the arguments that make this trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "files": self.files,
                "prefix": self.prefix,
                "count": self.count,
                "table": self.table,
                "pipe": self.pipe,
                "database": self.database,
                "schema": self.schema,
                "snowflake_conn_id": self.snowflake_conn_id,
                "since": self.since,
                "on_partial": self.on_partial,
                "on_failed": self.on_failed,
                "poll_interval": self.poll_interval,
                "max_consecutive_errors": self.max_consecutive_errors,
                "deadline": self.deadline,
                "timeout": self.timeout,
                "end_from_trigger": self.end_from_trigger,
            },
        )

    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common: connection, table and pipe, as they were named."""
        names = (self.table, self.pipe, self.database, self.schema)
        return ("snowpipe load history", self.snowflake_conn_id, *names)

    async def _wait(self, looks: AsyncIterator[HistoryLook]) -> TriggerEvent:
        try:
            watch = self._watch()
        except ConfigurationError as error:
            return _failure(FilesFailure.CONFIGURATION, str(error))
        if not watch.wanted.total:
            return self._event(watch.verdict())
        left = self.timeout if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with asyncio.timeout(left) as limit:
                return self._event(await self._decided(watch, looks))
        except TimeoutError:
            if not limit.expired():
                raise
            return event_of(watch.expired(self.timeout or 0.0))

    async def _decided(self, watch: FilesWatch, looks: AsyncIterator[HistoryLook]) -> FilesVerdict:
        with self._poll().waiting(watch.question, self.poll_interval):
            async for look in looks:
                verdict = watch.see(look, time.time())
                if verdict.state is not WaitState.WAITING:
                    return verdict
                self._report(verdict)
        raise RuntimeError("the poll of load history ended, which it never does by itself")

    def _watch(self) -> FilesWatch:
        return FilesWatch(
            self._wanted(),
            moment(self.since),
            Tolerance(self.on_partial, self.on_failed),
            Patience(self.max_consecutive_errors, interval=self.poll_interval),
        )

    def _wanted(self) -> WantedFiles:
        """The files, which are named or counted; only a worker lists them."""
        if self.prefix is None:
            return WantedFiles(tuple(file_names(self.files, may_be_none=True)))
        return WantedFiles((), self.prefix, number_of_files(self.count))

    def _poll(self) -> HistoryPoll:
        names = {"table": self.table, "pipe": self.pipe, "database": self.database, "schema": self.schema}
        return shared_poll(self.shared_stream_key(), partial(_connect, self.snowflake_conn_id, names))

    def _report(self, verdict: FilesVerdict) -> None:
        now = time.monotonic()
        if verdict.message:
            self.log.warning("%s", verdict)
        elif len(verdict.results) != self._reported_done or now - self._reported_at >= LOG_SECONDS:
            self.log.info("%s", verdict)
            self._reported_done, self._reported_at = len(verdict.results), now

    def _event(self, verdict: FilesVerdict) -> TriggerEvent:
        if self.end_from_trigger and verdict.state is WaitState.COMPLETE:
            return TaskSuccessEvent(xcoms={"return_value": dict(verdict.results)})
        return event_of(verdict)


async def _connect(conn_id: str, names: Mapping[str, str | None]) -> LoadHistory:
    from airflow_provider_snowpipe.streaming.retry import RetryPolicy

    hook = SnowpipeHook(conn_id, **names)
    try:
        return await hook.async_get_load_history(retry=RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS))
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"connection {conn_id!r} does not exist: add it, or name another") from error


def event_of(verdict: FilesVerdict) -> TriggerEvent:
    """Put a decided wait in an event.

    :param verdict: complete or failed
    """
    if verdict.state is WaitState.COMPLETE:
        return TriggerEvent({"status": "success", "files": dict(verdict.results)})  # type: ignore[no-untyped-call]
    return _failure(verdict.reason or FilesFailure.REFUSED, verdict.message)


def _failure(reason: FilesFailure, message: str) -> TriggerEvent:
    return TriggerEvent({"status": "failure", "reason": reason.value, "message": message})  # type: ignore[no-untyped-call]
