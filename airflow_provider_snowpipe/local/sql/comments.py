"""COMMENT ON, and ALTER DATABASE and ALTER SCHEMA: comments and new names."""

from __future__ import annotations

import re

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.schema_objects import column_key
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.grants import locate, names
from airflow_provider_snowpipe.local.sql.properties import Head, plain, read_head, read_properties
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session

_DONE = "Statement executed successfully."
_RENAME = re.compile(r"RENAME\s+TO\s+(.*)", re.IGNORECASE | re.DOTALL)
_COMMENT = re.compile(
    r"COMMENT\s+(?P<exists>IF\s+EXISTS\s+)?ON\s+(?P<kind>FILE\s+FORMAT|\w+)\s+(?P<name>.+?)\s+IS\s+"
    r"(?P<text>'(?:[^']|'')*'|\$\$.*?\$\$)\s*\Z",
    re.IGNORECASE | re.DOTALL,
)


def comment_on(session: Session, text: str, _bindings: Bindings) -> Result:
    """COMMENT [IF EXISTS] ON kind name IS '..', for databases, schemas, columns and what schemas hold."""
    session.commit()
    match = _COMMENT.match(text)
    if match is None:
        raise compilation_error("syntax error: expected COMMENT ON kind name IS 'text'.")
    kind = " ".join(match["kind"].upper().split())
    path, _ = read_path(match["name"])
    try:
        if kind == "COLUMN":
            _on_column(session, path, plain(match["text"]))
        else:
            _on_object(session, kind, path, plain(match["text"]))
    except SqlError as error:
        if match["exists"] and error.code == "002003":
            return status(_DONE)
        raise
    return status(_DONE)


def alter_schema(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER SCHEMA [IF EXISTS] name RENAME TO new | SET COMMENT = '..' | UNSET COMMENT."""
    session.commit()
    head = read_head(text, "SCHEMA", parts=2)
    renaming = _RENAME.match(head.rest)
    if renaming:
        return _rename(session, "SCHEMA", head, renaming[1])
    return _alter(session, "SCHEMA", head.path, head.rest, tolerant=head.tolerant)


def alter_database(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER DATABASE [IF EXISTS] name RENAME TO new | SET COMMENT = '..' | UNSET COMMENT."""
    session.commit()
    head = read_head(text, "DATABASE")
    renaming = _RENAME.match(head.rest)
    if renaming:
        return _rename(session, "DATABASE", head, renaming[1])
    return _alter(session, "DATABASE", head.path, head.rest, tolerant=head.tolerant)


def _alter(session: Session, kind: str, path: tuple[str, ...], action: str, *, tolerant: bool) -> Result:
    verb, _, rest = action.partition(" ")
    if verb.upper() not in {"SET", "UNSET"}:
        raise unsupported(f"ALTER {kind} .. {' '.join(action.split()[:2]).upper()}")
    properties = read_properties(rest) if verb.upper() == "SET" else {rest.strip().upper(): ""}
    if set(properties) != {"COMMENT"}:
        raise unsupported(f"ALTER {kind} .. {verb.upper()} {', '.join(properties)}")
    try:
        _on_object(session, kind, path, properties["COMMENT"])
    except SqlError as error:
        if not tolerant or error.code != "002003":
            raise
    return status(_DONE)


def _rename(session: Session, kind: str, head: Head, text: str) -> Result:
    new, rest = read_path(text)
    if rest or len(new) > (1 if kind == "DATABASE" else 2):
        raise compilation_error(f"syntax error after RENAME TO: '{text[:50]}' names no {kind.lower()}.")
    try:
        old = locate(session, kind, head.path).path
        session.require("OWNERSHIP", kind, *old)
    except SqlError as error:
        if head.tolerant and error.code == "002003":
            return status(_DONE)
        raise
    if kind == "DATABASE":
        session.require_global("CREATE DATABASE")
    else:
        # A name alone is one of the current database, as everywhere.
        new = (new[0] if len(new) == 2 else session.current_database(), new[-1])
        if new[0] != old[0]:
            raise unsupported(f"ALTER SCHEMA .. RENAME TO another database, from {old[0]} to {new[0]}")
        session.require("CREATE SCHEMA", "DATABASE", old[0])
    session.catalog.rename(Rename(old, new))
    return status(_DONE)


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
