"""The client against scripted answers: both forms of replies, the retry table, the refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.auth import OAuthToken, ScopedToken
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ChannelError,
    ChannelFencedError,
    ChannelInvalidError,
    ConfigurationError,
    PipeFailedOverError,
    PipeNotFoundError,
    RetriesExhaustedError,
    SnowpipeError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.exchange import base_url
from airflow_provider_snowpipe.streaming.retry import RetryPolicy
from airflow_provider_snowpipe.streaming.transport import Timeouts
from tests.scripted_service import Received, Reply, ScriptedService, error, scoped_token

MakeClient = Callable[..., SnowpipeClient]


def opened(token: str | None = None, code: str = "SUCCESS") -> Reply:
    status = {
        "database_name": "DB", "schema_name": "S", "pipe_name": "T-STREAMING", "channel_name": "c",
        "channel_status_code": code, "last_committed_offset_token": token, "created_on_ms": 1,
        "rows_inserted": 0, "rows_parsed": 0, "rows_error_count": 0,
    }  # fmt: skip
    return Reply(body=json.dumps({"next_continuation_token": "1_0", "channel_status": status}))


APPENDED = Reply(body='{"next_continuation_token":"1_1"}')


def append(client: SnowpipeClient, body: bytes = b'{"a":1}\n') -> str:
    return client.append_rows(
        "c", body, continuation_token="1_0", start_token="f.log:1", end_token="f.log:2",
        content_encoding=None, raw_length=len(body),
    )  # fmt: skip


@pytest.mark.parametrize("body", ["127.0.0.1", ' "127.0.0.1" ', '{"hostname": "127.0.0.1"}', "127.0.0.1\n"])
def test_both_forms_of_the_hostname_reply_are_read(
    service: ScriptedService, client: SnowpipeClient, body: str
) -> None:
    service.on("hostname", Reply(body=body))
    assert client.ingest_host() == "127.0.0.1"
    assert client.ingest_host() == "127.0.0.1"
    assert len(service.requests("hostname")) == 1


def test_underscores_of_the_ingest_host_become_dashes(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("hostname", Reply(body="my_org.example.com"))
    assert client.ingest_host() == "my-org.example.com"


@pytest.mark.parametrize("body", ["", "a b", "host/path", "evil.com:1@x", "<html>"])
def test_a_hostname_reply_that_is_no_host_is_an_error(
    service: ScriptedService, client: SnowpipeClient, body: str
) -> None:
    service.on("hostname", Reply(body=body))
    with pytest.raises(ApiError, match="no usable ingest host"):
        client.ingest_host()


@pytest.mark.parametrize("form", ["raw", "quoted", "token", "access_token"])
def test_every_form_of_the_token_reply_is_read(
    service: ScriptedService, client: SnowpipeClient, form: str
) -> None:
    token = scoped_token()
    body = {"raw": token, "quoted": json.dumps(token)}.get(form) or json.dumps({form: token})
    service.on("token", Reply(body=body))
    assert client.scoped_token().token == token
    assert client.scoped_token().remaining_seconds() > 3500


def test_the_exchange_names_grant_and_scope_and_the_scoped_token_is_used_after(
    service: ScriptedService, make_client: MakeClient
) -> None:
    service.on("c", opened())
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


def test_a_token_reply_without_a_token_is_an_authentication_error(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("token", Reply(body='{"message":"none"}'))
    with pytest.raises(AuthenticationError):
        client.scoped_token()


@pytest.mark.parametrize(
    "failure",
    [Reply(503), Reply(500, "oops"), Reply(429), Reply(408), Reply(404, "<html>"), Reply(hang_up=True)],
)
def test_a_repeated_append_keeps_its_request_id_and_continuation_token(
    service: ScriptedService, client: SnowpipeClient, failure: Reply
) -> None:
    service.on("rows", failure, failure, APPENDED)
    assert append(client) == "1_1"
    attempts = service.requests("rows")
    assert [a.query["retryCount"] for a in attempts] == ["0", "1", "2"]
    assert len({a.query["requestId"] for a in attempts}) == 1
    assert {a.query["continuationToken"] for a in attempts} == {"1_0"}
    assert {a.body for a in attempts} == {b'{"a":1}\n'}
    assert attempts[0].query["startOffsetToken"] == "f.log:1"
    assert attempts[0].query["endOffsetToken"] == "f.log:2"


def test_a_time_out_means_unknown_so_the_same_request_is_sent_again(
    service: ScriptedService, make_client: MakeClient
) -> None:
    service.on("rows", Reply(delay=8.0, body=APPENDED.body), APPENDED)
    client = make_client(timeouts=Timeouts(connect=10, read=2))
    assert append(client) == "1_1"
    first, second = service.requests("rows")
    assert first.query["requestId"] == second.query["requestId"]


def test_two_appends_have_two_request_ids(service: ScriptedService, client: SnowpipeClient) -> None:
    service.on("rows", APPENDED)
    append(client)
    append(client)
    assert len({r.query["requestId"] for r in service.requests("rows")}) == 2


def test_the_budget_is_bounded_and_the_error_says_what_is_unknown(
    service: ScriptedService, make_client: MakeClient
) -> None:
    service.on("rows", Reply(503))
    client = make_client(retry=RetryPolicy(budget_seconds=0.3, initial_seconds=0.05))
    with pytest.raises(RetriesExhaustedError, match=r"'c'.*HTTP 503.*unknown"):
        append(client)


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
    with pytest.raises(RetriesExhaustedError, match="ingest host"):
        closed.ingest_host()


def test_a_refused_scoped_token_is_renewed_and_the_call_repeated(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    tokens = [scoped_token(3000), scoped_token(3100)]
    service.on("token", *(Reply(body=t) for t in tokens))
    service.on("rows", Reply(401), APPENDED)
    assert append(client) == "1_1"
    assert [r.headers["Authorization"].split()[1] for r in service.requests("rows")] == tokens


def test_credentials_that_stay_refused_are_an_error_without_the_secret(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("rows", error(403, "390403", "no"))
    with pytest.raises(AuthenticationError) as caught:
        append(client)
    assert "pat-secret" not in str(caught.value)
    assert len(service.requests("rows")) == 3
    service.on("hostname", error(401, "390144", "JWT token is invalid."))


def test_an_executors_token_is_used_as_it_is_and_never_renewed(
    service: ScriptedService, make_client: MakeClient
) -> None:
    client = make_client(ScopedToken("scoped", "127.0.0.1", 9e9))
    service.on("rows", APPENDED, Reply(401))
    append(client)
    with pytest.raises(AuthenticationError):
        append(client)
    assert not service.requests("hostname")
    assert not service.requests("token")
    with pytest.raises(AuthenticationError, match="expired"):
        append(make_client(ScopedToken("scoped", "127.0.0.1", 1.0)))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (error(409, "STALE_CONTINUATION_TOKEN_SEQUENCER"), ChannelFencedError),
        (error(400, "STALE_CONTINUATION_TOKEN_SEQUENCER"), ChannelFencedError),
        (error(409, "ERR_CHANNEL_MUST_BE_REOPENED_DUE_TO_ROW_SEQ_GAP"), ChannelInvalidError),
        (error(404, "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), ChannelInvalidError),
        (error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), PipeNotFoundError),
        (error(404, "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"), PipeNotFoundError),
        (Reply(410), PipeFailedOverError),
        (error(400, "SOMETHING"), ChannelError),
        (error(413, "TOO_LARGE"), ChannelError),
    ],
)
def test_a_final_refusal_is_not_repeated_and_has_its_own_error(
    service: ScriptedService, client: SnowpipeClient, reply: Reply, kind: type[SnowpipeError]
) -> None:
    service.on("rows", reply)
    with pytest.raises(kind) as caught:
        append(client)
    assert type(caught.value) is kind
    assert len(service.requests("rows")) == 1


def test_opening_tells_uncommitted_rows_apart_and_repeats_an_open_in_progress(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("c", error(409, "ERR_CHANNEL_HAS_UNCOMMITTED_DATA"))
    with pytest.raises(UncommittedRowsError):
        client.open_channel("c")
    service.on("c", error(409, "ERR_OPEN_CHANNEL_IN_PROGRESS"), opened("5"))
    assert client.open_channel("c").status.committed == "5"


def test_a_channel_that_opens_in_a_bad_state_is_refused(
    service: ScriptedService, client: SnowpipeClient
) -> None:
    service.on("c", opened(code="ERR_CHANNEL_MUST_BE_REOPENED"))
    with pytest.raises(ChannelInvalidError, match="ERR_CHANNEL_MUST_BE_REOPENED"):
        client.open_channel("c")


@pytest.mark.parametrize("body", ["", "[]", "null", "{}", '{"next_continuation_token":5}'])
def test_a_malformed_answer_is_an_error_not_a_crash(
    service: ScriptedService, client: SnowpipeClient, body: str
) -> None:
    service.on("rows", Reply(body=body))
    service.on("c", Reply(body=body))
    service.on("bulk-channel-status", Reply(body=body))
    calls: list[Callable[[], Any]] = [
        lambda: append(client), lambda: client.open_channel("c"), lambda: client.channel_statuses(["c"])
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ApiError, match="lacks what the protocol demands"):
            call()


def test_statuses_are_asked_a_hundred_at_a_time(service: ScriptedService, client: SnowpipeClient) -> None:
    def answer(request: Received) -> Reply:
        names = json.loads(request.body)["channel_names"]
        assert len(names) <= 100
        known = {
            n: {"channel_status_code": "SUCCESS", "last_committed_offset_token": n}
            for n in names
            if n != "c7"
        }
        return Reply(body=json.dumps({"channel_statuses": known}))

    service.on("bulk-channel-status", answer)
    names = [f"c{i}" for i in range(250)]
    statuses = client.channel_statuses(names)
    assert list(statuses) == names
    assert statuses["c249"].committed == "c249"
    assert not statuses["c7"].exists
    assert len(service.requests("bulk-channel-status")) == 3


def test_the_certificate_is_checked_and_the_error_says_what_to_set(
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


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("acct.snowflakecomputing.com", "https://acct.snowflakecomputing.com"),
        ("https://127.0.0.1:8443/", "https://127.0.0.1:8443"),
        ("https://127.0.0.1:443", "https://127.0.0.1"),
    ],
)
def test_account_urls_are_normalised(url: str, normal: str) -> None:
    assert base_url(url) == normal


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://", "https://h/path", "https://h:x", "https://u:p@h", "ftp://h", "https://h?q=1"],
)
def test_unusable_account_urls_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        base_url(url)
    assert "u:p" not in str(caught.value)


def test_the_clients_repr_names_the_pipe_and_no_secret(client: SnowpipeClient) -> None:
    assert "DB.S.T-STREAMING" in repr(client)
    assert "pat-secret" not in repr(client)
