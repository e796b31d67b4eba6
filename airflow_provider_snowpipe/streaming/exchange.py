"""Finding the ingest host, and exchanging credentials for a token that is good for it alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from threading import Lock
from urllib.parse import urlsplit

from airflow_provider_snowpipe.streaming.answer import Answer
from airflow_provider_snowpipe.streaming.auth import Credentials, ScopedToken
from airflow_provider_snowpipe.streaming.errors import ApiError, AuthenticationError, ConfigurationError

REFRESH_AHEAD_SECONDS = 300.0
_OPAQUE_LIFE_SECONDS = 600.0
"""Life given to a scoped token that does not tell its own; our choice, well under the hour seen so far."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
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
    """Normalise an account's address to ``https://host[:port]``; the port of HTTPS, 443, goes unsaid.

    :param account_url: ``https://host``, ``https://host:port`` or the bare host
    :raises ConfigurationError: if it is no such address, or not HTTPS
    """
    text = account_url if "//" in account_url else f"https://{account_url}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    if parts.scheme != "https" or not plain or port == -1 or not _HOST.fullmatch(parts.hostname or ""):
        raise ConfigurationError(
            f"account URL {account_url.rsplit('@', 1)[-1]!r} is not usable: give https://<host>[:<port>]; "
            "Snowpipe Streaming has no plain HTTP"
        )
    return f"https://{parts.hostname}" + (f":{port}" if port not in (None, _HTTPS_PORT) else "")


def ingest_host_from(answer: Answer) -> str:
    """Read the answer of the hostname request, plain text or ``{"hostname": …}``.

    Underscores become dashes: a certificate cannot match a host name with underscores.

    :raises ApiError: if it is no host name
    """
    value = answer.json.get("hostname") if isinstance(answer.json, dict) else answer.json
    text = value if isinstance(value, str) else answer.text
    host = text.strip().replace("_", "-")
    if not _HOST.fullmatch(host):
        raise ApiError(
            f"the service named no usable ingest host ({text[:80]!r})", http_status=answer.status, code=""
        )
    return host


def scoped_token_from(answer: Answer, host: str) -> ScopedToken:
    """Read the answer of the token request: the raw token, or JSON that holds it.

    :raises AuthenticationError: if there is no token in it
    """
    token: object = answer.text.strip()
    life: object = None
    if isinstance(answer.json, dict):
        token = answer.json.get("token") or answer.json.get("access_token")
        life = answer.json.get("expires_in")
    elif isinstance(answer.json, str):
        token = answer.json
    if not isinstance(token, str) or not token or any(c.isspace() for c in token):
        raise AuthenticationError(
            f"the service's answer to the token request (HTTP {answer.status}) holds no token; check the "
            "account URL"
        )
    return ScopedToken(token=token, host=host, expires_at=_expiry(token, life))


def _expiry(token: str, life: object) -> float:
    import jwt  # DAG files that import a client should not wait for it

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        claims = {}
    if isinstance(claims.get("exp"), int | float):
        return float(claims["exp"])
    return time.time() + (float(life) if isinstance(life, int | float) else _OPAQUE_LIFE_SECONDS)


def exchange_form(credentials: Credentials, host: str) -> dict[str, str]:
    """The form that asks for a token scoped to ``host``."""
    grant = _GRANTS.get(credentials.token_type)
    if grant is None:
        raise ConfigurationError(
            f"credentials of type {credentials.token_type!r} cannot be exchanged: use one of "
            f"{sorted(_GRANTS)}"
        )
    return {**grant, "scope": host}


class ScopedTokenSource:
    """Keeps a scoped token that is valid for some minutes more, renewing it ahead of its end.

    Safe to use from several threads; one of them renews, the others wait for it.

    :param fetch: makes the exchange
    :param refresh_ahead: renew when less than this many seconds remain (or a third of the whole life, if
        that is shorter)
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
                self._renew()
            return self._current()

    def renew(self, refused: ScopedToken | None) -> None:
        """Replace a token that the service refused, unless another thread has already done so."""
        with self._lock:
            if self._token is None or refused is None or self._token.token == refused.token:
                self._renew()

    def _renew(self) -> None:
        token = self._fetch()
        remaining = token.remaining_seconds()
        if remaining <= 0:
            raise AuthenticationError(
                "the service issued a scoped token that has already expired; check this machine's clock"
            )
        self._token = token
        self._renew_at = token.expires_at - min(self._refresh_ahead, remaining / 3)

    def _current(self) -> ScopedToken:
        if self._token is None:
            raise AuthenticationError("there is no scoped token")
        return self._token
