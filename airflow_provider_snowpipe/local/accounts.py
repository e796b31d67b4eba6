"""Account, user and credentials of the local service: key-pair JWT, PAT or OAuth in, scoped tokens out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_snowpipe.local import oauth
from airflow_provider_snowpipe.local.datadir import DataDirectory, write_file
from airflow_provider_snowpipe.local.errors import Refusal

KEY_PAIR, PAT, OAUTH = "KEYPAIR_JWT", "PROGRAMMATIC_ACCESS_TOKEN", "OAUTH"
ACCOUNT = "LOCAL"
USER = "DEMO"
INGEST_HOST = "127.0.0.1"
SCOPED_TOKEN_SECONDS = 3600
_CLOCK_SKEW_SECONDS = 60
_MAX_JWT_SECONDS = 3600
_ISSUER = "snowpipe-local"
_SCOPES = frozenset({INGEST_HOST, "localhost"})


@dataclass(frozen=True, slots=True)
class Account:
    """The one account of a local service, with the public key of its user.

    :param name: account name, always ``LOCAL``.
    :param user: user name, always ``DEMO``.
    :param public_key_pem: the user's RSA public key.
    :param instance: random id of the data directory, so that a client recognises the right service.
    :param secret: key that signs scoped tokens and OAuth access tokens.
    :param issued: programmatic access token and OAuth client.
    """

    name: str
    user: str
    public_key_pem: str
    instance: str
    secret: bytes = field(repr=False)
    issued: oauth.IssuedSecrets

    @property
    def fingerprint(self) -> str:
        """``SHA256:<base64>`` of the public key's DER form, as Snowflake's DESCRIBE USER shows it."""
        key = serialization.load_pem_public_key(self.public_key_pem.encode())
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return "SHA256:" + base64.b64encode(hashlib.sha256(der).digest()).decode()

    def verify_key_pair(self, token: str) -> str:
        """Verify a key-pair JWT and return the user.

        SDK 1.9.1 writes ``iat`` and ``exp`` in milliseconds (observed); both units are accepted.

        :param token: RS256 JWT with ``iss = ACCOUNT.USER.SHA256:<fingerprint>`` and ``sub = ACCOUNT.USER``.
        :raises Refusal: 401 ``JWT_TOKEN_INVALID`` that says what is wrong with the token.
        """
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self.public_key_pem,
                algorithms=["RS256"],
                options={"verify_exp": False, "verify_iat": False, "verify_aud": False, "verify_sub": False},
            )
        except jwt.InvalidTokenError as error:
            raise _invalid(
                f"it is not signed by the registered RSA key of {self.name}.{self.user}"
            ) from error
        subject = f"{self.name}.{self.user}"
        if str(claims.get("sub", "")).upper() != subject:
            raise _invalid(f"its subject is not {subject}")
        issuer = str(claims.get("iss", ""))
        prefix, _, fingerprint = issuer.partition(".SHA256:")
        if prefix.upper() != subject or f"SHA256:{fingerprint}" != self.fingerprint:
            raise _invalid(f"its issuer is not {subject}.<fingerprint of the registered key>")
        issued, expires = _seconds(claims.get("iat")), _seconds(claims.get("exp"))
        now = time.time()
        if issued is None or expires is None:
            raise _invalid("it lacks iat or exp")
        if issued > now + _CLOCK_SKEW_SECONDS:
            raise _invalid("it was issued in the future; check the client's clock")
        if expires < now - _CLOCK_SKEW_SECONDS or issued < now - _MAX_JWT_SECONDS - _CLOCK_SKEW_SECONDS:
            raise _invalid("it has expired; sign a new one")
        return self.user

    def verify_original(self, token: str, declared: str | None = None) -> tuple[str, str]:
        """Verify a credential of any kind that may be exchanged for a scoped token.

        :param token: key-pair JWT, programmatic access token or OAuth access token.
        :param declared: ``X-Snowflake-Authorization-Token-Type``, or None; the kind must agree with it.
        :returns: the user, and the kind as that header names it.
        :raises Refusal: 401 that says what is wrong with the token.
        """
        kind = self._kind(token)
        if declared and declared.strip().upper() != kind:
            raise Refusal(
                401,
                "TOKEN_TYPE_MISMATCH",
                f"X-Snowflake-Authorization-Token-Type is {declared[:40]}, but the token is of type {kind}",
            )
        if kind == KEY_PAIR:
            return self.verify_key_pair(token), kind
        try:
            if kind == PAT:
                self.issued.check_pat(token)
                return self.user, kind
            return oauth.verify_access_token(self.secret, token), kind
        except oauth.TokenError as error:
            code = "PAT_INVALID" if kind == PAT else "OAUTH_ACCESS_TOKEN_INVALID"
            raise Refusal(401, code, f"the {kind} token is invalid: {error}") from error

    def _kind(self, token: str) -> str:
        if self.issued.is_pat(token):
            return PAT
        try:
            algorithm = jwt.get_unverified_header(token).get("alg")
        except jwt.InvalidTokenError as error:
            raise _invalid("it is not a JWT") from error
        return KEY_PAIR if algorithm == "RS256" else OAUTH

    def issue_scoped_token(self, scope: str) -> str:
        """Exchange a verified credential for a token that opens the ingest host only.

        :param scope: the ingest host, as the hostname call returned it.
        :raises Refusal: 400 when the scope is another host.
        """
        if scope not in _SCOPES:
            raise Refusal(
                400,
                "INVALID_SCOPE",
                f"scope '{scope}' is not the ingest host; ask /v2/streaming/hostname first",
            )
        now = int(time.time())
        claims = {
            "iss": _ISSUER,
            "sub": self.user,
            "scope": scope,
            "iat": now,
            "exp": now + SCOPED_TOKEN_SECONDS,
        }
        return jwt.encode(claims, self.secret, algorithm="HS256")

    def verify_scoped_token(self, token: str) -> str:
        """Verify a scoped token and return the user.

        :raises Refusal: 401 for a token that this service did not sign, or that has expired.
        """
        try:
            claims = jwt.decode(token, self.secret, algorithms=["HS256"], issuer=_ISSUER)
        except jwt.ExpiredSignatureError as error:
            raise Refusal(
                401,
                "SCOPED_TOKEN_EXPIRED",
                "the scoped token has expired; exchange a new one at /oauth/token",
            ) from error
        except jwt.InvalidTokenError as error:
            raise Refusal(
                401,
                "SCOPED_TOKEN_INVALID",
                "the bearer token is not a scoped token of this service; exchange one at /oauth/token",
            ) from error
        if claims.get("scope") not in _SCOPES:
            raise Refusal(401, "SCOPED_TOKEN_INVALID", "the scoped token belongs to another host")
        return str(claims["sub"])

    def verify_any(self, token: str) -> str:
        """Verify a scoped or an original token, for the control calls that accept both."""
        kind = self._kind(token)
        if kind != OAUTH or _issuer(token) == oauth.ISSUER:
            return self.verify_original(token)[0]
        return self.verify_scoped_token(token)

    def upload_key_id(self, prefix: str) -> str:
        """Return the access key id that may upload below one path prefix."""
        return "SNOWPIPE" + hmac.new(self.secret, prefix.encode(), "sha256").hexdigest()[:24].upper()


def ensure_account(home: DataDirectory) -> Account:
    """Load the account, creating it with a fresh RSA key on first start.

    :param home: data directory; private files get mode 0600.
    """
    if not home.account_file.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_file(home.key_file, private, mode=0o600)
        write_file(home.token_secret_file, secrets.token_bytes(48), mode=0o600)
        described = {
            "account": ACCOUNT,
            "user": USER,
            "public_key": public.decode(),
            "instance": secrets.token_hex(16),
        }
        # Written last: its presence says that the key files are complete.
        write_file(home.account_file, json.dumps(described, indent=1).encode(), mode=0o644)
    stored = home.read_account()
    return Account(
        name=stored["account"],
        user=stored["user"],
        public_key_pem=stored["public_key"],
        instance=stored["instance"],
        secret=home.token_secret_file.read_bytes(),
        issued=oauth.ensure_secrets(home),
    )


def sign_key_pair_jwt(home: DataDirectory) -> str:
    """Sign a short-lived key-pair JWT as the service's own user, for ``snowpipe-local sql``."""
    stored = home.read_account()
    public = serialization.load_pem_public_key(stored["public_key"].encode())
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    fingerprint = base64.b64encode(hashlib.sha256(der).digest()).decode()
    subject = f"{stored['account']}.{stored['user']}"
    now = int(time.time())
    claims = {"iss": f"{subject}.SHA256:{fingerprint}", "sub": subject, "iat": now, "exp": now + 600}
    return jwt.encode(claims, home.key_file.read_bytes(), algorithm="RS256")


def _issuer(token: str) -> object:
    try:
        return jwt.decode(token, options={"verify_signature": False}).get("iss")
    except jwt.InvalidTokenError:
        return None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value / 1000 if value > 1e11 else float(value)


def _invalid(reason: str) -> Refusal:
    return Refusal(401, "JWT_TOKEN_INVALID", f"JWT token is invalid: {reason}.")
