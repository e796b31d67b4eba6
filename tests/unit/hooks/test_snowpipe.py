"""The hook against a scripted service."""

import asyncio
import base64
from contextlib import suppress

import pytest
import requests
from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

from airflow_provider_snowpipe.cli.doctor import Doctor
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    RetriesExhaustedError,
    SnowpipeError,
)
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, error


def test_client_reaches_the_pipe_of_the_connection(service, service_connection):
    service.on("bulk-channel-status", statuses(c1="a:1"))

    found = SnowpipeHook(service_connection, table="T").channel_statuses(["c1"])

    assert found["c1"].committed == "a:1"
    again = asyncio.run(SnowpipeHook(service_connection, table="T").async_channel_statuses(["c1"]))
    assert again == found
    assert "/databases/DB/schemas/S/pipes/T-STREAMING:" in service.requests("bulk-channel-status")[0].path


class TestTestButton:
    def test_reports_that_streaming_works_where_sql_does_not(self, service, set_connection):
        service.on("pipe-info", Reply())
        service.on(
            "login-request", Reply(body='{"success": false, "code": "390100", "message": "no", "data": {}}')
        )
        conn_id = set_connection(
            "form",
            conn_type="snowpipe",
            host=service.url,
            login="U",
            password=PAT,
            schema="S",
            extra={
                "account": "A",
                "auth": "programmatic_access_token",
                "database": "DB",
                "ca_bundle": service.ca_bundle,
            },
        )

        ok, text = SnowpipeHook(conn_id, table="T").test_connection()

        assert not ok
        assert text.startswith("Failed at: channel listing. ")
        assert "Streaming works; listing, backing up and resetting channels will not." in text
        assert PAT not in text

    def test_needs_no_pipe(self, service_connection):
        ok, text = SnowpipeHook(service_connection).test_connection()

        assert ok
        assert "No default pipe or table" in text

    def test_finds_the_default_table_of_an_old_prefixed_field(self, service, set_connection):
        extra = {
            "account": "a",
            "auth": "programmatic_access_token",
            "database": "DB",
            "ca_bundle": service.ca_bundle,
            "extra__snowpipe__table": "T",
        }
        conn_id = set_connection(
            "old", conn_type="snowpipe", host=service.url, login="U", password=PAT, schema="S", extra=extra
        )
        service.on("pipe-info", error(404, "ERR_TABLE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"))

        _, text = SnowpipeHook(conn_id).test_connection()

        assert text.startswith("Failed at: pipe. ")
        assert "DB.S.T-STREAMING" in text

    @pytest.mark.parametrize(
        ("part", "reply", "step"),
        [
            ("hostname", error(401, "ERR_BAD_KEY"), "account URL and credentials"),
            ("token", error(400, "ERR_BAD_GRANT"), "token for the ingest host"),
            ("pipe-info", error(404, "ERR_TABLE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), "pipe"),
        ],
    )
    def test_names_the_step_that_failed_and_no_secret(self, service, service_connection, part, reply, step):
        service.on(part, reply)

        ok, text = SnowpipeHook(service_connection, table="T").test_connection()

        assert not ok
        assert text.startswith(f"Failed at: {step}. ")
        assert ". Check " in text
        assert PAT not in text


def test_a_connection_of_another_type_is_refused(set_connection):
    with pytest.raises(ConfigurationError, match="'postgres'"):
        SnowpipeHook(set_connection("pg", conn_type="postgres"), table="T").get_client()


def test_oauth_token_is_fetched_as_airflows_snowflake_provider_does(service, set_connection, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.ca_bundle)
    service.on("token-request", Reply(body='{"access_token": "fetched", "expires_in": 600}'))
    conn_id = set_connection(
        login="client-id",
        password="client-secret",
        schema="S",
        extra={
            "account": "a",
            "authenticator": "oauth",
            "grant_type": "client_credentials",
            "token_endpoint": f"{service.url}/oauth/token-request",
        },
    )

    credentials = SnowpipeHook(conn_id).credentials()

    assert [credentials.bearer(), credentials.bearer()] == ["fetched", "fetched"]
    assert len(service.requests("token-request")) == 1


def answered(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("client-secret", response=response)


def test_only_an_oauth_server_that_does_not_answer_is_worth_another_try(set_connection, monkeypatch):
    extra = {"account": "a", "authenticator": "oauth", "grant_type": "client_credentials"}
    conn_id = set_connection(login="client-id", password="client-secret", extra=extra)
    for failure, kind in [
        (requests.ConnectionError("client-secret"), RetriesExhaustedError),
        (requests.Timeout("client-secret"), RetriesExhaustedError),
        (answered(503), RetriesExhaustedError),
        (answered(429), RetriesExhaustedError),
        (answered(401), AuthenticationError),
        (requests.exceptions.SSLError("client-secret"), AuthenticationError),
        (KeyError("access_token"), AuthenticationError),
        (TypeError("an answer that is a list"), AuthenticationError),
    ]:

        def fail(*_, failure=failure, **__):
            raise failure

        monkeypatch.setattr(SnowflakeHook, "get_oauth_token", fail)
        with pytest.raises(kind, match="'client_credentials'") as raised:
            SnowpipeHook(conn_id).credentials().bearer()
        assert "client-secret" not in str(raised.value)


class TestNetrc:
    """``requests`` takes a host's password from ~/.netrc, and puts it in the place of our own proof."""

    @pytest.fixture(autouse=True)
    def netrc(self, service, tmp_path, monkeypatch):
        path = tmp_path / "netrc"
        path.write_text("machine 127.0.0.1 login somebody password netrc-password\n")
        path.chmod(0o600)
        monkeypatch.setenv("NETRC", str(path))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.ca_bundle)

    @staticmethod
    def ask_of_yarn(service, _):
        service.on("app", Reply(307, headers={"Location": f"{service.url}/elsewhere"}))
        ResourceManager(service.url).application("app")

    @pytest.mark.parametrize(
        "ask",
        [
            lambda _, conn: SnowpipeHook(conn, table="T").channel_statuses(["c"]),
            lambda _, conn: SnowpipeHook(conn, table="T").test_connection(),
            lambda _, conn: SnowpipeBulkHook(conn).get_statement_client().rows("SELECT 1"),
            lambda _, conn: list(Doctor(conn, table="T").findings()),
            ask_of_yarn,
        ],
        ids=["streaming", "test button", "SQL API", "doctor", "YARN"],
    )
    def test_does_not_replace_the_proof_of_a_request(self, service, service_connection, ask):
        with suppress(SnowpipeError):
            ask(service, service_connection)

        password = base64.b64encode(b"somebody:netrc-password").decode()
        assert service.received
        assert [one.path for one in service.received if password in str(one.headers)] == []
