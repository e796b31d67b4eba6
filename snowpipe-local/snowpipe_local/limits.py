"""Documented limits of Snowpipe Streaming, enforced per channel, pipe and request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snowpipe_local.errors import ConfigurationError, Refusal

# Seconds of allowance that a quiet channel saves up: a client that paces itself by the limit may jitter.
REQUEST_BURST_SECONDS = 3.0
BYTES_BURST_SECONDS = 3.0
RATE_LIMITED = "RATE_LIMIT_EXCEEDED"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one service; the defaults are Snowflake's (documentation, "Snowpipe Streaming limits").

    :param requests_per_second: appends to one named channel; 0 for no limit.
    :param bytes_per_second: uncompressed bytes to one named channel; 0 for no limit.
    :param channels_per_pipe: named channels of one pipe; 0 for no limit.
    :param names_per_status: channel names in one status request.
    :param request_bytes: bytes of one append on the wire.
    :param queued_bytes: bytes of rows of one database that may wait for their commit.
    :param queued_bytes_in_memory: how many of them wait in memory; others wait on disk, encrypted.
    :param session_idle_seconds: a connector's session ends when nothing was asked of it for so long ("Session
        policies": four hours by default).
    :param statement_seconds: a statement of any session is stopped after so long, unless it asks for less by
        ``STATEMENT_TIMEOUT_IN_SECONDS`` ("Parameters": two days by default); 0 for no limit.
    :param engine_bytes: memory of the engine, of all statements together.
    :param result_bytes: memory of the rows of one result.
    """

    requests_per_second: float = 10.0
    bytes_per_second: float = 20_000_000.0
    channels_per_pipe: int = 2_000
    names_per_status: int = 100
    request_bytes: int = 4 << 20
    queued_bytes: int = 256 << 20
    queued_bytes_in_memory: int = 64 << 20
    session_idle_seconds: float = 4 * 3600.0
    statement_seconds: float = 172_800.0
    engine_bytes: int = 1 << 30
    result_bytes: int = 1 << 28


DEFAULTS = Limits()
_AT_LEAST_ONE = ("names-per-status", "request-bytes", "queued-bytes", "session-idle-seconds", "engine-bytes",
                 "result-bytes")  # fmt: skip


def parse_limits(text: str | None) -> Limits:
    """Read the value of ``--limits``: ``name=value`` pairs, separated by commas, or ``off``.

    :param text: for example ``requests-per-second=100,bytes-per-second=0``; None for Snowflake's limits.
        ``off`` switches off the two rates and the number of channels.
    :raises ConfigurationError: for an unknown name or a value out of range.
    """
    if text is not None and text.strip() == "off":
        return Limits(0.0, 0.0, 0)
    values: dict[str, Any] = {}
    for pair in filter(None, (text or "").split(",")):
        name, _, value = pair.strip().partition("=")
        known = name.replace("-", "_")
        if known not in Limits.__dataclass_fields__ or "_" in name:
            names = ", ".join(field.replace("_", "-") for field in Limits.__dataclass_fields__)
            raise ConfigurationError(f"unknown limit '{name}'; known: {names}; or the word off")
        number = _number(name, value)
        if isinstance(getattr(DEFAULTS, known), int) and number % 1:
            raise ConfigurationError(f"limit {name}={value}: must be a whole number")
        values[known] = type(getattr(DEFAULTS, known))(number)
    return Limits(**values)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigurationError(f"limit {name}={value}: not a number") from error
    least = 1.0 if name in _AT_LEAST_ONE else 0.0
    if not least <= number < 1e15:
        raise ConfigurationError(f"limit {name}={value}: must be at least {least:g}")
    return number


class _Bucket:
    """A token bucket that may go into debt, so that one large request is never refused for its size alone."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = burst
        self._filled_at = clock()

    def level(self) -> float:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        return self._level

    def take(self, amount: float) -> None:
        self._level -= amount


class ChannelRate:
    """Rate limits of one channel; not thread-safe, its channel's lock guards it.

    :param limits: limits of the service.
    :param clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        known = (
            (limits.requests_per_second, REQUEST_BURST_SECONDS, "requests/s", "in larger batches"),
            (limits.bytes_per_second, BYTES_BURST_SECONDS, "bytes/s uncompressed", "or use more channels"),
        )
        self._buckets = [
            (_Bucket(rate, max(1.0, rate * seconds), clock), f"{rate:g} {unit}; send again later, {remedy}")
            if rate
            else None
            for rate, seconds, unit, remedy in known
        ]

    def take(self, channel: str, size: int) -> None:
        """Charge one append.

        :param channel: name, for the message.
        :param size: uncompressed bytes.
        :raises Refusal: 429; nothing is charged then.
        """
        for bucket, words in filter(None, self._buckets):
            if bucket.level() < 1:
                raise Refusal(429, RATE_LIMITED, f"channel {channel}: more than {words}")
        for known, amount in zip(self._buckets, (1, size), strict=True):
            if known is not None:
                known[0].take(amount)
