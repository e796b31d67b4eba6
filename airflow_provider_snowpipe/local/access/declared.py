"""Users, roles and grants declared in a TOML file (deprecated), read and applied at every start."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.local.access import access as changes
from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT
from airflow_provider_snowpipe.local.access.model import (
    ACCOUNTADMIN,
    OWNERSHIP,
    PRIVILEGES,
    USERADMIN,
    AccessState,
    AccessToken,
    Role,
    Securable,
    User,
    read_privileges,
)
from airflow_provider_snowpipe.local.accounts import (
    PAT_PREFIX,
    InvalidPublicKeyError,
    check_password,
    digest_password,
    digest_token,
    is_access_token,
    public_key_pem,
)
from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.local.sql.grants import inside, locate
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import read_path

# -- Users, roles and grants declared in a TOML file, applied at every start of the service --------------

_SECTIONS = ("users", "roles", "grants")
_USER_TEXTS = ("default_role", "default_warehouse", "default_namespace", "login_name", "comment")
_USER_FILES = ("public_key_file", "public_key_2_file", "password_file", "pat_file")
_USER_KEYS = (*_USER_TEXTS, *_USER_FILES, "roles", "disabled", "secondary_roles")
_ROLE_KEYS = ("inherits", "comment")
_GRANT_KEYS = ("role", "privileges", "on", "name", "all", "future", "in")


@dataclass(frozen=True, slots=True)
class DeclaredUser:
    """One user of the file, with what its files hold.

    :param texts: defaults and other plain values by field name; only those that the file sets.
    :param public_keys: PEM of both keys, empty when not declared.
    """

    name: str
    texts: Mapping[str, str]
    public_keys: tuple[str, str]
    password: str | None = field(repr=False)
    pat: str | None = field(repr=False)
    roles: tuple[str, ...] = ()
    disabled: bool = False
    secondary_roles: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredRole:
    """One role of the file and the roles that it inherits."""

    name: str
    inherits: tuple[str, ...] = ()
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredGrant:
    """One grant of the file.

    :param scope: ``SCHEMA`` or ``DATABASE`` for all or future objects in it, else empty.
    :param where: position in the file, for errors.
    """

    role: str
    privileges: tuple[str, ...]
    kind: str
    path: tuple[str, ...]
    scope: str
    future: bool
    where: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """Everything that the file declares."""

    file: Path
    users: tuple[DeclaredUser, ...]
    roles: tuple[DeclaredRole, ...]
    grants: tuple[DeclaredGrant, ...]


def load(file: Path) -> Declaration:
    """Read and check the file and the files that it names; nothing is looked up in the service yet.

    :raises ConfigurationError: naming file, key, value and remedy; never with the content of a secret file.
    """
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read as TOML: {error}") from error
    reader = _Reader(file)
    reader.known(document, _SECTIONS, "the file")
    users = reader.table(document, "users")
    roles = reader.table(document, "roles")
    grants = document.get("grants", [])
    if not isinstance(grants, list) or not all(isinstance(entry, dict) for entry in grants):
        raise reader.error("grants", "must be a list of tables; write [[grants]]")
    return Declaration(
        file,
        tuple(reader.user(name, entry) for name, entry in users.items()),
        tuple(reader.role(name, entry) for name, entry in roles.items()),
        tuple(reader.grant(f"grants[{number}]", entry) for number, entry in enumerate(grants)),
    )


class _Reader:
    def __init__(self, file: Path) -> None:
        self._file = file

    def error(self, where: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self._file}: {where}: {problem}")

    def known(self, entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
        for key in entry:
            if key not in keys:
                raise self.error(where, f"unknown key '{key}'; known are {', '.join(keys)}")

    def table(self, document: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
        entries = document.get(key, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise self.error(key, f"must hold one table per name; write [{key}.NAME]")
        return entries

    def user(self, name: str, entry: Mapping[str, Any]) -> DeclaredUser:
        where = f"users.{name}"
        self.known(entry, _USER_KEYS, where)
        secrets = {key: self._content(entry, key, where) for key in _USER_FILES}
        pat = secrets["pat_file"]
        if pat is not None and not is_access_token(pat):
            raise self.error(f"{where}.pat_file", f"the token in the file must begin with {PAT_PREFIX}")
        return DeclaredUser(
            self._name(name, where),
            {key: self._text(entry, key, where) for key in _USER_TEXTS if key in entry},
            (
                self._key(secrets["public_key_file"], f"{where}.public_key_file"),
                self._key(secrets["public_key_2_file"], f"{where}.public_key_2_file"),
            ),
            secrets["password_file"],
            pat,
            self._names(entry, "roles", where),
            self._flag(entry, "disabled", where),
            self._flag(entry, "secondary_roles", where),
        )

    def role(self, name: str, entry: Mapping[str, Any]) -> DeclaredRole:
        where = f"roles.{name}"
        self.known(entry, _ROLE_KEYS, where)
        comment = self._text(entry, "comment", where) if "comment" in entry else None
        return DeclaredRole(self._name(name, where), self._names(entry, "inherits", where), comment)

    def grant(self, where: str, entry: Mapping[str, Any]) -> DeclaredGrant:
        self.known(entry, _GRANT_KEYS, where)
        role = self._name(self._text(entry, "role", where), f"{where}.role")
        kind = self._text(entry, "on", where).upper()
        if kind not in PRIVILEGES:
            raise self.error(f"{where}.on", f"'{kind}' is no kind of object; use {', '.join(PRIVILEGES)}")
        future, every = self._flag(entry, "future", where), self._flag(entry, "all", where)
        if future and every:
            raise self.error(where, "all and future exclude each other; write two grants")
        scope = ""
        path: tuple[str, ...] = ()
        if future or every:
            scope, _, named = self._text(entry, "in", where).partition(" ")
            scope, path = scope.upper(), self._path(named, f"{where}.in")
            if scope not in {"SCHEMA", "DATABASE"}:
                raise self.error(f"{where}.in", "must be 'SCHEMA database.schema' or 'DATABASE database'")
        elif kind != ACCOUNT_OBJECT.kind:
            path = self._path(self._text(entry, "name", where), f"{where}.name")
        privileges = self._privileges(entry, (kind, path, scope), where)
        return DeclaredGrant(role, privileges, kind, path, scope, future, where)

    def _privileges(
        self, entry: Mapping[str, Any], objects: tuple[str, tuple[str, ...], str], where: str
    ) -> tuple[str, ...]:
        words = entry.get("privileges")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise self.error(f"{where}.privileges", "must be a list of privileges, for example ['USAGE']")
        try:
            privileges = tuple(read_privileges(words, *objects))
        except SqlError as error:
            raise self.error(f"{where}.privileges", error.message.split("\n")[-1]) from error
        if OWNERSHIP in privileges and len(privileges) > 1:
            raise self.error(f"{where}.privileges", "OWNERSHIP is granted by itself; write two grants")
        return privileges

    def _text(self, entry: Mapping[str, Any], key: str, where: str) -> str:
        value = entry.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"{where}.{key}", f"must be a text, not {value!r}")
        return value

    def _flag(self, entry: Mapping[str, Any], key: str, where: str) -> bool:
        value = entry.get(key, False)
        if not isinstance(value, bool):
            raise self.error(f"{where}.{key}", f"must be true or false, not {value!r}")
        return value

    def _path(self, text: str, where: str) -> tuple[str, ...]:
        try:
            path, rest = read_path(text)
        except SqlError as error:
            raise self.error(where, f"'{text}' is not a name") from error
        if rest:
            raise self.error(where, f"'{text}' is not a name; quote it as \"..\" if it has other characters")
        return path

    def _name(self, text: str, where: str) -> str:
        path = self._path(text, where)
        if len(path) != 1:
            raise self.error(where, f"'{text}' must be one name without dots")
        return path[0]

    def _names(self, entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        values = entry.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(f"{where}.{key}", f"must be a list of names, not {values!r}")
        return tuple(self._name(value, f"{where}.{key}") for value in values)

    def _content(self, entry: Mapping[str, Any], key: str, where: str) -> str | None:
        if key not in entry:
            return None
        path = self._file.parent / Path(self._text(entry, key, where)).expanduser()
        try:
            content = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self.error(f"{where}.{key}", f"cannot read {path}: {error}") from error
        if not content:
            raise self.error(f"{where}.{key}", f"{path} is empty; write the value into it")
        return content

    def _key(self, content: str | None, where: str) -> str:
        if content is None:
            return ""
        try:
            return public_key_pem(content)
        except InvalidPublicKeyError as error:
            raise self.error(
                where, f"{error}; make one with: openssl rsa -in key.p8 -pubout -out key.pub"
            ) from error


# -- Applying a declaration of users, roles and grants; twice has the same effect as once ----------------

_PAT_NAME = "DECLARED"


def apply(declaration: Declaration, catalog: Catalog, user: str) -> None:
    """Bring users, roles and grants in line with the file; what it does not name stays as it is.

    :param user: the service's own user, as whom objects are looked up.
    :raises ConfigurationError: for a role, user or object that does not exist; nothing is changed then.
    """
    access = catalog.access
    session = Session(catalog, user)
    with access.change() as state:
        now = access.now_ms()
        for role in declaration.roles:
            known = state.roles.get(role.name) or Role(role.name, USERADMIN, now)
            comment = known.comment if role.comment is None else role.comment
            state.roles[role.name] = dataclasses.replace(known, comment=comment)
        for declared in declaration.users:
            state.users[declared.name] = _user(state.users.get(declared.name), declared, now)
        _inherit(declaration, state, now)
        for grant in declaration.grants:
            _grant(declaration, state, session, grant, now)
    session.close()


def _inherit(declaration: Declaration, state: AccessState, now: int) -> None:
    for role in declaration.roles:
        for below in role.inherits:
            _check_role(declaration, state, below, f"roles.{role.name}.inherits")
            try:
                changes.give_role(state, below, "ROLE", role.name, USERADMIN, now)
            except SqlError as error:
                raise ConfigurationError(
                    f"{declaration.file}: roles.{role.name}.inherits: {error.message.splitlines()[-1]}"
                ) from error
    for declared in declaration.users:
        for role_name in declared.roles:
            _check_role(declaration, state, role_name, f"users.{declared.name}.roles")
            changes.give_role(state, role_name, "USER", declared.name, USERADMIN, now)
        default = state.users[declared.name].default_role
        if default is not None and (default, "USER", declared.name) not in state.role_grants:
            raise ConfigurationError(
                f"{declaration.file}: users.{declared.name}.default_role: role '{default}' is not granted to "
                f"the user; add it to users.{declared.name}.roles"
            )


def _check_role(declaration: Declaration, state: AccessState, role: str, where: str) -> None:
    if role not in state.roles:
        raise ConfigurationError(
            f"{declaration.file}: {where}: role '{role}' does not exist; declare it as [roles.{role}]"
        )


def _user(known: User | None, declared: DeclaredUser, now: int) -> User:
    user = known or User(declared.name, USERADMIN, now)
    texts = {
        name: value.upper() if name in {"default_role", "default_warehouse"} else value
        for name, value in declared.texts.items()
    }
    keys = tuple(new or old for new, old in zip(declared.public_keys, user.public_keys, strict=True))
    password = user.password
    # The digest is salted: an unchanged password keeps its digest, so that the file stays as it is.
    if declared.password is not None and not check_password(declared.password, password):
        password = digest_password(declared.password)
    tokens = user.access_tokens
    if declared.pat is not None:
        made = AccessToken(_PAT_NAME, digest_token(declared.pat))
        tokens = (*(token for token in tokens if token.name != _PAT_NAME), made)
    return dataclasses.replace(
        user,
        **texts,  # type: ignore[arg-type]
        public_keys=(keys[0], keys[1]),
        password=password,
        access_tokens=tokens,
        disabled=declared.disabled,
        default_secondary_roles="ALL" if declared.secondary_roles else "",
    )


def _grant(
    declaration: Declaration, state: AccessState, session: Session, grant: DeclaredGrant, now: int
) -> None:
    _check_role(declaration, state, grant.role, f"{grant.where}.role")
    try:
        if grant.future:
            scope = locate(session, grant.scope, grant.path)
            changes.grant_future(state, grant.privileges, grant.kind, scope, grant.role, now, False)
            return
        targets = _targets(session, grant)
    except SqlError as error:
        raise ConfigurationError(
            f"{declaration.file}: {grant.where}: {error.message.splitlines()[-1]} Create it first, or "
            "declare the grant with future = true and in = 'SCHEMA database.schema'."
        ) from error
    for target in targets:
        if OWNERSHIP in grant.privileges:
            changes.transfer(state, target, grant.role, ACCOUNTADMIN, now, "COPY")
        else:
            changes.grant(state, grant.privileges, target, grant.role, ACCOUNTADMIN, now, False)


def _targets(session: Session, grant: DeclaredGrant) -> list[Securable]:
    if grant.kind == ACCOUNT_OBJECT.kind:
        return [ACCOUNT_OBJECT]
    if grant.scope:
        return inside(session, grant.kind, locate(session, grant.scope, grant.path))
    return [locate(session, grant.kind, grant.path)]
