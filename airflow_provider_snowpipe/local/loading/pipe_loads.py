"""The thread that loads the queues of all file pipes.

Files of one queue are loaded in order, many small ones in one transaction. Their rows, their history and
their removal from the queue commit together, so that a crash neither loses nor doubles a file.
"""

from __future__ import annotations

import logging
import threading

import duckdb

from airflow_provider_snowpipe.local.access.access import DEFAULT_USER
from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import PipeKey
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading import history, loader
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe, PipeFailure, QueuedFile
from airflow_provider_snowpipe.local.loading.history import PIPE_MEMORY_MS, LoadEvent
from airflow_provider_snowpipe.local.loading.loader import commit_load
from airflow_provider_snowpipe.local.loading.plan import SKIP_FILE, CopyPlan, OnError
from airflow_provider_snowpipe.local.sql.copy_into import compile_copy
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.files import StagedFile

log = logging.getLogger(__name__)

GROUP_FILES = 1000
GROUP_BYTES = 64 << 20
# A pipe whose statement fails is tried again after this time; nobody tells when its table is repaired.
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
                for pipe in database.file_pipes.pipes:
                    failed |= not self._drain(database, pipe.key)
            self._catalog.files_queued.wait(RETRY_SECONDS if failed else None)

    def _drain(self, database: Database, key: PipeKey) -> bool:
        """Load groups of a pipe until its queue is empty; False when it must be tried again."""
        failures = self._catalog.pipe_failures
        where = (database.name, key.schema, key.name)
        cursor = self._catalog.cursor()
        try:
            while not self._stopping:
                pipe = database.file_pipes.find(key)
                if pipe is None or pipe.paused_on_ms is not None:
                    break
                waiting = database.file_pipes.waiting(cursor, key, GROUP_FILES)
                if not waiting:
                    break
                load_group(self._catalog, database, pipe, waiting, cursor)
                failures.pop(where, None)
            return True
        except Exception as error:
            if self._catalog.find(database.name) is not database or database.file_pipes.find(key) is None:
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
    except (duckdb.Error, MemoryError) as error:
        if len(group) > 1:
            # One of the files breaks the engine; alone it shows which.
            for file in group:
                load_group(catalog, database, pipe, [file], cursor)
            return
        log.exception("file %s of pipe %s.%s failed", group[0].path, pipe.key.schema, pipe.key.name)
        message = f"internal error of the local service: {error}"
        commit_load(database, cursor, lambda: _fail(plan, pipe, group[0], present, cursor, message))


def compile_pipe(catalog: Catalog, database: Database, pipe: FilePipe) -> CopyPlan:
    """Compile the COPY statement of a pipe as its owner.

    :raises SqlError: when its table, stage or file format is gone, or its owner may not use them.
    """
    owner = catalog.access.owner(Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name)))
    session = Session(catalog, DEFAULT_USER, database.name, pipe.key.schema, role=owner)
    session.secondary_roles = False
    try:
        return compile_copy(session, Reader(pipe.copy_body), default=OnError(SKIP_FILE)).plan
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
) -> None:
    plan.check_names()
    database = plan.database
    since_ms = max(pipe.created_on_ms, database.clock.now_ms() - PIPE_MEMORY_MS)
    known = database.history.loaded_by_pipe(cursor, pipe.key.schema, pipe.key.name, since_ms)
    events: list[LoadEvent] = []
    for queued in group:
        file = present.get(plan.location.path_of(queued.path))
        if file is None:
            events.append(_missing(plan, pipe, queued, database.clock.now_ms()))
        elif plan.file_key(file) not in known:
            known.add(plan.file_key(file))
            outcome = loader.load_file(plan, cursor, file)
            events.append(_event(plan, pipe, queued, outcome))
    database.history.record(cursor, events)
    database.file_pipes.take(cursor, group)


def _fail(
    plan: CopyPlan,
    pipe: FilePipe,
    queued: QueuedFile,
    present: dict[str, StagedFile],
    cursor: duckdb.DuckDBPyConnection,
    message: str,
) -> None:
    file = present.get(plan.location.path_of(queued.path))
    if file is not None:
        name = plan.location.listed_name(file)
        outcome = loader.FileOutcome(file, name, history.LOAD_FAILED, errors_seen=1, message=message)
        plan.database.history.record(cursor, [_event(plan, pipe, queued, outcome)])
    plan.database.file_pipes.take(cursor, [queued])


def _event(plan: CopyPlan, pipe: FilePipe, queued: QueuedFile, outcome: loader.FileOutcome) -> LoadEvent:
    where = (pipe.key.schema, pipe.key.name)
    return loader.event_of(plan, outcome, plan.database.clock.now_ms(), where, queued.received_on_ms)


def _missing(plan: CopyPlan, pipe: FilePipe, queued: QueuedFile, now_ms: int) -> LoadEvent:
    path = plan.location.path_of(queued.path)
    file = StagedFile(path, queued.size or 0, "", 0)
    message = f"Remote file '{plan.location.base}{path}' was not found."
    outcome = loader.FileOutcome(file, path, history.LOAD_FAILED, errors_seen=1, message=message)
    return _event(plan, pipe, queued, outcome)


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
