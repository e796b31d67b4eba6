"""AUTO_INGEST from folders: a new file in an internal or ``file://`` stage feeds the queues of its pipes.

It stands in for the notifications of cloud storage. Files that arrived while the service was down are found
when it starts, as a cloud's queue would have kept their events.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import watchfiles

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading.arrivals import relative, unloaded
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.stages.files import FolderArea

log = logging.getLogger(__name__)
# It reports every change that it sees.
logging.getLogger("watchfiles").setLevel(logging.WARNING)

# A file is complete when nobody has written to it for this time; an upload or a rename is complete at once.
SETTLED_SECONDS = 1.0
_STEP_MS = 500


@dataclass(frozen=True, slots=True)
class _Watched:
    database: Database
    pipe: FilePipe
    plan: CopyPlan
    folder: Path


class FolderWatch:
    """Watches the folders of pipes with AUTO_INGEST until it is closed.

    :param catalog: its databases' pipes are served; :attr:`Catalog.file_pipes_changed` makes it look anew.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="folder-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stopping = True
        self._catalog.file_pipes_changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._catalog.file_pipes_changed.clear()
            try:
                self._watch(self._watched())
            except Exception:
                # watchfiles has an error of its own when inotify instances lack; later there may be one.
                log.exception("a folder of a pipe with AUTO_INGEST cannot be watched")
                self._catalog.file_pipes_changed.wait(SETTLED_SECONDS)

    def _watch(self, watched: list[_Watched]) -> None:
        if not watched:
            self._catalog.file_pipes_changed.wait()
            return
        stages = self._stages()
        # The first look comes when the watch has begun: what arrives before it is not reported.
        moving = True
        for changes in watchfiles.watch(
            *{entry.folder for entry in watched},
            stop_event=self._catalog.file_pipes_changed,
            rust_timeout=_STEP_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
            watch_filter=None,
        ):
            # A stage that was replaced has another folder.
            if self._stages() != stages:
                return
            if changes or moving:
                moving = self._scan(watched)

    def _watched(self) -> list[_Watched]:
        found: list[_Watched] = []
        for database in self._catalog.databases:
            for pipe in database.file_pipes.pipes:
                if not pipe.auto_ingest:
                    continue
                try:
                    plan = compile_pipe(self._catalog, database, pipe)
                except SqlError as error:
                    log.warning("pipe %s watches no folder: %s", pipe.key.name, error)
                    continue
                area = plan.location.area
                if isinstance(area, FolderArea):
                    area.root.mkdir(parents=True, exist_ok=True, mode=0o700)
                    found.append(_Watched(database, pipe, plan, area.root))
        return found

    def _stages(self) -> tuple[tuple[str, str | None], ...]:
        return tuple(
            (stage.identity, stage.url)
            for database in self._catalog.databases
            for stage in database.stages.stages
        )

    def _scan(self, watched: list[_Watched]) -> bool:
        """Queue the complete files that are not loaded; True while some are still being written."""
        moving = False
        settled_ms = (time.time() - SETTLED_SECONDS) * 1000
        for entry in watched:
            cursor = self._catalog.cursor()
            try:
                fresh = [
                    file
                    for file in unloaded(entry.plan, entry.pipe, cursor, or_failed=False)
                    if file.modified_ms >= _created_ms(entry)
                ]
            finally:
                cursor.close()
            complete = [file for file in fresh if file.modified_ms <= settled_ms]
            moving |= len(complete) < len(fresh)
            if complete:
                files = [(relative(entry.plan, file), file.size) for file in complete]
                entry.database.file_pipes.enqueue(entry.pipe.key, files, entry.database.clock.now_ms())
                self._catalog.files_queued.set()
        return moving


def _created_ms(entry: _Watched) -> float:
    """Return when the pipe was created by the machine's clock, which the files' times follow."""
    return entry.pipe.created_on_ms - entry.database.clock.moved_seconds * 1000
