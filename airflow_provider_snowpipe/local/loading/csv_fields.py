"""Fast splitting of CSV into fields: NumPy finds the delimiters, one copy builds the Arrow strings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.local.loading.csv_dialect import CsvDialect

Positions = npt.NDArray[np.int64]
_RETURN = 13


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of the complete records in a block.

    :param values: all fields one after the other; NULL where the dialect says so.
    :param first: index of each record's first field.
    :param count: number of each record's fields.
    :param starts: byte offset of each field in the block.
    :param consumed: bytes of the block up to the end of the last complete record.
    :param broken: records that cannot be split, by number, with the reason.
    """

    values: pa.LargeStringArray
    first: Positions
    count: Positions
    starts: Positions
    consumed: int
    broken: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Offsets of the bytes that give a block its structure."""

    delimiters: Positions
    ends: Positions
    quotes: Positions
    escapes: Positions


def split_fields(block: bytes, dialect: CsvDialect) -> Fields | None:
    """Split a block that a record delimiter ends; None when only the exact path can do it.

    The exact path is needed for escapes inside enclosed fields, quotes in the middle of a field, and blanks
    to remove around quotes or escapes.

    :param block: complete records, and perhaps the start of one more.
    """
    is_escaped = bool(dialect.escape) and dialect.escape in block
    if dialect.quote and dialect.quote in block and (dialect.trim or is_escaped):
        return None
    data = np.frombuffer(block, dtype=np.uint8)
    marks = _marks(block, data, dialect)
    if marks is None:
        return None
    if not marks.ends.size:
        return Fields(pa.array([], pa.large_string()), *(np.empty(0, np.int64),) * 3, 0)
    return _fields(data, marks, dialect)


def find(block: bytes, data: npt.NDArray[np.uint8], token: bytes) -> Positions:
    """Return the offsets of a token; overlapping ones count from the left."""
    if not token:
        return np.empty(0, np.int64)
    if len(token) == 1:
        return np.flatnonzero(data == token[0]).astype(np.int64)
    return np.array([match.start() for match in re.finditer(re.escape(token), block)], dtype=np.int64)


def active_escapes(escapes: Positions) -> Positions:
    """Return the escapes that are not escaped themselves: every second one of a run."""
    if not escapes.size:
        return escapes
    order = np.arange(escapes.size)
    begins = np.concatenate(([True], np.diff(escapes) != 1))
    in_run = order - np.maximum.accumulate(np.where(begins, order, 0))
    return np.compress(in_run % 2 == 0, escapes)


def _marks(block: bytes, data: npt.NDArray[np.uint8], dialect: CsvDialect) -> _Marks | None:
    quotes = find(block, data, dialect.quote)
    delimiters, ends, escapes = (
        find(block, data, token) for token in (dialect.field, dialect.record, dialect.bare_escape)
    )
    if quotes.size:
        toggles = np.zeros(len(data), dtype=np.uint8)
        toggles[quotes] = 1
        outside = np.bitwise_xor.accumulate(toggles) == 0
        delimiters, ends, escapes = (marks[outside[marks]] for marks in (delimiters, ends, escapes))
    escapes = active_escapes(escapes)
    if escapes.size:
        escaped = np.zeros(len(data) + 1, dtype=bool)
        escaped[escapes + 1] = True
        if dialect.trim or escaped[quotes].any():
            return None
        delimiters, ends = delimiters[~escaped[delimiters]], ends[~escaped[ends]]
    if not ends.size:
        return _Marks(delimiters, ends, quotes, escapes)
    last = ends[-1]
    return _Marks(delimiters[delimiters < last], ends, quotes[quotes < last], escapes[escapes < last])


def _events(marks: _Marks, size: int) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """Return all delimiters in order, and which of them end a record."""
    kinds = np.zeros(size, dtype=np.uint8)
    kinds[marks.delimiters] = 1
    kinds[marks.ends] = 2
    events = np.flatnonzero(kinds)
    return events, kinds[events] == 2


def _fields(data: npt.NDArray[np.uint8], marks: _Marks, dialect: CsvDialect) -> Fields | None:
    events, is_end = _events(marks, len(data))
    sizes = np.where(is_end, len(dialect.record), len(dialect.field))
    consumed = int(events[-1] + sizes[-1])
    starts = np.concatenate(([0], events[:-1] + sizes[:-1]))
    keep = np.ones(consumed, dtype=bool)
    for offset in range(max(len(dialect.record), len(dialect.field))):
        keep[(events + offset)[sizes > offset]] = False
    stops = events.copy()
    if dialect.record == b"\n":
        returned = is_end & (events > starts) & (data[np.maximum(events - 1, 0)] == _RETURN)
        if marks.escapes.size:
            escaped = np.zeros(consumed + 1, dtype=bool)
            escaped[marks.escapes + 1] = True
            returned &= ~escaped[events - 1]
        stops[returned] -= 1
        keep[stops[returned]] = False
    quoted = np.zeros(len(events), dtype=bool)
    inner = marks.escapes
    if marks.quotes.size:
        quoted = (stops > starts) & (data[np.minimum(starts, len(data) - 1)] == dialect.quote[0])
        doubled = _doubled_quotes(marks.quotes, starts[quoted], stops[quoted])
        if doubled is None:
            return None
        keep[starts[quoted]] = False
        keep[stops[quoted] - 1] = False
        inner = np.concatenate((inner, doubled))
    keep[inner] = False
    inner_starts, inner_stops = starts + quoted, stops - quoted
    lengths = inner_stops - inner_starts
    if inner.size:
        lengths -= np.bincount(np.searchsorted(starts, inner, side="right") - 1, minlength=len(starts))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    absent = _nulls(data, inner_starts, inner_stops, quoted, dialect)
    values = pa.LargeStringArray.from_buffers(
        len(events),
        pa.py_buffer(offsets),
        pa.py_buffer(data[:consumed][keep]),
        pa.py_buffer(np.packbits(~absent, bitorder="little")),
    )
    last_fields = np.flatnonzero(is_end)
    first = np.concatenate(([0], last_fields[:-1] + 1))
    count = last_fields - first + 1
    if dialect.skip_blank:
        filled = (count > 1) | (stops[first] > starts[first])
        first, count = first[filled], count[filled]
    if dialect.trim:
        values = trimmed(values, dialect)
    return Fields(values, first, count, starts, consumed)


def _doubled_quotes(quotes: Positions, starts: Positions, stops: Positions) -> Positions | None:
    """Return the first quote of each doubled pair; None when quotes stand elsewhere than around fields."""
    opens, closes = quotes[0::2], quotes[1::2]
    if len(opens) != len(closes):
        return None
    doubled = closes[:-1] + 1 == opens[1:]
    real_opens = opens[np.concatenate(([True], ~doubled))]
    real_closes = closes[np.concatenate((~doubled, [True]))]
    if not (np.array_equal(real_opens, starts) and np.array_equal(real_closes, stops - 1)):
        return None
    return np.compress(doubled, closes[:-1])


def _nulls(
    data: npt.NDArray[np.uint8],
    starts: Positions,
    stops: Positions,
    quoted: npt.NDArray[np.bool_],
    dialect: CsvDialect,
) -> npt.NDArray[np.bool_]:
    lengths = stops - starts
    absent = (lengths == 0) & ~quoted if dialect.empty_is_null else np.zeros(len(lengths), dtype=bool)
    for text in dialect.nulls:
        found = np.flatnonzero(lengths == len(text))
        for offset, byte in enumerate(text):
            found = found[data[starts[found] + offset] == byte]
        absent[found] = True
    return absent


def trimmed(values: pa.LargeStringArray, dialect: CsvDialect) -> pa.LargeStringArray:
    """Remove blanks around values, and look for NULLs again."""
    cut = pc.utf8_trim(values, " \t")
    texts = [text.decode() for text in dialect.nulls] + ([""] if dialect.empty_is_null else [])
    absent = pc.is_in(cut, value_set=pa.array(texts, pa.large_string()))
    return pc.if_else(absent, pa.scalar(None, pa.large_string()), cut)
