"""DESCRIBE and SHOW."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.channel import Channel
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.schema_objects import column_key
from airflow_provider_snowpipe.local.errors import compilation_error, object_missing
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, listing
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import TEMPORARY, Table

_SCOPES = ("DATABASE", "SCHEMA", "TABLE", "VIEW", "PIPE", "USER", "WAREHOUSE", "TASK")
_WILDCARDS = {"_": ".", "%": ".*"}
_CLAUSES = ("LIKE", "STARTS", "LIMIT", "IN", "FOR", "HISTORY")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a SHOW statement lists: ``[HISTORY] [LIKE ..] [IN ..] [STARTS WITH ..] [LIMIT n [FROM ..]]``.

    :param kind: the words between SHOW and the first clause.
    :param like: pattern of LIKE, or None.
    :param scope: kind and name of IN, ``SCHEMA`` for a name alone; None without it.
    :param starts: text of STARTS WITH, or None.
    :param limit: number of LIMIT, or None.
    :param after: text of FROM: the rows behind the first name that begins with it.
    """

    kind: str = ""
    like: str | None = None
    scope: tuple[str, tuple[str, ...]] | None = None
    starts: str | None = None
    limit: int | None = None
    after: str | None = None

    @classmethod
    def read(cls, reader: Reader, clauses: Sequence[str] = _CLAUSES) -> Shown:
        """Read the clauses to the end, each once and in any order.

        :param clauses: first words of those that the statement has.
        :raises SqlError: 001003 for anything else.
        """
        found: dict[str, Any] = {}
        while (word := reader.word) in clauses and word not in found:
            reader.accept(word)
            found[word] = _clause(word, reader)
        reader.end()
        limit, after = found.get("LIMIT", (None, None))
        scope = found.get("IN") or found.get("FOR")
        return cls(reader.kind, found.get("LIKE"), scope, found.get("STARTS"), limit, after)

    def matches(self, name: str) -> bool:
        """Return True when a name fits LIKE, or there is none."""
        if self.like is None:
            return True
        signs = re.findall(r"\\.|.", self.like, re.DOTALL)
        parts = (_WILDCARDS.get(sign) or re.escape(sign[-1]) for sign in signs)
        return re.fullmatch("".join(parts), name, re.IGNORECASE | re.DOTALL) is not None

    def narrowed(self, result: Result) -> Result:
        """Return the rows that STARTS WITH and LIMIT leave.

        :raises SqlError: for a result without names.
        """
        if self.starts is None and self.limit is None and self.after is None:
            return result
        names = [column.name for column in result.columns]
        if "name" not in names:
            raise compilation_error("this SHOW statement has no names; LIMIT and STARTS WITH do not apply.")
        at = names.index("name")
        rows = [row for row in result.rows if str(row[at]).startswith(self.starts or "")]
        if self.after is not None:
            rows = [row for row in rows if str(row[at]) > self.after]
        return dataclasses.replace(result, rows=rows[: self.limit])


def _clause(word: str, reader: Reader) -> object:
    if word == "LIKE":
        return reader.string()
    if word == "STARTS":
        reader.expect("WITH")
        return reader.string()
    if word == "LIMIT":
        limit = None if reader.accept("NULL") else reader.integer()
        return limit, reader.string() if reader.accept("FROM") else None
    if word == "HISTORY":
        return True
    kind = reader.accept("ACCOUNT", "SESSION", *_SCOPES)
    if kind in {"ACCOUNT", "SESSION"}:
        return kind, ()
    named = not kind or not (reader.is_at_end or reader.word in _CLAUSES)
    if kind in {"TABLE", "PIPE"} and not named:
        raise compilation_error(f"syntax error: IN {kind} needs a name.")
    return kind or "SCHEMA", reader.path() if named else ()


def describe_table(session: Session, path: tuple[str, ...]) -> Result:
    """Return what DESCRIBE TABLE answers.

    :raises SqlError: for a table that does not exist, or stays hidden.
    """
    database, schema, name = session.resolve(path)
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if not session.can_see("TABLE", database.name, schema, name):
        session.require("SELECT", "TABLE", database.name, schema, name)
    rows = [
        (
            c.name,
            str(c.type),
            "COLUMN",
            "Y" if c.nullable else "N",
            c.default_text,
            "N",
            "N",
            None,
            None,
            database.objects.comment("COLUMN", schema, column_key(name.partition(TEMPORARY)[0], c.name))
            or None,
            None,
            None,
        )
        for c in table.columns
    ]
    names = (
        "name", "type", "kind", "null?", "default", "primary key", "unique key", "check", "expression",
        "comment", "policy name", "privacy domain",
    )  # fmt: skip
    return listing(names, rows)


def show_tables(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] TABLES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    found = [
        (database, table)
        for database, schema in schemas_in_scope(session, shown)
        for table in database.tables
        if table.schema == schema
        and shown.matches(table.name.partition(TEMPORARY)[0])
        and (not table.is_temporary or table.name in session.temporary_tables.values())
        and session.can_see("TABLE", database.name, schema, table.name)
    ]
    rows = [
        (*_table_head(database, table), *_table_details(session, database, table))
        for database, table in found
    ]
    return listing(
        ("created_on", "name", "database_name", "schema_name", "kind", "comment", "cluster_by", "rows",
         "owner", "retention_time", "automatic_clustering", "enable_schema_evolution", "owner_role_type",
         "error_logging", "is_iceberg"),
        rows,
        ("rows",),
    )  # fmt: skip


def _table_head(database: Database, table: Table) -> tuple[Any, ...]:
    name = table.name.partition(TEMPORARY)[0]
    is_transient = database.objects.table_option(table.schema, table.name, "transient")
    kind = "TEMPORARY" if table.is_temporary else "TRANSIENT" if is_transient else "TABLE"
    return table.created_on_ms, name, database.name, table.schema, kind


def _table_details(session: Session, database: Database, table: Table) -> tuple[Any, ...]:
    return (
        database.objects.comment("TABLE", table.schema, table.name),
        "" if table.clustering_key is None else table.clustering_key.text,
        _count(session, table.path),
        session.catalog.access.owner(Securable("TABLE", (database.name, table.schema, table.name))),
        "0",
        "OFF",
        "Y" if table.schema_evolution else "N",
        "ROLE",
        "Y" if table.error_logging else "N",
        "Y" if database.objects.table_option(table.schema, table.name, "iceberg") else "N",
    )


def show_schemas(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] SCHEMAS [LIKE] [IN ACCOUNT | DATABASE d].

    When databases and schemas were created is not kept, so ``created_on`` is NULL.
    """
    databases = session.catalog.databases
    scope = shown.scope
    if scope is not None and scope[0] != "ACCOUNT":
        databases = [session.catalog.database(scope[1][0] if scope[1] else session.current_database())]
    elif scope is None and session.database is not None:
        databases = [session.catalog.database(session.database)]
    rows = [
        (
            None,
            schema,
            "N",
            "Y" if (database.name, schema) == (session.database, session.schema) else "N",
            database.name,
            session.catalog.access.owner(Securable("SCHEMA", (database.name, schema))),
            database.objects.comment("SCHEMA", schema, schema),
            "",
            "0",
        )
        for database in databases
        for schema in sorted(database.schemas)
        if shown.matches(schema) and session.can_see("SCHEMA", database.name, schema)
    ]
    return listing(
        ("created_on", "name", "is_default", "is_current", "database_name", "owner", "comment", "options",
         "retention_time"),
        rows,
    )  # fmt: skip


def show_databases(session: Session, shown: Shown) -> Result:
    """SHOW [TERSE] DATABASES [LIKE]; ``created_on`` as in SHOW SCHEMAS."""
    rows = [
        (
            None,
            database.name,
            "N",
            "Y" if database.name == session.database else "N",
            "",
            session.catalog.access.owner(Securable("DATABASE", (database.name,))),
            database.objects.comment("DATABASE", "", database.name),
            "",
            "0",
            "STANDARD",
        )
        for database in session.catalog.databases
        if shown.matches(database.name) and session.can_see("DATABASE", database.name)
    ]
    return listing(
        ("created_on", "name", "is_default", "is_current", "origin", "owner", "comment", "options",
         "retention_time", "kind"),
        rows,
    )  # fmt: skip


def show_channels(session: Session, shown: Shown) -> Result:
    """SHOW CHANNELS [LIKE] [IN ACCOUNT | DATABASE | SCHEMA | TABLE | PIPE x]."""
    accept = _channel_filter(session, shown.scope)
    rows = [
        (
            channel.committed.created_on_ms,
            channel.name,
            database.name,
            channel.pipe.key.schema,
            channel.pipe.table,
            channel.committed.offset_token,
            channel.pipe.key.name,
            "PIPE",
            channel.committed.client_sequencer,
            channel.committed.row_sequencer,
        )
        for database in session.catalog.databases
        for channel in database.channels
        if accept(database, channel)
        and shown.matches(channel.name)
        and session.can_see("TABLE", database.name, channel.pipe.key.schema, channel.pipe.table)
    ]
    numbers = ("client_sequencer", "row_sequencer")
    return listing(
        ("created_on", "name", "database_name", "schema_name", "table_name", "offset_token", "parent_name",
         "parent_domain", *numbers),
        rows,
        numbers,
    )  # fmt: skip


def _channel_filter(
    session: Session, scope: tuple[str, tuple[str, ...]] | None
) -> Callable[[Database, Channel], bool]:
    if scope is None and session.database is None:
        scope = ("ACCOUNT", ())
    kind, path = scope or ("SCHEMA" if session.schema else "DATABASE", ())
    if kind == "ACCOUNT":
        return lambda _database, _channel: True
    if kind == "DATABASE":
        name = path[0] if path else session.current_database()
        return lambda database, _channel: database.name == name
    if kind == "SCHEMA":
        owner, schema = session.resolve_schema(path or (session.schema or "",))
        return lambda database, channel: database is owner and channel.pipe.key.schema == schema
    owner, schema, name = session.resolve(path)
    if kind == "TABLE":
        return lambda d, c: d is owner and (c.pipe.key.schema, c.pipe.table) == (schema, name)
    return lambda d, c: d is owner and (c.pipe.key.schema, c.pipe.key.name) == (schema, name)


def schemas_in_scope(session: Session, shown: Shown) -> list[tuple[Database, str]]:
    """Return the schemas that a SHOW statement is about."""
    scope = shown.scope
    if scope is None:
        if session.database is None:
            scope = ("ACCOUNT", ())
        else:
            scope = ("SCHEMA", (session.schema,)) if session.schema else ("DATABASE", (session.database,))
    kind, path = scope
    if kind == "ACCOUNT":
        return [(d, s) for d in session.catalog.databases for s in sorted(d.schemas)]
    if kind == "DATABASE":
        database = session.catalog.database(path[0] if path else session.current_database())
        return [(database, schema) for schema in sorted(database.schemas)]
    database, schema = session.resolve_schema(path or (session.schema or "",))
    if schema not in database.schemas:
        raise object_missing("Schema", f"{database.name}.{schema}")
    return [(database, schema)]


def _count(session: Session, path: str) -> int:
    row = session.cursor.execute(f"SELECT count(*) FROM {path}").fetchone()
    return int(row[0]) if row else 0
