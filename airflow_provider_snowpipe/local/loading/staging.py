"""Records of one file in a temporary table: converted, and the ones that cannot be loaded marked."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.errors import unsupported
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.loading import row_errors
from airflow_provider_snowpipe.local.loading.chunks import CSV, Chunk
from airflow_provider_snowpipe.local.loading.columns_reader import read_columns
from airflow_provider_snowpipe.local.loading.compression import read_blocks
from airflow_provider_snowpipe.local.loading.csv_reader import read_csv
from airflow_provider_snowpipe.local.loading.json_reader import read_json
from airflow_provider_snowpipe.local.loading.plan import CopyPlan
from airflow_provider_snowpipe.local.loading.row_errors import RowError
from airflow_provider_snowpipe.local.loading.selection import RECORDS, FileFacts, Filled, Projection
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.stages.formats import FileFormat
from airflow_provider_snowpipe.local.stages.location import StageLocation
from airflow_provider_snowpipe.local.tables import Column

STAGED = "_staged_records"
LOADED_TYPES = ("CSV", "JSON", "PARQUET", "ORC")
"""Types of files that the service reads."""


class StagedRecords:
    """The temporary table of one file. Rows move inside DuckDB; Python sees errors only.

    :param cursor: cursor of the load.
    :param plan: the statement.
    :param most_errors: errors to describe; the others are only counted.
    :param with_records: errors hold the text of their record.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        plan: CopyPlan,
        most_errors: int = 1,
        *,
        with_records: bool = False,
    ) -> None:
        self._cursor = cursor
        self._plan = plan
        self._most_errors = most_errors
        self._with_records = with_records
        self.errors: list[RowError] = []
        self.parsed = 0
        self.rejected = 0

    def fill(self, file: StagedFile, path: Path, scan_ms: int) -> None:
        """Read a file into the temporary table.

        :param path: readable local path.
        :param scan_ms: when the load began, for METADATA$START_SCAN_TIME.
        :raises SqlError: when the file cannot be read at all.
        """
        plan = self._plan
        facts = facts_of(plan.location, file, scan_ms)
        try:
            for chunk in read_chunks(plan.file_format, file, path, plan.selection.width):
                self._cursor.register(RECORDS, chunk.table)
                projection = self._plan.selection.project(self._cursor, chunk.shape, facts)
                self._add(chunk, projection)
        finally:
            self._cursor.unregister(RECORDS)

    def insert(self) -> int:
        """Insert the good records into the table; return how many."""
        if not self.parsed:
            return 0
        columns = self._plan.selection.columns
        names = ", ".join(quote(column.name) for column in columns)
        values = ", ".join(f"v{n}" for n in range(len(columns)))
        ((count,),) = self._cursor.execute(
            f"INSERT INTO {self._plan.table.path} ({names}) SELECT {values} FROM {STAGED} "
            f"WHERE bad IS NULL ORDER BY i"
        ).fetchall()
        return int(count)

    def first_rows(self, most: int) -> list[tuple[Any, ...]]:
        """Return the first good records as rows of the columns that the statement fills."""
        if not self.parsed:
            return []
        values = ", ".join(f"v{n}" for n in range(len(self._plan.selection.columns)))
        rows: list[tuple[Any, ...]] = self._cursor.execute(
            f"SELECT {values} FROM {STAGED} WHERE bad IS NULL ORDER BY i LIMIT {int(most)}"
        ).fetchall()
        return rows

    def _add(self, chunk: Chunk, projection: Projection) -> None:
        size = chunk.table.num_rows
        if not size:
            return
        # A file of one chunk, the usual one, takes one statement less.
        into = f"INSERT INTO {STAGED}" if self.parsed else f"CREATE OR REPLACE TEMPORARY TABLE {STAGED} AS"
        self._cursor.execute(f"{into} {_query(chunk, projection, self._plan)}")
        first = chunk.table["i"][0].as_py()
        ((found,),) = self._cursor.execute(
            f"SELECT count(*) FROM {STAGED} WHERE i >= {first} AND bad IS NOT NULL"
        ).fetchall()
        self.parsed += size
        self.rejected += found
        if found and len(self.errors) < self._most_errors:
            self._describe(chunk, projection, first)

    def _describe(self, chunk: Chunk, projection: Projection, first: int) -> None:
        columns = self._plan.selection.columns
        # Without a fixed number of fields, an error about it cannot occur.
        fields = projection.fields or 0
        rows = self._cursor.execute(
            f"SELECT i, bad, shown, n FROM {STAGED} WHERE i >= {first} AND bad IS NOT NULL ORDER BY i "
            f"LIMIT {self._most_errors - len(self.errors)}"
        ).fetchall()
        for record, bad, shown, found in rows:
            code, sqlstate, message = row_errors.describe(bad, shown, columns, fields, found)
            place = chunk.locate(record, _field(bad, projection.filled, fields))
            name = row_errors.column_name(self._plan.table, bad, columns, fields, found)
            text = self._record_text(chunk, record - first) if self._with_records else None
            self.errors.append(
                RowError(code, sqlstate, message, record + 1, place.line, place.character, name, text)
            )

    def _record_text(self, chunk: Chunk, position: int) -> str:
        (row,) = chunk.table.slice(position, 1).to_pylist()
        if "l" in row:
            return str(row["l"] or "").strip()
        delimiter = self._plan.file_format.get("FIELD_DELIMITER") or ","
        values = [value for name, value in row.items() if name.startswith("c")]
        return str(delimiter).join("" if value is None else str(value) for value in values)


def _field(bad: int, filled: tuple[Filled, ...], fields: int) -> int | None:
    if bad == row_errors.TOO_MANY_FIELDS:
        return fields
    return filled[bad // row_errors.KINDS].position if bad >= 0 else None


def read_chunks(file_format: FileFormat, file: StagedFile, path: Path, width: int) -> Iterator[Chunk]:
    """Read the records of a staged file, some at a time.

    :param path: readable local path.
    :param width: fields that are needed of each CSV record.
    :raises SqlError: for a type that is not one of :data:`LOADED_TYPES`, or a file that cannot be read.
    """
    kind = file_format.type
    if kind not in LOADED_TYPES:
        raise unsupported(f"loading of files of type {kind}")
    if kind in {"PARQUET", "ORC"}:
        return read_columns(path, file.path, kind)
    blocks = read_blocks(path, file.path, str(file_format["COMPRESSION"]))
    if kind == "CSV":
        return read_csv(blocks, file_format, width)
    return read_json(blocks, file_format)


def facts_of(location: StageLocation, file: StagedFile, scan_ms: int) -> FileFacts:
    """Return what METADATA$... columns tell about a file.

    :param scan_ms: when the statement began to read, epoch milliseconds.
    """
    return FileFacts(
        {
            "METADATA$FILENAME": literal(location.metadata_name(file)),
            "METADATA$FILE_ROW_NUMBER": "(i + 1)",
            "METADATA$FILE_CONTENT_KEY": literal(file.etag),
            "METADATA$FILE_LAST_MODIFIED": f"make_timestamp({file.modified_ms * 1000})",
            "METADATA$START_SCAN_TIME": f"(make_timestamp({scan_ms * 1000}) AT TIME ZONE 'UTC')",
        }
    )


def _query(chunk: Chunk, projection: Projection, plan: CopyPlan) -> str:
    counted = chunk.shape.kind == CSV
    raws, values, finals = [], [], []
    for n, filled in enumerate(projection.filled):
        raws.append(f"{'NULL' if filled.raw is None else filled.raw} AS r{n}")
        if filled.raw is None:
            values.append(f"{filled.value('')} AS t{n}")
            finals.append(f"{_cut(filled.column, f't{n}.v', plan)} AS v{n}")
        else:
            values.append(f"{_cut(filled.column, filled.value(f'r{n}'), plan)} AS w{n}")
            finals.append(f"w{n} AS v{n}")
    width = len(projection.filled)
    shown = " ".join(f"WHEN {n} THEN CAST(r{n} AS VARCHAR)" for n in range(width))
    names = ", ".join(
        f"CAST(v{n} AS {filled.column.type.duckdb}) AS v{n}" for n, filled in enumerate(projection.filled)
    )
    return (
        f"SELECT i, CAST(bad AS INTEGER) AS bad, CASE WHEN bad IS NULL THEN NULL WHEN bad < 0 THEN x ELSE "
        f"CASE bad // {row_errors.KINDS} {shown} END END AS shown, "
        f"CAST({'n' if counted else '0'} AS BIGINT) AS n, {names} "
        f"FROM (SELECT *, CASE {_reasons(projection, plan)} END AS bad "
        f"FROM (SELECT *, {', '.join(finals)} FROM (SELECT *, {', '.join(values)} "
        f"FROM (SELECT *, {', '.join(raws)} FROM {projection.source} OFFSET 0) OFFSET 0) OFFSET 0) OFFSET 0)"
    )


def _cut(column: Column, value: str, plan: CopyPlan) -> str:
    if plan.truncate and column.type.kind == "VARCHAR":
        return f"left({value}, {column.type.length})"
    return value


def _reasons(projection: Projection, plan: CopyPlan) -> str:
    parts = [f"WHEN x IS NOT NULL THEN {row_errors.UNREADABLE}"]
    if projection.fields is not None:
        parts.append(f"WHEN n > {projection.fields} THEN {row_errors.TOO_MANY_FIELDS}")
        parts.append(f"WHEN n < {projection.fields} THEN {row_errors.TOO_FEW_FIELDS}")
    for n, filled in enumerate(projection.filled):
        code = n * row_errors.KINDS
        failed = f"t{n} IS NULL" if filled.raw is None else f"r{n} IS NOT NULL AND v{n} IS NULL"
        parts.append(f"WHEN {failed} THEN {code + row_errors.CONVERSION}")
        longer = conversions.too_long(filled.column, f"v{n}")
        if longer is not None:
            parts.append(f"WHEN {longer} THEN {code + row_errors.TOO_LONG}")
        if not filled.column.nullable:
            parts.append(f"WHEN v{n} IS NULL THEN {code + row_errors.MISSING}")
    return " ".join(parts)
