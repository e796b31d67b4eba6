"""SQL through Snowflake's connector against a local service, and over a scripted SQL API."""

import asyncio
import json
import os
import sys
import threading
from functools import partial

import certifi
import pytest
import requests
from snowflake.connector.errors import OperationalError

from airflow_provider_snowpipe.hooks.account import AccountHook
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import COMPARED_SUFFIX
from tests.airflow_connections import PAT
from tests.local_connection import commit, committed, connect, connect_by_form, make_table
from tests.scripted_service import Reply


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
    assert asyncio.run(hook.in_thread(hook.list_channels)) == list(found.values())
    assert hook.test_connection() == (
        True,
        f"Credentials accepted, ingest host 127.0.0.1, pipe LOCAL.PUBLIC.{table}-STREAMING is there, "
        "2 channels listed.",
    )


def test_a_token_is_set_as_a_value_and_never_as_sql(local_service, conn_id, table):
    for channel, token in {
        "a": "f:0", 'it\'s "odd" / 100%': 'it\'s "quoted" \\ 100%', "b": "tab\tand\nline ß€"
    }.items():  # fmt: skip
        commit(local_service, table, channel, ["f:1"])
        SnowpipeHook(conn_id, table=table).set_offset_token(channel, token)
        assert committed(local_service, table, channel) == token


def test_a_token_is_set_in_a_pipe_that_somebody_created(local_service, conn_id, table):
    rows = "SELECT $1:ID::INTEGER, $1:NAME::VARCHAR FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"
    local_service.sql(f"CREATE OR REPLACE PIPE OWN_PIPE AS COPY INTO {table} FROM ({rows})")
    hook = SnowpipeHook(conn_id, pipe="OWN_PIPE")
    with hook.get_client() as client:
        client.open_channel("c", offset_token="f:1")
        hook.set_offset_token("c", "f:9")
        assert client.channel_statuses(["c"])["c"].committed == "f:9"


def test_a_token_of_a_channel_that_is_not_there_is_refused(conn_id, table):
    with pytest.raises(SqlError, match=r"SYSTEM\$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN.*failed"):
        SnowpipeHook(conn_id, table=table).set_offset_token("none", "f:0")
    with pytest.raises(ConfigurationError, match="'none'"):
        SnowpipeHook(conn_id, pipe="OWN").set_offset_token("none", "f:0")


def test_list_of_a_stage_that_is_not_there_names_it_and_what_to_do(conn_id):
    with pytest.raises(SqlError, match=r"NO_SUCH_STAGE.*failed.*CREATE STAGE") as missing:
        SnowpipeBulkHook(conn_id).list_files("@NO_SUCH_STAGE", "in/")
    assert "LIST %s" not in str(missing.value)
    assert not missing.value.retryable
    with pytest.raises(SqlError, match="NO_SUCH_TABLE"):
        SnowpipeBulkHook(conn_id).run_sql("INSERT INTO NO_SUCH_TABLE SELECT %s", [None])


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


def renamed(set_connection, _, **fields):
    return set_connection("other", **fields)


class TestRoots:
    """The roots of a connection are its own: the process, and so every other library in it, has others."""

    @pytest.fixture
    def public(self, local_service, set_connection, table):
        """A connection to the service without its bundle, which the public roots do not sign."""
        conn_id = connect(local_service, partial(renamed, set_connection), extra={"ca_bundle": None})
        return AccountHook(conn_id)

    @pytest.fixture(params=[None, certifi.where()], ids=["no variable", "another bundle"])
    def outside(self, request, monkeypatch):
        for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        if request.param:
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", request.param)

    def test_are_trusted_by_the_connection_only(self, local_service, conn_id, outside, public, tmp_path):
        (tmp_path / f"{tmp_path.name}.csv").write_text("1\n")
        before = dict(os.environ)
        with AccountHook(conn_id).sql_session("a test") as run:
            during = dict(os.environ)
            with pytest.raises(requests.exceptions.SSLError):
                requests.get(local_service.env["SNOWPIPE_LOCAL_URL"], timeout=10)
            with pytest.raises(SqlError, match="250003"):
                public.run_sql("SELECT 1")

            assert run("SELECT 1 AS one") == [{"one": 1}]
            (row,) = run(f"PUT file://{tmp_path}/*.csv @~/roots")

        assert row["status"] == "UPLOADED"
        assert before == during == dict(os.environ)

    def test_do_not_make_a_session_with_others_wait(self, conn_id, set_connection, local_service, tmp_path):
        bundle = tmp_path / "ca.pem"
        bundle.write_bytes(local_service.ca_file.read_bytes())
        named = partial(renamed, set_connection)
        other = AccountHook(connect(local_service, named, extra={"ca_bundle": str(bundle)}))
        answers = []

        with AccountHook(conn_id).sql_session("a test"):
            beside = threading.Thread(target=lambda: answers.extend(other.run_sql("SELECT 1 AS a")))
            beside.start()
            beside.join(30)

        assert answers == [{"a": 1}]


def test_columns_for_keys_are_asked_without_the_connector(conn_id, table, monkeypatch):
    """Each load asks for them, and importing the connector would take half a second."""
    monkeypatch.setitem(sys.modules, "snowflake.connector", None)
    columns = SnowpipeHook(conn_id, table=table).columns_for_keys()
    assert [(one.name, one.nullable) for one in columns] == [("ID", True), ("NAME", True)]


def test_a_statement_runs_with_the_role_of_the_connection(service, set_connection):
    service.on("statements", Reply(422, '{"code": "002003", "message": "Object does not exist"}'))
    extra = {"account": "A", "auth": "programmatic_access_token", "database": "DB", "role": "LOADER"}
    extra["ca_bundle"] = service.ca_bundle
    fields = {"host": service.url, "login": "U", "password": PAT, "schema": "S", "extra": extra}
    with pytest.raises(SqlError, match="exist"):
        SnowpipeHook(set_connection("form", conn_type="snowpipe", **fields), table="T").columns_for_keys()
    assert json.loads(service.requests("statements")[0].body)["role"] == "LOADER"
