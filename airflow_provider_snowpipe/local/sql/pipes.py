"""CREATE, ALTER, DROP, SHOW and DESCRIBE of streaming pipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import DEFAULT_PIPE_SUFFIX, Pipe, PipeDefinition, PipeKey
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.sql import timestamps, translate
from airflow_provider_snowpipe.local.sql.reader import Reader, Target
from airflow_provider_snowpipe.local.sql.results import (
    Result,
    listing,
    status,
)
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, schemas_in_scope
from airflow_provider_snowpipe.local.sql.timestamps import named_type
from airflow_provider_snowpipe.local.stages.definition import Setting
from airflow_provider_snowpipe.local.tables import Column, ColumnType, Table

# -- The SELECT of a streaming pipe, compiled to one DuckDB expression a column --------------------------


def compile_select(
    session: Session, table: Table, listed: list[str] | None, select: str, matching: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compile the SELECT of a streaming pipe.

    :param table: the table that the pipe fills.
    :param listed: columns after the table's name, or None.
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
        names = listed
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

_DEFAULT_TEXT = (
    "COPY INTO {table} FROM (SELECT * FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) "
    "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)
_SHOWN = (
    "name", "database_name", "schema_name", "definition", "owner", "notification_channel", "comment",
    "integration", "pattern", "error_integration", "owner_role_type", "invalid_reason", "kind",
)  # fmt: skip
_SOURCE = "this COPY in a pipe; use FROM (SELECT .. FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"


def create_pipe(session: Session, head: Target, copy: Reader, *, replace: bool) -> Result:
    """CREATE [OR REPLACE] PIPE [IF NOT EXISTS] name AS COPY INTO table FROM (SELECT .. STREAMING) ..

    :param copy: at the COPY statement.
    """
    session.commit()
    database, schema, name = session.resolve(head.path)
    _refuse_default(name, "created")
    key = PipeKey(schema, name)
    if head.is_tolerant and database.pipes.find(key) is not None:
        return status(f"{name} already exists, statement succeeded.")
    session.require("CREATE PIPE", "SCHEMA", database.name, schema)
    if replace and database.pipes.find(key) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    table, definition = _compile(session, (database, schema), copy)
    session.require("INSERT", "TABLE", database.name, schema, table.name)
    database.pipes.create(key, table.name, definition, replace=replace)
    session.created("PIPE", database.name, schema, name)
    return status(f"Pipe {name} successfully created.")


def drop_pipe(session: Session, path: tuple[str, ...]) -> Result:
    """DROP PIPE [IF EXISTS] name; its channels go with it."""
    session.commit()
    database, schema, name = session.resolve(path)
    _refuse_default(name, "dropped")
    if database.pipes.find(PipeKey(schema, name)) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    database.pipes.drop(PipeKey(schema, name))
    session.dropped("PIPE", database.name, schema, name)
    return status(f"{name} successfully dropped.")


def alter_pipe(session: Session, path: tuple[str, ...]) -> Result:
    """ALTER PIPE: refused; a default pipe is managed, and a streaming pipe's text is fixed."""
    _refuse_default(session.resolve(path)[2], "altered")
    raise unsupported("ALTER PIPE")


def existing_pipe(session: Session, path: tuple[str, ...]) -> tuple[Database, Pipe]:
    """Return a streaming pipe that exists and shows for the session.

    :raises SqlError: when there is none.
    """
    database, schema, name = session.resolve(path)
    pipe = database.pipes.find(PipeKey(schema, name))
    if pipe is None or not _shows(session, database, pipe):
        raise object_missing("Pipe", f"{database.name}.{schema}.{name}")
    return database, pipe


def shown(session: Session, wanted: Shown) -> list[tuple[Database, Pipe]]:
    """Return the streaming pipes that SHOW PIPES lists."""
    return [
        (database, pipe)
        for database, schema in schemas_in_scope(session, wanted)
        for pipe in database.pipes
        if pipe.key.schema == schema and wanted.matches(pipe.key.name) and _shows(session, database, pipe)
    ]


def listed(session: Session, found: list[tuple[Database, Pipe]], others: Iterable[Sequence[Any]]) -> Result:
    """Return the rows of SHOW PIPES and DESCRIBE PIPE.

    :param others: rows of file pipes.
    """
    rows: list[Sequence[Any]] = list(others)
    for database, pipe in found:
        written = _DEFAULT_TEXT.format(table=pipe.table) if pipe.definition is None else pipe.definition.text
        owner = session.catalog.access.owner(Securable(*_securable(database, pipe)))
        rows.append(
            (pipe.created_on_ms, pipe.key.name, database.name, pipe.key.schema, written, owner,
             *(None,) * 5, "ROLE", None, "STREAMING")
        )  # fmt: skip
    return listing(("created_on", *_SHOWN), sorted(rows, key=lambda row: (row[2], row[3], row[1])))


def _shows(session: Session, database: Database, pipe: Pipe) -> bool:
    kind, path = _securable(database, pipe)
    return session.can_see(kind, *path)


def _securable(database: Database, pipe: Pipe) -> tuple[str, tuple[str, ...]]:
    """A default pipe has no grants of its own; it shows with its table."""
    kind, name = ("TABLE", pipe.table) if pipe.definition is None else ("PIPE", pipe.key.name)
    return kind, (database.name, pipe.key.schema, name)


def _refuse_default(name: str, verb: str) -> None:
    if name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        raise SqlError(
            "003001",
            "42501",
            f"SQL access control error:\nPipe '{name}' is a default pipe, managed by Snowflake; "
            f"it cannot be {verb}.",
        )


def is_streaming(copy: str) -> bool:
    """Return True for the text of a COPY that reads ``TABLE(DATA_SOURCE(..))``."""
    return "TABLE(DATA_SOURCE(" in "".join(copy.upper().split())


def _compile(session: Session, place: tuple[Database, str], copy: Reader) -> tuple[Table, PipeDefinition]:
    text = copy.text[copy.position :].strip()
    copy.expect("COPY INTO")
    path = copy.path()
    listed = copy.name_list()
    copy.expect("FROM")
    select, is_selected = "$1", copy.accept_sign("(")
    if is_selected:
        copy.expect("SELECT")
        select = copy.until("FROM")
        copy.expect("FROM")
    _read_source(copy)
    if is_selected and not copy.accept_sign(")"):
        raise unsupported(f"{copy.word} in the transformation of a pipe")
    settings = copy.settings()
    copy.end()
    database, schema, name = session.resolve(path)
    if (database, schema) != place:
        raise unsupported("a pipe and its table in different schemas")
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    matching, clusters = _options(settings)
    if matching is not None and select in ("$1", "*"):
        return table, PipeDefinition(
            text, case_sensitive=matching == "CASE_SENSITIVE", cluster_at_ingest_time=clusters
        )
    if select == "*":
        raise compilation_error("SELECT * of a streaming source needs MATCH_BY_COLUMN_NAME.")
    columns, expressions = compile_select(session, table, listed, select, matching)
    return table, PipeDefinition(text, columns, expressions, cluster_at_ingest_time=clusters)


def _read_source(copy: Reader) -> None:
    """Read ``TABLE(DATA_SOURCE(TYPE => 'STREAMING'))``."""
    for word in ("TABLE", "DATA_SOURCE"):
        if not copy.accept(word) or not copy.accept_sign("("):
            raise unsupported(_SOURCE)
    if copy.settings() != {"TYPE": "STREAMING"}:
        raise unsupported(_SOURCE)
    copy.expect_sign(")")
    copy.expect_sign(")")


def _options(settings: Mapping[str, Setting]) -> tuple[str | None, bool]:
    """Return MATCH_BY_COLUMN_NAME, None for NONE, and CLUSTER_AT_INGEST_TIME."""
    matching, clusters = None, False
    for name, setting in settings.items():
        value = str(setting).upper()
        if name == "MATCH_BY_COLUMN_NAME" and value in ("CASE_SENSITIVE", "CASE_INSENSITIVE"):
            matching = value
        elif name == "CLUSTER_AT_INGEST_TIME" and isinstance(setting, bool):
            clusters = setting
        elif (name, value) not in {("MATCH_BY_COLUMN_NAME", "NONE"), ("ON_ERROR", "CONTINUE")}:
            raise unsupported(f"{name} = {value} in a streaming pipe")
    return matching, clusters
