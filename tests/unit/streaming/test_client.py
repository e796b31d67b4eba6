"""The client against scripted answers, and credentials: read, signed, renewed, and never shown."""

import base64
import hashlib
import json
import pickle
import time
from itertools import count

import jwt
import pytest
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from airflow_provider_snowpipe.streaming import auth, errors
from airflow_provider_snowpipe.streaming.auth import KeyPair, ScopedToken, ScopedTokenSource, base_url
from airflow_provider_snowpipe.streaming.http import Answer
from tests.fake_snowpipe import MISSING, PAT, PIPE_MISSING, ROW_SEQ_GAP, STALE, UNCOMMITTED, error
from tests.refusals import refused

REOPEN = "ERR_CHANNEL_MUST_BE_REOPENED"


def append(client, continuation="1_0", body=b'{"a":1}\n', name="c"):
    tokens = {"continuation_token": continuation, "start_token": "f.log:1", "end_token": "f.log:2"}
    return client.append_rows(name, body, **tokens, content_encoding=None, raw_length=len(body))


def answers(snowpipe, operation, body):
    snowpipe.fault(before=operation, error=Answer(200, body.encode()), times=100)


@pytest.mark.parametrize(
    ("body", "host"),
    [
        ("127.0.0.1\n", "127.0.0.1"),
        (' "127.0.0.1" ', "127.0.0.1"),
        ('{"hostname": "127.0.0.1"}', "127.0.0.1"),
        ("my_org.example.com", "my-org.example.com"),
    ],
)
def test_both_forms_of_the_hostname_reply_are_read_once(snowpipe, client, body, host):
    answers(snowpipe, "hostname", body)
    assert [client.ingest_host() for _ in range(2)] == [host] * 2
    assert snowpipe.did() == ["hostname"]


def test_a_reply_that_is_no_host_is_an_error(snowpipe):
    for body in ("", "a b", "host/path", "evil.com:1@x", "<html>"):
        answers(snowpipe, "hostname", body)
        with pytest.raises(errors.ApiError, match="host"):
            snowpipe.client().ingest_host()
        snowpipe.heal()


@pytest.mark.parametrize("form", ["raw", "quoted", "token", "access_token", "message"])
def test_every_form_of_the_token_reply_is_read(snowpipe, client, form):
    token = snowpipe.scoped_token(3600).token
    body = {"raw": token, "quoted": json.dumps(token)}.get(form) or json.dumps({form: token})
    answers(snowpipe, "token", body)
    if form == "message":
        with pytest.raises(errors.AuthenticationError):
            client.scoped_token()
        return
    assert client.scoped_token().token == token
    assert client.scoped_token().remaining_seconds() > 3500


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_scoped_token_is_renewed_and_the_call_repeated(snowpipe, client, status):
    token = client.open_channel("c").continuation_token
    snowpipe.fault(before="append", error=error(status))
    assert append(client, token) == "1_1"
    first, second = snowpipe.appends()
    assert first.bearer != second.bearer
    assert len(snowpipe.did("token")) == 2
    snowpipe.clock.sleep(snowpipe.token_life - 200)
    assert client.scoped_token().token != second.bearer, "renewed before it expires"


def test_credentials_that_stay_refused_are_an_error_without_the_secret(snowpipe, client):
    snowpipe.fault(before="append", error=error(403, "390403", "no"), times=100)
    with pytest.raises(errors.AuthenticationError) as caught:
        append(client)
    assert PAT not in str(caught.value)
    assert len(snowpipe.appends()) == 3
    assert PAT not in repr(client)
    assert "DB.S.T-STREAMING" in repr(client)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(409, STALE), errors.ChannelFencedError),
        (error(409, ROW_SEQ_GAP), errors.ChannelInvalidError),
        (error(404, MISSING), errors.ChannelInvalidError),
        (error(404, PIPE_MISSING), errors.PipeNotFoundError),
        (error(404, "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"), errors.PipeNotFoundError),
        (error(410), errors.PipeFailedOverError),
        (error(400, "SOMETHING"), errors.ChannelError),
    ],
    ids=lambda one: f"{one.status}-{one.code}" if isinstance(one, Answer) else one.__name__,
)
def test_a_final_refusal_is_not_repeated_and_has_its_own_error(snowpipe, client, answer, kind):
    snowpipe.fault(before="append", error=answer, times=100)
    with pytest.raises(kind) as caught:
        append(client)
    assert type(caught.value) is kind
    assert len(snowpipe.appends()) == 1


@pytest.mark.parametrize("name", ["eu/orders", "a?b=c#d", "100%20", "é ü"])
def test_a_channel_is_reached_by_its_very_name_whatever_characters_it_has(snowpipe, client, name):
    append(client, client.open_channel(name).continuation_token, name=name)
    client.drop_channel(name)
    did = snowpipe.did("open", "append", "drop")
    assert did == [f"open {name}", f"append {name} f.log:1..f.log:2", f"drop {name}"]


def test_opening_reports_uncommitted_rows_repeats_an_open_in_progress_and_sets_a_given_token(
    snowpipe, client
):
    snowpipe.channel("c", committed="5")
    snowpipe.fault(before="open", error=error(409, UNCOMMITTED))
    with pytest.raises(errors.UncommittedRowsError):
        client.open_channel("c")
    snowpipe.fault(before="open", error=error(409, "ERR_OPEN_CHANNEL_IN_PROGRESS"))
    assert client.open_channel("c").status.committed == "5"
    assert client.open_channel("c", offset_token="8").status.committed == "8"
    assert snowpipe.calls[-1].body == {"fail_on_uncommitted_rows": True, "offset_token": "8"}
    status = {"next_continuation_token": "1_0", "channel_status": {"channel_status_code": REOPEN}}
    answers(snowpipe, "open", json.dumps(status))
    with pytest.raises(errors.ChannelInvalidError, match=REOPEN):
        client.open_channel("c")


@pytest.mark.parametrize("body", ["", "[]", "null", "{}", '{"next_continuation_token":5}'])
def test_a_malformed_answer_is_an_error_not_a_crash(snowpipe, client, body):
    for operation in ("append", "open", "status"):
        answers(snowpipe, operation, body)
    for call in (append, lambda one: one.open_channel("c"), lambda one: one.channel_statuses(["c"])):
        with pytest.raises(errors.ApiError, match="protocol"):
            call(client)


def test_statuses_are_asked_a_hundred_at_a_time(snowpipe, client):
    names = [f"c{i}" for i in range(250)]
    for name in names:
        snowpipe.channel(name, committed=name)
    del snowpipe.channels["c7"]
    statuses = client.channel_statuses(names)
    assert list(statuses) == names
    assert statuses["c249"].committed == "c249"
    assert not statuses["c7"].exists
    assert len(snowpipe.did("status")) == 3


def test_account_urls_are_normalised_and_unusable_ones_refused_without_showing_a_password():
    for url, normal in {
        "acct.snowflakecomputing.com": "https://acct.snowflakecomputing.com",
        "https://127.0.0.1:8443/": "https://127.0.0.1:8443",
        "https://127.0.0.1:443": "https://127.0.0.1",
    }.items():
        assert base_url(url) == normal
    urls = ["http://h", "https://", "https://h/path", "https://h:x", "https://u:p@h", "ftp://h"]
    for refusal in refused(errors.ConfigurationError, base_url, [*urls, "https://h?q=1"]):
        assert "u:p" not in str(refusal)


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
    refused(errors.AuthenticationError, lambda one: KeyPair("A", "U", ENCRYPTED, one), wrong, "'U'")


def test_an_unusable_key_is_explained_without_showing_any_of_it():
    for key, passphrase, word in [
        (ENCRYPTED, None, "no passphrase"),
        (ENCRYPTED, "falsch", "cannot be read"),
        (pem(), "geheim", "not encrypted"),
        (b"-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----", None, "cannot be read"),
        ("nonsense", None, "cannot be read"),
        (pem(ec.generate_private_key(ec.SECP256R1())), None, "not an RSA key"),
    ]:
        with pytest.raises(errors.AuthenticationError) as caught:
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
        refused(errors.ConfigurationError, kind, ["", " x", "x\n"])


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
    with pytest.raises(errors.AuthenticationError, match="clock"):
        source.get()
