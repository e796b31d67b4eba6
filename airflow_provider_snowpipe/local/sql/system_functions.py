"""System functions: SYSTEM$PIPE_STATUS, SYSTEM$PIPE_FORCE_RESUME, tokens of channels, SYSTEM$WAIT."""

from __future__ import annotations

import datetime as dt
import json

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import DEFAULT_PIPE_SUFFIX, Pipe
from airflow_provider_snowpipe.local.errors import Refusal, compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.loading.history import FilePipe
from airflow_provider_snowpipe.local.sql.file_pipes import STALE_MS, find_named, resume
from airflow_provider_snowpipe.local.sql.pipes import existing_pipe
from airflow_provider_snowpipe.local.sql.reader import Reader
from airflow_provider_snowpipe.local.sql.relations import rows_for
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session

_OVERRIDES = {"", "staleness_check_override", "ownership_transfer_check_override"}
_WAIT_SECONDS = {"MILLISECONDS": 0.001, "SECONDS": 1.0, "MINUTES": 60.0, "HOURS": 3600.0, "DAYS": 86400.0}


def system_function(session: Session, reader: Reader) -> Result:
    """SELECT or CALL of a system function, with literals as arguments, and an alias."""
    begin = reader.position
    name = reader.name()
    reader.expect_sign("(")
    arguments: list[str] = []
    while not reader.accept_sign(")"):
        arguments.append(reader.string() if reader.is_at_string else reader.until(",", ")"))
        if not reader.accept_sign(",") and not reader.is_sign(")"):
            raise reader.unexpected()
    column = reader.text[begin : reader.position].strip().upper()
    if reader.verb == "SELECT" and not reader.is_at_end:
        reader.accept("AS")
        column = reader.name()
    reader.end()
    return Result((ResultColumn(column),), [(_value(session, name, arguments),)])


def _value(session: Session, name: str, arguments: list[str]) -> str:
    count = len(arguments)
    if name == "SYSTEM$WAIT" and count in (1, 2):
        return _wait(session, *arguments)
    if name == "SYSTEM$PIPE_STATUS" and count == 1:
        return _status_of(session, arguments[0])
    if name == "SYSTEM$PIPE_FORCE_RESUME" and count in (1, 2):
        found = find_named(session, read_path(arguments[0])[0])
        if found is not None:
            return _force_resume(session, *found, *arguments[1:])
    if name == "SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN" and count == 3:
        return _update_token(session, *arguments)
    raise unsupported(f"{name} with {count} arguments")


def _status_of(session: Session, name: str) -> str:
    path, _ = read_path(name)
    found = find_named(session, path)
    if found is None:
        return _streaming_status(session, path)
    _require_monitor(session, *found)
    return json.dumps(pipe_status(session, *found))


def pipe_status(session: Session, database: Database, pipe: FilePipe) -> dict[str, object]:
    """Return what SYSTEM$PIPE_STATUS reports."""
    key = pipe.key
    cursor = session.cursor
    failure = session.catalog.pipe_failures.get((database.name, key.schema, key.name))
    state = "RUNNING"
    if pipe.paused_on_ms is not None:
        state = "PAUSED"
    elif database.tables.find(pipe.table_schema, pipe.table) is None:
        state = "STOPPED_MISSING_TABLE"
    elif failure is not None:
        state = failure.state
    pending = database.file_pipes.count_waiting(cursor, key)
    report: dict[str, object] = {"executionState": state, "pendingFileCount": pending}
    if pending:
        for oldest in database.file_pipes.waiting(cursor, key, 1):
            report["oldestPendingFilePath"] = oldest.path
            report["oldestFileTimestamp"] = iso(oldest.received_on_ms)
    loads = database.history.events_of_pipe(
        cursor, key.schema, key.name, from_ms=pipe.created_on_ms, newest=1
    )
    for _, last in loads:
        report["lastIngestedTimestamp"] = iso(last.loaded_on_ms)
        report["lastIngestedFilePath"] = last.file_name
    if pipe.auto_ingest:
        report["notificationChannelName"] = pipe.notification_channel
        report["numOutstandingMessagesOnChannel"] = 0
    if failure is not None:
        report["error"] = failure.message
        report["lastPipeErrorTimestamp"] = iso(failure.at_ms)
    return report


def iso(epoch_ms: int) -> str:
    """Return a timestamp as Snowflake's pipe API writes it: ISO 8601 in UTC with milliseconds."""
    timestamp = dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC)
    return timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _require_monitor(session: Session, database: Database, pipe: FilePipe) -> None:
    place = (database.name, pipe.key.schema, pipe.key.name)
    held = session.catalog.access.held(session.roles, Securable("PIPE", place))
    if not held & {"MONITOR", "OPERATE", "OWNERSHIP"}:
        session.require("MONITOR", "PIPE", *place)


def _force_resume(session: Session, database: Database, pipe: FilePipe, option: str = "") -> str:
    chosen = {part.strip().lower() for part in option.split(",")}
    if not chosen <= _OVERRIDES:
        raise compilation_error(f"SYSTEM$PIPE_FORCE_RESUME does not know the override '{option[:60]}'.")
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    now_ms = database.clock.now_ms()
    is_stale = pipe.paused_on_ms is not None and now_ms - pipe.paused_on_ms >= STALE_MS
    resume(session, database, pipe, forced="staleness_check_override" in chosen or not is_stale)
    return f"Pipe {pipe.key.name} is resumed."


def _wait(session: Session, amount: str, unit: str = "SECONDS") -> str:
    """SYSTEM$WAIT(amount [, unit]); an interruption of the session ends it."""
    if not amount.replace(".", "", 1).isdecimal():
        raise compilation_error(f"SYSTEM$WAIT takes a number, not '{amount[:60]}'.")
    if unit.upper() not in _WAIT_SECONDS:
        raise compilation_error(f"SYSTEM$WAIT does not know the unit '{unit}'.")
    rows = rows_for(session, float(amount) * _WAIT_SECONDS[unit.upper()])
    session.cursor.execute(f"SELECT count(*) FROM {rows}").fetchall()  # noqa: S608 - a name of our own
    return f"waited {amount} {unit.lower()}"


def _streaming_status(session: Session, path: tuple[str, ...]) -> str:
    database, pipe = existing_pipe(session, path)
    if pipe.definition is not None and not session.catalog.access.held(
        session.roles, Securable("PIPE", (database.name, pipe.key.schema, pipe.key.name))
    ) & {"MONITOR", "OPERATE", "OWNERSHIP"}:
        session.require("MONITOR", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    state = "RUNNING" if database.tables.find(pipe.key.schema, pipe.table) else "STOPPED_MISSING_TABLE"
    return json.dumps({"executionState": state, "pendingFileCount": 0})


def _update_token(session: Session, table: str, channel: str, token: str) -> str:
    database, schema, name = session.resolve(read_path(table)[0])
    if database.tables.find(schema, name) is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    session.require("INSERT", "TABLE", database.name, schema, name)
    for pipe in _pipes_of(database, schema, name):
        if database.channels.find(pipe, channel) is not None:
            try:
                database.channels.set_offset_token(pipe, channel, token)
            except Refusal as error:
                raise object_missing("Channel", channel) from error
            break
    else:
        raise object_missing("Channel", channel)
    return f"Channel {channel} offset token updated to {token}."


def _pipes_of(database: Database, schema: str, table: str) -> list[Pipe]:
    """The pipes that fill a table, its default pipe first: a channel's name may occur in more than one."""
    default = table + DEFAULT_PIPE_SUFFIX
    found = [pipe for pipe in database.pipes if pipe.key.schema == schema and pipe.table == table]
    return sorted(found, key=lambda pipe: (pipe.key.name != default, pipe.key.name))
