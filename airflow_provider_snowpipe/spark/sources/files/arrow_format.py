"""Arrow tables of rows as numbered blocks of NDJSON, and what the formats that Arrow reads have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.formats import FileReader, Place, RowBlock, too_few_rows
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.partition_values import with_values
from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

ENCODE_BYTES = 4 << 20
"""Arrow memory that is encoded at once, unless one row is larger."""
_NEWLINE = 10


def row_blocks_of(
    rows: pa.Table,
    file: SourceFile,
    *,
    after_line: int,
    limits: BatchLimits,
    ends: npt.NDArray[np.int64] | None = None,
    options: NdjsonOptions | None = None,
) -> Iterator[RowBlock]:
    """Encode rows and cut them into blocks.

    :param rows: the rows, each with the number that follows the one before
    :param file: the file that they are from
    :param after_line: number of the row before the first
    :param limits: what a batch takes
    :param ends: bytes of the stored text up to each row's end, None where the format has no such place
    :param options: forms of the values that JSON has none for
    :raises EncodingError: if a type or value has no form as JSON; names file and rows
    """
    most_bytes = part_bytes(limits)
    for begin, count in _slices(rows):
        part = with_values(rows.slice(begin, count), file)
        try:
            body = memoryview(encode_ndjson(part, options))
        except EncodingError as error:
            first = after_line + begin + 1
            raise EncodingError(
                f"file {file.path!r}, rows {first} to {first + count - 1} (here row 0 is {first}): {error}"
            ) from None
        line_ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE) + 1
        taken = start = 0
        while taken < count:
            fitting = int(np.searchsorted(line_ends, start + most_bytes, side="right"))
            last = max(min(fitting, taken + limits.rows), taken + 1)
            end = int(line_ends[last - 1])
            number = after_line + begin
            place = 0 if ends is None else int(ends[begin + last - 1])
            yield RowBlock(body[start:end], number + taken + 1, number + last, last - taken, place)
            start, taken = end, last


def _slices(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Begin and number of the rows that are encoded at once."""
    if not rows.num_rows:
        return
    step = max(1, ENCODE_BYTES * rows.num_rows // max(rows.nbytes, 1))
    for begin in range(0, rows.num_rows, step):
        yield begin, min(step, rows.num_rows - begin)


def refuse_missing_columns(file: SourceFile, wanted: Iterable[str] | None, have: Iterable[str]) -> None:
    """Make sure that a file has the columns that the source names.

    :raises ConfigurationError: if it lacks one
    """
    known = list(have)
    missing = [name for name in wanted or () if name not in known]
    if missing:
        raise ConfigurationError(
            f"file {file.path!r} has no column {missing[0]!r}, which the source's columns name; it has "
            f"{known}: correct columns"
        )


@dataclass(frozen=True, slots=True)
class NumberedRowsReader(FileReader):
    """Reads files whose rows are numbered by the file's own structure.

    :param columns: the columns to read, None for all
    """

    columns: Sequence[str] | None = None

    def place_after(self, file: SourceFile, line: int) -> Place:
        """Make sure that the file has the committed row; where it is, its number says."""
        have = self.row_count(file)
        if line > have:
            raise too_few_rows(file, have, line, "row")
        return Place(done=line == have)

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the rows in their order."""
        number = after_line
        for rows in self.tables(file, after_line):
            yield from row_blocks_of(rows, file, after_line=number, limits=limits)
            number += rows.num_rows

    @abstractmethod
    def row_count(self, file: SourceFile) -> int:
        """Count a file's rows, from what it says of itself.

        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if it is damaged or of another format
        """

    @abstractmethod
    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the rows after a given one, in pieces that fit the memory.

        :param file: the file
        :param after_row: number of the last row that is not wanted, 0 for none
        :raises ConfigurationError: if a column is not there
        """


def damaged(file: SourceFile, kind: str, error: Exception) -> EncodingError:
    """Say that a file cannot be read as what the source says it is.

    :param file: the file
    :param kind: the format
    :param error: what its library says
    """
    return EncodingError(
        f"file {file.path!r} cannot be read as {kind} ({str(error)[:300]}): it is damaged, not finished, or "
        "of another format. Rows before that place may have been sent; put a whole file in its place that "
        "begins with the same rows"
    )
