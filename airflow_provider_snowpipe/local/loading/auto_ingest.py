"""AUTO_INGEST from folders: a new file in an internal or ``file://`` stage feeds the queues of its pipes.

It stands in for the notifications of cloud storage. Files that arrived while the service was down are found
when it starts, as a cloud's queue would have kept their events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
import watchfiles

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.history import COPY_MEMORY_MS, PIPE_MEMORY_MS
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.stages.files import FolderArea, StagedFile
from airflow_provider_snowpipe.local.stages.location import match_whole

# -- Which files that have arrived belong to which pipe: patterns, buckets and folders -------------------

Files = list[tuple[str, int | None]]


def split_by_pattern(pipe: FilePipe, files: Sequence[tuple[str, int | None]]) -> tuple[Files, list[str]]:
    """Return the files that fit the PATTERN of a pipe, and the paths of those that do not.

    :param files: path relative to the location of the pipe, and size or None.
    :raises SqlError: for a pattern that RE2 does not take, of a pipe that an older version created.
    """
    if pipe.pattern is None:
        return list(files), []
    fits = match_whole(pipe.pattern, [path for path, _ in files])
    fitting = [file for file, fit in zip(files, fits, strict=True) if fit]
    return fitting, [path for (path, _), fit in zip(files, fits, strict=True) if not fit]


def arrived_in_bucket(
    catalog: Catalog, database: Database, pipe: FilePipe, created: Iterable[tuple[str, str, int | None]]
) -> Files:
    """Return the files of a pipe among objects of S3.

    :param created: bucket, key and size or None of each object.
    """
    try:
        location = compile_pipe(catalog, database, pipe).location
    except SqlError:
        # The pipe says so itself, in SYSTEM$PIPE_STATUS.
        return []
    if not location.is_external or not location.base.startswith("s3"):
        return []
    prefix = location.path_of("")
    found: Files = []
    for bucket, key, size in created:
        for scheme in ("s3", "s3compat"):
            url = f"{scheme}://{bucket}/{key}"
            if url.startswith(location.base + prefix):
                found.append((url.removeprefix(location.base + prefix), size))
    return split_by_pattern(pipe, found)[0]


def unloaded(
    plan: CopyPlan, pipe: FilePipe, cursor: duckdb.DuckDBPyConnection, *, or_failed: bool = True
) -> list[StagedFile]:
    """Return the files of a pipe's location that neither it nor COPY INTO has loaded.

    :param or_failed: also those that the pipe failed to load.
    """
    database = plan.database
    now_ms = database.clock.now_ms()
    by_pipe = database.history.loaded_by_pipe(
        cursor,
        pipe.key.schema,
        pipe.key.name,
        max(pipe.created_on_ms, now_ms - PIPE_MEMORY_MS),
        or_failed=not or_failed,
    )
    by_copy = database.history.loaded_by_copy(
        cursor, plan.table.schema, plan.table.name, now_ms - COPY_MEMORY_MS
    )
    return [
        file
        for file in plan.location.list(plan.pattern)
        if plan.file_key(file) not in by_pipe and by_copy.get(plan.file_key(file)) != (file.etag, file.size)
    ]


def relative(plan: CopyPlan, file: StagedFile) -> str:
    """Return a file's path relative to the location of a pipe, as its queue holds it."""
    return file.path.removeprefix(plan.location.path_of(""))


log = logging.getLogger(__name__)
# It reports every change that it sees.
logging.getLogger("watchfiles").setLevel(logging.WARNING)

# A file is complete when nobody has written to it for this time; an upload or a rename is complete at once.
SETTLED_SECONDS = 1.0
_STEP_MS = 500


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

    def _watch(self, watched: list[tuple[FilePipe, CopyPlan, Path]]) -> None:
        if not watched:
            self._catalog.file_pipes_changed.wait()
            return
        stages = self._stages()
        # The first look comes when the watch has begun: what arrives before it is not reported.
        moving = True
        for changes in watchfiles.watch(
            *{folder for _, _, folder in watched},
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

    def _watched(self) -> list[tuple[FilePipe, CopyPlan, Path]]:
        found = []
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
                    found.append((pipe, plan, area.root))
        return found

    def _stages(self) -> tuple[tuple[str, str | None], ...]:
        return tuple(
            (stage.identity, stage.url)
            for database in self._catalog.databases
            for stage in database.stages.stages
        )

    def _scan(self, watched: list[tuple[FilePipe, CopyPlan, Path]]) -> bool:
        """Queue the complete files that are not loaded; True while some are still being written."""
        moving = False
        settled_ms = (time.time() - SETTLED_SECONDS) * 1000
        for pipe, plan, _ in watched:
            database = plan.database
            # By the machine's clock, which the files' times follow.
            created_ms = pipe.created_on_ms - database.clock.moved_seconds * 1000
            cursor = self._catalog.cursor()
            try:
                fresh = [
                    file
                    for file in unloaded(plan, pipe, cursor, or_failed=False)
                    if file.modified_ms >= created_ms
                ]
            finally:
                cursor.close()
            complete = [file for file in fresh if file.modified_ms <= settled_ms]
            moving |= len(complete) < len(fresh)
            if complete:
                files = [(relative(plan, file), file.size) for file in complete]
                database.file_pipes.enqueue(pipe.key, files, database.clock.now_ms())
                self._catalog.files_queued.set()
        return moving
