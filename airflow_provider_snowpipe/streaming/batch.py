"""When a batch of rows is closed, and how it is compressed to fit the wire."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset

if TYPE_CHECKING:
    import pyarrow as pa

_FILL = 0.85
"""Share of the wire limit that a batch is expected to take."""
_FIRST_RATIO = 2.0
_RATIO_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A record that is not a row, because it cannot be decoded."""

    position: Offset
    reason: str
    payload: bytes = field(repr=False)
    key: bytes | None = field(default=None, repr=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are appended in one call and never divided.

    What is not a row takes part with its positions alone. A part without rows is not appended.

    :param body: NDJSON, every row ended by a newline
    :param positions: the position of a row by its number from 0; None where they follow without a gap
    :param undecoded: the records from ``start`` to ``end`` that are not rows, because they cannot be decoded
    :param types: types of columns, by name, where the source has a schema that has more than the rows
    """

    body: bytes | memoryview = field(repr=False)
    start: Offset
    end: Offset
    rows: int
    positions: Callable[[int], Offset] | None = field(default=None, repr=False, compare=False)
    undecoded: tuple[Undecoded, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(slots=True)
class AdmittedParts:
    """The rows of a channel that are sent, in parts that leave no position out.

    A part without an admitted row belongs to its neighbours: the part before ends where it ends, or,
    where there is none, the next one begins where it begins. So the offset token passes what is put aside.
    Each part is given when the next one that has rows was admitted.

    :param stop_at: the time from which on no further part is taken, seconds since 1970
    """

    parts: Iterable[Part]
    admit: Callable[[Part], Part | None]
    stop_at: float = math.inf
    complete: bool = field(default=True, init=False)
    """False if a part was left because its time was over."""
    passed: Offset | None = field(default=None, init=False)
    """The last position of all parts as long as none of them has rows, so that no append carries it."""

    def __iter__(self) -> Iterator[Part]:
        held: Part | None = None
        start: Offset | None = None
        for part in self.parts:
            if time.time() >= self.stop_at:
                self.complete = False
                break
            good = self.admit(part)
            if good is not None:
                if held is not None:
                    yield held
                held = good if start is None else replace(good, start=start)
                start = self.passed = None
            elif held is not None:
                held = replace(held, end=part.end)
            else:
                start = part.start if start is None else start
                self.passed = part.end
        if held is not None:
            yield held


@dataclass(frozen=True, slots=True)
class Batch:
    """A closed batch, ready to be sent."""

    body: bytes = field(repr=False)
    encoding: str | None
    raw_bytes: int
    rows: int
    start: Offset
    end: Offset


@dataclass(slots=True)
class OpenBatch:
    """Parts that wait to be closed into one batch."""

    limits: BatchLimits
    parts: list[Part] = field(init=False, default_factory=list)
    raw_bytes: int = field(init=False, default=0)
    rows: int = field(init=False, default=0)
    closes_at: float | None = field(init=False, default=None)
    """When it is too old to wait, by ``time.monotonic``; None while it is empty."""

    def add(self, part: Part) -> None:
        """Put a part behind the others."""
        if self.closes_at is None:
            self.closes_at = time.monotonic() + self.limits.age_seconds
        self.parts.append(part)
        self.raw_bytes += len(part.body)
        self.rows += part.rows

    def take(self, ratio: float = 0.0, following: int = 0) -> list[Part]:
        """Empty the batch if it is full, and return what was in it; nothing while it is not."""
        room = min(self.limits.raw_bytes, int(self.limits.wire_bytes * _FILL * ratio)) - following
        if self.raw_bytes <= room and self.rows < self.limits.rows:
            return []
        parts, self.parts, self.raw_bytes, self.rows = self.parts, [], 0, 0
        self.closes_at = None
        return parts


class Compressor:
    """Closes parts into batches that fit the wire, learning how well the rows compress.

    Two threads may ask it at the same time; one of them waits, since Arrow's codec of gzip has a state.

    ``ratio`` is how many bytes of NDJSON are expected to become one byte as sent.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self.ratio = 1.0 if limits.compression == "none" else _FIRST_RATIO
        self._is_guess = True
        self._lock = RLock()
        self._codec: pa.Codec | None = None
        if limits.compression != "none":
            # Whoever only looks for new rows need not wait for it.
            import pyarrow as pa

            self._codec = pa.Codec(limits.compression, compression_level=1)

    def close(self, parts: Sequence[Part]) -> list[Batch]:
        """Turn parts into batches, one where it fits, more where it compresses worse than expected."""
        with self._lock:
            body = b"".join(p.body for p in parts)
            sent = body if self._codec is None else self._codec.compress(body, asbytes=True)
            if len(sent) > self._limits.wire_bytes:
                self.ratio, self._is_guess = max(1.0, len(body) / len(sent)), False
                return self._split(parts, len(sent))
            ratio = len(body) / len(sent)
            self.ratio = ratio if self._is_guess else self.ratio + _RATIO_WEIGHT * (ratio - self.ratio)
            self._is_guess = False
        encoding = None if self._codec is None else self._limits.compression
        rows = sum(p.rows for p in parts)
        return [Batch(sent, encoding, len(body), rows, parts[0].start, parts[-1].end)]

    def _split(self, parts: Sequence[Part], wire_bytes: int) -> list[Batch]:
        if len(parts) == 1:
            raise ConfigurationError(
                f"rows {parts[0].start} to {parts[0].end} take {wire_bytes} bytes as sent, the limit is "
                f"{self._limits.wire_bytes}: append fewer at once, and load a single one by COPY INTO"
            )
        count = min(len(parts), 1 + wire_bytes // self._limits.wire_bytes)
        cuts = [round(i * len(parts) / count) for i in range(count + 1)]
        return [batch for low, high in pairwise(cuts) for batch in self.close(parts[low:high])]


# -- How fast appends of one channel may follow each other -----------------------------------------------

BURST_SECONDS = 2.0
"""Allowance that a quiet channel saves up: the limits are rates, and a short load is over before one is."""


# pragma: no mutate start (rates are tested as a whole)


class Pace:
    """Keeps a channel within its requests and bytes a second, counted over more than :data:`BURST_SECONDS`.

    Of each there is an amount left that grows with time up to a bound, and may go into debt by one append.
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        rates = (limits.requests_per_second, limits.bytes_per_second)
        self._rates = [rate for rate in rates if rate is not None]
        self._most = [max(1.0, rate * BURST_SECONDS) for rate in self._rates]
        self._left = self._most
        self._at = clock()

    def take(self, raw_bytes: int) -> float:
        """Seconds until an append may be sent; 0 or less if it may now, and then it is counted."""
        now = self._clock()
        due = zip((1.0, 0.0), self._left, self._rates, strict=False)
        wait = max((amount - left) / rate for amount, left, rate in due) - (now - self._at)
        if wait <= 0:
            grown = zip((1.0, raw_bytes), self._left, self._most, self._rates, strict=False)
            self._left = [
                min(most, left + (now - self._at) * rate) - amount for amount, left, most, rate in grown
            ]
            self._at = now
        return wait


# pragma: no mutate end
