"""CREATE, DROP, SHOW and DESCRIBE of pipes; file pipes here, streaming pipes by their own module."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import PipeKey
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_exists,
    unsupported,
)
from airflow_provider_snowpipe.local.loading.history import DAY_MS, FilePipe
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe, relative, unloaded
from airflow_provider_snowpipe.local.loading.staging import SKIP_FILE, OnError
from airflow_provider_snowpipe.local.sql import pipes
from airflow_provider_snowpipe.local.sql.copy_into import CompiledCopy, compile_copy
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import Shown, schemas_in_scope
from airflow_provider_snowpipe.local.stages.definition import (
    Setting,
    invalid_parameter,
    invalid_value,
)

# -- ALTER PIPE .. REFRESH: queues files that were staged before, or whose event was lost ----------------

REFRESH_MS = 7 * DAY_MS


def refresh(session: Session, database: Database, pipe: FilePipe, settings: Mapping[str, Setting]) -> Result:
    """REFRESH [PREFIX = '..'] [MODIFIED_AFTER = '..']: queue files of the last 7 days that are not loaded."""
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    for name, value in settings.items():
        if name not in ("PREFIX", "MODIFIED_AFTER"):
            raise invalid_parameter(name)
        if not isinstance(value, str):
            raise invalid_value(name, value, "a string")
    plan = compile_pipe(session.catalog, database, pipe)
    now_ms = database.clock.now_ms()
    since_ms = now_ms - REFRESH_MS
    if "MODIFIED_AFTER" in settings:
        since_ms = max(since_ms, _epoch_ms(str(settings["MODIFIED_AFTER"])))
    prefix = plan.location.path_of(str(settings.get("PREFIX", ""))) if settings.get("PREFIX") else ""
    fresh = [
        file
        for file in unloaded(plan, pipe, session.cursor)
        if file.modified_ms >= since_ms and file.path.startswith(prefix)
    ]
    names = [relative(plan, file) for file in fresh]
    sizes = [file.size for file in fresh]
    database.file_pipes.enqueue(pipe.key, zip(names, sizes, strict=True), now_ms)
    session.catalog.files_queued.set()
    return Result((ResultColumn("File"), ResultColumn("Status")), [(name, "SENT") for name in names], OTHER)


def _epoch_ms(text: str) -> int:
    try:
        timestamp = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid_value("MODIFIED_AFTER", text, "an ISO 8601 timestamp") from error
    return int((timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)).timestamp() * 1000)


# -- CREATE, DROP, SHOW and DESCRIBE of pipes; file pipes here, streaming pipes by their own module ------

_OPTIONS = ("AUTO_INGEST", "COMMENT", "INTEGRATION", "AWS_SNS_TOPIC", "ERROR_INTEGRATION")
# Documentation page "CREATE PIPE": copy options that a pipe may not have.
_FORBIDDEN = ("FILES", "SIZE_LIMIT", "PURGE", "FORCE", "RETURN_FAILED_ONLY", "VALIDATION_MODE")


def create_pipe(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] PIPE [IF NOT EXISTS] name [options] AS COPY INTO table FROM @stage .."""
    head = reader.target()
    replace = reader.is_replacing
    settings = reader.settings()
    reader.expect("AS")
    session.commit()
    database, schema, name = session.resolve(head.path)
    key = PipeKey(schema, name)
    existing = database.file_pipes.find(key)
    if existing is not None and head.is_tolerant:
        return status(f"{name} already exists, statement succeeded.")
    if existing is not None:
        if not replace:
            raise object_exists(f"{database.name}.{schema}.{name}")
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    if pipes.is_streaming(reader.text[reader.position :]):
        if set(settings) - {"COMMENT"}:
            raise invalid_parameter(next(name for name in settings if name != "COMMENT"))
        result = pipes.create_pipe(session, head, reader, replace=replace)
        if existing is not None:
            database.file_pipes.drop(key)
        return result
    if database.pipes.find(key) is not None and head.is_tolerant:
        return status(f"{name} already exists, statement succeeded.")
    session.require("CREATE PIPE", "SCHEMA", database.name, schema)
    pipe = _compiled(session, database, key, settings, reader)
    _replace_streaming(session, database, key, replace=replace)
    database.file_pipes.create(pipe, replace=replace)
    session.created("PIPE", database.name, schema, name)
    session.catalog.pipe_failures.pop((database.name, schema, name), None)
    session.catalog.watch_changed()
    return status(f"Pipe {name} successfully created.")


def drop_pipe(session: Session, reader: Reader) -> Result:
    """DROP PIPE [IF EXISTS] name; files that wait in its queue are not loaded."""
    head = reader.last_target()
    found = find_named(session, head.path)
    if found is None:
        return pipes.drop_pipe(session, head.path)
    session.commit()
    database, pipe = found
    place = (database.name, pipe.key.schema, pipe.key.name)
    session.require("OWNERSHIP", "PIPE", *place)
    database.file_pipes.drop(pipe.key)
    session.dropped("PIPE", *place)
    session.catalog.pipe_failures.pop(place, None)
    session.catalog.watch_changed()
    return status(f"{pipe.key.name} successfully dropped.")


def show_pipes(session: Session, shown: Shown) -> Result:
    """SHOW PIPES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = [
        _row(session, database, pipe)
        for database, schema in schemas_in_scope(session, shown)
        for pipe in database.file_pipes.pipes
        if pipe.key.schema == schema and shown.matches(pipe.key.name) and _shows(session, database, pipe)
    ]
    return pipes.listed(session, pipes.shown(session, shown), rows)


def describe_pipe(session: Session, reader: Reader) -> Result:
    """DESCRIBE PIPE name."""
    path = reader.last_path()
    found = find_named(session, path)
    if found is None:
        return pipes.listed(session, [pipes.existing_pipe(session, path)], ())
    return pipes.listed(session, [], [_row(session, *found)])


def find_named(session: Session, path: tuple[str, ...]) -> tuple[Database, FilePipe] | None:
    """Return the file pipe of a name, or None; hidden pipes are not found."""
    database, schema, name = session.resolve(path)
    pipe = database.file_pipes.find(PipeKey(schema, name))
    return None if pipe is None or not _shows(session, database, pipe) else (database, pipe)


def _compiled(
    session: Session, database: Database, key: PipeKey, settings: Mapping[str, Setting], reader: Reader
) -> FilePipe:
    for name in settings:
        if name not in _OPTIONS:
            raise invalid_parameter(name)
    auto_ingest = settings.get("AUTO_INGEST", False)
    if not isinstance(auto_ingest, bool):
        raise invalid_value("AUTO_INGEST", auto_ingest, "TRUE or FALSE")
    copy = reader.text[reader.position :].strip()
    reader.expect("COPY INTO")
    compiled = compile_copy(session, reader, default=OnError(SKIP_FILE))
    _check(compiled)
    table = compiled.plan.table
    if table.database != database.name:
        raise unsupported("a pipe and its table in different databases")
    return FilePipe(
        key,
        database.clock.now_ms(),
        copy,
        table.schema,
        table.name,
        auto_ingest,
        text_setting(settings, "COMMENT"),
        text_setting(settings, "INTEGRATION"),
        text_setting(settings, "AWS_SNS_TOPIC"),
        text_setting(settings, "ERROR_INTEGRATION"),
        compiled.plan.pattern,
    )


def _check(compiled: CompiledCopy) -> None:
    plan, options = compiled.plan, compiled.options
    written = {
        "FILES": options.files is not None,
        "SIZE_LIMIT": options.size_limit is not None,
        "VALIDATION_MODE": options.validation is not None,
        **{name: options.flags.get(name, False) for name in ("PURGE", "FORCE", "RETURN_FAILED_ONLY")},
    }
    for name in _FORBIDDEN:
        if written[name]:
            raise compilation_error(f"copy option {name} is not supported in a pipe.")
    if plan.on_error.action not in ("CONTINUE", SKIP_FILE):
        raise compilation_error("copy option ON_ERROR = ABORT_STATEMENT is not supported in a pipe.")
    stage = plan.location.stage
    if plan.location.kind == "USER" or (stage is not None and stage.temporary):
        raise compilation_error("a pipe cannot load from a user stage or a temporary stage.")
    if plan.table.is_temporary:
        raise compilation_error("a pipe cannot load into a temporary table.")
    if plan.location.kind == "URL":
        raise compilation_error("a pipe loads from a stage, not from a URL.")


def text_setting(settings: Mapping[str, Setting], name: str) -> str | None:
    """Return an option that is a string or a name; None when it was not written.

    :raises SqlError: for another kind of value.
    """
    value = settings.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid_value(name, value, "a string or a name")
    return None if value is None else str(value)


def _replace_streaming(session: Session, database: Database, key: PipeKey, *, replace: bool) -> None:
    if database.pipes.find(key) is None:
        return
    if not replace:
        raise object_exists(f"{database.name}.{key.schema}.{key.name}")
    session.require("OWNERSHIP", "PIPE", database.name, key.schema, key.name)
    database.pipes.drop(key)


def _shows(session: Session, database: Database, pipe: FilePipe) -> bool:
    return session.can_see("PIPE", database.name, pipe.key.schema, pipe.key.name)


def _row(session: Session, database: Database, pipe: FilePipe) -> Sequence[Any]:
    owner = session.catalog.access.owner(Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name)))
    failure = session.catalog.pipe_failures.get((database.name, pipe.key.schema, pipe.key.name))
    return (
        pipe.created_on_ms, pipe.key.name, database.name, pipe.key.schema, pipe.text, owner,
        pipe.notification_channel, pipe.comment,
        pipe.integration, pipe.pattern, pipe.error_integration, "ROLE",
        failure.message if failure else None, "STAGE",
    )  # fmt: skip


# -- ALTER PIPE: pausing and resuming, comments, REFRESH -------------------------------------------------

STALE_MS = 14 * DAY_MS
_DONE = "Statement executed successfully."


def alter_pipe(session: Session, reader: Reader) -> Result:
    """ALTER PIPE [IF EXISTS] name SET .. | UNSET .. | REFRESH .."""
    head = reader.target()
    verb = reader.accept("SET", "UNSET", "REFRESH")
    if not verb:
        raise unsupported(f"ALTER PIPE .. {reader.word}")
    names = reader.names() if verb == "UNSET" else []
    settings = {} if names else reader.settings(needed=verb == "SET")
    reader.end()
    found = find_named(session, head.path)
    if found is None:
        database, schema, name = session.resolve(head.path)
        if head.is_tolerant and database.pipes.find(PipeKey(schema, name)) is None:
            return status(_DONE)
        return pipes.alter_pipe(session, head.path)
    session.commit()
    if verb == "SET":
        _set(session, *found, settings)
    elif verb == "UNSET":
        _unset(session, *found, names)
    else:
        return refresh(session, *found, settings)
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


def _set(session: Session, database: Database, pipe: FilePipe, settings: Mapping[str, Setting]) -> None:
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


def _unset(session: Session, database: Database, pipe: FilePipe, names: Sequence[str]) -> None:
    for name in names:
        current = database.file_pipes.find(pipe.key) or pipe
        if name == "PIPE_EXECUTION_PAUSED":
            _pause_or_resume(session, database, current, paused=False)
        elif name == "COMMENT":
            session.require("OWNERSHIP", "PIPE", database.name, pipe.key.schema, pipe.key.name)
            database.file_pipes.change(dataclasses.replace(current, comment=None))
        else:
            raise invalid_parameter(name)


def _pause_or_resume(session: Session, database: Database, pipe: FilePipe, *, paused: bool) -> None:
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    if not paused:
        resume(session, database, pipe, forced=False)
    elif pipe.paused_on_ms is None:
        database.file_pipes.change(dataclasses.replace(pipe, paused_on_ms=database.clock.now_ms()))
