"""COPY INTO table: one transaction, one row of result for each file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
from sqlglot import exp

from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    invalid_identifier,
    unsupported,
)
from airflow_provider_snowpipe.local.loading import history, loader
from airflow_provider_snowpipe.local.loading.loader import FileOutcome, commit_load
from airflow_provider_snowpipe.local.loading.selection import (
    METADATA,
    ByName,
    ByPosition,
    Selection,
    field_number,
)
from airflow_provider_snowpipe.local.loading.staging import (
    ABORT_STATEMENT,
    CONTINUE,
    LOADED_TYPES,
    SKIP_FILE,
    CopyPlan,
    OnError,
)
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.record_expressions import (
    ByExpression,
    count_mismatch,
    read_expressions,
)
from airflow_provider_snowpipe.local.sql.relations import validate
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages import location
from airflow_provider_snowpipe.local.stages.definition import (
    FileFormat,
    Setting,
    invalid_parameter,
    invalid_value,
)
from airflow_provider_snowpipe.local.stages.location import (
    StageLocation,
    read_location,
    refuse_parsed_header,
    require_access,
    resolve_file_format,
    resolve_location,
    with_settings,
)
from airflow_provider_snowpipe.local.tables import NUMBER, TEXT, Column, Table, quote_path

# -- Options of COPY INTO table: names, types and the combinations that Snowflake refuses ----------------

MAX_FILES = 1000
_WHOLE = 100
_FLAGS = ("PURGE", "RETURN_FAILED_ONLY", "ENFORCE_LENGTH", "TRUNCATECOLUMNS", "FORCE", "LOAD_UNCERTAIN_FILES")
_MATCHING = ("NONE", "CASE_SENSITIVE", "CASE_INSENSITIVE")
_ACCESS = ("CREDENTIALS", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "ENCRYPTION")
_IGNORED = ("CLUSTER_AT_INGEST_TIME", "LOAD_MODE")
_SKIP = re.compile(r"SKIP_FILE(?:_(\d+)(%)?)?\Z")
_VALIDATION = re.compile(r"RETURN_(?:(\d+)_ROWS|ERRORS|ALL_ERRORS)\Z")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of one COPY statement; None or False where nothing was written.

    :param files: FILES.
    :param pattern: PATTERN.
    :param file_format: what FILE_FORMAT holds between its parentheses.
    :param matching: MATCH_BY_COLUMN_NAME.
    :param included: INCLUDE_METADATA, column name as written to METADATA$... name.
    :param on_error: ON_ERROR, or None.
    :param size_limit: SIZE_LIMIT in bytes.
    :param validation: VALIDATION_MODE.
    :param access: options that define how a bare URL is reached.
    :param flags: the options that are TRUE or FALSE.
    """

    files: tuple[str, ...] | None = None
    pattern: str | None = None
    file_format: Mapping[str, Setting] = field(default_factory=dict)
    matching: str = "NONE"
    included: Mapping[str, str] = field(default_factory=dict)
    on_error: OnError | None = None
    size_limit: int | None = None
    validation: str | None = None
    access: Mapping[str, Setting] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)

    @property
    def truncate(self) -> bool:
        """TRUNCATECOLUMNS = TRUE, or its opposite ENFORCE_LENGTH = FALSE."""
        return self.flags.get("TRUNCATECOLUMNS", False) or not self.flags.get("ENFORCE_LENGTH", True)


def read_copy_options(settings: Mapping[str, Setting]) -> CopyOptions:
    """Check the options of a COPY statement.

    :raises SqlError: for an unknown option, a wrong value, or options that exclude each other.
    """
    options: dict[str, Any] = {"access": {}, "flags": {}}
    for name, value in settings.items():
        _read(options, name, value)
    made = CopyOptions(**options)
    if made.validation is not None and (made.matching != "NONE" or made.flags.get("PURGE")):
        raise compilation_error("VALIDATION_MODE cannot be combined with MATCH_BY_COLUMN_NAME or PURGE.")
    if made.included and made.matching == "NONE":
        raise compilation_error("INCLUDE_METADATA needs MATCH_BY_COLUMN_NAME.")
    return made


def read_on_error(value: Setting) -> OnError:
    """Read a value of ON_ERROR.

    :raises SqlError: for anything else.
    """
    word = str(value).upper() if isinstance(value, str) else ""
    if word == CONTINUE:
        return OnError(CONTINUE)
    if word == ABORT_STATEMENT:
        return OnError()
    match = _SKIP.match(word)
    if match is None or match[1] == "0" or (match[2] and int(match[1]) > _WHOLE):
        raise invalid_value(
            "ON_ERROR", value, "CONTINUE, SKIP_FILE, SKIP_FILE_<n>, 'SKIP_FILE_<n>%' or ABORT_STATEMENT"
        )
    if match[2]:
        return OnError(SKIP_FILE, percent=float(match[1]))
    return OnError(SKIP_FILE, int(match[1] or 1))


def _read(options: dict[str, Any], name: str, value: Setting) -> None:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise invalid_value(name, value, "TRUE or FALSE")
        options["flags"][name] = value
    elif name in _ACCESS:
        options["access"][name] = value
    elif name in _READERS:
        key, read = _READERS[name]
        options[key] = read(value)
    elif name not in _IGNORED:
        raise invalid_parameter(name)


def _files(value: Setting) -> tuple[str, ...]:
    listed = value if isinstance(value, tuple) else (value,)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise invalid_value("FILES", value, "a list of names")
    if len(listed) > MAX_FILES:
        raise compilation_error(f"FILES names {len(listed)} files; the maximum is {MAX_FILES}.")
    return tuple(str(name) for name in listed)


def _pattern(value: Setting) -> str:
    if not isinstance(value, str):
        raise invalid_value("PATTERN", value, "a regular expression in quotes")
    location.check(value)
    return value


def read_format(value: Setting) -> Mapping[str, Setting]:
    """Return what FILE_FORMAT of a COPY statement holds.

    :raises SqlError: 001008 for anything else.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        return {"FORMAT_NAME": value}
    raise invalid_value("FILE_FORMAT", value, "( TYPE = .. ) or ( FORMAT_NAME = .. )")


def _matching(value: Setting) -> str:
    if isinstance(value, str) and value.upper() in _MATCHING:
        return value.upper()
    raise invalid_value("MATCH_BY_COLUMN_NAME", value, ", ".join(_MATCHING))


def _included(value: Setting) -> Mapping[str, str]:
    if isinstance(value, Mapping) and value:
        pairs = {name: str(entry).upper() for name, entry in value.items()}
        if set(pairs.values()) <= set(METADATA):
            return pairs
    raise invalid_value("INCLUDE_METADATA", value, f"( column = METADATA$.. ) with {', '.join(METADATA)}")


def _size(value: Setting) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise invalid_value("SIZE_LIMIT", value, "a number of bytes above 0")


def _validation(value: Setting) -> str:
    if isinstance(value, str) and _VALIDATION.match(value.upper()):
        return value.upper()
    raise invalid_value("VALIDATION_MODE", value, "RETURN_<n>_ROWS, RETURN_ERRORS or RETURN_ALL_ERRORS")


_READERS: dict[str, tuple[str, Any]] = {
    "FILES": ("files", _files), "PATTERN": ("pattern", _pattern), "FILE_FORMAT": ("file_format", read_format),
    "MATCH_BY_COLUMN_NAME": ("matching", _matching), "INCLUDE_METADATA": ("included", _included),
    "ON_ERROR": ("on_error", read_on_error), "SIZE_LIMIT": ("size_limit", _size),
    "VALIDATION_MODE": ("validation", _validation),
}  # fmt: skip


# -- Compilation of COPY INTO table: the text of a statement becomes a plan ------------------------------

_CLAUSES = ("WHERE", "JOIN", "GROUP", "ORDER", "LIMIT", "QUALIFY", "HAVING", "UNION", "CROSS", "LATERAL")


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
    inner: Mapping[str, Setting]


def compile_copy(session: Session, reader: Reader, *, default: OnError | None = None) -> CompiledCopy:
    """Compile ``[db.][schema.]table [(columns)] [FROM ..] [options]``.

    :param reader: after COPY INTO.
    :param default: ON_ERROR when neither statement nor stage sets it.
    :raises SqlError: for everything that is wrong before a file is read.
    """
    if reader.is_sign("@") or reader.is_at_string:
        raise unsupported("COPY INTO a location in a pipe")
    database, table = session.table(reader.path(), "INSERT")
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
    require_access(session, location, "READ")
    file_format = resolve_file_format(session, options.file_format, location.file_format)
    if file_format.type not in LOADED_TYPES:
        raise unsupported(f"loading of files of type {file_format.type}")
    selection = _selection(session, table, names, source.select, options, file_format)
    plan = CopyPlan(
        database, table, location, file_format, selection, options.on_error or default or OnError(),
        options.files, options.pattern, options.size_limit, options.flags.get("PURGE", False),
        options.flags.get("RETURN_FAILED_ONLY", False), options.truncate, options.flags.get("FORCE", False),
        options.flags.get("LOAD_UNCERTAIN_FILES", False),
    )  # fmt: skip
    return CompiledCopy(plan, options)


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
    if options.matching != "NONE":
        return _by_name(table, names, select, options, file_format)
    refuse_parsed_header(file_format)
    columns = table.columns if names is None else _columns(table, names)
    if select is None or select == "*":
        return ByPosition(columns, file_format)
    if options.validation is not None:
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
    compiled = compile_copy(session, reader)
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
                outcome.name, outcome.status, outcome.rows_parsed, outcome.rows_loaded, outcome.error_limit,
                outcome.errors_seen, first.message if first else outcome.message,
                first.line if first else None, first.character if first else None,
                first.column if first else None,
            )
        )  # fmt: skip
    loaded = sum(outcome.rows_loaded for outcome in outcomes)
    return Result(_COLUMNS, rows, OTHER, changed={"inserted": loaded})
