"""CREATE, ALTER, DROP, SHOW and DESCRIBE of warehouses, roles and users."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from snowpipe_local.access import access as changes
from snowpipe_local.access.access import DEFAULT_USER, insufficient
from snowpipe_local.access.model import (
    ACCOUNTADMIN,
    SYSTEM_ROLES,
    AccessToken,
    Role,
    Securable,
    User,
    Warehouse,
)
from snowpipe_local.accounts import (
    InvalidPublicKeyError,
    digest_password,
    digest_token,
    fingerprint,
    new_access_token,
    public_key_pem,
)
from snowpipe_local.errors import (
    SqlError,
    compilation_error,
    missing_account_object,
    object_exists,
    object_missing,
    unsupported,
)
from snowpipe_local.sql.reader import Reader, flag, whole
from snowpipe_local.sql.results import Result, done, listing, status, texts
from snowpipe_local.sql.session import Session, require_unrestricted
from snowpipe_local.sql.show import Shown
from snowpipe_local.stages.definition import as_written, invalid_value
from snowpipe_local.stages.storage import user_identity

# -- Properties of warehouses and users, by tables of their fields ---------------------------------------

_Reads = Callable[[str, str], Any]
_Known = TypeVar("_Known", Warehouse, User)


def _changed(
    known: _Known,
    properties: Mapping[str, str | None],
    fields: Mapping[str, tuple[str, _Reads]],
    remembered: Collection[str],
) -> _Known:
    """Return a warehouse or user with some properties set.

    :param properties: upper-case name to value; None gives the default.
    :param fields: field that keeps a property, and what reads its value.
    :raises SqlError: for a property that does not exist, or a value that it does not take.
    """
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(known)}
    for name, value in properties.items():
        if name in fields:
            field, read = fields[name]
            changed = defaults[field] if value is None else read(name, value)
        elif name in remembered:
            field, kept = "properties", dict(known.properties)
            kept.pop(name, None) if value is None else kept.update({name: value})
            changed = tuple(kept.items())
        else:
            raise unsupported(f"property {name} of a {type(known).__name__.lower()}")
        known = dataclasses.replace(known, **{field: changed})
    return known


def _properties(reader: Reader, verb: str) -> dict[str, str | None]:
    """Read what stands behind SET or UNSET; nothing behind another verb."""
    if verb == "UNSET":
        return dict.fromkeys(reader.names())
    return dict(reader.properties(needed=True)) if verb == "SET" else {}


def _identifier(_name: str, value: str) -> str:
    return value.upper() if re.fullmatch(r"[A-Za-z_][\w$]*", value) else value


# -- CREATE, ALTER, DROP, SHOW and DESCRIBE of warehouses; they are remembered and compute nothing -------

_SIZES = {
    "XSMALL": "X-Small", "SMALL": "Small", "MEDIUM": "Medium", "LARGE": "Large", "XLARGE": "X-Large",
    "XXLARGE": "2X-Large", "X2LARGE": "2X-Large", "2XLARGE": "2X-Large", "XXXLARGE": "3X-Large",
    "X3LARGE": "3X-Large", "3XLARGE": "3X-Large", "X4LARGE": "4X-Large", "4XLARGE": "4X-Large",
    "X5LARGE": "5X-Large", "5XLARGE": "5X-Large", "X6LARGE": "6X-Large", "6XLARGE": "6X-Large",
}  # fmt: skip
# Remembered without effect, but for the time-out.
_REMEMBERED = frozenset(
    {"WAREHOUSE_TYPE", "MAX_CLUSTER_COUNT", "MIN_CLUSTER_COUNT", "SCALING_POLICY", "RESOURCE_MONITOR",
     "ENABLE_QUERY_ACCELERATION", "QUERY_ACCELERATION_MAX_SCALE_FACTOR", "MAX_CONCURRENCY_LEVEL",
     "STATEMENT_QUEUED_TIMEOUT_IN_SECONDS", "STATEMENT_TIMEOUT_IN_SECONDS", "RESOURCE_CONSTRAINT",
     "GENERATION", "WAIT_FOR_COMPLETION"}
)  # fmt: skip


def _size(name: str, value: str) -> str:
    size = _SIZES.get(value.upper().replace("-", ""))
    if size is None:
        raise invalid_value(name, value, f"one of {', '.join(sorted(set(_SIZES.values())))}")
    return size


_WAREHOUSE_FIELDS = {
    "WAREHOUSE_SIZE": ("size", _size), "AUTO_SUSPEND": ("auto_suspend", whole),
    "AUTO_RESUME": ("auto_resume", flag), "COMMENT": ("comment", as_written),
}  # fmt: skip
_RIGHTS = {
    "SUSPEND": "OPERATE", "RESUME": "OPERATE", "ABORT ALL QUERIES": "OPERATE", "SET": "MODIFY",
    "UNSET": "MODIFY", "RENAME TO": "OWNERSHIP",
}  # fmt: skip


def create_warehouse(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] WAREHOUSE [IF NOT EXISTS] name [[WITH] property = value ..]; it becomes current."""
    head = reader.target(1)
    reader.accept("WITH")
    properties = reader.properties()
    session.transaction.commit()
    access = session.catalog.access
    session.require("CREATE WAREHOUSE", "ACCOUNT")
    if head.name in access.state.warehouses:
        if head.is_tolerant:
            return status(f"{head.name} already exists, statement succeeded.")
        if not reader.is_replacing:
            raise object_exists(head.name)
        session.require("OWNERSHIP", "WAREHOUSE", head.name)
    suspended = flag("INITIALLY_SUSPENDED", properties.pop("INITIALLY_SUSPENDED", "FALSE"))
    empty = Warehouse(head.name, access.now_ms(), suspended=suspended)
    made = _changed(empty, properties, _WAREHOUSE_FIELDS, _REMEMBERED)
    with access.change() as state:
        state.warehouses[head.name] = made
    session.created("WAREHOUSE", head.name)
    session.warehouse = head.name
    return status(f"Warehouse {head.name} successfully created.")


def alter_warehouse(session: Session, reader: Reader) -> Result:
    """ALTER WAREHOUSE [IF EXISTS] name SUSPEND | RESUME [IF SUSPENDED] | SET .. | UNSET .. | RENAME TO."""
    head = reader.target(1)
    verb = reader.accept("SUSPEND", "RESUME", "ABORT ALL QUERIES", "SET", "UNSET", "RENAME TO")
    if not verb:
        raise unsupported(f"ALTER WAREHOUSE .. {reader.word}")
    is_tolerant = verb == "RESUME" and bool(reader.accept("IF SUSPENDED"))
    new = reader.name() if verb == "RENAME TO" else ""
    properties = _properties(reader, verb)
    reader.end()
    session.transaction.commit()
    access = session.catalog.access
    if head.name not in access.state.warehouses:
        if head.is_tolerant:
            return done()
        raise object_missing("Warehouse", head.name)
    known = access.state.warehouses[head.name]
    session.require(_RIGHTS[verb], "WAREHOUSE", head.name)
    if verb == "ABORT ALL QUERIES":
        return done()
    if verb == "RENAME TO":
        return _rename(session, known, new)
    if verb in {"SET", "UNSET"}:
        changed = _changed(known, properties, _WAREHOUSE_FIELDS, _REMEMBERED)
    else:
        changed = _switched(known, verb == "SUSPEND", tolerant=is_tolerant)
    with access.change() as state:
        state.warehouses[head.name] = changed
    return done()


def drop_warehouse(session: Session, reader: Reader) -> Result:
    """DROP WAREHOUSE [IF EXISTS] name."""
    head = reader.last_target(1)
    session.transaction.commit()
    access = session.catalog.access
    if head.name not in access.state.warehouses:
        raise object_missing("Warehouse", head.name)
    session.require("OWNERSHIP", "WAREHOUSE", head.name)
    with access.change() as state:
        del state.warehouses[head.name]
    session.dropped("WAREHOUSE", head.name)
    if session.warehouse == head.name:
        session.warehouse = None
    return status(f"{head.name} successfully dropped.")


def show_warehouses(session: Session, shown: Shown) -> Result:
    """SHOW WAREHOUSES [LIKE]; what a warehouse here does not have is NULL."""
    rows = (
        dict(
            name=known.name, state="SUSPENDED" if known.suspended else "STARTED",
            type=dict(known.properties).get("WAREHOUSE_TYPE", "STANDARD"), size=known.size,
            started_clusters=int(not known.suspended), is_current=known.name == session.warehouse,
            auto_suspend=known.auto_suspend, auto_resume=known.auto_resume, created_on=known.created_on_ms,
            owner=session.owner("WAREHOUSE", known.name), comment=known.comment,
        )
        for known in sorted(session.catalog.access.state.warehouses.values(), key=lambda known: known.name)
        if session.can_see("WAREHOUSE", known.name) and shown.matches(known.name)
    )  # fmt: skip
    return listing("SHOW WAREHOUSES", rows)


def describe_warehouse(session: Session, reader: Reader) -> Result:
    """DESCRIBE WAREHOUSE name."""
    head = reader.last_target(1)
    known = session.catalog.access.state.warehouses.get(head.name)
    if known is None or not session.can_see("WAREHOUSE", head.name):
        raise object_missing("Warehouse", head.name)
    return listing("DESCRIBE WAREHOUSE", [dict(name=known.name, created_on=known.created_on_ms)])


def _switched(known: Warehouse, suspend: bool, *, tolerant: bool) -> Warehouse:
    if known.suspended == suspend and not tolerant:
        verb = "suspended" if suspend else "resumed"
        raise SqlError("090064", "22000", f"Invalid state. Warehouse '{known.name}' cannot be {verb}.")
    return dataclasses.replace(known, suspended=suspend)


def _rename(session: Session, known: Warehouse, name: str) -> Result:
    access = session.catalog.access
    if name in access.state.warehouses:
        raise object_exists(name)
    with access.change() as state:
        del state.warehouses[known.name]
        state.warehouses[name] = dataclasses.replace(known, name=name)
    access.renamed(Securable("WAREHOUSE", (known.name,)), Securable("WAREHOUSE", (name,)))
    if session.warehouse == known.name:
        session.warehouse = name
    return done()


# -- CREATE, ALTER, DROP and SHOW of roles; GRANT ROLE and REVOKE ROLE -----------------------------------


def create_role(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] ROLE [IF NOT EXISTS] name [COMMENT = '..']."""
    head = reader.target(1)
    comment = _comment(reader)
    session.transaction.commit()
    session.require("CREATE ROLE", "ACCOUNT")
    access = session.catalog.access
    if head.name in access.state.roles:
        if head.is_tolerant:
            return status(f"{head.name} already exists, statement succeeded.")
        if not reader.is_replacing:
            raise object_exists(head.name)
        require_role_owner(session, head.name)
    with access.change() as state:
        if head.name in state.roles:
            changes.drop_role(state, head.name, session.role, access.now_ms())
        state.roles[head.name] = Role(head.name, session.role, access.now_ms(), comment)
    return status(f"Role {head.name} successfully created.")


def alter_role(session: Session, reader: Reader) -> Result:
    """ALTER ROLE [IF EXISTS] name SET COMMENT = '..' | UNSET COMMENT."""
    head = reader.target(1)
    verb = reader.accept("SET", "UNSET COMMENT")
    if not verb:
        raise unsupported(f"ALTER ROLE .. {reader.word}")
    comment = _comment(reader, needed=True) if verb == "SET" else ""
    reader.end()
    session.transaction.commit()
    if head.name not in session.catalog.access.state.roles:
        if head.is_tolerant:
            return done()
        raise missing_account_object()
    require_role_owner(session, head.name)
    with session.catalog.access.change() as state:
        state.roles[head.name] = dataclasses.replace(state.roles[head.name], comment=comment)
    return done()


def drop_role(session: Session, reader: Reader) -> Result:
    """DROP ROLE [IF EXISTS] name; objects it owned go to the current role."""
    head = reader.last_target(1)
    session.transaction.commit()
    access = session.catalog.access
    if head.name not in access.state.roles:
        raise missing_account_object()
    if head.name not in SYSTEM_ROLES:
        require_role_owner(session, head.name)
    with access.change() as state:
        changes.drop_role(state, head.name, session.role, access.now_ms())
    return status(f"{head.name} successfully dropped.")


def show_roles(session: Session, shown: Shown) -> Result:
    """SHOW ROLES [LIKE]."""
    state = session.catalog.access.state
    active = session.roles
    given = state.role_grants.values()
    rows = (
        dict(
            created_on=role.created_on_ms, name=role.name,
            is_default=role.name == session.catalog.access.default_role(session.user),
            is_current=role.name == session.role,
            is_inherited=role.name in active and role.name != session.role,
            assigned_to_users=sum((g.role, g.grantee_kind) == (role.name, "USER") for g in given),
            granted_to_roles=sum((g.role, g.grantee_kind) == (role.name, "ROLE") for g in given),
            granted_roles=sum((g.grantee_kind, g.grantee) == ("ROLE", role.name) for g in given),
            owner=role.owner, comment=role.comment,
        )
        for role in sorted(state.roles.values(), key=lambda role: role.name)
        if shown.matches(role.name)
    )  # fmt: skip
    return listing("SHOW ROLES", rows)


def grant_role(session: Session, reader: Reader) -> Result:
    """GRANT ROLE name TO ROLE | USER name, and REVOKE ROLE name FROM the same."""
    role = reader.name()
    giving = reader.verb == "GRANT"
    reader.expect("TO" if giving else "FROM")
    kind, grantee = reader.expect("ROLE", "USER"), reader.name()
    reader.end()
    session.transaction.commit()
    access = session.catalog.access
    known = access.state.roles if kind == "ROLE" else access.state.users
    if role not in access.state.roles or grantee not in known:
        raise missing_account_object()
    require_role_owner(session, role)
    with access.change() as state:
        if giving:
            changes.give_role(state, role, kind, grantee, session.role, access.now_ms())
        else:
            state.role_grants.pop((role, kind, grantee), None)
    return done()


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
        session.require("MANAGE GRANTS", "ACCOUNT")
    except SqlError as error:
        raise insufficient_role(role) from error


def insufficient_role(role: str) -> SqlError:
    """Return the error for a role that shows, but may not be changed."""
    return insufficient(Securable("ROLE", (role,)))


def _comment(reader: Reader, *, needed: bool = False) -> str:
    properties = reader.properties(needed=needed)
    unknown = set(properties) - {"COMMENT"}
    if unknown:
        raise unsupported(f"{sorted(unknown)[0]} of a role")
    return properties.get("COMMENT", "")


# -- CREATE, ALTER, DROP, SHOW and DESCRIBE of users -----------------------------------------------------


def _password(_name: str, value: str) -> str:
    return digest_password(value) if value else ""


def _secondary_of(name: str, value: str) -> str:
    if value.upper() not in {"ALL", ""}:
        raise invalid_value(name, value, "('ALL') or ()")
    return value.upper()


_USER_FIELDS = {
    "LOGIN_NAME": ("login_name", _identifier), "DEFAULT_ROLE": ("default_role", _identifier),
    "DEFAULT_NAMESPACE": ("default_namespace", as_written),
    "DEFAULT_WAREHOUSE": ("default_warehouse", _identifier),
    "DEFAULT_SECONDARY_ROLES": ("default_secondary_roles", _secondary_of), "COMMENT": ("comment", as_written),
    "PASSWORD": ("password", _password), "DISABLED": ("disabled", flag),
}  # fmt: skip
# Remembered and shown; only the time-out has an effect here.
_USERS_REMEMBERED = (
    "DISPLAY_NAME", "FIRST_NAME", "MIDDLE_NAME", "LAST_NAME", "EMAIL", "MUST_CHANGE_PASSWORD", "TYPE",
    "DAYS_TO_EXPIRY", "MINS_TO_UNLOCK", "NETWORK_POLICY", "STATEMENT_TIMEOUT_IN_SECONDS",
)  # fmt: skip
_KEYS = frozenset({"RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2"})
_DAY_MS = 24 * 3600 * 1000
_PAT_DAYS = 15


def create_user(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] USER [IF NOT EXISTS] name [property = value ..]."""
    head = reader.target(1)
    properties = reader.properties()
    session.transaction.commit()
    session.require("CREATE USER", "ACCOUNT")
    access = session.catalog.access
    known = access.state.users.get(head.name)
    if known is not None:
        if head.is_tolerant:
            return status(f"{head.name} already exists, statement succeeded.")
        if not reader.is_replacing:
            raise object_exists(head.name)
        _require_owner(session, known)
    user = _with(User(head.name, session.role, access.now_ms()), properties)
    with access.change() as state:
        if head.name in state.users:
            changes.drop_user(state, head.name)
        state.users[head.name] = user
    return status(f"User {head.name} successfully created.")


def alter_user(session: Session, reader: Reader) -> Result:
    """ALTER USER [IF EXISTS] name SET property = value .. | UNSET property, .. | ADD | REMOVE PAT name."""
    head = reader.target(1)
    verb = reader.accept("SET", "UNSET", "ADD", "REMOVE")
    if verb in {"ADD", "REMOVE"}:
        reader.expect("PROGRAMMATIC ACCESS TOKEN", "PAT")
        token = reader.name()
    elif not verb:
        raise unsupported(f"ALTER USER .. {reader.word}")
    options = reader.properties() if verb == "ADD" else {}
    properties = _properties(reader, verb)
    reader.end()
    session.transaction.commit()
    access = session.catalog.access
    user = access.state.users.get(head.name)
    if user is None:
        if head.is_tolerant:
            return done()
        raise missing_account_object()
    if verb in {"ADD", "REMOVE"}:
        if session.user != user.name:
            _require_owner(session, user)
        return _token(session, user, verb, token, options)
    _require_owner(session, user)
    changed = _with(user, properties)
    with access.change() as state:
        state.users[user.name] = changed
    return done()


def drop_user(session: Session, reader: Reader) -> Result:
    """DROP USER [IF EXISTS] name."""
    head = reader.last_target(1)
    session.transaction.commit()
    access = session.catalog.access
    user = access.state.users.get(head.name)
    if user is None:
        raise missing_account_object()
    _require_owner(session, user)
    if user.name in {DEFAULT_USER, session.user}:
        raise compilation_error(
            f"user {user.name} cannot be dropped: the local service needs it, or it runs this statement."
        )
    with access.change() as state:
        changes.drop_user(state, user.name)
    # Another user of the name would find them.
    session.catalog.storage.remove([user_identity(user.name)])
    return status(f"{user.name} successfully dropped.")


def show_users(session: Session, shown: Shown) -> Result:
    """SHOW USERS [LIKE]; without the right to manage users, the own one only."""
    rows = (
        dict(
            name=user.name, created_on=user.created_on_ms, login_name=user.login_name or user.name,
            display_name=dict(user.properties).get("DISPLAY_NAME", user.name),
            email=dict(user.properties).get("EMAIL", ""), comment=user.comment, disabled=user.disabled,
            default_warehouse=user.default_warehouse or "", default_namespace=user.default_namespace or "",
            default_role=user.default_role or "", default_secondary_roles=_secondary(user), owner=user.owner,
            has_password=bool(user.password), has_rsa_public_key=any(user.public_keys),
        )
        for user in sorted(session.catalog.access.state.users.values(), key=lambda user: user.name)
        if _is_visible(session, user) and shown.matches(user.name)
    )  # fmt: skip
    return listing("SHOW USERS", rows)


def describe_user(session: Session, reader: Reader) -> Result:
    """DESCRIBE USER name; public keys show with their fingerprints, passwords never."""
    head = reader.last_target(1)
    user = session.catalog.access.state.users.get(head.name)
    if user is None or not _is_visible(session, user):
        raise missing_account_object()
    first, second = user.public_keys
    shown: list[tuple[str, Any]] = [
        ("NAME", user.name),
        ("COMMENT", user.comment),
        ("LOGIN_NAME", user.login_name or user.name),
        *user.properties,
        ("PASSWORD", "********" if user.password else None),
        ("DISABLED", str(user.disabled).lower()),
        ("DEFAULT_WAREHOUSE", user.default_warehouse),
        ("DEFAULT_NAMESPACE", user.default_namespace),
        ("DEFAULT_ROLE", user.default_role),
        ("DEFAULT_SECONDARY_ROLES", _secondary(user)),
        ("RSA_PUBLIC_KEY", _body(first)),
        ("RSA_PUBLIC_KEY_FP", fingerprint(first) if first else None),
        ("RSA_PUBLIC_KEY_2", _body(second)),
        ("RSA_PUBLIC_KEY_2_FP", fingerprint(second) if second else None),
    ]
    rows = (dict(property=name, value="null" if value in {None, ""} else value) for name, value in shown)
    return listing("DESCRIBE USER", rows)


def _with(user: User, properties: Mapping[str, str | None]) -> User:
    for name in _KEYS & properties.keys():
        user = _with_key(user, name, properties[name] or "")
    others = {name: value for name, value in properties.items() if name not in _KEYS}
    return _changed(user, others, _USER_FIELDS, _USERS_REMEMBERED)


def _with_key(user: User, name: str, value: str) -> User:
    try:
        pem = public_key_pem(value) if value else ""
    except InvalidPublicKeyError as error:
        why = f"New public key rejected by current policy. Reason: 'Invalid public key': {error}."
        raise SqlError("390422", "22023", why) from error
    first, second = user.public_keys
    keys = (pem, second) if name == "RSA_PUBLIC_KEY" else (first, pem)
    return dataclasses.replace(user, public_keys=keys)


def _token(session: Session, user: User, verb: str, name: str, options: Mapping[str, str]) -> Result:
    access = session.catalog.access
    others = tuple(token for token in user.access_tokens if token.name != name)
    if verb == "REMOVE":
        if len(others) == len(user.access_tokens):
            raise missing_account_object()
        with access.change() as state:
            state.users[user.name] = dataclasses.replace(user, access_tokens=others)
        return status(f"Programmatic access token {name} successfully removed.")
    if len(others) != len(user.access_tokens):
        raise object_exists(name)
    unknown = sorted(set(options) - {"ROLE_RESTRICTION", "DAYS_TO_EXPIRY", "COMMENT"})
    if unknown:
        raise unsupported(f"{unknown[0]} of a programmatic access token")
    role = _identifier("", options["ROLE_RESTRICTION"]) if "ROLE_RESTRICTION" in options else None
    if role is not None and not access.may_use(user.name, role):
        raise missing_account_object()
    # A token that is restricted to a role gives out no other one.
    require_unrestricted(session, role)
    days = whole("DAYS_TO_EXPIRY", options.get("DAYS_TO_EXPIRY", str(_PAT_DAYS)))
    secret = new_access_token()
    made = AccessToken(name, digest_token(secret), role, access.now_ms() + days * _DAY_MS)
    with access.change() as state:
        state.users[user.name] = dataclasses.replace(user, access_tokens=(*others, made))
    return texts(("token_name", "token_secret"), [(name, secret)])


def _require_owner(session: Session, user: User) -> None:
    if user.owner not in session.roles:
        raise insufficient(Securable("USER", (user.name,)))


def _is_visible(session: Session, user: User) -> bool:
    if user.name == session.user or user.owner in session.roles:
        return True
    try:
        session.require("MANAGE GRANTS", "ACCOUNT")
    except SqlError:
        return False
    return True


def _secondary(user: User) -> str:
    return '["ALL"]' if user.default_secondary_roles else "[]"


def _body(pem: str) -> str:
    return "".join(line for line in pem.splitlines() if not line.startswith("-----"))
