"""CREATE TABLE .. LIKE and CREATE TABLE .. CLONE."""

from __future__ import annotations

import dataclasses
import re

from airflow_provider_snowpipe.local.errors import object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import read_head
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session

_TEMPORARY = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:LOCAL|GLOBAL)\s+)?TEMP", re.IGNORECASE)


def copy_table(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] TABLE [IF NOT EXISTS] name LIKE | CLONE source; a clone has its rows too."""
    session.commit()
    head = read_head(text, "TABLE", parts=3)
    word, _, rest = head.rest.partition(" ")
    source_path, more = read_path(rest)
    if more and not re.fullmatch(r"COPY\s+GRANTS", more, re.IGNORECASE):
        raise unsupported(f"CREATE TABLE .. {word.upper()} .. {' '.join(more.split()[:2]).upper()}")
    origin, schema, name = session.resolve(source_path)
    source = origin.tables.find(schema, name)
    if source is None:
        raise object_missing("Table", f"{origin.name}.{schema}.{name}")
    session.require("SELECT", "TABLE", origin.name, schema, name)
    database, schema, name = session.place_new_table(head.path, temporary=bool(_TEMPORARY.match(text)))
    session.require("CREATE TABLE", "SCHEMA", database.name, schema)
    known = database.tables.find(schema, name)
    if known is not None and head.tolerant:
        return status(f"{head.name} already exists, statement succeeded.")
    if known is not None and head.replace:
        session.require("OWNERSHIP", "TABLE", database.name, schema, name)
    if database is not origin and any("nextval" in (column.default or "") for column in source.columns):
        raise unsupported("a copy of a table with sequences in another database")
    made = dataclasses.replace(
        source,
        database=database.name,
        schema=schema,
        name=name,
        created_on_ms=database.clock.now_ms(),
        home=database.names.home(schema),
        engine_name=database.tables.engine_name(schema, name),
    )
    statements = [f"CREATE TABLE {made.path} ({', '.join(column.ddl() for column in made.columns)})"]
    if word.upper() == "CLONE":
        statements.append(f"INSERT INTO {made.path} SELECT * FROM {source.path}")  # noqa: S608 - quoted
    database.tables.create(made, statements, replace=head.replace)
    session.created("TABLE", database.name, schema, name)
    return status(f"Table {head.name} successfully created.")
