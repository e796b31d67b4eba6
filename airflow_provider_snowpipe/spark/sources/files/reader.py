"""The file source: each group of files is a partition, its position a row of a file."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pkgutil import resolve_name
from typing import ClassVar, Self

from airflow_provider_snowpipe.spark.source import (
    Behind,
    OnDataLoss,
    Partition,
    Source,
    SourcePartition,
)
from airflow_provider_snowpipe.spark.sources.files.formats import FileReader, RowBlock, may_grow, open_listed
from airflow_provider_snowpipe.spark.sources.files.late_files import Listings, PassedFiles
from airflow_provider_snowpipe.spark.sources.files.spec import (
    ColumnFormat,
    FileFormat,
    FileGroup,
    FileSourceSpec,
    SourceFile,
    freeze,
    refuse_numbers_before,
)
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, Offset, VerifiedFileLineOffset

# -- Where a partition goes on: its committed offset token held against the files that are there ---------


@dataclass(frozen=True, slots=True)
class Resume:
    """The position in a group of files just after what is committed.

    :param file_index: number of the first file to read, from 0; the number of files if there is none left
    :param after_line: last row of that file skipped, 0 for none
    :param offset: where its reader goes on, a ``FilePosition`` of the format
    :param done: True if that file holds nothing behind it
    """

    file_index: int
    after_line: int
    offset: int
    done: bool = False


def _file_after(group: FileGroup, committed: FileLineOffset | None, on_data_loss: OnDataLoss) -> int:
    """Find the file that the committed position lies in, or the one to go on with where that is gone.

    Reads names only; whether the file still has the committed line, :func:`resume_after` decides.

    :raises SourcePositionError: if the committed file is not in the source any more
    """
    if committed is None:
        return 0
    names = [file.name for file in group.files]
    after = bisect_right(names, committed.file)
    if after and names[after - 1] == committed.file:
        return after - 1
    if on_data_loss == "skip":
        return after
    have = f"{names[0]!r} to {names[-1]!r}" if len(names) > 1 else repr(names[0])
    if after == len(names):
        reason = f"but all files of partition {group.partition!r} ({have}) sort before that file"
        remedy = "the source is older than the table, or is another one"
    else:
        reason = f"but that file is not among those of partition {group.partition!r} any more ({have})"
        remedy = "rows between the two may be missing; on_data_loss='skip' goes on with the next file"
    raise SourcePositionError(f"{str(committed)!r} is committed, {reason}: {remedy}. Nothing was sent")


def resume_after(
    group: FileGroup, reader: FileReader, committed: FileLineOffset | None, on_data_loss: OnDataLoss
) -> Resume:
    """Find the position just after the committed position, reading the committed file up to there.

    :param on_data_loss: ``skip`` allows that the committed file is gone
    :raises SourcePositionError: if the committed file or the committed line is gone
    """
    index = _file_after(group, committed, on_data_loss)
    if committed is None or index == len(group.files) or group.files[index].name != committed.file:
        return Resume(index, 0, 0)
    if committed.line == 0:
        return Resume(index, 0, 0)
    resume_at = reader.position_after(group.files[index], committed.line)
    return Resume(index, committed.line, resume_at.offset, resume_at.done)


def files_to_read(
    group: FileGroup, resume: Resume, *, growing: bool
) -> Iterator[tuple[SourceFile, Resume, bool]]:
    """The files that may hold rows after a position, each with where to begin and what its last line is.

    :param growing: True if the last file's unterminated line belongs to a later run
    :return: file, where to begin in it, True if its unterminated last line is a row
    """
    last = len(group.files) - 1
    for index in range(resume.file_index, len(group.files)):
        resume_at = resume if index == resume.file_index else Resume(index, 0, 0)
        if group.files[index].size and not resume_at.done:
            yield group.files[index], resume_at, not (growing and index == last)


# -- The source and its partitions -----------------------------------------------------------------------

_BYTES_A_SECOND = 256 << 20
"""Searching for a row takes about a second in so large a file, and in a compressed one of an eighth of it."""


class FileSource(Source):
    """Ordered groups of files.

    :param on_data_loss: what to do if a committed file is gone
    """

    def __init__(self, spec: FileSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss

    def partitions(self) -> tuple[FilePartition, ...]:
        """List the groups and their files, with the sizes that they have now."""
        kind: type[FilePartition] = FilePartition
        if self._spec.verify == "digest":
            kind = VerifiedFilePartition
        return tuple(
            kind(group.partition, group, self._spec, self._on_data_loss) for group in freeze(self._spec)
        )

    def compare_with_last_run(
        self, target: str, partitions: Mapping[str, Partition], committed: Mapping[str, Offset | None]
    ) -> None:
        """Refuse late files, and keep the present listing for the next run."""
        Listings(self._spec, target).check(
            PassedFiles(channel, partition.group, _file_line(committed[channel]))
            for channel, partition in partitions.items()
            if isinstance(partition, FilePartition)
        )


@dataclass(frozen=True, slots=True)
class FilePartition(SourcePartition[Resume]):
    """One group of files.

    :param on_data_loss: what to do if the committed file is gone
    """

    name: str
    group: FileGroup
    spec: FileSourceSpec
    on_data_loss: OnDataLoss
    offset_class: ClassVar[type[Offset]] = FileLineOffset

    def check(self, committed: Offset | None) -> None:
        """Make sure that the committed file is there; whether it has the line is for :meth:`resume`."""
        position = _file_line(committed)
        if self.spec.numbering == "checked":
            refuse_numbers_before(self.group, position)
        _file_after(self.group, position, self.on_data_loss)

    def resume(self, committed: Offset | None) -> Resume | None:
        """Find the position just after a row, reading the committed file up to there."""
        reader = reader_of(self.spec.form)
        resume = resume_after(self.group, reader, _file_line(committed), self.on_data_loss)
        rest = files_to_read(self.group, resume, growing=self.spec.form.growing)
        return None if next(rest, None) is None else resume

    def is_done(self, committed: Offset | None) -> bool:
        """Search for a file behind the committed one, and then for a row in that one unless it is large."""
        position = _file_line(committed)
        committed_file = "" if position is None else position.file
        rest = [file for file in self.group.files if file.name >= committed_file]
        if any(file.size for file in rest if file.name > committed_file):
            return False
        if not self._is_within(_BYTES_A_SECOND, rest):
            return False
        resume_at = self.resume(committed)
        return resume_at is None or next(self.blocks(resume_at, BatchLimits()), None) is None

    def is_quick(self, committed: Offset | None) -> bool:
        """True where the committed file is small: it is read up to the row."""
        position = _file_line(committed)
        files = [file for file in self.group.files if position is not None and file.name == position.file]
        return self._is_within(_BYTES_A_SECOND // 32, files)

    def _is_within(self, most: int, files: Sequence[SourceFile]) -> bool:
        """True if none of the files is larger, or than an eighth of it where it is compressed."""
        form = self.spec.form
        is_plain = isinstance(form, ColumnFormat)
        return all(file.size <= (most if is_plain or may_grow(file, form) else most // 8) for file in files)

    def read(self, resume_at: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows as blocks of NDJSON, file after file."""
        for file, block in self.blocks(resume_at, limits):
            yield Part(
                block.body,
                FileLineOffset(file.name, block.first_line),
                FileLineOffset(file.name, block.last_line),
                block.rows,
                types=block.types,
            )

    def blocks(self, resume_at: Resume, limits: BatchLimits) -> Iterator[tuple[SourceFile, RowBlock]]:
        """Read the rows from a position to the partition's end.

        :return: blocks, each with the file that it is from
        """
        reader = reader_of(self.spec.form)
        for file, start, keep_tail in files_to_read(self.group, resume_at, growing=self.spec.form.growing):
            for block in reader.blocks(
                file,
                after_line=start.after_line,
                offset=start.offset,
                keep_tail=keep_tail or not may_grow(file, self.spec.form),
                limits=limits,
            ):
                yield file, block

    def behind(self, committed: Offset | None) -> Behind:
        """Count the files that are not committed; the one that the position is in counts with its size."""
        committed_file = getattr(committed, "file", "")
        size = sum(file.size for file in self.group.files if file.name >= committed_file)
        files = sum(file.name > committed_file for file in self.group.files)
        return Behind(size, f"files_behind={files}")

    def files_behind(self, committed: Offset | None) -> Sequence[tuple[str, int]]:
        """List the same files, the one that the position is in among them."""
        committed_file = getattr(committed, "file", "")
        return [(file.name, file.size) for file in self.group.files if file.name >= committed_file]

    @property
    def binding(self) -> Binding:  # type: ignore[override]
        """The directory and the group of files, and what decides how rows are numbered."""
        return self.spec.binding(self.name)


def _file_line(position: Offset | None) -> FileLineOffset | None:
    if position is None or isinstance(position, FileLineOffset):
        return position
    if isinstance(position, VerifiedFileLineOffset):
        return position.plain
    raise SourcePositionError(f"{position!r} is no file:line position, which a file source needs")


# -- The file formats, each imported when it is used -----------------------------------------------------


def reader_of(form: FileFormat) -> FileReader:
    """Make the reader of files of a format.

    :raises ConfigurationError: if the format's library is missing here
    """
    made: FileReader = resolve_name(f"{__package__}.{form.reader_class}")(form)
    return made


# -- Partitions whose offset tokens show what the file held, so that a changed file is an error ----------
#
# The service keeps nothing but the token, so that the evidence has to be in it. The digest is that of the
# bytes as they are stored: up to the end of the committed row where the file may grow, of the whole file
# otherwise.

_READ_BYTES = 1 << 20


class _PrefixDigest:
    """The digest of a file's first bytes, taken further as reading goes on.

    A newline at the end is left out: the last row of a file may be sent before it is terminated.

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

    def __exit__(self, *_: object) -> None:
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
        """Find the position just after a row, and hold the file up to there against the token's digest.

        :raises SourcePositionError: if the file is another one, or not there
        """
        resume_at = FilePartition.resume(self, committed)
        if isinstance(committed, VerifiedFileLineOffset) and committed.digest and committed.line:
            self._verify(committed)
        return resume_at

    def read(self, resume_at: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows as blocks of NDJSON, each with the digest of its file up to its end."""
        with ExitStack() as opened:
            current: SourceFile | None = None
            for file, block in self.blocks(resume_at, limits):
                if file != current:
                    opened.close()
                    prefix, current = opened.enter_context(_PrefixDigest(file)), file
                digest = prefix.up_to(block.end if may_grow(file, self.spec.form) else file.size)
                yield Part(
                    block.body,
                    VerifiedFileLineOffset(file.name, block.first_line),
                    VerifiedFileLineOffset(file.name, block.last_line, digest),
                    block.rows,
                    types=block.types,
                )

    def _verify(self, committed: VerifiedFileLineOffset) -> None:
        file = next((file for file in self.group.files if file.name == committed.file), None)
        if file is None:  # allowed to be gone by on_data_loss
            return
        end, is_whole = file.size, not may_grow(file, self.spec.form)
        if not is_whole:
            end = reader_of(self.spec.form).position_after(file, committed.line).offset
        with _PrefixDigest(file) as prefix:
            found = prefix.up_to(end)
        if found != committed.digest:
            what = f"all of its {end} bytes" if is_whole else f"its first {end} bytes"
            raise SourcePositionError(
                f"file {file.path!r} was changed or replaced after row {committed.line} of it was committed: "
                f"{what} have the digest {found}, the committed token {str(committed)!r} states "
                f"{committed.digest}. Nothing was sent; bring the file back, or reset the channel's offset "
                "token on purpose"
            )
