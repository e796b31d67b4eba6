"""Values of access control, and their file: objects, privileges, grants, users, roles, warehouses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from snowpipe_local.datadir import write_file
from snowpipe_local.errors import DataDirectoryError, compilation_error

ACCOUNTADMIN, SYSADMIN, SECURITYADMIN, USERADMIN, PUBLIC = (
    "ACCOUNTADMIN", "SYSADMIN", "SECURITYADMIN", "USERADMIN", "PUBLIC",
)  # fmt: skip
SYSTEM_ROLES = (ACCOUNTADMIN, PUBLIC, SECURITYADMIN, SYSADMIN, USERADMIN)
# Role -> the roles whose privileges it inherits ("Overview of Access Control", system-defined roles).
SYSTEM_HIERARCHY = ((SYSADMIN, ACCOUNTADMIN), (SECURITYADMIN, ACCOUNTADMIN), (USERADMIN, SECURITYADMIN))
OWNERSHIP = "OWNERSHIP"
# The read-only database with the views of the account's usage ("SNOWFLAKE database roles").
SHARED_DATABASE = "SNOWFLAKE"
SHARED_ROLES = ("GOVERNANCE_VIEWER", "OBJECT_VIEWER", "SECURITY_VIEWER", "USAGE_VIEWER")
_CREATED_IN_SCHEMA = (
    "TABLE", "ICEBERG TABLE", "VIEW", "STAGE", "FILE FORMAT", "PIPE", "SEQUENCE", "STREAM", "TASK",
    "FUNCTION", "PROCEDURE",
)  # fmt: skip
# Privileges of each kind of object ("Access control privileges"), beside OWNERSHIP.
PRIVILEGES: dict[str, frozenset[str]] = {
    "ACCOUNT": frozenset(
        {"CREATE DATABASE", "CREATE ROLE", "CREATE USER", "CREATE WAREHOUSE", "CREATE INTEGRATION",
         "MANAGE GRANTS", "MONITOR USAGE", "EXECUTE TASK"}
    ),
    "DATABASE": frozenset({"USAGE", "MONITOR", "MODIFY", "CREATE SCHEMA"}),
    "SCHEMA": frozenset(
        {"USAGE", "MONITOR", "MODIFY", *(f"CREATE {kind}" for kind in _CREATED_IN_SCHEMA)}
    ),
    "TABLE": frozenset(
        {"SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "EVOLVE SCHEMA"}
    ),
    "VIEW": frozenset({"SELECT", "REFERENCES"}),
    "STAGE": frozenset({"USAGE", "READ", "WRITE"}),
    "FILE FORMAT": frozenset({"USAGE"}),
    "PIPE": frozenset({"MONITOR", "OPERATE"}),
    "WAREHOUSE": frozenset({"USAGE", "OPERATE", "MODIFY", "MONITOR"}),
    "SEQUENCE": frozenset({"USAGE"}),
}  # fmt: skip
SYSTEM_GRANTS = (
    (SYSADMIN, "CREATE DATABASE"), (SYSADMIN, "CREATE WAREHOUSE"), (USERADMIN, "CREATE USER"),
    (USERADMIN, "CREATE ROLE"), (SECURITYADMIN, "MANAGE GRANTS"), (ACCOUNTADMIN, "CREATE INTEGRATION"),
    (ACCOUNTADMIN, "MONITOR USAGE"), (ACCOUNTADMIN, "EXECUTE TASK"),
)  # fmt: skip
_DEPTH = {"ACCOUNT": 0, "DATABASE": 1, "WAREHOUSE": 1, "SCHEMA": 2}


@dataclass(frozen=True, slots=True)
class Securable:
    """One object that privileges can be granted on.

    :param kind: ``TABLE``, ``FILE FORMAT``, ``ACCOUNT``, ..., a key of :data:`PRIVILEGES`.
    :param path: exact names from the database down; ``()`` for the account, one name for a warehouse.
    """

    kind: str
    path: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Number of names in the path of this kind."""
        return _DEPTH.get(self.kind, 3)

    @property
    def name(self) -> str:
        """Last name of the path, as messages print it."""
        return self.path[-1] if self.path else "ACCOUNT"

    def contains(self, other: Securable) -> bool:
        """Return True for the object itself and everything inside it."""
        if self.kind in {"DATABASE", "SCHEMA"} and other.kind not in {"WAREHOUSE", "ACCOUNT"}:
            return other.path[: len(self.path)] == self.path
        return self == other

    def moved(self, old: Securable, new: Securable) -> Securable:
        """Return where this object is after one that contains it was renamed."""
        return Securable(self.kind, new.path + self.path[len(old.path) :])


SHARED = Securable("DATABASE", (SHARED_DATABASE,))


def shared_role(name: str) -> Securable:
    """Return a database role of the shared database, which roles are granted ``USAGE`` of."""
    return Securable("DATABASE ROLE", (SHARED_DATABASE, name))


@dataclass(frozen=True, slots=True)
class Grant:
    """One privilege on one object, held by one role."""

    privilege: str
    target: Securable
    role: str
    grantor: str
    created_on_ms: int
    grant_option: bool = False


@dataclass(frozen=True, slots=True)
class FutureGrant:
    """A privilege that objects of a kind get when they are created."""

    privilege: str
    kind: str
    scope: Securable
    role: str
    created_on_ms: int
    grant_option: bool = False


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role given to a user, or to another role, which inherits its privileges."""

    role: str
    grantee_kind: str
    grantee: str
    grantor: str
    created_on_ms: int


@dataclass(frozen=True, slots=True)
class Role:
    """One account role."""

    name: str
    owner: str
    created_on_ms: int
    comment: str = ""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A programmatic access token of a user; only its digest is kept.

    :param digest: SHA-256 of the token, hexadecimal.
    :param role: role that it is restricted to, or None for the user's default role.
    :param expires_on_ms: epoch milliseconds, or None for a token that does not expire.
    """

    name: str
    digest: str = field(repr=False)
    role: str | None = None
    expires_on_ms: int | None = None


@dataclass(frozen=True, slots=True)
class User:
    """One user with credentials and defaults.

    :param password: salted scrypt digest, empty for none; None for the issued one that is still to be set.
    :param public_keys: RSA public keys as PEM: RSA_PUBLIC_KEY and RSA_PUBLIC_KEY_2, empty when not set.
    :param default_secondary_roles: ``ALL`` or empty.
    """

    name: str
    owner: str
    created_on_ms: int
    password: str | None = field(default="", repr=False)
    public_keys: tuple[str, str] = ("", "")
    access_tokens: tuple[AccessToken, ...] = ()
    default_role: str | None = None
    default_namespace: str | None = None
    default_warehouse: str | None = None
    default_secondary_roles: str = ""
    disabled: bool = False
    login_name: str = ""
    comment: str = ""
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Warehouse:
    """One warehouse; it computes nothing here.

    :param suspended: state that ALTER WAREHOUSE SUSPEND and RESUME change.
    """

    name: str
    created_on_ms: int
    size: str = "X-Small"
    suspended: bool = False
    auto_suspend: int = 600
    auto_resume: bool = True
    comment: str = ""
    properties: tuple[tuple[str, str], ...] = ()


def read_privileges(words: Iterable[str], kind: str, path: tuple[str, ...], scope: str = "") -> list[str]:
    """Return the privileges of a grant in the spelling of :data:`PRIVILEGES`.

    :param words: as they are written; ``ALL`` stands for all of the kind.
    :param scope: ``DATABASE`` or ``SCHEMA`` when the path names what they are in.
    :raises SqlError: when objects of this kind do not have one of them.
    """
    given = [" ".join(word.upper().split()) for word in words]
    if path == SHARED.path and "DATABASE" in (kind, scope):
        if given != ["IMPORTED PRIVILEGES"] or scope:
            raise compilation_error(f"of database {SHARED_DATABASE} only IMPORTED PRIVILEGES can be granted.")
        return ["USAGE"]
    if given in (["ALL"], ["ALL PRIVILEGES"]):
        return sorted(PRIVILEGES[kind])
    for word in given:
        if word != OWNERSHIP and word not in PRIVILEGES[kind]:
            known = ", ".join(sorted({OWNERSHIP, *PRIVILEGES[kind]}))
            raise compilation_error(f"syntax error: unexpected '{word}'; privileges of {kind}: {known}.")
    return given


# -- File of access control: one JSON document, replaced in one step by every change ---------------------

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
        kept = {
            name: {key(value): value for value in (_value(kind, entry) for entry in stored[name])}
            for name, (kind, key) in _KEPT.items()
        }
        return AccessState(**kept)
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"{file} does not hold users, roles and grants; delete it to start over with the user DEMO only"
        ) from error


def save(file: Path, state: AccessState) -> None:
    """Write the file; readable by its owner only, because it holds digests of passwords."""
    document = {
        name: [dataclasses.asdict(value) for value in getattr(state, name).values()] for name in _KEPT
    }
    write_file(file, json.dumps(document, separators=(",", ":")).encode(), mode=0o600)


def note(state: AccessState, targets: Iterable[Securable]) -> str:
    """Return a text of all grants on some objects, which :func:`restore` sets again."""
    listed = list(targets)
    grants = [grant for grant in state.grants.values() if grant.target in listed]
    return json.dumps([[dataclasses.asdict(each) for each in kept] for kept in (listed, grants)])


def restore(state: AccessState, text: str) -> None:
    """Give objects the grants of a note, and no others."""
    listed, given = json.loads(text)
    targets = set(map(_securable, listed))
    for key in [key for key in state.grants if key[0] in targets]:
        del state.grants[key]
    state.grants.update({grant_key(grant): grant for grant in (_value(Grant, entry) for entry in given)})


# By what each of them is found.
grant_key: Callable[[Grant], GrantKey] = attrgetter("target", "role", "privilege")
future_key: Callable[[FutureGrant], FutureKey] = attrgetter("privilege", "kind", "scope", "role")
role_grant_key: Callable[[RoleGrant], RoleGrantKey] = attrgetter("role", "grantee_kind", "grantee")
_name: Callable[[Any], str] = attrgetter("name")


def _securable(stored: dict[str, Any]) -> Securable:
    return Securable(stored["kind"], tuple(stored["path"]))


# What the file holds: the class of each kind of values, and its key.
_KEPT: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "users": (User, _name), "roles": (Role, _name), "warehouses": (Warehouse, _name),
    "grants": (Grant, grant_key), "future_grants": (FutureGrant, future_key),
    "role_grants": (RoleGrant, role_grant_key),
}  # fmt: skip
# Fields whose values JSON does not know.
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "target": _securable,
    "scope": _securable,
    "public_keys": tuple,
    "access_tokens": lambda tokens: tuple(AccessToken(**token) for token in tokens),
    "properties": lambda pairs: tuple((name, value) for name, value in pairs),
}


def _value(kind: Any, entry: dict[str, Any]) -> Any:
    return kind(**{name: _FIELDS[name](v) if name in _FIELDS else v for name, v in entry.items()})
