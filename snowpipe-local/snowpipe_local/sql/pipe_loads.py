"""File pipes at work: a thread loads the queues of all, another watches folders for those with AUTO_INGEST.

Files of one queue are loaded in order, many small ones in one transaction. Their rows, their history and
their removal from the queue commit together, so that a crash neither loses nor doubles a file.

The watch stands in for the notifications of cloud storage. Files that arrived while the service was down are
found when it starts, as a cloud's queue would have kept their events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb
import watchfiles

from snowpipe_local.access.access import DEFAULT_USER
from snowpipe_local.access.model import Securable
from snowpipe_local.catalog import Catalog
from snowpipe_local.engine import load_history as history
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import (
    COPY_MEMORY_MS,
    PIPE_MEMORY_MS,
    FilePipe,
    LoadEvent,
    PipeFailure,
    QueuedFile,
)
from snowpipe_local.errors import SqlError
from snowpipe_local.loading import loader
from snowpipe_local.loading.loader import commit_load
from snowpipe_local.loading.staging import SKIP_FILE, CopyPlan, OnError
from snowpipe_local.names import PipeKey
from snowpipe_local.sql.copy_into import compile_copy
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.files import FolderArea, StagedFile
from snowpipe_local.stages.location import match_whole

log = logging.getLogger(__name__)

GROUP_FILES = 1000
GROUP_BYTES = 64 << 20
# A pipe whose statement fails is tried again after this time; nothing reports when its table is repaired.
RETRY_SECONDS = 5.0


class PipeLoads:
    """Loads queued files until it is closed.

    :param catalog: its databases' pipes are served; :attr:`Catalog.files_queued` wakes the thread.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pipe-loads", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the load that runs, and end the thread; what waits stays in its queue."""
        self._stopping = True
        self._catalog.files_queued.set()
        self._thread.join()

    def _run(self) -> None:
        # The first round takes up what an earlier process left behind.
        while not self._stopping:
            self._catalog.files_queued.clear()
            failed = False
            for database in self._catalog.databases:
                for pipe in database.file_pipes:
                    failed |= not self._drain(database, pipe.key)
            self._catalog.files_queued.wait(RETRY_SECONDS if failed else None)

    def _drain(self, database: Database, key: PipeKey) -> bool:
        """Load groups of a pipe until its queue is empty; False when it must be tried again."""
        failures = self._catalog.pipe_failures
        where = (database.name, key.schema, key.name)
        cursor = self._catalog.cursor()
        try:
            while not self._stopping:
                pipe = database.file_pipes.find(*key)
                if pipe is None or pipe.paused_on_ms is not None:
                    break
                waiting = database.file_pipes.waiting(cursor, key, GROUP_FILES)
                if not waiting:
                    break
                load_group(self._catalog, database, pipe, waiting, cursor)
                failures.pop(where, None)
            return True
        except Exception as error:
            if self._catalog.find(database.name) is not database or database.file_pipes.find(*key) is None:
                # Dropped meanwhile, or under another name, which has a turn of its own.
                return True
            known = failures.get(where)
            if known is None or known.message != str(error):
                # A statement that cannot run is the user's matter; anything else is ours.
                expected = isinstance(error, SqlError)
                log.warning("pipe %s does not load: %s", ".".join(where), error, exc_info=not expected)
            failures[where] = PipeFailure(_state(error), str(error), database.clock.now_ms())
            return False
        finally:
            cursor.close()


def load_group(
    catalog: Catalog,
    database: Database,
    pipe: FilePipe,
    waiting: list[QueuedFile],
    cursor: duckdb.DuckDBPyConnection,
) -> None:
    """Load the first files of a queue in one transaction.

    :param waiting: files of the queue, in order; as many are taken as make a good transaction.
    :raises SqlError: when the pipe's statement cannot run; nothing has changed then.
    """
    plan = compile_pipe(catalog, database, pipe)
    present = {file.path: file for file in plan.location.list()}
    group = _first_group(plan, waiting, present)
    try:
        commit_load(database, cursor, lambda: _load(plan, pipe, group, present, cursor))
        database.touch(plan.table)
    except (duckdb.Error, MemoryError) as error:
        if len(group) > 1:
            # One of the files breaks the engine; alone it shows which.
            for file in group:
                load_group(catalog, database, pipe, [file], cursor)
            return
        log.exception("file %s of pipe %s.%s failed", group[0].path, pipe.key.schema, pipe.key.name)
        message = f"internal error of the local service: {error}"
        commit_load(database, cursor, lambda: _load(plan, pipe, group, present, cursor, message))


def compile_pipe(catalog: Catalog, database: Database, pipe: FilePipe) -> CopyPlan:
    """Compile the COPY statement of a pipe as its owner.

    :raises SqlError: when its table, stage or file format is gone, or its owner may not use them.
    """
    owner = catalog.access.owner(Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name)))
    session = Session(catalog, DEFAULT_USER, database.name, pipe.key.schema, role=owner)
    session.secondary_roles = False
    try:
        return compile_copy(session, Reader(pipe.text.split(None, 2)[2]), default=OnError(SKIP_FILE))
    finally:
        session.close()


def _first_group(
    plan: CopyPlan, waiting: list[QueuedFile], present: dict[str, StagedFile]
) -> list[QueuedFile]:
    group: list[QueuedFile] = []
    size = 0
    for queued in waiting:
        file = present.get(plan.location.path_of(queued.path))
        size += 0 if file is None else file.size
        if group and size > GROUP_BYTES:
            break
        group.append(queued)
    return group


def _load(
    plan: CopyPlan,
    pipe: FilePipe,
    group: list[QueuedFile],
    present: dict[str, StagedFile],
    cursor: duckdb.DuckDBPyConnection,
    broken: str | None = None,
) -> None:
    """Load a group, and take it from the queue.

    :param broken: why no file of it can be loaded.
    """
    plan.check_names()
    database = plan.database
    where = (pipe.key.schema, pipe.key.name)
    since_ms = max(pipe.created_on_ms, database.clock.now_ms() - PIPE_MEMORY_MS)
    known = database.history.loaded_by_pipe(cursor, *where, since_ms)
    events: list[LoadEvent] = []
    for queued in group:
        path = plan.location.path_of(queued.path)
        file, why = present.get(path), broken
        if file is None:
            file = StagedFile(path, queued.size or 0, "", 0)
            why = f"Remote file '{plan.location.base}{path}' was not found."
        elif plan.file_key(file) in known:
            continue
        else:
            known.add(plan.file_key(file))
        outcome = (
            loader.load_file(plan, cursor, file)
            if why is None
            else loader.FileOutcome(file, file.path, history.LOAD_FAILED, errors_seen=1, message=why)
        )
        events.append(loader.event_of(plan, outcome, database.clock.now_ms(), where, queued.received_on_ms))
    database.history.record(cursor, events)
    database.file_pipes.take(cursor, group)


def _state(error: Exception) -> str:
    message = str(error)
    if isinstance(error, SqlError) and error.code == "002003":
        for kind in ("TABLE", "STAGE", "FILE FORMAT"):
            if f"{kind} '" in message.upper():
                word = {"TABLE": "MISSING_TABLE"}.get(kind, f"{kind.replace(' ', '_')}_DROPPED")
                return f"STOPPED_{word}"
    if isinstance(error, SqlError) and error.code == "003001":
        return "STALLED_STAGE_PERMISSION_ERROR"
    if isinstance(error, SqlError) and error.sqlstate.startswith(("42", "22023")):
        return "STALLED_COMPILATION_ERROR"
    return "STALLED_EXECUTION_ERROR"


# -- Which files that have arrived belong to which pipe: patterns, buckets and folders -------------------

Files = list[tuple[str, int | None]]


def split_by_pattern(pipe: FilePipe, files: Sequence[tuple[str, int | None]]) -> tuple[Files, list[str]]:
    """Return the files that fit the PATTERN of a pipe, and the paths of those that do not.

    :param files: path relative to the location of the pipe, and size or None.
    :raises SqlError: for a pattern that RE2 does not take.
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
        # The pipe reports it itself, in SYSTEM$PIPE_STATUS.
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
        for file in plan.location.list(plan.options.pattern)
        if plan.file_key(file) not in by_pipe and by_copy.get(plan.file_key(file)) != (file.etag, file.size)
    ]


def relative(plan: CopyPlan, file: StagedFile) -> str:
    """Return a file's path relative to the location of a pipe, as its queue holds it."""
    return file.path.removeprefix(plan.location.path_of(""))


# It reports every change that it sees.
logging.getLogger("watchfiles").setLevel(logging.WARNING)

# A file is complete when nobody has written to it for this time; an upload or a rename is complete at once.
SETTLED_SECONDS = 1.0
_STEP_MS = 500


class FolderWatch:
    """Watches the folders of pipes with AUTO_INGEST until it is closed.

    :param catalog: its databases' pipes are served; :attr:`Catalog.file_pipes_changed` makes it read again.
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
        # The first poll comes when the watch has begun: what arrives before it is not reported.
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
            for pipe in database.file_pipes:
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
