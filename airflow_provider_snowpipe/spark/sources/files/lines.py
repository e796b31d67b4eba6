"""Lines of files as blocks: found, counted and cut without touching a single line from Python.

A block holds whole lines only. Its positions are line numbers, its rows are the lines that are not blank;
blank lines count as lines and are nobody's row. In NDJSON blank is what JSON takes for white space: other
control characters, as a crash may leave them at a file's end, are a row, which the service then rejects and
counts. In a text only a line without any character is blank, as it is for COPY with SKIP_BLANK_LINES.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from airflow_provider_snowpipe.spark.sources.files.formats import Place, RowBlock, too_few_rows
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import READ_BYTES, pieces, refuse_growth

_NEWLINE, _RETURN = 10, 13
_IS_BLANK = np.isin(np.arange(256), (9, 10, 13, 32))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def place_after_line(
    file: SourceFile, line: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> Place:
    """Find where the lines after a given one begin.

    An unterminated last line counts as a line.

    :param file: the file
    :param line: number of the last line to pass, 0 for none
    :param compression: how the file is compressed
    :param read_bytes: bytes in one read
    :return: the place, in bytes of text
    :raises SourcePositionError: if the file has fewer lines, or is gone
    """
    if line == 0:
        return Place()
    seen = 0
    position = 0
    tail_is_line = False
    data_pieces = pieces(file, 0, compression=compression, read_bytes=read_bytes)
    for data in data_pieces:
        here = data.count(b"\n")
        if seen + here >= line:
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
            end = int(ends[line - seen - 1]) + 1
            return Place(position + end, done=end == len(data) and next(data_pieces, None) is None)
        seen += here
        position += len(data)
        tail_is_line = not data.endswith(b"\n")
    if tail_is_line and seen + 1 == line:
        return Place(position, done=True)
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

    :param file: the file; nothing behind its frozen size is read
    :param after_line: number of the last line that is not wanted
    :param offset: where the lines after it begin, from :func:`place_after_line`
    :param keep_tail: True if an unterminated last line is a row, False if it is left for a later run
    :param max_bytes: size of a block, unless a single line is longer
    :param max_rows: rows in a block
    :param compression: how the file is compressed
    :param blanks: True if a line of blanks and tabs is blank, False if only one without any character is
    :param read_bytes: bytes in one read
    :raises SourcePositionError: if the file shrank or is gone
    """
    line = after_line
    pending_from = after_line + 1
    for position, chunk in _whole_lines(file, offset, keep_tail, compression, read_bytes):
        ends = _line_ends(chunk)
        row_ends, row_numbers = _rows(chunk, ends, blanks=blanks)
        line_count = len(ends)
        begin = 0
        taken = 0
        while taken < len(row_ends):
            fitting = int(np.searchsorted(row_ends, begin + max_bytes, side="right"))
            last = max(min(fitting, taken + max_rows), taken + 1)
            end, last_line = int(row_ends[last - 1]), line + int(row_numbers[last - 1])
            yield RowBlock(chunk[begin:end], pending_from, last_line, last - taken, position + end)
            begin, pending_from, taken = end, last_line + 1, last
        line += line_count


def _whole_lines(
    file: SourceFile, offset: int, keep_tail: bool, compression: str, read_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """Read a file from an offset to its frozen end in pieces that end with a newline, each with its place."""
    rest: list[bytes] = []
    begin = position = offset
    for data in pieces(file, offset, compression=compression, read_bytes=read_bytes):
        data_start = len(BYTE_ORDER_MARK) if position == 0 and data.startswith(BYTE_ORDER_MARK) else 0
        begin += data_start
        position += len(data)
        cut = data.rfind(b"\n") + 1
        if cut <= data_start:
            rest.append(data[data_start:])
            continue
        if rest:
            yield begin, memoryview(b"".join([*rest, data[data_start:cut]]))
        else:
            yield begin, memoryview(data)[data_start:cut]
        rest = [data[cut:]] if cut < len(data) else []
        begin = position - (len(data) - cut)
    if keep_tail and any(rest):
        refuse_growth(file, compression)
        yield begin, memoryview(b"".join(rest))


def _line_ends(chunk: memoryview) -> npt.NDArray[np.int64]:
    """Offsets just behind each line; the last line may be unterminated."""
    ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE) + 1
    if not len(ends) or ends[-1] != len(chunk):
        ends = np.append(ends, len(chunk))
    return ends.astype(np.int64, copy=False)


def _rows(
    chunk: memoryview, ends: npt.NDArray[np.int64], *, blanks: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ends and line numbers (from 1 within the chunk) of the lines that are not blank."""
    numbers = np.arange(1, len(ends) + 1, dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    data = np.frombuffer(chunk, np.uint8)
    first = data[starts]
    if not _IS_BLANK[first].any():
        return ends, numbers
    if blanks:
        filled = np.logical_or.reduceat(~_IS_BLANK[data], starts)
    else:
        length = ends - starts - (data[ends - 1] == _NEWLINE)
        filled = (length > 1) | ((length == 1) & (first != _RETURN))
    return ends[filled], numbers[filled]
