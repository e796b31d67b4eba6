"""GRANT and REVOKE of privileges on objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from snowpipe_local.access import access as changes
from snowpipe_local.access.access import ACCOUNT_OBJECT, insufficient
from snowpipe_local.access.model import (
    OWNERSHIP,
    PRIVILEGES,
    SHARED,
    AccessState,
    FutureGrant,
    Grant,
    RoleGrant,
    Securable,
    future_key,
    read_privileges,
)
from snowpipe_local.engine.database import Database
from snowpipe_local.errors import compilation_error, missing_account_object, object_missing, unsupported
from snowpipe_local.names import PipeKey
from snowpipe_local.sql.reader import Reader
from snowpipe_local.sql.results import Result, done, listing
from snowpipe_local.sql.session import Session
from snowpipe_local.tables import shown

# -- Objects by kind: which exist in a schema, and where a statement's name points -----------------------

_NAMES: dict[str, Callable[[Database, str], Iterable[str]]] = {
    "TABLE": lambda database, schema: [t.name for t in database.tables if t.schema == schema],
    "PIPE": lambda database, schema: [key.name for key in _pipes(database) if key.schema == schema],
    "STAGE": lambda database, schema: [s.name for s in database.stages.stages if s.schema == schema],
    "FILE FORMAT": lambda database, schema: [f.name for f in database.stages.formats if f.schema == schema],
    "VIEW": lambda database, schema: [view.name for view in database.objects.of("VIEW", schema)],
    "SEQUENCE": lambda database, schema: [known.name for known in database.objects.of("SEQUENCE", schema)],
}


def _pipes(database: Database) -> list[PipeKey]:
    return [pipe.key for pipe in database.pipes] + [pipe.key for pipe in database.file_pipes]


def names(database: Database, schema: str, kind: str) -> list[str]:
    """Return the names of the objects of a kind in a schema."""
    found = _NAMES.get(kind)
    return sorted(found(database, schema)) if found else []


def read_kind(words: str) -> str:
    """Return a kind of object, written in singular or plural.

    :raises SqlError: 000002 for a kind that the local service has no privileges for.
    """
    word = " ".join(words.upper().split())
    singular = word.removesuffix("S")
    if singular in PRIVILEGES:
        return singular
    raise unsupported(f"grants on {word}")


def locate(session: Session, kind: str, path: tuple[str, ...]) -> Securable:
    """Return the object that a GRANT or SHOW GRANTS names.

    :raises SqlError: 002003 when it does not exist, or stays hidden from the session's roles.
    """
    if kind == "WAREHOUSE":
        if path[-1] not in session.catalog.access.state.warehouses:
            raise object_missing("Warehouse", path[-1])
        return Securable(kind, path[-1:])
    if kind == "DATABASE":
        if len(path) > 1:
            raise compilation_error(f"'{'.'.join(path)}' is not a database name.")
        return SHARED if path == SHARED.path else Securable(kind, (session.catalog.database(path[0]).name,))
    if kind == "SCHEMA":
        if len(path) > 2:
            raise compilation_error(f"'{'.'.join(path)}' is not a schema name.")
        database = session.catalog.database(path[0] if len(path) == 2 else session.current_database())
        if path[-1] not in database.schemas:
            raise object_missing("Schema", f"{database.name}.{path[-1]}")
        return Securable(kind, (database.name, path[-1]))
    database, schema, name = session.locate(path)
    if name not in names(database, schema, kind):
        raise object_missing(kind.capitalize(), f"{database.name}.{schema}.{name}")
    return Securable(kind, (database.name, schema, name))


def inside(session: Session, kind: str, scope: Securable) -> list[Securable]:
    """Return the objects of a kind in a database or schema."""
    database = session.catalog.database(scope.path[0])
    if kind == "SCHEMA":
        return [Securable(kind, (database.name, schema)) for schema in sorted(database.schemas)]
    schemas = scope.path[1:] if scope.kind == "SCHEMA" else sorted(database.schemas)
    return [
        Securable(kind, (database.name, schema, name))
        for schema in schemas
        for name in names(database, schema, kind)
    ]


# -- SHOW GRANTS and SHOW FUTURE GRANTS ------------------------------------------------------------------


def show_grants(session: Session, reader: Reader) -> Result:
    """SHOW GRANTS [ON ACCOUNT | ON kind name | TO ROLE r | TO USER u | OF ROLE r]."""
    state = session.catalog.access.state
    if reader.accept("ON ACCOUNT"):
        return _listed(_on(session, ACCOUNT_OBJECT))
    if reader.accept("ON"):
        kind, path = _object(reader, "LIMIT", "STARTS")
        target = locate(session, kind or _relation(session, path), path)
        if not session.catalog.access.can_see(session.roles, target):
            session.require("USAGE", target.kind, *target.path)
        return _listed(_on(session, target))
    direction = reader.accept("TO", "OF")
    to_user = not direction or reader.expect("ROLE", "USER") == "USER"
    name = reader.name() if direction else session.user
    if name not in (state.users if to_user else state.roles):
        raise missing_account_object()
    if to_user:
        given = [g for g in state.role_grants.values() if (g.grantee_kind, g.grantee) == ("USER", name)]
        return _roles(given)
    if direction == "OF":
        return _roles([g for g in state.role_grants.values() if g.role == name])
    inherited = [
        Grant("USAGE", Securable("ROLE", (g.role,)), name, g.grantor, g.created_on_ms)
        for g in state.role_grants.values()
        if (g.grantee_kind, g.grantee) == ("ROLE", name)
    ]
    return _listed([*(grant for grant in state.grants.values() if grant.role == name), *inherited])


def show_future_grants(session: Session, reader: Reader) -> Result:
    """SHOW FUTURE GRANTS IN SCHEMA s | IN DATABASE d | TO ROLE r."""
    state = session.catalog.access.state
    kind = reader.expect("IN SCHEMA", "IN DATABASE", "TO ROLE").split(" ")[1]
    path = reader.path(2 if kind == "SCHEMA" else 1)
    if kind == "ROLE":
        chosen = [g for g in state.future_grants.values() if g.role == path[-1]]
    else:
        scope = locate(session, kind, path)
        chosen = [g for g in state.future_grants.values() if g.scope == scope]
    rows = (
        dict(
            created_on=g.created_on_ms, privilege=g.privilege, grant_on=(word := g.kind.replace(" ", "_")),
            name=f"{_written(g.scope)}.<{word}>", grantee_name=g.role, grant_option=g.grant_option,
        )
        for g in sorted(chosen, key=lambda g: (g.scope.path, g.kind, g.role, g.privilege))
    )  # fmt: skip
    return listing("FUTURE GRANTS", rows)


def _on(session: Session, target: Securable) -> list[Grant]:
    access = session.catalog.access
    found = [grant for key, grant in access.state.grants.items() if key[0] == target]
    if target.kind != "ACCOUNT" and not any(grant.privilege == OWNERSHIP for grant in found):
        owner = access.owner(target)
        found.append(Grant(OWNERSHIP, target, owner, owner, 0, True))
    return found


def _listed(grants: Iterable[Grant]) -> Result:
    rows = (
        dict(
            created_on=g.created_on_ms, privilege=g.privilege, granted_on=g.target.kind.replace(" ", "_"),
            name=_written(g.target) or "LOCAL", grantee_name=g.role, grant_option=g.grant_option,
            granted_by=g.grantor,
        )
        for g in sorted(grants, key=lambda g: (g.target.kind, g.target.path, g.privilege, g.role))
    )  # fmt: skip
    return listing("GRANTED PRIVILEGES", rows)


def _roles(given: Iterable[RoleGrant]) -> Result:
    rows = (
        dict(
            created_on=g.created_on_ms, role=g.role, granted_to=g.grantee_kind, grantee_name=g.grantee,
            granted_by=g.grantor,
        )
        for g in sorted(given, key=lambda g: (g.role, g.grantee_kind, g.grantee))
    )  # fmt: skip
    return listing("GRANTED ROLES", rows)


def _written(target: Securable) -> str:
    return ".".join(map(shown, target.path))


# -- GRANT and REVOKE of privileges on objects -----------------------------------------------------------


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


def grant(session: Session, reader: Reader) -> Result:
    """GRANT privileges ON .. TO ROLE name, REVOKE privileges ON .. FROM ROLE name, GRANT OWNERSHIP ON .."""
    order = _read(reader)
    session.transaction.commit()
    access = session.catalog.access
    if order.role not in access.state.roles:
        raise object_missing("Role", order.role)
    if not order.kind:
        order = dataclasses.replace(order, kind=_relation(session, order.path))
    privileges = _privileges(order)
    if OWNERSHIP in privileges and not order.giving:
        raise unsupported("REVOKE OWNERSHIP; use GRANT OWNERSHIP to another role")
    if order.many == "FUTURE":
        scope = locate(session, order.scope, order.path)
        _require_right(session, scope, privileges)
        with access.change() as state:
            for privilege in privileges:
                given = FutureGrant(
                    privilege, order.kind, scope, order.role, access.now_ms(), order.with_option
                )
                if order.giving:
                    state.future_grants.setdefault(future_key(given), given)
                else:
                    # What objects got by the promise stays with them.
                    state.future_grants.pop(future_key(given), None)
        return done()
    targets = list(_targets(session, order))
    for target in targets:
        _require_right(session, target, privileges)
    with access.change() as state:
        for target in targets:
            _change(state, order, privileges, target, (session.role, access.now_ms()))
    return done()


def _change(
    state: AccessState, order: _Order, privileges: list[str], target: Securable, by: tuple[str, int]
) -> None:
    if not order.giving:
        changes.revoke(state, privileges, target, order.role, option_only=order.option_only)
    elif OWNERSHIP in privileges:
        changes.transfer(state, target, order.role, *by, order.current)
    else:
        changes.grant(state, privileges, target, order.role, *by, order.with_option)


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


def _read(reader: Reader) -> _Order:
    giving = reader.verb == "GRANT"
    option_only = not giving and bool(reader.accept("GRANT OPTION FOR"))
    privileges = reader.until("ON")
    reader.expect("ON")
    many, scope = reader.accept("ALL", "FUTURE"), ""
    path: tuple[str, ...] = ()
    if not many and reader.accept("ACCOUNT"):
        kind = "ACCOUNT"
    else:
        kind, path = (_kind(reader), ()) if many else _object(reader, "TO", "FROM")
        if many:
            reader.expect("IN")
            scope = reader.expect("SCHEMA", "DATABASE")
            path = reader.path()
    reader.expect("TO" if giving else "FROM")
    other = reader.accept("USER", "SHARE", "DATABASE ROLE")
    if other:
        raise unsupported(f"privileges of a {other}")
    reader.accept("ROLE")
    role = reader.name()
    ending = reader.accept("WITH GRANT OPTION") if giving else reader.accept("CASCADE", "RESTRICT")
    current = reader.accept("REVOKE CURRENT GRANTS", "COPY CURRENT GRANTS") if giving else ""
    reader.end()
    with_option = ending == "WITH GRANT OPTION"
    after = current.split(" ")[0] or None
    return _Order(giving, option_only, privileges, kind, many, scope, path, role, with_option, after)


def _object(reader: Reader, *ends: str) -> tuple[str, tuple[str, ...]]:
    """Read a kind, which is empty where it is left out before a table or a view, and a name."""
    begin = reader.position
    path = reader.path()
    if reader.is_at_end or reader.word in ends:
        return "", path
    reader.seek(begin)
    return _kind(reader), reader.path()


def _relation(session: Session, path: tuple[str, ...]) -> str:
    database, schema, name = session.locate(path)
    return "VIEW" if name in names(database, schema, "VIEW") else "TABLE"


def _kind(reader: Reader) -> str:
    """Read a kind of object, in singular or plural."""
    words = reader.accept("FILE FORMAT", "FILE FORMATS", "ICEBERG TABLE", "ICEBERG TABLES")
    return read_kind(words or reader.name())
