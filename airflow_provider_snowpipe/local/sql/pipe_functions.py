"""SYSTEM$PIPE_STATUS and SYSTEM$PIPE_FORCE_RESUME of file pipes; other system functions elsewhere."""

from __future__ import annotations

import datetime as dt
import json
import re

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import compilation_error
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipe
from airflow_provider_snowpipe.local.sql import streaming_functions
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.file_pipes import STALE_MS, find_file_pipe, resume
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session

_CALL = re.compile(
    r"(?:SELECT|CALL)\s+SYSTEM\$(?P<name>PIPE_STATUS|PIPE_FORCE_RESUME)\s*\(\s*'(?P<pipe>(?:[^']|'')*)'\s*"
    r"(?:,\s*'(?P<option>(?:[^']|'')*)'\s*)?\)[^()]*\Z",
    re.IGNORECASE | re.DOTALL,
)
_OVERRIDES = {"", "staleness_check_override", "ownership_transfer_check_override"}


def system_function(session: Session, text: str, bindings: Bindings) -> Result:
    """SELECT SYSTEM$PIPE_STATUS('pipe') and SYSTEM$PIPE_FORCE_RESUME('pipe' [, 'override'])."""
    match = _CALL.match(text)
    found = None if match is None else find_file_pipe(session, match["pipe"].replace("''", "'"))
    if match is None or found is None:
        return streaming_functions.system_function(session, text, bindings)
    if match["name"].upper() == "PIPE_STATUS":
        _require_monitor(session, *found)
        value = json.dumps(pipe_status(session, *found))
    else:
        value = _force_resume(session, *found, match["option"] or "")
    return Result((ResultColumn(streaming_functions.column_of(text)),), [(value,)])


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


def _force_resume(session: Session, database: Database, pipe: FilePipe, option: str) -> str:
    chosen = {part.strip().lower() for part in option.split(",")}
    if not chosen <= _OVERRIDES:
        raise compilation_error(f"SYSTEM$PIPE_FORCE_RESUME does not know the override '{option[:60]}'.")
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    now_ms = database.clock.now_ms()
    is_stale = pipe.paused_on_ms is not None and now_ms - pipe.paused_on_ms >= STALE_MS
    resume(session, database, pipe, forced="staleness_check_override" in chosen or not is_stale)
    return f"Pipe {pipe.key.name} is resumed."
