# ruff: noqa: S608 - expressions are our own, values go through tables.literal.
"""TABLE(INFER_SCHEMA(LOCATION => .., FILE_FORMAT => ..)): the columns of staged files.

Parquet and ORC files say their types. Those of CSV fields and of the keys of JSON records are the narrowest
that hold every value, as the page "INFER_SCHEMA" describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from sqlglot import exp

from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.loading.chunks import CSV, JSON
from snowpipe_local.loading.selection import RECORDS, json_source, text_field
from snowpipe_local.loading.staging import read_chunks
from snowpipe_local.sql.results import Result, ResultColumn
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import require_access, resolve_file_format, resolve_location
from snowpipe_local.stages.definition import FileFormat
from snowpipe_local.stages.files import StagedFile
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.tables import BOOLEAN, NUMBER, TEXT, Column, literal, quote

_ARGUMENTS = frozenset(
    {"LOCATION", "FILE_FORMAT", "FILES", "IGNORE_CASE", "MAX_FILE_COUNT", "MAX_RECORDS_PER_FILE"}
)
_INFERRED = (
    ResultColumn("COLUMN_NAME"), ResultColumn("TYPE"), ResultColumn("NULLABLE", BOOLEAN),
    ResultColumn("EXPRESSION"), ResultColumn("FILENAMES"), ResultColumn("ORDER_ID", NUMBER),
)  # fmt: skip
# The first that fits; a type that is not listed is VARIANT.
_TYPES = (
    (pa.types.is_boolean, "BOOLEAN"), (pa.types.is_integer, "NUMBER(38, 0)"), (pa.types.is_floating, "REAL"),
    (pa.types.is_string, "TEXT"), (pa.types.is_large_string, "TEXT"), (pa.types.is_binary, "BINARY"),
    (pa.types.is_large_binary, "BINARY"), (pa.types.is_fixed_size_binary, "BINARY"),
    (pa.types.is_date, "DATE"), (pa.types.is_time, "TIME"), (pa.types.is_null, "TEXT"),
    (pa.types.is_list, "ARRAY"), (pa.types.is_large_list, "ARRAY"), (pa.types.is_struct, "OBJECT"),
    (pa.types.is_map, "OBJECT"),
)  # fmt: skip


def infer_schema(session: Session, call: exp.Anonymous) -> Result:
    """Return the rows of ``TABLE(INFER_SCHEMA(LOCATION => '@..', FILE_FORMAT => 'name' [, ..]))``.

    :raises SqlError: for wrong arguments, and files of a type that is not known.
    """
    arguments = _arguments(call)
    location, rest = resolve_location(session, literal(_string(arguments, "LOCATION")))
    if rest:
        raise compilation_error(f"invalid LOCATION at '{rest[:30]}'.")
    require_access(session, location, "READ")
    file_format = resolve_file_format(session, {"FORMAT_NAME": _string(arguments, "FILE_FORMAT")})
    kind = file_format.type
    ignores_case = isinstance(arguments.get("IGNORE_CASE"), exp.Boolean) and arguments["IGNORE_CASE"].this
    files = _chosen(location, arguments)
    if kind in _READERS:
        rows = _inferred(location, files, kind, upper=bool(ignores_case))
    elif kind in {CSV, JSON}:
        most = arguments.get("MAX_RECORDS_PER_FILE")
        records = int(most.name) if isinstance(most, exp.Literal) and most.name.isdecimal() else None
        rows = _of_texts(session, location, files, file_format, records, upper=bool(ignores_case))
    else:
        raise unsupported(f"INFER_SCHEMA of {kind} files")
    return Result(_INFERRED, rows)


def _arguments(call: exp.Anonymous) -> dict[str, exp.Expr]:
    found: dict[str, exp.Expr] = {}
    for argument in call.expressions:
        name = argument.this.name.upper() if isinstance(argument, exp.Kwarg) else ""
        if name not in _ARGUMENTS:
            raise compilation_error(f"INFER_SCHEMA takes {', '.join(sorted(_ARGUMENTS))}, each with =>.")
        found[name] = argument.expression
    return found


def _string(arguments: Mapping[str, exp.Expr], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, exp.Literal) or not value.is_string:
        raise compilation_error(f"INFER_SCHEMA needs {name} => 'string'.")
    return str(value.this)


def _chosen(location: StageLocation, arguments: Mapping[str, exp.Expr]) -> list[StagedFile]:
    files = location.list()
    named = arguments.get("FILES")
    if named is not None:
        paths = {location.path_of(entry.name) for entry in named.find_all(exp.Literal)}
        files = [file for file in files if file.path in paths]
        missing = sorted(paths - {file.path for file in files})
        if missing:
            raise SqlError("091016", "22000", f"Remote file '{missing[0]}' was not found.")
    most = arguments.get("MAX_FILE_COUNT")
    return files[: int(most.name)] if isinstance(most, exp.Literal) and most.name.isdecimal() else files


def _inferred(
    location: StageLocation, files: list[StagedFile], kind: str, *, upper: bool
) -> list[Sequence[Any]]:
    types: dict[str, str] = {}
    seen: dict[str, list[str]] = {}
    for file in files:
        for column in _schema(location, file, kind):
            name = column.name.upper() if upper else column.name
            types[name] = _common(types.get(name), _type(column.type))
            seen.setdefault(name, []).append(file.path)
    return [
        (name, types[name], True, f"$1:{_path(name)}::{types[name]}", ", ".join(paths), order)
        for order, (name, paths) in enumerate(seen.items())
    ]


def _schema(location: StageLocation, file: StagedFile, kind: str) -> pa.Schema:
    try:
        with location.local_copy(file) as path:
            return _READERS[kind](path)
    except (pa.ArrowException, OSError) as error:
        raise compilation_error(f"file '{location.listed_name(file)}' is no {kind} file: {error}") from error


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"NUMBER({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP_LTZ"
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    return next((name for fits, name in _TYPES if fits(kind)), "VARIANT")


def _common(known: str | None, found: str) -> str:
    """Return a type that holds the values of both."""
    if known in {None, found}:
        return found
    if {known, found} <= {"NUMBER(38, 0)", "REAL"}:
        return "REAL"
    return "TEXT"


def _path(name: str) -> str:
    return name if name.isidentifier() else quote(name)


_READERS: dict[str, Callable[[Path], pa.Schema]] = {
    "PARQUET": pyarrow.parquet.read_schema,
    "ORC": lambda path: pyarrow.orc.ORCFile(path).schema,
}


# -- CSV and JSON: by the forms of the values that each column has ---------------------------------------

# Of the text v of a value; t is the type of a JSON value, NULL for a field of CSV.
_FORMS = r"""CASE WHEN v IS NULL OR t = 'NULL' THEN NULL WHEN t IN ('ARRAY', 'OBJECT') THEN t
    WHEN t = 'VARCHAR' THEN 'TEXT'
    WHEN regexp_full_match(v, '[+-]?(\d+\.?\d*|\.\d+)') THEN 'NUMBER'
    WHEN regexp_full_match(v, '[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+') THEN 'REAL'
    WHEN lower(v) IN ('true', 'false') THEN 'BOOLEAN'
    WHEN regexp_full_match(v, '\d{4}-\d\d-\d\d') AND TRY(_date(v)) IS NOT NULL THEN 'DATE'
    WHEN regexp_full_match(v, '\d\d:\d\d:\d\d(\.\d+)?') AND TRY(_time(v)) IS NOT NULL THEN 'TIME'
    WHEN regexp_full_match(v, '\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?') AND TRY(_ntz(v)) IS NOT NULL
        THEN 'TIMESTAMP_NTZ' ELSE 'TEXT' END"""
_WIDER = (({"NUMBER", "REAL"}, "REAL"), ({"DATE", "TIMESTAMP_NTZ"}, "TIMESTAMP_NTZ"))
_MOST_DIGITS = 38


@dataclass(slots=True)
class _Seen:
    """What is known of the values of a column."""

    forms: set[str] = field(default_factory=set)
    whole: int = 0
    fraction: int = 0
    files: dict[str, None] = field(default_factory=dict)

    def type(self) -> str:
        """Return the type that holds all values."""
        if self.forms == {"NUMBER"}:
            digits = self.whole + self.fraction
            return f"NUMBER({digits}, {self.fraction})" if digits <= _MOST_DIGITS else "TEXT"
        if len(self.forms) == 1:
            return next(iter(self.forms))
        wider = (kind for forms, kind in _WIDER if self.forms and self.forms <= forms)
        return next(wider, "VARIANT" if self.forms & {"ARRAY", "OBJECT"} else "TEXT")


def _of_texts(
    session: Session,
    location: StageLocation,
    files: list[StagedFile],
    file_format: FileFormat,
    records: int | None,
    *,
    upper: bool,
) -> list[Sequence[Any]]:
    seen: dict[str, _Seen] = {}
    for file in files:
        for key, forms, whole, fraction in _forms_of(session, location, file, file_format, records):
            column = seen.setdefault(key.upper() if upper else key, _Seen())
            column.forms |= set(forms or ())
            column.whole, column.fraction = max(column.whole, whole or 1), max(column.fraction, fraction or 0)
            column.files[file.path] = None
    is_csv = file_format.type == CSV
    names = list(seen) if is_csv else sorted(seen)
    places = [f"${n}" if is_csv else f"$1:{_path(name)}" for n, name in enumerate(names, start=1)]
    return [
        (name, kind := seen[name].type(), True, f"{place}::{kind}", ", ".join(seen[name].files), order)
        for order, (name, place) in enumerate(zip(names, places, strict=True))
    ]


def _forms_of(
    session: Session, location: StageLocation, file: StagedFile, file_format: FileFormat, records: int | None
) -> list[tuple[str, list[str] | None, int | None, int | None]]:
    """Return for each column of a file: its name, the forms of its values, and their digits."""
    cursor = session.cursor
    found: list[tuple[str, list[str] | None, int | None, int | None]] = []
    width = 1
    with location.local_copy(file) as path:
        if file_format.type == CSV:
            first = next(iter(read_chunks(file_format, file, path, 1)), None)
            width = first.table["n"][0].as_py() if first is not None else 0
        try:
            for chunk in read_chunks(file_format, file, path, width):
                cursor.register(RECORDS, chunk.table)
                if file_format.type == CSV:
                    names = chunk.shape.names or [f"c{number}" for number in range(1, width + 1)]
                    fields = [text_field(Column("c", TEXT), n, file_format) for n in range(len(names))]
                    values = ", ".join(
                        f"row({n}, {literal(name)}, {one.value(str(one.raw))}, NULL)"
                        for n, (name, one) in enumerate(zip(names, fields, strict=True))
                    )
                    source = f"SELECT unnest([{values}]) AS c FROM {RECORDS}"
                else:
                    source = (
                        "SELECT row(0, k, json_extract_string(j, p), json_type(j, p)) AS c FROM (SELECT j, "
                        "k, '/' || replace(replace(k, '~', '~0'), '/', '~1') AS p FROM (SELECT i, x, j, "
                        f"unnest(json_keys(j)) AS k FROM {json_source(file_format)}"
                    )
                limit = "x IS NULL" if records is None else f"x IS NULL AND i < {records}"
                source += f" WHERE {limit}" + ("" if file_format.type == CSV else "))")
                found += cursor.execute(
                    "SELECT c[2], list(DISTINCT f) FILTER (f IS NOT NULL), "
                    r"max(CASE WHEN f = 'NUMBER' THEN length(regexp_extract(v, '^[+-]?0*(\d*)', 1)) END), "
                    r"max(CASE WHEN f = 'NUMBER' THEN length(regexp_extract(v, '\.(\d*)$', 1)) END) FROM "
                    f"(SELECT c, v, {_FORMS} AS f FROM (SELECT c, c[3] AS v, c[4] AS t FROM ({source}))) "
                    "GROUP BY c[1], c[2] ORDER BY c[1], c[2]"
                ).fetchall()
        finally:
            cursor.unregister(RECORDS)
    return found
