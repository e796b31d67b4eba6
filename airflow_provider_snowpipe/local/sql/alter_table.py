"""ALTER TABLE: columns, names, clustering keys and comments; its options are in options.py."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable

from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.schema_objects import column_key
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import quote, read_path
from airflow_provider_snowpipe.local.sql import ddl, iceberg, properties, translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import plain
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import ColumnType

_DONE = "Statement executed successfully."
_HEAD = re.compile(r"ALTER\s+TABLE\s+(?P<exists>IF\s+EXISTS\s+)?(?P<name>.*)", re.IGNORECASE | re.DOTALL)
_SET = re.compile(r"(SET|UNSET)\s+(.*)", re.IGNORECASE | re.DOTALL)
_ADD = re.compile(
    r"ADD\s+(?:COLUMN\s+)?(?P<exists>IF\s+NOT\s+EXISTS\s+)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_CONSTRAINT = re.compile(r"(?:ADD|DROP)\s+(?:CONSTRAINT|PRIMARY\s+KEY|UNIQUE|FOREIGN\s+KEY)\b", re.IGNORECASE)
_DROP = re.compile(r"DROP\s+(?:COLUMN\s+)?(?P<exists>IF\s+EXISTS\s+)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_RENAME_COLUMN = re.compile(r"RENAME\s+COLUMN\s+(.*?)\s+TO\s+(.*)", re.IGNORECASE | re.DOTALL)
_RENAME = re.compile(r"RENAME\s+TO\s+(.*)", re.IGNORECASE | re.DOTALL)
_SWAP = re.compile(r"SWAP\s+WITH\s+(.*)", re.IGNORECASE | re.DOTALL)
_CLUSTER = re.compile(r"CLUSTER\s+BY\s+(?:LINEAR\s*)?(\(.*\))\s*\Z", re.IGNORECASE | re.DOTALL)
_UNCLUSTER = re.compile(r"DROP\s+CLUSTERING\s+KEY\s*\Z", re.IGNORECASE)
_RECLUSTER = re.compile(r"(?:SUSPEND|RESUME)\s+RECLUSTER\s*\Z", re.IGNORECASE)
_COLUMN = re.compile(r"(?:ALTER|MODIFY)\s+(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"(?:COLUMN\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_TYPE = re.compile(r"(?:SET\s+DATA\s+)?TYPE\s+(.*)", re.IGNORECASE | re.DOTALL)
_COLUMN_COMMENT = re.compile(r"(?:COMMENT\s+('(?:[^']|'')*')|UNSET\s+COMMENT)\s*\Z", re.IGNORECASE)
_Place = tuple[Session, Database, Table]


def alter_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER TABLE [IF EXISTS] name ADD | DROP | RENAME | ALTER | CLUSTER BY | SWAP WITH | SET | UNSET .."""
    session.commit()
    head = _HEAD.match(text)
    if head is None:
        raise compilation_error("syntax error in ALTER TABLE.")
    path, action = read_path(head["name"])
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        if head["exists"]:
            return status(_DONE)
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    setting = _SET.match(action)
    if setting is not None:
        return ddl.alter_table(session, database, table, setting[1].upper(), setting[2])
    with database.write_lock:
        _change((session, database, table), action)
    return status(_DONE)


def _change(place: _Place, action: str) -> None:
    if _CONSTRAINT.match(action) or _RECLUSTER.match(action):
        # Keys are not enforced in Snowflake either, and nothing here clusters rows again.
        return
    for pattern, work in _ACTIONS:
        match = pattern.match(action)
        if match is not None:
            work(place, match)
            return
    raise unsupported(f"ALTER TABLE .. {' '.join(action.split()[:2]).upper()}")


def _add(place: _Place, match: re.Match[str]) -> None:
    session, database, table = place
    tree = translate.parse(f"CREATE TABLE t ({match['rest']})")
    body = tree.this
    # A closing parenthesis among the columns makes another statement of them.
    if not isinstance(tree, exp.Create) or not isinstance(body, exp.Schema) or tree.expression is not None:
        raise compilation_error("syntax error in ALTER TABLE .. ADD.")
    translate.normalize_identifiers(body)
    statements: list[str] = []
    columns = list(table.columns)
    for definition in body.expressions:
        if not isinstance(definition, exp.ColumnDef):
            raise unsupported("ALTER TABLE .. ADD of something that is not a column")
        if any(known.name.upper() == definition.name.upper() for known in columns):
            if match["exists"]:
                continue
            raise SqlError(
                "001430", "42601", f"SQL compilation error:\ncolumn '{definition.name}' already exists"
            )
        if iceberg.definition_of(database, table.schema, table.name) is not None:
            iceberg.read_types(tree)
            (column,) = iceberg.check((ddl.read_column(session, database, definition, statements),))
        else:
            column = ddl.read_column(session, database, definition, statements)
        columns.append(column)
        free = dataclasses.replace(column, nullable=True)
        statements.append(f"ALTER TABLE {table.path} ADD COLUMN {free.ddl()}")
        if not column.nullable:
            statements.append(f"ALTER TABLE {table.path} ALTER COLUMN {quote(column.name)} SET NOT NULL")
    database.tables.change(dataclasses.replace(table, columns=tuple(columns)), statements)


def _drop(place: _Place, match: re.Match[str]) -> None:
    _, database, table = place
    columns, statements = list(table.columns), []
    for name in properties.read_list(match["rest"]):
        known = next((column for column in columns if column.name == name), None)
        if known is None:
            if match["exists"]:
                continue
            raise _no_column(name)
        if len(columns) == 1:
            raise compilation_error(f"column '{name}' is the only one of table '{table.name}'.")
        columns.remove(known)
        statements.append(f"ALTER TABLE {table.path} DROP COLUMN {quote(name)}")
    database.tables.change(dataclasses.replace(table, columns=tuple(columns)), statements)


def _rename_column(place: _Place, match: re.Match[str]) -> None:
    _, database, table = place
    old, new = read_path(match[1])[0][-1], read_path(match[2])[0][-1]
    _find(table, old)
    if any(column.name.upper() == new.upper() != old.upper() for column in table.columns):
        raise SqlError("001430", "42601", f"SQL compilation error:\ncolumn '{new}' already exists")
    columns = tuple(
        dataclasses.replace(column, name=new) if column.name == old else column for column in table.columns
    )
    statement = f"ALTER TABLE {table.path} RENAME COLUMN {quote(old)} TO {quote(new)}"
    database.tables.change(dataclasses.replace(table, columns=columns), [statement])


def _rename(place: _Place, match: re.Match[str]) -> None:
    session, database, table = place
    target, schema, name = session.resolve(read_path(match[1])[0])
    if (target, schema) != (database, table.schema):
        raise unsupported("ALTER TABLE .. RENAME TO another schema")
    _refuse_custom_pipes(database, table)
    database.tables.rename(table, dataclasses.replace(table, name=name))
    _grants_follow(session, table, name)


def _swap(place: _Place, match: re.Match[str]) -> None:
    session, database, table = place
    target, schema, name = session.resolve(read_path(match[1])[0])
    other = target.tables.find(schema, name)
    if other is None:
        raise object_missing("Table", f"{target.name}.{schema}.{name}")
    session.require("OWNERSHIP", "TABLE", target.name, schema, name)
    if (target, schema) != (database, table.schema):
        raise unsupported("ALTER TABLE .. SWAP WITH a table of another schema")
    _refuse_custom_pipes(database, table)
    _refuse_custom_pipes(database, other)
    between = dataclasses.replace(table, name=f"_swap_{uuid.uuid4().hex}")
    database.tables.rename(table, between)
    database.tables.rename(other, dataclasses.replace(other, name=table.name))
    database.tables.rename(between, dataclasses.replace(table, name=other.name))


def _cluster(place: _Place, match: re.Match[str]) -> None:
    session, database, table = place
    tree = translate.parse(f"SELECT {match[1][1:-1]}")
    key = ddl.key_of(session, table, [part.unalias() for part in tree.expressions])
    database.tables.change(dataclasses.replace(table, clustering_key=key))


def _uncluster(place: _Place, _match: re.Match[str]) -> None:
    _, database, table = place
    database.tables.change(dataclasses.replace(table, clustering_key=None))


def _columns(place: _Place, match: re.Match[str]) -> None:
    _, database, table = place
    for part in ddl.split_commas(
        match["rest"].strip().strip("()") if match["rest"][:1] == "(" else match["rest"]
    ):
        word = _WORD.match(part.strip())
        path, change = read_path(word[1] if word else part)
        known = database.tables.find(table.schema, table.name) or table
        column = _find(known, path[-1])
        comment = _COLUMN_COMMENT.match(change)
        if comment is not None:
            key, text = column_key(table.name, column.name), plain(comment[1]) if comment[1] else ""
            database.objects.set_comment("COLUMN", table.schema, key, text, database.clock.now_ms())
            continue
        changed, statement = _column(known, column, change)
        columns = tuple(changed if each is column else each for each in known.columns)
        database.tables.change(dataclasses.replace(known, columns=columns), [statement])


def _column(table: Table, column: Column, change: str) -> tuple[Column, str]:
    start = f"ALTER TABLE {table.path} ALTER COLUMN {quote(column.name)}"
    word = " ".join(change.upper().split())
    if word in {"SET NOT NULL", "NOT NULL"}:
        return dataclasses.replace(column, nullable=False), f"{start} SET NOT NULL"
    if word == "DROP NOT NULL":
        return dataclasses.replace(column, nullable=True), f"{start} DROP NOT NULL"
    if word == "DROP DEFAULT":
        return dataclasses.replace(column, default=None, default_text=None), f"{start} DROP DEFAULT"
    kind = _TYPE.match(change)
    if kind is None:
        raise unsupported(f"ALTER TABLE .. ALTER COLUMN .. {word[:30]}")
    definition = translate.parse(f"CREATE TABLE t (c {kind[1]})").find(exp.ColumnDef)
    if definition is None or definition.kind is None:
        raise compilation_error(f"'{kind[1][:30]}' is no data type.")
    wanted = ColumnType.from_sqlglot(definition.kind)
    if not _is_wider(column.type, wanted):
        raise SqlError(
            "002108",
            "22000",
            f"SQL compilation error:\ncannot change column {column.name} from type {column.type} to {wanted}",
        )
    return dataclasses.replace(column, type=wanted), f"{start} SET DATA TYPE {wanted.duckdb}"


def _is_wider(old: ColumnType, new: ColumnType) -> bool:
    if old.kind != new.kind:
        return False
    if old.kind == "NUMBER":
        return old.scale == new.scale and (new.precision or 0) >= (old.precision or 0)
    return (new.length or 0) >= (old.length or 0)


def _find(table: Table, name: str) -> Column:
    for column in table.columns:
        if column.name == name:
            return column
    raise _no_column(name)


def _no_column(name: str) -> SqlError:
    return SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")


def _refuse_custom_pipes(database: Database, table: Table) -> None:
    for pipe in database.pipes:
        if pipe.definition is not None and (pipe.key.schema, pipe.table) == (table.schema, table.name):
            raise unsupported(f"another name for table {table.name}, which pipe {pipe.key.name} fills")


def _grants_follow(session: Session, table: Table, name: str) -> None:
    place = (table.database, table.schema)
    session.catalog.access.renamed(
        Securable("TABLE", (*place, table.name)), Securable("TABLE", (*place, name))
    )


_ACTIONS: tuple[tuple[re.Pattern[str], Callable[[_Place, re.Match[str]], None]], ...] = (
    (_UNCLUSTER, _uncluster),
    (_CLUSTER, _cluster),
    (_ADD, _add),
    (_DROP, _drop),
    (_RENAME_COLUMN, _rename_column),
    (_RENAME, _rename),
    (_SWAP, _swap),
    (_COLUMN, _columns),
)
