"""What a file format is to the file source: a reader that finds, counts and cuts the rows of one file.

A new format is one value beside those of :mod:`~airflow_provider_snowpipe.spark.sources.files.spec`, and one
module with the :class:`FileReader` that the value names.
"""

from __future__ import annotations

import io
import lzma
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, BinaryIO, cast

from airflow_provider_snowpipe.spark.sources.files.spec import FileFormat, LineFormat, SourceFile
from airflow_provider_snowpipe.spark.sources.files.storage import Listed
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted


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


def reader_of(form: FileFormat) -> FileReader:
    """Make the reader of files of a format, whose module is imported when it is used."""
    made: FileReader = resolve_name(f"{__package__}.{form.reader_class}")(form)
    return made


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
_FIRST_BYTES = 512 << 10
"""The first read of a file; each is twice as long as the one before, so that the first rows are sent soon."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SECOND_NS = 1_000_000_000
_BY_ENDING = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def compression_of(file: SourceFile, declared: str) -> str:
    """Return how a file is compressed; ``auto`` goes by the name's ending."""
    if declared != "auto":
        return declared
    return _BY_ENDING.get(os.path.splitext(file.name)[1].lower(), "none")


def may_grow(file: SourceFile, form: FileFormat) -> bool:
    """True if rows may be appended to a file between two runs; only its begin stays the same then."""
    return isinstance(form, LineFormat) and compression_of(file, form.compression) == "none"


def pieces(
    file: SourceFile, offset: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> Iterator[memoryview]:
    """Read a file's text from an offset to its listed end, piece by piece.

    A compressed file is read from its start whatever the offset is, and has to be complete.

    :param offset: bytes of text to skip
    """
    if compression == "none":
        return _stored(file, offset, read_bytes)
    return _decompressed(file, offset, compression, read_bytes)


def refuse_growth(file: SourceFile, compression: str) -> None:
    """Refuse to take an unterminated last row of a file that has grown since it was listed."""
    if compression != "none":
        return
    size = file.storage.stat(file.path).size
    if size > file.size:
        raise SourcePositionError(
            f"file {file.path!r} grew from {file.size} to {size} bytes during the run, in the middle of a "
            "line; that line was not sent. Give its format growing=True, or run again when it is complete"
        )


def open_listed(file: SourceFile, *, exact: bool = False) -> io.BufferedIOBase:
    """Open a file that was listed when the run began; ``exact`` refuses one that has grown, too."""
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


def _stored(file: SourceFile, offset: int, read_bytes: int) -> Iterator[memoryview]:
    position, length = offset, min(read_bytes, _FIRST_BYTES)
    with ExitStack() as opened:
        stream = opened.enter_context(open_listed(file, exact=bool(file.version)))
        stream.seek(offset)
        while position < file.size:
            try:
                data = stream.read1(min(length, file.size - position))
            except SourcePositionError:
                if position > offset:
                    raise
                # Nothing is read yet: an object to which lines were added is another version of it.
                stream = opened.enter_context(open_listed(file))
                stream.seek(offset)
                data = stream.read1(min(length, file.size - position))
            if not data:
                raise _shrunk(file, position)
            position += len(data)
            yield memoryview(data)
            length = min(2 * length, read_bytes)
        _refuse_rewritten_meanwhile(file)


def _decompressed(file: SourceFile, offset: int, compression: str, read_bytes: int) -> Iterator[memoryview]:
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
                yield memoryview(data)[max(offset - passed + len(data), 0) :]


def _decompressor(stored: io.BufferedIOBase, compression: str) -> BinaryIO:
    if compression == "xz":
        return io.BufferedReader(_XzStreams(stored), READ_BYTES)
    # A run that reads no file need not wait for it.
    import pyarrow as pa

    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stored, "r"), compression))


class _XzStreams(io.RawIOBase):
    """Streams of xz one behind the other, padded by zeros.

    Python's own reader takes whatever else follows a stream, a damaged one as well, for the end of the file.
    """

    def __init__(self, stored: io.BufferedIOBase) -> None:
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
