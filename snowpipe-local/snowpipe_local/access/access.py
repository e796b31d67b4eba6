"""Access control of one service: who holds which privilege on which object, and changes of that."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from snowpipe_local.access import model
from snowpipe_local.access.model import (
    ACCOUNTADMIN,
    OWNERSHIP,
    PRIVILEGES,
    PUBLIC,
    SHARED,
    SYSTEM_GRANTS,
    SYSTEM_HIERARCHY,
    SYSTEM_ROLES,
    AccessState,
    FutureGrant,
    Grant,
    Role,
    RoleGrant,
    Securable,
    User,
    Warehouse,
    shared_role,
)
from snowpipe_local.datadir import Clock
from snowpipe_local.errors import SqlError, access_error, object_missing

# -- Changes of users, roles and grants, inside one :meth:`Access.change` block --------------------------


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
        known = state.grants.get(model.grant_key(given))
        if known is None or (option and not known.grant_option):
            state.grants[model.grant_key(given)] = given


def revoke(
    state: AccessState, privileges: Iterable[str], target: Securable, role: str, *, option_only: bool = False
) -> None:
    """Revoke privileges on an object, or only the right to grant them on; absent ones are not errors."""
    for privilege in privileges:
        known = state.grants.get((target, role, privilege))
        if known is None:
            continue
        if option_only:
            state.grants[target, role, privilege] = dataclasses.replace(known, grant_option=False)
        else:
            del state.grants[target, role, privilege]


def give_role(state: AccessState, role: str, kind: str, grantee: str, by: str, now: int) -> None:
    """Give a role to a user or to another role.

    :raises SqlError: when the other role would inherit itself.
    """
    if kind == "ROLE" and grantee in state.inherited(role):
        raise access_error(
            f"Role '{role}' cannot be granted to role '{grantee}': a role would inherit itself."
        )
    given = RoleGrant(role, kind, grantee, by, now)
    state.role_grants.setdefault(model.role_grant_key(given), given)


def transfer(
    state: AccessState, target: Securable, role: str, by: str, now: int, current: str | None
) -> None:
    """Give an object another owner.

    :param current: ``COPY`` keeps the other grants on it, ``REVOKE`` drops them, None refuses.
    :raises SqlError: 003036 for grants that are not declared.
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


# -- Access control of one service: who holds which privilege on which object ----------------------------

DEFAULT_USER = "DEMO"
DEFAULT_WAREHOUSE = "LOCAL"
ACCOUNT_OBJECT = Securable("ACCOUNT")


class Access:
    """Users, roles, grants and warehouses.

    Threading: every method may be called from any thread. A change is on disk when its method returns.

    :param file: where the state is kept; None keeps it in memory.
    """

    def __init__(self, file: Path | None = None, clock: Clock | None = None) -> None:
        self._file = file
        self._clock = clock or Clock()
        self._lock = threading.RLock()
        self._state = AccessState() if file is None else model.load(file)
        self._closures: dict[str, frozenset[str]] = {}
        self._listeners: list[Callable[[], None]] = []
        with self.change() as state:
            self._add_system(state)

    @contextmanager
    def change(self) -> Iterator[AccessState]:
        """Change the state: everything that happens inside is written in one step at its end.

        Changes of a block that raises stay out of the file and are undone.
        """
        with self._lock:
            before = self._state
            draft = AccessState(
                *(dict(getattr(self._state, field.name)) for field in dataclasses.fields(AccessState))
            )
            yield draft
            if self._file is not None and draft != self._state:
                model.save(self._file, draft)
            self._state = draft
            self._closures = {}
        if (before.users, before.role_grants) != (draft.users, draft.role_grants):
            for listener in self._listeners:
                listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call somebody after each change of users and of their roles, on the thread that made it."""
        self._listeners.append(listener)

    @property
    def state(self) -> AccessState:
        """The state as it is now; never changed in place, so it may be read without a lock."""
        return self._state

    def now_ms(self) -> int:
        """Return the service's time, epoch milliseconds."""
        return self._clock.now_ms()

    # -- questions ------------------------------------------------------------------------------------------

    def roles_of(self, user: str) -> frozenset[str]:
        """Return the roles granted to a user, PUBLIC among them; not those that these inherit."""
        given = {
            g.role for g in self._state.role_grants.values() if (g.grantee_kind, g.grantee) == ("USER", user)
        }
        return frozenset(given | {PUBLIC})

    def may_use(self, user: str, role: str) -> bool:
        """Return True when a user may activate a role: granted, or inherited by a granted one."""
        return role in self.closure(self.roles_of(user))

    def default_role(self, user: str) -> str:
        """Return the role of a new session: the user's default if it is granted, else PUBLIC."""
        known = self._state.users.get(user)
        chosen = known.default_role if known else None
        return chosen if chosen and self.may_use(user, chosen) else PUBLIC

    def active_roles(self, user: str, role: str | None = None) -> frozenset[str]:
        """Return the roles of a call outside of a session: one, or the user's default, and what it inherits.

        :param role: role that the credential asked for; the caller has checked that the user may use it.
        """
        known = self._state.users.get(user)
        others = self.roles_of(user) if known and known.default_secondary_roles and role is None else ()
        return self.closure({role or self.default_role(user), *others})

    def closure(self, roles: Iterable[str]) -> frozenset[str]:
        """Return roles with all that they inherit, PUBLIC among them."""
        found: frozenset[str] = frozenset({PUBLIC})
        for role in roles:
            found |= self._closure(role)
        return found

    def _closure(self, role: str) -> frozenset[str]:
        closures = self._closures
        if role not in closures:
            closures[role] = self._state.inherited(role)
        return closures[role]

    def owner(self, target: Securable) -> str:
        """Return the role that owns an object; ACCOUNTADMIN owns what nobody was recorded for."""
        for role in self._state.roles:
            if (target, role, OWNERSHIP) in self._state.grants:
                return role
        return ACCOUNTADMIN

    def held(self, roles: Iterable[str], target: Securable) -> frozenset[str]:
        """Return the privileges that some roles hold on an object; OWNERSHIP stands for all of them."""
        active = frozenset(roles)
        grants = self._state.grants
        words = (OWNERSHIP, *PRIVILEGES.get(target.kind, ()))
        found = {word for word in words for role in active if (target, role, word) in grants}
        if self.owner(target) in active:
            found.add(OWNERSHIP)
        return frozenset(found)

    def allows(self, roles: Iterable[str], privilege: str, target: Securable) -> bool:
        """Return True when some of the roles hold a privilege on an object, or own it."""
        return bool(self.held(roles, target) & {privilege, OWNERSHIP})

    def can_see(self, roles: Iterable[str], target: Securable) -> bool:
        """Return True when an object shows for some roles: any privilege on it, and USAGE above it.

        The database and schema above need any privilege too, as in Snowflake's SHOW statements.
        """
        active = frozenset(roles)
        if target.kind in {"DATABASE", "WAREHOUSE", "ACCOUNT"}:
            return bool(self.held(active, target))
        above = [Securable("DATABASE", target.path[:1])]
        if target.depth == 3:
            above.append(Securable("SCHEMA", target.path[:2]))
        return all(self.allows(active, "USAGE", each) for each in above) and bool(self.held(active, target))

    def sees_usage(self, roles: Iterable[str]) -> bool:
        """Return True when some roles may read the history views of the database SNOWFLAKE.

        By ``IMPORTED PRIVILEGES`` on it, kept as ``USAGE`` as Snowflake shows them, or its USAGE_VIEWER.
        """
        active, viewer = frozenset(roles), shared_role("USAGE_VIEWER")
        return self.allows(active, "USAGE", SHARED) or any(
            (viewer, role, "USAGE") in self._state.grants for role in active
        )

    # -- objects that come and go ---------------------------------------------------------------------------

    def created(self, target: Securable, owner: str, grants_of: Securable | None = None) -> None:
        """Record the owner of a new object, and give out the future grants; grants of an older one go.

        :param grants_of: the object whose grants, without ownership, are given out in place of future ones.
        """
        with self.change() as state:
            self._create(state, target, owner, grants_of)

    def _create(self, state: AccessState, target: Securable, owner: str, grants_of: Securable | None) -> None:
        kept = [
            dataclasses.replace(grant, target=target)
            for grant in state.grants.values()
            if grant.target == grants_of and grant.privilege != OWNERSHIP
        ]
        _forget(state, target)
        now = self.now_ms()
        given = [Grant(OWNERSHIP, target, owner, owner, now, True), *kept]
        for future in _future_for(state, target):
            if future.privilege == OWNERSHIP:
                given[0] = Grant(OWNERSHIP, target, future.role, future.role, now, True)
            elif grants_of is None:
                given.append(Grant(future.privilege, target, future.role, owner, now, future.grant_option))
        state.grants.update({model.grant_key(grant): grant for grant in given})

    def dropped(self, target: Securable) -> None:
        """Forget the grants on an object and on everything inside it."""
        with self.change() as state:
            _forget(state, target)

    def knows(self, target: Securable) -> bool:
        """Return True when anything is granted on an object, on something inside it, or for its future."""
        state = self._state
        return any(target.contains(grant.target) for grant in state.grants.values()) or any(
            target.contains(future.scope) for future in state.future_grants.values()
        )

    @contextmanager
    def tables_renamed(self, names: Mapping[Securable, Securable]) -> Iterator[str]:
        """Keep the grants on tables under their new names, once the block has committed these.

        :returns: the note for :meth:`restore`, which goes into the same commit.
        """
        with self.change() as state:
            moved = [g for g in state.grants.values() if g.target in names]
            for target in {*names, *names.values()}:
                _forget(state, target)
            for grant in (dataclasses.replace(each, target=names[each.target]) for each in moved):
                state.grants[model.grant_key(grant)] = grant
            yield model.note(state, {*names, *names.values()})

    @contextmanager
    def table_created(self, target: Securable, owner: str, grants_of: Securable | None) -> Iterator[str]:
        """Do what :meth:`created` does, once the block has committed the table.

        :returns: as :meth:`tables_renamed`.
        """
        with self.change() as state:
            self._create(state, target, owner, grants_of)
            yield model.note(state, [target])

    def restore(self, note: str) -> None:
        """Do again what a crash may have left undone."""
        with self.change() as state:
            model.restore(state, note)

    def renamed(self, old: Securable, new: Securable) -> None:
        """Keep the grants on an object, and on everything inside it, under the new name."""
        with self.change() as state:
            _forget(state, new)
            for key, grant in list(state.grants.items()):
                if old.contains(grant.target):
                    del state.grants[key]
                    kept = dataclasses.replace(grant, target=grant.target.moved(old, new))
                    state.grants[model.grant_key(kept)] = kept
            for future_key, future in list(state.future_grants.items()):
                if old.contains(future.scope):
                    del state.future_grants[future_key]
                    moved = dataclasses.replace(future, scope=future.scope.moved(old, new))
                    state.future_grants[model.future_key(moved)] = moved

    def keep_only(self, exists: Callable[[Securable], bool]) -> None:
        """Forget grants on objects that are gone, after a crash between a DROP and its note here."""
        with self.change() as state:
            granted = {grant.target for grant in state.grants.values()}
            for target in granted | {future.scope for future in state.future_grants.values()}:
                if not exists(target):
                    _forget(state, target)

    def _add_system(self, state: AccessState) -> None:
        now = self.now_ms()
        for name in SYSTEM_ROLES:
            state.roles.setdefault(name, Role(name, "", now))
        for role, above in SYSTEM_HIERARCHY:
            given = RoleGrant(role, "ROLE", above, "", now)
            state.role_grants.setdefault(model.role_grant_key(given), given)
        for role, privilege in SYSTEM_GRANTS:
            grant = Grant(privilege, ACCOUNT_OBJECT, role, "", now)
            state.grants.setdefault(model.grant_key(grant), grant)
        if DEFAULT_USER not in state.users:
            state.users[DEFAULT_USER] = User(
                DEFAULT_USER,
                ACCOUNTADMIN,
                now,
                password=None,
                default_role=ACCOUNTADMIN,
                default_warehouse=DEFAULT_WAREHOUSE,
            )
        own = RoleGrant(ACCOUNTADMIN, "USER", DEFAULT_USER, "", now)
        state.role_grants.setdefault(model.role_grant_key(own), own)
        if not state.warehouses:
            state.warehouses[DEFAULT_WAREHOUSE] = Warehouse(DEFAULT_WAREHOUSE, now)
            warehouse = Securable("WAREHOUSE", (DEFAULT_WAREHOUSE,))
            usage = Grant("USAGE", warehouse, PUBLIC, ACCOUNTADMIN, now)
            state.grants[model.grant_key(usage)] = usage


def _forget(state: AccessState, target: Securable) -> None:
    for key in [key for key in state.grants if target.contains(key[0])]:
        del state.grants[key]
    for future in [key for key in state.future_grants if target.contains(key[2])]:
        del state.future_grants[future]


def _future_for(state: AccessState, target: Securable) -> list[FutureGrant]:
    """Return the future grants for a new object; those of its schema replace those of its database."""
    if target.depth < 2 or target.kind == "WAREHOUSE":
        return []
    matching = [f for f in state.future_grants.values() if f.kind == target.kind and f.scope.contains(target)]
    in_schema = [f for f in matching if f.scope.kind == "SCHEMA"]
    return in_schema or matching


# -- Checks of privileges, with the errors that Snowflake gives ------------------------------------------


def insufficient(target: Securable) -> SqlError:
    """Return the error for an object that shows, but may not be used that way (003001)."""
    named = "account 'LOCAL'" if target.kind == "ACCOUNT" else f"{target.kind.lower()} '{target.name}'"
    return access_error(f"Insufficient privileges to operate on {named}")


def require(access: Access, roles: Iterable[str], privilege: str, target: Securable) -> None:
    """Raise unless some of the roles hold a privilege on an object, and USAGE on what contains it.

    An object on which the roles hold nothing at all stays hidden, as one that does not exist.

    :param roles: active roles with all that they inherit.
    :raises SqlError: 002003 for a hidden object, 003001 for one that shows but may not be used that way.
    """
    active = frozenset(roles)
    for kind, depth in (("DATABASE", 1), ("SCHEMA", 2)):
        above = Securable(kind, target.path[:depth])
        if depth < target.depth and target.kind != "WAREHOUSE" and not access.allows(active, "USAGE", above):
            raise _hidden(above)
    if access.allows(active, privilege, target):
        return
    if target.kind != "ACCOUNT" and not access.held(active, target):
        raise _hidden(target)
    raise insufficient(target)


def _hidden(target: Securable) -> SqlError:
    return object_missing(target.kind.capitalize(), ".".join(target.path))
