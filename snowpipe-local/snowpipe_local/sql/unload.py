# ruff: noqa: S608 - names go through tables.quote, texts through tables.literal.
"""COPY INTO a stage ("COPY INTO <location>"): the rows of a query become files, all of them or none.

The engine writes the text of CSV and JSON, one value of Arrow for each row, so that the bytes of a set of
rows go to a file as they are. Files get their paths in the stage when all are complete.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlglot import exp

from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.sql import copy_into, query, timestamps, translate
from snowpipe_local.sql.checks import translate_error
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import OTHER, Bindings, Result, ResultColumn
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import read_location, require_access, resolve_file_format
from snowpipe_local.stages.definition import (
    FileFormat,
    ReadsValue,
    Setting,
    boolean,
    number,
    one_of,
    read_options,
)
from snowpipe_local.stages.files import FolderArea
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.tables import NUMBER, literal, quote_path

# -- The statement: its options, and what they exclude ---------------------------------------------------

_FLAGS = ("OVERWRITE", "SINGLE", "INCLUDE_QUERY_ID", "DETAILED_OUTPUT", "HEADER")
_OPTIONS: dict[str, ReadsValue] = {
    **dict.fromkeys(_FLAGS, boolean), "FILE_FORMAT": copy_into.read_format,
    "MAX_FILE_SIZE": number(1, 5 << 30), "VALIDATION_MODE": one_of("RETURN_ROWS"),
}  # fmt: skip
_DEFAULT_FILE_BYTES = 16 << 20
_SUMMARY = tuple(ResultColumn(name, NUMBER) for name in ("rows_unloaded", "input_bytes", "output_bytes"))
_DETAILS = (ResultColumn("FILE_NAME"), ResultColumn("FILE_SIZE", NUMBER), ResultColumn("ROW_COUNT", NUMBER))
_BY = ResultColumn("PARTITION_NAME")
_PARTITION = "_PARTITION"
_NULL_PARTITION = "__NULL__"


@dataclass(frozen=True, slots=True)
class _Unload:
    """A statement that was understood."""

    target: str
    area: FolderArea
    prefix: str
    file_format: FileFormat
    is_partitioned: bool
    flags: frozenset[str]
    file_bytes: int
    query_id: str

    def path(self, partition: str | None, number: int, ending: str) -> str:
        """Return the path of a file in the stage.

        :param number: of the file, from 0.
        :param ending: what its name ends with, unless it is SINGLE.
        """
        stem = self.prefix
        if self.is_partitioned:
            folder = _NULL_PARTITION if partition is None else partition
            stem += f"{'' if stem.endswith('/') or not stem else '/'}{folder}/"
        if not stem or stem.endswith("/"):
            stem += "data"
        if "SINGLE" in self.flags:
            return stem
        unique = f"_{self.query_id}" if self.is_partitioned or "INCLUDE_QUERY_ID" in self.flags else ""
        return f"{stem}{unique}_0_0_{number}{ending}"

    def check_free(self) -> None:
        """Refuse a location that has files, unless they are replaced or the new ones have other names.

        :raises SqlError: 001030.
        """
        if self.is_partitioned or self.flags & {"OVERWRITE", "INCLUDE_QUERY_ID"}:
            return
        is_single = "SINGLE" in self.flags
        taken = self.area.path(self.path(None, 0, "")).is_file() if is_single else self.area.list(self.prefix)
        if taken:
            raise self.already_exists()

    def already_exists(self) -> SqlError:
        """Return Snowflake's error for files that would be replaced."""
        why = f"Files already existing at the unload destination: {self.target}."
        return SqlError("001030", "22000", f"{why} Use overwrite option to force unloading.")


def copy(session: Session, reader: Reader) -> Result:
    """COPY INTO, a table or a location."""
    if reader.is_sign("@") or reader.is_at_string:
        return unload(session, reader)
    return copy_into.copy_into(session, reader)


def unload(session: Session, reader: Reader) -> Result:
    """COPY INTO location FROM table | (query) [PARTITION BY expression] [options]."""
    if not reader.text[reader.position :].lstrip("'").startswith("@"):
        raise unsupported("COPY INTO a URL (unloading); name an internal stage")
    begin = reader.position
    location = read_location(session, reader)
    target = reader.text[begin : reader.position].strip().strip("'")
    reader.expect("FROM")
    text = reader.parenthesized() if reader.is_sign("(") else f"SELECT * FROM {quote_path(*reader.path())}"
    partition = reader.until(*_OPTIONS) if reader.accept("PARTITION BY") else None
    settings = reader.settings()
    reader.end()
    made = _read(session, location, target, partition is not None, settings)
    tree = _tree(text, partition)
    if "VALIDATION_MODE" in settings:
        return query.select(session, text, Bindings({}))
    made.check_free()
    return _run(session, made, tree)


def _read(
    session: Session,
    location: StageLocation,
    target: str,
    is_partitioned: bool,
    settings: Mapping[str, Setting],
) -> _Unload:
    options = read_options(settings, _OPTIONS)
    flags = frozenset(name for name in _FLAGS if options.get(name))
    is_unique = is_partitioned or "INCLUDE_QUERY_ID" in flags
    if is_unique and flags & {"SINGLE", "OVERWRITE"}:
        why = "PARTITION BY" if is_partitioned else "INCLUDE_QUERY_ID = TRUE"
        raise compilation_error(f"{why} cannot be combined with SINGLE = TRUE or OVERWRITE = TRUE.")
    if is_partitioned and options.get("INCLUDE_QUERY_ID") is False:
        raise compilation_error("PARTITION BY cannot be combined with INCLUDE_QUERY_ID = FALSE.")
    require_access(session, location, "WRITE")
    if location.is_external or not isinstance(location.area, FolderArea):
        raise unsupported("COPY INTO an external stage (unloading); name an internal stage")
    session.catalog.storage.create(location.area.root.name)
    file_format = resolve_file_format(session, options.get("FILE_FORMAT", {}), location.file_format)
    most = options.get("MAX_FILE_SIZE", _DEFAULT_FILE_BYTES)
    return _Unload(
        target, location.area, location.prefix, file_format, is_partitioned, flags, most, session.query_id
    )


def _tree(text: str, partition: str | None) -> exp.Expr:
    """Return the query of a statement, with the value of PARTITION BY as its last column."""
    tree = translate.parse(text)
    if not isinstance(tree, exp.Query):
        raise unsupported("COPY INTO a location from what is not a query")
    if partition is None:
        return tree
    by = translate.parse(f"SELECT ({partition})")
    if len(by.expressions) != 1 or any(value for name, value in by.args.items() if name != "expressions"):
        raise compilation_error("syntax error: PARTITION BY takes one expression.")
    translate.name_projections(tree)
    last = exp.alias_(by.expressions[0], _PARTITION, quoted=True)
    return exp.select("*", last).from_(timestamps.aliased(tree, "_Q"))


# -- The text of values: CSV and JSON, as expressions of the engine --------------------------------------

_BARE = frozenset({"NUMBER", "FLOAT", "BOOLEAN"})
_BINARY = {"HEX": "hex", "BASE64": "to_base64", "UTF8": "decode", "UTF-8": "decode"}


def _typed(number: int, column: ResultColumn) -> str:
    """Return a value as its own type, numbers with 38 digits at most; JSON as text on one line."""
    if column.type.is_semi_structured:
        return f"translate(CAST(to_json(c{number}) AS VARCHAR), chr(10) || chr(13), '  ')"
    return f"CAST(c{number} AS {column.type.duckdb})"


def _text(value: str, column: ResultColumn, file_format: FileFormat, parameters: Mapping[str, Any]) -> str:
    """Return the text of a value, as ``::VARCHAR`` writes it where the file format sets no other way."""
    kind = column.type.kind
    if kind == "BINARY":
        return f"{_BINARY[str(file_format['BINARY_FORMAT'])]}({value})"
    if kind == "FLOAT":
        return f"_float_text({value})"
    if kind == "DATE" or kind.startswith("TIME"):
        written = str(file_format[f"{kind.partition('_')[0]}_FORMAT"])
        shown = timestamps.of_parameters(kind, parameters) if written == "AUTO" else written
        return f"_format_{kind.lower()}({value}, {literal(timestamps.output_format(shown))})"
    return f"CAST({value} AS VARCHAR)"


def _line(columns: Sequence[ResultColumn], file_format: FileFormat, parameters: Mapping[str, Any]) -> str:
    """Return the text of a row with its end, over the columns c0, c1, ..."""
    if file_format.type == "JSON":
        return f"coalesce({_typed(0, columns[0])}, 'null') || chr(10)"
    fields = [
        _field(_text(_typed(number, column), column, file_format, parameters), column, file_format)
        for number, column in enumerate(columns)
    ]
    between = f" || {literal(file_format.text('FIELD_DELIMITER') or '')} || "
    return f"{between.join(fields)} || {literal(file_format.text('RECORD_DELIMITER') or '')}"


def _field(text: str, column: ResultColumn, file_format: FileFormat) -> str:
    """Return a field of CSV: enclosed, or with its special characters escaped; NULL as NULL_IF has it."""
    quote, escape = file_format.text("FIELD_OPTIONALLY_ENCLOSED_BY"), file_format.text("ESCAPE")
    is_bare = quote is None or column.type.kind in _BARE
    written = _bare(text, column, file_format) if is_bare else ""
    if quote is not None and not is_bare:
        inner = _escaped(text, escape, [quote]) if escape else _escaped(text, quote, [])
        written = f"{literal(quote)} || {inner} || {literal(quote)}"
    nulls = file_format["NULL_IF"]
    return f"coalesce({written}, {literal(nulls[0] if isinstance(nulls, tuple) and nulls else '')})"


def _bare(text: str, column: ResultColumn, file_format: FileFormat) -> str:
    end = file_format.text("RECORD_DELIMITER")
    # What a line break ends is read without the carriage return before it.
    special = [file_format.text("FIELD_DELIMITER"), end, "\r" if end == "\n" else None]
    escape = file_format.text("ESCAPE") or file_format.text("ESCAPE_UNENCLOSED_FIELD")
    given, kind = text, column.type.kind
    # A number has no other characters.
    if escape and (kind not in _BARE or re.search(r"[\w.+-]", "".join(filter(None, [escape, *special])))):
        text = _escaped(text, escape, [each for each in special if each])
    if kind != "VARCHAR" or not file_format["EMPTY_FIELD_AS_NULL"]:
        return text
    # Without quotes it would be read as NULL ("EMPTY_FIELD_AS_NULL").
    return f"CASE WHEN {given} = '' THEN '\"\"' ELSE {text} END"


def _escaped(text: str, escape: str, special: Sequence[str]) -> str:
    for each in dict.fromkeys((escape, *special)):
        text = f"replace({text}, {literal(each)}, {literal(escape + each)})"
    return text


# -- Files: written beside the stage, moved into it when all are complete --------------------------------

_CODECS = {
    "AUTO": ("gzip", ".gz"), "GZIP": ("gzip", ".gz"), "BZ2": ("bz2", ".bz2"), "ZSTD": ("zstd", ".zst"),
    "BROTLI": ("brotli", ".br"), "NONE": (None, ""),
}  # fmt: skip
_PARQUET_CODECS = {"AUTO": ("snappy", ".snappy"), "SNAPPY": ("snappy", ".snappy"), "NONE": (None, "")}
# Rows that the engine gives at once, and bytes of them that are written at once: a row group of Parquet.
_BATCH_ROWS, _SET_BYTES = 2048, 4 << 20
_GZIP_LEVEL = 6


def _codec(file_format: FileFormat) -> tuple[str | None, str]:
    """Return pyarrow's name of the compression, and what names of files end with."""
    word, kind = str(file_format["COMPRESSION"]), file_format.type
    if kind == "PARQUET" and not file_format["SNAPPY_COMPRESSION"] and word == "AUTO":
        word = "NONE"
    codecs = _PARQUET_CODECS if kind == "PARQUET" else _CODECS
    if word not in codecs:
        raise unsupported(f"COMPRESSION = {word} for unloaded files of type {kind}")
    codec, suffix = codecs[word]
    if kind == "PARQUET":
        return codec, f"{suffix}.parquet"
    extension = file_format.text("FILE_EXTENSION")
    return codec, f".{extension.lstrip('.')}" if extension else f".{kind.lower()}{suffix}"


def _compressing(handle: pa.NativeFile, codec: str | None) -> Any:
    if codec == "gzip":
        # Arrow has the highest level only, which takes several times as long.
        return gzip.GzipFile("", "wb", _GZIP_LEVEL, handle, 0)
    return pa.CompressedOutputStream(handle, codec) if codec else handle


@dataclass(slots=True)
class _File:
    """One file that is being written, or is complete."""

    path: str
    partition: str | None
    number: int
    temporary: Path
    rows: int = 0
    size: int = 0


class _Files:
    """The files of one statement.

    :param incoming: folder of files that are not complete.
    """

    def __init__(self, unload: _Unload, incoming: Path, names: Sequence[str], header: bytes) -> None:
        self._unload, self._incoming, self._names, self._header = unload, incoming, list(names), header
        self._codec, self._ending = _codec(unload.file_format)
        self._is_single = "SINGLE" in unload.flags
        self._handle: Any = None
        self._writer: Any = None
        self.made: list[_File] = []
        self.input_bytes = 0

    def write(self, partition: str | None, rows: pa.Table) -> None:
        """Write rows of one partition into the open file, or into the next one."""
        last = self.made[-1] if self.made else None
        if last is None or last.partition != partition:
            last = self._open(partition, 0)
        elif last.size >= self._unload.file_bytes and not self._is_single:
            last = self._open(partition, last.number + 1)
        if self._unload.file_format.type == "PARQUET":
            self._write_group(rows.rename_columns(self._names))
        else:
            for lines in rows.column(0).chunks:
                whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
                self._write_text(pc.binary_join(whole, "")[0].as_buffer())
        last.rows += rows.num_rows
        last.size = self._handle.tell()

    def close(self) -> None:
        """Complete the open file."""
        if self._handle is None:
            return
        self._writer.close()
        self._handle.close()
        self._handle = self._writer = None
        last = self.made[-1]
        last.size = last.temporary.stat().st_size
        most = self._unload.file_bytes
        if self._is_single and last.size > most:
            why = (
                f"Max file size ({most}) exceeded for unload single file mode. Actual file size {last.size}."
            )
            raise SqlError("100001", "22000", f"{why} Set MAX_FILE_SIZE, or SINGLE = FALSE.")

    def move_into_stage(self) -> None:
        """Move all files into the stage, or none: then the files that they would replace stay.

        :raises SqlError: 001030 when one of them is there already.
        """
        moved: list[Path] = []
        kept: dict[Path, Path] = {}
        replace = "OVERWRITE" in self._unload.flags
        try:
            for file in self.made:
                old = self._unload.area.path(file.path)
                if replace and old.is_file():
                    kept[old] = self._incoming / secrets.token_hex(16)
                    os.link(old, kept[old])
                moved += [self._unload.area.move_in(file.temporary, file.path, replace=replace)]
        except OSError as error:
            for path in moved:
                if path in kept:
                    kept[path].replace(path)
                else:
                    path.unlink(missing_ok=True)
            if isinstance(error, FileExistsError) and not replace:
                raise self._unload.already_exists() from error
            if isinstance(error, FileExistsError):
                why = (
                    f"'{file.path}' cannot be a file: it, or a part of it, is a folder or file of the stage."
                )
                raise compilation_error(why) from error
            raise
        finally:
            for copy in kept.values():
                copy.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove what is not in the stage."""
        if self._handle is not None:
            # Nobody reads what is left of the file: what else it meets, a full disk, does not matter.
            with contextlib.suppress(OSError, pa.ArrowException):
                if self._writer is not None:
                    self._writer.close()
            self._handle.close()
        for file in self.made:
            file.temporary.unlink(missing_ok=True)

    def _open(self, partition: str | None, number: int) -> _File:
        self.close()
        path = self._unload.path(partition, number, self._ending)
        self._unload.area.path(path)
        file = _File(path, partition, number, self._incoming / secrets.token_hex(16))
        os.close(os.open(file.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self.made.append(file)
        self._handle = pa.OSFile(str(file.temporary), "wb")
        if self._unload.file_format.type != "PARQUET":
            self._writer = _compressing(self._handle, self._codec)
            self._write_text(self._header)
        return file

    def _write_text(self, text: Any) -> None:
        self._writer.write(text)
        self.input_bytes += len(text)

    def _write_group(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._handle, rows.schema, compression=self._codec or "none", store_schema=False
            )
        self._writer.write_table(rows)
        self.input_bytes += rows.nbytes


# -- Rows, from the query to the files -------------------------------------------------------------------


def _run(session: Session, made: _Unload, tree: exp.Expr) -> Result:
    sql = translate.to_duckdb(translate.prepare(session, tree))
    found = session.cursor.execute(f"DESCRIBE {sql}").fetchall()
    columns = query.described([], [(row[0], row[1]) for row in found])
    order = f" ORDER BY c{len(columns) - 1}" if made.is_partitioned else ""
    shown, names = columns, [column.name for column in columns]
    if made.is_partitioned:
        shown, names = columns[:-1], names[:-1]
        if found[-1][1] != "VARCHAR":
            raise compilation_error("PARTITION BY takes an expression that is a string; use TO_VARCHAR.")
    _check_types(shown, made.file_format)
    header = b""
    if made.file_format.type == "PARQUET":
        chosen = ", ".join(_typed(number, column) for number, column in enumerate(shown))
        names = names if "HEADER" in made.flags else [f"_COL_{number}" for number in range(len(names))]
    else:
        chosen = _line(shown, made.file_format, session.parameters)
        if made.file_format.type == "CSV" and "HEADER" in made.flags:
            header = _header(session, names, made.file_format)
    given = ", ".join(f"c{number}" for number in range(len(columns)))
    last = f", c{len(columns) - 1}" if made.is_partitioned else ""
    files = _Files(made, session.catalog.storage.incoming, names, header)
    try:
        with contextlib.closing(
            _batches(session, f"SELECT {chosen}{last} FROM ({sql}) AS q({given}){order}")
        ) as rows:
            for group in _sets(rows, min(_SET_BYTES, made.file_bytes)):
                for partition, part in _parts(group) if made.is_partitioned else [(None, group)]:
                    files.write(partition, part)
        files.close()
        files.move_into_stage()
    finally:
        files.discard()
    return _result(made, files)


def _check_types(columns: Sequence[ResultColumn], file_format: FileFormat) -> None:
    if file_format.type not in {"CSV", "JSON", "PARQUET"}:
        raise unsupported(f"unloading to files of type {file_format.type}")
    if file_format.type == "JSON" and not (len(columns) == 1 and columns[0].type.is_semi_structured):
        raise unsupported("unloading of more than one column or non-json values")
    zoned = [c.type.kind for c in columns if c.type.kind in {"TIMESTAMP_TZ", "TIMESTAMP_LTZ"}]
    if file_format.type == "PARQUET" and zoned:
        why = "TIMESTAMP_TZ and LTZ types are not supported for unloading to Parquet."
        raise SqlError(
            "100171", "22000", f"Error encountered when unloading to PARQUET: {why} value get: {zoned[0]}"
        )


def _header(session: Session, names: Sequence[str], file_format: FileFormat) -> bytes:
    line = _line([ResultColumn(name) for name in names], file_format, {})
    values = ", ".join(f"? AS c{number}" for number in range(len(names)))
    [(text,)] = session.cursor.execute(f"SELECT {line} FROM (SELECT {values})", list(names)).fetchall()
    return str(text).encode()


def _batches(session: Session, sql: str) -> Generator[pa.RecordBatch]:
    """Yield the rows of a query as the engine computes them.

    :raises SqlError: for an error of the engine, which Arrow passes on as its text.
    """
    relation = session.cursor.sql(sql)
    # The second is its name in DuckDB 1.4.
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    with read(_BATCH_ROWS) as reader:
        try:
            yield from reader
        except OSError as error:
            kind = str(error).partition(" Error:")[0].title().replace(" ", "")
            raise translate_error(getattr(duckdb, f"{kind}Exception", duckdb.Error)(str(error))) from error


def _sets(batches: Iterator[pa.RecordBatch], least: int) -> Iterator[pa.Table]:
    """Yield batches together, until they have so many bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= least:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _parts(rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield each run of rows with the same last column, by its value and without it."""
    last = rows.num_columns - 1
    runs = pc.run_end_encode(rows.column(last).combine_chunks())
    start = 0
    for end, value in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield value, rows.slice(start, end - start).remove_column(last)
        start = end


def _result(made: _Unload, files: _Files) -> Result:
    unloaded = sum(file.rows for file in files.made)
    changed = {"unloaded": unloaded}
    if "DETAILED_OUTPUT" not in made.flags:
        row = (unloaded, files.input_bytes, sum(file.size for file in files.made))
        return Result(_SUMMARY, [row], OTHER, changed=changed)
    base = made.prefix if made.is_partitioned and made.prefix else made.prefix.rpartition("/")[0]
    rows: list[Sequence[Any]] = [
        (file.path.removeprefix(base).lstrip("/"), file.size, file.rows) for file in files.made
    ]
    if made.is_partitioned:
        rows = [(file.partition, *row) for file, row in zip(files.made, rows, strict=True)]
    return Result((_BY, *_DETAILS) if made.is_partitioned else _DETAILS, rows, OTHER, changed=changed)
