"""What a file format is to the file source: a reader that finds, counts and cuts the rows of one file.

A new format is one module with one :class:`FileReader`, named in
:mod:`~airflow_provider_snowpipe.spark.sources.files.readers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file.

    :param body: the rows; as NDJSON once a reader has handed them out
    :param first_line: number of the first line, record or row, counted from 1; it follows the block before
        directly
    :param last_line: number of the last one, which is a row
    :param rows: how many of them are rows; blank lines count as lines and are nobody's row
    :param end: bytes of the stored text up to the last row's end, 0 where the format has no such place
    """

    body: bytes | memoryview
    first_line: int
    last_line: int
    rows: int
    end: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The place in one file just after a row.

    :param offset: where the reader goes on, in bytes of the uncompressed text; 0 for formats that find a row
        by its number
    :param done: True if nothing lies behind it
    """

    offset: int = 0
    done: bool = False


class FileReader(ABC):
    """Reads files of one format. Holds settings only, so that it is made wherever it is needed.

    The number of a row depends on the file's content alone: not on batch limits, on the place where reading
    began, or on how large a piece is read at once.
    """

    __slots__ = ()

    def may_grow(self, file: SourceFile) -> bool:
        """True if rows may be appended to the file between two runs, so that only its begin stays the same.

        :param file: the file
        """
        return False

    @abstractmethod
    def place_after(self, file: SourceFile, line: int) -> Place:
        """Find the place after a committed row, reading no more than that takes.

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
        :param after_line: number of the last row that is not wanted, 0 for none
        :param offset: the place after it, from :meth:`place_after`; 0 where there is none
        :param keep_tail: False leaves an unterminated last row to a later run
        :param limits: what a batch takes
        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if a row cannot be read, or has no form as JSON
        """


def too_few_rows(file: SourceFile, have: int, line: int, unit: str) -> SourcePositionError:
    """Say that a committed row is not in its file any more.

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
