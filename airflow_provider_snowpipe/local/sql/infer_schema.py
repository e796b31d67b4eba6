"""TABLE(INFER_SCHEMA(LOCATION => .., FILE_FORMAT => ..)): the columns of staged Parquet and ORC files."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from sqlglot import exp

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.sql import query, translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import Result
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.files import StagedFile
from airflow_provider_snowpipe.local.stages.location import (
    StageLocation,
    require_read,
    resolve_file_format,
    resolve_location,
)

# -- Owned statements made plain: no comments, IDENTIFIER(..) resolved, bound values written as literals --

_STRING = r"'(?:[^'\\]|\\.|'')*'"
_TOKEN = re.compile(
    rf"(?P<kept>{_STRING}|\"(?:[^\"]|\"\")*\"|\$\$.*?\$\$)"
    r"|(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)"
    r"|(?P<bind>\?|(?<![\w:$]):(?P<number>\d+))",
    re.DOTALL,
)
# A placeholder of PUT and GET stands alone: their paths may hold its signs.
_WORD = re.compile(rf"(?P<kept>{_STRING})|(?<!\S)(?P<bind>\?|:(?P<number>\d+))(?!\S)", re.DOTALL)
_IDENTIFIER = re.compile(rf"\bIDENTIFIER\s*\(\s*(?P<name>{_STRING})\s*\)", re.IGNORECASE | re.DOTALL)


def inline(text: str, bindings: Bindings, *, typed: bool = False) -> str:
    """Return a statement that needs no bindings.

    ``IDENTIFIER('name')`` becomes the name. Text inside of strings and quoted names stays as it is.

    :param typed: dates and times are literals of their types, as queries need them; text otherwise.
    :raises SqlError: when a placeholder has no value, or the statement is to run for several rows.
    """
    values, used = _values(bindings), 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal used
        if match["kept"]:
            return match[0]
        if match["comment"]:
            return " "
        if not values:
            return match[0]
        used += 1
        number = int(match["number"]) if match["number"] else used
        return _bound(values, number) + (_type_of(values[number - 1]) if typed else "")

    plain = _TOKEN.sub(replaced, text)
    return _IDENTIFIER.sub(lambda match: _unquoted(match["name"]), plain).strip()


def shares(statements: Sequence[str], sent: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bound values of each of several statements, whose ``?`` are counted through."""
    shared: list[dict[str, Any]] = []
    first = 1
    for statement in statements:
        after = first + sum(match[0] == "?" for match in _TOKEN.finditer(statement))
        shared.append({str(n - first + 1): sent[str(n)] for n in range(first, after) if str(n) in sent})
        first = after
    return shared


def inline_words(text: str, bindings: Bindings) -> str:
    """Return a PUT or GET that needs no bindings; comments stay, because a path may look like one.

    :raises SqlError: as :func:`inline` does.
    """
    values, used = _values(bindings), 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal used
        if match["kept"] or not values:
            return match[0]
        used += 1
        return _bound(values, int(match["number"]) if match["number"] else used)

    return _WORD.sub(replaced, text)


def _values(bindings: Bindings) -> list[Any]:
    rows = bindings.rows() if bindings else []
    if len(rows) > 1:
        raise unsupported("several rows of bound values in a statement that is not DML")
    return rows[0] if rows else []


def _bound(values: list[Any], number: int) -> str:
    if not 1 <= number <= len(values):
        raise SqlError("002049", "42601", "SQL compilation error:\nBind variable not set.")
    return _literal(values[number - 1])


def _type_of(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return "::TIMESTAMP_TZ" if value.tzinfo else "::TIMESTAMP_NTZ"
    return f"::{type(value).__name__}" if isinstance(value, (dt.date, dt.time)) else ""


def _unquoted(literal: str) -> str:
    return re.sub(r"\\(.)|''", lambda found: found[1] or "'", literal[1:-1], flags=re.DOTALL)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float, decimal.Decimal)):
        return str(value)
    if isinstance(value, bytes):
        return f"'{value.hex()}'"
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return f"'{value.isoformat()}'"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


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
