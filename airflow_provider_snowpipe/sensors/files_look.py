"""The looks at load history that a sensor makes in a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.files_watch import FilesVerdict, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import look_at, moment
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.triggers.files_loaded import POLL_BUDGET_SECONDS

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.file_choice import FileChoice
    from airflow_provider_snowpipe.bulk.load_history import LoadHistory
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.sensors.reschedule_memory import RescheduleMemory
    from airflow_provider_snowpipe.streaming.commit_watch import Patience

log = logging.getLogger(__name__)


class FilesLook:
    """One wait's looks, with one source of load history for all of them.

    :param hook: of the table and the pipe
    :param choice: which files
    :param since: loads before this moment do not count
    :param tolerance: which loads that did not go well are accepted
    :param patience: which failed looks are put up with
    :param memory: what earlier looks knew, each of them in a process of its own; None where all are in one
    """

    def __init__(
        self,
        hook: SnowpipeHook,
        choice: FileChoice,
        since: Any,
        tolerance: Tolerance,
        patience: Patience,
        memory: RescheduleMemory | None,
    ) -> None:
        self._hook = hook
        self._choice = choice
        self._memory = memory
        self._history: LoadHistory | None = None
        kept = None if memory is None else memory.kept()
        self.watch = FilesWatch(self._wanted(kept), moment(since), tolerance, patience)
        if kept is not None:
            self.watch.recall(kept)

    def look(self) -> FilesVerdict:
        """Look once; after an error the next look has a new source, from settings that may have changed."""
        if not self.watch.wanted.total:
            return self.watch.verdict()
        look = look_at(self._connected(), [self.watch.question])
        if look.error is not None:
            self.close()
        verdict = self.watch.see(look, time.time())
        if self._memory is not None:
            self._memory.keep(self.watch, done=verdict.state is not WaitState.WAITING)
        return verdict

    def close(self) -> None:
        """Give the connections back."""
        history, self._history = self._history, None
        if history is not None:
            history.close()

    def _wanted(self, kept: Mapping[str, Any] | None) -> WantedFiles:
        """The files by name where they have names, which an earlier look may have listed."""
        if kept is not None and kept["names"]:
            return WantedFiles(tuple(kept["names"]))
        wanted = self._choice.wanted(self._hook.list_stage)
        log.info("waiting for %d files", wanted.total)
        return wanted

    def _connected(self) -> LoadHistory:
        from airflow_provider_snowpipe.streaming.retry import RetryPolicy

        if self._history is None:
            retry = RetryPolicy(budget_seconds=POLL_BUDGET_SECONDS)
            self._history = self._hook.get_load_history(retry=retry)
        return self._history
