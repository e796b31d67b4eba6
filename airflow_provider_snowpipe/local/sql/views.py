"""CREATE, DROP, SHOW and DESCRIBE of views; a view is its text, expanded where a query names it."""

from __future__ import annotations

import re

import sqlglot.errors
from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.schema_objects import VIEW, SchemaObject
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_exists,
    object_missing,
)
from airflow_provider_snowpipe.local.sql import properties, translate
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import plain, read_head
from airflow_provider_snowpipe.local.sql.results import Result, already_dropped, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches, schemas_in_scope
from airflow_provider_snowpipe.local.tables import Column
from airflow_provider_snowpipe.local.types import ColumnType

_BODY = re.compile(
    r"(?:\((?P<columns>[^()]*)\)\s*)?(?P<options>.*?)\bAS\s+(?P<query>(?:SELECT|WITH|\().*)",
    re.IGNORECASE | re.DOTALL,
)
_TEMPORARY = re.compile(
    r"\A(CREATE\s+(?:OR\s+REPLACE\s+)?(?:SECURE\s+)?)"
    r"(?:(?:LOCAL|GLOBAL|SCOPED)\s+)?(?:TEMP|TEMPORARY|VOLATILE)\s+(?=VIEW\b)",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"COMMENT\s*=?\s*('(?:[^']|'')*')", re.IGNORECASE)
_SHOWN = (
    "created_on", "name", "reserved", "database_name", "schema_name", "owner", "comment", "text", "is_secure",
    "is_materialized",
)  # fmt: skip


def create_view(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] [SECURE] [TEMPORARY] VIEW [IF NOT EXISTS] name [(columns)] [COMMENT = ..] AS query.

    A temporary one ends with its session; until then other sessions see it too.
    """
    session.commit()
    lasting = _TEMPORARY.sub(r"\1", text)
    head = read_head(lasting, "VIEW", parts=3)
    body = _BODY.match(head.rest)
    if body is None:
        raise compilation_error("syntax error in CREATE VIEW: expected [(columns)] AS query.")
    database, schema, name = session.resolve(head.path)
    session.require("CREATE VIEW", "SCHEMA", database.name, schema)
    known = database.objects.find(VIEW, schema, name)
    if known is not None and head.tolerant:
        return status(f"{name} already exists, statement succeeded.")
    if database.tables.find(schema, name) is not None or (known is not None and not head.replace):
        raise object_exists(name)
    if known is not None:
        session.require("OWNERSHIP", VIEW, database.name, schema, name)
    query = body["query"]
    columns = _columns(session, query, body["columns"])
    comment = _COMMENT.search(body["options"])
    definition = {
        "query": query,
        "text": text,
        "columns": [[column.name, str(column.type)] for column in columns],
        "is_secure": bool(re.match(r"CREATE\s+(?:OR\s+REPLACE\s+)?SECURE\b", text, re.IGNORECASE)),
    }
    now = database.clock.now_ms()
    database.objects.put(SchemaObject(VIEW, schema, name, now, definition))
    database.objects.set_comment(VIEW, schema, name, plain(comment[1]) if comment else "", now)
    session.created(VIEW, database.name, schema, name)
    if lasting != text:
        session.temporary_views.append((database.name, schema, name))
    return status(f"View {name} successfully created.")


def drop_view(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP VIEW [IF EXISTS] name."""
    session.commit()
    head = read_head(text, "VIEW", parts=3)
    database, schema, name = session.resolve(head.path)
    if database.objects.find(VIEW, schema, name) is None:
        if head.tolerant:
            return already_dropped(name)
        raise object_missing("View", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", VIEW, database.name, schema, name)
    database.objects.remove(VIEW, schema, name)
    database.objects.remove(f"COMMENT {VIEW}", schema, name)
    session.dropped(VIEW, database.name, schema, name)
    return status(f"{name} successfully dropped.")


def show_views(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW [TERSE] VIEWS [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = [
        (
            view.created_on_ms,
            view.name,
            "",
            database.name,
            schema,
            session.catalog.access.owner(Securable(VIEW, (database.name, schema, view.name))),
            database.objects.comment(VIEW, schema, view.name),
            view.definition["text"],
            str(view.definition["is_secure"]).lower(),
            "false",
        )
        for database, schema in schemas_in_scope(session, text)
        for view in database.objects.of(VIEW, schema)
        if matches(text, view.name) and session.can_see(VIEW, database.name, schema, view.name)
    ]
    return listing(_SHOWN, rows)


def columns_of(view: SchemaObject) -> tuple[Column, ...]:
    """Return the columns of a view as they were when it was created."""
    return tuple(Column(name, ColumnType.from_text(kind)) for name, kind in view.definition["columns"])


def expand(session: Session, database: Database, view: SchemaObject) -> exp.Expr:
    """Return the query of a view, translated with the rights of the view's owner.

    :raises SqlError: 002037 when a table of the view was dropped or changed.
    """
    owner = session.catalog.access.owner(Securable(VIEW, (database.name, view.schema, view.name)))
    inner = session.lender(owner, database.name, view.schema)
    try:
        return translate.prepare(inner, translate.parse(view.definition["query"]))
    except (SqlError, sqlglot.errors.SqlglotError) as error:
        detail = error.message if isinstance(error, SqlError) else str(error)
        raise SqlError(
            "002037",
            "42601",
            f"SQL compilation error:\nFailure during expansion of view '{view.name}': {detail}",
        ) from error


def _columns(session: Session, query: str, listed: str | None) -> list[Column]:
    tree = translate.parse(query)
    if not isinstance(tree, exp.Query):
        raise compilation_error("a view is a query.")
    sql = translate.to_duckdb(translate.prepare(session, tree))
    described = session.cursor.execute(f"DESCRIBE {sql}").fetchall()
    columns = [Column(row[0], ColumnType.from_duckdb(str(row[1]))) for row in described]
    if listed is not None:
        chosen = properties.read_list(re.sub(r"\s+COMMENT\s+'(?:[^']|'')*'", "", listed, flags=re.IGNORECASE))
        if len(chosen) != len(columns):
            raise SqlError(
                "002020",
                "21S01",
                f"SQL compilation error:\nInvalid number of columns: the view has {len(chosen)}, its query "
                f"{len(columns)}.",
            )
        columns = [Column(name, column.type) for name, column in zip(chosen, columns, strict=True)]
    if len({column.name.upper() for column in columns}) != len(columns):
        raise compilation_error("the columns of a view need different names.")
    return columns
