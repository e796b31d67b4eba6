"""What an Airflow connection holds for a Snowflake account, whichever of the two types it has."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_snowpipe.streaming.errors import (
    IF_NO_ANSWER,
    AuthenticationError,
    ConfigurationError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

    from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair
    from airflow_provider_snowpipe.streaming.http import Answer


SNOWFLAKE = "snowflake"
SNOWPIPE = "snowpipe"
SAME_FIELDS = ("conn_id", "host", "port", "login", "password", "schema")
_DOMAIN = ".snowflakecomputing.com"
_ACCOUNT = re.compile(r"[A-Za-z0-9._-]+")
_ONE_LINE_PEM = re.compile(rb"(-----BEGIN [A-Z ]+-----)\s*([A-Za-z0-9+/=\s]+?)\s*(-----END [A-Z ]+-----)")
_CERTIFICATE = b"CERTIFICATE-----"
_LARGEST_KEY_FILE = 16_384
_PORTS = 65_536
_OVERLOADED = (429, *range(500, 600))
_AUTHENTICATORS = {
    "snowflake": "key_pair",
    "snowflake_jwt": "key_pair",
    "key_pair": "key_pair",
    "programmatic_access_token": "programmatic_access_token",
    "oauth": "oauth",
}


@dataclass(frozen=True, slots=True)
class SnowpipeConnection:
    """An Airflow connection of type ``snowflake`` or ``snowpipe``, read into what a client needs.

    A ``snowflake`` connection means what it means to Airflow's own hook: host and port come from its extra,
    the password is an access token or a passphrase. A ``snowpipe`` connection has the URL in its host.

    :param extra: as an object; ``extra__snowflake__role`` stands for a missing ``role``
    """

    conn_id: str
    conn_type: str | None
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.conn_type not in (SNOWFLAKE, SNOWPIPE):
            raise self._wrong(
                f"the type is {self.conn_type!r}: use one of type {SNOWFLAKE!r} or {SNOWPIPE!r}"
            )
        if not isinstance(self.extra, Mapping):
            raise self._wrong(
                f"the field 'extra' is JSON of the type {type(self.extra).__name__}: give an object, such as "
                '{"account": "…", "database": "…"}'
            )
        prefix = f"extra__{self.conn_type}__"
        plain = {name: value for name, value in self.extra.items() if value is not None}
        old = {name.removeprefix(prefix): value for name, value in plain.items() if name.startswith(prefix)}
        object.__setattr__(self, "extra", old | plain)
        object.__setattr__(self, "login", (self.login or "").strip() or None)

    @classmethod
    def of(cls, connection: Any, extra: Mapping[str, Any]) -> SnowpipeConnection:
        """Read an Airflow connection.

        :param extra: its extra as an object, which an event loop has to await and a task has not
        """
        same = {name: getattr(connection, name) for name in SAME_FIELDS}
        return cls(conn_type=connection.conn_type, extra=extra, **same)

    def account_url(self) -> str:
        """The account's address: the host given, else the one that Snowflake gives the account."""
        from airflow_provider_snowpipe.streaming.auth import base_url

        host, port = self.text("host"), self.text("port")
        if self.conn_type == SNOWPIPE:
            host, port = host or self.host, port or (str(self.port) if self.port else None)
        host = host or self._account_host()
        bare = host.split("//", 1)[-1].rstrip("/")
        if port is not None and ":" not in bare:
            if not (port.isdecimal() and 0 < int(port) < _PORTS):
                raise self._wrong(
                    f"the field 'port' is {port!r}: give a number from 1 to {_PORTS - 1:,}, or leave it empty"
                )
            host = f"{host.rstrip('/')}:{port}"
        try:
            return base_url(host)
        except ConfigurationError as error:
            raise self._wrong(f"field 'host': {error}") from None

    def account(self) -> str:
        """The account's identifier, taken from Snowflake's own host name where the field is empty."""
        account = self.text("account")
        if account is None and self.conn_type == SNOWPIPE and self.host:
            name = self.host.split("//", 1)[-1].split("/", 1)[0].split(":", 1)[0].lower()
            account = name.removesuffix(_DOMAIN) if name.endswith(_DOMAIN) else None
        if account is None:
            raise self._missing("account", "the account identifier, <organization>-<account>")
        if not _ACCOUNT.fullmatch(account):
            raise self._wrong(
                f"extra field 'account' is {account!r}: give the bare "
                "identifier (letters, digits, '.', '_' and '-'), not a URL"
            )
        return account

    def ca_bundle(self) -> str | None:
        """The PEM file of trusted roots, None for the environment's or the public ones."""
        path = self.text("ca_bundle") if self.extra.get("ca_bundle") is not None else None
        if path is not None and not Path(path).is_file():
            raise self._wrong(
                f"extra field 'ca_bundle' names {path!r}, which is not a file "
                "here: put the PEM file on every worker and triggerer, or leave the field empty"
            )
        if path is not None and _CERTIFICATE not in Path(path).read_bytes():
            raise self._wrong(
                f"extra field 'ca_bundle' names {path!r}, which holds no "
                "certificate: name a PEM file of trusted roots ('openssl x509 -inform der' makes one of a "
                "file in DER), or leave the field empty"
            )
        return path

    def credentials(self) -> Credentials:
        """The credentials that the connection holds."""
        from airflow_provider_snowpipe.streaming.auth import OAuthToken, ProgrammaticAccessToken

        method = self._method()
        if method == "programmatic_access_token":
            return ProgrammaticAccessToken(self._secret("password", self.password, "the access token"))
        if method == "key_pair":
            return self._key_pair()
        given = self.text("token") or (self.password if self.conn_type == SNOWPIPE else None)
        if given:
            return OAuthToken(given.strip())
        return self._oauth_client()

    def pipe_name(
        self, *, table: str | None, pipe: str | None, database: str | None, schema: str | None
    ) -> PipeName:
        """Name the pipe; what the caller leaves out comes from the connection."""
        if table and pipe:
            raise ConfigurationError(f"table {table!r} and pipe {pipe!r} are both given: drop one of them")
        if not table and not pipe:
            table, pipe = self.text("table"), self.text("pipe")
            if table and pipe:
                raise self._wrong(
                    f"it names a default table {table!r} and a default pipe {pipe!r}: empty one field"
                )
        if not table and not pipe:
            raise ConfigurationError(
                f"no table and no pipe: give table=… or pipe=…, or fill the field 'table' of a {SNOWPIPE!r} "
                f"connection (this is {self.conn_id!r})"
            )
        database, schema = self.database_and_schema(database, schema)
        return (
            PipeName(database, schema, pipe)
            if pipe
            else PipeName.default_for_table(database, schema, table or "")
        )

    def database_and_schema(self, database: str | None, schema: str | None) -> tuple[str, str]:
        """Database and schema; what the caller leaves out comes from the connection."""
        database = database or self.text("database")
        schema = schema or self.schema or self.text("schema")
        if not database:
            raise self._missing("database", "the pipe's database, or give database=…")
        if not schema:
            raise self._wrong("the field 'schema' is empty: fill it in, or give schema=…")
        return database, schema

    def _method(self) -> str:
        given = self.text("auth") if self.conn_type == SNOWPIPE else None
        given = given or self.text("authenticator") or "snowflake"
        if self.text("refresh_token"):
            given = "oauth"
        method = _AUTHENTICATORS.get(given.lower())
        if method is None:
            raise self._wrong(
                f"authentication {given!r} is not taken; use a key pair, a programmatic access token or OAuth"
            )
        return method

    def _key_pair(self) -> KeyPair:
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        key = self._private_key()
        passphrase = self._passphrase()
        user = self._secret("login", self.login, "the user that the key belongs to")
        account = self.account()
        try:
            return KeyPair(account, user, key, passphrase=passphrase, role=self.text("role"))
        except AuthenticationError as error:
            raise AuthenticationError(f"connection {self.conn_id!r}: {error}") from None

    def signing_key(self) -> RSAPrivateKey | None:
        """The private key, read once in a process; None where there is none, or none that can be read."""
        from airflow_provider_snowpipe.streaming.auth import read_private_key

        if not (self.text("private_key_file") or self.text("private_key_content")):
            return None
        try:
            return read_private_key(self._private_key(), self._passphrase(), self.login or "")
        except (AuthenticationError, ConfigurationError):
            return None  # whoever asks reads it in another way, and reports what is wrong with it

    def _passphrase(self) -> str | None:
        return (self.password or "").strip() or None

    def _private_key(self) -> bytes:
        path, content = self.text("private_key_file"), self.text("private_key_content")
        if path and content:
            raise self._wrong("private_key_file and private_key_content are filled: empty one")
        if content:
            return _pem(content)
        if not path:
            raise self._wrong(
                "it has no private key, and no password is taken: fill the extra "
                "field 'private_key_file' or 'private_key_content', or choose an access token or OAuth"
            )
        try:
            size = Path(path).stat().st_size
            body = Path(path).read_bytes() if 0 < size <= _LARGEST_KEY_FILE else b""
        except OSError as error:
            raise self._wrong(
                f"extra field 'private_key_file': {path!r} cannot be read "
                f"({error.strerror}): put the key there on every worker and triggerer"
            ) from None
        if not body:
            raise self._wrong(f"extra field 'private_key_file': {path!r} has {size} bytes: name a PEM file")
        return _pem(body.decode("utf-8", "replace"))

    def _oauth_client(self) -> Credentials:
        if self.text("azure_conn_id"):
            raise self._wrong(
                "'azure_conn_id' is not supported; give login, password, grant_type and token_endpoint"
            )

        grant = self.text("grant_type") or ("refresh_token" if self.text("refresh_token") else None)
        if grant is None:
            raise self._missing(
                "grant_type", "'refresh_token', 'client_credentials' or 'password', or a 'token'"
            )
        endpoint = self.text("token_endpoint")
        endpoint = endpoint or f"https://{self.account()}{_DOMAIN}/oauth/token-request"
        if not _is_private(endpoint):
            raise self._wrong(
                "the extra field 'token_endpoint' is not an https address, and "
                "secrets are sent to it: give https://…; http is for this machine only (127.0.0.1)"
            )
        form = {"grant_type": grant, "redirect_uri": self.text("redirect_uri") or "https://localhost.com"}
        if scope := self.text("scope"):
            form["scope"] = scope
        if grant not in _GRANT_FIELDS:
            raise self._wrong(f"'grant_type' is {grant!r}: give one of {sorted(_GRANT_FIELDS)}")
        for name, field_name in _GRANT_FIELDS[grant].items():
            form[name] = self._secret(field_name, self.text(field_name), f"what grant {grant!r} needs")
        client = f"{self._secret('login', self.login, 'the client id')}:" + self._secret(
            "password", self.password, "the OAuth client's secret"
        )
        own_host = bool(self.host or self.text("host")) and _host(endpoint) == _host(self.account_url())
        return OAuthClient(
            self.conn_id, endpoint, form, client=client, ca_bundle=self.ca_bundle() if own_host else None
        )

    @property
    def fetches_tokens(self) -> bool:
        """True for an OAuth client whose tokens this package fetches, or a token that somebody else did."""
        is_oauth = (self.text("authenticator") or "").lower() == "oauth" or bool(self.text("refresh_token"))
        return is_oauth and not self.text("azure_conn_id")

    def _account_host(self) -> str:
        region = self.text("region")
        account = self.account() + (f".{region}" if region else "")
        if not _ACCOUNT.fullmatch(account):
            raise self._wrong(f"extra field 'region' is {region!r}: not usable")
        return account.replace("_", "-").lower() + _DOMAIN

    def text(self, name: str) -> str | None:
        """A field of the extra, None when it is empty."""
        value = self.extra.get(name)
        return None if value is None or value == "" else str(value)

    def _secret(self, name: str, value: str | None, remedy: str) -> str:
        if not value or not value.strip():
            raise self._wrong(f"the field {name!r} is empty: fill in {remedy}")
        return value.strip()

    def _missing(self, name: str, remedy: str) -> ConfigurationError:
        return self._wrong(f"the extra field {name!r} is missing: fill in {remedy}")

    def _wrong(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"connection {self.conn_id!r}: {text}")


def _pem(content: str) -> bytes:
    """Read a key as Airflow's Snowflake hook does: PEM, or the base64 form of the PEM text.

    A form field with one line swallows the line breaks of a pasted key; they are put back.
    """
    data = content.strip().encode()
    if b"-----BEGIN" not in data:
        try:
            decoded = base64.b64decode(b"".join(data.split()), validate=True)
        except (binascii.Error, ValueError):
            return data
        return decoded if b"-----BEGIN" in decoded else data
    if b"\n" in data:
        return data
    found = _ONE_LINE_PEM.fullmatch(data)
    return b"\n".join((found[1], b"".join(found[2].split()), found[3])) if found else data


# -- OAuth access tokens, fetched and renewed --------------------------------------------------------------

_OAUTH = """authenticator grant_type oauth_password oauth_username redirect_uri refresh_token scope token
    token_endpoint"""
OAUTH_FIELDS = frozenset(_OAUTH.split())
"""Fields of the extra by which tokens are fetched."""
_GRANT_FIELDS: Mapping[str, Mapping[str, str]] = {
    "client_credentials": {},
    "password": {"username": "oauth_username", "password": "oauth_password"},
    "refresh_token": {"refresh_token": "refresh_token"},
}
"""Fields of the form by grant, and the field of the extra of each."""
_TRIES = 3
_PAUSE_SECONDS = 1.0
_EXPIRY_SECONDS = 30
"""How long before its end a token is renewed."""


class OAuthClient:
    """Credentials that fetch an OAuth access token, and renew it before it expires.

    :param endpoint: an https address or one of this machine; redirects are not followed, as secrets are sent
    """

    def __init__(
        self,
        conn_id: str,
        endpoint: str,
        form: Mapping[str, str],
        *,
        client: str,
        ca_bundle: str | None = None,
    ) -> None:
        self._conn_id = conn_id
        self._endpoint = endpoint
        self._form = dict(form)
        self._client = base64.b64encode(client.encode()).decode()
        self._ca_bundle = ca_bundle
        self._token, self._until = "", 0.0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"OAuthClient({self._conn_id!r}, grant_type={self._form['grant_type']!r})"

    @property
    def token_type(self) -> str:
        """``OAUTH``."""
        return "OAUTH"

    def bearer(self) -> str:
        """An access token that has not expired."""
        with self._lock:
            if time.time() >= self._until:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        answer = self._answer()
        found = answer.fields if answer.status == HTTPStatus.OK else {}
        token, seconds = found.get("access_token"), str(found.get("expires_in"))
        if not isinstance(token, str) or not token or not seconds.isdecimal():
            moved = ", a redirect that is not followed" if 300 <= answer.status < 400 else ""
            raise AuthenticationError(
                f"{self._failed} (HTTP {answer.status}{moved}): check client, secret, grant, token_endpoint"
            )
        self._token, self._until = token, time.time() + int(seconds) - _EXPIRY_SECONDS

    def _answer(self) -> Answer:
        """Ask for a token; again, where the server does not answer or is overloaded."""
        from airflow_provider_snowpipe.streaming.http import Transports, UnreachableError, seconds_left

        transports = Transports(self._ca_bundle)
        proof = {"Authorization": f"Basic {self._client}"}
        try:
            for left in reversed(range(_TRIES)):
                try:
                    answer = transports.send("POST", self._endpoint, query={}, headers=proof, form=self._form)
                except UnreachableError as error:
                    reason = str(error)
                else:
                    if answer.status not in _OVERLOADED:
                        return answer
                    reason = f"HTTP {answer.status}"
                if left:
                    time.sleep(seconds_left(_PAUSE_SECONDS))
        finally:
            transports.close()
        raise RetriesExhaustedError(f"{self._failed} ({reason}). {IF_NO_ANSWER}")

    @property
    def _failed(self) -> str:
        return f"connection {self._conn_id!r}: no OAuth token for the grant {self._form['grant_type']!r}"


def _host(url: str) -> str | None:
    return urlsplit(url if "//" in url else f"//{url}").hostname


def _is_private(endpoint: str) -> bool:
    """True for an https address, and for http to this machine itself."""
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        if parts.scheme == "https" and host:
            return True
        return parts.scheme == "http" and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:  # no address, or brackets without one
        return False
