"""The transports over real sockets: what only they can show."""

import json

import pytest

from airflow_provider_snowpipe.streaming.auth import OAuthToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.scripted_service import Reply, ScriptedService

APPENDED = Reply(body='{"next_continuation_token":"1_1"}')
OPENED = Reply(body='{"next_continuation_token":"1_0","channel_status":{"channel_status_code":"SUCCESS"}}')


def append(client, body=b'{"a":1}\n'):
    return client.append_rows(
        "c", body, continuation_token="1_0", start_token="f.log:1", end_token="f.log:2",
        content_encoding=None, raw_length=len(body),
    )  # fmt: skip


@pytest.fixture
def other(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    with ScriptedService(folder) as running:
        yield running


def test_the_exchange_names_grant_and_scope_and_the_scoped_token_is_used_after(service, make_client):
    service.on("c", OPENED)
    client = make_client(OAuthToken("oauth-secret"))
    client.open_channel("c")
    exchange, opening = service.requests("token")[0], service.requests("c")[0]
    assert exchange.headers["Authorization"] == "Bearer oauth-secret"
    assert exchange.headers["X-Snowflake-Authorization-Token-Type"] == "OAUTH"
    assert b"scope=127.0.0.1" in exchange.body
    assert b"token-exchange" in exchange.body
    assert opening.method == "PUT"
    assert opening.headers["Authorization"] == f"Bearer {client.scoped_token().token}"
    assert json.loads(opening.body) == {"fail_on_uncommitted_rows": True}


@pytest.mark.parametrize(
    "lost", [Reply(delay=4.0, body=APPENDED.body), Reply(hang_up=True)], ids=["late", "cut"]
)
def test_a_lost_answer_means_unknown_so_the_same_request_is_sent_again(service, make_client, lost):
    service.on("rows", lost, APPENDED)
    assert append(make_client(timeouts=(10.0, 1.0))) == "1_1"
    first, second = service.requests("rows")
    assert (first.query["requestId"], first.body) == (second.query["requestId"], b'{"a":1}\n')
    assert [one.query["retryCount"] for one in (first, second)] == ["0", "1"]


def test_retry_after_is_honoured_within_the_budget(service, make_client):
    service.on("rows", Reply(429, headers={"Retry-After": "60"}))
    with pytest.raises(RetriesExhaustedError):
        append(make_client())
    assert len(service.requests("rows")) == 1


def test_an_unreachable_service_is_an_error_within_the_budget(make_client, service):
    closed = SnowpipeClient(
        "https://127.0.0.1:1", OAuthToken("t"), make_client().pipe, ca_bundle=service.ca_bundle,
        retry=RetryPolicy(budget_seconds=0.2, initial_seconds=0.05),
    )  # fmt: skip
    with pytest.raises(RetriesExhaustedError, match="proxy") as down:
        closed.ingest_host()
    # The library's own text would have the whole URL.
    assert "127.0.0.1:1 does not answer (NewConnectionError)" in str(down.value)
    assert "run again" not in str(down.value)


def test_the_certificate_is_checked_and_a_wrong_or_missing_bundle_is_named(make_client, other):
    with pytest.raises(ConfigurationError, match="ca_bundle"):
        make_client(ca_bundle=other.ca_bundle).ingest_host()
    with pytest.raises(ConfigurationError, match=r"/no/such\.pem"):
        make_client(ca_bundle="/no/such.pem")


def test_a_preset_bundle_of_the_environment_does_not_win_over_the_given_one(
    service, make_client, monkeypatch, other
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", other.ca_bundle)
    service.on("rows", APPENDED)
    assert append(make_client()) == "1_1"
