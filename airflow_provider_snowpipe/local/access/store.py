"""File of access control: one JSON document, replaced in one step by every change."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.local.access.model import (
    AccessToken,
    FutureGrant,
    Grant,
    Role,
    RoleGrant,
    Securable,
    User,
    Warehouse,
)
from airflow_provider_snowpipe.local.datadir import write_file
from airflow_provider_snowpipe.local.errors import DataDirectoryError

GrantKey = tuple[Securable, str, str]
FutureKey = tuple[str, str, Securable, str]
RoleGrantKey = tuple[str, str, str]


@dataclass(slots=True)
class AccessState:
    """Everything that is remembered about access.

    :param grants: by object, role and privilege.
    :param future_grants: by privilege, kind, scope and role.
    :param role_grants: by role, kind of grantee and grantee.
    """

    users: dict[str, User] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    warehouses: dict[str, Warehouse] = field(default_factory=dict)
    grants: dict[GrantKey, Grant] = field(default_factory=dict)
    future_grants: dict[FutureKey, FutureGrant] = field(default_factory=dict)
    role_grants: dict[RoleGrantKey, RoleGrant] = field(default_factory=dict)

    def inherited(self, role: str) -> frozenset[str]:
        """Return a role with all that it inherits."""
        reached, waiting = {role}, [role]
        while waiting:
            holder = ("ROLE", waiting.pop())
            given = {g.role for g in self.role_grants.values() if (g.grantee_kind, g.grantee) == holder}
            waiting += given - reached
            reached |= given
        return frozenset(reached)


def load(file: Path) -> AccessState:
    """Read the file; a missing one is an empty state.

    :raises DataDirectoryError: when the file was damaged by hand.
    """
    if not file.exists():
        return AccessState()
    try:
        stored = json.loads(file.read_text())
        grants = [_with(Grant, entry, "target") for entry in stored["grants"]]
        future = [_with(FutureGrant, entry, "scope") for entry in stored["future_grants"]]
        inherited = [RoleGrant(**entry) for entry in stored["role_grants"]]
        return AccessState(
            users={entry["name"]: _user(entry) for entry in stored["users"]},
            roles={entry["name"]: Role(**entry) for entry in stored["roles"]},
            warehouses={entry["name"]: _warehouse(entry) for entry in stored["warehouses"]},
            grants={grant_key(grant): grant for grant in grants},
            future_grants={future_key(grant): grant for grant in future},
            role_grants={role_grant_key(grant): grant for grant in inherited},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"{file} does not hold users, roles and grants; delete it to start over with the user DEMO only"
        ) from error


def save(file: Path, state: AccessState) -> None:
    """Write the file; readable by its owner only, because it holds digests of passwords."""
    document = {
        name: [dataclasses.asdict(value) for value in getattr(state, name).values()]
        for name in ("users", "roles", "warehouses", "grants", "future_grants", "role_grants")
    }
    write_file(file, json.dumps(document, separators=(",", ":")).encode(), mode=0o600)


def grant_key(grant: Grant) -> GrantKey:
    """Return the key of a grant."""
    return grant.target, grant.role, grant.privilege


def future_key(grant: FutureGrant) -> FutureKey:
    """Return the key of a future grant."""
    return grant.privilege, grant.kind, grant.scope, grant.role


def role_grant_key(grant: RoleGrant) -> RoleGrantKey:
    """Return the key of a role that was given to somebody."""
    return grant.role, grant.grantee_kind, grant.grantee


def _with(kind: Any, entry: dict[str, Any], name: str) -> Any:
    place = entry[name]
    return kind(**{**entry, name: Securable(place["kind"], tuple(place["path"]))})


def _pairs(entry: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in entry["properties"])


def _user(entry: dict[str, Any]) -> User:
    first, second = entry["public_keys"]
    tokens = tuple(AccessToken(**token) for token in entry["access_tokens"])
    return User(
        **{**entry, "public_keys": (first, second), "access_tokens": tokens, "properties": _pairs(entry)}
    )


def _warehouse(entry: dict[str, Any]) -> Warehouse:
    return Warehouse(**{**entry, "properties": _pairs(entry)})
