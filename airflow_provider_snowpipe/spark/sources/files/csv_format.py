"""CSV files: every value is text, which the service casts to its column's type.

Nothing is inferred, because a type inferred from one part of a file need not fit the next. The positions are
records, counted from 1 without the header and without blank lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from airflow_provider_snowpipe.spark.sources.files.arrow_format import refuse_missing_columns, row_blocks_of
from airflow_provider_snowpipe.spark.sources.files.formats import (
    BYTE_ORDER_MARK,
    FilePosition,
    LineFileReader,
    RowBlock,
    compression_of,
    pieces,
    refuse_growth,
    too_few_rows,
)
from airflow_provider_snowpipe.spark.sources.files.spec import Csv, SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted

# -- Records of CSV files: found and counted without touching a single one from Python -------------------
#
# A quoted value may hold newlines, so that records and lines differ. Whether a newline ends a record is
# shown by the number of quotes before it, which is exact as long as quotes open only where a value begins; a
# file that breaks this is refused.

READ_BYTES = 2 << 20
"""One read; as much is parsed at once unless a single record is longer."""
LONGEST_RECORD = 64 << 20
"""A record that has no end within as many bytes has a quote that is never closed."""
_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True, slots=True)
class Records:
    """Whole records, one after the other.

    :param position: where they begin in the file's text
    :param ends: offsets in ``text`` just behind each record that is not blank
    """

    text: memoryview
    position: int
    ends: npt.NDArray[np.int64]


def whole_records(
    file: SourceFile,
    offset: int,
    form: Csv,
    *,
    compression: str = "none",
    keep_tail: bool = True,
    read_bytes: int = READ_BYTES,
) -> Iterator[Records]:
    """Read a file's records from an offset to its listed end.

    :param offset: where a record begins
    :param keep_tail: True if an unterminated last record is one, False if it is left for a later run
    """
    position, rest = offset, b""
    for data in pieces(file, offset, compression=compression, read_bytes=read_bytes):
        if position == 0 and not rest and data[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
            data, position = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        text = rest + data
        ends, _ = _record_ends(text, form, file, position)
        cut = int(ends[-1]) if len(ends) else 0
        if cut:
            yield Records(memoryview(text)[:cut], position, _filled(text, ends))
        position, rest = position + cut, text[cut:]
        if len(rest) > LONGEST_RECORD:
            raise _unclosed(file, position)
    if rest and keep_tail:
        refuse_growth(file, compression)
        _, closed = _record_ends(rest, form, file, position)
        escaped = _escaped(np.frombuffer(rest, np.uint8), form.escape)
        if not closed or (escaped is not None and escaped[-1] >= len(rest.rstrip(b"\n"))):
            raise _unclosed(file, position)
        yield Records(memoryview(rest), position, _filled(rest, np.array([len(rest)])))


def _record_ends(
    text: bytes, form: Csv, file: SourceFile, position: int
) -> tuple[npt.NDArray[np.int64], bool]:
    """Offsets just behind each newline that ends a record; and whether the text ends outside quotes."""
    data = np.frombuffer(text, np.uint8)
    escaped = _escaped(data, form.escape)
    newlines = _plain(np.flatnonzero(data == _NEWLINE), escaped)
    if not form.quote:
        return newlines + 1, True
    quotes = _plain(np.flatnonzero(data == ord(form.quote)), escaped)
    if not len(quotes):
        return newlines + 1, True
    misplaced = _misplaced_quote(data, quotes, escaped, form)
    if misplaced is not None:
        raise EncodingError(
            f"file {file.path!r}: the quote {form.quote!r} at byte {position + misplaced} stands within a "
            "value, so that nothing shows where the value or its record ends. Quote that value as a whole "
            "and double the quotes in it, or set quote='' where the file quotes no value"
        )
    outside = np.searchsorted(quotes, newlines) % 2 == 0
    return newlines[outside] + 1, len(quotes) % 2 == 0


def _misplaced_quote(
    data: npt.NDArray[np.uint8],
    quotes: npt.NDArray[np.int64],
    escaped: npt.NDArray[np.int64] | None,
    form: Csv,
) -> int | None:
    """The first quote that opens or closes a value's quotes in the middle of the value."""
    opening = quotes[::2]
    before = opening - 1
    previous = data[np.maximum(before, 0)]
    begins = (previous == ord(form.delimiter)) | (previous == _NEWLINE) | (previous == _RETURN)
    if escaped is not None:
        begins &= ~np.isin(before, escaped)
    begins |= opening == 0
    begins[1:] |= before[1:] == quotes[1::2][: len(opening) - 1]
    if not begins.all():
        return int(opening[np.argmin(begins)])
    closing = quotes[1::2]
    following = data[np.minimum(closing + 1, len(data) - 1)]
    stops = (following == ord(form.delimiter)) | (following == _NEWLINE) | (following == _RETURN)
    stops |= (closing == len(data) - 1) | (following == ord(form.quote))
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
        "file quotes no value. Rows before that may have been sent"
    )


# -- The reader, which infers nothing: a type inferred from one part of a file need not fit the next -----


_LONE_RETURN = (
    "a carriage return without a newline ends a line or a value; convert the line ends, or quote the value"
)


def _terminated(text: memoryview) -> memoryview | bytes:
    """Records with a newline at their end.

    Without it Arrow takes an empty last value for quoted if the one before it was, and a header alone for no
    record (PyArrow 26).
    """
    return text if text[-1] == _NEWLINE else bytes(text) + b"\n"


@dataclass(frozen=True, slots=True)
class CsvReader(LineFileReader):
    """Reads CSV."""

    form: Csv

    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Count the records up to the committed one."""
        header = self._header(file)
        required = line + header
        seen = file.after_line
        chunks = self._records(file, file.start, keep_tail=True)
        for records in chunks:
            if seen + len(records.ends) >= required:
                end = int(records.ends[required - seen - 1])
                done = end == len(records.text) and next(chunks, None) is None
                return FilePosition(records.position + end, done)
            seen += len(records.ends)
        raise too_few_rows(file, max(seen - header, 0), line, "record")

    def extent(self, file: SourceFile, *, keep_tail: bool) -> tuple[int, int]:
        """Count records, without the header."""
        lines, end = -self._header(file), file.start
        for records in self._records(file, file.start, keep_tail=keep_tail):
            lines += len(records.ends)
            end = records.position + int(records.ends[-1])
        return max(lines, 0), end

    def _header(self, file: SourceFile) -> int:
        """The records of a piece that are its header."""
        return int(self.form.header and file.start == 0)

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the records that are not blank."""
        number = after_line
        names: list[str] | None = None
        for records in self._records(file, offset, keep_tail=keep_tail):
            if names is None:
                names = self._names(file)
                refuse_missing_columns(file, self.form.columns, names)
                if offset == 0 and self.form.header:
                    begin = int(records.ends[0])
                    records = Records(
                        records.text[begin:], records.position + begin, records.ends[1:] - begin
                    )
            if not len(records.ends):
                continue
            rows = self._parsed(records, names, file, number)
            ends = records.ends + records.position
            yield from row_blocks_of(rows, file, after_line=number, limits=limits, ends=ends)
            number += rows.num_rows

    def _records(self, file: SourceFile, offset: int, *, keep_tail: bool) -> Iterator[Records]:
        compression = compression_of(file, self.form.compression)
        chunks = whole_records(file, offset, self.form, compression=compression, keep_tail=keep_tail)
        return (chunk for chunk in chunks if len(chunk.ends))

    def _names(self, file: SourceFile) -> list[str]:
        """The columns' names in the order of the file."""
        if not self.form.header:
            return list(self.form.column_names or ())
        first = next(self._records(file, 0, keep_tail=True))
        text = first.text[: int(first.ends[0])]
        try:
            table = csv.read_csv(
                pa.BufferReader(_terminated(text)),
                csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
                self._parse_options(),
                csv.ConvertOptions(
                    strings_can_be_null=False, null_values=[], true_values=[], false_values=[]
                ),
            )
            if table.num_rows > 1:  # rows that would be skipped with it
                raise EncodingError(f"file {file.path!r}: in the header {_LONE_RETURN}")
            if self.form.column_names is not None:
                return list(self.form.column_names)
            names = [str(column[0].cast(pa.string()).as_py()) for column in table.columns]
        except pa.ArrowInvalid as error:
            raise EncodingError(f"file {file.path!r}: the header cannot be read ({error})") from None
        if "" in names:
            raise EncodingError(
                f"file {file.path!r}: column {names.index('') + 1} of {len(names)} has no name in the "
                "header; give column_names"
            )
        return names

    def _parse_options(self, handler: Any = None) -> csv.ParseOptions:
        return csv.ParseOptions(
            delimiter=self.form.delimiter,
            quote_char=self.form.quote or False,
            double_quote=bool(self.form.quote),
            escape_char=self.form.escape or False,
            newlines_in_values=True,
            ignore_empty_lines=True,
            invalid_row_handler=handler,
        )

    def _parsed(self, records: Records, names: list[str], file: SourceFile, after: int) -> pa.Table:
        """Parse records in one piece, all values as text; ``after`` is the number of the record before."""
        text = _terminated(records.text)
        if text[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:  # a value's own, and Arrow takes one away
            text = BYTE_ORDER_MARK + bytes(text)
        bad: list[tuple[int, int]] = []

        def refuse(row: csv.InvalidRow) -> str:
            bad.append((row.number, row.actual_columns))
            return "error"

        try:
            rows = csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
                self._parse_options(refuse),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.large_string()),
                    include_columns=self.form.columns,
                    null_values=[""] if "" in self.form.null_values else [],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            last = after + len(records.ends)
            if bad:
                number, have = bad[0]
                reason = f"record {after + number} has {counted(have, 'value')}, the columns are {len(names)}"
            elif "UTF8" in str(error):
                reason = f"records {after + 1} to {last} are not all UTF-8 text; convert the file"
            else:
                reason = f"records {after + 1} to {last} cannot be parsed"
            raise EncodingError(f"file {file.path!r}: {reason}. Records before may have been sent") from None
        if rows.num_rows != len(records.ends):
            last = after + len(records.ends)
            raise EncodingError(f"file {file.path!r}: between records {after + 1} and {last} {_LONE_RETURN}")
        return self._with_nulls(rows)

    def _with_nulls(self, rows: pa.Table) -> pa.Table:
        """Put NULL where a value is one of those texts, in quotes or not."""
        texts = [text for text in self.form.null_values if text]
        if not texts:
            return rows
        nulls, null = pa.array(texts, pa.large_string()), pa.scalar(None, pa.large_string())
        columns = [pc.if_else(pc.is_in(column, nulls), null, column) for column in rows.columns]
        return pa.table(columns, names=rows.column_names)
