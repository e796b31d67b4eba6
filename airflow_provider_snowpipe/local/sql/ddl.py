"""CREATE, DROP and TRUNCATE of databases, schemas and tables."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses
import re
import uuid

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import SHARED_DATABASE
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import literal, read_path
from airflow_provider_snowpipe.local.sql import (
    clauses,
    clustering,
    functions,
    iceberg,
    lengths,
    named_tables,
    options,
    reach,
    sequences,
    translate,
)
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.current import use_schema
from airflow_provider_snowpipe.local.sql.properties import plain
from airflow_provider_snowpipe.local.sql.results import Result, already_dropped, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import ColumnType

_HEAD = re.compile(
    r"(?:CREATE|DROP|TRUNCATE)\s+(?P<replace>OR\s+REPLACE\s+)?(?:\w+\s+)??(?:DATABASE|SCHEMA|TABLE)\s+"
    r"(?P<exists>IF\s+(?:NOT\s+)?EXISTS\s+)?(?P<name>.*)",
    re.IGNORECASE | re.DOTALL,
)
# The form that SHOW TABLES prints, which sqlglot does not read.
_LINEAR = re.compile(r"\bCLUSTER\s+BY\s+LINEAR\s*\(", re.IGNORECASE)
# Accepted because they change nothing about the rows; kept out of the stored table.
_IGNORED_CONSTRAINTS = (
    exp.CommentColumnConstraint,
    exp.PrimaryKeyColumnConstraint,
    exp.UniqueColumnConstraint,
    exp.CollateColumnConstraint,
    exp.Reference,
)


_MANAGED = re.compile(r"WITH\s+MANAGED\s+ACCESS\b\s*", re.IGNORECASE)
# Taken without effect, but for COMMENT.
_CONTAINER_PROPERTY = re.compile(
    r"\s*(?P<name>COMMENT|DATA_RETENTION_TIME_IN_DAYS|MAX_DATA_EXTENSION_TIME_IN_DAYS|DEFAULT_DDL_COLLATION|"
    r"LOG_LEVEL|TRACE_LEVEL|LOG_EVENT_LEVEL)\s*=\s*(?P<value>'(?:[^'\\]|''|\\.)*'|\w+)",
    re.IGNORECASE | re.DOTALL,
)


def create_database(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] DATABASE [IF NOT EXISTS] name."""
    session.commit()
    replace, tolerant, path = _head(text, parts=1)
    name, comment = path[0], _container_comment(text)
    exists = session.catalog.find(name) is not None
    session.require_global("CREATE DATABASE")
    if exists and tolerant:
        use_schema(session, name, None)
        return status(f"{name} already exists, statement succeeded.")
    if exists and replace:
        session.require("OWNERSHIP", "DATABASE", name)
        session.catalog.drop_database(name)
    session.catalog.create_database(name)
    made = session.catalog.database(name)
    if comment:
        made.objects.set_comment("DATABASE", "", name, comment, made.clock.now_ms())
    session.created("DATABASE", name)
    session.created("SCHEMA", name, "PUBLIC")
    use_schema(session, name, None)
    return status(f"Database {name} successfully created.")


def create_schema(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] SCHEMA [IF NOT EXISTS] [database.]name."""
    session.commit()
    replace, tolerant, path = _head(text, parts=2)
    database, name = session.resolve_schema(path)
    comment = _container_comment(text)
    session.require("CREATE SCHEMA", "DATABASE", database.name)
    if name in database.schemas:
        if tolerant:
            return status(f"{name} already exists, statement succeeded.")
        if replace:
            session.require("OWNERSHIP", "SCHEMA", database.name, name)
            database.drop_schema(name)
    database.create_schema(name)
    if comment:
        database.objects.set_comment("SCHEMA", name, name, comment, database.clock.now_ms())
    session.created("SCHEMA", database.name, name)
    use_schema(session, database.name, name)
    return status(f"Schema {name} successfully created.")


def drop_database(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP DATABASE [IF EXISTS] name."""
    session.commit()
    _, tolerant, path = _head(text, parts=1)
    if session.catalog.find(path[0]) is None and tolerant and path[0] != SHARED_DATABASE:
        return already_dropped(path[0])
    session.catalog.database(path[0])
    session.require("OWNERSHIP", "DATABASE", path[0])
    session.catalog.drop_database(path[0])
    session.dropped("DATABASE", path[0])
    if session.database == path[0]:
        session.database = session.schema = None
    return status(f"{path[0]} successfully dropped.")


def drop_schema(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP SCHEMA [IF EXISTS] [database.]name."""
    session.commit()
    _, tolerant, path = _head(text, parts=2)
    database, name = session.resolve_schema(path)
    if name not in database.schemas:
        if tolerant:
            return already_dropped(name)
        raise object_missing("Schema", f"{database.name}.{name}")
    session.require("OWNERSHIP", "SCHEMA", database.name, name)
    database.drop_schema(name)
    session.dropped("SCHEMA", database.name, name)
    if (session.database, session.schema) == (database.name, name):
        session.schema = None
    return status(f"{name} successfully dropped.")


def drop_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP TABLE [IF EXISTS] name; its default pipe and channels go with it."""
    session.commit()
    _, tolerant, path = _head(text, parts=3)
    try:
        database, schema, name = session.resolve(path)
        if database.tables.find(schema, name) is not None:
            session.require("OWNERSHIP", "TABLE", database.name, schema, name)
        _drop(session, database, schema, name)
    except SqlError as error:
        if tolerant and error.code == "002003":
            return already_dropped(path[-1])
        raise
    session.temporary_tables.pop((database.name, schema, path[-1]), None)
    return status(f"{path[-1]} successfully dropped.")


def _drop(session: Session, database: Database, schema: str, name: str) -> None:
    pipes = [pipe.key for pipe in database.pipes if (pipe.key.schema, pipe.table) == (schema, name)]
    database.tables.drop(schema, name)
    session.dropped("TABLE", database.name, schema, name)
    for pipe in pipes:
        session.dropped("PIPE", database.name, pipe.schema, pipe.name)


def truncate_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """TRUNCATE TABLE [IF EXISTS] name: DML ("Transactions", "Terminology"); channels keep their tokens."""
    match = re.match(r"TRUNCATE\s+(?:TABLE\s+)?(IF\s+EXISTS\s+)?(.*)", text, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise compilation_error("syntax error in TRUNCATE.")
    path, _ = read_path(match[2])
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        if match[1]:
            return status("Statement executed successfully.")
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require("TRUNCATE", "TABLE", database.name, schema, name)

    def empty() -> int:
        [(count,)] = session.cursor.execute(f"DELETE FROM {table.path}").fetchall()
        database.history.forget_table(session.cursor, schema, name)
        return int(count)

    with database.write_lock:
        deleted = session.change(empty)
    return dataclasses.replace(status("Statement executed successfully."), changed={"deleted": deleted})


def create_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] TABLE [IF NOT EXISTS], with columns or AS SELECT."""
    session.commit()
    text, staged = options.take_stage_options(text)
    tree = translate.parse(_LINEAR.sub("CLUSTER BY (", text))
    if not isinstance(tree, exp.Create):
        raise unsupported("this form of CREATE TABLE")
    named = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(named, exp.Table):
        raise unsupported("this form of CREATE TABLE")
    translate.normalize_identifiers(named)
    path = tuple(part.name for part in named.parts)
    database, schema, name = session.place_new_table(path, temporary=_is_temporary(tree))
    lake = iceberg.read(tree)
    kind = "TABLE" if lake is None else "ICEBERG TABLE"
    session.require(f"CREATE {kind}", "SCHEMA", database.name, schema)
    if lake is not None:
        iceberg.read_types(tree)
    known = database.tables.find(schema, name)
    if known is not None and tree.args.get("replace"):
        session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    if tree.args.get("exists") and known is not None:
        return status(f"{path[-1]} already exists, statement succeeded.")
    if tree.expression is not None:
        table, statements = _as_select(session, database, schema, name, tree)
    else:
        table, statements = _with_columns(session, database, schema, name, tree.this)
    table = options.created_with(tree, table, () if lake is None else iceberg.OPTIONS)
    if lake is not None:
        table = dataclasses.replace(table, columns=iceberg.check(table.columns))
    written = clustering.of_create(tree)
    if written:
        table = dataclasses.replace(table, clustering_key=clustering.key_of(session, table, written))
    replace = bool(tree.args.get("replace"))
    database.tables.create(table, statements, replace=replace, lent=session.lent)
    session.created("TABLE", database.name, schema, name)
    if lake is not None:
        iceberg.keep(database, table, lake)
    options.keep_created(session, database, table, tree, staged)
    made = status(f"Table {path[-1]} successfully created.")
    return made if tree.expression is None else _with_count(session, table, made)


def _with_count(session: Session, table: Table, made: Result) -> Result:
    [(count,)] = session.cursor.execute(f"SELECT count(*) FROM {table.path}").fetchall()
    return dataclasses.replace(made, changed={"inserted": int(count)})


def _is_temporary(tree: exp.Create) -> bool:
    properties = tree.args.get("properties")
    found = properties.expressions if properties else ()
    return any(isinstance(setting, exp.TemporaryProperty) for setting in found)


def _with_columns(
    session: Session, database: Database, schema: str, name: str, body: exp.Expr
) -> tuple[Table, list[str]]:
    if not isinstance(body, exp.Schema):
        raise compilation_error("CREATE TABLE needs a list of columns or AS SELECT.")
    translate.normalize_identifiers(body)
    statements: list[str] = []
    columns = tuple(
        read_column(session, database, definition, statements)
        for definition in body.expressions
        if isinstance(definition, exp.ColumnDef)
    )
    folded = [column.name.upper() for column in columns]
    if not columns or len(set(folded)) != len(folded):
        raise compilation_error(
            "CREATE TABLE needs columns with different names; the local service ignores case."
        )
    table = named_tables.new(database, schema, name, columns)
    statements.append(f"CREATE TABLE {table.path} ({', '.join(column.ddl() for column in columns)})")
    return table, statements


def read_column(
    session: Session, database: Database, definition: exp.ColumnDef, statements: list[str]
) -> Column:
    """Return a column of CREATE TABLE or ALTER TABLE .. ADD.

    :param statements: gets the DuckDB statements that have to run before, for an IDENTITY.
    """
    if definition.kind is None:
        raise compilation_error(f"column {definition.name} has no type.")
    nullable, default, written = True, None, None
    for constraint in definition.constraints:
        kind = constraint.kind
        if isinstance(kind, exp.NotNullColumnConstraint):
            nullable = bool(kind.args.get("allow_null"))
        elif isinstance(kind, exp.DefaultColumnConstraint):
            counted = sequences.default_of(session, kind.this)
            default = counted or _default(kind.this)
            written = kind.this.sql(dialect="snowflake")
        elif isinstance(kind, (exp.AutoIncrementColumnConstraint, exp.GeneratedAsIdentityColumnConstraint)):
            default, written = _sequence(database, kind, statements)
        elif not isinstance(kind, _IGNORED_CONSTRAINTS):
            raise unsupported(f"column constraint {constraint.sql(dialect='snowflake')}")
        if isinstance(kind, exp.PrimaryKeyColumnConstraint):
            nullable = False
    column_type = ColumnType.from_sqlglot(definition.kind)
    if column_type.kind == "TIMESTAMP_TZ" and default is not None:
        default = f"_tz({default})"
    return Column(definition.name, column_type, nullable, default, written)


def split_commas(text: str) -> list[str]:
    """Split a text at the commas outside of parentheses and strings."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[(),]", text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[0] == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _default(expression: exp.Expr) -> str:
    reach.check(expression)
    if isinstance(expression, (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)):
        return translate.to_duckdb(expression)
    return f"({translate.to_duckdb(functions.rewrite_all(expression.copy()))})"


def _sequence(database: Database, kind: exp.Expr, statements: list[str]) -> tuple[str, str]:
    start = kind.args.get("start")
    step = kind.args.get("increment")
    first, by = _whole_number(start), _whole_number(step)
    name = database.names.hidden(f"identity_{uuid.uuid4().hex}")
    statements.append(f"CREATE SEQUENCE {name} START {first} INCREMENT {by}")
    return f"nextval({literal(name)})", f"IDENTITY START {first} INCREMENT {by} NOORDER"


def _whole_number(written: exp.Expr | None) -> int:
    try:
        return 1 if written is None else int(written.sql())
    except ValueError as error:
        raise compilation_error(f"IDENTITY needs whole numbers, not {written}.") from error


def _as_select(
    session: Session, database: Database, schema: str, name: str, tree: exp.Create
) -> tuple[Table, list[str]]:
    query = translate.prepare(session, tree.expression.copy())
    sql = translate.to_duckdb(query)
    described = session.cursor.execute(f"DESCRIBE {sql}").fetchall()
    found = [Column(row[0], ColumnType.from_duckdb(row[1])) for row in described]
    if not isinstance(tree.this, exp.Schema):
        table = named_tables.new(database, schema, name, tuple(found))
        create = f"CREATE TABLE {table.path} ({', '.join(column.ddl() for column in found)})"
        return table, [create, f"INSERT INTO {table.path} {sql}"]
    body = tree.this.copy()
    given = [part for part in body.expressions if isinstance(part, (exp.ColumnDef, exp.Identifier))]
    if len(given) != len(found):
        raise SqlError("002026", "42601", "SQL compilation error:\nInvalid column definition list")
    # A type may be left out, then it is that of the query ("CREATE TABLE", "Variant syntax": AS SELECT).
    for part, column in zip(given, found, strict=True):
        definition = part if isinstance(part, exp.ColumnDef) else exp.ColumnDef(this=part.copy())
        if definition.kind is None:
            definition.set("kind", exp.DataType.build(str(column.type), dialect="snowflake"))
        if definition is not part:
            part.replace(definition)
    table, statements = _with_columns(session, database, schema, name, body)
    checked = translate.to_duckdb(lengths.checked(query, table.columns))
    return table, [*statements, f"INSERT INTO {table.path} {checked}"]


def _container_comment(text: str) -> str:
    """Read what CREATE DATABASE or SCHEMA says after the name, and return its COMMENT.

    :raises SqlError: 001003 for words that belong to nothing, 000002 for CLONE and other properties.
    """
    match = _HEAD.match(text)
    assert match is not None  # noqa: S101 - the caller has read the name
    _, rest = read_path(match["name"])
    managed = _MANAGED.match(rest)
    rest = rest[managed.end() :] if managed else rest
    copied = re.match(r"CLONE|FROM\s+SHARE", rest, re.IGNORECASE)
    if copied:
        raise unsupported(f"CREATE .. {copied[0].upper()}")
    comment = ""
    position = len(text.rstrip()) - len(rest)
    while found := _CONTAINER_PROPERTY.match(text, position):
        if found["name"].upper() == "COMMENT":
            comment = plain(found["value"])
        position = found.end()
    clauses.unread(text, position)
    return comment


def _head(text: str, *, parts: int) -> tuple[bool, bool, tuple[str, ...]]:
    match = _HEAD.match(text)
    if match is None:
        raise compilation_error(f"syntax error in '{' '.join(text.split()[:3])}'.")
    path, _ = read_path(match["name"])
    if len(path) > parts:
        raise compilation_error(f"'{'.'.join(path)}' has too many parts.")
    return bool(match["replace"]), bool(match["exists"]), path
