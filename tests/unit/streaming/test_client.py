"""The client against scripted answers: both forms of replies, the retry table, the refusals."""

import json

import pytest

from airflow_provider_snowpipe.streaming.auth import ScopedToken, base_url
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
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.http import Answer, UnreachableError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.fake_snowpipe import HOST, MISSING, PAT, ROW_SEQ_GAP, STALE, error
from tests.refusals import refused


@pytest.fixture
def client(snowpipe):
    return snowpipe.client()


def append(client, continuation="1_0", body=b'{"a":1}\n', name="c"):
    return client.append_rows(
        name, body, continuation_token=continuation, start_token="f.log:1", end_token="f.log:2",
        content_encoding=None, raw_length=len(body),
    )  # fmt: skip


def answers(snowpipe, operation, body):
    snowpipe.fault(before=operation, error=Answer(200, body.encode()), times=100)


@pytest.mark.parametrize("body", ["127.0.0.1", ' "127.0.0.1" ', '{"hostname": "127.0.0.1"}', "127.0.0.1\n"])
def test_both_forms_of_the_hostname_reply_are_read(snowpipe, client, body):
    answers(snowpipe, "hostname", body)
    assert [client.ingest_host() for _ in range(2)] == ["127.0.0.1"] * 2
    assert snowpipe.did() == ["hostname"]


def test_a_hostname_reply_is_a_host_whose_underscores_become_dashes(snowpipe):
    answers(snowpipe, "hostname", "my_org.example.com")
    assert snowpipe.client().ingest_host() == "my-org.example.com"


@pytest.mark.parametrize("body", ["", "a b", "host/path", "evil.com:1@x", "<html>"])
def test_a_hostname_reply_that_is_no_host_is_an_error(snowpipe, client, body):
    answers(snowpipe, "hostname", body)
    with pytest.raises(ApiError, match="host"):
        client.ingest_host()


@pytest.mark.parametrize("form", ["raw", "quoted", "token", "access_token"])
def test_every_form_of_the_token_reply_is_read(snowpipe, client, form):
    token = snowpipe.scoped_token(3600).token
    body = {"raw": token, "quoted": json.dumps(token)}.get(form) or json.dumps({form: token})
    answers(snowpipe, "token", body)
    assert client.scoped_token().token == token
    assert client.scoped_token().remaining_seconds() > 3500


def test_a_token_reply_without_a_token_is_an_authentication_error(snowpipe, client):
    answers(snowpipe, "token", '{"message":"none"}')
    with pytest.raises(AuthenticationError):
        client.scoped_token()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failure", [error(503), error(404), UnreachableError("cut")], ids=str)
def test_a_repeated_append_keeps_its_request_id_and_continuation_token(snowpipe, client, when, failure):
    token = client.open_channel("c").continuation_token
    snowpipe.fault(**{when: "append"}, error=failure, times=2)
    assert append(client, token) == "1_1"
    attempts = snowpipe.appends()
    assert [a.attempt for a in attempts] == [0, 1, 2]
    assert len({a.query["requestId"] for a in attempts}) == 1
    assert {a.query["continuationToken"] for a in attempts} == {"1_0"}
    assert {a.body for a in attempts} == {b'{"a":1}\n'}
    assert str(attempts[0]) == "append c f.log:1..f.log:2"
    assert snowpipe.channels["c"].rows == [{"a": 1}]
    append(client, "1_1")
    assert snowpipe.appends()[-1].query["requestId"] != attempts[0].query["requestId"]


def test_the_budget_is_bounded_and_the_error_names_what_is_unknown(snowpipe):
    snowpipe.fault(before="append", error=error(503), times=1000)
    with pytest.raises(RetriesExhaustedError, match=r"'c'.*HTTP 503.*unknown"):
        append(snowpipe.client(retry=RetryPolicy(budget_seconds=30)))
    assert 5 < sum(snowpipe.clock.slept) <= 30


@pytest.mark.parametrize(("seconds", "attempts"), [(60.0, 1), (20.0, 2)])
def test_a_pause_that_the_service_asks_for_is_kept_within_the_budget(snowpipe, seconds, attempts):
    snowpipe.fault(before="append", error=error(429, retry_after=seconds), times=1000)
    with pytest.raises(RetriesExhaustedError) as exhausted:
        append(snowpipe.client(retry=RetryPolicy(budget_seconds=30)))
    assert len(snowpipe.appends()) == attempts
    assert exhausted.value.retry_after == seconds


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_scoped_token_is_renewed_and_the_call_repeated(snowpipe, client, status):
    token = client.open_channel("c").continuation_token
    snowpipe.fault(before="append", error=error(status))
    assert append(client, token) == "1_1"
    first, second = snowpipe.appends()
    assert first.bearer != second.bearer
    assert len(snowpipe.did("token")) == 2


def test_a_scoped_token_is_renewed_before_it_expires(snowpipe, client):
    first = client.scoped_token()
    snowpipe.clock.sleep(snowpipe.token_life - 200)
    assert client.scoped_token().token != first.token


def test_credentials_that_stay_refused_are_an_error_without_the_secret(snowpipe, client):
    snowpipe.fault(before="append", error=error(403, "390403", "no"), times=100)
    with pytest.raises(AuthenticationError) as caught:
        append(client)
    assert PAT not in str(caught.value)
    assert len(snowpipe.appends()) == 3
    assert PAT not in repr(client)
    assert "DB.S.T-STREAMING" in repr(client)


def test_an_executors_token_is_used_as_it_is_and_never_renewed(snowpipe):
    client = snowpipe.client(snowpipe.scoped_token())
    token = client.open_channel("c").continuation_token
    snowpipe.fault(before="append", error=error(401))
    with pytest.raises(AuthenticationError):
        append(client, token)
    assert snowpipe.did() == ["open c", "append c f.log:1..f.log:2"]
    with pytest.raises(AuthenticationError, match="expired"):
        append(snowpipe.client(ScopedToken("scoped", HOST, 1.0)))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(409, STALE), ChannelFencedError),
        (error(400, STALE), ChannelFencedError),
        (error(409, ROW_SEQ_GAP), ChannelInvalidError),
        (error(404, MISSING), ChannelInvalidError),
        (error(404, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), PipeNotFoundError),
        (error(404, "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"), PipeNotFoundError),
        (error(410), PipeFailedOverError),
        (error(410, "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"), PipeFailedOverError),
        (error(400, "SOMETHING"), ChannelError),
        (error(413, "TOO_LARGE"), ChannelError),
        (error(302), ChannelError),
    ],
    ids=lambda one: f"{one.status}-{one.code}" if isinstance(one, Answer) else one.__name__,
)
def test_a_final_refusal_is_not_repeated_and_has_its_own_error(snowpipe, client, answer, kind):
    snowpipe.fault(before="append", error=answer, times=100)
    with pytest.raises(kind) as caught:
        append(client)
    assert type(caught.value) is kind
    assert len(snowpipe.appends()) == 1


def test_appends_of_a_session_that_is_over_or_of_a_dropped_channel_are_refused(snowpipe, client):
    token = client.open_channel("c").continuation_token
    snowpipe.open_elsewhere("c")
    with pytest.raises(ChannelFencedError):
        append(client, token)
    client.drop_channel("c")
    for call in (lambda: append(client, "2_0"), lambda: client.drop_channel("c")):
        with pytest.raises(ChannelInvalidError):
            call()


@pytest.mark.parametrize("name", ["eu/orders", "a?b=c#d", "100%20", "é ü"])
def test_a_channel_is_reached_by_its_very_name_whatever_characters_it_has(snowpipe, client, name):
    append(client, client.open_channel(name).continuation_token, name=name)
    client.drop_channel(name)
    did = snowpipe.did("open", "append", "drop")
    assert did == [f"open {name}", f"append {name} f.log:1..f.log:2", f"drop {name}"]


def test_opening_reports_uncommitted_rows_repeats_an_open_in_progress_and_sets_a_given_token(
    snowpipe, client
):
    snowpipe.channel("c", committed="5")
    snowpipe.fault(before="open", error=error(409, "ERR_CHANNEL_HAS_UNCOMMITTED_DATA"))
    with pytest.raises(UncommittedRowsError):
        client.open_channel("c")
    snowpipe.fault(before="open", error=error(409, "ERR_OPEN_CHANNEL_IN_PROGRESS"))
    assert client.open_channel("c").status.committed == "5"
    assert client.open_channel("c", offset_token="8").status.committed == "8"
    assert snowpipe.calls[-1].body == {"fail_on_uncommitted_rows": True, "offset_token": "8"}


def test_a_channel_that_opens_in_a_bad_state_is_refused(snowpipe, client):
    status = {"channel_status_code": "ERR_CHANNEL_MUST_BE_REOPENED"}
    answers(snowpipe, "open", json.dumps({"next_continuation_token": "1_0", "channel_status": status}))
    with pytest.raises(ChannelInvalidError, match="ERR_CHANNEL_MUST_BE_REOPENED"):
        client.open_channel("c")


@pytest.mark.parametrize("body", ["", "[]", "null", "{}", '{"next_continuation_token":5}'])
def test_a_malformed_answer_is_an_error_not_a_crash(snowpipe, client, body):
    for operation in ("append", "open", "status"):
        answers(snowpipe, operation, body)
    for call in (append, lambda one: one.open_channel("c"), lambda one: one.channel_statuses(["c"])):
        with pytest.raises(ApiError, match="protocol"):
            call(client)


def test_statuses_are_asked_a_hundred_at_a_time(snowpipe, client):
    names = [f"c{i}" for i in range(250)]
    for name in names:
        snowpipe.channel(name, committed=name)
    del snowpipe.channels["c7"]
    statuses = client.channel_statuses(names)
    assert list(statuses) == names
    assert statuses["c249"].committed == "c249"
    assert not statuses["c7"].exists
    assert len(snowpipe.did("status")) == 3


def test_account_urls_are_normalised_and_unusable_ones_refused_without_showing_a_password():
    for url, normal in {
        "acct.snowflakecomputing.com": "https://acct.snowflakecomputing.com",
        "https://127.0.0.1:8443/": "https://127.0.0.1:8443",
        "https://127.0.0.1:443": "https://127.0.0.1",
    }.items():
        assert base_url(url) == normal
    urls = ["http://h", "https://", "https://h/path", "https://h:x", "https://u:p@h", "ftp://h"]
    for refusal in refused(ConfigurationError, base_url, [*urls, "https://h?q=1"]):
        assert "u:p" not in str(refusal)
