"""Running of COPY INTO: which files are loaded and what becomes of their records, in one transaction."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from snowpipe_local.definitions import transact
from snowpipe_local.engine import load_history as history
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import LoadEvent
from snowpipe_local.errors import SqlError
from snowpipe_local.loading.staging import ABORT_STATEMENT, CopyPlan, RowError, StagedRecords
from snowpipe_local.stages.files import StagedFile

# -- The transaction of a load: it runs beside commits of channels, and again when one gets in its way ---

T = TypeVar("T")
_ATTEMPTS = 5


def commit_load(database: Database, cursor: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Run work in a transaction of its own.

    Commits of channels go on while it reads; one that changes the table makes it start again, the last time
    with everything else held up.

    :param database: loads into one database wait for each other.
    :param cursor: cursor that the work uses; it must not be in a transaction.
    :param work: writes through the cursor; it may run more than once.
    """
    with database.load_lock:
        for _ in range(_ATTEMPTS):
            try:
                return _attempt(database, cursor, work)
            except duckdb.TransactionException:
                continue
        with database.write_lock:
            return _attempt(database, cursor, work)


def _attempt(database: Database, cursor: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    @contextlib.contextmanager
    def committing() -> Iterator[None]:
        with database.write_lock:
            database.reach("before-load-commit")
            yield
            database.dirty = True
            database.reach("after-load-commit")

    return transact(cursor, work, committing)


log = logging.getLogger(__name__)

LOADED_BEFORE = "File was loaded before."
UNCERTAIN = "The load status of the file is unknown; set LOAD_UNCERTAIN_FILES = TRUE."


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What became of one file; one row of the result of COPY INTO.

    :param file: the file, or None when FILES names one that does not exist.
    :param status: LOADED, PARTIALLY_LOADED, LOAD_FAILED or LOAD_SKIPPED.
    :param error_limit: errors at which the file is given up.
    :param message: why the file was not read at all, or None.
    """

    file: StagedFile | None
    name: str
    status: str
    rows_parsed: int = 0
    rows_loaded: int = 0
    error_limit: int = 1
    errors_seen: int = 0
    first_error: RowError | None = None
    message: str | None = None


def run(plan: CopyPlan, cursor: duckdb.DuckDBPyConnection) -> list[FileOutcome]:
    """Load the files of a statement in the open transaction of a cursor.

    :raises SqlError: with ON_ERROR = ABORT_STATEMENT, for the first record in error or file that cannot
        be read; the caller rolls back.
    """
    plan.check_names()
    database = plan.database
    files, others = choose(plan, cursor)
    outcomes: list[FileOutcome] = []
    size = 0
    for file in files:
        if plan.options.size_limit is not None and outcomes and size >= plan.options.size_limit:
            break
        outcomes.append(load_file(plan, cursor, file))
        size += file.size
    events = [event_of(plan, outcome, database.clock.now_ms()) for outcome in outcomes]
    database.history.record(cursor, events)
    return outcomes + others


def load_file(plan: CopyPlan, cursor: duckdb.DuckDBPyConnection, file: StagedFile) -> FileOutcome:
    """Load one file in the open transaction of a cursor.

    :raises SqlError: with ON_ERROR = ABORT_STATEMENT.
    """
    staged = StagedRecords(cursor, plan)
    name = plan.location.listed_name(file)
    try:
        staged.fill(file)
    except SqlError as error:
        # A statement that is wrong is wrong for every file.
        if plan.on_error.action == ABORT_STATEMENT or error.sqlstate.startswith(("0A", "42")):
            raise
        limit = plan.on_error.limit(staged.parsed)
        return FileOutcome(
            file, name, history.LOAD_FAILED, staged.parsed, 0, limit, 1, _unreadable(error), error.message
        )
    parsed, rejected = staged.parsed, staged.rejected
    first = staged.errors[0] if staged.errors else None
    if first is not None and plan.on_error.action == ABORT_STATEMENT:
        raise first.abort(name)
    limit = plan.on_error.limit(parsed)
    if rejected and (rejected == parsed or plan.on_error.gives_up(parsed, rejected)):
        return FileOutcome(file, name, history.LOAD_FAILED, parsed, 0, limit, rejected, first)
    loaded = staged.insert()
    status = history.PARTIALLY_LOADED if rejected else history.LOADED
    return FileOutcome(file, name, status, parsed, loaded, limit, rejected, first)


def choose(plan: CopyPlan, cursor: duckdb.DuckDBPyConnection) -> tuple[list[StagedFile], list[FileOutcome]]:
    """Return the files that a statement is to load, and outcomes for those it names but does not load.

    :raises SqlError: 091016 for a file in FILES that does not exist, with ON_ERROR = ABORT_STATEMENT.
    """
    files, missing = _named(plan) if plan.options.files is not None else (plan.location.list(), [])
    if plan.options.pattern is not None:
        files = plan.location.matching(files, plan.options.pattern)
    if plan.options.has("FORCE"):
        return files, missing
    now_ms = plan.database.clock.now_ms()
    old_ms = now_ms - history.COPY_MEMORY_MS
    table = (plan.table.schema, plan.table.name)
    known = plan.database.history.loaded_by_copy(cursor, *table, old_ms)
    first_ms = plan.database.history.first_load_ms(cursor, *table)
    load, skipped = [], []
    for file in files:
        uncertain = file.modified_ms < old_ms and first_ms is not None and first_ms < old_ms
        if known.get(plan.file_key(file)) == (file.etag, file.size):
            skipped.append((file, LOADED_BEFORE))
        elif uncertain and not plan.options.has("LOAD_UNCERTAIN_FILES"):
            skipped.append((file, UNCERTAIN))
        else:
            load.append(file)
    others = [
        FileOutcome(file, plan.location.listed_name(file), history.LOAD_SKIPPED, message=why)
        for file, why in skipped
        if plan.options.files is not None or why != LOADED_BEFORE
    ]
    return load, missing + others


def _named(plan: CopyPlan) -> tuple[list[StagedFile], list[FileOutcome]]:
    present = {file.path: file for file in plan.location.list()}
    found: list[StagedFile] = []
    missing: list[FileOutcome] = []
    for name in dict.fromkeys(plan.options.files or ()):
        file = present.get(plan.location.path_of(name))
        if file is not None:
            found.append(file)
            continue
        message = (
            f"Remote file '{plan.location.base}{plan.location.path_of(name)}' was not found. There are "
            "several potential causes. The file might not exist. The required credentials may be missing or "
            "invalid."
        )
        if plan.on_error.action == ABORT_STATEMENT:
            raise SqlError("091016", "22000", message)
        missing.append(FileOutcome(None, name, history.LOAD_FAILED, errors_seen=1, message=message))
    return found, missing


def purge(plan: CopyPlan, outcomes: Sequence[FileOutcome]) -> None:
    """Remove the files that were loaded, after the commit; what cannot be removed stays (as in Snowflake)."""
    loaded = [
        outcome.file
        for outcome in outcomes
        if outcome.file is not None and outcome.status in {history.LOADED, history.PARTIALLY_LOADED}
    ]
    try:
        plan.location.remove(loaded)
    except (SqlError, OSError) as error:
        log.warning("PURGE: loaded files of %s stay: %s", plan.location.name, error)


def event_of(
    plan: CopyPlan,
    outcome: FileOutcome,
    loaded_on_ms: int,
    pipe: tuple[str, str] | None = None,
    received_on_ms: int | None = None,
) -> LoadEvent:
    """Return what the load history keeps about a file."""
    file, first = outcome.file, outcome.first_error
    assert file is not None  # noqa: S101 - only files that were read become events
    location = plan.location
    return LoadEvent(
        plan.table.schema,
        plan.table.name,
        pipe_schema=None if pipe is None else pipe[0],
        pipe_name=None if pipe is None else pipe[1],
        file_key=plan.file_key(file),
        file_name=file.path.removeprefix(location.path_of("")),
        stage_location=location.url,
        etag=file.etag,
        file_size=file.size,
        received_on_ms=received_on_ms,
        loaded_on_ms=loaded_on_ms,
        status=outcome.status,
        rows_parsed=outcome.rows_parsed,
        rows_loaded=outcome.rows_loaded,
        error_limit=outcome.error_limit,
        errors_seen=outcome.errors_seen,
        first_error=first.message if first else outcome.message,
        first_error_line=first.line if first else None,
        first_error_character=first.character if first else None,
        first_error_column=first.column if first else None,
    )


def _unreadable(error: SqlError) -> RowError:
    return RowError(error.code, error.sqlstate, error.message, 1, 1, 1, None)
