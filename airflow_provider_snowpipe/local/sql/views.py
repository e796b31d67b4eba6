"""CREATE, DROP, SHOW and DESCRIBE of views; a view is its text, expanded where a query names it."""

from __future__ import annotations

import sqlglot.errors
from sqlglot import exp

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.store import VIEW, SchemaObject
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_exists,
    object_missing,
)
from airflow_provider_snowpipe.local.sql import translate
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import Result, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, schemas_in_scope
from airflow_provider_snowpipe.local.tables import Column, ColumnType

_SHOWN = (
    "created_on", "name", "reserved", "database_name", "schema_name", "owner", "comment", "text", "is_secure",
    "is_materialized",
)  # fmt: skip


def create_view(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] [SECURE] [TEMPORARY] VIEW [IF NOT EXISTS] name [(columns)] [COMMENT = ..] AS query.

    A temporary one ends with its session; until then other sessions see it too.
    """
    head = reader.target()
    columns, comment = _listed(reader), ""
    while reader.accept("COPY GRANTS") or reader.word == "COMMENT":
        if reader.accept("COMMENT"):
            reader.accept_sign("=")
            comment = reader.string()
    reader.expect("AS")
    query = reader.rest()
    session.commit()
    database, schema, name = session.resolve(head.path)
    session.require("CREATE VIEW", "SCHEMA", database.name, schema)
    known = database.objects.find(VIEW, schema, name)
    if known is not None and head.is_tolerant:
        return status(f"{name} already exists, statement succeeded.")
    if database.tables.find(schema, name) is not None or (known is not None and not reader.is_replacing):
        raise object_exists(name)
    if known is not None:
        session.require("OWNERSHIP", VIEW, database.name, schema, name)
    definition = {
        "query": query,
        "text": reader.text,
        "columns": [[column.name, str(column.type)] for column in _columns(session, query, columns)],
        "is_secure": "SECURE" in reader.modifiers,
    }
    now = database.clock.now_ms()
    database.objects.put(SchemaObject(VIEW, schema, name, now, definition))
    database.objects.set_comment(VIEW, schema, name, comment, now)
    session.created(VIEW, database.name, schema, name)
    if reader.is_temporary:
        session.temporary_views.append((database.name, schema, name))
    return status(f"View {name} successfully created.")


def drop_view(session: Session, reader: Reader) -> Result:
    """DROP VIEW [IF EXISTS] name."""
    head = reader.last_target()
    session.commit()
    database, schema, name = session.resolve(head.path)
    if database.objects.find(VIEW, schema, name) is None:
        raise object_missing("View", f"{database.name}.{schema}.{name}")
    session.require("OWNERSHIP", VIEW, database.name, schema, name)
    database.objects.remove(VIEW, schema, name)
    database.objects.remove(f"COMMENT {VIEW}", schema, name)
    session.dropped(VIEW, database.name, schema, name)
    return status(f"{name} successfully dropped.")


def show_views(session: Session, shown: Shown) -> Result:
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
        for database, schema in schemas_in_scope(session, shown)
        for view in database.objects.of(VIEW, schema)
        if shown.matches(view.name) and session.can_see(VIEW, database.name, schema, view.name)
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


def _listed(reader: Reader) -> list[str] | None:
    """Read ``(name [COMMENT '..'], ..)``; None without it."""
    if not reader.accept_sign("("):
        return None
    names = [_named(reader)]
    while reader.accept_sign(","):
        names.append(_named(reader))
    reader.expect_sign(")")
    return names


def _named(reader: Reader) -> str:
    name = reader.name()
    if reader.accept("COMMENT"):
        reader.string()
    return name


def _columns(session: Session, query: str, listed: list[str] | None) -> list[Column]:
    tree = translate.parse(query)
    if not isinstance(tree, exp.Query):
        raise compilation_error("a view is a query.")
    sql = translate.to_duckdb(translate.prepare(session, tree))
    described = session.cursor.execute(f"DESCRIBE {sql}").fetchall()
    columns = [Column(row[0], ColumnType.from_duckdb(str(row[1]))) for row in described]
    if listed is not None:
        if len(listed) != len(columns):
            raise SqlError(
                "002020",
                "21S01",
                f"SQL compilation error:\nInvalid number of columns: the view has {len(listed)}, its query "
                f"{len(columns)}.",
            )
        columns = [Column(name, column.type) for name, column in zip(listed, columns, strict=True)]
    if len({column.name.upper() for column in columns}) != len(columns):
        raise compilation_error("the columns of a view need different names.")
    return columns
