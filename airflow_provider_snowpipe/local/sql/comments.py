"""COMMENT ON, and ALTER DATABASE and ALTER SCHEMA: comments and new names."""

from __future__ import annotations

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import Rename
from airflow_provider_snowpipe.local.engine.store import column_key
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.sql.grants import locate, names
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session

_DONE = "Statement executed successfully."


def comment_on(session: Session, reader: Reader) -> Result:
    """COMMENT [IF EXISTS] ON kind name IS '..', for databases, schemas, columns and what schemas hold."""
    is_tolerant = bool(reader.accept("IF EXISTS"))
    reader.expect("ON")
    kind = reader.accept("FILE FORMAT") or reader.name()
    path = reader.path(4)
    reader.expect("IS")
    text = reader.string()
    reader.end()
    session.commit()
    try:
        if kind == "COLUMN":
            _on_column(session, path, text)
        else:
            _on_object(session, kind, path, text)
    except SqlError as error:
        if is_tolerant and error.code == "002003":
            return status(_DONE)
        raise
    return status(_DONE)


def alter_container(session: Session, reader: Reader) -> Result:
    """ALTER DATABASE | SCHEMA [IF EXISTS] name RENAME TO new | SET COMMENT = '..' | UNSET COMMENT."""
    kind = reader.kind
    most = 1 if kind == "DATABASE" else 2
    head = reader.target(most)
    verb = reader.accept("RENAME TO", "SET", "UNSET COMMENT")
    if not verb:
        raise unsupported(f"ALTER {kind} .. {reader.ahead(2)}")
    new = reader.path(most) if verb == "RENAME TO" else ()
    properties = reader.properties(needed=True) if verb == "SET" else {"COMMENT": ""}
    if set(properties) != {"COMMENT"}:
        raise unsupported(f"ALTER {kind} .. SET {', '.join(properties)}")
    reader.end()
    session.commit()
    try:
        if verb == "RENAME TO":
            _rename(session, kind, head.path, new)
        else:
            _on_object(session, kind, head.path, properties["COMMENT"])
    except SqlError as error:
        if not head.is_tolerant or error.code != "002003":
            raise
    return status(_DONE)


def _rename(session: Session, kind: str, path: tuple[str, ...], new: tuple[str, ...]) -> None:
    old = locate(session, kind, path).path
    session.require("OWNERSHIP", kind, *old)
    if kind == "DATABASE":
        session.require_global("CREATE DATABASE")
    else:
        # A name alone is one of the current database, as everywhere.
        new = (new[0] if len(new) == 2 else session.current_database(), new[-1])
        if new[0] != old[0]:
            raise unsupported(f"ALTER SCHEMA .. RENAME TO another database, from {old[0]} to {new[0]}")
        session.require("CREATE SCHEMA", "DATABASE", old[0])
    session.catalog.rename(Rename(old, new))


def _on_object(session: Session, kind: str, path: tuple[str, ...], text: str) -> None:
    if kind in {"ROLE", "USER", "WAREHOUSE"}:
        raise unsupported(f"COMMENT ON {kind}; use ALTER {kind} .. SET COMMENT")
    target = locate(session, kind, path)
    session.require("OWNERSHIP", kind, *target.path)
    database = session.catalog.database(target.path[0])
    schema = target.path[1] if len(target.path) > 1 else ""
    database.objects.set_comment(kind, schema, target.path[-1], text, database.clock.now_ms())


def _on_column(session: Session, path: tuple[str, ...], text: str) -> None:
    if len(path) < 2:
        raise compilation_error("COMMENT ON COLUMN needs table.column.")
    database, schema, name = session.resolve(path[:-1])
    _check_column(database, schema, name, path[-1])
    session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    key = column_key(name, path[-1])
    database.objects.set_comment("COLUMN", schema, key, text, database.clock.now_ms())


def _check_column(database: Database, schema: str, name: str, column: str) -> None:
    table = database.tables.find(schema, name)
    if table is None or name not in names(database, schema, "TABLE"):
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if all(known.name != column for known in table.columns):
        raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{column}'")
