"""The system functions about streaming pipes and their channels."""

from __future__ import annotations

import json
import re

from airflow_provider_snowpipe.local.access.model import Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, Pipe
from airflow_provider_snowpipe.local.errors import Refusal, compilation_error, object_missing, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.relations import rows_for
from airflow_provider_snowpipe.local.sql.results import Result, ResultColumn
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.shown_pipes import existing_pipe

_CALL = re.compile(r"(?:SELECT|CALL)\s+SYSTEM\$(\w+)\s*\((.*)\)[^()]*\Z", re.IGNORECASE | re.DOTALL)
_AS = re.compile(r"AS\s+", re.IGNORECASE)
_WAIT = re.compile(
    r"(?:SELECT|CALL)\s+SYSTEM\$WAIT\s*\(\s*(\d+(?:\.\d+)?)\s*(?:,\s*'?(\w+)'?\s*)?\)\s*\Z", re.IGNORECASE
)
_WAIT_SECONDS = {"MILLISECONDS": 0.001, "SECONDS": 1.0, "MINUTES": 60.0, "HOURS": 3600.0, "DAYS": 86400.0}
_ARGUMENT = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|\Z)", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "f": "\f"}


def system_function(session: Session, text: str, _bindings: Bindings) -> Result:
    """SELECT SYSTEM$PIPE_STATUS(..) and SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN(..)."""
    waiting = _WAIT.match(text)
    if waiting is not None:
        return _wait(session, waiting[1], (waiting[2] or "SECONDS").upper())
    match = _CALL.match(text)
    if match is None:
        raise compilation_error("syntax error in the call of a system function.")
    name, arguments = match[1].upper(), _arguments(match[2])
    if name == "PIPE_STATUS" and len(arguments) == 1:
        value = _pipe_status(session, arguments[0])
    elif name == "SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN" and len(arguments) == 3:
        value = _update_token(session, *arguments)
    else:
        raise unsupported(f"SYSTEM${name} with {len(arguments)} arguments")
    return Result((ResultColumn(column_of(text)),), [(value,)])


def column_of(text: str) -> str:
    """Return the name of the one column of ``SELECT function(..) [[AS] alias]``."""
    call = text.split(None, 1)[1]
    end = call.rindex(")") + 1
    alias = _AS.sub("", call[end:].strip())
    if not alias:
        return call[:end].upper()
    path, rest = read_path(alias)
    if rest or len(path) > 1:
        raise compilation_error(f"syntax error: unexpected '{alias[:40]}'.")
    return path[0]


def _wait(session: Session, amount: str, unit: str) -> Result:
    """SYSTEM$WAIT(amount [, unit]); an interruption of the session ends it."""
    if unit not in _WAIT_SECONDS:
        raise compilation_error(f"SYSTEM$WAIT does not know the unit '{unit}'.")
    rows = rows_for(session, float(amount) * _WAIT_SECONDS[unit])
    session.cursor.execute(f"SELECT count(*) FROM {rows}").fetchall()  # noqa: S608 - a name of our own
    return Result((ResultColumn("SYSTEM$WAIT"),), [(f"waited {amount} {unit.lower()}",)])


def _pipe_status(session: Session, name: str) -> str:
    database, pipe = existing_pipe(session, read_path(name)[0])
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


def _arguments(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _ARGUMENT.match(text, position)
        if match is None:
            raise compilation_error("the arguments of a system function must be string literals.")
        found.append(_ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]) if m[1] else "'", match[1]))
        position = match.end()
    return found
