import os
import stat
import sys
import traceback

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from airflow_provider_snowpipe.spark.driver.credentials import (
    credentials_text,
    driver_credentials,
    read_credentials_variable,
    read_driver_secrets,
    write_credentials,
)
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import KeyPair, OAuthToken, ProgrammaticAccessToken, ScopedToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@pytest.fixture(scope="module")
def key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key, encryption):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize("passphrase", [None, "s3cret"])
def test_key_pair_comes_back_and_its_file_is_gone(tmp_path, key, passphrase):
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    given = KeyPair("ACME", "LOADER", _pem(key, encryption), passphrase, role="INGEST")
    path = tmp_path / "credentials.json"

    write_credentials(given, path)
    mode = stat.S_IMODE(path.stat().st_mode)
    read, _ = read_driver_secrets(path)

    assert mode == 0o600
    assert isinstance(read, KeyPair)
    assert (read.subject, read.role, read.fingerprint) == (given.subject, "INGEST", given.fingerprint)
    assert not path.exists()


def test_credentials_are_taken_out_of_the_environment(tmp_path, monkeypatch):
    write_credentials(OAuthToken("t"), tmp_path / "c.json")
    monkeypatch.setenv("SNOWPIPE_SECRET", (tmp_path / "c.json").read_text())

    assert read_credentials_variable("SNOWPIPE_SECRET") == (OAuthToken("t"), SourceSecrets())
    assert "SNOWPIPE_SECRET" not in os.environ


def test_a_variable_that_passes_through_a_shell_holds_no_letter_that_means_anything_there(monkeypatch, key):
    passphrase = "pass'\"$(x)"
    encryption = BestAvailableEncryption(passphrase.encode())
    given = KeyPair("ACME", "LOADER", _pem(key, encryption), passphrase)
    text = credentials_text(given, SourceSecrets({"sasl.password": "a b\n'$`"}))
    assert text.replace("+", "").replace("/", "").replace("=", "").isalnum()
    monkeypatch.setenv("SNOWPIPE_SECRET", text)

    read, secrets = read_credentials_variable("SNOWPIPE_SECRET")

    assert isinstance(read, KeyPair)
    assert (read.subject, read.passphrase) == (given.subject, given.passphrase)
    assert secrets == SourceSecrets({"sasl.password": "a b\n'$`"})
    assert "SNOWPIPE_SECRET" not in os.environ


@pytest.mark.parametrize(
    ("value", "message"), [("", "is not set"), ("s3cret", "holds no JSON"), ("{}", "kind")]
)
def test_variable_that_holds_no_credentials_is_refused_without_its_value(monkeypatch, value, message):
    monkeypatch.setenv("SNOWPIPE_SECRET", value)

    with pytest.raises(ConfigurationError, match=message) as refused:
        read_credentials_variable("SNOWPIPE_SECRET")

    assert "environment variable 'SNOWPIPE_SECRET'" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_file_that_others_can_open_is_refused_and_left(tmp_path):
    path = tmp_path / "c.json"
    before = os.umask(0)
    try:
        write_credentials(OAuthToken("very-secret"), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        for read in (read_driver_secrets, lambda file: driver_credentials(f"file:{file}")):
            with pytest.raises(ConfigurationError, match="mode") as refused:
                read(path)
            assert "very-secret" not in str(refused.value)
    assert path.exists()


def test_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "c.json").write_text("mine")

    with pytest.raises(ConfigurationError, match="exists already"):
        write_credentials(OAuthToken("t"), tmp_path / "c.json")

    assert (tmp_path / "c.json").read_text() == "mine"


def test_link_is_not_followed(tmp_path):
    write_credentials(OAuthToken("t"), tmp_path / "c.json")
    (tmp_path / "link").symlink_to(tmp_path / "c.json")

    with pytest.raises(ConfigurationError, match="cannot be opened"):
        read_driver_secrets(tmp_path / "link")


def test_other_content_is_refused_without_showing_it(tmp_path):
    for text in (
        "{",
        "[]",
        '{"kind": "password", "token": "hidden"}',
        '{"kind": "pat"}',
        '{"kind": "pat", "token": 7}',
        '{"kind": "pat", "token": "hidden", "extra": "hidden"}',
        '{"kind": "key_pair", "account": "A", "user": "U"}',
        '{"kind": "oauth", "token": "hidden", "source": {"a": 1}}',
    ):
        (tmp_path / "c.json").touch(0o600)
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(ConfigurationError) as refused:
            read_driver_secrets(tmp_path / "c.json")
        assert "hidden" not in str(refused.value)


def test_scoped_token_is_no_credential_for_a_driver(tmp_path):
    with pytest.raises(ConfigurationError, match="ScopedToken cannot be given"):
        write_credentials(ScopedToken("t", "h", 0.0), tmp_path / "c.json")


def test_secrets_of_the_source_travel_in_the_same_file(tmp_path):
    secrets = SourceSecrets({"sasl.password": "hunter2"})
    write_credentials(OAuthToken("t"), tmp_path / "c.json", secrets)

    assert read_driver_secrets(tmp_path / "c.json") == (OAuthToken("t"), secrets)
    assert not (tmp_path / "c.json").exists()
    assert repr(secrets) == "SourceSecrets(sasl.password)"


class TestCredentialsThatTheDriverGets:
    def test_a_file_stays_where_it_is(self, tmp_path):
        path = tmp_path / "c.json"
        write_credentials(OAuthToken("t"), path, SourceSecrets({"sasl.password": "p"}))

        for _ in range(2):
            credentials, secrets = driver_credentials(f"file:{path}")
            assert (credentials, secrets.values) == (OAuthToken("t"), {"sasl.password": "p"})

    def test_a_function_is_asked(self, vault):
        vault.write_text("""def ask():\n    return '{"kind": "pat", "token": "t"}'\n""")

        assert driver_credentials("python:vault_of_tests:ask") == (
            ProgrammaticAccessToken("t"),
            SourceSecrets(),
        )

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            (
                "def ask():\n    raise LookupError('hidden')\n",
                "'ask' of module 'vault_of_tests'.*LookupError",
            ),
            ("def ask():\n    return {'token': 'hidden'}\n", "returned dict: let it return the object"),
            ("def ask():\n    return 'hidden'\n", "what function 'ask'.*holds no JSON"),
            ("def other():\n    pass\n", "no function 'ask'.*submit it by py_files"),
        ],
    )
    def test_what_it_does_else_is_an_error_without_secrets(self, vault, code, message):
        vault.write_text(code)

        with pytest.raises(ConfigurationError, match=message) as refused:
            driver_credentials("python:vault_of_tests:ask")

        assert "hidden" not in "".join(traceback.format_exception(refused.value))

    @pytest.fixture
    def vault(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vault_of_tests", raising=False)
        yield tmp_path / "vault_of_tests.py"
        sys.modules.pop("vault_of_tests", None)
