"""Credentials: read, signed, renewed, and never shown."""

from __future__ import annotations

import base64
import hashlib
import pickle
import time
from itertools import count

import jwt
import pytest
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from airflow_provider_snowpipe.streaming import auth
from airflow_provider_snowpipe.streaming.auth import (
    KeyPair,
    OAuthToken,
    ProgrammaticAccessToken,
    ScopedToken,
    ScopedTokenSource,
)
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = KEY, passphrase: bytes | None = None) -> bytes:
    encryption = ser.BestAvailableEncryption(passphrase) if passphrase else ser.NoEncryption()
    return key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, encryption)


def test_the_jwt_is_what_snowflake_documents_for_a_key_pair() -> None:
    pair = KeyPair("org-acct.eu-west-1", "loader", pem(), role="INGEST")
    public = KEY.public_key().public_bytes(ser.Encoding.DER, ser.PublicFormat.SubjectPublicKeyInfo)
    fingerprint = "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode()
    claims = jwt.decode(pair.bearer(), KEY.public_key(), algorithms=["RS256"])
    assert claims["sub"] == "ORG-ACCT.LOADER"
    assert claims["iss"] == f"ORG-ACCT.LOADER.{fingerprint}"
    assert claims["scp"] == "session:role:INGEST"
    assert claims["exp"] - claims["iat"] <= 3600
    assert abs(claims["iat"] - time.time()) < 60
    assert pair.fingerprint == fingerprint
    assert pair.token_type == "KEYPAIR_JWT"


def test_a_jwt_is_used_again_until_it_is_about_to_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = KeyPair("A", "U", pem())
    first = pair.bearer()
    assert pair.bearer() == first
    later = time.time() + 3000
    monkeypatch.setattr("airflow_provider_snowpipe.streaming.auth.time.time", lambda: later)
    assert pair.bearer() != first


def test_encrypted_and_bare_keys_are_read() -> None:
    plain = KeyPair("A", "U", pem())
    bare = b"".join(pem().splitlines()[1:-1]).decode()
    assert KeyPair("A", "U", pem(passphrase=b"geheim"), "geheim").fingerprint == plain.fingerprint
    assert KeyPair("A", "U", bare).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("key", "passphrase", "message"),
    [
        (pem(passphrase=b"geheim"), None, "no passphrase"),
        (pem(passphrase=b"geheim"), "falsch", "cannot be read"),
        (pem(), "geheim", "not encrypted"),
        (b"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----", None, "cannot be read"),
        ("nonsense", None, "cannot be read"),
        (pem(ec.generate_private_key(ec.SECP256R1())), None, "not an RSA key"),
    ],
)
def test_an_unusable_key_is_explained_without_showing_any_of_it(
    key: str | bytes, passphrase: str | None, message: str
) -> None:
    with pytest.raises(AuthenticationError, match=message) as caught:
        KeyPair("A", "U", key, passphrase)
    assert "'U'" in str(caught.value)
    for secret in ("geheim", "falsch", "QUJD", "nonsense"):
        assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_is_read_once_in_a_process_and_only_by_its_own_passphrase() -> None:
    content, passphrase = pem(passphrase=b"geheim"), "geheim"
    keys = {id(KeyPair("A", user, content, passphrase).signing_key) for user in ("U", "V")}
    assert len(keys) == 1
    for wrong in (None, "", "falsch", ":geheim"):
        with pytest.raises(AuthenticationError, match="'U'"):
            KeyPair("A", "U", content, wrong)


def test_keys_that_were_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = auth._Keys()
    monkeypatch.setattr(auth, "_KEPT_KEYS", 2)
    other = pem(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    first, second = keys.get_or_read(pem(), None, "U"), keys.get_or_read(other, None, "U")
    assert keys.get_or_read(pem(), None, "U") is first
    keys.get_or_read(b"\n" + pem(), None, "U")
    assert keys.get_or_read(pem(), None, "U") is first
    assert keys.get_or_read(other, None, "U") is not second
    assert len(keys._found) == 2


def test_no_secret_is_in_any_repr() -> None:
    secret = "s3cr3t-value"
    things = [
        KeyPair("A", "U", pem(passphrase=secret.encode()), secret),
        ProgrammaticAccessToken(secret),
        OAuthToken(secret),
        ScopedToken(secret, "host", 0.0),
    ]
    body = pem().splitlines()[1].decode()
    for thing in things:
        assert secret not in repr(thing)
        assert body not in repr(thing)
        assert "PRIVATE" not in repr(thing)


def test_a_private_key_never_leaves_its_process_by_pickle() -> None:
    with pytest.raises(TypeError, match="ScopedToken"):
        pickle.dumps(KeyPair("A", "U", pem()))


@pytest.mark.parametrize("token", ["", " x", "x\n"])
def test_an_empty_or_padded_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError):
        ProgrammaticAccessToken(token)
    with pytest.raises(ConfigurationError):
        OAuthToken(token)


def test_a_scoped_token_is_renewed_ahead_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time()
    monkeypatch.setattr("airflow_provider_snowpipe.streaming.auth.time.time", lambda: clock)
    monkeypatch.setattr("airflow_provider_snowpipe.streaming.auth.time.time", lambda: clock)
    serial = count()
    source = ScopedTokenSource(lambda: ScopedToken(f"t{next(serial)}", "h", clock + 3600), refresh_ahead=300)
    assert source.get().token == "t0"
    clock += 3200
    assert source.get().token == "t0"
    clock += 200
    assert source.get().token == "t1"


def test_a_refused_token_is_renewed_once_for_all_who_hold_it() -> None:
    serial = count()
    source = ScopedTokenSource(lambda: ScopedToken(f"t{next(serial)}", "h", time.time() + 3600))
    refused = source.headers()
    source.renew(refused)
    source.renew(refused)
    assert source.get().token == "t1"


def test_a_token_that_is_issued_expired_is_an_error() -> None:
    source = ScopedTokenSource(lambda: ScopedToken("t", "h", time.time() - 1))
    with pytest.raises(AuthenticationError, match="clock"):
        source.get()
