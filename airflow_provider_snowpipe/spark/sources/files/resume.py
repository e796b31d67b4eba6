"""Where a partition goes on: its committed offset token held against the files that are there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_snowpipe.spark.sources.files.formats import FileReader
from airflow_provider_snowpipe.spark.sources.files.groups import FileGroup, SourceFile
from airflow_provider_snowpipe.spark.sources.source import OnDataLoss
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset


@dataclass(frozen=True, slots=True)
class Resume:
    """The place in a group of files just after what is committed.

    :param file_index: number of the first file to read, from 0; the number of files if there is none left
    :param after_line: last row of that file that is not wanted, 0 for none
    :param offset: where its reader goes on, a ``Place`` of the format
    :param done: True if that file holds nothing behind it
    """

    file_index: int
    after_line: int
    offset: int
    done: bool = False


def file_after(group: FileGroup, committed: FileLineOffset | None, on_data_loss: OnDataLoss) -> int:
    """Find the file that the committed position lies in, or the one to go on with where that is gone.

    Looks at names only; whether the file still has the committed line is for :func:`resume_after` to say.

    :param group: the partition's files
    :param committed: the committed position, None for NULL
    :param on_data_loss: ``skip`` allows that the committed file is gone
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
    """Find the place just after the committed position, reading the committed file up to there.

    :param group: the partition's files
    :param reader: reads them
    :param committed: the committed position, None for NULL
    :param on_data_loss: ``skip`` allows that the committed file is gone
    :raises SourcePositionError: if the committed file or the committed line is gone
    """
    index = file_after(group, committed, on_data_loss)
    if committed is None or index == len(group.files) or group.files[index].name != committed.file:
        return Resume(index, 0, 0)
    if committed.line == 0:
        return Resume(index, 0, 0)
    place = reader.place_after(group.files[index], committed.line)
    return Resume(index, committed.line, place.offset, place.done)


def files_to_read(
    group: FileGroup, resume: Resume, *, growing: bool
) -> Iterator[tuple[SourceFile, Resume, bool]]:
    """The files that may hold rows after a place, each with where to begin and what its last line is.

    :param group: the partition's files
    :param resume: the place
    :param growing: True if the last file's unterminated line belongs to a later run
    :return: file, place in it, True if its unterminated last line is a row
    """
    last = len(group.files) - 1
    for index in range(resume.file_index, len(group.files)):
        place = resume if index == resume.file_index else Resume(index, 0, 0)
        if group.files[index].size and not place.done:
            yield group.files[index], place, not (growing and index == last)
