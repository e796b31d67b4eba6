"""The trigger behind the deferrable sensor of loaded files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_snowpipe.bulk.files_watch import FilesWatch, HistoryPoll, Tolerance
from airflow_provider_snowpipe.bulk.load_history import timestamp
from airflow_provider_snowpipe.bulk.staged_files import (
    ExpectedFiles,
    StageReference,
    file_names,
    number_of_files,
)
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, names_of
from airflow_provider_snowpipe.streaming.commits import RetryBudget
from airflow_provider_snowpipe.streaming.polling import shared_in_loop
from airflow_provider_snowpipe.triggers.commit import WaitTrigger, connect

_LATE_SECONDS = 60.0
"""Time for polls where the deadline is over; Airflow's own limit of the task lies two minutes behind it."""


@dataclass(kw_only=True, eq=False, repr=False)
class SnowpipeFilesLoadedTrigger(WaitTrigger):
    """Wait until the loads of files have ended, then send one event.

    The event is ``{"status": "success", "files": {path: result}}`` or ``{"status": "failure", "reason": …,
    "message": …}`` with a reason of :class:`~airflow_provider_snowpipe.bulk.files_watch.FilesFailure`.

    All triggers that name the same table and pipe of a connection share one poll, at the pace of the fastest.

    :param files: paths below the stage, or the JSON text of a list of them
    :param prefix: instead of files, the start of the paths
    :param count: with it, how many different files
    :param stage: their stage, ``@database.schema.stage``; None counts files of every stage with these paths
    :param stage_url: what an external stage stands for
    :param table: the table that they are loaded into
    :param pipe: the file pipe that loads them, None for any load
    :param since: loads before this time, in ISO 8601, do not count
    :param on_partial: ``fail`` or ``report``
    :param on_failed: ``fail`` or ``report``
    :param poll_interval: seconds between two polls
    :param deadline: when to give up, seconds since 1970; None for ``timeout`` seconds from here
    :param timeout: how long the whole wait was to take, in seconds; None for ever
    """

    value_key = "files"

    files: Sequence[str] | str | None = None
    prefix: str | None = None
    count: int | str | None = None
    stage: str | None = None
    stage_url: str | None = None
    since: str | None = None
    on_partial: str = "fail"
    on_failed: str = "fail"
    poll_interval: float = 15.0
    deadline: float | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.files = list(self.files) if isinstance(self.files, tuple) else self.files
        self._waits: FilesWatch | None = None

    def shared_stream_key(self) -> Hashable:
        """What the triggers of one poll have in common: connection, table and pipe, as they were named."""
        return ("snowpipe load history", self.snowflake_conn_id, *names_of(self).values())

    async def _wait(self, answers: AsyncIterator[Any]) -> TriggerEvent:
        left = self.timeout if self.deadline is None else self.deadline - time.time()
        if left is not None and left <= 0:  # the triggerer was away, and files may have been loaded meanwhile
            left = _LATE_SECONDS
        try:
            async with asyncio.timeout(left) as limit:
                return await super()._wait(answers)
        except TimeoutError:
            if not limit.expired() or self._waits is None:
                raise
            return self._event(self._waits.expired(self.timeout or 0.0), self._waits)

    def _poll(self) -> HistoryPoll:
        make = partial(connect, SnowpipeHook.get_load_history, self.snowflake_conn_id, names_of(self))
        return shared_in_loop(HistoryPoll, self.shared_stream_key(), partial(HistoryPoll, make))

    def _watch(self) -> FilesWatch:
        where = (None if self.stage is None else StageReference.parse(self.stage), self.stage_url)
        if self.prefix is None:
            files = ExpectedFiles(tuple(file_names(self.files, may_be_none=True)), None, 0, *where)
        else:  # only a worker lists files
            files = ExpectedFiles((), self.prefix, number_of_files(self.count), *where)
        budget = RetryBudget(self.max_consecutive_errors, interval=self.poll_interval)
        self._waits = FilesWatch(
            files, timestamp(self.since), Tolerance(self.on_partial, self.on_failed), budget
        )
        return self._waits
