# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""One COPY INTO on its way: the plan, readers of files, and records converted in a temporary table."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import zstandard
from pyarrow import orc, parquet

from snowpipe_local.engine import conversions
from snowpipe_local.engine.database import Database
from snowpipe_local.errors import SqlError, object_missing, unsupported
from snowpipe_local.loading.chunks import COLUMNS, CSV, Chunk, FileShape, Position, read_json
from snowpipe_local.loading.csv_reader import read_csv
from snowpipe_local.loading.selection import RECORDS, Filled, Projection, Selection
from snowpipe_local.stages.definition import FileFormat, Setting
from snowpipe_local.stages.files import StagedFile
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.tables import TEMPORARY, Column, Table, literal, quote

# -- A COPY INTO statement, ready to run: what is read, what is filled, and what happens with errors -----

CONTINUE, SKIP_FILE, ABORT_STATEMENT = "CONTINUE", "SKIP_FILE", "ABORT_STATEMENT"


@dataclass(frozen=True, slots=True)
class OnError:
    """ON_ERROR of a COPY statement.

    :param action: CONTINUE, SKIP_FILE or ABORT_STATEMENT.
    :param count: errors at which SKIP_FILE gives a file up.
    :param percent: the same, as a share of the file's records; None when a number is meant.
    """

    action: str = ABORT_STATEMENT
    count: int = 1
    percent: float | None = None

    def limit(self, parsed: int) -> int:
        """Return the number of errors at which a file with so many records is given up."""
        if self.action == CONTINUE:
            return parsed
        if self.percent is not None:
            return int(parsed * self.percent / 100) + 1
        return self.count

    def gives_up(self, parsed: int, errors: int) -> bool:
        """Return True when no row of a file is to be loaded."""
        return self.action != CONTINUE and errors >= self.limit(parsed)


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of one COPY statement, under their names; None or False where nothing was written.

    :param include_metadata: column name as written to METADATA$... name.
    :param flags: the options that are TRUE or FALSE.
    """

    files: tuple[str, ...] | None = None
    pattern: str | None = None
    file_format: Mapping[str, Setting] = field(default_factory=dict)
    match_by_column_name: str = "NONE"
    include_metadata: Mapping[str, str] = field(default_factory=dict)
    on_error: OnError | None = None
    size_limit: int | None = None
    validation_mode: str | None = None
    access: Mapping[str, Setting] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)

    @property
    def truncate(self) -> bool:
        """TRUNCATECOLUMNS = TRUE, or its opposite ENFORCE_LENGTH = FALSE."""
        return self.has("TRUNCATECOLUMNS") or not self.flags.get("ENFORCE_LENGTH", True)

    def has(self, flag: str) -> bool:
        """Return True for an option that is TRUE."""
        return self.flags.get(flag, False)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One COPY INTO table."""

    database: Database
    table: Table
    location: StageLocation
    file_format: FileFormat
    selection: Selection
    on_error: OnError
    options: CopyOptions

    def forced(self) -> CopyPlan:
        """Return the same with FORCE = TRUE."""
        flags = {**self.options.flags, "FORCE": True}
        return dataclasses.replace(self, options=dataclasses.replace(self.options, flags=flags))

    def check_names(self) -> None:
        """Raise when the table was dropped or got another name since the statement was compiled.

        :raises SqlError: 002003.
        """
        if self.database.tables.find(self.table.schema, self.table.name) is None:
            raise object_missing("Table", str(self.table))

    def file_key(self, file: StagedFile) -> str:
        """Return what the load history recognises a file by: its stage and its path."""
        return self.base + file.path

    @property
    def base(self) -> str:
        """The bucket or folder of an external location; the identity of an internal stage."""
        location = self.location
        if location.is_external:
            return location.base
        root = getattr(location.area, "root", None)
        return f"{root.name if root is not None else location.name}/"


# -- Parquet and ORC files as Arrow chunks of their own columns ------------------------------------------

_ROWS = 122_880


def read_columns(path: Path, name: str, kind: str) -> Iterator[Chunk]:
    """Yield the rows of a Parquet or ORC file.

    :raises SqlError: 100152 for a file of another format.
    """
    row = 0
    try:
        for batch in _parquet(path) if kind == "PARQUET" else _orc(path):
            yield _chunk(batch, row)
            row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise SqlError("100152", "22000", f"Error parsing the {kind} file '{name}': {error}") from error


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(_ROWS)


def _orc(path: Path) -> Iterator[pa.RecordBatch]:
    file = orc.ORCFile(path)
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe)


def _chunk(batch: pa.RecordBatch, row: int) -> Chunk:
    shape = FileShape(COLUMNS, tuple(batch.schema.names), tuple(batch.schema.types))
    size = batch.num_rows
    columns = {"i": pa.array(np.arange(row, row + size, dtype=np.int64)), "x": pa.nulls(size, pa.string())}
    columns |= {f"c{index}": column for index, column in enumerate(batch.columns)}

    def locate(record: int, _field: int | None) -> Position:
        return Position(record + 1, 1)

    return Chunk(shape, pa.table(columns), locate)


# -- Decompression of staged files, by the COMPRESSION of their file format or by their name -------------

BLOCK_BYTES = 8 << 20
_SUFFIXES = {
    ".gz": "GZIP", ".bz2": "BZ2", ".br": "BROTLI", ".zst": "ZSTD", ".deflate": "DEFLATE",
    ".raw_deflate": "RAW_DEFLATE",
}  # fmt: skip
_MAGIC = ((b"\x1f\x8b", "GZIP"), (b"\x28\xb5\x2f\xfd", "ZSTD"), (b"BZh", "BZ2"))
_INFLATE_BITS = {"DEFLATE": zlib.MAX_WBITS, "RAW_DEFLATE": -zlib.MAX_WBITS}


def detect(name: str, start: bytes) -> str:
    """Return the compression of a file whose format has AUTO.

    :param name: file name; its ending decides. Brotli and deflate are found by it only.
    :param start: first bytes, which decide for a name without a known ending.
    """
    for suffix, kind in _SUFFIXES.items():
        if name.lower().endswith(suffix):
            return kind
    return next((kind for magic, kind in _MAGIC if start.startswith(magic)), "NONE")


def read_blocks(path: Path, name: str, compression: str) -> Iterator[bytes]:
    """Yield a file's decompressed content in blocks of about 8 MB at most.

    :param compression: AUTO, NONE or a method, upper case.
    :raises SqlError: 100085 for content that is not of that compression; 000002 for a method unknown here.
    """
    with path.open("rb") as raw:
        kind = detect(name, raw.read(4)) if compression == "AUTO" else compression
        raw.seek(0)
        try:
            yield from _blocks(raw, kind)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException) as error:
            raise SqlError(
                "100085", "22000", f"Error decompressing file '{name}' with compression {kind}: {error}"
            ) from error


def _blocks(raw: Any, kind: str) -> Iterator[bytes]:
    if kind in _INFLATE_BITS:
        yield from _inflated(raw, _INFLATE_BITS[kind])
        return
    if kind not in _OPENERS:
        raise unsupported(f"COMPRESSION = {kind}")
    with contextlib.closing(_OPENERS[kind](raw)) as stream:
        while block := stream.read(BLOCK_BYTES):
            yield bytes(block)


def _inflated(raw: Any, bits: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(bits)
    rest = raw.read(1 << 20)
    while rest and not inflater.eof:
        block = inflater.decompress(rest, BLOCK_BYTES)
        rest = inflater.unconsumed_tail or raw.read(1 << 20)
        if block:
            yield block
    if not inflater.eof:
        raise EOFError("the compressed stream is incomplete")


_OPENERS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda raw: raw,
    "GZIP": lambda raw: gzip.GzipFile(fileobj=raw),
    "BZ2": bz2.BZ2File,
    "ZSTD": lambda raw: zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True),
    "BROTLI": lambda raw: pa.CompressedInputStream(raw, "brotli"),
}


# -- What is wrong with a record, in Snowflake's words ---------------------------------------------------

UNREADABLE, TOO_MANY_FIELDS, TOO_FEW_FIELDS = -1, -2, -3
CONVERSION, TOO_LONG, MISSING = 0, 1, 2
KINDS = 4
_SHOWN_CHARACTERS = 100
_CONTINUE = (
    "If you would like to continue loading when an error is encountered, use other values such as "
    "'SKIP_FILE' or 'CONTINUE' for the ON_ERROR option. For more information on loading options, please run "
    "'info loading_data' in a SQL client."
)
# Numbers as in Snowflake's messages of failed loads.
_UNCONVERTED = {
    "NUMBER": ("100038", "Numeric value '{}' is not recognized"),
    "FLOAT": ("100038", "Numeric value '{}' is not recognized"),
    "BOOLEAN": ("100037", "Boolean value '{}' is not recognized"),
    "DATE": ("100040", "Date '{}' is not recognized"),
    "TIME": ("100108", "Time '{}' is not recognized"),
    "BINARY": ("100115", "The following string is not a legal hex-encoded value: '{}'"),
    "VARIANT": ("100069", "Error parsing JSON: {}"),
    "OBJECT": ("100071", "Failed to cast variant value {} to OBJECT"),
    "ARRAY": ("100071", "Failed to cast variant value {} to ARRAY"),
}


@dataclass(frozen=True, slots=True)
class RowError:
    """One record that could not be loaded.

    :param row: number of the record, counting from 1.
    :param column: column as FIRST_ERROR_COLUMN_NAME shows it, or None.
    :param record: the record, as far as it is shown; None where nobody asked.
    """

    code: str
    sqlstate: str
    message: str
    row: int
    line: int
    character: int
    column: str | None
    record: str | None = None

    def abort(self, file: str) -> SqlError:
        """Return the error of a statement that this record aborts."""
        at = f"\n  File '{file}', line {self.line}, character {self.character}\n  Row {self.row}"
        where = f"{at}, column {self.column}" if self.column else at
        return SqlError(self.code, self.sqlstate, f"{self.message}{where}\n  {_CONTINUE}")


def describe(
    bad: int, shown: str | None, columns: tuple[Column, ...], fields: int, found: int
) -> tuple[str, str, str]:
    """Return number, SQLSTATE and message.

    :param shown: the value, or why the record is unreadable.
    :param fields: fields that a record must have.
    """
    text = (shown or "")[:_SHOWN_CHARACTERS]
    if bad == UNREADABLE:
        code = "100069" if text.startswith("Error parsing JSON") else "100016"
        return code, "22P02" if code == "100069" else "22000", text
    if bad in (TOO_MANY_FIELDS, TOO_FEW_FIELDS):
        return (
            "100080",
            "22000",
            f"Number of columns in file ({found}) does not match that of the corresponding table ({fields}), "
            "use file format option error_on_column_count_mismatch=false to ignore this error",
        )
    column, kind = columns[bad // KINDS], bad % KINDS
    if kind == MISSING:
        return "100072", "22000", "NULL result in a non-nullable column"
    if kind == TOO_LONG:
        return (
            "100074",
            "54000",
            f"User character length limit ({column.type.length}) exceeded by string '{text}'",
        )
    if shown is None:
        return "100038", "22018", f"the expression for column {column.name} failed on this record"
    code, message = _UNCONVERTED.get(column.type.kind, ("100035", "Timestamp '{}' is not recognized"))
    return (
        code,
        "22018" if code == "100038" else "22007" if code in {"100035", "100040"} else "22000",
        (message.format(text)),
    )


def column_name(table: Table, bad: int, columns: tuple[Column, ...], fields: int, found: int) -> str | None:
    """Return the column of an error as Snowflake shows it: ``"TABLE"["COLUMN":number]``."""
    if bad == UNREADABLE:
        return None
    shown = table.name.partition(TEMPORARY)[0]
    if bad == TOO_MANY_FIELDS:
        return f'"{shown}"[{fields + 1}]'
    number = found if bad == TOO_FEW_FIELDS else bad // KINDS
    if number >= len(columns):
        return f'"{shown}"[{number + 1}]'
    column = columns[number]
    ordinal = 1 + next(n for n, known in enumerate(table.columns) if known.name == column.name)
    return f'"{shown}"["{column.name}":{ordinal}]'


STAGED = "_staged_records"
LOADED_TYPES = ("CSV", "JSON", "PARQUET", "ORC")
"""Types of files that the service reads."""


class StagedRecords:
    """The temporary table of one file. Rows move inside DuckDB; Python sees errors only.

    :param most_errors: errors to describe; the others are only counted.
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

    def fill(self, file: StagedFile) -> None:
        """Read a file into the temporary table.

        :raises SqlError: when the file cannot be read at all.
        """
        plan = self._plan
        with plan.location.local_copy(file) as path:
            facts = facts_of(plan.location, file, plan.database.clock.now_ms())
            try:
                for chunk in read_chunks(plan.file_format, file, path, plan.selection.width):
                    self._cursor.register(RECORDS, chunk.table)
                    self._add(chunk, plan.selection.project(self._cursor, chunk.shape, facts))
            finally:
                # After an error of the engine this fails as well, and is not what is to be reported.
                with contextlib.suppress(duckdb.TransactionException):
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
            code, sqlstate, message = describe(bad, shown, columns, fields, found)
            position = chunk.locate(record, _field(bad, projection.filled, fields))
            name = column_name(self._plan.table, bad, columns, fields, found)
            text = self._record_text(chunk, record - first) if self._with_records else None
            self.errors.append(
                RowError(code, sqlstate, message, record + 1, position.line, position.character, name, text)
            )

    def _record_text(self, chunk: Chunk, position: int) -> str:
        (row,) = chunk.table.slice(position, 1).to_pylist()
        if "l" in row:
            return str(row["l"] or "").strip()
        delimiter = self._plan.file_format.get("FIELD_DELIMITER") or ","
        values = [value for name, value in row.items() if name.startswith("c")]
        return str(delimiter).join("" if value is None else str(value) for value in values)


def _field(bad: int, filled: tuple[Filled, ...], fields: int) -> int | None:
    if bad == TOO_MANY_FIELDS:
        return fields
    return filled[bad // KINDS].position if bad >= 0 else None


def read_chunks(file_format: FileFormat, file: StagedFile, path: Path, width: int) -> Iterator[Chunk]:
    """Read the records of a staged file, some at a time.

    :param file_format: of one of :data:`LOADED_TYPES`.
    :raises SqlError: for a file that cannot be read.
    """
    kind = file_format.type
    if kind in {"PARQUET", "ORC"}:
        return read_columns(path, file.path, kind)
    blocks = read_blocks(path, file.path, str(file_format["COMPRESSION"]))
    if kind == "CSV":
        return read_csv(blocks, file_format, width)
    return read_json(blocks, file_format)


def facts_of(location: StageLocation, file: StagedFile, scan_ms: int) -> dict[str, str]:
    """Return the values of METADATA$... columns for a file.

    :param scan_ms: when the statement began to read, epoch milliseconds.
    """
    return {
        "METADATA$FILENAME": literal(location.metadata_name(file)),
        "METADATA$FILE_ROW_NUMBER": "(i + 1)",
        "METADATA$FILE_CONTENT_KEY": literal(file.etag),
        "METADATA$FILE_LAST_MODIFIED": f"make_timestamp({file.modified_ms * 1000})",
        "METADATA$START_SCAN_TIME": f"(make_timestamp({scan_ms * 1000}) AT TIME ZONE 'UTC')",
    }


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
        f"CASE bad // {KINDS} {shown} END END AS shown, "
        f"CAST({'n' if counted else '0'} AS BIGINT) AS n, {names} "
        f"FROM (SELECT *, CASE {_reasons(projection)} END AS bad "
        f"FROM (SELECT *, {', '.join(finals)} FROM (SELECT *, {', '.join(values)} "
        f"FROM (SELECT *, {', '.join(raws)} FROM {projection.source} OFFSET 0) OFFSET 0) OFFSET 0) OFFSET 0)"
    )


def _cut(column: Column, value: str, plan: CopyPlan) -> str:
    if plan.options.truncate and column.type.kind == "VARCHAR":
        return f"left({value}, {column.type.length})"
    return value


def _reasons(projection: Projection) -> str:
    parts = [f"WHEN x IS NOT NULL THEN {UNREADABLE}"]
    if projection.fields is not None:
        parts.append(f"WHEN n > {projection.fields} THEN {TOO_MANY_FIELDS}")
        parts.append(f"WHEN n < {projection.fields} THEN {TOO_FEW_FIELDS}")
    for n, filled in enumerate(projection.filled):
        code = n * KINDS
        failed = f"t{n} IS NULL" if filled.raw is None else f"r{n} IS NOT NULL AND v{n} IS NULL"
        parts.append(f"WHEN {failed} THEN {code + CONVERSION}")
        longer = conversions.too_long(filled.column, f"v{n}")
        if longer is not None:
            parts.append(f"WHEN {longer} THEN {code + TOO_LONG}")
        if not filled.column.nullable:
            parts.append(f"WHEN v{n} IS NULL THEN {code + MISSING}")
    return " ".join(parts)
