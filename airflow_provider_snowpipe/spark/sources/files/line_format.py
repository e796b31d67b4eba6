"""Files of lines: NDJSON, whose lines are passed on as they are, and text, whose lines become one column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.source import part_bytes, row_ranges
from airflow_provider_snowpipe.spark.sources.files.formats import (
    BYTE_ORDER_MARK,
    READ_BYTES,
    FilePosition,
    LineFileReader,
    RowBlock,
    compression_of,
    open_listed,
    pieces,
    refuse_growth,
    too_few_rows,
)
from airflow_provider_snowpipe.spark.sources.files.metadata import refuse_objects_with_values, with_values
from airflow_provider_snowpipe.spark.sources.files.spec import Ndjson, SourceFile, Text
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.splice import IS_BLANK, with_columns

_TEXT_GROWTH = 8
"""A line of text may grow this much as JSON: six bytes for a control character, and the column's name."""
_NEXT_DOCUMENT = re.compile(rb"\}[ \t\r]*\{")


@dataclass(frozen=True, slots=True)
class LineReader(LineFileReader):
    """Reads lines."""

    form: Ndjson | Text

    def extent(self, file: SourceFile, *, keep_tail: bool) -> tuple[int, int]:
        """Count newlines."""
        lines, end = 0, file.start
        for position, chunk, ends in _whole_lines(file, file.start, keep_tail, "none", READ_BYTES):
            lines, end = lines + len(ends), position + len(chunk)
        return lines, end

    def whole_end(self, file: SourceFile) -> int:
        """Search backwards for a newline."""
        end = file.size
        with open_listed(file) as stream:
            while end > file.start:
                begin = max(file.start, end - READ_BYTES)
                stream.seek(begin)
                found = stream.read(end - begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                end = begin
        return file.start

    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Count the lines up to the committed one."""
        return position_after_line(file, line, compression=compression_of(file, self.form.compression))

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the lines: of NDJSON those that are not blank, of a text those that are not empty."""
        column = self.form.column if isinstance(self.form, Text) else None
        for block in row_blocks(
            file,
            after_line=after_line,
            offset=offset,
            keep_tail=keep_tail,
            max_bytes=part_bytes(limits, 1 if column is None else _TEXT_GROWTH),
            max_rows=limits.rows,
            compression=compression_of(file, self.form.compression),
            blanks=column is None,
        ):
            if column is not None:
                yield replace(block, body=text_rows(block, column, file), row_ends=None)
            elif file.values:
                refuse_objects_with_values(block, file)
                body = with_columns(block.body, dict(file.values), {}, block.row_ends)
                yield replace(block, body=body, row_ends=None)
            else:
                yield block


def text_rows(block: RowBlock, column: str, file: SourceFile) -> memoryview:
    """Encode each line that is not empty as ``{"<column>": "<line>"}``, without its line ending."""
    data = bytes(block.body).replace(b"\r\n", b"\n").removesuffix(b"\r").removesuffix(b"\n")
    lines = pc.split_pattern(pa.scalar(data, pa.large_binary()), b"\n").values
    try:
        text = lines.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise EncodingError(
            f"file {file.name!r}, lines {block.first_line} to {block.last_line}: not UTF-8 text; convert "
            "the file. Nothing of these lines was sent"
        ) from None
    filled = text.filter(pc.greater(pc.binary_length(text), 0))
    return memoryview(encode_ndjson(with_values(pa.table({column: filled}), file)))


def line_without_a_document(block: RowBlock) -> int | None:
    """Find a line of NDJSON with more or less than one JSON document, where the next lines may go on with it.

    Lines that are not JSON at all are none: whoever reads documents finds none in them, either.

    :param block: lines as they are stored
    :return: the line's number, None if every line that begins a document ends it
    """
    data = np.frombuffer(block.body, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    starts = np.concatenate(([0], ends + 1))
    ends = np.append(ends, len(data))
    last = data[np.maximum(ends - 1, 0)]
    odd = (starts < ends) & ((last != ord("}")) | (data[np.minimum(starts, len(data) - 1)] != ord("{")))
    body = bytes(block.body)
    joined = (body.count(b"\n", 0, found.start()) for found in _NEXT_DOCUMENT.finditer(body))
    for number in sorted({*np.flatnonzero(odd).tolist(), *joined}):
        line = body[starts[number] : ends[number]].strip(b" \t\r")
        if line[:1] in (b"{", b"[") and not _is_document(line):
            return block.first_line + int(number)
    return None


def _is_document(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


# -- Lines of files as blocks: found, counted and cut without touching a single line from Python ---------
#
# A block holds whole lines only. Its positions are line numbers, its rows are the lines that are not blank;
# blank lines count as lines and are nobody's row. In NDJSON blank is what JSON takes for white space: other
# control characters, as a crash may leave them at a file's end, are a row, which the service then rejects
# and counts. In a text only a line without any character is blank, as it is for COPY with SKIP_BLANK_LINES.

_NEWLINE, _RETURN = 10, 13


def position_after_line(
    file: SourceFile, line: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> FilePosition:
    """Find where the lines after a given one begin.

    An unterminated last line counts as a line.

    :param line: number of the last line to pass, 0 for none
    """
    if line <= file.after_line:
        return FilePosition(file.start)
    seen = file.after_line
    position = file.start
    tail_is_line = False
    data_pieces = pieces(file, file.start, compression=compression, read_bytes=read_bytes)
    for data in data_pieces:
        ends = _line_ends(data)
        if seen + len(ends) >= line:
            end = int(ends[line - seen - 1])
            return FilePosition(position + end, done=end == len(data) and next(data_pieces, None) is None)
        seen += len(ends)
        position += len(data)
        tail_is_line = data[-1] != _NEWLINE
    if tail_is_line and seen + 1 == line:
        return FilePosition(position, done=True)
    raise too_few_rows(file, seen + tail_is_line, line, "line")


def row_blocks(
    file: SourceFile,
    *,
    after_line: int,
    offset: int,
    keep_tail: bool,
    max_bytes: int,
    max_rows: int,
    compression: str = "none",
    blanks: bool = True,
    read_bytes: int = READ_BYTES,
) -> Iterator[RowBlock]:
    """Read the rows that come after a given line, as blocks of whole lines.

    :param after_line: number of the last line skipped
    :param offset: where the lines after it begin, from :func:`position_after_line`
    :param keep_tail: True if an unterminated last line is a row, False if it is left for a later run
    :param blanks: True if a line of blanks and tabs is blank, False if only one without any character is
    """
    line = after_line
    pending_from = after_line + 1
    for position, chunk, ends in _whole_lines(file, offset, keep_tail, compression, read_bytes):
        row_ends, row_numbers = _rows(chunk, ends, blanks=blanks)
        begin = 0
        for first, last in row_ranges(row_ends, max_bytes, max_rows):
            end, last_line = int(row_ends[last - 1]), line + int(row_numbers[last - 1])
            yield RowBlock(
                chunk[begin:end], pending_from, last_line, last - first, position + end,
                numbers=row_numbers[first:last] + line, row_ends=row_ends[first:last] - begin,
            )  # fmt: skip
            begin, pending_from = end, last_line + 1
        line += len(ends)


def _whole_lines(
    file: SourceFile, offset: int, keep_tail: bool, compression: str, read_bytes: int
) -> Iterator[tuple[int, memoryview, npt.NDArray[np.int64]]]:
    """Read whole lines from an offset to a file's frozen end: their position, and where each ends in them.

    A line that two reads share comes alone: only such lines are copied.
    """
    begin, rest = offset, list[memoryview]()
    for data in pieces(file, offset, compression=compression, read_bytes=read_bytes):
        if begin == 0 and not rest and data[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
            begin, data = len(BYTE_ORDER_MARK), data[len(BYTE_ORDER_MARK) :]
        ends = _line_ends(data)
        if rest and len(ends):
            line = b"".join([*rest, data[: ends[0]]])
            yield begin, memoryview(line), np.array([len(line)])
            begin, rest = begin + len(line), []
            data, ends = data[ends[0] :], ends[1:] - ends[0]
        if len(ends):
            yield begin, data[: ends[-1]], ends
            begin, data = begin + int(ends[-1]), data[ends[-1] :]
        if data:
            rest.append(data)
    if keep_tail and rest:
        refuse_growth(file, compression)
        line = b"".join(rest)
        yield begin, memoryview(line), np.array([len(line)])


def _line_ends(data: memoryview) -> npt.NDArray[np.int64]:
    """Offsets just behind each newline."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE) + 1


def _rows(
    chunk: memoryview, ends: npt.NDArray[np.int64], *, blanks: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ends and line numbers (from 1 within the chunk) of the lines that are not blank."""
    numbers = np.arange(1, len(ends) + 1, dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    data = np.frombuffer(chunk, np.uint8)
    first = data[starts]
    if not IS_BLANK[first].any():
        return ends, numbers
    if blanks:
        filled = np.logical_or.reduceat(~IS_BLANK[data], starts)
    else:
        length = ends - starts - (data[ends - 1] == _NEWLINE)
        filled = (length > 1) | ((length == 1) & (first != _RETURN))
    return ends[filled], numbers[filled]
