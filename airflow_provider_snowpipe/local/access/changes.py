"""Changes of users, roles and grants, inside one :meth:`Access.change` block."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from airflow_provider_snowpipe.local.access import store
from airflow_provider_snowpipe.local.access.model import (
    OWNERSHIP,
    SYSTEM_ROLES,
    FutureGrant,
    Grant,
    RoleGrant,
    Securable,
)
from airflow_provider_snowpipe.local.access.store import AccessState
from airflow_provider_snowpipe.local.errors import SqlError, access_error


def grant(
    state: AccessState,
    privileges: Iterable[str],
    target: Securable,
    role: str,
    by: str,
    now: int,
    option: bool,
) -> None:
    """Grant privileges on an object; one that is held already keeps its date."""
    for privilege in privileges:
        given = Grant(privilege, target, role, by, now, option)
        known = state.grants.get(store.grant_key(given))
        if known is None or (option and not known.grant_option):
            state.grants[store.grant_key(given)] = given


def revoke(
    state: AccessState, privileges: Iterable[str], target: Securable, role: str, *, option_only: bool = False
) -> None:
    """Revoke privileges on an object, or only the right to grant them on; absent ones are no error."""
    for privilege in privileges:
        known = state.grants.get((target, role, privilege))
        if known is None:
            continue
        if option_only:
            state.grants[target, role, privilege] = dataclasses.replace(known, grant_option=False)
        else:
            del state.grants[target, role, privilege]


def grant_future(
    state: AccessState,
    privileges: Iterable[str],
    kind: str,
    scope: Securable,
    role: str,
    now: int,
    option: bool,
) -> None:
    """Promise privileges on objects that are created in a database or schema from now on."""
    for privilege in privileges:
        given = FutureGrant(privilege, kind, scope, role, now, option)
        state.future_grants.setdefault(store.future_key(given), given)


def revoke_future(
    state: AccessState, privileges: Iterable[str], kind: str, scope: Securable, role: str
) -> None:
    """Take back a promise; what objects got by it stays with them."""
    for privilege in privileges:
        state.future_grants.pop((privilege, kind, scope, role), None)


def give_role(state: AccessState, role: str, kind: str, grantee: str, by: str, now: int) -> None:
    """Give a role to a user or to another role.

    :raises SqlError: when the other role would inherit itself.
    """
    if kind == "ROLE" and grantee in state.inherited(role):
        raise access_error(
            f"Role '{role}' cannot be granted to role '{grantee}': a role would inherit itself."
        )
    given = RoleGrant(role, kind, grantee, by, now)
    state.role_grants.setdefault(store.role_grant_key(given), given)


def take_role(state: AccessState, role: str, kind: str, grantee: str) -> None:
    """Take a role from a user or another role; one that was never given is no error."""
    state.role_grants.pop((role, kind, grantee), None)


def transfer(
    state: AccessState, target: Securable, role: str, by: str, now: int, current: str | None
) -> None:
    """Give an object another owner.

    :param current: ``COPY`` keeps the other grants on it, ``REVOKE`` drops them, None refuses.
    :raises SqlError: 003036 for grants that nothing was said about.
    """
    others = [g for key, g in state.grants.items() if key[0] == target and g.privilege != OWNERSHIP]
    if others and current is None:
        raise SqlError(
            "003036",
            "42501",
            f"SQL execution error:\nDependent grant of privilege '{others[0].privilege}' on securable "
            f"'{'.'.join(target.path)}' to role '{others[0].role}' exists. It must be revoked first, or use "
            "GRANT OWNERSHIP .. REVOKE CURRENT GRANTS or COPY CURRENT GRANTS.",
        )
    for key in [key for key in state.grants if key[0] == target]:
        if key[2] == OWNERSHIP or current != "COPY":
            del state.grants[key]
    grant(state, [OWNERSHIP], target, role, by, now, True)


def drop_role(state: AccessState, role: str, heir: str, now: int) -> None:
    """Drop a role; what it owned goes to the role that dropped it, as in Snowflake.

    :raises SqlError: for a system role.
    """
    if role in SYSTEM_ROLES:
        raise access_error(f"System role '{role}' cannot be dropped.")
    owned = [key[0] for key in state.grants if key[1:] == (role, OWNERSHIP)]
    for key in [key for key in state.grants if key[1] == role]:
        del state.grants[key]
    for target in owned:
        grant(state, [OWNERSHIP], target, heir, heir, now, True)
    for future in [key for key in state.future_grants if key[3] == role]:
        del state.future_grants[future]
    for given in [key for key in state.role_grants if key[0] == role or key[1:] == ("ROLE", role)]:
        del state.role_grants[given]
    del state.roles[role]
    for name, other in state.roles.items():
        if other.owner == role:
            state.roles[name] = dataclasses.replace(other, owner=heir)
    for name, user in state.users.items():
        if user.owner == role:
            state.users[name] = dataclasses.replace(user, owner=heir)


def drop_user(state: AccessState, user: str) -> None:
    """Drop a user with the roles given to it."""
    for given in [key for key in state.role_grants if key[1:] == ("USER", user)]:
        del state.role_grants[given]
    del state.users[user]
