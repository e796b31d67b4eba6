"""CSV files as Arrow chunks of text columns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snowpipe_local.errors import SqlError
from snowpipe_local.loading.chunks import (
    CSV,
    Chunk,
    FileShape,
    Position,
    Positions,
    active_escapes,
    find,
    invalid_bytes,
    overwritten,
    utf8_blocks,
)

# -- How a CSV file is written: the bytes of its delimiters, quotes and escapes --------------------------

# Stands for RECORD_DELIMITER = NONE: it is not in the file, and the end of the file counts as one.
NO_DELIMITER = b"\x00\x1e\x00\x1e"


@dataclass(frozen=True, slots=True)
class CsvDialect:
    r"""Delimiters and quoting of one file format.

    :param field: field delimiter; empty for none.
    :param record: record delimiter; ``\n`` also ends at ``\r\n``.
    :param quote: one byte that may enclose fields; empty for none.
    :param escape: escape inside enclosed fields; empty for none.
    :param bare_escape: escape inside fields that are not enclosed; empty for none.
    :param nulls: texts that stand for NULL.
    :param empty_is_null: an empty field that is not enclosed is NULL.
    :param skip_blank: empty lines are not records.
    """

    field: bytes = b","
    record: bytes = b"\n"
    quote: bytes = b""
    escape: bytes = b""
    bare_escape: bytes = b"\\"
    nulls: tuple[bytes, ...] = (b"\\N",)
    empty_is_null: bool = True
    trim: bool = False
    skip_blank: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvDialect:
        """Build a dialect from the options of a file format (documentation page "CREATE FILE FORMAT")."""
        return cls(
            field=_bytes(options.get("FIELD_DELIMITER", ",")),
            record=_bytes(options.get("RECORD_DELIMITER", "\n")).replace(b"\r\n", b"\n") or NO_DELIMITER,
            quote=_bytes(options.get("FIELD_OPTIONALLY_ENCLOSED_BY", "NONE")),
            escape=(escape := _bytes(options.get("ESCAPE", "NONE"))),
            # ESCAPE is for fields of both kinds, and overrides the other option.
            bare_escape=escape or _bytes(options.get("ESCAPE_UNENCLOSED_FIELD", "\\")),
            nulls=tuple(_bytes(text, none=False) for text in options.get("NULL_IF", ("\\N",))),
            empty_is_null=bool(options.get("EMPTY_FIELD_AS_NULL", True)),
            trim=bool(options.get("TRIM_SPACE", False)),
            skip_blank=bool(options.get("SKIP_BLANK_LINES", False)),
        )


def _bytes(value: Any, *, none: bool = True) -> bytes:
    if value is None or (none and str(value).upper() == "NONE"):
        return b""
    return str(value).encode()


# -- Fast splitting of CSV into fields: NumPy finds the delimiters, one copy builds the Arrow strings ----

_RETURN = 13


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of the complete records in a block.

    :param values: all fields one after the other; NULL where the dialect has it.
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
    """Remove blanks around values, and search for NULLs again."""
    cut = pc.utf8_trim(values, " \t")
    texts = [text.decode() for text in dialect.nulls] + ([""] if dialect.empty_is_null else [])
    absent = pc.is_in(cut, value_set=pa.array(texts, pa.large_string()))
    return pc.if_else(absent, pa.scalar(None, pa.large_string()), cut)


# -- Exact splitting of CSV into fields, one after the other: for what the fast path cannot decide -------

_BLANKS = b" \t"


class _IncompleteError(Exception):
    """The block ends inside a record."""


class _BrokenError(Exception):
    """A record cannot be split."""


@dataclass(slots=True)
class _Scanner:
    block: bytes
    dialect: CsvDialect
    values: list[bytes | None] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    after: re.Pattern[bytes] = field(init=False)
    bare: re.Pattern[bytes] = field(init=False)
    enclosed: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        dialect = self.dialect
        record = rb"\r?\n" if dialect.record == b"\n" else re.escape(dialect.record)
        parts = [rb"(?P<end>" + record + rb")"]
        if dialect.field:
            parts.append(rb"(?P<field>" + re.escape(dialect.field) + rb")")
        self.after = re.compile(rb"|".join(parts))
        escape = rb"(?P<escape>" + re.escape(dialect.bare_escape) + rb")|" if dialect.bare_escape else b""
        self.bare = re.compile(escape + rb"|".join(parts), re.DOTALL)
        enclosed = [re.escape(dialect.quote)] + ([re.escape(dialect.escape)] if dialect.escape else [])
        self.enclosed = re.compile(rb"|".join(enclosed))

    def record(self, position: int) -> int:
        """Read one record; return where the next one starts."""
        while True:
            self.starts.append(position)
            position, is_last = self._field(position)
            if is_last:
                return position

    def _field(self, position: int) -> tuple[int, bool]:
        start = self._blanks(position)
        if self.dialect.quote and self.block.startswith(self.dialect.quote, start):
            return self._quoted(start)
        return self._bare(position)

    def _blanks(self, position: int) -> int:
        while self.dialect.trim and self.block[position : position + 1] in (b" ", b"\t"):
            position += 1
        return position

    def _bare(self, position: int) -> tuple[int, bool]:
        parts: list[bytes] = []
        start = position
        while True:
            match = self.bare.search(self.block, position)
            if match is None:
                raise _IncompleteError
            if match.lastgroup == "escape":
                parts.append(self.block[start : match.start()])
                start, position = match.end(), match.end() + 1
                continue
            parts.append(self.block[start : match.start()])
            self._store(b"".join(parts), self.block[self.starts[-1] : match.start()], quoted=False)
            return match.end(), match.lastgroup == "end"

    def _quoted(self, position: int) -> tuple[int, bool]:
        parts: list[bytes] = []
        position += 1
        while True:
            match = self.enclosed.search(self.block, position)
            if match is None:
                raise _IncompleteError
            parts.append(self.block[position : match.start()])
            following = self.block[match.end() : match.end() + 1]
            if not following:
                raise _IncompleteError
            if match[0] == self.dialect.quote and following != self.dialect.quote:
                break
            parts.append(following)
            position = match.end() + 1
        position = self._blanks(match.end())
        ended = self.after.match(self.block, position)
        rest = self.block[position:]
        # The block may end within a delimiter, or before it.
        if ended is None and any(
            one.startswith(rest) for one in (b"\r\n", self.dialect.field, self.dialect.record)
        ):
            raise _IncompleteError
        if ended is None:
            found = self.block[position : position + 1].decode(errors="replace")
            raise _BrokenError(
                f"Found character '{found}' instead of field delimiter '{self.dialect.field.decode()}'"
            )
        value = b"".join(parts)
        self._store(value, value, quoted=True)
        return ended.end(), ended.lastgroup == "end"

    def _store(self, value: bytes, raw: bytes, *, quoted: bool) -> None:
        if self.dialect.trim and not quoted:
            value, raw = value.strip(_BLANKS), raw.strip(_BLANKS)
        absent = raw in self.dialect.nulls or (not value and not quoted and self.dialect.empty_is_null)
        self.values.append(None if absent else value)


def split_exactly(block: bytes, dialect: CsvDialect, *, final: bool) -> Fields:
    """Split a block field by field; a record that cannot be split ends at its line.

    :param block: complete records, and perhaps the start of one more.
    :param final: nothing follows; an incomplete record is a broken one.
    """
    scanner = _Scanner(block, dialect)
    first: list[int] = []
    count: list[int] = []
    broken: dict[int, str] = {}
    position = 0
    while position < len(block):
        before, begun = len(scanner.values), len(scanner.starts)
        reason = None
        try:
            following = scanner.record(position)
        except _IncompleteError:
            if not final:
                del scanner.values[before:], scanner.starts[begun:]
                break
            following, reason = len(block), "Unterminated enclosed field or missing record delimiter"
        except _BrokenError as error:
            skipped = block.find(dialect.record, position)
            following = len(block) if skipped < 0 else skipped + len(dialect.record)
            reason = str(error)
        blank = block[position:following] in (b"\n", b"\r\n", dialect.record)
        position = following
        if reason is not None:
            broken[len(first)] = reason
            del scanner.values[before:], scanner.starts[begun + 1 :]
            scanner.values.append(None)
        elif blank and dialect.skip_blank:
            continue
        first.append(before)
        count.append(len(scanner.values) - before)
    return Fields(
        pa.array(scanner.values, pa.large_binary()).cast(pa.large_string()),
        np.array(first, dtype=np.int64),
        np.array(count, dtype=np.int64),
        np.array(scanner.starts, dtype=np.int64),
        position,
        broken,
    )


def read_csv(blocks: Iterable[bytes], options: Mapping[str, Any], width: int) -> Iterator[Chunk]:
    """Yield the records of a CSV file.

    :param width: fields to keep of each record; ignored with PARSE_HEADER, where the header decides.
    :raises SqlError: for a header that names a column twice.
    """
    dialect = CsvDialect.of(options)
    reader = _Reader(dialect, bool(options.get("MULTI_LINE", True)))
    header_lines = int(options.get("SKIP_HEADER", 0))
    parse_header = bool(options.get("PARSE_HEADER", False))
    names: tuple[str, ...] = ()
    carry = b""
    for block, final in _with_final(utf8_blocks(blocks, options)):
        text = carry + block
        if header_lines:
            text, header_lines = reader.skip_lines(text, header_lines, final)
        if final and text and not text.endswith(dialect.record):
            text += dialect.record
        fields, consumed = reader.split(text, final)
        if parse_header and len(fields.first):
            names = _header(fields, int(fields.count[0]))
            width, parse_header = len(names), False
            fields = _without_first(fields)
        if len(fields.first):
            yield reader.chunk(text, fields, FileShape(CSV, names), width)
        reader.pass_over(text[:consumed])
        carry = text[consumed:]


class _Reader:
    """Position in the file, over its blocks."""

    def __init__(self, dialect: CsvDialect, multi_line: bool) -> None:
        self._dialect = dialect
        self._multi_line = multi_line
        self._lines = 0
        self._records = 0

    def skip_lines(self, text: bytes, lines: int, final: bool) -> tuple[bytes, int]:
        """Skip header lines, which end at every newline, quoted or not."""
        while lines:
            end = text.find(b"\n")
            if end < 0:
                return (b"", 0) if final else (text, lines)
            text, lines = text[end + 1 :], lines - 1
            self._lines += 1
        return text, lines

    def pass_over(self, text: bytes) -> None:
        """Count the lines of text that is done."""
        self._lines += text.count(b"\n")

    def split(self, text: bytes, final: bool) -> tuple[Fields, int]:
        """Split into fields; records with invalid characters are broken ones.

        :returns: the fields, and how many bytes of the text they came from.
        """
        fields = self._split(text, final)
        consumed = fields.consumed
        spans = invalid_bytes(text[:consumed])
        if spans:
            fields = self._split(overwritten(text, spans), final)
            records = fields.starts[fields.first]
            for start, end in spans:
                number = int(np.searchsorted(records, start, side="right")) - 1
                found = text[start:end].hex().upper()
                fields.broken.setdefault(number, f"Invalid UTF8 detected in string '0x{found}'")
        if not self._multi_line:
            delimiter = self._dialect.record.decode()
            inside = pc.fill_null(pc.match_substring(fields.values, delimiter), fill_value=False)
            for index in np.flatnonzero(inside.to_numpy(zero_copy_only=False)):
                number = int(np.searchsorted(fields.first, index, side="right")) - 1
                fields.broken.setdefault(number, "Record delimiter found inside of a field")
        return fields, consumed

    def _split(self, text: bytes, final: bool) -> Fields:
        fields = split_fields(text, self._dialect)
        if fields is None or (final and fields.consumed < len(text)):
            fields = split_exactly(text, self._dialect, final=final)
        return fields

    def chunk(self, text: bytes, fields: Fields, shape: FileShape, width: int) -> Chunk:
        """Build the Arrow table of one block."""
        base, lines = self._records, self._lines
        size = len(fields.first)
        self._records += size
        columns = {
            "i": pa.array(np.arange(base, base + size, dtype=np.int64)),
            "x": pa.array([fields.broken.get(number) for number in range(size)], pa.string())
            if fields.broken
            else pa.nulls(size, pa.string()),
            "n": pa.array(fields.count),
        }
        for index in range(width):
            columns[f"c{index}"] = _column(fields, index)

        def locate(record: int, index: int | None) -> Position:
            number = record - base
            inside = index is not None and index < fields.count[number]
            start = int(fields.starts[fields.first[number] + (index if inside and index else 0)])
            begin = int(fields.starts[fields.first[number]])
            line_start = text.rfind(b"\n", 0, start) + 1
            line = lines + text.count(b"\n", 0, begin) + 1
            return Position(line, len(text[line_start:start].decode(errors="replace")) + 1)

        return Chunk(shape, pa.table(columns), locate)


def _column(fields: Fields, index: int) -> pa.LargeStringArray:
    if (fields.count > index).all():
        return fields.values.take(pa.array(fields.first + index))
    absent = fields.count <= index
    return fields.values.take(pa.array(np.where(absent, 0, fields.first + index), mask=absent))


def _header(fields: Fields, count: int) -> tuple[str, ...]:
    names = tuple(
        str(value or "").strip() for value in fields.values.take(pa.array(np.arange(count))).to_pylist()
    )
    if len(set(names)) != len(names):
        raise SqlError("100080", "22000", f"the header names a column twice: {', '.join(names)[:200]}")
    return names


def _without_first(fields: Fields) -> Fields:
    broken = {number - 1: reason for number, reason in fields.broken.items() if number}
    return dataclasses.replace(fields, first=fields.first[1:], count=fields.count[1:], broken=broken)


def _with_final(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each block, and whether it is the last one."""
    waiting: bytes | None = None
    for block in blocks:
        if waiting is not None:
            yield waiting, False
        waiting = block
    if waiting is not None:
        yield waiting, True
