"""Which error each channel of a status round gets, and which refusals are asked again in halves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_snowpipe.streaming.commits import PolledStatuses, poll_statuses
from airflow_provider_snowpipe.streaming.errors import ApiError
from airflow_provider_snowpipe.streaming.progress import ChannelStatus


class Source:
    """Refuses every request that names ``bad``."""

    def __init__(self, error: ApiError) -> None:
        self.asked: list[list[str]] = []
        self._error = error

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        self.asked.append(list(names))
        if "bad" in names:
            raise self._error
        return {name: ChannelStatus(name, "SUCCESS", "a:1") for name in names}

    def close(self) -> None:
        raise AssertionError("poll_statuses does not close its client")


@pytest.mark.parametrize(("status", "asked_again"), [(399, False), (400, True), (499, True), (500, False)])
def test_only_a_refusal_of_the_request_is_asked_again_in_halves(status: int, asked_again: bool) -> None:
    source = Source(ApiError("no", http_status=status))

    poll_statuses(source, ["bad", "b", "c", "d"])

    halves = [["bad", "b"], ["bad"], ["b"], ["c", "d"]] if asked_again else []
    assert source.asked == [["bad", "b", "c", "d"], *halves]


@pytest.mark.parametrize("status", [400, 500])
def test_refused_channel_keeps_the_services_own_error(status: int) -> None:
    error = ApiError("no", http_status=status)

    polled = poll_statuses(Source(error), ["bad"])

    assert polled == PolledStatuses({}, {"bad": error})


def test_failed_poll_has_the_same_error_for_every_channel() -> None:
    error = ValueError("no answer")

    assert PolledStatuses.failed(["a", "b"], error) == PolledStatuses({}, {"a": error, "b": error})
