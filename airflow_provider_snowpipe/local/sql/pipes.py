"""CREATE, ALTER and DROP of streaming pipes."""

from __future__ import annotations

import re

from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.definition import PipeDefinition
from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, PipeKey
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.pipe_transformations import compile_select
from airflow_provider_snowpipe.local.sql.results import Result, already_dropped, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Table

_CREATE = re.compile(
    r"CREATE\s+(?P<replace>OR\s+REPLACE\s+)?PIPE\s+(?P<exists>IF\s+NOT\s+EXISTS\s+)?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_BODY = re.compile(
    r"(?:COMMENT\s*=\s*'(?:[^']|'')*'\s*)?AS\s+(?P<text>COPY\s+INTO\s+(?P<copy>.*))",
    re.IGNORECASE | re.DOTALL,
)
_STREAM = r"TABLE\s*\(\s*DATA_SOURCE\s*\(\s*TYPE\s*=>\s*'STREAMING'\s*\)\s*\)"
_COPY = re.compile(
    rf"(?:\((?P<columns>[^()]*)\)\s*)?FROM\s*(?:{_STREAM}|\(\s*SELECT\s+(?P<select>.*?)\s+FROM\s+{_STREAM}"
    rf"(?P<more>[^)]*)\))\s*(?P<options>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"(\w+)\s*=\s*'?(\w+)'?\s*", re.IGNORECASE)


def create_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] PIPE [IF NOT EXISTS] name AS COPY INTO table FROM (SELECT .. STREAMING) .."""
    session.commit()
    head = _CREATE.match(text)
    if head is None:
        raise compilation_error("syntax error in CREATE PIPE.")
    path, rest = read_path(head["rest"])
    database, schema, name = session.resolve(path)
    _refuse_default(name, "created")
    body = _BODY.match(rest)
    if body is None:
        raise unsupported("this form of CREATE PIPE; only AS COPY INTO .. of streaming pipes is known")
    key = PipeKey(schema, name)
    if head["exists"] and database.pipes.find(key) is not None:
        return status(f"{name} already exists, statement succeeded.")
    session.require("CREATE PIPE", "SCHEMA", database.name, schema)
    if head["replace"] and database.pipes.find(key) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    table, definition = _compile(session, (database, schema), body["text"], body["copy"])
    session.require("INSERT", "TABLE", database.name, schema, table.name)
    database.pipes.create(key, table.name, definition, replace=bool(head["replace"]))
    session.created("PIPE", database.name, schema, name)
    return status(f"Pipe {name} successfully created.")


def drop_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP PIPE [IF EXISTS] name; its channels go with it."""
    session.commit()
    rest = text.split(None, 2)[2] if len(text.split(None, 2)) > 2 else ""
    tolerant = re.match(r"IF\s+EXISTS\s+(.*)", rest, re.IGNORECASE | re.DOTALL)
    path, _ = read_path(tolerant[1] if tolerant else rest)
    database, schema, name = session.resolve(path)
    _refuse_default(name, "dropped")
    if tolerant and database.pipes.find(PipeKey(schema, name)) is None:
        return already_dropped(name)
    if database.pipes.find(PipeKey(schema, name)) is not None:
        session.require("OWNERSHIP", "PIPE", database.name, schema, name)
    database.pipes.drop(PipeKey(schema, name))
    session.dropped("PIPE", database.name, schema, name)
    return status(f"{name} successfully dropped.")


def alter_pipe(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER PIPE: refused; a default pipe is managed, and a streaming pipe's text is fixed."""
    path, _ = read_path(re.sub(r"^ALTER\s+PIPE\s+(?:IF\s+EXISTS\s+)?", "", text, flags=re.IGNORECASE))
    _refuse_default(session.resolve(path)[2], "altered")
    raise unsupported("ALTER PIPE")


def _refuse_default(name: str, verb: str) -> None:
    if name.upper().endswith(DEFAULT_PIPE_SUFFIX):
        raise SqlError(
            "003001",
            "42501",
            f"SQL access control error:\nPipe '{name}' is a default pipe, managed by Snowflake; "
            f"it cannot be {verb}.",
        )


def _compile(
    session: Session, place: tuple[Database, str], text: str, copy: str
) -> tuple[Table, PipeDefinition]:
    path, rest = read_path(copy)
    parts = _COPY.match(rest)
    if parts is None:
        raise unsupported(
            "this COPY in a pipe; use FROM (SELECT .. FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
        )
    database, schema, name = session.resolve(path)
    if (database, schema) != place:
        raise unsupported("a pipe and its table in different schemas")
    table = database.tables.find(schema, name)
    if table is None:
        raise object_missing("Table", f"{database.name}.{schema}.{name}")
    if parts["more"] and parts["more"].strip():
        raise unsupported(f"{parts['more'].split()[0].upper()} in the transformation of a pipe")
    matching, clusters = _options(parts["options"])
    select = (parts["select"] or "$1").strip()
    if matching is not None and select in ("$1", "*"):
        return table, PipeDefinition(
            text, case_sensitive=matching == "CASE_SENSITIVE", cluster_at_ingest_time=clusters
        )
    if select == "*":
        raise compilation_error("SELECT * of a streaming source needs MATCH_BY_COLUMN_NAME.")
    columns, expressions = compile_select(session, table, parts["columns"], select, matching)
    return table, PipeDefinition(text, columns, expressions, cluster_at_ingest_time=clusters)


def _options(options: str) -> tuple[str | None, bool]:
    """Read MATCH_BY_COLUMN_NAME, None for NONE, and CLUSTER_AT_INGEST_TIME."""
    matching, clusters, position = None, False, 0
    while position < len(options.rstrip()):
        option = _OPTION.match(options, position)
        if option is None:
            raise compilation_error(f"syntax error: unexpected '{options[position : position + 30]}'.")
        name, value = option[1].upper(), option[2].upper()
        if name == "MATCH_BY_COLUMN_NAME" and value in ("CASE_SENSITIVE", "CASE_INSENSITIVE"):
            matching = value
        elif name == "CLUSTER_AT_INGEST_TIME" and value in ("TRUE", "FALSE"):
            clusters = value == "TRUE"
        elif (name, value) not in {
            ("MATCH_BY_COLUMN_NAME", "NONE"), ("ON_ERROR", "CONTINUE"),
        }:  # fmt: skip
            raise unsupported(f"{name} = {value} in a streaming pipe")
        position = option.end()
    return matching, clusters
