"""One logical request over its attempts: what is repeated, after which pause, for how long."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections.abc import Mapping
from email.utils import format_datetime
from typing import Any, cast

import pytest

from airflow_provider_snowpipe.streaming import http
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.http import (
    Answer,
    HttpSession,
    Transports,
    UnreachableError,
    is_transient,
    refusal,
    retry_after,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy

IN_NINE_DAYS = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)
POLICY = RetryPolicy(budget_seconds=10, initial_seconds=1, multiplier=2, cap_seconds=5, jitter=0)


class Clock:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(http, "time", clock)
    return clock


def _answer(status: int, code: str = "", retry_after: float | None = None) -> Answer:
    return Answer(status, json.dumps({"code": code}).encode() if code else b"", retry_after)


class _Script:
    """A service with these outcomes, the last of which stays, and credentials that can be renewed or not."""

    def __init__(self, *outcomes: Answer | Exception, renewable: bool = False) -> None:
        self._outcomes = outcomes
        self._renewable = renewable
        self.sent: list[dict[str, Any]] = []
        self.renewed: list[Mapping[str, str]] = []

    def send(self, method: str, url: str, **content: Any) -> Answer:
        outcome = self._outcomes[min(len(self.sent), len(self._outcomes) - 1)]
        self.sent.append(content)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {len(self.renewed)}"}

    def renew(self, refused: Mapping[str, str]) -> bool:
        self.renewed.append(refused)
        return self._renewable

    def request(self, what: str = "append", policy: RetryPolicy = POLICY, **content: Any) -> Answer:
        self.session = HttpSession(cast("Transports", self), policy, self, numbered=True)
        return self.session.request(what, "POST", "https://h/rows", **content)

    @property
    def made(self) -> list[int]:
        """The number of each attempt."""
        return [int(content["query"]["retryCount"]) for content in self.sent]


@pytest.mark.parametrize("status", [408, 429, 500, 503, 599])
def test_transient_answer_is_repeated_with_its_count(clock: Clock, status: int) -> None:
    service = _Script(_answer(status), _answer(status), _answer(200))

    assert service.request().status == 200
    assert service.made == [0, 1, 2]
    assert clock.pauses == [1, 2]
    assert service.renewed == []


def test_attempts_of_a_request_are_one_request(clock: Clock) -> None:
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


def test_two_requests_have_two_ids(clock: Clock) -> None:
    service = _Script(_answer(200))

    service.request()
    service.request()

    first, second = service.sent
    assert first["query"]["requestId"] != second["query"]["requestId"]
    assert service.session.retries == 0


def test_session_without_numbers_sends_the_query_as_it_is(clock: Clock) -> None:
    service = _Script(_answer(503), _answer(200))

    HttpSession(cast("Transports", service), POLICY, service).request(
        "r", "GET", "u", query={"retry": "true"}
    )

    assert [one["query"] for one in service.sent] == [{"retry": "true"}, {"retry": "true"}]


def test_error_that_a_service_knows_comes_before_the_table(clock: Clock) -> None:
    service = _Script(_answer(408, "604"), _answer(200))
    session = HttpSession(
        cast("Transports", service),
        POLICY,
        service,
        refused=lambda what, answer: KeyError(what) if answer.code == "604" else None,
    )

    with pytest.raises(KeyError, match="select"):
        session.request("select", "GET", "u")
    assert len(service.sent) == 1
    assert session.request("select", "GET", "u").status == 200


def test_unreachable_service_is_tried_again(clock: Clock) -> None:
    service = _Script(UnreachableError("refused"), _answer(200))

    assert service.request().status == 200
    assert service.made == [0, 1]
    assert clock.pauses == [1]


def test_pause_that_the_service_asks_for_is_kept(clock: Clock) -> None:
    service = _Script(_answer(429, retry_after=7), UnreachableError("refused"), _answer(200))

    service.request()

    assert clock.pauses == [7, 2]


def test_budget_ends_before_a_pause_that_would_exceed_it(clock: Clock) -> None:
    service = _Script(_answer(503, retry_after=1.5))

    with pytest.raises(RetriesExhaustedError) as caught:
        service.request("append to c", RetryPolicy(8, 1, 2, 4, 0))

    assert clock.pauses == [1.5, 2, 4]
    assert service.made == [0, 1, 2, 3]
    assert caught.value.retry_after == 1.5
    remedy = "The outcome is unknown; run again, which resumes from the committed token"
    for part in ("append to c", "8 s", "4 attempts", "503", remedy):
        assert part in str(caught.value)


def test_pause_that_ends_with_the_budget_is_made(clock: Clock) -> None:
    service = _Script(_answer(503))

    with pytest.raises(RetriesExhaustedError) as caught:
        service.request("append", RetryPolicy(3, 1, 2, 4, 0))

    assert (clock.pauses, service.made) == ([1, 2], [0, 1, 2])
    assert caught.value.retry_after is None


def test_service_that_stays_unreachable_is_reported_with_the_last_reason(clock: Clock) -> None:
    service = _Script(UnreachableError("connection refused"))

    with pytest.raises(RetriesExhaustedError) as caught:
        service.request()

    assert "connection refused" in str(caught.value)
    assert "firewall" in str(caught.value)
    assert caught.value.retry_after is None
    assert clock.pauses == [1, 2, 4]


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_renewed_twice(clock: Clock, status: int) -> None:
    service = _Script(_answer(status), renewable=True)

    with pytest.raises(AuthenticationError) as caught:
        service.request("open")

    assert (service.made, clock.pauses) == ([0, 1, 2], [1, 2])
    assert service.renewed == [{"Authorization": "Bearer 0"}, {"Authorization": "Bearer 1"}]
    assert service.sent[-1]["headers"]["Authorization"] == "Bearer 2"
    assert "open" in str(caught.value)


def test_credentials_that_cannot_be_renewed_end_the_request(clock: Clock) -> None:
    service = _Script(_answer(401))

    with pytest.raises(AuthenticationError):
        service.request("open")

    assert (service.made, clock.pauses) == ([0], [])


def test_renewed_credentials_that_are_accepted_succeed(clock: Clock) -> None:
    service = _Script(_answer(401), _answer(401), _answer(200), renewable=True)

    assert service.request("open").status == 200
    assert service.made == [0, 1, 2]


def test_answers_that_are_transient_are_no_refused_credentials(clock: Clock) -> None:
    service = _Script(_answer(503), _answer(503), _answer(401), _answer(200), renewable=True)

    assert service.request(policy=RetryPolicy(60, 1, 2, 5, 0)).status == 200
    assert service.made == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [200, 204, 299])
def test_answer_of_success_is_returned(clock: Clock, status: int) -> None:
    service = _Script(_answer(status))

    assert service.request().status == status
    assert service.made == [0]


@pytest.mark.parametrize(
    ("status", "code"), [(300, ""), (400, ""), (404, "ERR_X"), (409, "ERR_STALE"), (413, "")]
)
def test_final_answer_is_not_repeated(clock: Clock, status: int, code: str) -> None:
    service = _Script(_answer(status, code), _answer(200))

    with pytest.raises(ApiError) as caught:
        service.request("append to c")

    assert (caught.value.http_status, caught.value.code) == (status, code)
    assert "append to c" in str(caught.value)
    assert service.made == [0]
    assert clock.pauses == []


@pytest.mark.parametrize(
    ("status", "code", "transient"),
    [
        (407, "ERR_X", False),
        (408, "ERR_X", True),
        (409, "ERR_OPEN_CHANNEL_IN_PROGRESS", True),
        (409, "ERR_OTHER", False),
        (410, "ERR_OPEN_CHANNEL_IN_PROGRESS", False),
        (404, "", True),
        (404, "ERR_PIPE", False),
        (400, "", False),
        (429, "", True),
        (499, "ERR_X", False),
        (500, "ERR_X", True),
        (501, "", True),
    ],
)
def test_retry_table(status: int, code: str, transient: bool) -> None:
    assert is_transient(_answer(status, code)) is transient


def test_pipe_that_failed_over_has_an_error_of_its_own() -> None:
    error = refusal("append to c", _answer(410, "ERR_GONE"))

    assert type(error) is PipeFailedOverError
    assert (error.http_status, error.code) == (410, "ERR_GONE")
    assert "append to c" in str(error)


def test_other_refusal_is_the_services_own() -> None:
    error = refusal("append to c", _answer(411, "ERR_X"))

    assert type(error) is ApiError
    assert (error.http_status, error.code) == (411, "ERR_X")


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("7", 7, 7),
        (" 7 ", 7, 7),
        ("9" * 400, math.inf, math.inf),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0, 0),
        # Processes that run these tests beside each other import them at different seconds.
        pytest.param(format_datetime(IN_NINE_DAYS), 8 * 86400, 9 * 86400, id="zoned"),
        pytest.param(format_datetime(IN_NINE_DAYS.replace(tzinfo=None)), 8 * 86400, 9 * 86400, id="zoneless"),
    ],
)  # fmt: skip
def test_pause_that_is_asked_for_is_a_number_of_seconds_or_a_date(
    value: str, least: float, most: float
) -> None:
    found = retry_after({"Retry-After": value})

    assert found is not None
    assert least <= found <= most


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "²", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_pause_that_nobody_can_read_is_none(value: str) -> None:
    assert retry_after({"Retry-After": value}) is None


def test_pause_grows_to_its_cap() -> None:
    policy = RetryPolicy(initial_seconds=0.5, multiplier=3, cap_seconds=10, jitter=0)

    assert [policy.pause(count, None) for count in (1, 2, 3, 4, 5)] == [0.5, 1.5, 4.5, 10, 10]
    assert policy.pause(1, 0.4) == 0.5
    assert policy.pause(1, 0.6) == 0.6


def test_jitter_shortens_the_pause_by_its_share_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetryPolicy(initial_seconds=8, multiplier=1, cap_seconds=20, jitter=0.25)

    monkeypatch.setattr(random, "random", lambda: 0.0)
    assert policy.pause(1, None) == 8
    monkeypatch.setattr(random, "random", lambda: 0.5)
    assert policy.pause(1, None) == 7


@pytest.mark.parametrize(
    "setting",
    [
        {"budget_seconds": -0.1},
        {"initial_seconds": 0},
        {"multiplier": 0.9},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_setting_that_makes_no_sense_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**setting)


def test_settings_at_their_limits_are_accepted() -> None:
    RetryPolicy(budget_seconds=0, initial_seconds=0.001, multiplier=1, jitter=0)
    RetryPolicy(budget_seconds=0.5, jitter=1)
