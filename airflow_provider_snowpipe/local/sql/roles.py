"""CREATE, ALTER, DROP and SHOW of roles; GRANT ROLE and REVOKE ROLE."""

from __future__ import annotations

import dataclasses
import re

from airflow_provider_snowpipe.local.access import changes
from airflow_provider_snowpipe.local.access.check import insufficient
from airflow_provider_snowpipe.local.access.model import ACCOUNTADMIN, SYSTEM_ROLES, Role, Securable
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    missing_account_object,
    object_exists,
    unsupported,
)
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.properties import read_head, read_properties
from airflow_provider_snowpipe.local.sql.results import Result, already_dropped, listing, status
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.show import matches

_DONE = "Statement executed successfully."
_GRANT = re.compile(
    r"(?:GRANT|REVOKE)\s+ROLE\s+(?P<role>.*?)\s+(?:TO|FROM)\s+(?P<kind>ROLE|USER)\s+(?P<grantee>.*)",
    re.IGNORECASE | re.DOTALL,
)


def create_role(session: Session, text: str, _bindings: Bindings) -> Result:
    """CREATE [OR REPLACE] ROLE [IF NOT EXISTS] name [COMMENT = '..']."""
    session.commit()
    head = read_head(text, "ROLE")
    comment = _comment(head.rest)
    session.require_global("CREATE ROLE")
    access = session.catalog.access
    if head.name in access.state.roles:
        if head.tolerant:
            return status(f"{head.name} already exists, statement succeeded.")
        if not head.replace:
            raise object_exists(head.name)
        require_role_owner(session, head.name)
    with access.change() as state:
        if head.name in state.roles:
            changes.drop_role(state, head.name, session.role, access.now_ms())
        state.roles[head.name] = Role(head.name, session.role, access.now_ms(), comment)
    return status(f"Role {head.name} successfully created.")


def alter_role(session: Session, text: str, _bindings: Bindings) -> Result:
    """ALTER ROLE [IF EXISTS] name SET COMMENT = '..' | UNSET COMMENT."""
    session.commit()
    head = read_head(text, "ROLE")
    if head.name not in session.catalog.access.state.roles:
        if head.tolerant:
            return status(_DONE)
        raise missing_account_object()
    verb, _, rest = head.rest.partition(" ")
    if verb.upper() not in {"SET", "UNSET"}:
        raise unsupported(f"ALTER ROLE .. {verb.upper()}")
    require_role_owner(session, head.name)
    comment = _comment(rest) if verb.upper() == "SET" else ""
    with session.catalog.access.change() as state:
        state.roles[head.name] = dataclasses.replace(state.roles[head.name], comment=comment)
    return status(_DONE)


def drop_role(session: Session, text: str, _bindings: Bindings) -> Result:
    """DROP ROLE [IF EXISTS] name; objects it owned go to the current role."""
    session.commit()
    head = read_head(text, "ROLE")
    access = session.catalog.access
    if head.name not in access.state.roles:
        if head.tolerant:
            return already_dropped(head.name)
        raise missing_account_object()
    if head.name not in SYSTEM_ROLES:
        require_role_owner(session, head.name)
    with access.change() as state:
        changes.drop_role(state, head.name, session.role, access.now_ms())
    return status(f"{head.name} successfully dropped.")


def show_roles(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW ROLES [LIKE]."""
    state = session.catalog.access.state
    active = session.roles
    rows = [
        (
            role.created_on_ms,
            role.name,
            "Y" if role.name == session.catalog.access.default_role(session.user) else "N",
            "Y" if role.name == session.role else "N",
            "Y" if role.name in active and role.name != session.role else "N",
            sum(g.role == role.name and g.grantee_kind == "USER" for g in state.role_grants.values()),
            sum(g.role == role.name and g.grantee_kind == "ROLE" for g in state.role_grants.values()),
            sum((g.grantee_kind, g.grantee) == ("ROLE", role.name) for g in state.role_grants.values()),
            role.owner,
            role.comment,
        )
        for role in sorted(state.roles.values(), key=lambda role: role.name)
        if matches(text, role.name)
    ]
    counted = ("assigned_to_users", "granted_to_roles", "granted_roles")
    return listing(
        ("created_on", "name", "is_default", "is_current", "is_inherited", *counted, "owner", "comment"),
        rows,
        counted,
    )


def grant_role(session: Session, text: str, _bindings: Bindings) -> Result:
    """GRANT ROLE name TO ROLE | USER name, and REVOKE ROLE name FROM the same."""
    session.commit()
    match = _GRANT.match(text)
    if match is None:
        raise compilation_error("syntax error: expected GRANT ROLE name TO ROLE | USER name.")
    role, grantee = read_path(match["role"])[0][-1], read_path(match["grantee"])[0][-1]
    kind = match["kind"].upper()
    access = session.catalog.access
    known = access.state.roles if kind == "ROLE" else access.state.users
    if role not in access.state.roles or grantee not in known:
        raise missing_account_object()
    require_role_owner(session, role)
    giving = text[:5].upper() == "GRANT"
    with access.change() as state:
        if giving:
            changes.give_role(state, role, kind, grantee, session.role, access.now_ms())
        else:
            changes.take_role(state, role, kind, grantee)
    return status(_DONE)


def require_role_owner(session: Session, role: str) -> None:
    """Raise unless the session's roles own a role, or hold MANAGE GRANTS.

    ACCOUNTADMIN can be given by itself only.

    :raises SqlError: 003001.
    """
    active = session.roles
    if role == ACCOUNTADMIN and ACCOUNTADMIN not in active:
        raise insufficient_role(role)
    if session.catalog.access.state.roles[role].owner in active:
        return
    try:
        session.require_global("MANAGE GRANTS")
    except SqlError as error:
        raise insufficient_role(role) from error


def insufficient_role(role: str) -> SqlError:
    """Return the error for a role that shows, but may not be changed."""
    return insufficient(Securable("ROLE", (role,)))


def _comment(text: str) -> str:
    properties = read_properties(text)
    unknown = set(properties) - {"COMMENT"}
    if unknown:
        raise unsupported(f"{sorted(unknown)[0]} of a role")
    return properties.get("COMMENT", "")
