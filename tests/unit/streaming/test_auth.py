"""Credentials: read, signed, renewed, and never shown."""

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
from airflow_provider_snowpipe.streaming.auth import KeyPair, ScopedToken, ScopedTokenSource
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError
from tests.refusals import refused

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key=KEY, passphrase=None):
    encryption = ser.BestAvailableEncryption(passphrase) if passphrase else ser.NoEncryption()
    return key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, encryption)


ENCRYPTED = pem(passphrase=b"geheim")


def test_the_jwt_is_what_snowflake_documents_and_is_used_until_it_is_about_to_expire(monkeypatch):
    pair = KeyPair("org-acct.eu-west-1", "loader", pem(), role="INGEST")
    public = KEY.public_key().public_bytes(ser.Encoding.DER, ser.PublicFormat.SubjectPublicKeyInfo)
    fingerprint = "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode()
    first = pair.bearer()
    claims = jwt.decode(first, KEY.public_key(), algorithms=["RS256"])
    assert (claims["sub"], claims["iss"]) == ("ORG-ACCT.LOADER", f"ORG-ACCT.LOADER.{fingerprint}")
    assert claims["scp"] == "session:role:INGEST"
    assert claims["exp"] - claims["iat"] <= 3600
    assert abs(claims["iat"] - time.time()) < 60
    assert (pair.fingerprint, pair.token_type) == (fingerprint, "KEYPAIR_JWT")
    assert pair.bearer() == first
    later = time.time() + 3000
    monkeypatch.setattr(auth.time, "time", lambda: later)
    assert pair.bearer() != first


def test_encrypted_and_bare_keys_are_read_once_in_a_process_and_only_by_their_own_passphrase():
    bare = b"".join(pem().splitlines()[1:-1]).decode()
    pairs = [KeyPair("A", "U", *key) for key in [(pem(),), (bare,), *[(ENCRYPTED, "geheim")] * 2]]
    assert len({one.fingerprint for one in pairs}) == 1
    assert pairs[2].signing_key is pairs[3].signing_key
    wrong = (None, "", "falsch", ":geheim")
    refused(AuthenticationError, lambda one: KeyPair("A", "U", ENCRYPTED, one), wrong, "'U'")


def test_an_unusable_key_is_explained_without_showing_any_of_it():
    for key, passphrase, word in [
        (ENCRYPTED, None, "no passphrase"),
        (ENCRYPTED, "falsch", "cannot be read"),
        (pem(), "geheim", "not encrypted"),
        (b"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----", None, "cannot be read"),
        ("nonsense", None, "cannot be read"),
        (pem(ec.generate_private_key(ec.SECP256R1())), None, "not an RSA key"),
    ]:
        with pytest.raises(AuthenticationError) as caught:
            KeyPair("A", "U", key, passphrase)
        assert "'U'" in str(caught.value)
        assert word in str(caught.value)
        for secret in ("geheim", "falsch", "QUJD", "nonsense"):
            assert secret not in str(caught.value)
        assert caught.value.__cause__ is None


def test_no_secret_is_in_any_repr_and_no_private_key_in_a_pickle():
    secret = "geheim"
    pair = KeyPair("A", "U", ENCRYPTED, secret)
    body = pem().splitlines()[1].decode()
    tokens = (auth.ProgrammaticAccessToken(secret), auth.OAuthToken(secret), ScopedToken(secret, "host", 0.0))
    for thing in (pair, *tokens):
        assert not [word for word in (secret, body, "PRIVATE") if word in repr(thing)]
    with pytest.raises(TypeError, match="ScopedToken"):
        pickle.dumps(pair)
    for kind in (auth.ProgrammaticAccessToken, auth.OAuthToken):
        refused(ConfigurationError, kind, ["", " x", "x\n"])


def test_a_scoped_token_is_renewed_ahead_of_its_end_and_a_refused_one_once_for_all(monkeypatch):
    clock = time.time()
    monkeypatch.setattr(auth.time, "time", lambda: clock)
    serial = count()
    source = ScopedTokenSource(lambda: ScopedToken(f"t{next(serial)}", "h", clock + 3600), refresh_ahead=300)
    assert source.get().token == "t0"
    clock += 3200
    assert source.get().token == "t0"
    clock += 200
    assert source.get().token == "t1"
    refused_one = source.headers()
    for _ in range(2):
        source.renew(refused_one)
    assert source.get().token == "t2"


def test_a_token_that_is_issued_expired_is_an_error():
    source = ScopedTokenSource(lambda: ScopedToken("t", "h", time.time() - 1))
    with pytest.raises(AuthenticationError, match="clock"):
        source.get()
