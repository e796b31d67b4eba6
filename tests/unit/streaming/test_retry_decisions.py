"""One logical request over its attempts: what is repeated, after which pause; and whether to retry a task."""

import datetime as dt
import json
import math
import random
from email.utils import format_datetime

import pytest

from airflow_provider_snowpipe.streaming import errors, http
from airflow_provider_snowpipe.streaming.errors import Worth, advise
from airflow_provider_snowpipe.streaming.http import Answer, HttpSession, UnreachableError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from tests.jumping_time import JumpingTime
from tests.refusals import refused

POLICY = RetryPolicy(budget_seconds=10, initial_seconds=1, multiplier=2, cap_seconds=5, jitter=0)


@pytest.fixture
def clock(monkeypatch):
    clock = JumpingTime()
    monkeypatch.setattr(http, "time", clock)
    return clock


def _answer(status, code="", retry_after=None):
    return Answer(status, json.dumps({"code": code}).encode() if code else b"", retry_after)


class _Script:
    """A service with these outcomes, the last of which stays, and credentials that can be renewed or not."""

    def __init__(self, *outcomes, renewable=False):
        self._outcomes = outcomes
        self._renewable = renewable
        self.sent = []
        self.renewed = []

    def send(self, method, url, **content):
        outcome = self._outcomes[min(len(self.sent), len(self._outcomes) - 1)]
        self.sent.append(content)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def headers(self):
        return {"Authorization": f"Bearer {len(self.renewed)}"}

    def renew(self, refused):
        self.renewed.append(refused)
        return self._renewable

    def request(self, what="append", policy=POLICY, **content):
        self.session = HttpSession(self, policy, self, numbered=True)
        return self.session.request(what, "POST", "https://h/rows", **content)

    @property
    def made(self):
        return [int(content["query"]["retryCount"]) for content in self.sent]


def test_attempts_of_a_request_are_one_request_and_two_requests_have_two_ids(clock):
    service = _Script(_answer(503), _answer(503), _answer(200))
    content = {"json_body": {"a": 1}, "form": {"b": "2"}, "body": b"rows"}

    service.request(query={"continuationToken": "t"}, headers={"Accept": "x"}, **content)

    first, *others = service.sent
    assert first["query"]["continuationToken"] == "t"
    assert {one["query"]["requestId"] for one in others} == {first["query"]["requestId"]}
    assert first["headers"] == {"Accept": "x", "Authorization": "Bearer 0"}
    assert all({**one, "query": None} == {**first, "query": None} for one in others)
    assert first.items() >= content.items()
    assert service.session.retries == 2
    service.request()
    assert service.sent[-1]["query"]["requestId"] != first["query"]["requestId"]
    assert service.session.retries == 0


def test_error_that_a_service_knows_comes_before_the_table(clock):
    service = _Script(_answer(408, "604"), _answer(200))
    known = {"604": KeyError("select")}
    session = HttpSession(service, POLICY, service, refused=lambda what, answer: known.get(answer.code))
    with pytest.raises(KeyError, match="select"):
        session.request("select", "GET", "u", query={"retry": "true"})
    assert session.request("select", "GET", "u").status == 200
    assert [one["query"] for one in service.sent] == [{"retry": "true"}, {}], "without numbers"


def test_transient_answer_is_repeated_with_its_count_after_the_pause_that_it_asks_for(clock):
    unreachable = UnreachableError("refused")
    service = _Script(_answer(503), _answer(429, retry_after=7), _answer(408), unreachable, _answer(200))
    assert service.request(policy=RetryPolicy(60, 1, 2, 5, 0)).status == 200
    assert (service.made, clock.slept, service.renewed) == ([0, 1, 2, 3, 4], [1, 7, 4, 5], [])


@pytest.mark.parametrize(
    ("outcome", "policy", "pauses", "asked", "words"),
    [
        (_answer(503, retry_after=1.5), RetryPolicy(8, 1, 2, 4, 0), [1.5, 2, 4], 1.5, ("8 s", "4 attempts")),
        (
            _answer(503),
            RetryPolicy(3, 1, 2, 4, 0),
            [1, 2],
            None,
            ("503", "The outcome is unknown; run again"),
        ),
        (UnreachableError("cut off"), POLICY, [1, 2, 4], None, ("cut off", "firewall")),
    ],
    ids=["before a pause that would exceed it", "after one that ends with it", "unreachable"],
)
def test_budget_ends_the_attempts(clock, outcome, policy, pauses, asked, words):
    service = _Script(outcome)
    with pytest.raises(errors.RetriesExhaustedError, match="append") as caught:
        service.request("append to c", policy)
    assert (clock.slept, service.made) == (pauses, list(range(len(pauses) + 1)))
    assert caught.value.retry_after == asked
    assert not [word for word in words if word not in str(caught.value)]


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_renewed_twice(clock, status):
    service = _Script(_answer(status), renewable=True)
    with pytest.raises(errors.AuthenticationError, match="open"):
        service.request("open")
    assert (service.made, clock.slept) == ([0, 1, 2], [1, 2])
    assert service.renewed == [{"Authorization": "Bearer 0"}, {"Authorization": "Bearer 1"}]
    assert service.sent[-1]["headers"]["Authorization"] == "Bearer 2"


def test_credentials_that_cannot_be_renewed_end_the_request_and_accepted_ones_succeed(clock):
    service = _Script(_answer(401))
    with pytest.raises(errors.AuthenticationError):
        service.request("open")
    assert (service.made, clock.slept) == ([0], [])
    for answers in ([401, 401, 200], [503, 503, 401, 200]):  # transient answers are no refusals
        service = _Script(*map(_answer, answers), renewable=True)
        assert service.request(policy=RetryPolicy(60, 1, 2, 5, 0)).status == 200
        assert service.made == list(range(len(answers)))


def test_answer_of_success_is_returned_and_a_final_one_is_not_repeated(clock):
    for status in (200, 299):
        service = _Script(_answer(status))
        assert (service.request().status, service.made) == (status, [0])
    service = _Script(_answer(300, "ERR_X"), _answer(200))
    with pytest.raises(errors.ApiError, match="append") as caught:
        service.request("append to c")
    assert (caught.value.http_status, caught.value.code) == (300, "ERR_X")
    assert (service.made, clock.slept) == ([0], [])


def test_retry_table():
    expected = {
        (407, "ERR_X"): False,
        (408, "ERR_X"): True,
        (409, "ERR_OPEN_CHANNEL_IN_PROGRESS"): True,
        (409, "ERR_OTHER"): False,
        (410, "ERR_OPEN_CHANNEL_IN_PROGRESS"): False,
        (404, ""): True,
        (404, "ERR_PIPE"): False,
        (400, ""): False,
        (429, ""): True,
        (499, "ERR_X"): False,
        (500, "ERR_X"): True,
        (501, ""): True,
    }
    assert {answer: http.is_transient(_answer(*answer)) for answer in expected} == expected


def test_pause_that_is_asked_for_is_a_number_of_seconds_or_a_date():
    later, day = dt.datetime.now(dt.UTC) + dt.timedelta(days=9), 86400
    for value, least, most in [
        ("7", 7, 7),
        (" 7 ", 7, 7),
        ("9" * 400, math.inf, math.inf),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0, 0),
        (format_datetime(later), 8 * day, 9 * day),
        (format_datetime(later.replace(tzinfo=None)), 8 * day, 9 * day),
    ]:
        assert least <= http.retry_after({"Retry-After": value}) <= most
    for value in ("", "soon", "-5", "1.5", "²", "Wed, 99 Oct 2015 07:28:00 GMT"):
        assert http.retry_after({"Retry-After": value}) is None


def test_pause_grows_to_its_cap_and_jitter_shortens_it_by_its_share_at_most(monkeypatch):
    policy = RetryPolicy(initial_seconds=0.5, multiplier=3, cap_seconds=10, jitter=0)
    assert [policy.pause(count, None) for count in (1, 2, 3, 4, 5)] == [0.5, 1.5, 4.5, 10, 10]
    assert (policy.pause(1, 0.4), policy.pause(1, 0.6)) == (0.5, 0.6)
    policy = RetryPolicy(initial_seconds=8, multiplier=1, cap_seconds=20, jitter=0.25)
    for drawn, pause in {0.0: 8, 0.5: 7}.items():
        monkeypatch.setattr(random, "random", lambda drawn=drawn: drawn)
        assert policy.pause(1, None) == pause
    wrong = [("budget_seconds", -0.1), ("initial_seconds", 0), ("multiplier", 0.9)]
    wrong += [("jitter", -0.1), ("jitter", 1.1)]
    refused(errors.ConfigurationError, lambda setting: RetryPolicy(**dict([setting])), wrong)
    RetryPolicy(budget_seconds=0, initial_seconds=0.001, multiplier=1, jitter=1)


def test_advice_is_that_of_the_error_or_of_its_cause():
    wrapped, first, second = RuntimeError("outer"), RuntimeError("a"), RuntimeError("b")
    wrapped.__cause__ = errors.RetriesExhaustedError("x", retry_after=3.0)
    first.__cause__, second.__cause__ = second, first
    for error, worth in {
        errors.ApiError("x", http_status=400): Worth.FAIL,
        wrapped: Worth.RETRY,
        ValueError("x"): Worth.UNKNOWN,
        first: Worth.UNKNOWN,  # a chain that bites its tail
        # What a Spark job ended with is known by its text.
        RuntimeError("noise\nsnowpipe error: CommitTimeoutError: late"): Worth.RETRY,
        RuntimeError("snowpipe error: NoSuchError: x"): Worth.UNKNOWN,
        RuntimeError("snowpipe error: SnowpipeError: x"): Worth.RETRY,
    }.items():
        assert (error, advise(error).worth) == (error, worth)
    assert advise(wrapped).delay_seconds == 3.0
    assert advise(errors.RetriesExhaustedError("x", retry_after=17.0)).delay_seconds == 17.0
    assert advise(errors.RetriesExhaustedError("x")).delay_seconds is None
