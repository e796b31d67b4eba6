"""COPY INTO table: one transaction, one row of result for each file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import quote_path, read_path
from airflow_provider_snowpipe.local.loading import history, loader
from airflow_provider_snowpipe.local.loading.loader import FileOutcome, commit_load
from airflow_provider_snowpipe.local.loading.plan import CopyPlan, OnError
from airflow_provider_snowpipe.local.loading.selection import ByName, ByPosition, Selection, field_number
from airflow_provider_snowpipe.local.loading.staging import LOADED_TYPES
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.copy_options import CopyOptions, read_copy_options
from airflow_provider_snowpipe.local.sql.copy_validation import validate
from airflow_provider_snowpipe.local.sql.record_expressions import ByExpression, read_expressions
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.formats import FileFormat
from airflow_provider_snowpipe.local.stages.location import (
    StageLocation,
    require_read,
    resolve_file_format,
    resolve_location,
    with_settings,
)
from airflow_provider_snowpipe.local.stages.settings import read_settings
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import NUMBER, TEXT

# -- Compilation of COPY INTO table: the text of a statement becomes a plan ------------------------------

_FROM = re.compile(r"FROM\b\s*", re.IGNORECASE)
_SELECT = re.compile(r"\(\s*SELECT\b", re.IGNORECASE)
_ALIAS = re.compile(r'(?:AS\s+)?(?:"[^"]+"|[A-Za-z_][\w$]*)\s*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CompiledCopy:
    """A COPY statement that was understood.

    :param plan: how to run it.
    :param options: what was written.
    """

    plan: CopyPlan
    options: CopyOptions


@dataclass(frozen=True, slots=True)
class _Source:
    location: StageLocation
    select: str | None
    inner: str
    rest: str


def compile_copy(session: Session, text: str, *, default: OnError | None = None) -> CompiledCopy:
    """Compile ``[db.][schema.]table [(columns)] [FROM ..] [options]``.

    :param text: the statement after COPY INTO.
    :param default: ON_ERROR when neither statement nor stage says anything.
    :raises SqlError: for everything that is wrong before a file is looked at.
    """
    path, rest = read_path(text)
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require("INSERT", "TABLE", database.name, schema, name)
    names, rest = _listed_columns(rest)
    source = _source(session, table, rest)
    settings, rest = read_settings(source.rest)
    if rest:
        raise compilation_error(f"syntax error: unexpected '{rest[:40]}'.")
    inner, _ = read_settings(source.inner)
    inner = {name: value for name, value in inner.items() if name not in settings}
    inherited = {
        name: value
        for name, value in source.location.copy_options.items()
        if value is not None and name not in settings
    }
    options = read_copy_options({**inherited, **inner, **settings})
    location = with_settings(session, source.location, options.access)
    require_read(session, location)
    file_format = resolve_file_format(session, options.file_format, location.file_format)
    if file_format.type not in LOADED_TYPES:
        raise unsupported(f"loading of files of type {file_format.type}")
    selection = _selection(session, table, names, source.select, options, file_format)
    plan = CopyPlan(
        database,
        table,
        location,
        file_format,
        selection,
        options.on_error or default or OnError(),
        options.files,
        options.pattern,
        options.size_limit,
        options.flags.get("PURGE", False),
        options.flags.get("RETURN_FAILED_ONLY", False),
        options.truncate,
        options.flags.get("FORCE", False),
        options.flags.get("LOAD_UNCERTAIN_FILES", False),
    )
    return CompiledCopy(plan, options)


def is_unload(text: str) -> bool:
    """Return True for ``COPY INTO @stage`` and ``COPY INTO 's3://..'``; takes the text after COPY INTO."""
    return text.lstrip()[:1] in ("@", "'")


def _listed_columns(text: str) -> tuple[list[str] | None, str]:
    if not text.startswith("("):
        return None, text
    names: list[str] = []
    rest = text[1:]
    while True:
        path, rest = read_path(rest)
        names.append(path[-1])
        if rest.startswith(")"):
            return names, rest[1:].strip()
        if not rest.startswith(","):
            raise compilation_error(f"syntax error: unexpected '{rest[:30]}'.")
        rest = rest[1:]


def _source(session: Session, table: Table, text: str) -> _Source:
    match = _FROM.match(text)
    if match is None:
        # Without FROM the files of the table's own stage are loaded.
        reference = f"@{quote_path(table.database, table.schema)}.%{quote_path(table.name)}"
        return _Source(resolve_location(session, reference)[0], None, "", text)
    text = text[match.end() :]
    if not _SELECT.match(text):
        location, rest = resolve_location(session, text)
        return _Source(location, None, "", rest)
    select, inside, rest = _subselect(text)
    location, inside = resolve_location(session, inside)
    inner = ""
    if inside.startswith("("):
        inner, inside = _parenthesized(inside)
    alias = _ALIAS.match(inside)
    left = inside[alias.end() :] if alias else inside
    if left.strip():
        raise unsupported(f"{left.split()[0].upper()} in the SELECT of COPY INTO")
    return _Source(location, select, inner, rest)


def _subselect(text: str) -> tuple[str, str, str]:
    """Split ``(SELECT list FROM source) rest`` into list, source and rest."""
    depth, begin = 0, 0
    from_at: tuple[int, int] | None = None
    for token in _tokens(text):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
            if depth == 0:
                if from_at is None:
                    break
                after = text[from_at[1] + 1 : token.start]
                return text[begin : from_at[0]].strip(), after.strip(), text[token.end + 1 :].strip()
        elif depth == 1 and token.token_type == TokenType.SELECT:
            begin = token.end + 1
        elif depth == 1 and token.token_type == TokenType.FROM and from_at is None:
            from_at = (token.start, token.end)
    raise compilation_error("syntax error in the SELECT of COPY INTO.")


def _parenthesized(text: str) -> tuple[str, str]:
    depth = 0
    for token in _tokens(text):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0:
            return text[1 : token.start], text[token.end + 1 :].strip()
    raise compilation_error("syntax error: a parenthesis is not closed.")


def _tokens(text: str) -> list[sqlglot.Token]:
    try:
        return list(sqlglot.tokenize(text, dialect="snowflake"))
    except SqlglotError as error:
        raise compilation_error(f"syntax error: {error}") from error


def _selection(
    session: Session,
    table: Table,
    names: list[str] | None,
    select: str | None,
    options: CopyOptions,
    file_format: FileFormat,
) -> Selection:
    if options.matching != "NONE":
        return _by_name(table, names, select, options, file_format)
    columns = table.columns if names is None else _columns(table, names)
    if select is None or select == "*":
        return ByPosition(columns, file_format)
    if options.validation is not None:
        raise compilation_error("VALIDATION_MODE does not support COPY statements that transform data.")
    expressions = [tree.unalias() for tree in read_expressions(select)]
    if len(expressions) != len(columns):
        raise _count_mismatch(len(columns), len(expressions))
    _check(expressions)
    return ByExpression(session, columns, tuple(expressions), file_format)


def _by_name(
    table: Table,
    names: list[str] | None,
    select: str | None,
    options: CopyOptions,
    file_format: FileFormat,
) -> Selection:
    if names is not None or select is not None:
        raise compilation_error(
            "MATCH_BY_COLUMN_NAME cannot be combined with a list of columns or a transformation."
        )
    if file_format.type == "CSV" and not file_format["PARSE_HEADER"]:
        raise compilation_error(
            "MATCH_BY_COLUMN_NAME of CSV files needs FILE_FORMAT = (TYPE = CSV PARSE_HEADER = TRUE)."
        )
    included = {
        column.name: metadata
        for column, metadata in zip(
            _columns(table, list(options.included)), options.included.values(), strict=True
        )
    }
    return ByName(table, file_format, options.matching == "CASE_SENSITIVE", included)


def _columns(table: Table, names: list[str]) -> tuple[Column, ...]:
    known = {column.name: column for column in table.columns}
    for name in names:
        if name not in known:
            raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")
    if len(set(names)) != len(names):
        raise compilation_error("a column is filled twice.")
    return tuple(known[name] for name in names)


def _check(expressions: list[exp.Expr]) -> None:
    for tree in expressions:
        for parameter in tree.find_all(exp.Parameter):
            field_number(parameter.name)


def _count_mismatch(columns: int, expressions: int) -> SqlError:
    return SqlError(
        "002020",
        "21S01",
        f"SQL compilation error:\nInsert value list does not match column list expecting {columns} "
        f"but got {expressions}",
    )


def relocated(plan: CopyPlan, location: StageLocation) -> CopyPlan:
    """Return a plan that reads another path of its stage."""
    return dataclasses.replace(plan, location=location)


# -- COPY INTO table: one transaction, one row of result for each file -----------------------------------

_COPY = re.compile(r"COPY\s+INTO\b\s*", re.IGNORECASE)
_COLUMNS = (
    ResultColumn("file", TEXT),
    ResultColumn("status", TEXT),
    *(ResultColumn(name, NUMBER) for name in ("rows_parsed", "rows_loaded", "error_limit", "errors_seen")),
    ResultColumn("first_error", TEXT),
    ResultColumn("first_error_line", NUMBER),
    ResultColumn("first_error_character", NUMBER),
    ResultColumn("first_error_column_name", TEXT),
)


def copy_into(session: Session, text: str, _bindings: Bindings) -> Result:
    """COPY INTO table."""
    match = _COPY.match(text)
    if match is None:
        raise compilation_error("syntax error in COPY INTO.")
    body = text[match.end() :]
    if is_unload(body):
        raise unsupported("COPY INTO a location (unloading)")
    compiled = compile_copy(session, body)
    if compiled.options.validation is not None:
        return validate(session, compiled.plan, compiled.options.validation)
    if not session.autocommit:
        session.begin()
    plan = compiled.plan
    session.remember_copy(plan)
    if session.in_transaction:
        outcomes = session.change(lambda: _in_transaction(session, plan))
    else:
        outcomes = commit_load(plan.database, session.cursor, lambda: loader.run(plan, session.cursor))
    read = [o.file for o in outcomes if o.file is not None and o.status != history.LOAD_SKIPPED]
    session.remember_copy(plan, tuple(read))
    if plan.purge:
        session.transaction.after_commit(lambda: loader.purge(plan, outcomes))
    return _result(plan, outcomes)


def _in_transaction(session: Session, plan: CopyPlan) -> list[FileOutcome]:
    try:
        return loader.run(plan, session.cursor)
    except duckdb.TransactionException as error:
        raise SqlError(
            "000625",
            "57014",
            f"Statement was aborted because table '{plan.table}' is loaded or changed by another "
            "transaction; run the transaction again.",
        ) from error


def _result(plan: CopyPlan, outcomes: list[FileOutcome]) -> Result:
    # A file that FILES names has a row even when it was loaded before ("COPY INTO <table>", "Output").
    if not outcomes or (plan.files is None and all(o.status == history.LOAD_SKIPPED for o in outcomes)):
        return status("Copy executed with 0 files processed.")
    rows: list[Sequence[Any]] = []
    for outcome in outcomes:
        if plan.failed_only and outcome.status == history.LOADED:
            continue
        first = outcome.first_error
        rows.append(
            (
                outcome.name,
                outcome.status,
                outcome.rows_parsed,
                outcome.rows_loaded,
                outcome.error_limit,
                outcome.errors_seen,
                first.message if first else outcome.message,
                first.line if first else None,
                first.character if first else None,
                first.column if first else None,
            )
        )
    loaded = sum(outcome.rows_loaded for outcome in outcomes)
    return Result(_COLUMNS, rows, OTHER, changed={"inserted": loaded})
