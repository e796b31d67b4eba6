"""Account, users and credentials of the local service: key-pair JWT, PAT or OAuth in, scoped tokens out."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from snowpipe_local.access.access import Access
from snowpipe_local.access.model import User
from snowpipe_local.datadir import DataDirectory, write_file
from snowpipe_local.errors import DataDirectoryError, Refusal

if TYPE_CHECKING:
    # PyJWT 2.10.1 has none.
    from jwt.types import Options

# -- Credentials of users: digests of passwords and tokens, public keys and their fingerprints -----------

PAT_PREFIX = "snowpipe-local-pat-"
_SCRYPT = {"n": 2**14, "r": 8, "p": 1, "dklen": 32}
_HEADER = re.compile(r"-----(?:BEGIN|END) PUBLIC KEY-----")
_SMALLEST_KEY_BITS = 2048


class InvalidPublicKeyError(ValueError):
    """A text is not an RSA public key; the text of the error never holds it."""


def digest_password(password: str) -> str:
    """Return a salted digest that :func:`check_password` understands."""
    salt = secrets.token_bytes(16)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def check_password(password: str, digest: str | None) -> bool:
    """Compare a password with a digest; the time taken is the same without one."""
    _, salt, stored = (digest or f"scrypt${'00' * 16}${'00' * 32}").split("$")
    same = hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)), bytes.fromhex(stored))
    return same and bool(digest)


def digest_token(token: str) -> str:
    """Return the digest of a programmatic access token, which is random enough to need no salt."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_access_token(text: str) -> bool:
    """Return True for a text in the form of a programmatic access token, whether right or wrong."""
    return text.startswith(PAT_PREFIX)


def new_access_token() -> str:
    """Return a new programmatic access token."""
    return PAT_PREFIX + secrets.token_urlsafe(32)


def public_key_pem(text: str) -> str:
    """Return an RSA public key as PEM.

    :param text: PEM, or its base64 body alone as ``RSA_PUBLIC_KEY`` takes it.
    :raises InvalidPublicKeyError: when it is not an RSA public key of at least 2048 bits.
    """
    body = "".join(_HEADER.sub("", text).split())
    pem = f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"
    try:
        key = serialization.load_pem_public_key(pem.encode("ascii"))
    except (ValueError, UnicodeEncodeError) as error:
        raise InvalidPublicKeyError("it is not a public key in PEM form") from error
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < _SMALLEST_KEY_BITS:
        raise InvalidPublicKeyError(f"it is not an RSA key of at least {_SMALLEST_KEY_BITS} bits")
    encoded = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded.decode()


@functools.lru_cache(maxsize=256)
def fingerprint(pem: str) -> str:
    """Return ``SHA256:<base64>`` of the public key's DER form, as DESCRIBE USER shows it."""
    key = serialization.load_pem_public_key(pem.encode())
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return "SHA256:" + base64.b64encode(hashlib.sha256(der).digest()).decode()


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, **_SCRYPT)


# -- Key-pair JWTs: verification against the public keys of a user, and signing for the service's own tools --

_CLOCK_SKEW_SECONDS = 60
_MAX_SECONDS = 3600
_NO_TIME = 1e18
_UNCHECKED: Options = {"verify_exp": False, "verify_iat": False, "verify_aud": False, "verify_sub": False}
_ROLE_SCOPE = "session:role:"


def sign_key_pair_jwt(home: DataDirectory) -> str:
    """Sign a short-lived key-pair JWT as the service's own user, for ``snowpipe-local sql``."""
    stored = home.read_account()
    subject = f"{stored['account']}.{stored['user']}"
    now = int(time.time())
    issuer = f"{subject}.{fingerprint(stored['public_key'])}"
    claims = {"iss": issuer, "sub": subject, "iat": now, "exp": now + 600}
    # The service made this key itself; proving its factors prime again takes ten times the signature.
    try:
        key = load_pem_private_key(home.key_file.read_bytes(), None, unsafe_skip_rsa_key_validation=True)
    except (OSError, ValueError, TypeError) as error:
        raise DataDirectoryError(
            f"{home.key_file} does not hold the private key of {subject}; bring it back, or delete "
            f"{home.account_file} and start the service, which makes another"
        ) from error
    return jwt.encode(claims, cast("RSAPrivateKey", key), algorithm="RS256")


def invalid(reason: str) -> Refusal:
    """Return the refusal of a JWT."""
    return Refusal(401, "JWT_TOKEN_INVALID", f"JWT token is invalid: {reason}.")


def _claims(token: str) -> dict[str, Any] | None:
    """Return a token's claims, unverified; None for a text that is not a JWT."""
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return None
    return claims


def _check_issuer(claims: dict[str, Any], subject: str, pem: str) -> None:
    prefix, _, digest = str(claims.get("iss", "")).partition(".SHA256:")
    if prefix.upper() != subject or f"SHA256:{digest}" != fingerprint(pem):
        raise invalid(f"its issuer is not {subject}.<fingerprint of the registered key>")


def _check_times(claims: dict[str, Any]) -> None:
    issued, expires = _seconds(claims.get("iat")), _seconds(claims.get("exp"))
    now = time.time()
    if issued is None or expires is None:
        raise invalid("it lacks iat or exp, or they are not times")
    if issued > now + _CLOCK_SKEW_SECONDS:
        raise invalid("it was issued in the future; check the client's clock")
    if expires < now - _CLOCK_SKEW_SECONDS or issued < now - _MAX_SECONDS - _CLOCK_SKEW_SECONDS:
        raise invalid("it has expired; sign a new one")


def _seconds(value: object) -> float | None:
    # Neither NaN nor an integer too large for a float is below anything.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _NO_TIME:
        return None
    return value / 1000 if value > 1e11 else float(value)


# -- Programmatic access token and OAuth client of the local service, in files that only the owner reads --

ACCESS_TOKEN_SECONDS = 3600
ISSUER = "snowpipe-local-oauth"
_CLIENT_FIELDS = ("client_id", "client_secret", "refresh_token")


class TokenError(Exception):
    """A token or client secret is not one of this service; the text gives the reason, never what was sent."""


@dataclass(frozen=True, slots=True)
class IssuedSecrets:
    """Secrets that the service handed out on its first start.

    :param refresh_token: token for the refresh flow; it does not expire.
    """

    password: str = field(repr=False)
    pat: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)


def issue_access_token(secret: bytes, user: str, scope: str = "") -> str:
    """Return an OAuth access token that is good for :data:`ACCESS_TOKEN_SECONDS`.

    :param scope: scopes of the request; ``session:role:NAME`` chooses the role.
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
    made = {home.password_file: secrets.token_urlsafe(24), home.pat_file: new_access_token()}
    for file, text in made.items():
        if not file.exists():
            write_file(file, f"{text}\n".encode(), mode=0o600)
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
    return IssuedSecrets(*(file.read_text().strip() for file in made), *values)


def same(*pairs: tuple[str, str]) -> bool:
    """Compare each given text with the expected one; the time taken reveals nothing about any."""
    return all([hmac.compare_digest(given.encode(), expected.encode()) for given, expected in pairs])


KEY_PAIR, PAT, OAUTH = "KEYPAIR_JWT", "PROGRAMMATIC_ACCESS_TOKEN", "OAUTH"
ACCOUNT = "LOCAL"
USER = "DEMO"
INGEST_HOST = "127.0.0.1"
SCOPED_TOKEN_SECONDS = 3600
_ISSUER = "snowpipe-local"
_SCOPES = frozenset({INGEST_HOST, "localhost"})


@dataclass(frozen=True, slots=True)
class Account:
    """The one account of a local service, with the public key of its first user.

    :param name: account name, always ``LOCAL``.
    :param user: name of the user that the service makes by itself, always ``DEMO``.
    :param instance: random id of the data directory, so that a client recognises the right service.
    :param secret: key that signs scoped tokens and OAuth access tokens.
    :param issued: password, programmatic access token and OAuth client of the first user.
    """

    name: str
    user: str
    public_key_pem: str
    instance: str
    secret: bytes = field(repr=False)
    issued: IssuedSecrets
    access: Access = field(repr=False, compare=False)

    @property
    def fingerprint(self) -> str:
        """``SHA256:<base64>`` of the public key of :attr:`user`, as Snowflake's DESCRIBE USER shows it."""
        return fingerprint(self.public_key_pem)

    def verify_key_pair(self, token: str) -> str:
        """Verify a key-pair JWT of any user and return the user.

        SDK 1.9.1 writes ``iat`` and ``exp`` in milliseconds (observed); both units are accepted.

        :param token: RS256 JWT with ``iss = ACCOUNT.USER.SHA256:<fingerprint>`` and ``sub = ACCOUNT.USER``.
        :raises Refusal: 401 ``JWT_TOKEN_INVALID`` that names what is wrong with the token.
        """
        unverified = _claims(token)
        if unverified is None:
            raise invalid("it is not a JWT")
        subject = str(unverified.get("sub", "")).upper()
        prefix, _, named = subject.partition(".")
        user = next((u for u in self.access.state.users.values() if u.name.upper() == named), None)
        if user is None or user.disabled or prefix != self.name:
            raise invalid(f"its subject is not {self.name}.<a user of this service>")
        for pem in self._keys(user):
            try:
                claims: dict[str, Any] = jwt.decode(token, pem, algorithms=["RS256"], options=_UNCHECKED)
            except jwt.InvalidTokenError:
                continue
            _check_issuer(claims, subject, pem)
            _check_times(claims)
            return user.name
        raise invalid(f"it is not signed by the registered RSA key of {subject}")

    def verify_password(self, name: str, password: str) -> str | None:
        """Return the user with this login name and password, or None; the time taken reveals nothing."""
        users = self.access.state.users.values()
        found = next((u for u in users if (u.login_name or u.name).upper() == name.upper()), None)
        same = check_password(password, found.password if found else None)
        return found.name if found and same and not found.disabled else None

    def _keys(self, user: User) -> list[str]:
        own = [self.public_key_pem] if user.name == self.user else []
        return [*own, *filter(None, user.public_keys)]

    def _pat_owner(self, token: str) -> tuple[str, str | None]:
        """Return the user of a programmatic access token and the role that it is restricted to."""
        digest, now = digest_token(token), self.access.now_ms()
        for user in self.access.state.users.values():
            for known in user.access_tokens:
                if known.digest == digest and not user.disabled:
                    if known.expires_on_ms is not None and known.expires_on_ms <= now:
                        raise TokenError("it has expired; add another with ALTER USER .. ADD PAT")
                    return user.name, known.role
        if not same((token, self.issued.pat)):
            raise TokenError("it is not the programmatic access token in demo_pat")
        if self.access.state.users[self.user].disabled:
            raise TokenError("its user was disabled")
        return self.user, None

    def role_in(self, token: str) -> str | None:
        """Return the role that a verified credential is restricted to or asks for, or None.

        A JWT asks by ``scp = session:role:NAME``.
        """
        if self._kind(token) == PAT:
            return self._pat_owner(token)[1]
        scope = (_claims(token) or {}).get("scp")
        words = map(str, scope if isinstance(scope, list) else str(scope or "").split())
        return next((w[len(_ROLE_SCOPE) :].upper() for w in words if w.lower().startswith(_ROLE_SCOPE)), None)

    def roles(self, user: str, token: str) -> frozenset[str]:
        """Return the roles that a call with a verified credential acts with.

        :raises Refusal: 403 when the credential names a role that the user may not use.
        """
        role = self.role_in(token)
        if role is not None and not self.access.may_use(user, role):
            why = f"role {role} does not exist or is not granted to user {user}; grant it, or name another"
            raise Refusal(403, "ROLE_NOT_GRANTED", why)
        return self.access.active_roles(user, role)

    def verify_original(self, token: str, declared: str | None = None) -> tuple[str, str]:
        """Verify a credential of any kind that may be exchanged for a scoped token.

        :param token: key-pair JWT, programmatic access token or OAuth access token.
        :param declared: ``X-Snowflake-Authorization-Token-Type``, or None; the kind must agree with it.
        :returns: the user, and the kind as that header names it.
        :raises Refusal: 401 that names what is wrong with the token.
        """
        kind = self._kind(token)
        if declared and declared.strip().upper() != kind:
            why = f"X-Snowflake-Authorization-Token-Type is {declared[:40]}, but the token is of type {kind}"
            raise Refusal(401, "TOKEN_TYPE_MISMATCH", why)
        if kind == KEY_PAIR:
            return self.verify_key_pair(token), kind
        try:
            if kind == PAT:
                return self._pat_owner(token)[0], kind
            user = verify_access_token(self.secret, token)
            if user not in self.access.state.users or self.access.state.users[user].disabled:
                raise TokenError("its user was dropped or disabled")
            return user, kind
        except TokenError as error:
            code = "PAT_INVALID" if kind == PAT else "OAUTH_ACCESS_TOKEN_INVALID"
            raise Refusal(401, code, f"the {kind} token is invalid: {error}") from error

    def _kind(self, token: str) -> str:
        if is_access_token(token):
            return PAT
        try:
            algorithm = jwt.get_unverified_header(token).get("alg")
        except jwt.InvalidTokenError as error:
            raise invalid("it is not a JWT") from error
        return KEY_PAIR if algorithm == "RS256" else OAUTH

    def issue_scoped_token(
        self, scope: str, user: str | None = None, role: str | None = None, credential: str | None = None
    ) -> str:
        """Exchange a verified credential for a token that opens the ingest host only.

        :param scope: the ingest host, as the hostname call returned it.
        :param user: user of the credential; None for the service's own.
        :param role: role that the credential asked for, or None.
        :param credential: the verified credential, with which the token ends; None for one that only its
            user ends.
        :raises Refusal: 400 when the scope is another host.
        """
        if scope not in _SCOPES:
            why = f"scope '{scope}' is not the ingest host; ask /v2/streaming/hostname first"
            raise Refusal(400, "INVALID_SCOPE", why)
        now, name = int(time.time()), user or self.user
        known = self.access.state.users.get(name)
        claims = {
            "iss": _ISSUER,
            "sub": name,
            # Another user of the same name does not inherit the token.
            "since": known.created_on_ms if known else None,
            "scope": scope,
            "iat": now,
            "exp": now + SCOPED_TOKEN_SECONDS,
        }
        if credential is not None:
            claims["by"] = self.mark(credential)
        if role is not None:
            claims["scp"] = f"session:role:{role}"
        return jwt.encode(claims, self.secret, algorithm="HS256")

    def verify_scoped_token(self, token: str) -> str:
        """Verify a scoped token and return the user.

        :raises Refusal: 401 for a token that this service did not sign, or that has expired.
        """
        try:
            claims = jwt.decode(token, self.secret, algorithms=["HS256"], issuer=_ISSUER)
        except jwt.ExpiredSignatureError as error:
            why = "the scoped token has expired; exchange a new one at /oauth/token"
            raise Refusal(401, "SCOPED_TOKEN_EXPIRED", why) from error
        except jwt.InvalidTokenError as error:
            why = "the bearer token is not a scoped token of this service; exchange one at /oauth/token"
            raise Refusal(401, "SCOPED_TOKEN_INVALID", why) from error
        if claims.get("scope") not in _SCOPES:
            raise Refusal(401, "SCOPED_TOKEN_INVALID", "the scoped token belongs to another host")
        user = self.access.state.users.get(str(claims["sub"]))
        if user is None or user.disabled or claims.get("since") != user.created_on_ms:
            raise Refusal(401, "SCOPED_TOKEN_INVALID", "the user of the scoped token was dropped or disabled")
        if claims.get("by") is not None and claims["by"] not in self._marks(user):
            why = "the credential that the scoped token came from was removed"
            raise Refusal(401, "SCOPED_TOKEN_INVALID", why)
        return user.name

    def still_knows(self, user: str, since_ms: int, mark: str | None) -> bool:
        """Return True while a user is there and enabled, and has the credential that was used.

        :param since_ms: when the user was created: another one of the same name is not it.
        :param mark: as :meth:`mark` gives it; None for a credential that cannot be removed.
        """
        known = self.access.state.users.get(user)
        if known is None or known.disabled or known.created_on_ms != since_ms:
            return False
        return mark is None or mark in self._marks(known)

    def mark(self, credential: str) -> str | None:
        """Return what identifies a key or an access token; None for OAuth, which cannot be removed."""
        kind = self._kind(credential)
        if kind == PAT:
            return digest_token(credential)
        issuer = str((_claims(credential) or {}).get("iss")) if kind == KEY_PAIR else ""
        return "SHA256:" + issuer.partition(".SHA256:")[2] if issuer else None

    def _marks(self, user: User) -> set[str]:
        """Return the marks of all credentials that a user has now."""
        now = self.access.now_ms()
        tokens = {known.digest for known in user.access_tokens if (known.expires_on_ms or now + 1) > now}
        own = {digest_token(self.issued.pat)} if user.name == self.user else set()
        return tokens | own | {fingerprint(pem) for pem in self._keys(user)}

    def verify_any(self, token: str) -> str:
        """Verify a scoped or an original token, for the control calls that accept both."""
        kind = self._kind(token)
        if kind != OAUTH or (_claims(token) or {}).get("iss") == ISSUER:
            return self.verify_original(token)[0]
        return self.verify_scoped_token(token)

    def upload_key_id(self, prefix: str) -> str:
        """Return the access key id that may upload below one path prefix."""
        return "SNOWPIPE" + hmac.new(self.secret, prefix.encode(), "sha256").hexdigest()[:24].upper()

    def upload_secret(self, prefix: str) -> str:
        """Return the secret of :meth:`upload_key_id`, which signs the uploads below that prefix."""
        return hmac.new(self.secret, f"secret of {prefix}".encode(), "sha256").hexdigest()[:40]


def ensure_account(home: DataDirectory, access: Access | None = None) -> Account:
    """Load the account, creating it with a fresh RSA key on first start.

    :param home: data directory; private files get mode 0600.
    :param access: users and their keys; None reads them from the data directory.
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
        # Written last: its presence shows that the key files are complete.
        write_file(home.account_file, json.dumps(described, indent=1).encode(), mode=0o600)
    stored = home.read_account()
    issued = ensure_secrets(home)
    access = access or Access(home.access_file)
    with access.change() as state:
        own = state.users[stored["user"]]
        if not any(own.public_keys):
            own = dataclasses.replace(own, public_keys=(stored["public_key"], ""))
        if own.password is None:
            own = dataclasses.replace(own, password=digest_password(issued.password))
        state.users[own.name] = own
    return Account(
        name=stored["account"],
        user=stored["user"],
        public_key_pem=stored["public_key"],
        instance=stored["instance"],
        secret=home.token_secret_file.read_bytes(),
        issued=issued,
        access=access,
    )
