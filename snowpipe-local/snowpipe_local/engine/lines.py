"""Newline-delimited bodies as zero-copy Arrow string columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NEWLINE, _RETURN = 10, 13
MOST_LEVELS = 10_000
"""How deeply a JSON value may be nested: the engine handles one on its stack, and ends where that does."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
EMPTY: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
"""End offsets of no rows."""


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A row that was skipped.

    :param row: position among the rows of its append, counting from 0.
    :param reason: why it was refused; names the column, never the value.
    """

    row: int
    payload: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of one append.

    :param body: complete lines, each ended by a newline.
    :param ends: end offset in bytes of each row, in order; empty lines belong to the row after them.
    :param rejected: lines that are not UTF-8, or nested too deeply; they are not in ``body``.
    """

    body: bytes
    ends: npt.NDArray[np.int64]
    rejected: tuple[RejectedLine, ...] = ()

    @property
    def rows(self) -> int:
        """Rows in ``body``, without the rejected ones."""
        return len(self.ends)

    @property
    def parsed(self) -> int:
        """Rows that were sent."""
        return len(self.ends) + len(self.rejected)


def split_lines(body: bytes) -> Lines:
    r"""Index the rows of a body; empty lines (``\n`` or ``\r\n``) are not rows.

    SDK 1.9.1 puts an empty line between two appends (observed).

    :param body: newline-delimited JSON; the last newline may be missing.
    """
    if body and body[-1] != _NEWLINE:
        body += b"\n"
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError:
            return _without_wrong_lines(body)
    ends = _row_ends(body)
    if len(ends) and int(np.diff(ends, prepend=0).max()) > 2 * MOST_LEVELS and is_deep(body):
        return _without_wrong_lines(body)
    return Lines(body, ends)


def is_deep(text: bytes) -> bool:
    """Return True when brackets outside of texts are open more than :data:`MOST_LEVELS` at a time."""
    if text.count(b"[") + text.count(b"{") <= MOST_LEVELS:
        return False
    signs = np.frombuffer(_TEXT.sub(b"", text), dtype=np.uint8)
    opened = np.isin(signs, list(b"[{")).astype(np.int64) - np.isin(signs, list(b"]}"))
    return int(opened.cumsum().max(initial=0)) > MOST_LEVELS


def _row_ends(body: bytes) -> npt.NDArray[np.int64]:
    data = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE).astype(np.int64) + 1
    if len(ends) == 0:
        return ends
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1]
    lengths = ends - starts
    empty = (lengths == 1) | ((lengths == 2) & (data[starts] == _RETURN))
    return ends[~empty] if empty.any() else ends


def _without_wrong_lines(body: bytes) -> Lines:
    kept: list[bytes] = []
    rejected: list[RejectedLine] = []
    row = 0
    # Rare path: a body with broken text is read line by line.
    for line in body.split(b"\n"):
        if line in (b"", b"\r"):
            continue
        if is_deep(line):
            rejected.append(RejectedLine(row, line, f"the row is nested more than {MOST_LEVELS} levels deep"))
        elif _is_utf8(line):
            kept.append(line)
        else:
            rejected.append(RejectedLine(row, line, "the row is not valid UTF-8"))
        row += 1
    good = b"".join(line + b"\n" for line in kept)
    return Lines(good, _row_ends(good), tuple(rejected))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def arrow_lines(parts: Sequence[Lines]) -> pa.Table:
    """Join the rows of several appends into one Arrow table of columns ``i`` (row number) and ``l`` (line).

    The string column shares the joined buffer; each value keeps its trailing newline, which JSON allows.

    :param parts: rows of the appends, in commit order.
    """
    body = parts[0].body if len(parts) == 1 else b"".join(part.body for part in parts)
    shifts = np.cumsum([0] + [len(part.body) for part in parts[:-1]])
    ends = np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=True)])
    offsets = np.empty(len(ends) + 1, dtype=np.int64)
    offsets[0] = 0
    offsets[1:] = ends
    column = pa.Array.from_buffers(
        pa.large_string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    return pa.table({"i": pa.array(np.arange(len(ends), dtype=np.int64)), "l": column})
