"""Partitions whose offset tokens tell what the file held, so that a changed file is an error.

The service keeps nothing but the token, so that the evidence has to be in it. The digest is that of the bytes
as they are stored: up to the end of the committed row where the file may grow, of the whole file otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import ClassVar, Self

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.reader import FilePartition
from airflow_provider_snowpipe.spark.sources.files.readers import reader_of
from airflow_provider_snowpipe.spark.sources.files.resume import Resume
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import open_listed
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.verified_offset import VerifiedFileLineOffset

_READ_BYTES = 1 << 20


class PrefixDigest:
    """The digest of a file's first bytes, taken further as reading goes on.

    A newline at the end is left out: the last row of a file may be sent before it is terminated.

    :param file: the file
    :raises SourcePositionError: if it is gone or shrank
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._stream = open_listed(file)
        self._hash = blake2b(digest_size=8)
        self._last = b""
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def up_to(self, end: int) -> str:
        """Digest of the first bytes.

        :param end: how many, never fewer than the time before
        :return: 16 hexadecimal digits
        :raises SourcePositionError: if the file has become shorter
        """
        while self._at < end:
            data = self._stream.read(min(end - self._at, _READ_BYTES))
            if not data:
                size = os.path.getsize(self._file.path)
                raise SourcePositionError(
                    f"file {self._file.path!r} shrank from {self._file.size} to {size} bytes while it was "
                    "read. Files may only be appended to"
                )
            self._at += len(data)
            self._hash.update(self._last + data[:-1])
            self._last = data[-1:]
        whole = self._hash.copy()
        whole.update(self._last.removesuffix(b"\n"))
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class VerifiedFilePartition(FilePartition):
    """One group of files with tokens of the format ``file:line/digest``."""

    offset_class: ClassVar[type[Offset]] = VerifiedFileLineOffset

    def resume(self, committed: Offset | None) -> Resume | None:
        """Find the place just after a row, and hold the file up to there against the token's digest.

        :raises SourcePositionError: if the file is another one, or not there
        """
        place = FilePartition.resume(self, committed)
        if isinstance(committed, VerifiedFileLineOffset) and committed.digest and committed.line:
            self._verify(committed)
        return place

    def read(self, place: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows as blocks of NDJSON, each with the digest of its file up to its end."""
        reader = reader_of(self.spec)
        with ExitStack() as opened:
            current: SourceFile | None = None
            for file, block in self.blocks(place, limits):
                if file is not current:
                    opened.close()
                    prefix, current = opened.enter_context(PrefixDigest(file)), file
                digest = prefix.up_to(block.end if reader.may_grow(file) else file.size)
                yield Part(
                    block.body,
                    VerifiedFileLineOffset(file.name, block.first_line),
                    VerifiedFileLineOffset(file.name, block.last_line, digest),
                    block.rows,
                )

    def _verify(self, committed: VerifiedFileLineOffset) -> None:
        file = next((file for file in self.group.files if file.name == committed.file), None)
        if file is None:  # allowed to be gone by on_data_loss
            return
        reader = reader_of(self.spec)
        end = reader.place_after(file, committed.line).offset if reader.may_grow(file) else file.size
        with PrefixDigest(file) as prefix:
            found = prefix.up_to(end)
        if found != committed.digest:
            what = f"its first {end} bytes" if reader.may_grow(file) else f"all of its {end} bytes"
            raise SourcePositionError(
                f"file {file.path!r} was changed or replaced after row {committed.line} of it was committed: "
                f"{what} have the digest {found}, the committed token {str(committed)!r} says "
                f"{committed.digest}. Nothing was sent; bring the file back, or reset the channel's offset "
                "token on purpose"
            )
