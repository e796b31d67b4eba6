"""The hook against a scripted service."""

import asyncio
import base64
from contextlib import suppress

import pytest
from snowflake.connector.errors import DatabaseError

from airflow_provider_snowpipe.cli.doctor import Doctor
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.cluster import ResourceManager
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    RetriesExhaustedError,
    SnowpipeError,
    SqlError,
)
from tests.airflow_connections import PAT, statuses
from tests.scripted_service import Reply, error


def test_client_reaches_the_pipe_of_the_connection(service, service_connection):
    service.on("bulk-channel-status", statuses(c1="a:1"))
    hook = SnowpipeHook(service_connection, table="T")
    found = hook.channel_statuses(["c1"])
    assert found["c1"].committed == "a:1"
    assert asyncio.run(hook.in_thread(hook.channel_statuses, ["c1"])) == found
    assert "/databases/DB/schemas/S/pipes/T-STREAMING:" in service.requests("bulk-channel-status")[0].path


def test_a_connection_of_another_type_is_refused(set_connection):
    with pytest.raises(ConfigurationError, match="'postgres'"):
        SnowpipeHook(set_connection("pg", conn_type="postgres"), table="T").get_client()


class TestTestButton:
    def test_reports_that_streaming_works_where_sql_does_not(self, service, set_connection):
        service.on("pipe-info", Reply())
        refusal = '{"success": false, "code": "390100", "message": "no", "data": {}}'
        service.on("login-request", Reply(body=refusal))
        extra = {"account": "A", "auth": "programmatic_access_token", "database": "DB"}
        fields = {"host": service.url, "login": "U", "password": PAT, "schema": "S"}
        extra["ca_bundle"] = service.ca_bundle
        conn_id = set_connection("form", conn_type="snowpipe", **fields, extra=extra)

        ok, text = SnowpipeHook(conn_id, table="T").test_connection()

        assert not ok
        assert text.startswith("Failed at: channel listing. ")
        assert "resetting" in text
        assert PAT not in text

    def test_needs_no_pipe(self, service_connection):
        ok, text = SnowpipeHook(service_connection).test_connection()
        assert ok
        assert "No default pipe" in text

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


class TestOAuth:
    """Tokens are fetched with secrets, which go to the endpoint that the author names and nowhere else."""

    FETCHED = Reply(body='{"access_token": "fetched", "expires_in": 600}')

    @pytest.fixture
    def connection(self, service, set_connection, monkeypatch):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.ca_bundle)
        service.on("token-request", self.FETCHED)

        def make(**extra):
            grant = {"authenticator": "oauth", "grant_type": "client_credentials"}
            grant["token_endpoint"] = f"{service.url}/oauth/token-request"
            given = {"account": "a", **grant, **extra}
            return set_connection(login="client-id", password="client-secret", schema="S", extra=given)

        return make

    @pytest.fixture
    def credentials(self, connection):
        return lambda **extra: SnowpipeHook(connection(**extra)).credentials()

    @pytest.mark.parametrize(
        ("extra", "sent"),
        [
            (
                {"grant_type": "client_credentials", "scope": "s"},
                b"grant_type=client_credentials&redirect_uri=https%3A%2F%2Flocalhost.com&scope=s",
            ),
            (
                {"grant_type": None, "refresh_token": "r", "redirect_uri": "u"},
                b"grant_type=refresh_token&redirect_uri=u&refresh_token=r",
            ),
            (
                {"grant_type": "password", "oauth_username": "me", "oauth_password": "pw"},
                b"grant_type=password&redirect_uri=https%3A%2F%2Flocalhost.com&username=me&password=pw",
            ),
        ],
    )
    def test_a_token_is_fetched_once_while_it_is_valid(self, service, credentials, extra, sent):
        client = credentials(**extra)
        assert [client.bearer(), client.bearer()] == ["fetched", "fetched"]
        assert "client-secret" not in repr(client)
        (request,) = service.requests("token-request")
        assert request.body == sent
        proof = base64.b64encode(b"client-id:client-secret").decode()
        assert request.headers["Authorization"] == f"Basic {proof}"

    def test_a_token_is_renewed_before_it_ends(self, service, credentials):
        service.on("token-request", Reply(body='{"access_token": "short", "expires_in": 20}'))
        client = credentials()
        assert [client.bearer(), client.bearer()] == ["short", "short"]
        assert len(service.requests("token-request")) == 2

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (Reply(503), RetriesExhaustedError),
            (Reply(429), RetriesExhaustedError),
            (Reply(hang_up=True), RetriesExhaustedError),
            (Reply(401), AuthenticationError),
            (Reply(body="{}"), AuthenticationError),
            (Reply(body='["a list"]'), AuthenticationError),
            (Reply(body='{"access_token": {"an": "object"}, "expires_in": 600}'), AuthenticationError),
        ],
    )
    def test_only_a_server_that_does_not_answer_is_asked_again(
        self, service, credentials, monkeypatch, reply, kind
    ):
        monkeypatch.setattr("time.sleep", lambda _: None)
        service.on("token-request", reply)
        with pytest.raises(kind, match="'client_credentials'") as raised:
            credentials().bearer()
        assert "client-secret" not in str(raised.value)
        if kind is RetriesExhaustedError:
            service.on("token-request", reply, self.FETCHED)
            assert credentials().bearer() == "fetched"

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_not_followed(self, service, credentials, status):
        service.on("token-request", Reply(status, headers={"Location": f"{service.url}/elsewhere"}))
        with pytest.raises(AuthenticationError, match="redirect"):
            credentials(grant_type=None, refresh_token="r").bearer()
        assert service.requests("elsewhere") == []

    def test_an_endpoint_without_tls_is_refused_except_on_this_machine(self, credentials):
        for host in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
            assert credentials(token_endpoint=f"http://{host}:1/token").token_type == "OAUTH"
        wrong = ["http://127.0.0.1.example/token", "http://localhost@idp.example/token", "http://10.0.0.1/t"]
        for endpoint in (*wrong, "ftp://127.0.0.1/token", "idp.example/token", "https://", "http://[::1/t"):
            with pytest.raises(ConfigurationError, match="token_endpoint"):
                credentials(token_endpoint=endpoint)

    def test_sql_signs_in_with_the_same_token(self, connection, monkeypatch):
        given = {}

        def sign_in(**arguments):
            given.update(arguments)
            raise DatabaseError("sign-in")

        monkeypatch.setattr("snowflake.connector.connect", sign_in)
        conn_id = connection(authenticator="OAuth", grant_type=None, refresh_token="r")

        with pytest.raises(SqlError, match="sign-in"):
            SnowpipeBulkHook(conn_id).run_sql("SELECT 1")

        assert (given["authenticator"], given["token"]) == ("oauth", "fetched")
        assert not {"client-secret", "client-id", "r"} & set(map(str, given.values()))


class TestNetrc:
    """``requests`` takes a host's password from ~/.netrc, and puts it in the place of our own proof."""

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
    def test_does_not_replace_the_proof_of_a_request(
        self, service, service_connection, tmp_path, monkeypatch, ask
    ):
        path = tmp_path / "netrc"
        path.write_text("machine 127.0.0.1 login somebody password netrc-password\n")
        path.chmod(0o600)
        monkeypatch.setenv("NETRC", str(path))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", service.ca_bundle)

        with suppress(SnowpipeError):
            ask(service, service_connection)

        password = base64.b64encode(b"somebody:netrc-password").decode()
        assert service.received
        assert [one.path for one in service.received if password in str(one.headers)] == []
