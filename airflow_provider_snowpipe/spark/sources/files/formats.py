"""What a file format is to the file source: a reader that finds, counts and cuts the rows of one file.

A new format is one module with one :class:`FileReader`, named in
:mod:`~airflow_provider_snowpipe.spark.sources.files.reader`.
"""

from __future__ import annotations

import lzma
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file.

    :param body: the rows; as NDJSON once a reader has handed them out
    :param first_line: number of the first line, record or row, counted from 1; it follows the block before
        directly
    :param last_line: number of the last one, which is a row
    :param rows: how many of them are rows; blank lines count as lines and are nobody's row
    :param end: bytes of the stored text up to the last row's end, 0 where the format has no such position
    """

    body: bytes | memoryview
    first_line: int
    last_line: int
    rows: int
    end: int = 0


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

    def may_grow(self, file: SourceFile) -> bool:
        """True if rows may be appended to the file between two runs, so that only its begin stays the same.

        :param file: the file
        """
        return False

    @abstractmethod
    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Find the position after a committed row, reading no more than that takes.

        :param file: the file
        :param line: number of the row, 1 or more
        :raises SourcePositionError: if the file has fewer rows, is gone or has changed since it was listed
        """

    @abstractmethod
    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the rows after a given one, as NDJSON.

        :param file: the file
        :param after_line: number of the last row passed over, 0 for none
        :param offset: the position after it, from :meth:`position_after`; 0 where there is none
        :param keep_tail: False leaves an unterminated last row to a later run
        :param limits: what a batch takes
        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if a row cannot be read, or has no form as JSON
        """


def too_few_rows(file: SourceFile, have: int, line: int, unit: str) -> SourcePositionError:
    """Return the error that a committed row is not in its file any more.

    :param file: the file
    :param have: rows that it has
    :param line: the committed row's number
    :param unit: what the format calls a row
    """
    return SourcePositionError(
        f"file {file.path!r} has {have} {unit}(s) in {file.size} bytes, but {unit} {line} of it is "
        "committed: it was cut off or replaced. Nothing was sent; bring the file back, or reset the "
        "channel's offset token on purpose"
    )


# -- The bytes of a listed file, decompressed where it is compressed, up to the size that it was listed with -

READ_BYTES = 4 << 20
"""One read."""
_BY_ENDING = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def compression_of(file: SourceFile, declared: str) -> str:
    """Return how a file is compressed.

    :param file: the file
    :param declared: ``gzip``, ``zstd``, ``bz2``, ``xz`` or ``none``; ``auto`` goes by the name's ending
    :return: one of these, without ``auto``
    """
    if declared != "auto":
        return declared
    return _BY_ENDING.get(os.path.splitext(file.name)[1].lower(), "none")


def pieces(
    file: SourceFile, offset: int, *, compression: str = "none", read_bytes: int = READ_BYTES
) -> Iterator[bytes]:
    """Read a file's text from an offset to its listed end, piece by piece.

    A compressed file is read from its start whatever the offset is, and has to be complete.

    :param file: the file
    :param offset: bytes of text to pass over
    :param compression: as :func:`compression_of` returns it
    :param read_bytes: bytes in one piece, at most
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
    with open_listed(file) as stream:
        size = os.fstat(stream.fileno()).st_size
    if size > file.size:
        raise SourcePositionError(
            f"file {file.path!r} grew from {file.size} to {size} bytes during the run, in the middle of "
            "a line; that line was not sent. Declare the source growing=True, or run again when it is "
            "complete"
        )


def open_listed(file: SourceFile, *, exact: bool = False) -> BinaryIO:
    """Open a file that was listed when the run began.

    :param file: the file
    :param exact: True refuses a file that has grown, too
    :raises SourcePositionError: if it is gone or is smaller than it was
    """
    try:
        stream = open(file.path, "rb", buffering=0)  # noqa: SIM115  the callers close it
    except OSError as error:
        raise SourcePositionError(
            f"file {file.path!r} cannot be opened any more ({error.strerror}); it was listed when this run "
            "began. Leave the files in place until the run has ended"
        ) from None
    size = os.fstat(stream.fileno()).st_size
    if size < file.size:
        stream.close()
        raise _shrunk(file, size)
    if exact and size != file.size:
        stream.close()
        raise SourcePositionError(
            f"file {file.path!r} grew from {file.size} to {size} bytes during the run, and a file of this "
            "kind is only whole when it is finished: write it under another name and rename it, then run "
            "again"
        )
    return stream


def _stored(file: SourceFile, offset: int, read_bytes: int) -> Iterator[bytes]:
    position = offset
    with open_listed(file) as stream:
        stream.seek(offset)
        while position < file.size:
            data = stream.read(min(read_bytes, file.size - position))
            if not data:
                raise _shrunk(file, position)
            position += len(data)
            yield data


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
                    "may have been sent; put a whole file in its place that begins with the same rows"
                ) from None
            if not data:
                return
            passed += len(data)
            if passed > offset:
                yield bytes(data[offset - passed :]) if passed - len(data) < offset else bytes(data)


def _decompressor(stored: BinaryIO, compression: str) -> BinaryIO:
    if compression == "xz":
        return cast(BinaryIO, lzma.open(stored, "rb"))
    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stored, "r"), compression))


def _shrunk(file: SourceFile, size: int) -> SourcePositionError:
    return SourcePositionError(
        f"file {file.path!r} shrank from {file.size} to {size} bytes during the run; lines that were to be "
        "sent are gone. Files may only be appended to"
    )


# -- Partition values in the paths of files, as in ``day=2024-01-01/part-0.parquet`` ---------------------


def with_values(rows: pa.Table, file: SourceFile) -> pa.Table:
    """Add the partition's values as columns of text.

    :param rows: rows of the file
    :param file: the file; without values to add, the rows stay as they are
    :raises EncodingError: if the rows have such a column of their own
    """
    for name, value in file.values:
        if name.upper() in {column.upper() for column in rows.column_names}:
            raise EncodingError(
                f"file {file.path!r} has a column {name!r}, which the partition value {name}={value} in its "
                "path would be added as: set partition_columns=False, or leave that column out by columns=…"
            )
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.large_string()), rows.num_rows))
    return rows
