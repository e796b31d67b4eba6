"""The transports over real sockets: what only they can show."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.auth import OAuthToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.http import Timeouts
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.scripted_service import Reply, ScriptedService

MakeClient = Callable[..., SnowpipeClient]
APPENDED = Reply(body='{"next_continuation_token":"1_1"}')
OPENED = Reply(body='{"next_continuation_token":"1_0","channel_status":{"channel_status_code":"SUCCESS"}}')


def append(client: SnowpipeClient, body: bytes = b'{"a":1}\n') -> str:
    return client.append_rows(
        "c", body, continuation_token="1_0", start_token="f.log:1", end_token="f.log:2",
        content_encoding=None, raw_length=len(body),
    )  # fmt: skip


def test_the_exchange_names_grant_and_scope_and_the_scoped_token_is_used_after(
    service: ScriptedService, make_client: MakeClient
) -> None:
    service.on("c", OPENED)
    client = make_client(OAuthToken("oauth-secret"))
    client.open_channel("c")
    exchange = service.requests("token")[0]
    assert exchange.headers["Authorization"] == "Bearer oauth-secret"
    assert exchange.headers["X-Snowflake-Authorization-Token-Type"] == "OAUTH"
    assert b"scope=127.0.0.1" in exchange.body
    assert b"token-exchange" in exchange.body
    opening = service.requests("c")[0]
    assert opening.method == "PUT"
    assert opening.headers["Authorization"] == f"Bearer {client.scoped_token().token}"
    assert json.loads(opening.body) == {"fail_on_uncommitted_rows": True}


def test_a_time_out_means_unknown_so_the_same_request_is_sent_again(
    service: ScriptedService, make_client: MakeClient
) -> None:
    service.on("rows", Reply(delay=4.0, body=APPENDED.body), APPENDED)
    client = make_client(timeouts=Timeouts(connect=10, read=1))
    assert append(client) == "1_1"
    first, second = service.requests("rows")
    assert first.query["requestId"] == second.query["requestId"]


def test_retry_after_is_honoured_within_the_budget(service: ScriptedService, make_client: MakeClient) -> None:
    service.on("rows", Reply(429, headers={"Retry-After": "60"}))
    with pytest.raises(RetriesExhaustedError):
        append(make_client())
    assert len(service.requests("rows")) == 1


def test_an_unreachable_service_is_an_error_within_the_budget(
    make_client: MakeClient, service: ScriptedService
) -> None:
    closed = SnowpipeClient(
        "https://127.0.0.1:1", OAuthToken("t"), make_client().pipe, ca_bundle=service.ca_bundle,
        retry=RetryPolicy(budget_seconds=0.2, initial_seconds=0.05),
    )  # fmt: skip
    with pytest.raises(RetriesExhaustedError, match="ingest host") as down:
        closed.ingest_host()
    # The library's own text would have the whole URL.
    assert "127.0.0.1:1 does not answer (ConnectionError)" in str(down.value)
    assert "proxy" in str(down.value)
    assert "run again" not in str(down.value)


def test_the_certificate_is_checked_and_the_error_names_the_setting(
    make_client: MakeClient, tmp_path: Any
) -> None:
    with ScriptedService(_folder(tmp_path)) as other:
        client = make_client(ca_bundle=other.ca_bundle)
        with pytest.raises(ConfigurationError, match="ca_bundle"):
            client.ingest_host()


def _folder(parent: Any) -> Any:
    folder = parent / "other"
    folder.mkdir()
    return folder


def test_a_preset_bundle_of_the_environment_does_not_win_over_the_given_one(
    service: ScriptedService, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with ScriptedService(_folder(tmp_path)) as other:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", other.ca_bundle)
        service.on("rows", APPENDED)
        assert append(make_client()) == "1_1"


def test_a_missing_bundle_is_refused_at_once(make_client: MakeClient) -> None:
    with pytest.raises(ConfigurationError, match=r"/no/such\.pem"):
        make_client(ca_bundle="/no/such.pem")


def test_a_cut_connection_means_unknown_so_the_same_request_is_sent_again(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("rows", Reply(hang_up=True), APPENDED)
    assert append(client) == "1_1"
    first, second = service.requests("rows")
    assert (first.query["requestId"], first.body) == (second.query["requestId"], b'{"a":1}\n')
    assert [one.query["retryCount"] for one in (first, second)] == ["0", "1"]
