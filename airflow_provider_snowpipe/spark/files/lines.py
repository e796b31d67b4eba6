"""Lines of files as blocks: found, counted and cut without touching a single line from Python.

A block holds whole lines only. Its positions are line numbers, its rows are the lines that are not blank;
blank lines count as lines and are nobody's row, which is what the service does with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from airflow_provider_snowpipe.spark.files.groups import SourceFile
from airflow_provider_snowpipe.streaming.errors import SourcePositionError

READ_BYTES = 4 << 20
"""One read; a block is as large unless a single line is longer."""
_NEWLINE = 10
_LAST_BLANK = 32
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive lines of one file, ending with a row.

    :param body: the lines, each with its newline (the last one of a file may lack it)
    :param first_line: number of the first line, counted from 1; it follows the block before directly
    :param last_line: number of the last line, which is a row
    :param rows: lines that are not blank
    """

    body: memoryview
    first_line: int
    last_line: int
    rows: int


def offset_after_line(file: SourceFile, line: int, *, read_bytes: int = READ_BYTES) -> int:
    """Find where the lines after a given one begin.

    An unterminated last line counts as a line.

    :param file: the file
    :param line: number of the last line to pass, 0 for none
    :param read_bytes: bytes in one read
    :return: offset in bytes
    :raises SourcePositionError: if the file has fewer lines, or is gone
    """
    if line == 0:
        return 0
    seen = 0
    position = 0
    tail_is_line = False
    with _open(file) as stream:
        while position < file.size:
            data = stream.read(min(read_bytes, file.size - position))
            if not data:
                raise _shrunk(file, position)
            here = data.count(b"\n")
            if seen + here >= line:
                ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
                return position + int(ends[line - seen - 1]) + 1
            seen += here
            position += len(data)
            tail_is_line = not data.endswith(b"\n")
    if tail_is_line and seen + 1 == line:
        return file.size
    raise SourcePositionError(
        f"file {file.path!r} has {seen + tail_is_line} line(s) in {file.size} bytes, but line "
        f"{line} of it is "
        "committed: it was cut off or replaced. Nothing was sent; bring the file back, or reset the "
        "channel's offset token on purpose"
    )


def row_blocks(
    file: SourceFile,
    *,
    after_line: int,
    offset: int,
    keep_tail: bool,
    max_bytes: int,
    max_rows: int,
    read_bytes: int = READ_BYTES,
) -> Iterator[RowBlock]:
    """Read the rows that come after a given line, as blocks of whole lines.

    :param file: the file; nothing behind its frozen size is read
    :param after_line: number of the last line that is not wanted
    :param offset: where the lines after it begin, from :func:`offset_after_line`
    :param keep_tail: True if an unterminated last line is a row, False if it is left for a later run
    :param max_bytes: size of a block, unless a single line is longer
    :param max_rows: rows in a block
    :param read_bytes: bytes in one read
    :raises SourcePositionError: if the file shrank or is gone
    """
    line = after_line
    pending_from = after_line + 1
    for chunk in _whole_lines(file, offset, keep_tail, read_bytes):
        ends = _line_ends(chunk)
        row_ends, row_numbers = _rows(chunk, ends)
        line_count = len(ends)
        begin = 0
        taken = 0
        while taken < len(row_ends):
            fitting = int(np.searchsorted(row_ends, begin + max_bytes, side="right"))
            last = max(min(fitting, taken + max_rows), taken + 1)
            end, last_line = int(row_ends[last - 1]), line + int(row_numbers[last - 1])
            yield RowBlock(chunk[begin:end], pending_from, last_line, last - taken)
            begin, pending_from, taken = end, last_line + 1, last
        line += line_count


def _whole_lines(file: SourceFile, offset: int, keep_tail: bool, read_bytes: int) -> Iterator[memoryview]:
    """Read a file from an offset to its frozen end in pieces that end with a newline."""
    rest: list[bytes] = []
    position = offset
    with _open(file) as stream:
        stream.seek(offset)
        while position < file.size:
            data = stream.read(min(read_bytes, file.size - position))
            if not data:
                raise _shrunk(file, position)
            if position == 0:
                data_start = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
            else:
                data_start = 0
            position += len(data)
            cut = data.rfind(b"\n") + 1
            if cut <= data_start:
                rest.append(data[data_start:])
                continue
            if rest:
                yield memoryview(b"".join([*rest, data[data_start:cut]]))
            else:
                yield memoryview(data)[data_start:cut]
            rest = [data[cut:]] if cut < len(data) else []
        if keep_tail and any(rest):
            size = os.fstat(stream.fileno()).st_size
            if size > file.size:
                raise SourcePositionError(
                    f"file {file.path!r} grew from {file.size} to {size} bytes during the run, in "
                    f"the middle of "
                    "a line; that line was not sent. Declare the source growing=True, or run again "
                    "when it is "
                    "complete"
                )
            yield memoryview(b"".join(rest))


def _line_ends(chunk: memoryview) -> npt.NDArray[np.int64]:
    """Offsets just behind each line; the last line may be unterminated."""
    ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE) + 1
    if not len(ends) or ends[-1] != len(chunk):
        ends = np.append(ends, len(chunk))
    return ends.astype(np.int64, copy=False)


def _rows(
    chunk: memoryview, ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ends and line numbers (from 1 within the chunk) of the lines that are not blank."""
    numbers = np.arange(1, len(ends) + 1, dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    data = np.frombuffer(chunk, np.uint8)
    if not (data[starts] <= _LAST_BLANK).any():
        return ends, numbers
    filled = np.logical_or.reduceat(data > _LAST_BLANK, starts)
    return ends[filled], numbers[filled]


def _open(file: SourceFile) -> BinaryIO:
    try:
        stream = open(file.path, "rb", buffering=0)  # noqa: SIM115  the callers close it
    except OSError as error:
        raise SourcePositionError(
            f"file {file.path!r} cannot be opened any more ({error.strerror}); it was listed when this run "
            "began. Leave the files in place until the run has ended"
        ) from None
    if os.fstat(stream.fileno()).st_size < file.size:
        size = os.fstat(stream.fileno()).st_size
        stream.close()
        raise _shrunk(file, size)
    return stream


def _shrunk(file: SourceFile, size: int) -> SourcePositionError:
    return SourcePositionError(
        f"file {file.path!r} shrank from {file.size} to {size} bytes during the run; lines that were to be "
        "sent are gone. Files may only be appended to"
    )
