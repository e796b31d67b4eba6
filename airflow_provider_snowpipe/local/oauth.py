"""Programmatic access token and OAuth client of the local service, in files that only the owner reads."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from dataclasses import dataclass, field

import jwt

from airflow_provider_snowpipe.local.access.credentials import new_access_token
from airflow_provider_snowpipe.local.datadir import DataDirectory, write_file
from airflow_provider_snowpipe.local.errors import DataDirectoryError

ACCESS_TOKEN_SECONDS = 3600
ISSUER = "snowpipe-local-oauth"
_CLIENT_FIELDS = ("client_id", "client_secret", "refresh_token")


class TokenError(Exception):
    """A token or client secret is not one of this service; the text says why, never what was sent."""


@dataclass(frozen=True, slots=True)
class IssuedSecrets:
    """Secrets that the service handed out on its first start.

    :param pat: programmatic access token of the user.
    :param client_id: id of the one OAuth client.
    :param client_secret: its secret.
    :param refresh_token: token for the refresh flow; it does not expire.
    """

    pat: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)

    def check_client(self, client_id: str, client_secret: str) -> None:
        """Compare an OAuth client's id and secret in constant time.

        :raises TokenError: when either is wrong.
        """
        same = [_same(client_id, self.client_id), _same(client_secret, self.client_secret)]
        if not all(same):
            raise TokenError("client id or client secret is wrong; read them from oauth_client.json")

    def check_pat(self, token: str) -> None:
        """Compare a programmatic access token in constant time.

        :raises TokenError: when it is another one.
        """
        if not _same(token, self.pat):
            raise TokenError("it is not the programmatic access token in demo_pat")

    def check_refresh_token(self, token: str) -> None:
        """Compare a refresh token in constant time.

        :raises TokenError: when it is another one.
        """
        if not _same(token, self.refresh_token):
            raise TokenError("the refresh token is wrong; read it from oauth_client.json")


def issue_access_token(secret: bytes, user: str, scope: str = "") -> str:
    """Return an OAuth access token that is good for :data:`ACCESS_TOKEN_SECONDS`.

    :param secret: key that signs it.
    :param user: user that it stands for.
    :param scope: scopes of the request, of which ``session:role:NAME`` chooses the role.
    """
    now = int(time.time())
    claims = {"iss": ISSUER, "sub": user, "scp": scope, "iat": now, "exp": now + ACCESS_TOKEN_SECONDS}
    return jwt.encode(claims, secret, algorithm="HS256")


def verify_access_token(secret: bytes, token: str) -> str:
    """Return the user of an OAuth access token.

    :raises TokenError: for a token that was not issued here, or that has expired.
    """
    try:
        claims = jwt.decode(token, secret, algorithms=["HS256"], issuer=ISSUER)
    except jwt.ExpiredSignatureError as error:
        raise TokenError("it has expired; ask the token endpoint for another") from error
    except jwt.InvalidTokenError as error:
        raise TokenError("it was not issued by this service's /oauth/token-request") from error
    return str(claims["sub"])


def ensure_secrets(home: DataDirectory) -> IssuedSecrets:
    """Load the secrets, creating them on first start.

    :param home: data directory; the files get mode 0600.
    :raises DataDirectoryError: when a file was damaged by hand.
    """
    if not home.pat_file.exists():
        write_file(home.pat_file, f"{new_access_token()}\n".encode(), mode=0o600)
    if not home.oauth_client_file.exists():
        client = {
            "client_id": f"snowpipe-local-{secrets.token_hex(6)}",
            "client_secret": secrets.token_urlsafe(32),
            "refresh_token": secrets.token_urlsafe(32),
        }
        write_file(home.oauth_client_file, json.dumps(client, indent=1).encode(), mode=0o600)
    try:
        client = json.loads(home.oauth_client_file.read_text())
        values = [str(client[name]) for name in _CLIENT_FIELDS]
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"{home.oauth_client_file} is not JSON with {', '.join(_CLIENT_FIELDS)}; delete it"
        ) from error
    return IssuedSecrets(home.pat_file.read_text().strip(), *values)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
