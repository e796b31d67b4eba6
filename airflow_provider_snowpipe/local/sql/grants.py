"""GRANT and REVOKE of privileges on objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_snowpipe.local.access import changes
from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT
from airflow_provider_snowpipe.local.access.check import insufficient
from airflow_provider_snowpipe.local.access.model import OWNERSHIP, Securable, read_privileges
from airflow_provider_snowpipe.local.access.store import AccessState
from airflow_provider_snowpipe.local.errors import compilation_error, missing_account_object, unsupported
from airflow_provider_snowpipe.local.identifiers import read_path
from airflow_provider_snowpipe.local.sql.bindings import Bindings
from airflow_provider_snowpipe.local.sql.objects import inside, locate, read_kind
from airflow_provider_snowpipe.local.sql.results import Result, status
from airflow_provider_snowpipe.local.sql.session import Session

_DONE = "Statement executed successfully."
_STATEMENT = re.compile(
    r"(?P<verb>GRANT|REVOKE)\s+(?P<option>GRANT\s+OPTION\s+FOR\s+)?(?P<privileges>[\w\s,]+?)\s+ON\s+"
    r"(?:(?P<account>ACCOUNT)|(?P<many>ALL|FUTURE)\s+(?P<kinds>[A-Z]+(?:\s+[A-Z]+)?)\s+IN\s+(?P<scope>SCHEMA|DATABASE)"
    r"\s+|(?P<kind>FILE\s+FORMAT|[A-Z]+)\s+)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_GRANTEE = re.compile(
    r"(?:TO|FROM)\s+(?:(ROLE|USER|SHARE|DATABASE\s+ROLE)\s+)?(.*)", re.IGNORECASE | re.DOTALL
)
_CURRENT = re.compile(r"(REVOKE|COPY)\s+CURRENT\s+GRANTS\s*\Z", re.IGNORECASE)
_OPTION = re.compile(r"WITH\s+GRANT\s+OPTION\s*\Z", re.IGNORECASE)
_CASCADE = re.compile(r"(CASCADE|RESTRICT)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Order:
    """A GRANT or REVOKE, read but not looked up."""

    giving: bool
    option_only: bool
    privileges: str
    kind: str
    many: str
    scope: str
    path: tuple[str, ...]
    role: str
    with_option: bool
    current: str | None


def grant(session: Session, text: str, _bindings: Bindings) -> Result:
    """GRANT privileges ON .. TO ROLE name, REVOKE privileges ON .. FROM ROLE name, GRANT OWNERSHIP ON .."""
    session.commit()
    order = _read(text)
    access = session.catalog.access
    if order.role not in access.state.roles:
        raise missing_account_object()
    privileges = _privileges(order)
    if OWNERSHIP in privileges and not order.giving:
        raise unsupported("REVOKE OWNERSHIP; use GRANT OWNERSHIP to another role")
    if order.many == "FUTURE":
        scope = locate(session, order.scope, order.path)
        _require_right(session, scope, privileges)
        with access.change() as state:
            _change_future(state, order, privileges, scope, access.now_ms())
        return status(_DONE)
    targets = list(_targets(session, order))
    for target in targets:
        _require_right(session, target, privileges)
    with access.change() as state:
        for target in targets:
            _change(state, order, privileges, target, (session.role, access.now_ms()))
    return status(_DONE)


def _change(
    state: AccessState, order: _Order, privileges: list[str], target: Securable, by: tuple[str, int]
) -> None:
    if not order.giving:
        changes.revoke(state, privileges, target, order.role, option_only=order.option_only)
    elif OWNERSHIP in privileges:
        changes.transfer(state, target, order.role, *by, order.current)
    else:
        changes.grant(state, privileges, target, order.role, *by, order.with_option)


def _change_future(
    state: AccessState, order: _Order, privileges: list[str], scope: Securable, now: int
) -> None:
    if order.giving:
        changes.grant_future(state, privileges, order.kind, scope, order.role, now, order.with_option)
    else:
        changes.revoke_future(state, privileges, order.kind, scope, order.role)


def _targets(session: Session, order: _Order) -> Iterator[Securable]:
    if order.kind == "ACCOUNT":
        yield ACCOUNT_OBJECT
    elif order.many:
        yield from inside(session, order.kind, locate(session, order.scope, order.path))
    else:
        yield locate(session, order.kind, order.path)


def _require_right(session: Session, target: Securable, privileges: list[str]) -> None:
    """The owner may grant, whoever holds all the privileges with the grant option, and MANAGE GRANTS."""
    access, active = session.catalog.access, session.roles
    if access.owner(target) in active or access.allows(active, "MANAGE GRANTS", ACCOUNT_OBJECT):
        return
    grants = access.state.grants
    for privilege in privileges:
        held = (grants.get((target, role, privilege)) for role in active)
        if not any(known is not None and known.grant_option for known in held):
            raise insufficient(target)


def _privileges(order: _Order) -> list[str]:
    words = order.privileges.split(",")
    privileges = read_privileges(words, order.kind, order.path, order.scope)
    if OWNERSHIP in privileges and (len(privileges) > 1 or order.kind == "ACCOUNT"):
        raise compilation_error("OWNERSHIP is granted by itself, on an object.")
    return privileges


def _read(text: str) -> _Order:
    match = _STATEMENT.match(text)
    if match is None:
        raise compilation_error(
            "syntax error: expected GRANT | REVOKE privileges ON object TO | FROM ROLE name."
        )
    path: tuple[str, ...] = ()
    if match["account"]:
        kind, rest = "ACCOUNT", match["rest"].strip()
    else:
        kind = read_kind(match["kinds"] or match["kind"])
        path, rest = read_path(match["rest"])
    grantee = _GRANTEE.match(rest)
    if grantee is None:
        raise compilation_error("syntax error: expected TO ROLE name or FROM ROLE name.")
    if grantee[1] and grantee[1].upper() != "ROLE":
        raise unsupported(f"privileges of a {' '.join(grantee[1].upper().split())}")
    role, tail = read_path(grantee[2])
    current, option = _CURRENT.match(tail), _OPTION.match(tail)
    if tail and not (current or option or _CASCADE.match(tail)):
        raise compilation_error(f"syntax error: unexpected '{tail[:30]}'.")
    return _Order(
        giving=match["verb"].upper() == "GRANT",
        option_only=bool(match["option"]),
        privileges=match["privileges"],
        kind=kind,
        many=(match["many"] or "").upper(),
        scope=(match["scope"] or "").upper(),
        path=path,
        role=role[-1],
        with_option=bool(option),
        current=current[1].upper() if current else None,
    )
