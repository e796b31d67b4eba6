"""The documented limits of the service, the limits of a channel as the writer keeps them, and retry budgets.

Light to import: DAG files and job plans are checked against these before anything else is loaded.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_LIMITATIONS = (
    'page "Limitations and considerations for Snowpipe Streaming with high-performance architecture"'
)
_STATE = "as of September 2026"


@dataclass(frozen=True, slots=True)
class DocumentedLimit:
    """A limit of the service that Snowflake has published."""

    value: float
    unit: str
    source: str


# All of one state of the documentation: older pages pair 12 MB/s for a channel with 10 GB/s for a table.
CHANNEL_BYTES_PER_SECOND = DocumentedLimit(
    20e6, "uncompressed bytes per channel", f"{_LIMITATIONS}, {_STATE}: raised on request"
)
TABLE_BYTES_PER_SECOND = DocumentedLimit(20e9, "uncompressed bytes per table", f"{_LIMITATIONS}, {_STATE}")
CHANNEL_REQUESTS_PER_SECOND = DocumentedLimit(10.0, "requests per channel", f"{_LIMITATIONS}, {_STATE}")
REQUEST_BYTES = DocumentedLimit(4e6, "bytes of a request as sent", f"{_LIMITATIONS}, {_STATE}")
STREAM_LATENCY = DocumentedLimit(
    5.0, "s until a row can be queried", f'page "Snowpipe Streaming", {_STATE}: as low as 5 s'
)

FIRST_POLL_SECONDS, POLL_GROWTH, LONGEST_POLL_SECONDS = 0.05, 1.4, 1.0
"""Pauses of who waits for a channel's commit by itself: the first one, by what each grows, the longest."""

WIRE_LIMIT_BYTES = int(REQUEST_BYTES.value)


# pragma: no mutate start (limits are tested as a whole)

CHANNEL_LIFE = dt.timedelta(days=30)
"""The service deletes a channel that takes no rows for so long, with its token (the same page)."""
_QUIET = dt.timedelta(days=7)
_RENEWED_AT_ONCE = 20
_DAYS_LEFT = 20
"""Where more are quiet, so many days are left to renew all of them, by a run a day."""


def quiet_channels(since: Mapping[str, dt.datetime], now: dt.datetime) -> list[str]:
    """The channels to open again before they expire, those first that have been quiet the longest.

    :param since: when each channel took rows or was opened last, as far as is known; with a time zone
    """
    due = sorted((name for name, then in since.items() if now - then >= _QUIET), key=since.__getitem__)
    return due[: max(_RENEWED_AT_ONCE, math.ceil(len(due) / _DAYS_LEFT))]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch closes (whichever comes first), and how fast batches may follow each other.

    :param wire_bytes: bytes of a body as sent, at most 4,000,000
    :param raw_bytes: bytes of NDJSON in a batch
    :param rows: rows in a batch
    :param age_seconds: age of the first row in a batch
    :param requests_per_second: appends to one channel
    :param bytes_per_second: NDJSON bytes to one channel, None for no limit
    :param compression: ``zstd``, ``gzip`` or ``none``
    """

    wire_bytes: int = WIRE_LIMIT_BYTES
    raw_bytes: int = 16 * 1024 * 1024
    rows: int = 1_000_000
    age_seconds: float = 1.0
    requests_per_second: float = CHANNEL_REQUESTS_PER_SECOND.value
    bytes_per_second: float | None = CHANNEL_BYTES_PER_SECOND.value
    compression: str = "zstd"

    def __post_init__(self) -> None:
        for name in ("wire_bytes", "raw_bytes", "rows", "age_seconds", "requests_per_second"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"batch limit {name} is {getattr(self, name)}: it must be above 0")
        if self.wire_bytes > WIRE_LIMIT_BYTES:
            raise ConfigurationError(
                f"batch limit wire_bytes is {self.wire_bytes}: the service takes {WIRE_LIMIT_BYTES} at most"
            )
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ConfigurationError(
                f"batch limit bytes_per_second is {self.bytes_per_second}: it must be above 0, or None"
            )
        check_one_of("compression", self.compression, ("zstd", "gzip", "none"))


# pragma: no mutate end


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often one logical request is repeated."""

    budget_seconds: float = 120.0
    initial_seconds: float = 0.5
    multiplier: float = 2.0
    cap_seconds: float = 20.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.budget_seconds < 0 or self.initial_seconds <= 0 or self.multiplier < 1:
            raise ConfigurationError(
                f"{self} is not usable: budget_seconds >= 0, initial_seconds > 0, multiplier >= 1"
            )
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"retry jitter is {self.jitter}: it must lie between 0 and 1")

    def pause(self, retry_count: int, retry_after: float | None) -> float:
        """Seconds to wait before repetition ``retry_count`` (the first one is 1)."""
        pause = min(self.initial_seconds * self.multiplier ** (retry_count - 1), self.cap_seconds)
        pause *= 1 - self.jitter * random.random()  # noqa: S311  spreads repetitions, guards no secret
        return max(pause, retry_after or 0.0)


DEFAULT_RETRY = RetryPolicy()
