"""The rows of a block of NDJSON: found, sliced and left out by numpy and Arrow, without a copy of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NEWLINE, _RETURN, _OPEN, _CLOSE = 10, 13, ord("{"), ord("}")


@dataclass(frozen=True, slots=True, eq=False)
class BlockLines:
    """A body and where its rows are; empty lines (LF or CRLF alone) are lines and no rows.

    :param data: the body, its last line ended
    :param starts: where each row begins, in bytes
    :param ends: where it ends, behind its newline
    :param numbers: number of its line, counted from 0
    :param longest: bytes of the longest row, 0 without a row
    :param is_text: False if some of it is not UTF-8
    """

    data: bytes | memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    longest: int
    is_text: bool

    @classmethod
    def of(cls, body: bytes | memoryview) -> Self:
        """Find the rows of a body.

        :param body: NDJSON; the last newline may be missing
        """
        data = body if not len(body) or body[-1] in (b"\n", _NEWLINE) else bytes(body) + b"\n"
        octets = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(octets == _NEWLINE).astype(np.int64) + 1
        starts = np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1]))
        lengths = ends - starts
        empty = (lengths == 1) | ((lengths == 2) & (octets[starts] == _RETURN))
        rows = np.flatnonzero(~empty)
        try:
            str(data, "utf-8")
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        longest = int(lengths.max(initial=0))
        return cls(data, starts[rows], ends[rows], rows.astype(np.int64, copy=False), longest, is_text)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @property
    def line_count(self) -> int:
        """Number of lines up to the last row, blank ones among them."""
        return int(self.numbers[-1]) + 1 if len(self.numbers) else 0

    @property
    def whole(self) -> pa.Array:
        """The body as the only value of an Arrow column."""
        offsets = np.array([0, len(self.data)], np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), 1, buffers)

    def row(self, row: int) -> bytes:
        """One row without its newline."""
        line = bytes(self.data[self.starts[row] : self.ends[row] - 1])
        return line[:-1] if line.endswith(b"\r") else line

    def line_number(self, row: int) -> int:
        """Number of a row's line in the block, counted from 0."""
        return int(self.numbers[row])

    def slice(self, low: int, high: int) -> bytes | memoryview:
        """The bytes of some rows; at least one."""
        return memoryview(self.data)[self.starts[low] : self.ends[high - 1]]

    def look_like_objects(self, low: int, high: int) -> bool:
        """True if each row is UTF-8, begins with ``{`` and ends with ``}``.

        Then no JSON value reaches over a line's end, and a parser that reads as many values as there are
        rows has read each row as one object.
        """
        octets = np.frombuffer(self.data, np.uint8)
        starts, ends = self.starts[low:high], self.ends[low:high]
        last = ends - 2 - (octets[ends - 2] == _RETURN)
        if not ((octets[starts] == _OPEN) & (octets[last] == _CLOSE)).all():
            return False
        if self.is_text:
            return True
        try:
            str(self.slice(low, high), "utf-8")
        except UnicodeDecodeError:
            return False
        return True

    def as_array(self, low: int, high: int) -> pa.Array:
        """Some rows as an Arrow column that shares the body's memory; blank lines belong to a row."""
        offsets = np.empty(high - low + 1, np.int64)
        offsets[0] = self.starts[low] if high > low else 0
        offsets[1:] = self.ends[low:high]
        return pa.Array.from_buffers(
            pa.large_binary(), high - low, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )

    def without(self, bad: Sequence[int]) -> bytes | memoryview:
        """The body without some rows, as it is where there are none.

        :param bad: the rows, in order
        """
        if not bad:
            return self.data
        pieces, begin, data = [], 0, memoryview(self.data)
        for row in bad:
            pieces.append(data[begin : self.starts[row]])
            begin = int(self.ends[row])
        if len(bad) == self.rows:
            return b""
        return b"".join([*pieces, data[begin:]])
