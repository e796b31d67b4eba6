"""CREATE, ALTER and DROP of streaming pipes."""

from __future__ import annotations

import re

from sqlglot import exp

from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, PipeDefinition, PipeKey
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql import timestamps, translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import read_list
from airflow_provider_snowpipe.local.sql.results import Result, already_dropped, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.timestamps import named_type
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import ColumnType

# -- The SELECT of a streaming pipe, compiled to one DuckDB expression a column --------------------------


def compile_select(
    session: Session, table: Table, listed: str | None, select: str, matching: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compile the SELECT of a streaming pipe.

    :param table: the table that the pipe fills.
    :param listed: columns after the table's name, as written, or None.
    :param select: what is between SELECT and FROM.
    :param matching: ``CASE_SENSITIVE`` or ``CASE_INSENSITIVE`` of MATCH_BY_COLUMN_NAME, or None.
    :returns: columns to fill, and a DuckDB expression over the row ``j`` for each.
    :raises SqlError: for what a pipe cannot do, and for columns that the table does not have.
    """
    tree = translate.parse(f"SELECT {select}")
    if not isinstance(tree, exp.Select) or set(_used(tree)) - {"expressions", "kind"}:
        raise unsupported("anything but expressions in the transformation of a pipe")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise unsupported("subqueries and aggregates in the transformation of a pipe")
    projections = list(tree.expressions)
    if matching is not None:
        names = _named(projections)
    elif listed is not None:
        names = read_list(listed)
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
    holder = holder.transform(timestamps.at_start).transform(_inner_cast).transform(_row)
    sql = translate.to_duckdb(translate.prepare(session, holder.expressions[0]))
    if column.type.is_semi_structured:
        return f"to_json({sql})"
    return conversions.cast(column, sql)


def _is_path(tree: exp.Expr) -> bool:
    return isinstance(tree, (exp.JSONExtract, exp.Parameter)) and (
        isinstance(tree, exp.Parameter) or _is_path(tree.this)
    )


def _path_sql(tree: exp.Expr) -> str:
    return translate.to_duckdb(tree.copy().transform(_row))


def _converted(column: Column, path: exp.Expr) -> str:
    raw = f"({_path_sql(path)})"
    if column.type.is_semi_structured:
        return conversions.convert(column, f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END")
    return conversions.convert(column, f"({raw} ->> '$')")


def _between(written: Column, column: Column, sql: str) -> str:
    if column.type.is_semi_structured:
        return sql if written.type.is_semi_structured else f"to_json({sql})"
    return conversions.cast(column, sql)


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
    return exp.Cast(this=inner, to=named_type(kind, node.to))


def _text_of(path: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="json_extract_string", expressions=[path, exp.Literal.string("$")])


# -- CREATE, ALTER and DROP of streaming pipes -----------------------------------------------------------

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
        return already_dropped(name)
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


def _refuse_default(name: str, verb: str) -> None:
    if name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        raise SqlError(
            "003001",
            "42501",
            f"SQL access control error:\nPipe '{name}' is a default pipe, managed by Snowflake; "
            f"it cannot be {verb}.",
        )


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
    columns, expressions = compile_select(session, table, parts["columns"], select, matching)
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
