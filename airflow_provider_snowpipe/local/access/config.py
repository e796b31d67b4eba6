"""Users, roles and grants declared in a TOML file, applied at every start of the service."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.local.access.access import ACCOUNT_OBJECT
from airflow_provider_snowpipe.local.access.credentials import (
    PAT_PREFIX,
    InvalidPublicKeyError,
    is_access_token,
    public_key_pem,
)
from airflow_provider_snowpipe.local.access.model import OWNERSHIP, PRIVILEGES, read_privileges
from airflow_provider_snowpipe.local.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.local.identifiers import read_path

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
    :param where: place in the file, for errors.
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
