"""What the two types of connections mean."""

import base64
from dataclasses import replace
from pathlib import Path

import certifi
import pytest

from airflow_provider_snowpipe.hooks.account import _snowflake_hook, connector_arguments
from airflow_provider_snowpipe.hooks.connection import OAuthClient, SnowpipeConnection
from airflow_provider_snowpipe.streaming.auth import KeyPair, OAuthToken, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError
from tests.airflow_connections import PASSPHRASE
from tests.refusals import refused


def snowflake(**extra):
    fields = {
        name: extra.pop(name) for name in ("host", "port", "login", "password", "schema") if name in extra
    }
    fields.setdefault("login", "LOADER")
    return SnowpipeConnection("c1", "snowflake", extra=extra, **fields)


def snowpipe(**extra):
    fields = {
        name: extra.pop(name) for name in ("host", "port", "login", "password", "schema") if name in extra
    }
    fields.setdefault("login", "LOADER")
    return SnowpipeConnection("c2", "snowpipe", extra=extra, **fields)


class TestAccountUrl:
    def test_follows_the_fields(self):
        account = "https://org-acc.snowflakecomputing.com"
        extra = {"account": "LOCAL", "host": "127.0.0.1"}
        for connection, url in [
            (snowflake(account="org-acc"), account),
            (snowflake(account="Org-My_Acc"), "https://org-my-acc.snowflakecomputing.com"),
            (
                snowflake(account="xy1", region="us-east-2.aws"),
                "https://xy1.us-east-2.aws.snowflakecomputing.com",
            ),
            (snowpipe(host="https://127.0.0.1:8443"), "https://127.0.0.1:8443"),
            (snowpipe(host="127.0.0.1", port=8443), "https://127.0.0.1:8443"),
            (snowpipe(host="https://h/"), "https://h"),
            (snowpipe(host="https://h", port=443), "https://h"),
            (snowpipe(account="org-acc", port=443), account),
            (snowpipe(account="org-acc", port=8443), f"{account}:8443"),
            (snowpipe(account="org-acc"), account),
            *(
                (SnowpipeConnection("c1", "snowflake", host="x", extra={**extra, "port": port}), url)
                for port, url in ((8443, "https://127.0.0.1:8443"), ("8443", "https://127.0.0.1:8443"))
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
                extra = {"host": "h", "port": port}
                connection = SnowpipeConnection("c1", kind, host="https://h", extra=extra)
                wrong.append((connection, ["'c1'", f"'port' is '{port}': give a number from 1 to"]))
        for connection, words in wrong:
            refused(ConfigurationError, SnowpipeConnection.account_url, [connection], *words)

    def test_in_the_extra_is_the_host_that_airflows_own_hook_signs_in_at(self):
        for host, port in [
            ("https://h", 443), ("https://h/", 443), ("https://h:8443", 8443), ("https://h", 8443),
            ("h", 8443),
        ]:  # fmt: skip
            extra = {"host": host, "account": "a", "authenticator": "programmatic_access_token"}
            if port != 443 and str(port) not in host:
                extra["port"] = port
            connection = SnowpipeConnection("c1", "snowflake", login="U", password="pat", extra=extra)

            given = _snowflake_hook(connection)._get_conn_params()

            assert (given["host"], given["port"]) == ("h", port)
            assert connection.account_url() == ("https://h" if port == 443 else f"https://h:{port}")


class TestKeyPair:
    def test_is_read_from_a_file(self, tmp_path, pem):
        path = tmp_path / "key.pem"
        path.write_text(pem)
        found = snowflake(account="org-acc", private_key_file=str(path), role="R").credentials()
        assert isinstance(found, KeyPair)
        assert (found.account, found.user, found.role) == ("org-acc", "LOADER", "R")

    def test_is_read_from_pem_from_base64_and_from_a_pasted_line(self, pem):
        forms = [pem, base64.b64encode(pem.encode()).decode(), pem.replace("\n", ""), pem.replace("\n", " ")]
        keys = [snowflake(account="a", private_key_content=form).credentials() for form in forms]
        assert len({key.fingerprint for key in keys if isinstance(key, KeyPair)}) == 1
        assert all(isinstance(key, KeyPair) for key in keys)

    def test_agrees_with_airflows_own_snowflake_hook(self, set_connection, encrypted_pem):
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook

        conn_id = set_connection(
            login="LOADER",
            password=PASSPHRASE,
            extra={
                "account": "org-acc",
                "private_key_content": base64.b64encode(encrypted_pem.encode()).decode(),
            },
        )
        theirs = SnowflakeHook(snowflake_conn_id=conn_id).get_private_key()
        ours = SnowpipeHook(conn_id).credentials()
        assert isinstance(ours, KeyPair)
        assert ours._key.private_numbers() == theirs.private_numbers()

    @pytest.mark.parametrize("is_encrypted", [False, True])
    def test_a_passphrase_too_many_or_missing_is_reported_with_the_remedy(
        self, pem, encrypted_pem, is_encrypted
    ):
        key, password = (encrypted_pem, None) if is_encrypted else (pem, "a-passphrase")
        connection = snowflake(account="a", private_key_content=key, password=password)
        text = "is encrypted, but no.*: give it" if is_encrypted else "is not encrypted.*: drop it"
        with pytest.raises(AuthenticationError, match=f"{text}.*password of an Airflow connection") as raised:
            connection.credentials()
        assert "a-passphrase" not in str(raised.value)

    def test_what_is_missing_or_no_key_is_named(self, tmp_path, pem):
        for size in (0, 20_000):
            path = tmp_path / f"{size}"
            path.write_bytes(b"x" * size)
            connection = snowflake(account="a", private_key_file=str(path))
            refused(ConfigurationError, SnowpipeConnection.credentials, [connection], f"{size} bytes")
        for connection, words in [
            (snowflake(account="a", private_key_file="/nowhere.pem"), ["'private_key_file'", "nowhere.pem"]),
            (
                snowflake(account="a", private_key_file="/k", private_key_content=pem),
                ["private_key_file", "private_key_content"],
            ),
            (snowpipe(host="https://127.0.0.1:1", private_key_content=pem), ["'c2'", "'account'"]),
            (snowflake(account="a", private_key_content=pem, login=None), ["'c1'", "'login'"]),
        ]:
            refused(ConfigurationError, SnowpipeConnection.credentials, [connection], *words)

    def test_account_comes_from_snowflakes_host_name(self, pem):
        for host in ("https://org-acc.snowflakecomputing.com", "ORG-ACC.SnowflakeComputing.com"):
            assert snowpipe(host=host, private_key_content=pem).credentials().account == "org-acc"


class TestTokens:
    def test_snowpipe_connection_takes_the_token_from_the_password(self):
        assert snowpipe(
            auth="programmatic_access_token", password="t1"
        ).credentials() == ProgrammaticAccessToken("t1")
        assert snowpipe(auth="oauth", password="t2").credentials() == OAuthToken("t2")

    @pytest.mark.parametrize(
        "extra", [{"refresh_token": "r"}, {"authenticator": "oauth", "grant_type": "client_credentials"}]
    )
    def test_oauth_client_of_a_snowflake_connection_is_kept_for_renewal(self, extra):
        found = snowflake(account="a", login="id", password="secret", **extra).credentials()
        assert isinstance(found, OAuthClient)
        assert found.token_type == "OAUTH"
        assert "secret" not in repr(found)

    def test_what_is_no_credential_for_streaming_is_named(self):
        oauth = {"account": "a", "authenticator": "oauth"}
        for connection, word in [
            (snowflake(account="a", password="p"), "no password"),
            (snowflake(authenticator="programmatic_access_token"), "'c1'"),
            (snowflake(authenticator="programmatic_access_token"), "'password'"),
            (snowflake(**oauth, login="id", password="s"), "'grant_type' is missing"),
            (snowflake(account="a", authenticator="externalbrowser"), "'externalbrowser'"),
            (snowflake(**oauth, azure_conn_id="az"), "azure_conn_id"),
        ]:
            refused(ConfigurationError, SnowpipeConnection.credentials, [connection], word)


class TestPipeName:
    def names(self, connection, **given):
        return str(
            connection.pipe_name(**{"table": None, "pipe": None, "database": None, "schema": None, **given})
        )

    def test_is_the_tables_default_pipe(self):
        assert self.names(snowflake(database="DB", schema="S"), table="T") == "DB.S.T-STREAMING"
        assert self.names(snowpipe(database="DB", schema="S", pipe="P")) == "DB.S.P"

    def test_arguments_win_over_the_connection(self):
        connection = snowpipe(database="DB", schema="S", table="T")
        assert self.names(connection, pipe="P", database="D2", schema="S2") == "D2.S2.P"

    def test_the_field_of_the_schema_wins_over_the_extra(self):
        extra = {"database": "DB", "schema": "OF_EXTRA", "table": "T"}

        both = SnowpipeConnection("c", "snowpipe", schema="OF_FIELD", extra=extra)
        assert self.names(both) == "DB.OF_FIELD.T-STREAMING"
        assert self.names(replace(both, schema="")) == "DB.OF_EXTRA.T-STREAMING"

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
                self.names(connection, **given)


def test_sql_is_run_by_the_role_and_the_warehouse_of_old_prefixed_fields():
    connection = snowpipe(
        host="https://h",
        password="pat",
        account="a",
        auth="programmatic_access_token",
        extra__snowpipe__role="LOADER",
        extra__snowpipe__warehouse="WH",
    )

    given = connector_arguments(connection)

    assert (given["role"], given["warehouse"]) == ("LOADER", "WH")


def test_an_extra_that_is_no_object_is_refused_and_blanks_around_the_login_are_none_of_the_user():

    def made(extra):
        SnowpipeConnection("c1", "snowflake", extra=extra)

    refused(ConfigurationError, made, [["account"], "account", 5], "'c1'", "'extra'")
    assert snowflake(login=" LOADER \n").login == "LOADER"


@pytest.mark.parametrize("kind", [snowflake, snowpipe])
@pytest.mark.parametrize("plain", [{}, {"ca_bundle": None}])
def test_ca_bundle_is_read_from_the_old_prefixed_field(tmp_path, kind, plain):
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes())
    prefix = f"extra__{kind.__name__}__"

    assert kind(**plain, **{f"{prefix}ca_bundle": str(bundle)}).ca_bundle() == str(bundle)


def test_a_plain_field_comes_before_the_old_prefixed_one_also_when_it_is_empty(tmp_path):
    assert snowpipe(ca_bundle="", extra__snowpipe__ca_bundle=str(tmp_path / "ca.pem")).ca_bundle() is None


def test_ca_bundle_that_is_missing_or_without_a_certificate_is_named(tmp_path):
    connection = snowflake(ca_bundle=str(tmp_path / "ca.der"))
    for content in (None, b"", b"\x30\x82", b"-----BEGIN PRIVATE KEY-----\n"):
        if content is not None:
            (tmp_path / "ca.der").write_bytes(content)
        refused(
            ConfigurationError, SnowpipeConnection.ca_bundle, [connection], "'c1'", "'ca_bundle'", "ca.der"
        )


def test_repr_shows_no_secret(pem):
    text = repr(snowflake(account="a", password="the-password", private_key_content=pem))
    assert "the-password" not in text
    assert "PRIVATE" not in text
