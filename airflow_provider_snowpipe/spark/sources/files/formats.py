"""What a file format is to the file source: a reader that finds, counts and cuts the rows of one file.

A new format is one value beside those of :mod:`~airflow_provider_snowpipe.spark.sources.files.spec`, and one
module with the :class:`FileReader` that the value names.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.source import part_bytes, row_ranges
from airflow_provider_snowpipe.spark.sources.files.spec import (
    FileFormat,
    LineFormat,
    Ndjson,
    SourceFile,
    Text,
)
from airflow_provider_snowpipe.spark.sources.files.storage import Listed
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.splice import IS_BLANK, with_columns


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file.

    :param body: the rows; as NDJSON once a reader has handed them out
    :param first_line: number of the first line, record or row, counted from 1; it follows the block before
        directly
    :param last_line: number of the last one, which is a row
    :param rows: how many of them are rows; blank lines count as lines and are nobody's row
    :param end: bytes of the stored text up to the last row's end, 0 where the format has no such position
    :param types: types of columns, by name, where the file's own schema has them
    :param numbers: of the rows, a numpy array; None where they follow each other up to ``last_line``
    :param row_ends: where the rows end in the body, a numpy array; None where nobody knows
    """

    body: bytes | memoryview
    first_line: int
    last_line: int
    rows: int
    end: int = 0
    types: Mapping[str, str] = field(default_factory=dict)
    numbers: Any = None
    row_ends: Any = None


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position in one file just after a row.

    :param offset: where the reader goes on, in bytes of the uncompressed text; 0 for formats that find a row
        by its number
    :param done: True if nothing lies behind it
    """

    offset: int = 0
    done: bool = False


class FileReader(ABC):
    """Reads files of one format. Holds settings only, so that it is made wherever it is needed.

    The number of a row depends on the file's content alone: not on batch limits, on where reading
    began, or on how large a piece is read at once.
    """

    __slots__ = ()

    @abstractmethod
    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Find the position after a committed row, reading no more than that takes.

        :raises SourcePositionError: if the file has fewer rows, is gone or has changed since it was listed
        """

    @abstractmethod
    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the rows after a given one, as NDJSON.

        :param after_line: number of the last row skipped, 0 for none
        :param offset: the position after it, from :meth:`position_after`; 0 where there is none
        :param keep_tail: False leaves an unterminated last row to a later run
        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if a row cannot be read, or has no form as JSON
        """


class LineFileReader(FileReader):
    """Reads files that may grow, whose rows end with lines."""

    __slots__ = ()

    @abstractmethod
    def extent(self, file: SourceFile, *, keep_tail: bool) -> tuple[int, int]:
        """Count the lines of a piece of a file, and find where the last of them ends, in bytes.

        :param keep_tail: False leaves out an unterminated last line
        """

    def whole_end(self, file: SourceFile) -> int:
        """Find where the last terminated line of a piece ends; its first byte where there is none."""
        return self.extent(file, keep_tail=False)[1]


def too_few_rows(file: SourceFile, have: int, line: int, unit: str) -> SourcePositionError:
    """Return the error that a committed row is not in its file any more."""
    return SourcePositionError(
        f"file {file.path!r} has {counted(have, unit)} in {file.size} bytes, but {unit} {line} of it is "
        "committed: it was cut off or replaced. Nothing was sent; bring the file back, or reset the "
        "channel's offset token on purpose"
    )


# -- The bytes of a listed file, decompressed where it is compressed, up to the size that it was listed with -

READ_BYTES = 4 << 20
"""One read."""
_SECOND_NS = 1_000_000_000
_BY_ENDING = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def compression_of(file: SourceFile, declared: str) -> str:
    """Return how a file is compressed.

    :param declared: ``gzip``, ``zstd``, ``bz2``, ``xz`` or ``none``; ``auto`` goes by the name's ending
    :return: one of these, without ``auto``
    """
    if declared != "auto":
        return declared
    return _BY_ENDING.get(os.path.splitext(file.name)[1].lower(), "none")


def may_grow(file: SourceFile, form: FileFormat) -> bool:
    """True if rows may be appended to a file between two runs; only its begin stays the same then."""
    return isinstance(form, LineFormat) and compression_of(file, form.compression) == "none"


def pieces(
    file: SourceFile, offset: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> Iterator[bytes]:
    """Read a file's text from an offset to its listed end, piece by piece.

    A compressed file is read from its start whatever the offset is, and has to be complete.

    :param offset: bytes of text to skip
    :raises SourcePositionError: if the file is gone, shrank, or is compressed and changed in size
    :raises EncodingError: if it cannot be decompressed
    """
    if compression == "none":
        return _stored(file, offset, read_bytes)
    return _decompressed(file, offset, compression, read_bytes)


def refuse_growth(file: SourceFile, compression: str) -> None:
    """Refuse to take an unterminated last row of a file that has grown since it was listed.

    :raises SourcePositionError: if it has
    """
    if compression != "none":
        return
    size = file.storage.stat(file.path).size
    if size > file.size:
        raise SourcePositionError(
            f"file {file.path!r} grew from {file.size} to {size} bytes during the run, in the middle of a "
            "line; that line was not sent. Give its format growing=True, or run again when it is complete"
        )


def open_listed(file: SourceFile, *, exact: bool = False) -> BinaryIO:
    """Open a file that was listed when the run began.

    :param exact: True refuses a file that has grown, too
    :raises SourcePositionError: if it is gone, is smaller than it was, or was written again in the same size
    """
    try:
        if exact and file.version:  # its storage reads no other one
            return file.storage.open(file.path, file.version, file.size)
        found = file.storage.stat(file.path)
        # A version of a plain text that has grown is another one, and begins with what was listed.
        stream = file.storage.open(file.path, found.version, found.size)
    except OSError as error:
        raise SourcePositionError(
            f"file {file.path!r} cannot be opened any more ({error.strerror}); it was listed when this run "
            "began. Leave the files in place until the run has ended"
        ) from None
    try:
        if found.size < file.size:
            raise _shrunk(file, found.size)
        if exact and found.size != file.size:
            raise SourcePositionError(
                f"file {file.path!r} grew from {file.size} to {found.size} bytes during the run, and a file "
                "of this kind is only whole when it is finished: write it under another name and rename it, "
                "then run again"
            )
        refuse_rewritten(file, found)
    except SourcePositionError:
        stream.close()
        raise
    return stream


def refuse_rewritten(file: SourceFile, found: Listed) -> None:
    """Refuse a file of the listed size that is younger than the listed one, since its rows are others.

    A file that has grown is younger as well, and an older time is that of a copy. Some hosts see the times of
    a mounted storage in whole seconds.

    :param file: the file as it was listed, with its time or 0
    :param found: as it is now
    :raises SourcePositionError: if it is
    """
    unit = 1 if file.modified_ns % _SECOND_NS else _SECOND_NS
    is_younger = found.modified_ns // unit > file.modified_ns // unit > 0
    is_another = "" not in (file.version, found.version) and found.version != file.version
    if found.size == file.size and (is_younger or is_another):
        raise SourcePositionError(
            f"file {file.path!r} was written again in the same size of {file.size} bytes during the run, so "
            "that rows of both may have been sent. Leave the files in place until the run has ended, put new "
            "content into a file of its own, and compare the table with the files"
        )


def _refuse_rewritten_meanwhile(file: SourceFile) -> None:
    """The same behind its last byte, where it was not read as one version."""
    if not file.version:
        refuse_rewritten(file, file.storage.stat(file.path))


def _stored(file: SourceFile, offset: int, read_bytes: int) -> Iterator[bytes]:
    position = offset
    with ExitStack() as opened:
        stream = opened.enter_context(open_listed(file, exact=bool(file.version)))
        stream.seek(offset)
        while position < file.size:
            try:
                data = stream.read(min(read_bytes, file.size - position))
            except SourcePositionError:
                if position > offset:
                    raise
                # Nothing is read yet: an object to which lines were added is another version of it.
                stream = opened.enter_context(open_listed(file))
                stream.seek(offset)
                data = stream.read(min(read_bytes, file.size - position))
            if not data:
                raise _shrunk(file, position)
            position += len(data)
            yield data
        _refuse_rewritten_meanwhile(file)


def _decompressed(file: SourceFile, offset: int, compression: str, read_bytes: int) -> Iterator[bytes]:
    passed = 0
    with open_listed(file, exact=True) as stored, _decompressor(stored, compression) as stream:
        while True:
            try:
                data = stream.read(read_bytes)
            except (OSError, EOFError, lzma.LZMAError) as error:
                raise EncodingError(
                    f"file {file.path!r} cannot be decompressed as {compression} after {passed} bytes of "
                    f"text ({error}): it is cut off, damaged, or not {compression}. Rows before that "
                    "may have been sent; replace it by a whole file that begins with the same rows"
                ) from None
            if not data:
                _refuse_rewritten_meanwhile(file)
                return
            passed += len(data)
            if passed > offset:
                yield bytes(data[offset - passed :]) if passed - len(data) < offset else bytes(data)


def _decompressor(stored: BinaryIO, compression: str) -> BinaryIO:
    if compression == "xz":
        return io.BufferedReader(_XzStreams(stored), READ_BYTES)
    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stored, "r"), compression))


class _XzStreams(io.RawIOBase):
    """Streams of xz one behind the other, padded by zeros.

    Python's own reader takes whatever else follows a stream, a damaged one as well, for the end of the file.
    """

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._stream = lzma.LZMADecompressor()

    def readable(self) -> bool:
        """True, it is read."""
        return True

    def readinto(self, into: Any) -> int:
        """Read some text, none at the end of the file."""
        while True:
            data = b""
            if self._stream.eof:
                data = self._stream.unused_data
                while not (data := data.lstrip(b"\0")):
                    if not (data := self._stored.read(READ_BYTES)):
                        return 0
                self._stream = lzma.LZMADecompressor()
            elif self._stream.needs_input and not (data := self._stored.read(READ_BYTES)):
                raise EOFError("Truncated compressed stream")
            if text := self._stream.decompress(data, len(into)):
                into[: len(text)] = text
                return len(text)


def _shrunk(file: SourceFile, size: int) -> SourcePositionError:
    return SourcePositionError(
        f"file {file.path!r} shrank from {file.size} to {size} bytes during the run; lines that were to be "
        "sent are gone. Files may only be appended to"
    )


# -- Partition values in the paths of files, as in ``day=2024-01-01/part-0.parquet`` ---------------------


def with_values(rows: pa.Table, file: SourceFile) -> pa.Table:
    """Add the partition's values as columns of text.

    :param file: the file; without values to add, the rows stay as they are
    :raises EncodingError: if the rows have such a column of their own
    """
    _refuse_values_of_its_own(file, rows.column_names, "", ", or leave that column out by columns=…")
    for name, value in file.values:
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.large_string()), rows.num_rows))
    return rows


def _refuse_values_of_its_own(file: SourceFile, columns: Iterable[str], row: str, remedy: str = "") -> None:
    own = {column.upper(): column for column in columns}
    for name, value in file.values:
        if name.upper() in own:
            raise EncodingError(
                f"file {file.path!r}{row} has a column {own[name.upper()]!r}, which the partition value "
                f"{name}={value} in its path would be added as: leave out as_columns of ByKey{remedy}"
            )


def _refuse_objects_with_values(block: RowBlock, file: SourceFile) -> None:
    """Refuse NDJSON of which an object has a key that a partition value would be added as.

    Only lines that may have one are read as JSON.

    :raises EncodingError: naming the line and the key
    """
    body = bytes(block.body)
    names = "|".join("".join(map(_in_json, name)) for name, _ in file.values)
    for found in re.finditer(rf'"(?:{names})"[ \t\r]*:'.encode(), body):
        begin = body.rfind(b"\n", 0, found.start()) + 1
        try:
            row = json.loads(body[begin:].partition(b"\n")[0])
        except ValueError:
            continue  # for the service to skip and to count
        if isinstance(row, dict):
            line = block.first_line + body.count(b"\n", 0, begin)
            _refuse_values_of_its_own(file, row, f", line {line},")


def _in_json(letter: str) -> str:
    """An expression for what may stand for a letter of a key, in its two cases."""
    forms = set()
    for one in (letter.lower(), letter.upper()):
        escaped = "".join(f"\\u{ord(unit):04x}" for unit in one)
        forms |= {re.escape(one), f"(?i:{re.escape(escaped)})"}
    return f"(?:{'|'.join(sorted(forms))})"


# -- Files of lines: NDJSON, whose lines are passed on as they are, and text, whose lines become one column --

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
        for position, chunk in _whole_lines(file, file.start, keep_tail, "none", READ_BYTES):
            data = np.frombuffer(chunk, np.uint8)
            lines += int(np.count_nonzero(data == _NEWLINE)) + int(data[-1] != _NEWLINE)
            end = position + len(chunk)
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
                _refuse_objects_with_values(block, file)
                body = with_columns(block.body, dict(file.values), {}, block.row_ends)
                yield replace(block, body=body, row_ends=None)
            else:
                yield block


def text_rows(block: RowBlock, column: str, file: SourceFile) -> memoryview:
    """Encode each line that is not empty as ``{"<column>": "<line>"}``, without its line ending.

    :raises EncodingError: if the lines are not UTF-8
    """
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

    Lines that are no JSON at all are none: whoever reads documents finds none in them, either.

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
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def position_after_line(
    file: SourceFile, line: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> FilePosition:
    """Find where the lines after a given one begin.

    An unterminated last line counts as a line.

    :param line: number of the last line to pass, 0 for none
    :return: the position, in bytes of text
    :raises SourcePositionError: if the file has fewer lines, or is gone
    """
    if line <= file.after_line:
        return FilePosition(file.start)
    seen = file.after_line
    position = file.start
    tail_is_line = False
    data_pieces = pieces(file, file.start, compression=compression, read_bytes=read_bytes)
    for data in data_pieces:
        here = data.count(b"\n")
        if seen + here >= line:
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
            end = int(ends[line - seen - 1]) + 1
            return FilePosition(position + end, done=end == len(data) and next(data_pieces, None) is None)
        seen += here
        position += len(data)
        tail_is_line = not data.endswith(b"\n")
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

    :param file: the file; nothing behind its frozen size is read
    :param after_line: number of the last line skipped
    :param offset: where the lines after it begin, from :func:`position_after_line`
    :param keep_tail: True if an unterminated last line is a row, False if it is left for a later run
    :param max_bytes: size of a block, unless a single line is longer
    :param max_rows: rows in a block
    :param blanks: True if a line of blanks and tabs is blank, False if only one without any character is
    :raises SourcePositionError: if the file shrank or is gone
    """
    line = after_line
    pending_from = after_line + 1
    for position, chunk in _whole_lines(file, offset, keep_tail, compression, read_bytes):
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE) + 1
        if not len(ends) or ends[-1] != len(chunk):  # the last line may be unterminated
            ends = np.append(ends, len(chunk))
        ends = ends.astype(np.int64, copy=False)
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
) -> Iterator[tuple[int, memoryview]]:
    """Read a file from an offset to its frozen end in pieces that end with a newline, with its position."""
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
