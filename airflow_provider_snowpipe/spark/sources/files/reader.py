"""The file source: each group of files is a partition, its position a row of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_snowpipe.spark.sources.files.arrow_format import NumberedRowsReader
from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.groups import (
    FileGroup,
    SourceFile,
    freeze,
    refuse_numbers_before,
)
from airflow_provider_snowpipe.spark.sources.files.late_files import Listings, PassedFiles
from airflow_provider_snowpipe.spark.sources.files.readers import reader_of
from airflow_provider_snowpipe.spark.sources.files.resume import (
    Resume,
    file_after,
    files_to_read,
    resume_after,
)
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.sources.source import (
    Behind,
    OnDataLoss,
    Partition,
    Source,
    SourcePartition,
)
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, Offset
from airflow_provider_snowpipe.streaming.verified_offset import VerifiedFileLineOffset

_QUICK_BYTES = 256 << 20
"""Looking for a row takes about a second in so large a file, and in a compressed one of an eighth of it."""


class FileSource(Source):
    """Ordered groups of files.

    :param spec: the source
    :param on_data_loss: what to do if a committed file is gone
    """

    def __init__(self, spec: FileSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss

    def partitions(self) -> tuple[FilePartition, ...]:
        """List the groups and their files, with the sizes that they have now."""
        kind: type[FilePartition] = FilePartition
        if self._spec.verify == "digest":
            from airflow_provider_snowpipe.spark.sources.files.verified import VerifiedFilePartition

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

    :param name: the group's name
    :param group: its files
    :param spec: how they are read
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
        file_after(self.group, position, self.on_data_loss)

    def resume(self, committed: Offset | None) -> Resume | None:
        """Find the place just after a row, reading the committed file up to there."""
        reader = reader_of(self.spec)
        resume = resume_after(self.group, reader, _file_line(committed), self.on_data_loss)
        rest = files_to_read(self.group, resume, growing=self.spec.growing)
        return None if next(rest, None) is None else resume

    def is_done(self, committed: Offset | None) -> bool:
        """Look for a file behind the committed one, and then for a row in that one unless it is large."""
        position = _file_line(committed)
        committed_file = "" if position is None else position.file
        rest = [file for file in self.group.files if file.name >= committed_file]
        if any(file.size for file in rest if file.name > committed_file):
            return False
        reader = reader_of(self.spec)
        for file in rest:
            plain = isinstance(reader, NumberedRowsReader) or reader.may_grow(file)
            if file.size > (_QUICK_BYTES if plain else _QUICK_BYTES // 8):
                return False
        return self.resume(committed) is None

    def read(self, place: Resume, limits: BatchLimits) -> Iterator[Part]:
        """Read the rows as blocks of NDJSON, file after file."""
        for file, block in self.blocks(place, limits):
            yield Part(
                block.body,
                FileLineOffset(file.name, block.first_line),
                FileLineOffset(file.name, block.last_line),
                block.rows,
            )

    def blocks(self, place: Resume, limits: BatchLimits) -> Iterator[tuple[SourceFile, RowBlock]]:
        """Read the rows from a place to the partition's end.

        :param place: from :meth:`resume`
        :param limits: what a batch takes
        :return: blocks, each with the file that it is from
        """
        reader = reader_of(self.spec)
        for file, start, keep_tail in files_to_read(self.group, place, growing=self.spec.growing):
            for block in reader.blocks(
                file,
                after_line=start.after_line,
                offset=start.offset,
                keep_tail=keep_tail or not reader.may_grow(file),
                limits=limits,
            ):
                yield file, block

    def behind(self, committed: str | None) -> Behind:
        """Count the files that are not committed; the one that the position is in counts with its size."""
        committed_file = "" if committed is None else getattr(self.offset_class.parse(committed), "file", "")
        size = sum(file.size for file in self.group.files if file.name >= committed_file)
        files = sum(file.name > committed_file for file in self.group.files)
        return Behind(size, f"files_behind={files}")


def _file_line(position: Offset | None) -> FileLineOffset | None:
    if position is None or isinstance(position, FileLineOffset):
        return position
    if isinstance(position, VerifiedFileLineOffset):
        return position.place
    raise SourcePositionError(f"{position!r} is no file:line position, which a file source needs")
