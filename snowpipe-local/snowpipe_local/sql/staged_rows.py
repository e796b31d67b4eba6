# ruff: noqa: S608 - expressions are our own, values go through tables.literal.
"""Rows of staged files: ``SELECT $1, METADATA$FILENAME FROM @stage (FILE_FORMAT => .., PATTERN => ..)``.

As the page "Querying Data in Staged Files" describes it. The rows are read into memory before the statement
runs; CSV has a text column for each field that the statement names, other types one VARIANT, ``$1``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import sqlglot
from sqlglot import exp

from snowpipe_local.errors import SqlError, compilation_error, invalid_identifier, unsupported
from snowpipe_local.loading import selection, staging
from snowpipe_local.loading.chunks import CSV, JSON, Chunk
from snowpipe_local.loading.selection import (
    METADATA,
    RECORDS,
    field_number,
    json_source,
    text_field,
    whole_row,
)
from snowpipe_local.loading.staging import LOADED_TYPES, RowError, facts_of, read_chunks
from snowpipe_local.sql import timestamps
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import (
    refuse_parsed_header,
    require_access,
    resolve_file_format,
    resolve_location,
)
from snowpipe_local.stages.definition import FileFormat
from snowpipe_local.stages.files import StagedFile
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.tables import (
    NUMBER,
    TEXT,
    TIMESTAMP_LTZ,
    Column,
    ColumnType,
    literal,
    quote,
    quote_path,
)

# -- Rows of staged files: ``SELECT $1, METADATA$FILENAME FROM @stage (FILE_FORMAT => .., PATTERN => ..)`` --

_ALIAS = "STAGED_FILES"
_VARIANT = ColumnType("VARIANT")
_METADATA_TYPES = {
    "METADATA$FILE_ROW_NUMBER": NUMBER,
    "METADATA$FILE_LAST_MODIFIED": ColumnType("TIMESTAMP_NTZ", precision=9),
    "METADATA$START_SCAN_TIME": TIMESTAMP_LTZ,
}
_ARROW_TYPES = {
    "NUMBER": pa.int64(), "TIMESTAMP_NTZ": pa.timestamp("us"), "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def replace_staged_files(session: Session, tree: exp.Expr) -> None:
    """Put a subquery with the rows of its files where a query reads a stage.

    :raises SqlError: for a stage, format or file that cannot be read.
    """
    for table in [table for table in tree.find_all(exp.Table) if _is_staged(table)]:
        select = table.find_ancestor(exp.Select)
        if not isinstance(table.parent, (exp.From, exp.Join)) or select is None:
            raise unsupported("a stage outside of FROM")
        if any(projection.is_star for projection in select.expressions):
            raise unsupported("SELECT * FROM a stage; name the columns: $1, $2, ..")
        others = (part for part in select.find_all(exp.Table) if part.find_ancestor(exp.Select) is select)
        alias = table.alias or _ALIAS
        width = _name_fields(select, alias, is_alone=sum(map(_is_staged, others)) == 1)
        table.replace(_rows(session, table, alias, width))


def _is_staged(table: exp.Table) -> bool:
    source = table.this
    written = source.name if isinstance(source, (exp.Var, exp.Literal)) else ""
    return written.startswith("@")


def _name_fields(select: exp.Select, alias: str, *, is_alone: bool) -> int:
    """Make columns of ``$1``, ``t.$2``, ..; return the highest number."""
    highest = 1
    known = {source.alias for source in select.find_all(exp.Table, exp.Subquery, exp.Values)}
    for parameter in list(select.find_all(exp.Parameter)):
        if not parameter.name.isdecimal() or parameter.find_ancestor(exp.Select) is not select:
            continue
        if parameter.meta.get("bound"):
            continue
        holder = parameter.parent if isinstance(parameter.parent, exp.Column) else None
        owner = holder.table if holder is not None else ""
        if holder is not None and owner not in known:
            written = holder.sql(dialect="snowflake")
            raise invalid_identifier(written)
        if owner and owner != alias:
            continue
        number = field_number(parameter.name)
        if not owner and not is_alone:
            raise compilation_error(f"ambiguous column name '${number}'", "002028", "42601")
        highest = max(highest, number)
        column = exp.column(
            exp.to_identifier(f"${number}", quoted=True), table=exp.to_identifier(alias, quoted=True)
        )
        (holder or parameter).replace(column)
    return highest


def _rows(session: Session, table: exp.Table, alias: str, width: int) -> exp.Subquery:
    source = table.this
    written = literal(source.name) if isinstance(source, exp.Literal) else source.name
    location, rest = resolve_location(session, written)
    if rest:
        raise compilation_error(f"syntax error: unexpected '{rest[:40]}'.")
    require_access(session, location, "READ")
    file_format = resolve_file_format(session, _format(table.args.get("format")), location.file_format)
    if file_format.type not in LOADED_TYPES:
        raise unsupported(f"reading of files of type {file_format.type}")
    if file_format.type != CSV and width > 1:
        raise compilation_error(
            f"invalid column ${width}: files of this type have one column, $1: the whole record."
        )
    refuse_parsed_header(file_format)
    pattern = table.args.get("pattern")
    if pattern is not None and not (isinstance(pattern, exp.Literal) and pattern.is_string):
        raise compilation_error("PATTERN is a regular expression in quotes.")
    columns = _columns(file_format, width)
    parts = [_empty(columns)]
    for file in location.list(pattern.name if pattern is not None else None):
        parts += _file(session, location, file_format, file, columns)
    relation = session.register(pa.concat_tables(parts))
    selected = ", ".join(
        f"_sorted_keys(CAST(_shallow({quote(column.name)}) AS JSON)) AS {quote(column.name)}"
        if column.type is _VARIANT
        else quote(column.name)
        for column in columns
    )
    read = sqlglot.parse_one(f"SELECT {selected} FROM {quote(relation)}", dialect="duckdb")
    query = timestamps.aliased(read, alias)
    query.meta["columns"] = columns
    return query


def _format(written: exp.Expr | None) -> dict[str, str]:
    if written is None:
        return {}
    if isinstance(written, exp.Table):
        return {"FORMAT_NAME": quote_path(*(part.name for part in written.parts))}
    if isinstance(written, exp.Literal) and written.is_string:
        return {"FORMAT_NAME": written.name}
    raise compilation_error("FILE_FORMAT is the name of a file format.")


def _columns(file_format: FileFormat, width: int) -> tuple[Column, ...]:
    fields = (
        tuple(Column(f"${number}", TEXT) for number in range(1, width + 1))
        if file_format.type == CSV
        else (Column("$1", _VARIANT),)
    )
    return (*fields, *(Column(name, _METADATA_TYPES.get(name, TEXT)) for name in METADATA))


def _empty(columns: tuple[Column, ...]) -> pa.Table:
    fields = [(column.name, _ARROW_TYPES.get(column.type.kind, pa.string())) for column in columns]
    return pa.schema(fields).empty_table()


def _file(
    session: Session,
    location: StageLocation,
    file_format: FileFormat,
    file: StagedFile,
    columns: tuple[Column, ...],
) -> list[pa.Table]:
    facts = facts_of(location, file, session.catalog.clock.now_ms())
    width = len(columns) - len(METADATA)
    cursor, found = session.cursor, []
    try:
        with location.local_copy(file) as path:
            for chunk in read_chunks(file_format, file, path, width):
                cursor.execute("SELECT 1").fetchall()
                cursor.register(RECORDS, chunk.table)
                source, values = _expressions(chunk, file_format, facts, columns)
                unread = f"SELECT i, x FROM {source} WHERE x IS NOT NULL ORDER BY i LIMIT 1"
                for record, reason in cursor.execute(unread).fetchall():
                    raise _unreadable(location, file, chunk, record, reason)
                rows = cursor.sql(f"SELECT {', '.join(values)} FROM {source} ORDER BY i").to_arrow_table()
                found.append(rows.cast(_empty(columns).schema))
    finally:
        cursor.unregister(RECORDS)
    return found


def _expressions(
    chunk: Chunk, file_format: FileFormat, facts: Mapping[str, str], columns: tuple[Column, ...]
) -> tuple[str, list[str]]:
    """Return the relation of a chunk's records, and an expression for each column."""
    if chunk.shape.kind == CSV:
        source = RECORDS
        filled = [
            text_field(column, number, file_format) for number, column in enumerate(columns[: -len(METADATA)])
        ]
        values = [field.value(str(field.raw)) for field in filled]
    else:
        source = json_source(file_format) if chunk.shape.kind == JSON else RECORDS
        document = selection.json_value(columns[0], f"({whole_row(chunk.shape, file_format)})", file_format)
        values = [f"CAST({document} AS VARCHAR)"]
    values += [facts[name] for name in METADATA]
    return source, [f"{value} AS {quote(column.name)}" for value, column in zip(values, columns, strict=True)]


def _unreadable(
    location: StageLocation, file: StagedFile, chunk: Chunk, record: int, reason: str
) -> SqlError:
    code, sqlstate, message = staging.describe(staging.UNREADABLE, reason, (), 0, 0)
    position = chunk.locate(record, None)
    error = RowError(code, sqlstate, message, record + 1, position.line, position.character, None)
    return error.abort(location.listed_name(file))
