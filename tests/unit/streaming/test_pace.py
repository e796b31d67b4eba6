"""How fast appends of one channel may follow each other."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.streaming.batch import BURST_SECONDS, Pace
from airflow_provider_snowpipe.streaming.limits import BatchLimits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _send_as_fast_as_allowed(limits: BatchLimits, raw_bytes: int, seconds: float) -> list[float]:
    """The timestamps of the appends of a writer that always has the next one ready."""
    clock = Clock()
    pace = Pace(limits, clock)
    timestamps: list[float] = []
    while clock.now < 100.0 + seconds:
        wait = pace.take(raw_bytes)
        if wait > 0:
            clock.now += max(wait, 1e-6)
            continue
        timestamps.append(clock.now - 100.0)
    return timestamps


def test_what_fits_the_saved_allowance_is_sent_at_once() -> None:
    timestamps = _send_as_fast_as_allowed(BatchLimits(bytes_per_second=20e6), 10_000_000, 10.0)

    assert timestamps[:5] == [0.0, 0.0, 0.0, 0.0, pytest.approx(0.0)]
    assert timestamps[5] == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_bytes_keep_the_rate_over_time(seconds: float) -> None:
    size = 3_000_000
    timestamps = _send_as_fast_as_allowed(BatchLimits(bytes_per_second=20e6), size, seconds)

    assert 20e6 * seconds < len(timestamps) * size <= 20e6 * (seconds + BURST_SECONDS) + size


def test_small_appends_keep_the_rate_of_requests() -> None:
    timestamps = _send_as_fast_as_allowed(BatchLimits(requests_per_second=10.0), 100, 30.0)

    assert len(timestamps) == pytest.approx(10.0 * (30.0 + BURST_SECONDS), abs=2)


def test_without_a_rate_of_bytes_only_requests_count() -> None:
    timestamps = _send_as_fast_as_allowed(
        BatchLimits(bytes_per_second=None, requests_per_second=5.0), 10**9, 10.0
    )

    assert len(timestamps) == pytest.approx(5.0 * (10.0 + BURST_SECONDS), abs=2)
