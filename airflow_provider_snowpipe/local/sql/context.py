"""Statements about the session: USE, ALTER SESSION, transactions."""

from __future__ import annotations

import dataclasses
import re

from airflow_provider_snowpipe.local.errors import compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.current import use_role, use_schema, use_warehouse
from airflow_provider_snowpipe.local.sql.results import USE, Result, status
from airflow_provider_snowpipe.local.sql.session import Session

_DONE = "Statement executed successfully."
_USE = re.compile(
    r"USE\s+(?:(DATABASE|SCHEMA|ROLE|WAREHOUSE|SECONDARY\s+ROLES)\s+)?(.*)", re.IGNORECASE | re.DOTALL
)
_SET = re.compile(r"ALTER\s+SESSION\s+(SET|UNSET)\s+(.*)", re.IGNORECASE | re.DOTALL)
_PARAMETER = re.compile(r"(\w+)\s*=\s*('(?:[^']|'')*'|[\w.+-]+)\s*,?\s*")


def use(session: Session, text: str, _bindings: Bindings) -> Result:
    """USE [DATABASE | SCHEMA | ROLE | WAREHOUSE] name, USE SECONDARY ROLES ALL | NONE."""
    match = _USE.match(text)
    if match is None or not match[2].strip():
        raise compilation_error("syntax error: USE needs a name.")
    kind = " ".join((match[1] or "").upper().split())
    path, _ = read_path(match[2])
    if kind == "SECONDARY ROLES":
        if path not in (("ALL",), ("NONE",)):
            raise compilation_error("syntax error: USE SECONDARY ROLES takes ALL or NONE.")
        session.secondary_roles = path == ("ALL",)
    elif kind == "ROLE":
        use_role(session, path[-1])
    elif kind == "WAREHOUSE":
        use_warehouse(session, path[-1])
    elif kind == "SCHEMA":
        use_schema(session, path[0] if len(path) == 2 else None, path[-1])
    else:
        use_schema(session, path[0], path[1] if len(path) == 2 else None)
    return dataclasses.replace(status(_DONE), statement_type=USE)


def alter_session(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER SESSION SET | UNSET: parameters are remembered; few have an effect here.

    A change of AUTOCOMMIT commits the open transaction ("Transactions", "Autocommit").
    """
    match = _SET.match(text)
    if match is None:
        raise compilation_error("syntax error: expected ALTER SESSION SET or UNSET.")
    autocommit = session.autocommit
    if match[1].upper() == "SET":
        for name, value in _PARAMETER.findall(match[2]):
            session.set_parameter(name.upper(), value.strip("'").replace("''", "'"))
    else:
        for name in match[2].split(","):
            session.set_parameter(name.strip().upper(), None)
    if session.autocommit != autocommit:
        session.commit()
    return status(_DONE)


def begin(session: Session, text: str, _bindings: Bindings) -> Result:
    """BEGIN [TRANSACTION | WORK]."""
    if not re.fullmatch(
        r"(?:BEGIN(?:\s+(?:WORK|TRANSACTION))?|START\s+TRANSACTION)(?:\s+NAME\s+\w+)?\s*", text, re.IGNORECASE
    ):
        raise unsupported("Snowflake Scripting (BEGIN .. END)")
    session.begin()
    return status(_DONE)


def commit(session: Session, _text: str, _bindings: Bindings) -> Result:
    """COMMIT; succeeds outside a transaction, as in Snowflake."""
    session.commit()
    return status(_DONE)


def rollback(session: Session, _text: str, _bindings: Bindings) -> Result:
    """ROLLBACK; succeeds outside a transaction, as in Snowflake."""
    session.rollback()
    return status(_DONE)
