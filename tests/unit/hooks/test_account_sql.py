"""Channel listing and tokens through Snowflake's connector, against a real local service."""

import asyncio
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import certifi
import pytest
from snowflake.connector.errors import DatabaseError, OperationalError

from airflow_provider_snowpipe.hooks.account import AccountHook
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX
from tests.local_connection import commit, committed, connect, connect_by_form, make_table


@pytest.mark.parametrize("define", [connect, connect_by_form])
def test_channels_of_the_pipe_are_listed(local_service, set_connection, table, define):
    conn_id = define(local_service, set_connection)
    commit(local_service, table, "a", ["f:1"])
    commit(local_service, table, 'it\'s "b"', ["f:1", "f:2"])
    commit(local_service, make_table(local_service, f"OTHER_{table}"), "other", ["f:1"])
    commit(local_service, table, f"a{COMPARED_SUFFIX}", ["f:1"])  # holds no rows

    hook = SnowpipeHook(conn_id, table=table)
    found = {one.name: one for one in hook.list_channels()}

    assert {name: one.offset_token for name, one in found.items()} == {"a": "f:1", 'it\'s "b"': "f:2"}
    assert (found["a"].table, found["a"].pipe) == (table, f"{table}-STREAMING")
    assert found["a"].created_on is not None
    assert asyncio.run(hook.async_list_channels()) == list(found.values())


def test_a_host_that_is_written_as_an_address_serves_sql_as_well(local_service, set_connection, table):
    commit(local_service, table, "a", ["f:1"])
    address = local_service.env["SNOWPIPE_LOCAL_URL"]
    conn_id = connect(local_service, set_connection, extra={"host": address, "port": None})

    assert [one.name for one in SnowpipeHook(conn_id, table=table).list_channels()] == ["a"]


def test_a_token_is_set_as_a_value_and_never_as_sql(local_service, conn_id, table):
    for channel, token in {
        "a": "f:0", 'it\'s "odd" / 100%': 'it\'s "quoted" \\ 100%', "b": "tab\tand\nline ß€"
    }.items():  # fmt: skip
        commit(local_service, table, channel, ["f:1"])

        SnowpipeHook(conn_id, table=table).set_offset_token(channel, token)

        assert committed(local_service, table, channel) == token


def test_a_token_is_set_in_a_pipe_that_somebody_created(local_service, conn_id, table):
    local_service.sql(
        f"CREATE OR REPLACE PIPE OWN_PIPE AS COPY INTO {table} FROM (SELECT $1:ID::INTEGER, "
        "$1:NAME::VARCHAR FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
    )
    hook = SnowpipeHook(conn_id, pipe="OWN_PIPE")
    with hook.get_client() as client:
        client.open_channel("c", offset_token="f:1")

        hook.set_offset_token("c", "f:9")

        assert client.channel_statuses(["c"])["c"].committed == "f:9"


def test_sign_ins_and_clients_share_a_key_that_is_read_once(conn_id, table, monkeypatch):
    hook = SnowpipeBulkHook(conn_id, table=table)
    hook.run_sql("SELECT 1")
    for reads in (
        "cryptography.hazmat.primitives.serialization.load_pem_private_key",
        "snowflake.connector.auth.keypair.load_der_private_key",
    ):
        monkeypatch.setattr(reads, lambda *_, **__: pytest.fail("a private key is read again"))

    hook.run_sql("SELECT 1")
    assert hook.list_channels() == []
    hook.get_statement_client().close()
    hook.get_client().close()


def test_a_token_of_a_channel_that_is_not_there_is_refused(conn_id, table):
    with pytest.raises(SqlError, match=r"SYSTEM\$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN.*failed"):
        SnowpipeHook(conn_id, table=table).set_offset_token("none", "f:0")
    with pytest.raises(ConfigurationError, match="'none'"):
        SnowpipeHook(conn_id, pipe="OWN").set_offset_token("none", "f:0")


def test_list_of_a_stage_that_is_not_there_names_it_and_what_to_do(conn_id):
    with pytest.raises(SqlError) as missing:
        SnowpipeBulkHook(conn_id).list_files("@NO_SUCH_STAGE", "in/")

    assert "LIST %s" not in str(missing.value)
    assert "NO_SUCH_STAGE" in str(missing.value).partition("failed")[0]
    assert "CREATE STAGE" in str(missing.value)
    assert not missing.value.retryable


@pytest.mark.parametrize(
    ("message", "remedies"),
    [("Could not connect to Snowflake backend", True), ("Failed to connect to DB: Incorrect user", False)],
)
def test_account_that_does_not_answer_is_an_error_with_the_remedy(conn_id, monkeypatch, message, remedies):
    def fail(_):
        raise OperationalError(message, errno=250001)

    monkeypatch.setattr(AccountHook, "_connect", fail)
    with pytest.raises(SqlError) as failed:
        SnowpipeBulkHook(conn_id).list_files("@S")

    assert message in str(failed.value)
    assert ("firewall" in str(failed.value), failed.value.retryable) == (remedies, remedies)


@pytest.mark.parametrize("authenticator", ["programmatic_access_token", "PROGRAMMATIC_ACCESS_TOKEN"])
def test_authenticator_in_capitals_signs_in_for_sql_as_in_small_letters(
    set_connection, monkeypatch, authenticator
):
    given = {}

    def sign_in(**arguments):
        given.update(arguments)
        raise DatabaseError("the sign-in is over")

    monkeypatch.setattr("snowflake.connector.connect", sign_in)
    extra = {"account": "a", "authenticator": authenticator}
    conn_id = set_connection("pat", conn_type="snowflake", login="U", password="pat-text", extra=extra)

    with pytest.raises(SqlError, match="sign-in"):
        SnowpipeBulkHook(conn_id).run_sql("SELECT 1")

    assert given["authenticator"].lower() == "programmatic_access_token"
    assert given["token"] == "pat-text"


def test_the_environment_is_left_as_it_was(local_service, conn_id, table, monkeypatch):
    hook = SnowpipeHook(conn_id, table=table)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    hook.list_channels()
    assert "REQUESTS_CA_BUNDLE" not in os.environ
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/elsewhere.pem")
    hook.list_channels()
    assert os.environ["REQUESTS_CA_BUNDLE"] == "/elsewhere.pem"


class Sessions:
    """Sign-ins in threads of their own that record which roots the environment names."""

    def __init__(self, monkeypatch):
        self.roots = {}
        self.may_end = {}
        self.threads = {}
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        monkeypatch.setattr(AccountHook, "_connect", lambda hook: self.see(hook))

    def see(self, hook):
        self.roots[hook.snowflake_conn_id].append(os.environ.get("REQUESTS_CA_BUNDLE"))
        return nullcontext()

    def begin(self, conn_id):
        self.roots[conn_id], self.may_end[conn_id] = [], threading.Event()
        hook = AccountHook(conn_id)

        def session():
            with hook.sql_session("a test"):
                assert self.may_end[conn_id].wait(30)
                self.see(hook)

        self.threads[conn_id] = threading.Thread(target=session, daemon=True)
        self.threads[conn_id].start()

    def end(self, conn_id):
        self.may_end[conn_id].set()
        self.threads[conn_id].join(30)
        assert not self.threads[conn_id].is_alive()

    def until_it_has_signed_in(self, conn_id):
        deadline = time.monotonic() + 30
        while not self.roots[conn_id]:
            assert time.monotonic() < deadline
            time.sleep(0.001)


class TestRootsInTheEnvironment:
    @pytest.fixture
    def sessions(self, set_connection, monkeypatch, tmp_path):
        bundle = tmp_path / "ca.pem"
        bundle.write_bytes(Path(certifi.where()).read_bytes())
        for name in ("one", "two", "public"):
            extra = {} if name == "public" else {"ca_bundle": str(bundle)}
            set_connection(name, conn_type="snowflake", extra={"account": "a", **extra})
        return Sessions(monkeypatch)

    def test_stay_until_the_last_session_with_them_ends(self, sessions):
        for name in ("one", "two"):
            sessions.begin(name)
            sessions.until_it_has_signed_in(name)
        sessions.end("one")
        sessions.end("two")

        (root,) = {root for name in ("one", "two") for root in sessions.roots[name]}
        assert str(root).endswith("ca.pem")
        assert "REQUESTS_CA_BUNDLE" not in os.environ

    def test_are_not_those_of_a_session_beside_with_others(self, sessions):
        sessions.begin("one")
        sessions.until_it_has_signed_in("one")
        sessions.begin("public")
        sessions.end("one")
        sessions.until_it_has_signed_in("public")
        sessions.end("public")

        assert sessions.roots["public"] == [None, None]

    def test_are_its_own_for_a_session_within_another(self, sessions, tmp_path):
        sessions.roots = {"one": [], "public": []}
        with AccountHook("one").sql_session("a test"), AccountHook("public").sql_session("a test"):
            pass
        with AccountHook("public").sql_session("a test"), AccountHook("one").sql_session("a test"):
            pass

        assert sessions.roots == {"one": [str(tmp_path / "ca.pem")] * 2, "public": [None, None]}
        assert "REQUESTS_CA_BUNDLE" not in os.environ


class TestTestButton:
    def test_counts_the_channels(self, local_service, conn_id, table):
        commit(local_service, table, "a", ["f:1"])

        assert SnowpipeHook(conn_id, table=table).test_connection() == (
            True,
            f"Credentials accepted, ingest host 127.0.0.1, pipe LOCAL.PUBLIC.{table}-STREAMING is there, "
            "1 channel(s) listed.",
        )
