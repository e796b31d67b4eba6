"""CREATE, DROP, SHOW and DESCRIBE of streaming pipes, and the system functions about them."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine import coerce
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.definition import PipeDefinition
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, Pipe, PipeKey
from airflow_provider_snowpipe.local.errors import (
    Refusal,
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql import translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches, schemas_in_scope
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import TEXT, TIMESTAMP_LTZ, ColumnType

_CREATE = re.compile(
    r"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?PIPE\s+(?P<exists>IF\s+NOT\s+EXISTS\s+)?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_BODY = re.compile(
    r"(?:COMMENT\s*=\s*'(?:[^']|'')*'\s*)?AS\s+(?P<text>COPY\s+INTO\s+(?P<copy>.*))",
    re.IGNORECASE | re.DOTALL,
)
_STREAM = r"TABLE\s*\(\s*DATA_SOURCE\s*\(\s*TYPE\s*=>\s*'STREAMING'\s*\)\s*\)"
_COPY = re.compile(
    rf"(?:\((?P<columns>[^()]*)\)\s*)?FROM\s*(?:{_STREAM}|\(\s*SELECT\s+(?P<select>.*?)\s+FROM\s+{_STREAM}"
    rf"(?P<more>[^)]*)\))\s*(?P<options>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"(\w+)\s*=\s*'?(\w+)'?\s*", re.IGNORECASE)
_CALL = re.compile(r"(?:SELECT|CALL)\s+SYSTEM\$(\w+)\s*\((.*)\)[^()]*\Z", re.IGNORECASE | re.DOTALL)
_ARGUMENT = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|\Z)", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "f": "\f"}
_DEFAULT_TEXT = (
    "COPY INTO {table} FROM (SELECT * FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) "
    "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)
_SHOWN = (
    "name", "database_name", "schema_name", "definition", "owner", "notification_channel", "comment",
    "integration", "pattern", "error_integration", "owner_role_type", "invalid_reason", "kind",
)  # fmt: skip


def create_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] PIPE [IF NOT EXISTS] name AS COPY INTO table FROM (SELECT .. STREAMING) .."""
    session.commit()
    head = _CREATE.match(text)
    if head is None:
        raise compilation_error("syntax error in CREATE PIPE.")
    path, rest = read_path(head["rest"])
    database, schema, name = session.resolve(path)
    _refuse_default(name, "created")
    body = _BODY.match(rest)
    if body is None:
        raise unsupported("this form of CREATE PIPE; only AS COPY INTO .. of streaming pipes is known")
    key = PipeKey(schema, name)
    if head["exists"] and database.pipes.find(key) is not None:
        return status(f"{name} already exists, statement succeeded.")
    session.require("CREATE PIPE", "SCHEMA", database.name, schema)
    if head["replace"] and database.pipes.find(key) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    table, definition = _compile(session, (database, schema), body["text"], body["copy"])
    session.require("INSERT", "TABLE", database.name, schema, table.name)
    database.pipes.create(key, table.name, definition, replace=bool(head["replace"]))
    session.created("PIPE", database.name, schema, name)
    return status(f"Pipe {name} successfully created.")


def drop_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP PIPE [IF EXISTS] name; its channels go with it."""
    session.commit()
    rest = text.split(None, 2)[2] if len(text.split(None, 2)) > 2 else ""
    tolerant = re.match(r"IF\s+EXISTS\s+(.*)", rest, re.IGNORECASE | re.DOTALL)
    path, _ = read_path(tolerant[1] if tolerant else rest)
    database, schema, name = session.resolve(path)
    _refuse_default(name, "dropped")
    if tolerant and database.pipes.find(PipeKey(schema, name)) is None:
        return status(f"Drop statement executed successfully ({name} already dropped).")
    if database.pipes.find(PipeKey(schema, name)) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    database.pipes.drop(PipeKey(schema, name))
    session.dropped("PIPE", database.name, schema, name)
    return status(f"{name} successfully dropped.")


def alter_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER PIPE: refused; a default pipe is managed, and a streaming pipe's text is fixed."""
    path, _ = read_path(re.sub(r"^ALTER\s+PIPE\s+(?:IF\s+EXISTS\s+)?", "", text, flags=re.IGNORECASE))
    _refuse_default(session.resolve(path)[2], "altered")
    raise unsupported("ALTER PIPE")


def show_pipes(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW PIPES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    return _listed(
        session,
        [
            (database, pipe)
            for database, schema in schemas_in_scope(session, text)
            for pipe in database.pipes
            if pipe.key.schema == schema and matches(text, pipe.key.name) and _shows(session, database, pipe)
        ],
    )


def describe_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """DESCRIBE PIPE name."""
    path, _ = read_path(text.split(None, 2)[2] if len(text.split(None, 2)) > 2 else "")
    return _listed(session, [_existing(session, path)])


def system_function(session: Session, text: str, _bindings: Bindings) -> Result:
    """SELECT SYSTEM$PIPE_STATUS(..) and SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(..)."""
    match = _CALL.match(text)
    if match is None:
        raise compilation_error("syntax error in the call of a system function.")
    name, arguments = match[1].upper(), _arguments(match[2])
    if name == "PIPE_STATUS" and len(arguments) == 1:
        value = _pipe_status(session, arguments[0])
    elif name == "SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN" and len(arguments) == 3:
        value = _update_token(session, *arguments)
    else:
        raise unsupported(f"SYSTEM${name} with {len(arguments)} arguments")
    return Result((ResultColumn(text.split(None, 1)[1].upper()),), [(value,)])


def _pipe_status(session: Session, name: str) -> str:
    database, pipe = _existing(session, read_path(name)[0])
    if pipe.definition is not None and not session.catalog.access.held(
        session.roles, Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name))
    ) & {"MONITOR", "OPERATE", "OWNERSHIP"}:
        session.require("MONITOR", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    state = "RUNNING" if database.tables.find(pipe.key.schema, pipe.table) else "STOPPED_MISSING_TABLE"
    return json.dumps({"executionState": state, "pendingFileCount": 0})


def _update_token(session: Session, table: str, channel: str, token: str) -> str:
    database, schema, name = session.resolve(read_path(table)[0])
    if database.tables.find(schema, name) is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require("INSERT", "TABLE", database.name, schema, name)
    for pipe in _pipes_of(database, schema, name):
        if database.channels.find(pipe, channel) is not None:
            try:
                database.channels.set_offset_token(pipe, channel, token)
            except Refusal as error:
                raise object_missing("Channel", channel) from error
            break
    else:
        raise object_missing("Channel", channel)
    return f"Channel {channel} offset token updated to {token}."


def _pipes_of(database: Database, schema: str, table: str) -> list[Pipe]:
    """The pipes that fill a table, its default pipe first: a channel's name may occur in more than one."""
    default = table + DEFAULT_PIPE_SUFFIX
    found = [pipe for pipe in database.pipes if pipe.key.schema == schema and pipe.table == table]
    return sorted(found, key=lambda pipe: (pipe.key.name != default, pipe.key.name))


def _existing(session: Session, path: tuple[str, ...]) -> tuple[Database, Pipe]:
    database, schema, name = session.resolve(path)
    pipe = database.pipes.find(PipeKey(schema, name))
    if pipe is None or not _shows(session, database, pipe):
        raise object_missing("Pipe", f"{database.name}.{schema}.{name}")
    return database, pipe


def _shows(session: Session, database: Database, pipe: Pipe) -> bool:
    """A default pipe has no grants of its own; it shows with its table."""
    kind, name = ("TABLE", pipe.table) if pipe.definition is None else ("PIPE", pipe.key.name)
    return session.can_see(kind, database.name, pipe.key.schema, name)


def _owner(session: Session, database: Database, pipe: Pipe) -> str:
    kind, name = ("TABLE", pipe.table) if pipe.definition is None else ("PIPE", pipe.key.name)
    return session.catalog.access.owner(Securable(kind, (database.name, pipe.key.schema, name)))


def _listed(session: Session, found: list[tuple[Database, Pipe]]) -> Result:
    columns = (ResultColumn("created_on", TIMESTAMP_LTZ), *(ResultColumn(name, TEXT) for name in _SHOWN))
    rows: list[Sequence[Any]] = []
    for database, pipe in found:
        written = _DEFAULT_TEXT.format(table=pipe.table) if pipe.definition is None else pipe.definition.text
        created = dt.datetime.fromtimestamp(pipe.created_on_ms / 1000, dt.UTC)
        rows.append(
            (created, pipe.key.name, database.name, pipe.key.schema, written, _owner(session, database, pipe),
             *(None,) * 5, "ROLE", None, "STREAMING")
        )  # fmt: skip
    return Result(columns, rows, OTHER)


def _refuse_default(name: str, verb: str) -> None:
    if name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        raise SqlError(
            "003001",
            "42501",
            f"SQL access control error:\nPipe '{name}' is a default pipe, managed by Snowflake; "
            f"it cannot be {verb}.",
        )


def _arguments(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _ARGUMENT.match(text, position)
        if match is None:
            raise compilation_error("the arguments of a system function must be string literals.")
        found.append(_ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]) if m[1] else "'", match[1]))
        position = match.end()
    return found


def _compile(
    session: Session, place: tuple[Database, str], text: str, copy: str
) -> tuple[Table, PipeDefinition]:
    path, rest = read_path(copy)
    parts = _COPY.match(rest)
    if parts is None:
        raise unsupported(
            "this COPY in a pipe; use FROM (SELECT .. FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
        )
    database, schema, name = session.resolve(path)
    if (database, schema) != place:
        raise unsupported("a pipe and its table in different schemas")
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if parts["more"] and parts["more"].strip():
        raise unsupported(f"{parts['more'].split()[0].upper()} in the transformation of a pipe")
    matching, clusters = _options(parts["options"])
    select = (parts["select"] or "$1").strip()
    if matching is not None and select in ("$1", "*"):
        return table, PipeDefinition(
            text, case_sensitive=matching == "CASE_SENSITIVE", cluster_at_ingest_time=clusters
        )
    if select == "*":
        raise compilation_error("SELECT * of a streaming source needs MATCH_BY_COLUMN_NAME.")
    columns, expressions = _transformations(session, table, parts["columns"], select, matching)
    return table, PipeDefinition(text, columns, expressions, cluster_at_ingest_time=clusters)


def _options(options: str) -> tuple[str | None, bool]:
    """Read MATCH_BY_COLUMN_NAME, None for NONE, and CLUSTER_AT_INGEST_TIME."""
    matching, clusters, position = None, False, 0
    while position < len(options.rstrip()):
        option = _OPTION.match(options, position)
        if option is None:
            raise compilation_error(f"syntax error: unexpected '{options[position : position + 30]}'.")
        name, value = option[1].upper(), option[2].upper()
        if name == "MATCH_BY_COLUMN_NAME" and value in ("CASE_SENSITIVE", "CASE_INSENSITIVE"):
            matching = value
        elif name == "CLUSTER_AT_INGEST_TIME" and value in ("TRUE", "FALSE"):
            clusters = value == "TRUE"
        elif (name, value) not in {
            ("MATCH_BY_COLUMN_NAME", "NONE"), ("ON_ERROR", "CONTINUE"),
        }:  # fmt: skip
            raise unsupported(f"{name} = {value} in a streaming pipe")
        position = option.end()
    return matching, clusters


def _transformations(
    session: Session, table: Table, listed: str | None, select: str, matching: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tree = translate.parse(f"SELECT {select}")
    if not isinstance(tree, exp.Select) or set(_used(tree)) - {"expressions", "kind"}:
        raise unsupported("anything but expressions in the transformation of a pipe")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise unsupported("subqueries and aggregates in the transformation of a pipe")
    projections = list(tree.expressions)
    if matching is not None:
        names = _named(projections)
    elif listed is not None:
        names = _names(listed)
    else:
        names = [column.name for column in table.columns]
    if len(names) != len(projections):
        raise SqlError(
            "002020",
            "21S01",
            f"SQL compilation error:\nInsert value list does not match column list expecting {len(names)} "
            f"but got {len(projections)}",
        )
    columns = [_column(table, name, matching == "CASE_INSENSITIVE") for name in names]
    if len({column.name for column in columns}) != len(columns):
        raise compilation_error("a column is filled twice.")
    expressions = tuple(
        _expression(session, column, projection.unalias())
        for column, projection in zip(columns, projections, strict=True)
    )
    for expression in expressions:
        session.cursor.execute(f"DESCRIBE SELECT {expression} FROM (SELECT CAST(NULL AS JSON) AS j)")  # noqa: S608
    return tuple(column.name for column in columns), expressions


def _used(tree: exp.Expr) -> list[str]:
    return [name for name, value in tree.args.items() if value]


def _named(projections: list[exp.Expr]) -> list[str]:
    names: list[str] = []
    for projection in projections:
        if not isinstance(projection, exp.Alias):
            raise compilation_error("MATCH_BY_COLUMN_NAME needs AS and a name for every expression.")
        translate.normalize_identifiers(projection.args["alias"])
        names.append(projection.alias)
    return names


def _names(listed: str) -> list[str]:
    names: list[str] = []
    rest = listed
    while True:
        path, rest = read_path(rest)
        names.append(path[-1])
        if not rest:
            return names
        if not rest.startswith(","):
            raise compilation_error(f"syntax error: unexpected '{rest[:30]}'.")
        rest = rest[1:]


def _column(table: Table, name: str, ignore_case: bool) -> Column:
    for column in table.columns:
        if column.name == name or (ignore_case and column.name.upper() == name.upper()):
            return column
    raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")


def _expression(session: Session, column: Column, tree: exp.Expr) -> str:
    if tree.find(exp.Column):
        name = next(iter(tree.find_all(exp.Column))).sql(dialect="snowflake")
        raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")
    if isinstance(tree, exp.Cast) and _is_path(tree.this):
        written = Column(column.name, ColumnType.from_sqlglot(tree.to))
        first = _converted(written, tree.this)
        return first if str(written.type) == str(column.type) else _between(written, column, first)
    if _is_path(tree):
        return _converted(column, tree)
    holder: exp.Expr = exp.Select(expressions=[tree.copy()])
    holder = holder.transform(_fixed_time).transform(_inner_cast).transform(_row)
    sql = translate.to_duckdb(translate.prepare(session, holder.expressions[0]))
    if column.type.is_semi_structured:
        return f"to_json({sql})"
    return f"CAST({sql} AS {column.type.duckdb})"


def _is_path(tree: exp.Expr) -> bool:
    return isinstance(tree, (exp.JSONExtract, exp.Parameter)) and (
        isinstance(tree, exp.Parameter) or _is_path(tree.this)
    )


def _path_sql(tree: exp.Expr) -> str:
    return translate.to_duckdb(tree.copy().transform(_row))


def _converted(column: Column, path: exp.Expr) -> str:
    raw = f"({_path_sql(path)})"
    if column.type.is_semi_structured:
        return coerce.convert(column, f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END")
    return coerce.convert(column, f"({raw} ->> '$')")


def _between(written: Column, column: Column, sql: str) -> str:
    if column.type.is_semi_structured:
        return sql if written.type.is_semi_structured else f"to_json({sql})"
    return f"CAST({sql} AS {column.type.duckdb})"


def _row(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Parameter):
        return node
    if node.name != "1":
        raise unsupported(f"column ${node.name} of a streaming source; the row is $1")
    return exp.column(exp.to_identifier("j", quoted=True))


def _inner_cast(node: exp.Expr) -> exp.Expr:
    """A path inside a function: its text for every type but the semi-structured ones."""
    if isinstance(node, exp.ParseJSON) and _is_path(node.this):
        return exp.Cast(this=_text_of(node.this), to=exp.DataType.build("JSON"))
    if not isinstance(node, exp.Cast) or isinstance(node, exp.TryCast):
        return node
    kind = ColumnType.from_sqlglot(node.to)
    inner = node.this if kind.is_semi_structured or not _is_path(node.this) else _text_of(node.this)
    return exp.Cast(this=inner, to=exp.DataType.build(kind.duckdb, dialect="duckdb"))


def _text_of(path: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="json_extract_string", expressions=[path, exp.Literal.string("$")])


def _fixed_time(node: exp.Expr) -> exp.Expr:
    """Time functions have the value of the moment when the pipe was compiled, as in Snowflake."""
    now = dt.datetime.now(dt.UTC)
    if isinstance(node, exp.CurrentTimestamp):
        return exp.cast(exp.Literal.string(now.isoformat()), "TIMESTAMPTZ")
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Literal.string(now.date().isoformat()), "DATE")
    return node
