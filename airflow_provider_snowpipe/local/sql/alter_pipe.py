"""ALTER PIPE: pausing and resuming, comments, REFRESH."""

from __future__ import annotations

import dataclasses

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import PipeKey
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.history import DAY_MS
from airflow_provider_snowpipe.local.sql import pipes
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.file_pipes import HEAD, find_named, text_setting
from airflow_provider_snowpipe.local.sql.pipe_refresh import refresh
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.settings import invalid_parameter, invalid_value, read_settings

STALE_MS = 14 * DAY_MS
_DONE = "Statement executed successfully."


def alter_pipe(session: Session, text: str, bindings: Bindings) -> Result:
    """ALTER PIPE [IF EXISTS] name SET .. | UNSET .. | REFRESH .."""
    found = find_named(session, text)
    if found is None:
        head = HEAD.match(text)
        if head is not None and head["exists"]:
            database, schema, name = session.resolve(read_path(head["rest"])[0])
            if database.pipes.find(PipeKey(schema, name)) is None:
                return status(_DONE)
        return pipes.alter_pipe(session, text, bindings)
    session.commit()
    database, pipe, rest = found
    verb, _, more = rest.partition(" ")
    if verb.upper() == "SET":
        _set(session, database, pipe, more)
    elif verb.upper() == "UNSET":
        _unset(session, database, pipe, more)
    elif verb.upper() == "REFRESH":
        return refresh(session, database, pipe, more)
    else:
        raise unsupported(f"ALTER PIPE .. {verb.upper()}")
    return status(_DONE)


def resume(session: Session, database: Database, pipe: FilePipe, *, forced: bool) -> None:
    """End the pause of a pipe.

    :param forced: also when it is stale, as SYSTEM$PIPE_FORCE_RESUME does.
    :raises SqlError: for a pipe that was paused for 14 days.
    """
    now_ms = database.clock.now_ms()
    if pipe.paused_on_ms is not None and now_ms - pipe.paused_on_ms >= STALE_MS and not forced:
        raise SqlError(
            "003605",
            "55000",
            f"Pipe {database.name}.{pipe.key.schema}.{pipe.key.name} is stale: it was paused for more than "
            "14 days. Use SYSTEM$PIPE_FORCE_RESUME('pipe', 'staleness_check_override') to resume it.",
        )
    database.file_pipes.change(dataclasses.replace(pipe, paused_on_ms=None))
    session.catalog.watch_changed()


def _set(session: Session, database: Database, pipe: FilePipe, text: str) -> None:
    settings, rest = read_settings(text)
    if rest or not settings:
        raise compilation_error(f"syntax error: unexpected '{rest[:30]}'.")
    for name, value in settings.items():
        current = database.file_pipes.find(pipe.key) or pipe
        if name == "PIPE_EXECUTION_PAUSED":
            if not isinstance(value, bool):
                raise invalid_value(name, value, "TRUE or FALSE")
            _pause_or_resume(session, database, current, paused=value)
        elif name == "COMMENT":
            session.require("OWNERSHIP", "PIPE", database.name, pipe.key.schema, pipe.key.name)
            database.file_pipes.change(dataclasses.replace(current, comment=text_setting(settings, name)))
        elif name in ("ERROR_INTEGRATION", "INTEGRATION"):
            session.require("OWNERSHIP", "PIPE", database.name, pipe.key.schema, pipe.key.name)
            changed = text_setting(settings, name)
            field = name.lower()
            database.file_pipes.change(dataclasses.replace(current, **{field: changed}))  # type: ignore[arg-type]
        else:
            raise invalid_parameter(name)


def _unset(session: Session, database: Database, pipe: FilePipe, text: str) -> None:
    for name in text.split(","):
        current = database.file_pipes.find(pipe.key) or pipe
        if name.strip().upper() == "PIPE_EXECUTION_PAUSED":
            _pause_or_resume(session, database, current, paused=False)
        elif name.strip().upper() == "COMMENT":
            session.require("OWNERSHIP", "PIPE", database.name, pipe.key.schema, pipe.key.name)
            database.file_pipes.change(dataclasses.replace(current, comment=None))
        else:
            raise invalid_parameter(name.strip())


def _pause_or_resume(session: Session, database: Database, pipe: FilePipe, *, paused: bool) -> None:
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    if not paused:
        resume(session, database, pipe, forced=False)
    elif pipe.paused_on_ms is None:
        database.file_pipes.change(dataclasses.replace(pipe, paused_on_ms=database.clock.now_ms()))
