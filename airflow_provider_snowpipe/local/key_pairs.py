"""Key-pair JWTs: verification against the public keys of a user, and signing for the service's own tools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.types import Options

from airflow_provider_snowpipe.local.access.credentials import fingerprint
from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.errors import Refusal

_CLOCK_SKEW_SECONDS = 60
_MAX_SECONDS = 3600
_UNCHECKED: Options = {"verify_exp": False, "verify_iat": False, "verify_aud": False, "verify_sub": False}
_ROLE_SCOPE = "session:role:"


def verify(token: str, account: str, keys_of: Callable[[str], tuple[str, Sequence[str]] | None]) -> str:
    """Verify a key-pair JWT and return the user.

    SDK 1.9.1 writes ``iat`` and ``exp`` in milliseconds (observed); both units are accepted.

    :param token: RS256 JWT with ``iss = ACCOUNT.USER.SHA256:<fingerprint>`` and ``sub = ACCOUNT.USER``.
    :param keys_of: returns the exact name and the public keys of a user, or None for an unknown one.
    :raises Refusal: 401 ``JWT_TOKEN_INVALID`` that says what is wrong with the token.
    """
    subject = str(_claims(token).get("sub", "")).upper()
    prefix, _, named = subject.partition(".")
    known = keys_of(named) if prefix == account else None
    if known is None:
        raise invalid(f"its subject is not {account}.<a user of this service>")
    user, keys = known
    for pem in keys:
        try:
            claims: dict[str, Any] = jwt.decode(token, pem, algorithms=["RS256"], options=_UNCHECKED)
        except jwt.InvalidTokenError:
            continue
        _check_issuer(claims, subject, pem)
        _check_times(claims)
        return user
    raise invalid(f"it is not signed by the registered RSA key of {subject}")


def role_in(token: str) -> str | None:
    """Return the role that a verified JWT asks for by ``scp = session:role:NAME``, or None."""
    try:
        scope = jwt.decode(token, options={"verify_signature": False}).get("scp")
    except jwt.InvalidTokenError:
        return None
    words = scope if isinstance(scope, list) else str(scope or "").split()
    named = (str(word) for word in words)
    return next(
        (word[len(_ROLE_SCOPE) :].upper() for word in named if word.lower().startswith(_ROLE_SCOPE)), None
    )


def sign(home: DataDirectory) -> str:
    """Sign a short-lived key-pair JWT as the service's own user, for ``snowpipe-local sql``."""
    stored = home.read_account()
    subject = f"{stored['account']}.{stored['user']}"
    now = int(time.time())
    issuer = f"{subject}.{fingerprint(stored['public_key'])}"
    claims = {"iss": issuer, "sub": subject, "iat": now, "exp": now + 600}
    # The service made this key itself; proving its factors prime again takes ten times the signature.
    key = load_pem_private_key(home.key_file.read_bytes(), None, unsafe_skip_rsa_key_validation=True)
    return jwt.encode(claims, cast("RSAPrivateKey", key), algorithm="RS256")


def invalid(reason: str) -> Refusal:
    """Return the refusal of a JWT."""
    return Refusal(401, "JWT_TOKEN_INVALID", f"JWT token is invalid: {reason}.")


def _claims(token: str) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError as error:
        raise invalid("it is not a JWT") from error
    return claims


def _check_issuer(claims: dict[str, Any], subject: str, pem: str) -> None:
    prefix, _, digest = str(claims.get("iss", "")).partition(".SHA256:")
    if prefix.upper() != subject or f"SHA256:{digest}" != fingerprint(pem):
        raise invalid(f"its issuer is not {subject}.<fingerprint of the registered key>")


def _check_times(claims: dict[str, Any]) -> None:
    issued, expires = _seconds(claims.get("iat")), _seconds(claims.get("exp"))
    now = time.time()
    if issued is None or expires is None:
        raise invalid("it lacks iat or exp, or they are no times")
    if issued > now + _CLOCK_SKEW_SECONDS:
        raise invalid("it was issued in the future; check the client's clock")
    if expires < now - _CLOCK_SKEW_SECONDS or issued < now - _MAX_SECONDS - _CLOCK_SKEW_SECONDS:
        raise invalid("it has expired; sign a new one")


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not math.isfinite(value):
        return None
    return value / 1000 if value > 1e11 else float(value)
