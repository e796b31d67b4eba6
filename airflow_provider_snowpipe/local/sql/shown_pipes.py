"""SHOW and DESCRIBE of streaming pipes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import Pipe, PipeKey
from airflow_provider_snowpipe.local.errors import object_missing
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches, schemas_in_scope
from airflow_provider_snowpipe.local.types import TEXT, TIMESTAMP_LTZ

_DEFAULT_TEXT = (
    "COPY INTO {table} FROM (SELECT * FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) "
    "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)
_SHOWN = (
    "name", "database_name", "schema_name", "definition", "owner", "notification_channel", "comment",
    "integration", "pattern", "error_integration", "owner_role_type", "invalid_reason", "kind",
)  # fmt: skip


def show_pipes(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW PIPES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    return _listed(
        session,
        [
            (database, pipe)
            for database, schema in schemas_in_scope(session, text)
            for pipe in database.pipes
            if pipe.key.schema == schema and matches(text, pipe.key.name) and _shows(session, database, pipe)
        ],
    )


def describe_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """DESCRIBE PIPE name."""
    path, _ = read_path(text.split(None, 2)[2] if len(text.split(None, 2)) > 2 else "")
    return _listed(session, [existing_pipe(session, path)])


def existing_pipe(session: Session, path: tuple[str, ...]) -> tuple[Database, Pipe]:
    """Return a streaming pipe that exists and shows for the session.

    :raises SqlError: when there is none.
    """
    database, schema, name = session.resolve(path)
    pipe = database.pipes.find(PipeKey(schema, name))
    if pipe is None or not _shows(session, database, pipe):
        raise object_missing("Pipe", f"{database.name}.{schema}.{name}")
    return database, pipe


def _shows(session: Session, database: Database, pipe: Pipe) -> bool:
    """A default pipe has no grants of its own; it shows with its table."""
    kind, name = ("TABLE", pipe.table) if pipe.definition is None else ("PIPE", pipe.key.name)
    return session.can_see(kind, database.name, pipe.key.schema, name)


def _owner(session: Session, database: Database, pipe: Pipe) -> str:
    kind, name = ("TABLE", pipe.table) if pipe.definition is None else ("PIPE", pipe.key.name)
    return session.catalog.access.owner(Securable(kind, (database.name, pipe.key.schema, name)))


def _listed(session: Session, found: list[tuple[Database, Pipe]]) -> Result:
    columns = (ResultColumn("created_on", TIMESTAMP_LTZ), *(ResultColumn(name, TEXT) for name in _SHOWN))
    rows: list[Sequence[Any]] = []
    for database, pipe in found:
        written = _DEFAULT_TEXT.format(table=pipe.table) if pipe.definition is None else pipe.definition.text
        created = dt.datetime.fromtimestamp(pipe.created_on_ms / 1000, dt.UTC)
        rows.append(
            (created, pipe.key.name, database.name, pipe.key.schema, written, _owner(session, database, pipe),
             *(None,) * 5, "ROLE", None, "STREAMING")
        )  # fmt: skip
    return Result(columns, rows, OTHER)
