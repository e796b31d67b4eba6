"""How fast appends of one channel may follow each other."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_snowpipe.streaming.limits import BatchLimits

BURST_SECONDS = 2.0
"""Allowance that a quiet channel saves up: the limits are rates, and a short load is over before one is."""


class Pace:
    """Keeps a channel within its requests and bytes a second, counted over more than :data:`BURST_SECONDS`.

    :param limits: the two rates
    :param clock: seconds that only go forward
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests = _Allowance(limits.requests_per_second, clock())
        rate = limits.bytes_per_second
        self._bytes = None if rate is None else _Allowance(rate, clock())

    def seconds_to_wait(self) -> float:
        """Seconds until the next append may be sent, 0 or less if it may now."""
        now = self._clock()
        wait = self._requests.seconds_until(1.0, now)
        if self._bytes is None:
            return wait
        return max(wait, self._bytes.seconds_until(0.0, now))

    def sent(self, raw_bytes: int) -> None:
        """Count an append.

        :param raw_bytes: its bytes of NDJSON
        """
        now = self._clock()
        self._requests.take(1.0, now)
        if self._bytes is not None:
            self._bytes.take(raw_bytes, now)


class _Allowance:
    """An amount that grows with time up to a bound, and may go into debt by one append's size."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_SECONDS)
        self._left = self._most
        self._at = now

    def take(self, amount: float, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self._rate) - amount
        self._at = now

    def seconds_until(self, amount: float, now: float) -> float:
        return (amount - self._left) / self._rate - (now - self._at)
