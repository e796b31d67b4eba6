"""Records of one topic-partition as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

Details = Callable[[int], tuple[bytes | None, Sequence[tuple[str, bytes | None]] | None]]


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records, as far as there are some: offsets may have gaps.

    :param offsets: their offsets, rising; int64
    :param values: their values, null for tombstones; large_binary
    :param timestamps: milliseconds since 1970-01-01 UTC, null where the record has none; int64; None if
        nobody asked
    :param log_append_time: True where the broker gave the timestamp; bool; None if nobody asked
    :param keys: their keys; large_binary; None if nobody asked
    :param headers: for each record its headers' names and values, None if it has none; None if nobody asked
    :param details: finds the key and the headers of a record by its offset, whether or not somebody asked
    """

    offsets: np.ndarray
    values: pa.LargeBinaryArray
    timestamps: pa.Array | None = None
    log_append_time: pa.Array | None = None
    keys: pa.Array | None = None
    headers: list[list[tuple[str, bytes | None]] | None] | None = None
    details: Details | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        """Bytes of the values."""
        ends = _value_ends(self.values)
        return int(ends[-1] - ends[0])

    def slice(self, start: int, stop: int) -> Records:
        """Some of the records, without a copy."""

        def some(column: Any) -> Any:
            return None if column is None else column[start:stop]

        return Records(
            some(self.offsets),
            some(self.values),
            some(self.timestamps),
            some(self.log_append_time),
            some(self.keys),
            some(self.headers),
            self.details,
        )

    def taken(self, mask: np.ndarray) -> Records:
        """The records where a mask is true."""
        chosen = pa.array(mask)

        def some(column: Any) -> Any:
            return None if column is None else column.filter(chosen)

        headers = self.headers and [one for one, wanted in zip(self.headers, mask, strict=True) if wanted]
        return Records(
            self.offsets[mask],
            some(self.values),
            some(self.timestamps),
            some(self.log_append_time),
            some(self.keys),
            headers,
            self.details,
        )

    def pieces(self, most_bytes: int, most_rows: int) -> Iterator[Records]:
        """Divide the records into pieces of bounded size; one record that is larger is its own piece.

        :param most_bytes: bytes of values in a piece
        :param most_rows: records in a piece
        """
        ends = _value_ends(self.values)[1:]
        start = 0
        base = int(_value_ends(self.values)[0])
        while start < len(self):
            stop = int(np.searchsorted(ends, base + most_bytes, side="right"))
            stop = min(max(stop, start + 1), start + most_rows, len(self))
            yield self if (start, stop) == (0, len(self)) else self.slice(start, stop)
            start, base = stop, int(ends[stop - 1])


def _value_ends(values: Any) -> np.ndarray:
    return np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)
