"""ALTER PIPE .. REFRESH: queues files that were staged before, or whose event was lost."""

from __future__ import annotations

import datetime as dt

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import compilation_error
from airflow_provider_snowpipe.local.loading.arrivals import relative, unloaded
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.loading.history import DAY_MS
from airflow_provider_snowpipe.local.loading.pipe_loads import compile_pipe
from airflow_provider_snowpipe.local.sql.results import OTHER, Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.stages.settings import invalid_parameter, invalid_value, read_settings

REFRESH_MS = 7 * DAY_MS


def refresh(session: Session, database: Database, pipe: FilePipe, text: str) -> Result:
    """REFRESH [PREFIX = '..'] [MODIFIED_AFTER = '..']: queue files of the last 7 days that are not loaded."""
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    settings, rest = read_settings(text)
    if rest:
        raise compilation_error(f"syntax error: unexpected '{rest[:30]}'.")
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
