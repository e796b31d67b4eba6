"""What the two types of connections mean, and their form where Airflow asks the hook for it."""

import base64
from dataclasses import replace
from pathlib import Path

import certifi
import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from airflow_provider_snowpipe.hooks.account import _snowflake_hook
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.streaming.auth import KeyPair, OAuthToken, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError
from tests.airflow_version import AIRFLOW
from tests.refusals import refused

NAMES = ("table", "pipe", "database", "schema")
FIELDS = ("host", "port", "login", "password", "schema")


def made(conn_id, kind, given):
    fields = {"login": "LOADER", **{name: given.pop(name) for name in FIELDS if name in given}}
    return SnowpipeConnection(conn_id, kind, extra=given, **fields)


def snowflake(**given):
    return made("c1", "snowflake", given)


def snowpipe(**given):
    return made("c2", "snowpipe", given)


class TestAccountUrl:
    def test_follows_the_fields(self):
        account = "https://org-acc.snowflakecomputing.com"
        region = "https://xy1.us-east-2.aws.snowflakecomputing.com"
        in_extra = [{"account": "LOCAL", "host": "127.0.0.1", "port": port} for port in (8443, "8443")]
        for connection, url in [
            (snowflake(account="org-acc"), account),
            (snowflake(account="Org-My_Acc"), "https://org-my-acc.snowflakecomputing.com"),
            (snowflake(account="xy1", region="us-east-2.aws"), region),
            (snowpipe(host="https://127.0.0.1:8443"), "https://127.0.0.1:8443"),
            (snowpipe(host="127.0.0.1", port=8443), "https://127.0.0.1:8443"),
            (snowpipe(host="https://h/"), "https://h"),
            (snowpipe(host="https://h", port=443), "https://h"),
            (snowpipe(account="org-acc", port=443), account),
            (snowpipe(account="org-acc", port=8443), f"{account}:8443"),
            (snowpipe(account="org-acc"), account),
            *(
                (SnowpipeConnection("c1", "snowflake", host="x", extra=one), "https://127.0.0.1:8443")
                for one in in_extra
            ),
        ]:
            assert connection.account_url() == url

    def test_that_cannot_be_names_connection_field_and_remedy(self):
        wrong = [
            (snowflake(), ["'c1'", "'account'", "organization"]),
            (snowflake(account="evil.example/x#"), ["'account' is 'evil.example/x#'"]),
            (snowpipe(host="http://127.0.0.1"), ["'c2'", "'host'", "HTTP"]),
        ]
        for port in (70_000, -1, "https", "0"):
            for kind in ("snowflake", "snowpipe"):
                connection = SnowpipeConnection(
                    "c1", kind, host="https://h", extra={"host": "h", "port": port}
                )
                wrong.append((connection, ["'c1'", f"'port' is '{port}': give a number from 1 to"]))
        for connection, words in wrong:
            refused(ConfigurationError, SnowpipeConnection.account_url, [connection], *words)

    def test_in_the_extra_is_the_host_that_airflows_own_hook_signs_in_at(self):
        for more, port in [
            ({"host": "https://h/"}, 443),
            ({"host": "https://h:8443"}, 8443),
            ({"host": "h", "port": 8443}, 8443),
        ]:
            extra = {"account": "a", "authenticator": "PROGRAMMATIC_ACCESS_TOKEN", **more}
            connection = SnowpipeConnection("c1", "snowflake", login="U", password="pat", extra=extra)

            given = _snowflake_hook(connection)._get_conn_params()

            assert (given["host"], given["port"]) == ("h", port)
            assert given["authenticator"] == "programmatic_access_token"
            assert connection.account_url() == ("https://h" if port == 443 else f"https://h:{port}")


class TestKeyPair:
    def test_is_read_from_a_file_from_pem_from_base64_and_from_a_pasted_line(self, tmp_path, pem):
        path = tmp_path / "key.pem"
        path.write_text(pem)
        found = snowflake(account="org-acc", private_key_file=str(path), role="R").credentials()
        assert isinstance(found, KeyPair)
        assert (found.account, found.user, found.role) == ("org-acc", "LOADER", "R")
        packed = base64.b64encode(pem.encode()).decode()
        for form in (pem, packed, pem.replace("\n", ""), pem.replace("\n", " ")):
            pasted = snowflake(account="a", private_key_content=form).credentials()
            assert isinstance(pasted, KeyPair)
            assert pasted.fingerprint == found.fingerprint

    def test_with_a_passphrase_too_many_or_missing_is_reported_with_the_remedy(self, pem, encrypted_pem):
        for key, password, text in [
            (encrypted_pem, None, "is encrypted, but no.*: give it"),
            (pem, "a-passphrase", "is not encrypted.*: drop it"),
        ]:
            connection = snowflake(account="a", private_key_content=key, password=password)
            with pytest.raises(AuthenticationError, match=f"{text}.*password of an Airflow conn") as raised:
                connection.credentials()
            assert "a-passphrase" not in str(raised.value)

    def test_that_is_missing_or_none_is_named(self, tmp_path, pem):
        for size in (0, 20_000):
            (tmp_path / f"{size}").write_bytes(b"x" * size)
        both = {"private_key_file": "/k", "private_key_content": pem}
        for connection, words in [
            (snowflake(account="a", private_key_file=str(tmp_path / "0")), ["0 bytes"]),
            (snowflake(account="a", private_key_file=str(tmp_path / "20000")), ["20000 bytes"]),
            (snowflake(account="a", private_key_file="/nowhere.pem"), ["'private_key_file'", "nowhere.pem"]),
            (snowflake(account="a", **both), ["private_key_file", "private_key_content"]),
            (snowpipe(host="https://127.0.0.1:1", private_key_content=pem), ["'c2'", "'account'"]),
            (snowflake(account="a", private_key_content=pem, login=None), ["'c1'", "'login'"]),
        ]:
            refused(ConfigurationError, SnowpipeConnection.credentials, [connection], *words)

    def test_takes_its_account_from_snowflakes_host_name(self, pem):
        for host in ("https://org-acc.snowflakecomputing.com", "ORG-ACC.SnowflakeComputing.com"):
            assert snowpipe(host=host, private_key_content=pem).credentials().account == "org-acc"


class TestTokens:
    def test_are_the_password_of_a_snowpipe_connection(self):
        pat = snowpipe(auth="programmatic_access_token", password="t1").credentials()
        assert pat == ProgrammaticAccessToken("t1")
        assert snowpipe(auth="oauth", password="t2").credentials() == OAuthToken("t2")

    def test_that_are_no_credential_for_streaming_are_named(self):
        oauth = {"account": "a", "authenticator": "oauth"}
        for connection, *words in [
            (snowflake(account="a", password="p"), "no password"),
            (snowflake(authenticator="programmatic_access_token"), "'c1'", "'password'"),
            (snowflake(**oauth, login="id", password="s"), "'grant_type' is missing"),
            (snowflake(account="a", authenticator="externalbrowser"), "'externalbrowser'"),
            (snowflake(**oauth, azure_conn_id="az"), "azure_conn_id"),
        ]:
            refused(ConfigurationError, SnowpipeConnection.credentials, [connection], *words)


class TestPipeName:
    def name(self, connection, **given):
        return str(connection.pipe_name(**{**dict.fromkeys(NAMES), **given}))

    def test_follows_the_arguments_then_the_field_of_the_schema_then_the_extra(self):
        connection = snowpipe(database="DB", schema="S", table="T")
        in_extra = SnowpipeConnection(
            "c", "snowpipe", schema="S", extra={"database": "DB", "schema": "X", "table": "T"}
        )
        for found, expected in [
            (self.name(snowflake(database="DB", schema="S"), table="T"), "DB.S.T-STREAMING"),
            (self.name(snowpipe(database="DB", schema="S", pipe="P")), "DB.S.P"),
            (self.name(connection, pipe="P", database="D2", schema="S2"), "D2.S2.P"),
            (self.name(in_extra), "DB.S.T-STREAMING"),
            (self.name(replace(in_extra, schema="")), "DB.X.T-STREAMING"),
        ]:
            assert found == expected

    def test_reports_what_is_missing(self):
        both = snowpipe(database="D", schema="S", table="T", pipe="P")
        for connection, given, text in [
            (snowflake(database="D", schema="S"), {}, "no table and no pipe"),
            (snowflake(database="D", schema="S"), {"table": "T", "pipe": "P"}, "both given"),
            (snowflake(schema="S"), {"table": "T"}, "'database' is missing"),
            (snowflake(database="D"), {"table": "T"}, "'schema' is empty"),
            (both, {}, "empty one"),
        ]:
            with pytest.raises(ConfigurationError, match=text):
                self.name(connection, **given)


class TestOldPrefixedFields:
    def test_name_the_ca_bundle_behind_a_plain_field_also_when_it_is_empty(self, tmp_path):
        bundle = str(tmp_path / "ca.pem")
        Path(bundle).write_bytes(Path(certifi.where()).read_bytes())
        for kind in (snowflake, snowpipe):
            old = {f"extra__{kind.__name__}__ca_bundle": bundle}
            assert kind(**old).ca_bundle() == kind(ca_bundle=None, **old).ca_bundle() == bundle
            assert kind(ca_bundle="", **old).ca_bundle() is None


def test_an_extra_that_is_no_object_is_refused_and_blanks_around_the_login_are_none_of_the_user():
    def make(extra):
        SnowpipeConnection("c1", "snowflake", extra=extra)

    refused(ConfigurationError, make, [["account"], "account", 5], "'c1'", "'extra'")
    assert snowflake(login=" LOADER \n").login == "LOADER"


def test_ca_bundle_that_is_missing_or_without_a_certificate_is_named(tmp_path):
    names = []
    for number, content in enumerate((b"", b"\x30\x82", b"-----BEGIN PRIVATE KEY-----\n")):
        names.append(tmp_path / f"ca.der{number}")
        names[-1].write_bytes(content)
    wrong = [snowflake(ca_bundle=str(name)) for name in (*names, tmp_path / "ca.der")]
    refused(ConfigurationError, SnowpipeConnection.ca_bundle, wrong, "'c1'", "'ca_bundle'", "ca.der")


def test_repr_shows_no_secret(pem):
    text = repr(snowflake(account="a", password="the-password", private_key_content=pem))
    assert "the-password" not in text
    assert "PRIVATE" not in text


CONNECTION_TYPE = get_provider_info()["connection-types"][0]
FORM_FIELDS = CONNECTION_TYPE["conn-fields"]


@pytest.mark.skipif(AIRFLOW >= (3, 0), reason="the form of Airflow 2")
def test_airflow_2_shows_every_field_of_the_metadata():
    from airflow.providers_manager import ProvidersManager
    from wtforms import Form, PasswordField

    manager, prefix = ProvidersManager(), "extra__snowpipe__"
    found = manager.connection_form_widgets.items()
    widgets = {name.removeprefix(prefix): one.field for name, one in found if name.startswith(prefix)}
    form, behaviour = type("Shown", (Form,), widgets)(), manager.field_behaviours["snowpipe"]

    assert set(widgets) == set(FORM_FIELDS)
    assert (form.auth.data, form.account.label.text) == ("key_pair", "Account")
    assert isinstance(form.private_key_content, PasswordField)
    assert behaviour["relabeling"]["host"] == "Account URL"
    assert behaviour["hidden_fields"] == CONNECTION_TYPE["ui-field-behaviour"]["hidden-fields"]
