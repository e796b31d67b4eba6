"""COPY INTO table: one transaction, one row of result for each file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from snowpipe_local.engine import load_history as history
from snowpipe_local.engine.database import Database
from snowpipe_local.errors import SqlError, compilation_error, invalid_identifier, unsupported
from snowpipe_local.loading import loader
from snowpipe_local.loading.loader import FileOutcome, commit_load
from snowpipe_local.loading.selection import METADATA, ByName, ByPosition, Selection, field_number
from snowpipe_local.loading.staging import (
    ABORT_STATEMENT,
    CONTINUE,
    LOADED_TYPES,
    SKIP_FILE,
    CopyOptions,
    CopyPlan,
    OnError,
)
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.record_expressions import ByExpression, count_mismatch, read_expressions
from snowpipe_local.sql.relations import validate
from snowpipe_local.sql.results import OTHER, Result, ResultColumn, status
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import (
    read_location,
    refuse_parsed_header,
    require_access,
    resolve_file_format,
    resolve_location,
    with_settings,
)
from snowpipe_local.stages import location
from snowpipe_local.stages.definition import (
    FileFormat,
    ReadsValue,
    Setting,
    as_written,
    boolean,
    invalid_value,
    number,
    one_of,
    read_options,
    string,
)
from snowpipe_local.stages.location import StageLocation
from snowpipe_local.tables import NUMBER, TEXT, Column, Table, quote_path

# -- Options of COPY INTO table: names, types and the combinations that Snowflake refuses ----------------

MAX_FILES = 1000
_WHOLE = 100
_FLAGS = ("PURGE", "RETURN_FAILED_ONLY", "ENFORCE_LENGTH", "TRUNCATECOLUMNS", "FORCE", "LOAD_UNCERTAIN_FILES")
_MOST_BYTES = 2**63 - 1
_ACCESS = ("CREDENTIALS", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "ENCRYPTION")
_IGNORED = ("CLUSTER_AT_INGEST_TIME", "LOAD_MODE")
_SKIP = re.compile(r"SKIP_FILE(?:_(\d+)(%)?)?\Z")
_VALIDATION = re.compile(r"RETURN_(?:(\d+)_ROWS|ERRORS|ALL_ERRORS)\Z")


def read_copy_options(settings: Mapping[str, Setting]) -> CopyOptions:
    """Check the options of a COPY statement.

    :raises SqlError: for an unknown option, a wrong value, or options that exclude each other.
    """
    read = read_options(settings, _READERS)
    flags, access = ({name: read[name] for name in names if name in read} for names in (_FLAGS, _ACCESS))
    others = {name.lower(): read[name] for name in read.keys() - {*_FLAGS, *_ACCESS, *_IGNORED}}
    made = CopyOptions(**others, access=access, flags=flags)
    if made.validation_mode is not None and (made.match_by_column_name != "NONE" or made.has("PURGE")):
        raise compilation_error("VALIDATION_MODE cannot be combined with MATCH_BY_COLUMN_NAME or PURGE.")
    if made.include_metadata and made.match_by_column_name == "NONE":
        raise compilation_error("INCLUDE_METADATA needs MATCH_BY_COLUMN_NAME.")
    return made


def _on_error(name: str, value: Setting) -> OnError:
    word = str(value).upper() if isinstance(value, str) else ""
    if word in {CONTINUE, ABORT_STATEMENT}:
        return OnError(word)
    match = _SKIP.match(word)
    if match is None or match[1] == "0" or (match[2] and int(match[1]) > _WHOLE):
        raise invalid_value(
            name, value, "CONTINUE, SKIP_FILE, SKIP_FILE_<n>, 'SKIP_FILE_<n>%' or ABORT_STATEMENT"
        )
    if match[2]:
        return OnError(SKIP_FILE, percent=float(match[1]))
    return OnError(SKIP_FILE, int(match[1] or 1))


def _files(name: str, value: Setting) -> tuple[str, ...]:
    listed = value if isinstance(value, tuple) else (value,)
    if not listed or not all(isinstance(each, str) for each in listed):
        raise invalid_value(name, value, "a list of names")
    if len(listed) > MAX_FILES:
        raise compilation_error(f"FILES names {len(listed)} files; the maximum is {MAX_FILES}.")
    return tuple(str(each) for each in listed)


def _pattern(name: str, value: Setting) -> str:
    pattern = string(name, value)
    location.check(pattern)
    return pattern


def read_format(name: str, value: Setting) -> Mapping[str, Setting]:
    """Return what FILE_FORMAT of a COPY statement holds.

    :raises SqlError: 001008 for anything else.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        return {"FORMAT_NAME": value}
    raise invalid_value(name, value, "( TYPE = .. ) or ( FORMAT_NAME = .. )")


def _included(name: str, value: Setting) -> Mapping[str, str]:
    if isinstance(value, Mapping) and value:
        pairs = {column: str(entry).upper() for column, entry in value.items()}
        if set(pairs.values()) <= set(METADATA):
            return pairs
    raise invalid_value(name, value, f"( column = METADATA$.. ) with {', '.join(METADATA)}")


def _validation(name: str, value: Setting) -> str:
    if isinstance(value, str) and _VALIDATION.match(value.upper()):
        return value.upper()
    raise invalid_value(name, value, "RETURN_<n>_ROWS, RETURN_ERRORS or RETURN_ALL_ERRORS")


_READERS: dict[str, ReadsValue] = {
    **dict.fromkeys(_FLAGS, boolean),
    **dict.fromkeys((*_ACCESS, *_IGNORED), as_written),
    "FILES": _files, "PATTERN": _pattern, "FILE_FORMAT": read_format,
    "MATCH_BY_COLUMN_NAME": one_of("NONE", "CASE_SENSITIVE", "CASE_INSENSITIVE"),
    "INCLUDE_METADATA": _included, "ON_ERROR": _on_error, "SIZE_LIMIT": number(1, _MOST_BYTES),
    "VALIDATION_MODE": _validation,
}  # fmt: skip


# -- Compilation of COPY INTO table: the text of a statement becomes a plan ------------------------------

_CLAUSES = ("WHERE", "JOIN", "GROUP", "ORDER", "LIMIT", "QUALIFY", "HAVING", "UNION", "CROSS", "LATERAL")


@dataclass(frozen=True, slots=True)
class _Source:
    location: StageLocation
    select: str | None
    inner: Mapping[str, Setting]


def compile_copy(session: Session, reader: Reader, *, default: OnError | None = None) -> CopyPlan:
    """Compile ``[db.][schema.]table [(columns)] [FROM ..] [options]``.

    :param reader: after COPY INTO.
    :param default: ON_ERROR when neither statement nor stage sets it.
    :raises SqlError: for everything that is wrong before a file is read.
    """
    if reader.is_sign("@") or reader.is_at_string:
        raise unsupported("COPY INTO a location in a pipe")
    database, table = _target(session, reader.path())
    names = reader.name_list()
    source = _source(session, table, reader)
    settings = reader.settings()
    reader.end()
    inner = {name: value for name, value in source.inner.items() if name not in settings}
    inherited = {
        name: value
        for name, value in source.location.copy_options.items()
        if value is not None and name not in settings
    }
    options = read_copy_options({**inherited, **inner, **settings})
    location = with_settings(session, source.location, options.access)
    for privilege in ("READ", "WRITE") if options.has("PURGE") else ("READ",):
        require_access(session, location, privilege)
    file_format = resolve_file_format(session, options.file_format, location.file_format)
    if file_format.type not in LOADED_TYPES:
        raise unsupported(f"loading of files of type {file_format.type}")
    selection = _selection(session, table, names, source.select, options, file_format)
    on_error = options.on_error or default or OnError()
    return CopyPlan(database, table, location, file_format, selection, on_error, options)


def _target(session: Session, path: tuple[str, ...]) -> tuple[Database, Table]:
    """Return the table; one that is missing is named in the words that ``write_pandas`` looks for."""
    try:
        return session.table(path, "INSERT")
    except SqlError as error:
        is_short = error.code == "002003" and "\nTable '" in error.message
        words = error.message.removesuffix(" or not authorized.") if is_short else error.message
        raise SqlError(error.code, error.sqlstate, words) from error


def _source(session: Session, table: Table, reader: Reader) -> _Source:
    if not reader.accept("FROM"):
        # Without FROM the files of the table's own stage are loaded.
        reference = f"@{quote_path(table.database, table.schema)}.%{quote_path(table.name)}"
        return _Source(resolve_location(session, reference)[0], None, {})
    if not reader.accept_sign("("):
        return _Source(read_location(session, reader), None, {})
    reader.expect("SELECT")
    select = reader.until("FROM")
    reader.expect("FROM")
    location = read_location(session, reader)
    inner: Mapping[str, Setting] = {}
    if reader.accept_sign("("):
        inner = reader.settings()
        reader.expect_sign(")")
    if reader.accept("AS") or not reader.is_sign(")"):
        if reader.word in _CLAUSES:
            raise unsupported(f"{reader.word} in the SELECT of COPY INTO")
        reader.name()
    if not reader.accept_sign(")"):
        raise unsupported(f"{reader.word} in the SELECT of COPY INTO")
    return _Source(location, select, inner)


def _selection(
    session: Session,
    table: Table,
    names: list[str] | None,
    select: str | None,
    options: CopyOptions,
    file_format: FileFormat,
) -> Selection:
    if options.match_by_column_name != "NONE":
        return _by_name(table, names, select, options, file_format)
    refuse_parsed_header(file_format)
    columns = table.columns if names is None else _columns(table, names)
    if select is None or select == "*":
        return ByPosition(columns, file_format)
    if options.validation_mode is not None:
        raise compilation_error("VALIDATION_MODE does not support COPY statements that transform data.")
    expressions = [tree.unalias() for tree in read_expressions(select)]
    if len(expressions) != len(columns):
        raise count_mismatch(len(columns), len(expressions))
    _check(expressions)
    return ByExpression(session, columns, tuple(expressions), file_format)


def _by_name(
    table: Table, names: list[str] | None, select: str | None, options: CopyOptions, file_format: FileFormat
) -> Selection:
    if select is not None:
        raise compilation_error("match_by_column_name is not supported with copy transform.")
    if names is not None:
        raise compilation_error("MATCH_BY_COLUMN_NAME cannot be combined with a list of columns.")
    if file_format.type == "CSV" and not file_format["PARSE_HEADER"]:
        raise compilation_error(
            "MATCH_BY_COLUMN_NAME of CSV files needs FILE_FORMAT = (TYPE = CSV PARSE_HEADER = TRUE)."
        )
    _columns(table, list(options.include_metadata))
    is_exact = options.match_by_column_name == "CASE_SENSITIVE"
    return ByName(table, file_format, is_exact, options.include_metadata)


def _columns(table: Table, names: list[str]) -> tuple[Column, ...]:
    known = {column.name: column for column in table.columns}
    for name in names:
        if name not in known:
            raise invalid_identifier(name)
    if len(set(names)) != len(names):
        raise compilation_error("a column is filled twice.")
    return tuple(known[name] for name in names)


def _check(expressions: list[exp.Expr]) -> None:
    for tree in expressions:
        for parameter in tree.find_all(exp.Parameter):
            field_number(parameter.name)


# -- COPY INTO table: one transaction, one row of result for each file -----------------------------------

_COLUMNS = (
    ResultColumn("file", TEXT), ResultColumn("status", TEXT),
    *(ResultColumn(name, NUMBER) for name in ("rows_parsed", "rows_loaded", "error_limit", "errors_seen")),
    ResultColumn("first_error", TEXT), ResultColumn("first_error_line", NUMBER),
    ResultColumn("first_error_character", NUMBER), ResultColumn("first_error_column_name", TEXT),
)  # fmt: skip


def copy_into(session: Session, reader: Reader) -> Result:
    """COPY INTO table."""
    plan = compile_copy(session, reader)
    if plan.options.validation_mode is not None:
        return validate(session, plan, plan.options.validation_mode)
    if not session.autocommit:
        session.transaction.begin()
    session.remember_copy(plan)
    with session.holding(plan.table):
        if session.transaction.is_open:
            outcomes = session.change(lambda: loader.run(plan, session.cursor))
        else:
            outcomes = commit_load(plan.database, session.cursor, lambda: loader.run(plan, session.cursor))
    session.changed(plan.database, plan.table)
    read = [o.file for o in outcomes if o.file is not None and o.status != history.LOAD_SKIPPED]
    session.remember_copy(plan, tuple(read))
    if plan.options.has("PURGE"):
        session.transaction.after_commit(lambda: loader.purge(plan, outcomes))
    return _result(plan, outcomes)


def _result(plan: CopyPlan, outcomes: list[FileOutcome]) -> Result:
    # A file that FILES names has a row even when it was loaded before ("COPY INTO <table>", "Output").
    if not outcomes or (
        plan.options.files is None and all(o.status == history.LOAD_SKIPPED for o in outcomes)
    ):
        return status("Copy executed with 0 files processed.")
    rows: list[Sequence[Any]] = []
    for outcome in outcomes:
        if plan.options.has("RETURN_FAILED_ONLY") and outcome.status == history.LOADED:
            continue
        first = outcome.first_error
        rows.append(
            (
                outcome.name, outcome.status, outcome.rows_parsed, outcome.rows_loaded, outcome.error_limit,
                outcome.errors_seen, first.message if first else outcome.message,
                first.line if first else None, first.character if first else None,
                first.column if first else None,
            )
        )  # fmt: skip
    loaded = sum(outcome.rows_loaded for outcome in outcomes)
    return Result(_COLUMNS, rows, OTHER, changed={"inserted": loaded})
