"""Records of CSV files: found and counted without touching a single one from Python.

A quoted value may hold newlines, so that records and lines differ. Whether a newline ends a record is told by
the number of quotes before it, which is exact as long as quotes open only where a value begins; a file that
breaks this is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.lines import BYTE_ORDER_MARK
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import pieces, refuse_growth
from airflow_provider_snowpipe.streaming.errors import EncodingError

READ_BYTES = 2 << 20
"""One read; as much is parsed at once unless a single record is longer."""
LONGEST_RECORD = 64 << 20
"""A record that has no end within as many bytes has a quote that is never closed."""
_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True, slots=True)
class Dialect:
    """How values and records are told apart.

    :param delimiter: one character between values
    :param quote: one character around values, or empty
    :param escape: one character that takes its meaning from the next one, or empty
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records, one after the other.

    :param text: their bytes
    :param position: where they begin in the file's text
    :param ends: offsets in ``text`` just behind each record that is not blank
    """

    text: memoryview
    position: int
    ends: npt.NDArray[np.int64]


def whole_records(
    file: SourceFile,
    offset: int,
    dialect: Dialect,
    *,
    compression: str = "none",
    keep_tail: bool = True,
    read_bytes: int = READ_BYTES,
) -> Iterator[Records]:
    """Read a file's records from an offset to its listed end.

    :param file: the file
    :param offset: where a record begins
    :param dialect: how records are told apart
    :param compression: how the file is compressed
    :param keep_tail: True if an unterminated last record is one, False if it is left for a later run
    :param read_bytes: bytes in one read
    :raises SourcePositionError: if the file shrank or is gone
    :raises EncodingError: if a quote stands within a value, or is never closed
    """
    position, rest = offset, b""
    for data in pieces(file, offset, compression=compression, read_bytes=read_bytes):
        if position == 0 and not rest and data.startswith(BYTE_ORDER_MARK):
            data, position = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        text = rest + data
        ends, _ = _record_ends(text, dialect, file, position)
        cut = int(ends[-1]) if len(ends) else 0
        if cut:
            yield Records(memoryview(text)[:cut], position, _filled(text, ends))
        position, rest = position + cut, text[cut:]
        if len(rest) > LONGEST_RECORD:
            raise _unclosed(file, position)
    if rest and keep_tail:
        refuse_growth(file, compression)
        _, closed = _record_ends(rest, dialect, file, position)
        escaped = _escaped(np.frombuffer(rest, np.uint8), dialect.escape)
        if not closed or (escaped is not None and escaped[-1] >= len(rest.rstrip(b"\n"))):
            raise _unclosed(file, position)
        yield Records(memoryview(rest), position, _filled(rest, np.array([len(rest)])))


def _record_ends(
    text: bytes, dialect: Dialect, file: SourceFile, position: int
) -> tuple[npt.NDArray[np.int64], bool]:
    """Offsets just behind each newline that ends a record; and whether the text ends outside quotes."""
    data = np.frombuffer(text, np.uint8)
    escaped = _escaped(data, dialect.escape)
    newlines = _plain(np.flatnonzero(data == _NEWLINE), escaped)
    if not dialect.quote:
        return newlines + 1, True
    quotes = _plain(np.flatnonzero(data == ord(dialect.quote)), escaped)
    if not len(quotes):
        return newlines + 1, True
    misplaced = _misplaced_quote(data, quotes, escaped, dialect)
    if misplaced is not None:
        raise EncodingError(
            f"file {file.path!r}: the quote {dialect.quote!r} at byte {position + misplaced} stands within a "
            "value, so that nothing tells where the value or its record ends. Quote that value as a whole "
            "and double the quotes in it, or set quote='' where the file quotes no value"
        )
    outside = np.searchsorted(quotes, newlines) % 2 == 0
    return newlines[outside] + 1, len(quotes) % 2 == 0


def _misplaced_quote(
    data: npt.NDArray[np.uint8],
    quotes: npt.NDArray[np.int64],
    escaped: npt.NDArray[np.int64] | None,
    dialect: Dialect,
) -> int | None:
    """The first quote that opens or closes a value's quotes in the middle of the value."""
    opening = quotes[::2]
    before = opening - 1
    previous = data[np.maximum(before, 0)]
    begins = (previous == ord(dialect.delimiter)) | (previous == _NEWLINE) | (previous == _RETURN)
    if escaped is not None:
        begins &= ~np.isin(before, escaped)
    begins |= opening == 0
    begins[1:] |= before[1:] == quotes[1::2][: len(opening) - 1]
    if not begins.all():
        return int(opening[np.argmin(begins)])
    closing = quotes[1::2]
    following = data[np.minimum(closing + 1, len(data) - 1)]
    stops = (following == ord(dialect.delimiter)) | (following == _NEWLINE) | (following == _RETURN)
    stops |= (closing == len(data) - 1) | (following == ord(dialect.quote))
    return None if stops.all() else int(closing[np.argmin(stops)])


def _escaped(data: npt.NDArray[np.uint8], escape: str) -> npt.NDArray[np.int64] | None:
    """Offsets of the characters that an escape takes the meaning from; None where there is no escape."""
    marks = np.flatnonzero(data == ord(escape)) if escape else np.empty(0, np.int64)
    if not len(marks):
        return None
    numbers = np.arange(len(marks))
    begins_run = np.concatenate(([True], np.diff(marks) > 1))
    within_run = numbers - np.maximum.accumulate(np.where(begins_run, numbers, 0))
    escaped: npt.NDArray[np.int64] = marks[within_run % 2 == 0] + 1
    return escaped


def _plain(offsets: npt.NDArray[np.int64], escaped: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return offsets if escaped is None else offsets[~np.isin(offsets, escaped)]


def _filled(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ends of the records that hold more than a line's end."""
    data = np.frombuffer(text, np.uint8)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    first = data[starts]
    if not ((first == _NEWLINE) | (first == _RETURN)).any():
        return ends
    used = data[: int(ends[-1])]
    return ends[np.logical_or.reduceat((used != _NEWLINE) & (used != _RETURN), starts)]


def _unclosed(file: SourceFile, position: int) -> EncodingError:
    return EncodingError(
        f"file {file.path!r}: the record at byte {position} has a quote that is never closed, an escape at "
        f"the end of the file, or no end within {LONGEST_RECORD} bytes. Close it, or set quote='' where the "
        "file quotes no value. Rows before that place may have been sent"
    )
