"""SHOW GRANTS and SHOW FUTURE GRANTS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT
from airflow_provider_snowpipe.local.access.model import OWNERSHIP, Grant, RoleGrant, Securable
from airflow_provider_snowpipe.local.errors import compilation_error, missing_account_object
from airflow_provider_snowpipe.local.identifiers import quote, read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.objects import locate, read_kind
from airflow_provider_snowpipe.local.sql.results import Result, listing
from airflow_provider_snowpipe.local.sql.session import Session

_SHOW = re.compile(
    r"SHOW\s+GRANTS(?:\s+(?:ON\s+(?P<account>ACCOUNT)|ON\s+(?P<kind>FILE\s+FORMAT|\w+)\s+(?P<object>.*)"
    r"|(?P<direction>TO|OF)\s+(?P<grantee>ROLE|USER)\s+(?P<name>.*)))?\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
_FUTURE = re.compile(
    r"SHOW\s+FUTURE\s+GRANTS\s+(?:IN\s+(?P<scope>SCHEMA|DATABASE)|TO\s+ROLE)\s+(?P<name>.*)",
    re.IGNORECASE | re.DOTALL,
)
_GRANT_COLUMNS = (
    "created_on", "privilege", "granted_on", "name", "granted_to", "grantee_name", "grant_option",
    "granted_by",
)  # fmt: skip
_ROLE_COLUMNS = ("created_on", "role", "granted_to", "grantee_name", "granted_by")
_FUTURE_COLUMNS = (
    "created_on", "privilege", "grant_on", "name", "grant_to", "grantee_name", "grant_option",
)  # fmt: skip
_BARE = re.compile(r"[A-Z_][A-Z0-9_$]*")


def show_grants(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW GRANTS [ON ACCOUNT | ON kind name | TO ROLE r | TO USER u | OF ROLE r]."""
    match = _SHOW.match(text)
    if match is None:
        raise compilation_error(
            "syntax error: expected SHOW GRANTS [ON kind name | TO ROLE | USER name | OF ROLE name]."
        )
    state = session.catalog.access.state
    if match["account"]:
        return _listed(_on(session, ACCOUNT_OBJECT))
    if match["kind"]:
        target = locate(session, read_kind(match["kind"]), read_path(match["object"])[0])
        if not session.catalog.access.can_see(session.roles, target):
            session.require("USAGE", target.kind, *target.path)
        return _listed(_on(session, target))
    name = read_path(match["name"])[0][-1] if match["name"] else session.user
    to_user = (match["grantee"] or "USER").upper() == "USER"
    if name not in (state.users if to_user else state.roles):
        raise missing_account_object()
    if to_user:
        given = [g for g in state.role_grants.values() if (g.grantee_kind, g.grantee) == ("USER", name)]
        return _roles(given)
    if match["direction"].upper() == "OF":
        return _roles([g for g in state.role_grants.values() if g.role == name])
    inherited = [
        Grant("USAGE", Securable("ROLE", (g.role,)), name, g.grantor, g.created_on_ms)
        for g in state.role_grants.values()
        if (g.grantee_kind, g.grantee) == ("ROLE", name)
    ]
    return _listed([*(grant for grant in state.grants.values() if grant.role == name), *inherited])


def show_future_grants(session: Session, text: str, _bindings: Bindings) -> Result:
    """SHOW FUTURE GRANTS IN SCHEMA s | IN DATABASE d | TO ROLE r."""
    match = _FUTURE.match(text)
    if match is None:
        raise compilation_error(
            "syntax error: expected SHOW FUTURE GRANTS IN SCHEMA | IN DATABASE | TO ROLE name."
        )
    state = session.catalog.access.state
    path, _ = read_path(match["name"])
    if match["scope"]:
        scope = locate(session, match["scope"].upper(), path)
        chosen = [g for g in state.future_grants.values() if g.scope == scope]
    else:
        chosen = [g for g in state.future_grants.values() if g.role == path[-1]]
    rows = [
        (
            g.created_on_ms,
            g.privilege,
            g.kind.replace(" ", "_"),
            f"{_written(g.scope)}.<{g.kind.replace(' ', '_')}>",
            "ROLE",
            g.role,
            str(g.grant_option).lower(),
        )
        for g in sorted(chosen, key=lambda g: (g.scope.path, g.kind, g.role, g.privilege))
    ]
    return listing(_FUTURE_COLUMNS, rows)


def _on(session: Session, target: Securable) -> list[Grant]:
    access = session.catalog.access
    found = [grant for key, grant in access.state.grants.items() if key[0] == target]
    if target.kind != "ACCOUNT" and not any(grant.privilege == OWNERSHIP for grant in found):
        owner = access.owner(target)
        found.append(Grant(OWNERSHIP, target, owner, owner, 0, True))
    return found


def _listed(grants: Iterable[Grant]) -> Result:
    ordered = sorted(grants, key=lambda g: (g.target.kind, g.target.path, g.privilege, g.role))
    rows = [
        (
            g.created_on_ms,
            g.privilege,
            g.target.kind.replace(" ", "_"),
            _written(g.target) or "LOCAL",
            "ROLE",
            g.role,
            str(g.grant_option).lower(),
            g.grantor,
        )
        for g in ordered
    ]
    return listing(_GRANT_COLUMNS, rows)


def _roles(given: Iterable[RoleGrant]) -> Result:
    rows: list[tuple[Any, ...]] = [
        (g.created_on_ms, g.role, g.grantee_kind, g.grantee, g.grantor)
        for g in sorted(given, key=lambda g: (g.role, g.grantee_kind, g.grantee))
    ]
    return listing(_ROLE_COLUMNS, rows)


def _written(target: Securable) -> str:
    return ".".join(name if _BARE.fullmatch(name) else quote(name) for name in target.path)
