# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""Loads of files in the hidden schema of one database: pipes, their queues, and what was loaded when.

The load history is one table of events, written in the transaction of the rows. COPY INTO remembers a file
for 64 days by path, ETag and size, for each table; a pipe for 14 days by path alone, for each pipe
(documentation pages "COPY INTO <table>" and "Introduction to Snowpipe").
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from snowpipe_local.definitions import Definitions
from snowpipe_local.names import Names, PipeKey, Rename
from snowpipe_local.tables import TEMPORARY, literal

# -- Pipes that load files: their definitions and their queues, in the hidden schema of one database -----

_ARRIVED = "_arrived_files"
_DDL = """
CREATE SEQUENCE IF NOT EXISTS {s}.queue_ids;
CREATE TABLE IF NOT EXISTS {s}.pipe_queue (id BIGINT, schema_name VARCHAR, pipe_name VARCHAR, path VARCHAR,
    size BIGINT, received_on_ms BIGINT);
"""


@dataclass(frozen=True, slots=True)
class FilePipe:
    """One pipe that loads files with a COPY statement.

    :param auto_ingest: events of the stage's files feed the queue.
    :param integration: INTEGRATION, remembered only.
    :param sns_topic: AWS_SNS_TOPIC, remembered only.
    :param error_integration: ERROR_INTEGRATION, remembered only.
    :param paused_on_ms: since when it is paused, or None.
    """

    WORD: ClassVar[str] = "Pipe"
    RELATION: ClassVar[str] = "file_pipes"

    key: PipeKey
    created_on_ms: int
    text: str
    table_schema: str
    table: str
    auto_ingest: bool = False
    comment: str | None = None
    integration: str | None = None
    sns_topic: str | None = None
    error_integration: str | None = None
    pattern: str | None = None
    paused_on_ms: int | None = None

    @property
    def notification_channel(self) -> str | None:
        """Where its events come from, as SHOW PIPES reports it; None without AUTO_INGEST."""
        return (self.sns_topic or "local") if self.auto_ingest else None

    def seen_as(self, database: str) -> tuple[str, str, str, str]:
        """Return kind and path of what it shows with: itself."""
        return "PIPE", database, *self.key

    def moved(self, change: Rename) -> FilePipe:
        """Return the pipe as it is after a rename of its database or schema."""
        _, schema = change.moved((change.old[0], self.key.schema))
        _, table_schema = change.moved((change.old[0], self.table_schema))
        return dataclasses.replace(self, key=PipeKey(schema, self.key.name), table_schema=table_schema)

    def to_row(self) -> list[Any]:
        """Return the row of the hidden table."""
        kept = dataclasses.asdict(self)
        return [*kept.pop("key"), kept.pop("created_on_ms"), json.dumps(kept)]

    @classmethod
    def from_row(cls, _database: str, schema: str, name: str, created_on_ms: int, text: str) -> FilePipe:
        """Read the row that :meth:`to_row` writes."""
        return cls(PipeKey(schema, name), created_on_ms, **json.loads(text))


@dataclass(frozen=True, slots=True)
class QueuedFile:
    """One file that waits in the queue of a pipe.

    :param id: order of arrival.
    :param path: path relative to the stage location of the pipe.
    """

    id: int
    path: str
    size: int | None
    received_on_ms: int


@dataclass(frozen=True, slots=True)
class PipeFailure:
    """Why a pipe does not load."""

    state: str
    message: str
    at_ms: int


class FilePipes(Definitions[FilePipe]):
    """File pipes of one database, and their queues."""

    def __init__(self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock) -> None:
        super().__init__(FilePipe, names, cursor, write_lock)
        self._schema = names.hidden_schema
        cursor.execute(_DDL.format(s=self._schema))

    def create(self, pipe: FilePipe, *, replace: bool) -> None:
        """Create a pipe; replacing one empties its queue and forgets its loads.

        :raises SqlError: when it exists and is not to be replaced.
        """
        self.put(pipe, replace=replace, also=lambda: self._empty(pipe.key))

    def drop(self, known: FilePipe, also: Callable[[], object] | None = None) -> None:
        """Drop a pipe with its queue; files that wait are not loaded."""
        super().drop(known, also or (lambda: self._empty(known.key)))

    # -- queue ----------------------------------------------------------------------------------------------

    def enqueue(self, key: PipeKey, files: Iterable[tuple[str, int | None]], now_ms: int) -> None:
        """Queue files durably; those that wait already are not queued again.

        :param files: path relative to the pipe's location, and size or None.
        :raises SqlError: when the pipe is gone.
        """
        unique = dict(files)
        table = pa.table(
            {"path": pa.array(unique, pa.string()), "size": pa.array(unique.values(), pa.int64())}
        )
        with self._lock:
            self.require(key)
            self._cursor.register(_ARRIVED, table)
            sequence = literal(f"{self._schema}.queue_ids")
            try:
                self._cursor.execute(
                    f"INSERT INTO {self._schema}.pipe_queue SELECT nextval({sequence}), ?, ?, path, size, ? "
                    f"FROM {_ARRIVED} WHERE path NOT IN (SELECT path FROM {self._schema}.pipe_queue "
                    f"WHERE schema_name = ? AND pipe_name = ?)",
                    [key.schema, key.name, now_ms, key.schema, key.name],
                ).fetchall()
            finally:
                self._cursor.unregister(_ARRIVED)

    def waiting(self, cursor: duckdb.DuckDBPyConnection, key: PipeKey, most: int) -> list[QueuedFile]:
        """Return the files that wait longest."""
        rows = cursor.execute(
            f"SELECT id, path, size, received_on_ms FROM {self._schema}.pipe_queue "
            f"WHERE schema_name = ? AND pipe_name = ? ORDER BY id LIMIT {int(most)}",
            [key.schema, key.name],
        ).fetchall()
        return [QueuedFile(*row) for row in rows]

    def count_waiting(self, cursor: duckdb.DuckDBPyConnection, key: PipeKey) -> int:
        """Return how many files wait."""
        ((count,),) = cursor.execute(
            f"SELECT count(*) FROM {self._schema}.pipe_queue WHERE schema_name = ? AND pipe_name = ?",
            [key.schema, key.name],
        ).fetchall()
        return int(count)

    def take(self, cursor: duckdb.DuckDBPyConnection, files: Sequence[QueuedFile]) -> None:
        """Remove files from the queue in the open transaction of a cursor, together with their rows."""
        cursor.execute(
            f"DELETE FROM {self._schema}.pipe_queue WHERE id IN (SELECT unnest(?::BIGINT[]))",
            [[file.id for file in files]],
        )

    def _empty(self, key: PipeKey) -> None:
        self._cursor.execute(
            f"DELETE FROM {self._schema}.pipe_queue WHERE schema_name = ? AND pipe_name = ?", list(key)
        )


# -- Load history: which file was loaded into which table, when, and with what result --------------------

DAY_MS = 24 * 3600 * 1000
COPY_MEMORY_MS = 64 * DAY_MS
PIPE_MEMORY_MS = 14 * DAY_MS

LOADED, PARTIALLY_LOADED, LOAD_FAILED, LOAD_SKIPPED = (
    "LOADED", "PARTIALLY_LOADED", "LOAD_FAILED", "LOAD_SKIPPED",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """One file that was loaded, or failed to load, into one table.

    :param pipe_schema: schema of the pipe that loaded it; None for COPY INTO.
    :param file_key: what the file is recognised by: its stage or bucket, and its path.
    :param file_name: the file's name as COPY_HISTORY shows it, relative to the stage location.
    :param received_on_ms: when the pipe got it; None for COPY INTO.
    :param error_limit: number of errors at which the file is given up.
    :param first_error_line: its line, counting from 1.
    :param first_error_character: its character in the line, counting from 1.
    :param first_error_column: its column, as ``"TABLE"["COLUMN":number]``.
    """

    schema_name: str
    table_name: str
    pipe_schema: str | None
    pipe_name: str | None
    file_key: str
    file_name: str
    stage_location: str
    etag: str
    file_size: int
    received_on_ms: int | None
    loaded_on_ms: int
    status: str
    rows_parsed: int
    rows_loaded: int
    error_limit: int
    errors_seen: int
    first_error: str | None = None
    first_error_line: int | None = None
    first_error_character: int | None = None
    first_error_column: str | None = None


_FIELDS = tuple(field.name for field in dataclasses.fields(LoadEvent))
_ARROW_TYPES = {
    field.name: pa.int64() if str(field.type).startswith("int") else pa.string()
    for field in dataclasses.fields(LoadEvent)
}
_EVENTS = "_load_events"
_COLUMNS = ", ".join(
    f"{name} {'BIGINT' if kind == pa.int64() else 'VARCHAR'}" for name, kind in _ARROW_TYPES.items()
)
_LOADS_DDL = f"""
CREATE SEQUENCE IF NOT EXISTS {{s}}.load_ids;
CREATE TABLE IF NOT EXISTS {{s}}.loads (id BIGINT, {_COLUMNS});
CREATE TABLE IF NOT EXISTS {{s}}.former_loads AS SELECT * FROM {{s}}.loads LIMIT 0;
"""


class LoadHistory:
    """Reads and writes the load events of one database, always on the caller's cursor and transaction."""

    def __init__(self, names: Names, cursor: duckdb.DuckDBPyConnection) -> None:
        self._schema = names.hidden_schema
        self.relation = f"{self._schema}.loads"
        self.of_former_tables = f"{self._schema}.former_loads"
        # A pipe keeps its history when its table is truncated, dropped or replaced.
        self._of_pipes = f"(FROM {self.relation} UNION ALL FROM {self.of_former_tables})"
        cursor.execute(_LOADS_DDL.format(s=self._schema))

    def record(self, cursor: duckdb.DuckDBPyConnection, events: Sequence[LoadEvent]) -> None:
        """Write events; they become visible with the rows of the same transaction."""
        if not events:
            return
        columns = {
            name: pa.array([getattr(event, name) for event in events], _ARROW_TYPES[name]) for name in _FIELDS
        }
        sequence = literal(f"{self._schema}.load_ids")
        cursor.register(_EVENTS, pa.table(columns))
        try:
            cursor.execute(
                f"INSERT INTO {self.relation} (id, {', '.join(_FIELDS)}) "
                f"SELECT nextval({sequence}), {', '.join(_FIELDS)} FROM {_EVENTS}"
            ).fetchall()
        finally:
            cursor.unregister(_EVENTS)

    def loaded_by_copy(
        self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str, since_ms: int
    ) -> dict[str, tuple[str, int]]:
        """Return key, ETag and size of the files that COPY INTO has loaded into a table."""
        rows = cursor.execute(
            f"SELECT file_key, arg_max(etag, id), arg_max(file_size, id) FROM {self.relation} "
            f"WHERE schema_name = ? AND table_name = ? AND pipe_name IS NULL AND loaded_on_ms >= ? "
            f"AND status <> ? GROUP BY file_key",
            [schema, table, since_ms, LOAD_FAILED],
        ).fetchall()
        return {key: (etag, size) for key, etag, size in rows}

    def loaded_by_pipe(
        self,
        cursor: duckdb.DuckDBPyConnection,
        schema: str,
        pipe: str,
        since_ms: int,
        *,
        or_failed: bool = False,
    ) -> set[str]:
        """Return the keys of the files that a pipe has loaded, whatever their content was.

        :param or_failed: also of those that it failed to load.
        """
        rows = cursor.execute(
            f"SELECT DISTINCT file_key FROM {self._of_pipes} WHERE pipe_schema = ? AND pipe_name = ? "
            f"AND loaded_on_ms >= ? AND (status <> ? OR ?)",
            [schema, pipe, since_ms, LOAD_FAILED, or_failed],
        ).fetchall()
        return {key for (key,) in rows}

    def events_of_pipe(
        self,
        cursor: duckdb.DuckDBPyConnection,
        schema: str,
        pipe: str,
        *,
        after_id: int = 0,
        from_ms: int = 0,
        until_ms: int | None = None,
        newest: int | None = None,
        oldest: int | None = None,
    ) -> list[tuple[int, LoadEvent]]:
        """Return the loads of a pipe with their numbers, in order.

        :param after_id: only loads after this number.
        :param newest: keep so many of the newest.
        :param oldest: keep so many of the oldest.
        """
        direction = "DESC" if newest is not None else "ASC"
        limit = newest if newest is not None else oldest
        rows = cursor.execute(
            f"SELECT id, {', '.join(_FIELDS)} FROM {self._of_pipes} WHERE pipe_schema = ? AND pipe_name = ? "
            f"AND id > ? AND loaded_on_ms >= ? AND loaded_on_ms < ? ORDER BY id {direction} "
            + ("" if limit is None else f"LIMIT {int(limit)}"),
            [schema, pipe, after_id, from_ms, 2**62 if until_ms is None else until_ms],
        ).fetchall()
        return sorted(((row[0], LoadEvent(*row[1:])) for row in rows), key=lambda numbered: numbered[0])

    def first_load_ms(self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> int | None:
        """Return when a table was loaded first, or None."""
        ((first_ms,),) = cursor.execute(
            f"SELECT min(loaded_on_ms) FROM {self.relation} WHERE schema_name = ? AND table_name = ?",
            [schema, table],
        ).fetchall()
        return None if first_ms is None else int(first_ms)

    def rename_tables(self, cursor: duckdb.DuckDBPyConnection, schema: str, names: Mapping[str, str]) -> None:
        """Keep the loads of tables in one schema under their new names, by the old ones."""
        cases = " ".join("WHEN ? THEN ?" for _ in names)
        cursor.execute(
            f"UPDATE {self.relation} SET table_name = CASE table_name {cases} END "
            f"WHERE schema_name = ? AND list_contains(?, table_name)",
            [*(name for both in names.items() for name in both), schema, list(names)],
        )

    def forget_table(self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> None:
        """Put the loads of a table that is emptied or dropped aside: COPY forgets them, pipes do not."""
        of_table = f"FROM {self.relation} WHERE schema_name = ? AND table_name = ?"
        if TEMPORARY not in table:
            cursor.execute(f"INSERT INTO {self.of_former_tables} {of_table}", [schema, table])
        cursor.execute(f"DELETE {of_table}", [schema, table])
