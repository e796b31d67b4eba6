"""CREATE, ALTER, DROP, SHOW and DESCRIBE of streaming and file pipes, and the system functions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from snowpipe_local.access.model import Securable
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.load_history import DAY_MS, FilePipe
from snowpipe_local.errors import (
    Refusal,
    SqlError,
    access_error,
    compilation_error,
    object_exists,
    object_missing,
    unsupported,
)
from snowpipe_local.loading.staging import SKIP_FILE, CopyPlan, OnError
from snowpipe_local.names import DEFAULT_PIPE_SUFFIX, Pipe, PipeDefinition, PipeKey
from snowpipe_local.sql.copy_into import compile_copy
from snowpipe_local.sql.pipe_loads import compile_pipe, relative, unloaded
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.record_expressions import compile_select
from snowpipe_local.sql.relations import rows_for
from snowpipe_local.sql.results import OTHER, Result, ResultColumn, done, listing, status
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.show import Shown, placed, schemas_in_scope
from snowpipe_local.stages.definition import (
    ReadsValue,
    Setting,
    boolean,
    invalid_parameter,
    invalid_value,
    read_options,
    string,
)
from snowpipe_local.tables import Table, read_whole_path

# -- CREATE, ALTER and DROP of streaming pipes -----------------------------------------------------------

_DEFAULT_TEXT = (
    "COPY INTO {table} FROM (SELECT * FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))) "
    "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
)
_SOURCE = "this COPY in a pipe; use FROM (SELECT .. FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"


def _create_streaming(
    session: Session, database: Database, key: PipeKey, copy: Reader, *, replace: bool
) -> None:
    """CREATE [OR REPLACE] PIPE name AS COPY INTO table FROM (SELECT .. STREAMING) .."""
    table, definition = _compile(session, (database, key.schema), copy)
    session.require("INSERT", "TABLE", database.name, key.schema, table.name)
    database.pipes.create(key, table.name, definition, replace=replace)


def _find(session: Session, path: tuple[str, ...]) -> tuple[Database, PipeKey, FilePipe | Pipe | None]:
    """Return where a pipe of this name is or would be, and the pipe if it exists and shows."""
    database, schema, name = session.resolve(path)
    key = PipeKey(schema, name)
    pipe = database.file_pipes.find(*key) or database.pipes.find(key)
    shows = pipe is not None and session.can_see(*pipe.seen_as(database.name))
    return database, key, pipe if shows else None


def find_named(session: Session, path: tuple[str, ...]) -> tuple[Database, FilePipe] | None:
    """Return the file pipe of a name, or None; hidden pipes are not found."""
    database, _, pipe = _find(session, path)
    return (database, pipe) if isinstance(pipe, FilePipe) else None


def existing_pipe(session: Session, path: tuple[str, ...]) -> tuple[Database, Pipe]:
    """Return a streaming pipe that exists and shows for the session.

    :raises SqlError: when there is none.
    """
    database, key, pipe = _find(session, path)
    if not isinstance(pipe, Pipe):
        raise object_missing("Pipe", ".".join((database.name, *key)))
    return database, pipe


def _listed(session: Session, found: Iterable[tuple[Database, FilePipe | Pipe]]) -> Result:
    """Return what SHOW PIPES and DESCRIBE PIPE answer."""
    failures = {name: known.message for name, known in session.catalog.pipe_failures.items()}
    rows = (
        dict(
            placed(database.name, *pipe.key), created_on=pipe.created_on_ms,
            definition=pipe.text or _DEFAULT_TEXT.format(table=pipe.table),
            owner=session.owner(*pipe.seen_as(database.name)), comment=pipe.comment,
            notification_channel=pipe.notification_channel, integration=pipe.integration,
            pattern=pipe.pattern, error_integration=pipe.error_integration,
            invalid_reason=failures.get((database.name, *pipe.key)),
            kind="STREAMING" if isinstance(pipe, Pipe) else "STAGE",
        )
        for database, pipe in found
    )  # fmt: skip
    by_name = itemgetter("database_name", "schema_name", "name")
    return listing("SHOW PIPES", sorted(rows, key=by_name))


def _refuse_default(name: str, verb: str) -> None:
    if name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        raise access_error(f"Pipe '{name}' is a default pipe, managed by Snowflake; it cannot be {verb}.")


def _compile(session: Session, namespace: tuple[Database, str], copy: Reader) -> tuple[Table, PipeDefinition]:
    text = copy.text[copy.position :].strip()
    copy.expect("COPY INTO")
    path = copy.path()
    listed = copy.name_list()
    copy.expect("FROM")
    select, is_selected = "$1", copy.accept_sign("(")
    if is_selected:
        copy.expect("SELECT")
        select = copy.until("FROM")
        copy.expect("FROM")
    _read_source(copy)
    if is_selected and not copy.accept_sign(")"):
        raise unsupported(f"{copy.word} in the transformation of a pipe")
    settings = copy.settings()
    copy.end()
    database, schema, name = session.resolve(path)
    if (database, schema) != namespace:
        raise unsupported("a pipe and its table in different schemas")
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    matching, clusters = _options(settings)
    if matching is not None and select in ("$1", "*"):
        return table, PipeDefinition(
            text, case_sensitive=matching == "CASE_SENSITIVE", cluster_at_ingest_time=clusters
        )
    if select == "*":
        raise compilation_error("SELECT * of a streaming source needs MATCH_BY_COLUMN_NAME.")
    columns, expressions = compile_select(session, table, listed, select, matching)
    return table, PipeDefinition(text, columns, expressions, cluster_at_ingest_time=clusters)


def _read_source(copy: Reader) -> None:
    """Read ``TABLE(DATA_SOURCE(TYPE => 'STREAMING'))``."""
    for word in ("TABLE", "DATA_SOURCE"):
        if not copy.accept(word) or not copy.accept_sign("("):
            raise unsupported(_SOURCE)
    if copy.settings() != {"TYPE": "STREAMING"}:
        raise unsupported(_SOURCE)
    copy.expect_sign(")")
    copy.expect_sign(")")


def _options(settings: Mapping[str, Setting]) -> tuple[str | None, bool]:
    """Return MATCH_BY_COLUMN_NAME, None for NONE, and CLUSTER_AT_INGEST_TIME."""
    matching, clusters = None, False
    for name, setting in settings.items():
        value = str(setting).upper()
        if name == "MATCH_BY_COLUMN_NAME" and value in ("CASE_SENSITIVE", "CASE_INSENSITIVE"):
            matching = value
        elif name == "CLUSTER_AT_INGEST_TIME" and isinstance(setting, bool):
            clusters = setting
        elif (name, value) not in {("MATCH_BY_COLUMN_NAME", "NONE"), ("ON_ERROR", "CONTINUE")}:
            raise unsupported(f"{name} = {value} in a streaming pipe")
    return matching, clusters


# -- ALTER PIPE .. REFRESH: queues files that were staged before, or whose event was lost ----------------

REFRESH_MS = 7 * DAY_MS


def refresh(session: Session, database: Database, pipe: FilePipe, settings: Mapping[str, Setting]) -> Result:
    """REFRESH [PREFIX = '..'] [MODIFIED_AFTER = '..']: queue files of the last 7 days that are not loaded."""
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    options = read_options(settings, {"PREFIX": string, "MODIFIED_AFTER": string})
    plan = compile_pipe(session.catalog, database, pipe)
    now_ms = database.clock.now_ms()
    since_ms = now_ms - REFRESH_MS
    if "MODIFIED_AFTER" in options:
        since_ms = max(since_ms, _epoch_ms(options["MODIFIED_AFTER"]))
    prefix = plan.location.path_of(options["PREFIX"]) if options.get("PREFIX") else ""
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

_OPTIONS: dict[str, ReadsValue] = {
    "AUTO_INGEST": boolean,
    **dict.fromkeys(("COMMENT", "INTEGRATION", "AWS_SNS_TOPIC", "ERROR_INTEGRATION"), string),
}


def create_pipe(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] PIPE [IF NOT EXISTS] name [options] AS COPY INTO table FROM @stage .."""
    head = reader.target()
    replace = reader.is_replacing
    settings = reader.settings()
    reader.expect("AS")
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    key = PipeKey(schema, name)
    of_files, streaming = database.file_pipes.find(*key), database.pipes.find(key)
    streams = "TABLE(DATA_SOURCE(" in "".join(reader.text[reader.position :].upper().split())
    if streams:
        if set(settings) - {"COMMENT"}:
            raise invalid_parameter(next(name for name in settings if name != "COMMENT"))
        _refuse_default(name, "created")
    if head.is_tolerant and (of_files or streaming):
        return status(f"{name} already exists, statement succeeded.")
    session.require("CREATE PIPE", "SCHEMA", database.name, schema)
    if of_files or streaming:
        if not replace:
            raise object_exists(f"{database.name}.{schema}.{name}")
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    if streams:
        _create_streaming(session, database, key, reader, replace=replace)
        if of_files:
            database.file_pipes.drop(of_files)
    else:
        pipe = _compiled(session, database, key, settings, reader)
        if streaming:
            database.pipes.drop(key)
        database.file_pipes.create(pipe, replace=replace)
    session.created("PIPE", database.name, schema, name)
    session.catalog.pipe_failures.pop((database.name, schema, name), None)
    session.catalog.watch_changed()
    return status(f"Pipe {name} successfully created.")


def drop_pipe(session: Session, reader: Reader) -> Result:
    """DROP PIPE [IF EXISTS] name; its channels, or the files that wait in its queue, go with it."""
    head = reader.last_target()
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    of_files = database.file_pipes.find(schema, name)
    if of_files is None:
        _refuse_default(name, "dropped")
    if of_files is not None or database.pipes.find(PipeKey(schema, name)) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    if of_files is not None:
        database.file_pipes.drop(of_files)
    else:
        database.pipes.drop(PipeKey(schema, name))
    session.dropped("PIPE", database.name, schema, name)
    session.catalog.pipe_failures.pop((database.name, schema, name), None)
    session.catalog.watch_changed()
    return status(f"{name} successfully dropped.")


def show_pipes(session: Session, shown: Shown) -> Result:
    """SHOW PIPES [LIKE] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    found = [
        (database, pipe)
        for database, schema in schemas_in_scope(session, shown)
        for pipe in (*database.file_pipes, *database.pipes)
        if pipe.key.schema == schema
        and shown.matches(pipe.key.name)
        and session.can_see(*pipe.seen_as(database.name))
    ]
    return _listed(session, found)


def describe_pipe(session: Session, reader: Reader) -> Result:
    """DESCRIBE PIPE name."""
    path = reader.last_path()
    return _listed(session, [find_named(session, path) or existing_pipe(session, path)])


def _compiled(
    session: Session, database: Database, key: PipeKey, settings: Mapping[str, Setting], reader: Reader
) -> FilePipe:
    options = read_options(settings, _OPTIONS)
    copy = reader.text[reader.position :].strip()
    reader.expect("COPY INTO")
    plan = compile_copy(session, reader, default=OnError(SKIP_FILE))
    _check(plan)
    table = plan.table
    if table.database != database.name:
        raise unsupported("a pipe and its table in different databases")
    return FilePipe(
        key, database.clock.now_ms(), copy, table.schema, table.name, options.get("AUTO_INGEST", False),
        options.get("COMMENT"), options.get("INTEGRATION"), options.get("AWS_SNS_TOPIC"),
        options.get("ERROR_INTEGRATION"), plan.options.pattern,
    )  # fmt: skip


def _check(plan: CopyPlan) -> None:
    options = plan.options
    # Documentation page "CREATE PIPE": copy options that a pipe may not have.
    forbidden = {
        "FILES": options.files is not None,
        "SIZE_LIMIT": options.size_limit is not None,
        **{name: options.has(name) for name in ("PURGE", "FORCE", "RETURN_FAILED_ONLY")},
        "VALIDATION_MODE": options.validation_mode is not None,
    }
    for name, is_written in forbidden.items():
        if is_written:
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


# -- ALTER PIPE: pausing and resuming, comments, REFRESH -------------------------------------------------

STALE_MS = 14 * DAY_MS


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
            return done()
        # A default pipe is managed, and a streaming pipe's text is fixed.
        _refuse_default(name, "altered")
        existing_pipe(session, head.path)
        raise unsupported("ALTER PIPE of a streaming pipe")
    session.transaction.commit()
    if verb == "REFRESH":
        return refresh(session, *found, settings)
    _change(session, *found, {**settings, **dict.fromkeys(names)})
    return done()


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
    database.file_pipes.change(pipe, dataclasses.replace(pipe, paused_on_ms=None))
    session.catalog.watch_changed()


def _change(
    session: Session, database: Database, pipe: FilePipe, settings: Mapping[str, Setting | None]
) -> None:
    """SET, and UNSET, which gives None."""
    for name, value in settings.items():
        current = database.file_pipes.find(*pipe.key) or pipe
        if name == "PIPE_EXECUTION_PAUSED":
            if value is not None and not isinstance(value, bool):
                raise invalid_value(name, value, "TRUE or FALSE")
            _pause_or_resume(session, database, current, paused=value is True)
        elif name == "COMMENT" or (value is not None and name in ("ERROR_INTEGRATION", "INTEGRATION")):
            session.require("OWNERSHIP", "PIPE", database.name, pipe.key.schema, pipe.key.name)
            changed: Any = {name.lower(): None if value is None else string(name, value)}
            database.file_pipes.change(current, dataclasses.replace(current, **changed))
        else:
            raise invalid_parameter(name)


def _pause_or_resume(session: Session, database: Database, pipe: FilePipe, *, paused: bool) -> None:
    session.require("OPERATE", "PIPE", database.name, pipe.key.schema, pipe.key.name)
    if not paused:
        resume(session, database, pipe, forced=False)
    elif pipe.paused_on_ms is None:
        database.file_pipes.change(pipe, dataclasses.replace(pipe, paused_on_ms=database.clock.now_ms()))


# -- System functions: SYSTEM$PIPE_STATUS, SYSTEM$PIPE_FORCE_RESUME, tokens of channels, SYSTEM$WAIT -----

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
    if reader.is_sign(",") or reader.word == "FROM":
        raise unsupported(f"{name} beside other expressions or with FROM")
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
        found = find_named(session, read_whole_path(arguments[0]))
        if found is not None:
            return _force_resume(session, *found, *arguments[1:])
    if name == "SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN" and count == 3:
        return _update_token(session, *arguments)
    raise unsupported(f"{name} with {count} arguments")


def _status_of(session: Session, name: str) -> str:
    path = read_whole_path(name)
    found = find_named(session, path)
    if found is None:
        return _streaming_status(session, path)
    database, pipe = found
    _require_monitor(session, (database.name, pipe.key.schema, pipe.key.name))
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


def _require_monitor(session: Session, full_name: tuple[str, str, str]) -> None:
    held = session.catalog.access.held(session.roles, Securable("PIPE", full_name))
    if not held & {"MONITOR", "OPERATE", "OWNERSHIP"}:
        session.require("MONITOR", "PIPE", *full_name)


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
    if pipe.definition is not None:
        _require_monitor(session, (database.name, pipe.key.schema, pipe.key.name))
    state = "RUNNING" if database.tables.find(pipe.key.schema, pipe.table) else "STOPPED_MISSING_TABLE"
    return json.dumps({"executionState": state, "pendingFileCount": 0})


def _update_token(session: Session, table: str, channel: str, token: str) -> str:
    database, known = session.table(read_whole_path(table), "INSERT")
    for pipe in _pipes_of(database, known.schema, known.name):
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
