"""One round of status requests: whose failure is whose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from airflow_provider_snowpipe.streaming.commits import poll_statuses
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    PipeFailedOverError,
    PipeNotFoundError,
    RetriesExhaustedError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

NAMES = [f"c{number:03}" for number in range(250)]


class Source:
    """A client whose answers a test prescribes, request by request."""

    def __init__(self, refuse: Callable[[Sequence[str]], SnowpipeError | None] = lambda _: None) -> None:
        self.asked: list[list[str]] = []
        self._refuse = refuse

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        self.asked.append(list(names))
        error = self._refuse(names)
        if error is not None:
            raise error
        return {name: ChannelStatus(name, "SUCCESS", "a:1") for name in names}

    def close(self) -> None:
        raise AssertionError("a poll does not close its client")


def test_asks_after_a_hundred_channels_a_request() -> None:
    source = Source()

    polled = poll_statuses(source, NAMES)

    assert [len(names) for names in source.asked] == [100, 100, 50]
    assert list(polled.statuses) == NAMES
    assert polled.errors == {}


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_name_that_is_refused_harms_no_other(status: int) -> None:
    source = Source(lambda names: ApiError("bad", http_status=status) if "c142" in names else None)

    polled = poll_statuses(source, NAMES)

    assert list(polled.errors) == ["c142"]
    assert sorted(polled.statuses) == [name for name in NAMES if name != "c142"]
    assert len(source.asked) <= 3 + 2 * 7


def test_an_answer_that_makes_no_sense_is_not_asked_for_again() -> None:
    source = Source(lambda names: ApiError("malformed", http_status=200) if "c000" in names else None)

    polled = poll_statuses(source, NAMES)

    assert len(source.asked) == 3
    assert sorted(polled.errors) == NAMES[:100]


@pytest.mark.parametrize(
    "error",
    [
        RetriesExhaustedError("unreachable"),
        AuthenticationError("refused"),
        PipeFailedOverError("moved", http_status=410),
        PipeNotFoundError("no pipe", http_status=404),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outage_is_met_once_and_not_for_every_hundred(error: SnowpipeError) -> None:
    source = Source(lambda names: error if "c100" in names else None)

    polled = poll_statuses(source, NAMES)

    assert len(source.asked) == 2
    assert sorted(polled.statuses) == NAMES[:100]
    assert polled.errors == dict.fromkeys(NAMES[100:], error)
