"""TABLE(INFER_SCHEMA(LOCATION => .., FILE_FORMAT => ..)): the columns of staged Parquet and ORC files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from sqlglot import exp

from airflow_provider_snowpipe.local.errors import compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.sql import query, translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.reader import inline
from airflow_provider_snowpipe.local.sql.results import Result
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.stages.location import (
    StageLocation,
    require_read,
    resolve_file_format,
    resolve_location,
)

# -- TABLE(INFER_SCHEMA(LOCATION => .., FILE_FORMAT => ..)): the columns of staged Parquet and ORC files --

_ARGUMENTS = frozenset(
    {"LOCATION", "FILE_FORMAT", "FILES", "IGNORE_CASE", "MAX_FILE_COUNT", "MAX_RECORDS_PER_FILE"}
)
_NO_ROW = (
    "SELECT NULL::VARCHAR AS COLUMN_NAME, NULL::VARCHAR AS TYPE, TRUE AS NULLABLE, "
    "NULL::VARCHAR AS EXPRESSION, NULL::VARCHAR AS FILENAMES, 0 AS ORDER_ID WHERE FALSE"
)
# The first that fits; a type that is not listed is VARIANT.
_TYPES = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_integer, "NUMBER(38, 0)"),
    (pa.types.is_floating, "REAL"),
    (pa.types.is_string, "TEXT"),
    (pa.types.is_large_string, "TEXT"),
    (pa.types.is_binary, "BINARY"),
    (pa.types.is_large_binary, "BINARY"),
    (pa.types.is_fixed_size_binary, "BINARY"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
    (pa.types.is_null, "TEXT"),
    (pa.types.is_list, "ARRAY"),
    (pa.types.is_large_list, "ARRAY"),
    (pa.types.is_struct, "OBJECT"),
    (pa.types.is_map, "OBJECT"),
)

_CALL = re.compile(r"\bTABLE\s*\(\s*INFER_SCHEMA\b", re.IGNORECASE)


def is_called(text: str) -> bool:
    """Return True for a query that may hold a call of INFER_SCHEMA."""
    return _CALL.search(text) is not None


def select(session: Session, text: str, bindings: Bindings) -> Result:
    """SELECT .. FROM TABLE(INFER_SCHEMA(LOCATION => '@..', FILE_FORMAT => 'name' [, ..])) ..."""
    tree = translate.parse(inline(text, bindings))
    for node in list(tree.find_all(exp.TableFromRows)):
        if isinstance(node.this, exp.Anonymous) and node.this.name.upper() == "INFER_SCHEMA":
            node.replace(_subquery(session, node))
    return query.select(session, tree.sql(dialect="snowflake"), Bindings({}))


def _subquery(session: Session, node: exp.TableFromRows) -> exp.Expr:
    arguments = _arguments(node.this)
    location, rest = resolve_location(session, literal(_string(arguments, "LOCATION")))
    if rest:
        raise compilation_error(f"invalid LOCATION at '{rest[:30]}'.")
    require_read(session, location)
    kind = resolve_file_format(session, {"FORMAT_NAME": _string(arguments, "FILE_FORMAT")}).type
    if kind not in _READERS:
        raise unsupported(f"INFER_SCHEMA of {kind} files; Parquet and ORC are known")
    ignores_case = isinstance(arguments.get("IGNORE_CASE"), exp.Boolean) and arguments["IGNORE_CASE"].this
    rows = _columns(location, _chosen(location, arguments), kind, upper=bool(ignores_case))
    alias = node.alias or "INFER_SCHEMA"
    parsed = translate.parse(" UNION ALL ".join(rows) or _NO_ROW)
    return exp.Subquery(this=parsed, alias=exp.TableAlias(this=exp.to_identifier(alias)))


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
    most = arguments.get("MAX_FILE_COUNT")
    return files[: int(most.name)] if isinstance(most, exp.Literal) and most.name.isdecimal() else files


def _columns(location: StageLocation, files: list[StagedFile], kind: str, *, upper: bool) -> list[str]:
    types: dict[str, str] = {}
    seen: dict[str, list[str]] = {}
    for file in files:
        for column in _schema(location, file, kind):
            name = column.name.upper() if upper else column.name
            types[name] = _common(types.get(name), _type(column.type))
            seen.setdefault(name, []).append(file.path)
    return [
        f"SELECT {literal(_escaped(name))} AS COLUMN_NAME, '{types[name]}' AS TYPE, TRUE AS NULLABLE, "
        f"{literal(_escaped(f'$1:{_path(name)}::{types[name]}'))} AS EXPRESSION, "
        f"{literal(_escaped(', '.join(paths)))} AS FILENAMES, {order} AS ORDER_ID"
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


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def _parquet(path: Path) -> pa.Schema:
    return pyarrow.parquet.read_schema(path)


def _orc(path: Path) -> pa.Schema:
    return pyarrow.orc.ORCFile(path).schema


_READERS = {"PARQUET": _parquet, "ORC": _orc}
