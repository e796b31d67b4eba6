"""The bytes of a listed file, decompressed where it is compressed, up to the size that it was listed with."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError, SourcePositionError

READ_BYTES = 4 << 20
"""One read."""
_BY_ENDING = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def compression_of(file: SourceFile, declared: str) -> str:
    """Say how a file is compressed.

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
    :param compression: as :func:`compression_of` says it
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
                    f"text ({error}): it is cut off, damaged, or not {compression}. Rows before that place "
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
