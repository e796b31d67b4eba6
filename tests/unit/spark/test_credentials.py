import json
import os
import stat
import sys
import traceback

import pytest

from airflow_provider_snowpipe.spark.driver import credentials as module
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import KeyPair, OAuthToken, ProgrammaticAccessToken, ScopedToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.airflow_connections import PASSPHRASE
from tests.refusals import refused


@pytest.fixture
def key_pair(pem, encrypted_pem):
    def make(passphrase):
        key = encrypted_pem if passphrase else pem
        return KeyPair("ACME", "LOADER", key, passphrase, role="INGEST")

    return make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "c.json"


@pytest.mark.parametrize("passphrase", [None, PASSPHRASE])
def test_key_pair_and_secrets_of_the_source_come_back_and_their_file_is_gone(path, key_pair, passphrase):
    given, secrets = key_pair(passphrase), SourceSecrets({"sasl.password": "hunter2"})
    module.write_credentials(given, path, secrets)
    mode = stat.S_IMODE(path.stat().st_mode)
    read, others = module.read_driver_secrets(path)
    assert (mode, path.exists()) == (0o600, False)
    assert isinstance(read, KeyPair)
    assert (read.subject, read.role, read.fingerprint) == (given.subject, "INGEST", given.fingerprint)
    assert others == secrets
    assert repr(secrets) == "SourceSecrets(sasl.password)"


def test_a_variable_that_passes_through_a_shell_holds_plain_letters_only(monkeypatch, key_pair):
    given, others = key_pair(PASSPHRASE), SourceSecrets({"sasl.password": "a b\n'$`"})
    text = module.credentials_text(given, others)
    assert text.replace("+", "").replace("/", "").replace("=", "").isalnum()
    monkeypatch.setenv("SNOWPIPE_SECRET", text)
    read, secrets = module.read_credentials_variable("SNOWPIPE_SECRET")
    assert isinstance(read, KeyPair)
    assert (read.subject, read.passphrase, secrets) == (given.subject, given.passphrase, others)
    assert "SNOWPIPE_SECRET" not in os.environ, "it is taken out of the environment"


@pytest.mark.parametrize(
    ("value", "text"), [("", "not set"), ("s3cret", "no JSON"), ("!e30=", "no JSON"), ("{}", "kind")]
)
def test_variable_that_holds_no_credentials_is_refused_without_its_value(monkeypatch, value, text):
    monkeypatch.setenv("SNOWPIPE_SECRET", json.dumps({"kind": "oauth", "token": "t"}))
    assert module.read_credentials_variable("SNOWPIPE_SECRET") == (OAuthToken("t"), SourceSecrets())
    monkeypatch.setenv("SNOWPIPE_SECRET", value)
    with pytest.raises(ConfigurationError, match=text) as refusal:
        module.read_credentials_variable("SNOWPIPE_SECRET")
    assert "environment variable 'SNOWPIPE_SECRET'" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_file_that_others_can_open_is_refused_and_left(path):
    before = os.umask(0)
    try:
        module.write_credentials(OAuthToken("very-secret"), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        for read in (module.read_driver_secrets, lambda file: module.driver_credentials(f"file:{file}")):
            (error,) = refused(ConfigurationError, read, [path], "mode")
            assert "very-secret" not in str(error)
    assert path.exists()


def test_existing_file_is_never_written_over_a_link_not_followed_and_a_scoped_token_not_given(path, tmp_path):
    path.write_text("mine")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConfigurationError, match="exists already"):
        module.write_credentials(OAuthToken("t"), path)
    assert path.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="opened"):
        module.read_driver_secrets(tmp_path / "link")
    with pytest.raises(ConfigurationError, match="ScopedToken"):
        module.write_credentials(ScopedToken("t", "h", 0.0), path)


def test_other_content_is_refused_without_showing_it(path):
    path.touch(0o600)
    for text in (
        "{",
        "[]",
        '{"kind": "password", "token": "hidden"}',
        '{"kind": "pat", "token": 7}',
        '{"kind": "pat", "token": "hidden", "extra": "hidden"}',
        '{"kind": "key_pair", "account": "A", "user": "U"}',
        '{"kind": "oauth", "token": "hidden", "source": {"a": 1}}',
    ):
        path.touch(0o600)
        path.write_text(text)
        (error,) = refused(ConfigurationError, module.read_driver_secrets, [path])
        assert "hidden" not in str(error)


BROKEN = {
    "raise LookupError('hidden')": "'ask' of module 'vault_.*LookupError",
    "return {'token': 'hidden'}": "returned dict: let it return the object",
    "return 'hidden'": "what function 'ask'.*holds no JSON",
}


class TestFunctionThatIsAsked:
    ADDRESS = "python:vault_of_tests:ask"

    @pytest.fixture
    def vault(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "vault_of_tests", raising=False)
        yield tmp_path / "vault_of_tests.py"
        sys.modules.pop("vault_of_tests", None)

    def test_gives_the_credentials(self, vault):
        vault.write_text("""def ask():\n    return '{"kind": "pat", "token": "t"}'\n""")
        assert module.driver_credentials(self.ADDRESS) == (ProgrammaticAccessToken("t"), SourceSecrets())

    @pytest.mark.parametrize(("code", "message"), BROKEN.items())
    def test_whatever_else_it_does_is_an_error_without_secrets(self, vault, code, message):
        vault.write_text(f"def ask():\n    {code}\n")
        with pytest.raises(ConfigurationError, match=message) as refusal:
            module.driver_credentials(self.ADDRESS)
        assert "hidden" not in "".join(traceback.format_exception(refusal.value))
