"""A partition of files: where it goes on behind a committed position, and the rows there."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from airflow_provider_snowpipe.spark.source import Behind, OnDataLoss, SourcePartition
from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock, may_grow, reader_of
from airflow_provider_snowpipe.spark.sources.files.listing import refuse_replaced
from airflow_provider_snowpipe.spark.sources.files.log import NO_ROWS
from airflow_provider_snowpipe.spark.sources.files.remote_storage import expect, read_ahead
from airflow_provider_snowpipe.spark.sources.files.spec import (
    ROW_NUMBER,
    ByDirectory,
    ColumnFormat,
    FileFormat,
    FileGroup,
    SourceFile,
)
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource as FileSourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.lag import FileBacklog, FileBehind
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import Offset, UnitOffset

# -- Where a partition goes on: its committed offset token, and the units that the log has ---------------


@dataclass(frozen=True, slots=True)
class Resume:
    """The position in a group of files just after what is committed.

    :param file_index: number of the first unit to read, from 0; the number of units if there is none left
    :param after_line: last row of its file that is skipped, 0 for none
    :param offset: where its reader goes on, a ``FilePosition`` of the format
    :param done: True if that unit holds nothing behind it
    """

    file_index: int
    after_line: int
    offset: int
    done: bool = False


def resume_after(group: FileGroup, form: FileFormat, committed: UnitOffset | None) -> Resume:
    """Find the position just after the committed position, reading the committed unit up to there."""
    if committed is None:
        return _begin_of(group, 0)
    index = bisect_left(group.files, committed.unit, key=_number)
    if index == len(group.files) or group.files[index].unit != committed.unit:
        return _begin_of(group, index)
    file = group.files[index]
    is_there = committed.unit not in group.gone | group.replaced
    if group.is_complete(committed) or (not is_there and committed.line > file.after_line):
        return Resume(index, committed.line, file.size, done=True)
    if committed.line <= file.after_line:
        return _begin_of(group, index)
    resume_at = reader_of(form).position_after(file, committed.line)
    return Resume(index, committed.line, resume_at.offset, resume_at.done)


def _begin_of(group: FileGroup, index: int) -> Resume:
    if index == len(group.files):
        return Resume(index, 0, 0)
    return Resume(index, group.files[index].after_line, group.files[index].start)


def _number(file: SourceFile) -> int:
    return file.unit


def files_to_read(group: FileGroup, resume: Resume) -> Iterator[tuple[SourceFile, Resume]]:
    """The units that may hold rows after a position, each with where to begin in it."""
    for index in range(resume.file_index, len(group.files)):
        resume_at = resume if index == resume.file_index else _begin_of(group, index)
        file = group.files[index]
        is_there = file.unit not in group.gone and file.unit not in group.replaced
        if file.size > file.start and not resume_at.done and is_there:
            yield file, resume_at


_BYTES_A_SECOND = 256 << 20
"""Searching for a row takes about a second in so large a file, and in a compressed one of an eighth of it."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class FilePartition(SourcePartition[Resume]):
    """One group of files."""

    name: str
    group: FileGroup
    spec: FileSourceSpec
    on_data_loss: OnDataLoss
    binding: Binding
    last_unit: int = 0
    run: str = ""
    listed_at: dt.datetime = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    offset_class: ClassVar[type[Offset]] = UnitOffset

    def is_whole(self) -> bool:
        """False where files are gone, archived or deleted ones among them."""
        return not (self.group.gone or self.group.replaced)

    def check(self, committed: Offset | None) -> None:
        """Make sure that the log has the committed unit, and that every file behind it is there."""
        position = unit_of(committed)
        if position is not None:
            self._check_unit(position)
        lost = [
            file.name
            for file in self.group.files
            if file.unit in self.group.gone
            and self.group.committed.get(file.unit) != NO_ROWS
            and (
                position is None
                or file.unit > position.unit
                or (file.unit == position.unit and not self.group.is_complete(position))
            )
        ]
        if lost and self.on_data_loss != "skip":
            more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
            raise SourcePositionError(
                f"{str(committed or 'nothing')!r} is committed, and files of partition {self.name!r} that "
                f"were taken and are not all committed are gone: {', '.join(lost[:_MOST_NAMED])}{more}. "
                "Nothing was sent. Bring them back, or set on_data_loss='skip' to go on without their rows"
            )

    def _check_unit(self, position: UnitOffset) -> None:
        numbers = {file.unit: file.name for file in self.group.files}
        if position.unit > self.last_unit and position.unit not in numbers:
            raise SourcePositionError(
                f"{str(position)!r} is committed, and the source log ends at unit {self.last_unit}: an "
                "earlier state of the log was brought back. Bring back the last one. Nothing was sent"
            )
        self._refuse_replaced(position)
        if position.unit > self.last_unit or numbers.get(position.unit) != position.file:
            there = numbers.get(position.unit, "none of this partition")
            raise SourcePositionError(
                f"{str(position)!r} is committed, and unit {position.unit} of the source log is {there!r}: "
                "the log is another one, or an earlier state of it was brought back. Nothing was sent"
            )

    def _refuse_replaced(self, position: UnitOffset) -> None:
        """Refuse a position in the middle of content that was replaced by other content."""
        if position.unit not in self.group.replaced or self.group.is_complete(position):
            return
        file = self.group.files[bisect_left(self.group.files, position.unit, key=_number)]
        if position.line > file.after_line and self.on_data_loss != "skip":
            raise SourcePositionError(
                f"{str(position)!r} is committed, and other content has replaced that file before all of it "
                "was known as committed: its last rows may be missing, and its first ones be loaded twice. "
                "Nothing was sent. Compare table and file; on_data_loss='skip' goes on, or a reset token"
            )

    def resume(self, committed: Offset | None) -> Resume | None:
        """Find the position just after a row, reading the committed file up to there."""
        position = unit_of(committed)
        if position is not None:
            self._refuse_replaced(position)
        resume = resume_after(self.group, self.spec.form, position)
        return None if next(files_to_read(self.group, resume), None) is None else resume

    def is_done(self, committed: Offset | None) -> bool:
        """Search for a file behind the committed one, and then for a row in that one unless it is large."""
        unit = committed_unit(committed)
        rest = [
            file
            for file in self.group.files
            if file.unit >= unit and file.unit not in self.group.gone | self.group.replaced
        ]
        if any(file.size > file.start for file in rest if file.unit > unit):
            return False
        if not self._is_within(_BYTES_A_SECOND, rest):
            return False
        resume_at = self.resume(committed)
        return resume_at is None or next(self.blocks(resume_at, BatchLimits()), None) is None

    def is_quick(self, committed: Offset | None) -> bool:
        """True where the committed file is small: it is read up to the row."""
        unit = committed_unit(committed)
        return self._is_within(_BYTES_A_SECOND // 32, [one for one in self.group.files if one.unit == unit])

    def _is_within(self, most: int, files: Sequence[SourceFile]) -> bool:
        """True if none of the files is larger, or than an eighth of it where it is compressed."""
        form = self.spec.form
        is_plain = isinstance(form, ColumnFormat)
        return all(
            file.size - file.start <= (most if is_plain or may_grow(file, form) else most // 8)
            for file in files
        )

    def read(self, resume_at: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Ask a store for the first range, and read the rows as blocks of NDJSON, unit after unit."""
        for file, start in islice(files_to_read(self.group, resume_at), 1):
            expect(file, start.offset, has_footer=isinstance(self.spec.form, ColumnFormat))
        return (
            Part(
                block.body,
                UnitOffset(file.unit, file.name, block.first_line),
                UnitOffset(file.unit, file.name, block.last_line),
                block.rows,
                types=block.types,
            )
            for file, block in self.blocks(resume_at, limits)
        )

    def blocks(self, resume_at: Resume, limits: BatchLimits) -> Iterator[tuple[SourceFile, RowBlock]]:
        """Read the rows from a position to the partition's end.

        :return: blocks, each with the file that it is from
        """
        # It brings PyArrow, which a run without new rows need not wait for, as the reader does.
        from airflow_provider_snowpipe.spark.sources.files.metadata import constants_of, with_metadata

        reader, columns = reader_of(self.spec.form), self.spec.metadata or {}
        numbered = next((name for name, value in columns.items() if value == ROW_NUMBER), None)
        files, has_footer = files_to_read(self.group, resume_at), isinstance(self.spec.form, ColumnFormat)
        for file, start in read_ahead(files, has_footer=has_footer):
            constants = constants_of(file, columns, self.run, self.listed_at)
            for block in reader.blocks(
                file, after_line=start.after_line, offset=start.offset, keep_tail=True, limits=limits
            ):
                body = with_metadata(block, constants, numbered) if columns else block.body
                yield file, replace(block, body=body)
            refuse_replaced(file)

    def behind(self, committed: Offset | None) -> Behind:
        """Count the files that are not committed; the one that the position is in counts with its size."""
        return Behind(FileBacklog.of(self.files_behind(committed)).bytes)

    def recorded(self) -> UnitOffset | None:
        """Return the last row of the last unit that the log has as committed."""
        lines = ((one, self.group.committed.get(one.unit, 0)) for one in self.group.files)
        return max((UnitOffset(one.unit, one.name, line) for one, line in lines if line > 0), default=None)

    def row_keys(self) -> Sequence[tuple[str, ...]]:
        """The names of its files, those of before among them; of replaced ones nobody knows which rows."""
        replaced = {one.name_below for one in self.group.files if one.unit in self.group.replaced}
        below = f"{self.name}/" if isinstance(self.spec.grouping, ByDirectory) else ""
        names = {name for one in self.group.files for name in (one.name_below, f"{below}{one.name}")}
        return [(name,) for name in sorted(names - replaced)]

    def files_behind(self, committed: Offset | None) -> Sequence[FileBehind]:
        """List the same units, also those of COPY and pipes; that of the position until it is complete."""
        position, unit = unit_of(committed), committed_unit(committed)
        first = unit + 1 if position is not None and self.group.is_complete(position) else unit
        return [
            FileBehind(file.unit, file.size - file.start, file.modified_ns // 1_000_000)
            for files, begin in ((self.group.files, first), (self.group.given, 0))
            for file in files
            if file.unit >= begin and file.unit not in self.group.gone | self.group.replaced
        ]


def unit_of(position: Offset | None) -> UnitOffset | None:
    """Return a position of a file source, None where nothing is committed."""
    if position is None or isinstance(position, UnitOffset):
        return position
    raise SourcePositionError(f"{position!r} is not a position of a unit, which a file source needs")


def begun_unit(committed: Offset | None) -> int:
    """The last unit with a committed row: line 0 is the position before the first one."""
    position = unit_of(committed)
    return 0 if position is None else position.unit - (position.line == 0)


def committed_unit(committed: Offset | None) -> int:
    """Return the number of the unit of a position, 0 where nothing is committed."""
    position = unit_of(committed)
    return 0 if position is None else position.unit
