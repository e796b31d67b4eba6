"""The transports over real sockets: what only they can show."""

import json

import pytest

from airflow_provider_snowpipe.streaming.auth import OAuthToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.fake_snowpipe import PIPE
from tests.scripted_service import Reply, ScriptedService

APPENDED = Reply(body='{"next_continuation_token":"1_1"}')
OPENED = Reply(body='{"next_continuation_token":"1_0","channel_status":{"channel_status_code":"SUCCESS"}}')
QUICK = RetryPolicy(budget_seconds=30, initial_seconds=0.02, cap_seconds=0.1)


@pytest.fixture
def other(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    with ScriptedService(folder) as running:
        yield running


@pytest.fixture
def client_of(service):
    made = []

    def make(url=service.url, **options):
        given = {"retry": QUICK, "timeouts": (30.0, 30.0), "ca_bundle": service.ca_bundle, **options}
        made.append(SnowpipeClient(url, OAuthToken("oauth-secret"), PIPE, **given))
        return made[-1]

    yield make
    for client in made:
        client.close()


def append(client, body=b'{"a":1}\n'):
    tokens = {"continuation_token": "1_0", "start_token": "f.log:1", "end_token": "f.log:2"}
    return client.append_rows("c", body, **tokens, content_encoding=None, raw_length=len(body))


def test_the_exchange_names_grant_and_scope_and_the_scoped_token_is_used_after(service, client_of):
    service.on("c", OPENED)
    client = client_of()
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
def test_a_lost_answer_means_unknown_so_the_same_request_is_sent_again(service, client_of, lost):
    service.on("rows", lost, APPENDED)
    assert append(client_of(timeouts=(10.0, 1.0))) == "1_1"
    first, second = service.requests("rows")
    assert (first.query["requestId"], first.body) == (second.query["requestId"], b'{"a":1}\n')
    assert [one.query["retryCount"] for one in (first, second)] == ["0", "1"]


def test_an_unreachable_service_is_an_error_within_the_budget_and_retry_after_is_honoured(service, client_of):
    closed = client_of("https://127.0.0.1:1", retry=RetryPolicy(budget_seconds=0.2, initial_seconds=0.05))
    with pytest.raises(RetriesExhaustedError, match="proxy") as down:
        closed.ingest_host()
    # The library's own text would have the whole URL.
    assert "127.0.0.1:1 does not answer (NewConnectionError)" in str(down.value)
    assert "run again" not in str(down.value)
    service.on("rows", Reply(429, headers={"Retry-After": "60"}))
    with pytest.raises(RetriesExhaustedError):
        append(client_of())
    assert len(service.requests("rows")) == 1


def test_the_certificate_is_checked_by_the_given_bundle_alone(service, client_of, monkeypatch, other):
    with pytest.raises(ConfigurationError, match="ca_bundle"):
        client_of(ca_bundle=other.ca_bundle).ingest_host()
    with pytest.raises(ConfigurationError, match=r"/no/such\.pem"):
        client_of(ca_bundle="/no/such.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", other.ca_bundle)
    service.on("rows", APPENDED)
    assert append(client_of()) == "1_1"
