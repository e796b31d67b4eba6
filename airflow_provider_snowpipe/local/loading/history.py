"""Load history: which file was loaded into which table, when, and with what result.

It is one table of events in the hidden schema, written in the transaction of the rows. COPY INTO remembers a
file for 64 days by path, ETag and size, for each table; a pipe for 14 days by path alone, for each pipe
(documentation pages "COPY INTO <table>" and "Introduction to Snowpipe").
"""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from airflow_provider_snowpipe.local.identifiers import literal
from airflow_provider_snowpipe.local.tables import Table

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.names import Names

DAY_MS = 24 * 3600 * 1000
COPY_MEMORY_MS = 64 * DAY_MS
PIPE_MEMORY_MS = 14 * DAY_MS

LOADED, PARTIALLY_LOADED, LOAD_FAILED, LOAD_SKIPPED = (
    "LOADED",
    "PARTIALLY_LOADED",
    "LOAD_FAILED",
    "LOAD_SKIPPED",
)

_DDL = """
CREATE SEQUENCE IF NOT EXISTS {s}.load_ids;
CREATE TABLE IF NOT EXISTS {s}.loads (id BIGINT, schema_name VARCHAR, table_name VARCHAR, pipe_schema VARCHAR,
    pipe_name VARCHAR, file_key VARCHAR, file_name VARCHAR, stage_location VARCHAR, etag VARCHAR,
    file_size BIGINT, received_on_ms BIGINT, loaded_on_ms BIGINT, status VARCHAR, rows_parsed BIGINT,
    rows_loaded BIGINT,
    error_limit BIGINT, errors_seen BIGINT, first_error VARCHAR, first_error_line BIGINT,
    first_error_character BIGINT, first_error_column VARCHAR);
ALTER TABLE {s}.tables ADD COLUMN IF NOT EXISTS loads BIGINT DEFAULT 0;
CREATE TABLE IF NOT EXISTS {s}.dropped_loads AS SELECT * FROM {s}.loads LIMIT 0;
"""


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """One file that was loaded, or failed to load, into one table.

    :param schema_name: schema of the table.
    :param table_name: the table.
    :param pipe_schema: schema of the pipe that loaded it; None for COPY INTO.
    :param pipe_name: the pipe, or None.
    :param file_key: what the file is recognised by: its stage or bucket, and its path.
    :param file_name: the file's name as COPY_HISTORY shows it, relative to the stage location.
    :param stage_location: the location as COPY_HISTORY shows it.
    :param etag: ETag or MD5 of the content.
    :param file_size: bytes.
    :param received_on_ms: when the pipe heard of it; None for COPY INTO.
    :param loaded_on_ms: when the load ended.
    :param status: LOADED, PARTIALLY_LOADED or LOAD_FAILED.
    :param rows_parsed: records in the file.
    :param rows_loaded: rows in the table.
    :param error_limit: number of errors at which the file is given up.
    :param errors_seen: records in error.
    :param first_error: message of the first one.
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


class LoadHistory:
    """Reads and writes the load events of one database, always on the caller's cursor and transaction.

    :param names: names of the database and its schemas.
    :param cursor: cursor that creates the table in a new file.
    """

    def __init__(self, names: Names, cursor: duckdb.DuckDBPyConnection) -> None:
        self._schema = names.hidden_schema
        self.relation = f"{self._schema}.loads"
        self.of_dropped_tables = f"{self._schema}.dropped_loads"
        cursor.execute(_DDL.format(s=self._schema))

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

    def take_turn(self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> None:
        """Make two transactions that load into one table collide, so that neither misses the other's files.

        :raises duckdb.TransactionException: when another transaction loads into the table now, or has done so
            since this one began.
        """
        cursor.execute(
            f"UPDATE {self._schema}.tables SET loads = coalesce(loads, 0) + 1 "
            f"WHERE schema_name = ? AND table_name = ?",
            [schema, table],
        )

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
            f"SELECT DISTINCT file_key FROM {self.relation} WHERE pipe_schema = ? AND pipe_name = ? "
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
        :param from_ms: first timestamp, epoch milliseconds.
        :param until_ms: timestamp after the last one, or None.
        :param newest: keep so many of the newest.
        :param oldest: keep so many of the oldest.
        """
        direction = "DESC" if newest is not None else "ASC"
        limit = newest if newest is not None else oldest
        rows = cursor.execute(
            f"SELECT id, {', '.join(_FIELDS)} FROM {self.relation} WHERE pipe_schema = ? AND pipe_name = ? "
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

    def rename_table(self, cursor: duckdb.DuckDBPyConnection, old: Table, new: Table) -> None:
        """Keep the loads of a table under its new name."""
        cursor.execute(
            f"UPDATE {self.relation} SET schema_name = ?, table_name = ? "
            f"WHERE schema_name = ? AND table_name = ?",
            [new.schema, new.name, old.schema, old.name],
        )

    def forget_table(self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> None:
        """Forget the loads of a table that was truncated; those of a dropped one are put aside."""
        cursor.execute(
            f"DELETE FROM {self.relation} WHERE schema_name = ? AND table_name = ?", [schema, table]
        )
