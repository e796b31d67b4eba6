"""What the two types of connections mean."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest

from airflow_provider_snowpipe.hooks.account import _snowflake_hook, connector_arguments
from airflow_provider_snowpipe.hooks.connection import OAuthClient, SnowpipeConnection
from airflow_provider_snowpipe.streaming.auth import KeyPair, OAuthToken, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError
from tests.airflow_connections import PASSPHRASE


def snowflake(**extra: Any) -> SnowpipeConnection:
    fields = {
        name: extra.pop(name) for name in ("host", "port", "login", "password", "schema") if name in extra
    }
    fields.setdefault("login", "LOADER")
    return SnowpipeConnection("c1", "snowflake", extra=extra, **fields)


def snowpipe(**extra: Any) -> SnowpipeConnection:
    fields = {
        name: extra.pop(name) for name in ("host", "port", "login", "password", "schema") if name in extra
    }
    fields.setdefault("login", "LOADER")
    return SnowpipeConnection("c2", "snowpipe", extra=extra, **fields)


class TestAccountUrl:
    @pytest.mark.parametrize(
        ("connection", "url"),
        [
            pytest.param(
                snowflake(account="org-acc"), "https://org-acc.snowflakecomputing.com", id="account"
            ),
            pytest.param(
                snowflake(account="Org-My_Acc"), "https://org-my-acc.snowflakecomputing.com", id="underscore"
            ),
            pytest.param(
                snowflake(account="xy1", region="us-east-2.aws"),
                "https://xy1.us-east-2.aws.snowflakecomputing.com",
                id="region",
            ),
            pytest.param(
                snowpipe(host="https://127.0.0.1:8443"), "https://127.0.0.1:8443", id="snowpipe-url"
            ),
            pytest.param(snowpipe(host="127.0.0.1", port=8443), "https://127.0.0.1:8443", id="snowpipe-port"),
            pytest.param(snowpipe(host="https://h/"), "https://h", id="slash"),
            pytest.param(snowpipe(host="https://h", port=443), "https://h", id="port-of-https"),
            pytest.param(
                snowpipe(account="org-acc", port=443),
                "https://org-acc.snowflakecomputing.com",
                id="no-host-443",
            ),
            pytest.param(
                snowpipe(account="org-acc", port=8443),
                "https://org-acc.snowflakecomputing.com:8443",
                id="no-host-port",
            ),
            pytest.param(snowpipe(account="org-acc"), "https://org-acc.snowflakecomputing.com", id="no-host"),
        ],
    )
    def test_follows_the_fields(self, connection, url):
        assert connection.account_url() == url

    @pytest.mark.parametrize("port", [8443, "8443"])
    def test_of_a_snowflake_connection_takes_host_and_port_from_the_extra(self, port):
        connection = SnowpipeConnection(
            "c1", "snowflake", host="ignored", extra={"account": "LOCAL", "host": "127.0.0.1", "port": port}
        )
        assert connection.account_url() == "https://127.0.0.1:8443"

    def test_without_host_and_account_names_connection_field_and_remedy(self):
        with pytest.raises(ConfigurationError, match=r"'c1'.*'account'.*organization"):
            snowflake().account_url()

    def test_refuses_an_account_that_would_change_the_host(self):
        with pytest.raises(ConfigurationError, match=r"'account' is 'evil.example/x#'"):
            snowflake(account="evil.example/x#").account_url()

    @pytest.mark.parametrize("port", [70_000, -1, "https", "0"])
    @pytest.mark.parametrize("kind", ["snowflake", "snowpipe"])
    def test_names_the_port_that_is_none(self, kind, port):
        connection = SnowpipeConnection("c1", kind, host="https://h", extra={"host": "h", "port": port})

        with pytest.raises(ConfigurationError, match=rf"'c1'.*'port' is '{port}': give a number from 1 to"):
            connection.account_url()

    def test_refuses_plain_http(self):
        with pytest.raises(ConfigurationError, match=r"'c2'.*'host'.*HTTP"):
            snowpipe(host="http://127.0.0.1").account_url()

    @pytest.mark.parametrize(
        ("host", "port"),
        [("https://h", 443), ("https://h/", 443), ("https://h:8443", 8443), ("https://h", 8443), ("h", 8443)],
    )
    def test_in_the_extra_is_the_host_that_airflows_own_hook_signs_in_at(self, host, port):
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
        theirs: Any = SnowflakeHook(snowflake_conn_id=conn_id).get_private_key()
        ours = SnowpipeHook(conn_id).credentials()
        assert isinstance(ours, KeyPair)
        assert ours._key.private_numbers() == theirs.private_numbers()

    def test_wrong_passphrase_names_the_connection_and_no_secret(self, encrypted_pem):
        connection = snowflake(account="a", private_key_content=encrypted_pem, password="not-the-passphrase")
        with pytest.raises(AuthenticationError, match=r"connection 'c1'.*LOADER") as raised:
            connection.credentials()
        assert "not-the-passphrase" not in str(raised.value)
        assert "BEGIN" not in str(raised.value)

    def test_file_and_text_together_are_refused(self, pem):
        with pytest.raises(ConfigurationError, match=r"private_key_file.*private_key_content"):
            snowflake(account="a", private_key_file="/k", private_key_content=pem).credentials()

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

    def test_missing_file_is_named(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"'private_key_file'.*nowhere\.pem"):
            snowflake(account="a", private_key_file=str(tmp_path / "nowhere.pem")).credentials()

    @pytest.mark.parametrize("size", [0, 20_000])
    def test_a_file_that_is_no_key_is_not_read(self, tmp_path, size):
        path = tmp_path / "file"
        path.write_bytes(b"x" * size)
        with pytest.raises(ConfigurationError, match=f"{size} bytes"):
            snowflake(account="a", private_key_file=str(path)).credentials()

    @pytest.mark.parametrize(
        "host", ["https://org-acc.snowflakecomputing.com", "ORG-ACC.SnowflakeComputing.com"]
    )
    def test_account_comes_from_snowflakes_host_name(self, pem, host):
        connection = snowpipe(host=host, private_key_content=pem)
        found = connection.credentials()
        assert isinstance(found, KeyPair)
        assert found.account == "org-acc"

    def test_account_is_demanded_with_another_host(self, pem):
        with pytest.raises(ConfigurationError, match=r"'c2'.*'account'"):
            snowpipe(host="https://127.0.0.1:1", private_key_content=pem).credentials()

    def test_user_is_demanded(self, pem):
        with pytest.raises(ConfigurationError, match=r"'c1'.*'login'"):
            snowflake(account="a", private_key_content=pem, login=None).credentials()


class TestTokens:
    def test_snowpipe_connection_takes_the_token_from_the_password(self):
        assert snowpipe(
            auth="programmatic_access_token", password="t1"
        ).credentials() == ProgrammaticAccessToken("t1")
        assert snowpipe(auth="oauth", password="t2").credentials() == OAuthToken("t2")

    def test_missing_token_is_named(self):
        with pytest.raises(ConfigurationError, match=r"'c1'.*'password'"):
            snowflake(authenticator="programmatic_access_token").credentials()

    @pytest.mark.parametrize(
        "extra", [{"refresh_token": "r"}, {"authenticator": "oauth", "grant_type": "client_credentials"}]
    )
    def test_oauth_client_of_a_snowflake_connection_is_kept_for_renewal(self, extra):
        found = snowflake(account="a", login="id", password="secret", **extra).credentials()
        assert isinstance(found, OAuthClient)
        assert found.token_type == "OAUTH"
        assert "secret" not in repr(found)

    def test_oauth_without_grant_names_the_field(self):
        with pytest.raises(ConfigurationError, match=r"'grant_type' is missing"):
            snowflake(account="a", authenticator="oauth", login="id", password="s").credentials()

    def test_password_alone_is_no_credential_for_streaming(self):
        with pytest.raises(ConfigurationError, match="no password"):
            snowflake(account="a", password="p").credentials()

    def test_browser_login_is_refused_by_name(self):
        with pytest.raises(ConfigurationError, match="'externalbrowser'"):
            snowflake(account="a", authenticator="externalbrowser").credentials()

    def test_azure_connection_is_refused_by_name(self):
        with pytest.raises(ConfigurationError, match="azure_conn_id"):
            snowflake(account="a", authenticator="oauth", azure_conn_id="az").credentials()


class TestPipeName:
    def names(self, connection: SnowpipeConnection, **given: str) -> str:
        return str(
            connection.pipe_name(
                **{"table": None, "pipe": None, "database": None, "schema": None, **given}  # type: ignore[arg-type]
            )
        )

    def test_is_the_tables_default_pipe(self):
        assert self.names(snowflake(database="DB", schema="S"), table="T") == "DB.S.T-STREAMING"

    def test_arguments_win_over_the_connection(self):
        connection = snowpipe(database="DB", schema="S", table="T")
        assert self.names(connection, pipe="P", database="D2", schema="S2") == "D2.S2.P"

    def test_the_field_of_the_schema_wins_over_the_extra(self):
        extra = {"database": "DB", "schema": "OF_EXTRA", "table": "T"}

        both = SnowpipeConnection("c", "snowpipe", schema="OF_FIELD", extra=extra)
        assert self.names(both) == "DB.OF_FIELD.T-STREAMING"
        assert self.names(replace(both, schema="")) == "DB.OF_EXTRA.T-STREAMING"

    def test_connection_supplies_table_or_pipe(self):
        assert self.names(snowpipe(database="DB", schema="S", pipe="P")) == "DB.S.P"

    @pytest.mark.parametrize(
        ("connection", "given", "text"),
        [
            pytest.param(snowflake(database="D", schema="S"), {}, "no table and no pipe", id="neither"),
            pytest.param(
                snowflake(database="D", schema="S"), {"table": "T", "pipe": "P"}, "both given", id="both"
            ),
            pytest.param(snowflake(schema="S"), {"table": "T"}, "'database' is missing", id="database"),
            pytest.param(snowflake(database="D"), {"table": "T"}, "'schema' is empty", id="schema"),
            pytest.param(
                snowpipe(database="D", schema="S", table="T", pipe="P"),
                {},
                "empty one",
                id="both-in-connection",
            ),
        ],
    )
    def test_reports_what_is_missing(self, connection, given, text):
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


@pytest.mark.parametrize("extra", [["account"], "account", 5])
def test_an_extra_that_is_no_object_is_refused(extra):
    with pytest.raises(ConfigurationError, match=r"'c1'.*'extra'.*give an object"):
        SnowpipeConnection("c1", "snowflake", extra=extra)


@pytest.mark.parametrize("kind", [snowflake, snowpipe])
@pytest.mark.parametrize("plain", [{}, {"ca_bundle": None}])
def test_ca_bundle_is_read_from_the_old_prefixed_field(tmp_path, kind, plain):
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes())
    prefix = f"extra__{kind.__name__}__"

    assert kind(**plain, **{f"{prefix}ca_bundle": str(bundle)}).ca_bundle() == str(bundle)


def test_a_plain_field_comes_before_the_old_prefixed_one_also_when_it_is_empty(tmp_path):
    assert snowpipe(ca_bundle="", extra__snowpipe__ca_bundle=str(tmp_path / "ca.pem")).ca_bundle() is None


@pytest.mark.parametrize("content", [b"", b"\x30\x82", b"-----BEGIN PRIVATE KEY-----\n"])
def test_ca_bundle_without_a_certificate_is_named(tmp_path, content):
    bundle = tmp_path / "ca.der"
    bundle.write_bytes(content)

    with pytest.raises(ConfigurationError, match=r"'c1'.*'ca_bundle' names .*ca\.der.*no certificate: name"):
        snowflake(ca_bundle=str(bundle)).ca_bundle()


def test_blanks_around_the_login_are_none_of_the_user():
    assert snowflake(login=" LOADER \n").login == "LOADER"


def test_missing_ca_bundle_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'ca_bundle'.*ca\.pem"):
        snowflake(ca_bundle=str(tmp_path / "ca.pem")).ca_bundle()


def test_repr_shows_no_secret(pem):
    text = repr(snowflake(account="a", password="the-password", private_key_content=pem))
    assert "the-password" not in text
    assert "PRIVATE" not in text
