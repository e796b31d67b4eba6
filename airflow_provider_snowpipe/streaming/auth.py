"""Credentials: key pair, programmatic access token, OAuth token, and the scoped token made from them.

None of these shows its secret in ``repr``, and a private key refuses to be pickled: what travels to another
machine is a :class:`ScopedToken`, which is short-lived and good for one ingest host only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol, Self
from urllib.parse import urlsplit

from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey


_JWT_LIFE_SECONDS = 3540
"""Snowflake refuses a key-pair JWT that lives longer than an hour; SDK 1.9.1 uses 59 minutes."""
_JWT_RENEW_SECONDS = 600
_PEM_START = b"-----BEGIN"
_KEPT_KEYS = 16


class Authorization(Protocol):
    """What proves who sends a request."""

    def headers(self) -> Mapping[str, str]:
        """The headers of a request, valid now."""

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Replace what the service refused, unless another thread has; False where that is impossible."""
        return False


class Credentials(Protocol):
    """Something that proves who the client is."""

    @property
    def token_type(self) -> str:
        """``KEYPAIR_JWT``, ``PROGRAMMATIC_ACCESS_TOKEN`` or ``OAUTH``."""

    def bearer(self) -> str:
        """The token for the ``Authorization`` header, valid now."""


@dataclass(frozen=True)
class KeyPair:
    """A user's RSA key pair, used as a JSON Web Token (RS256).

    :param account: the account's identifier; what follows its first dot (a region) is dropped
    """

    account: str
    user: str
    private_key: str | bytes = field(repr=False)
    passphrase: str | bytes | None = field(default=None, repr=False)
    role: str | None = None
    token_type: str = field(default="KEYPAIR_JWT", init=False)
    _key: RSAPrivateKey = field(init=False, repr=False, compare=False)
    _cache: _Cache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.account or not self.user:
            raise ConfigurationError("key-pair authentication needs an account and a user")
        object.__setattr__(self, "_key", read_private_key(self.private_key, self.passphrase, self.user))
        object.__setattr__(self, "_cache", _Cache())

    @property
    def subject(self) -> str:
        """The JWT's subject, ``ACCOUNT.USER``."""
        return f"{self.account.split('.', 1)[0].upper()}.{self.user.upper()}"

    @property
    def fingerprint(self) -> str:
        """The public key's fingerprint as ``DESC USER`` shows it, ``SHA256:<base64>``."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode()

    def bearer(self) -> str:
        """A JWT that is valid for at least ten minutes more."""
        import jwt

        with self._cache.lock:
            now = time.time()
            if self._cache.token is None or self._cache.expires_at - now < _JWT_RENEW_SECONDS:
                claims: dict[str, object] = {
                    "iss": f"{self.subject}.{self.fingerprint}",
                    "sub": self.subject,
                    "iat": int(now),
                    "exp": int(now) + _JWT_LIFE_SECONDS,
                }
                if self.role:
                    claims["scp"] = f"session:role:{self.role}"
                self._cache.token = jwt.encode(claims, self._key, algorithm="RS256")
                self._cache.expires_at = now + _JWT_LIFE_SECONDS
            return self._cache.token

    @property
    def signing_key(self) -> RSAPrivateKey:
        """The private key as Snowflake's own connector takes it, which need not read it again."""
        return self._key

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled: send executors a ScopedToken instead")


@dataclass(slots=True)
class _Cache:
    token: str | None = field(default=None, repr=False)
    expires_at: float = 0.0
    lock: Lock = field(default_factory=Lock, repr=False)


@dataclass(frozen=True, slots=True)
class _GivenToken:
    token: str = field(repr=False)
    token_type: ClassVar[str]
    _kind: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.token or self.token != self.token.strip():
            raise ConfigurationError(f"the {self._kind} is empty or has blanks around it")

    def bearer(self) -> str:
        """The token itself."""
        return self.token


@dataclass(frozen=True, slots=True)
class ProgrammaticAccessToken(_GivenToken):
    """A programmatic access token (PAT)."""

    token_type: ClassVar[str] = "PROGRAMMATIC_ACCESS_TOKEN"  # noqa: S105
    _kind: ClassVar[str] = "programmatic access token"


@dataclass(frozen=True, slots=True)
class OAuthToken(_GivenToken):
    """An OAuth access token that somebody else obtained and renews."""

    token_type: ClassVar[str] = "OAUTH"  # noqa: S105
    _kind: ClassVar[str] = "OAuth access token"


@dataclass(frozen=True, slots=True)
class Signed(Authorization):
    """Requests that prove who asks by the user's own credentials, which renew themselves."""

    credentials: Credentials

    def headers(self) -> dict[str, str]:
        """The token and its type."""
        bearer = self.credentials.bearer()
        return {
            "Authorization": f"Bearer {bearer}",
            "X-Snowflake-Authorization-Token-Type": self.credentials.token_type,
        }


@dataclass(frozen=True, slots=True)
class ScopedToken(Authorization):
    """A short-lived token for one ingest host: the only credential that leaves the driver."""

    token: str = field(repr=False)
    host: str
    expires_at: float

    def remaining_seconds(self) -> float:
        """Seconds until it expires; negative when it has."""
        return self.expires_at - time.time()

    def get(self) -> Self:
        """The token itself, as long as it is valid."""
        self.headers()
        return self

    def headers(self) -> dict[str, str]:
        """The header of a request; a scoped token goes without a type (REST tutorial)."""
        if time.time() >= self.expires_at:
            raise AuthenticationError(
                "the scoped token given to this client has expired; the driver must send a fresh one"
            )
        return {"Authorization": f"Bearer {self.token}"}


def read_private_key(text: str | bytes, passphrase: str | bytes | None, user: str) -> RSAPrivateKey:
    """Read a user's private key, once in a process: a second reading of the same text gives the same key.

    To prove the factors of 2048 bits prime takes 25 ms, and a task opens clients dozens of times.
    """
    data = text.encode() if isinstance(text, str) else text
    password = passphrase.encode() if isinstance(passphrase, str) else passphrase
    return _load_private_key(data, password or None, user)


@lru_cache(_KEPT_KEYS)
def _load_private_key(data: bytes, password: bytes | None, user: str) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

    remedy = "give an RSA private key in PEM (PKCS#8) and, if it is encrypted, its passphrase"
    try:
        if _PEM_START in data:
            key = load_pem_private_key(data.strip(), password)
        else:
            key = load_der_private_key(base64.b64decode(b"".join(data.split()), validate=True), password)
    except TypeError:
        state = "is not encrypted, but a passphrase" if password else "is encrypted, but no passphrase"
        raise AuthenticationError(
            f"the private key of user {user!r} {state} was given: {'drop' if password else 'give'} it, which "
            "is the password of an Airflow connection"
        ) from None
    except (ValueError, binascii.Error, UnsupportedAlgorithm):
        raise AuthenticationError(
            f"the private key of user {user!r} cannot be read (damaged, or the passphrase is wrong): {remedy}"
        ) from None
    if not isinstance(key, RSAPrivateKey):
        raise AuthenticationError(f"the private key of user {user!r} is not an RSA key: {remedy}")
    return key


# -- Finding the ingest host, and exchanging credentials for a token that is good for it alone -----------

REFRESH_AHEAD_SECONDS = 300.0
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_HTTPS_PORT = 443
_GRANTS = {
    "KEYPAIR_JWT": {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
    "PROGRAMMATIC_ACCESS_TOKEN": {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "programmatic_access_token",
    },
    "OAUTH": {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    },
}


def base_url(account_url: str) -> str:
    """Normalise an account's address to ``https://host[:port]``; the port of HTTPS, 443, goes unsaid."""
    text = account_url if "//" in account_url else f"https://{account_url}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    if parts.scheme != "https" or not plain or port == -1 or not HOST_NAME.fullmatch(parts.hostname or ""):
        raise ConfigurationError(
            f"account URL {account_url.rsplit('@', 1)[-1]!r} is not usable: give https://<host>[:<port>]; "
            "Snowpipe Streaming has no plain HTTP"
        )
    return f"https://{parts.hostname}" + (f":{port}" if port not in (None, _HTTPS_PORT) else "")


def exchange_form(credentials: Credentials, host: str) -> dict[str, str]:
    """The form that asks for a token scoped to ``host``."""
    grant = _GRANTS.get(credentials.token_type)
    if grant is None:
        raise ConfigurationError(
            f"credentials of type {credentials.token_type!r} are not exchanged: use one of {sorted(_GRANTS)}"
        )
    return {**grant, "scope": host}


class ScopedTokenSource:
    """Keeps a scoped token that is valid for some minutes more, renewing it ahead of its end.

    Safe to use from several threads; one of them renews, the others wait for it.

    :param refresh_ahead: renew when fewer seconds remain, or a third of the life if that is shorter
    """

    def __init__(
        self, fetch: Callable[[], ScopedToken], *, refresh_ahead: float = REFRESH_AHEAD_SECONDS
    ) -> None:
        self._fetch = fetch
        self._refresh_ahead = refresh_ahead
        self._token: ScopedToken | None = None
        self._renew_at = 0.0
        self._lock = Lock()

    def get(self) -> ScopedToken:
        """A scoped token with life left in it."""
        with self._lock:
            if self._token is None or time.time() >= self._renew_at:
                return self._renew()
            return self._token

    def headers(self) -> dict[str, str]:
        """The header of a request, with a token that has life left in it."""
        return {"Authorization": f"Bearer {self.get().token}"}

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Replace a token that the service refused, unless another thread has already done so."""
        with self._lock:
            if self._token is None or self._token.token == refused["Authorization"].removeprefix("Bearer "):
                self._renew()
        return True

    def _renew(self) -> ScopedToken:
        token = self._fetch()
        remaining = token.remaining_seconds()
        if remaining <= 0:
            raise AuthenticationError(
                "the service issued a scoped token that has already expired; check this machine's clock"
            )
        self._token = token
        self._renew_at = token.expires_at - min(self._refresh_ahead, remaining / 3)
        return token
