"""Credentials of users: digests of passwords and tokens, public keys and their fingerprints."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

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
    _, salt, wanted = (digest or f"scrypt${'00' * 16}${'00' * 32}").split("$")
    same = hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)), bytes.fromhex(wanted))
    return same and digest is not None


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
    :raises InvalidPublicKeyError: when it is no RSA public key of at least 2048 bits.
    """
    body = "".join(_HEADER.sub("", text).split())
    pem = f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"
    try:
        key = serialization.load_pem_public_key(pem.encode("ascii"))
    except (ValueError, UnicodeEncodeError) as error:
        raise InvalidPublicKeyError("it is no public key in PEM form") from error
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < _SMALLEST_KEY_BITS:
        raise InvalidPublicKeyError(f"it is no RSA key of at least {_SMALLEST_KEY_BITS} bits")
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
