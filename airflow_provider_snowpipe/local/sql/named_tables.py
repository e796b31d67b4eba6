"""Tables that a statement names: the engine's path goes into its tree, Snowflake's stays beside."""

from __future__ import annotations

from sqlglot import exp

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, Table

_PLACE = "place"


def new(database: Database, schema: str, name: str, columns: tuple[Column, ...]) -> Table:
    """Return a table that a statement is to create, at the home of its schema."""
    now = database.clock.now_ms()
    return Table(
        database.name,
        schema,
        name,
        columns,
        now,
        home=database.names.home(schema),
        engine_name=database.tables.engine_name(schema, name),
    )


def put(node: exp.Table, database: Database, schema: str, name: str) -> None:
    """Let a node name a table as the engine does."""
    table = database.tables.find(schema, name)
    engine = (*database.names.home(schema), name if table is None else table.engine)
    for part, word in zip(("catalog", "db", "this"), engine, strict=True):
        node.set(part, exp.to_identifier(word, quoted=True))
    node.meta[_PLACE] = (database.name, schema, name)


def database_of(session: Session, node: exp.Table) -> Database:
    """Return the database of a table that :func:`put` named.

    :raises SqlError: when it was dropped meanwhile.
    """
    return session.catalog.database(node.meta[_PLACE][0])


def find(database: Database, node: exp.Table) -> Table | None:
    """Return the table of a database that :func:`put` named, or None for another relation."""
    place = node.meta.get(_PLACE)
    return None if place is None or place[0] != database.name else database.tables.find(*place[1:])


def find_anywhere(session: Session, node: exp.Table) -> Table | None:
    """Return the table that :func:`put` named, or None for another relation."""
    place = node.meta.get(_PLACE)
    database = None if place is None else session.catalog.find(place[0])
    return None if database is None else find(database, node)
