"""Formats that Arrow reads, Parquet and ORC: tables of rows as numbered blocks of NDJSON."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from airflow_provider_snowpipe.spark.source import part_bytes, row_ranges
from airflow_provider_snowpipe.spark.sources.files.formats import (
    FilePosition,
    FileReader,
    RowBlock,
    open_listed,
    too_few_rows,
)
from airflow_provider_snowpipe.spark.sources.files.metadata import with_values
from airflow_provider_snowpipe.spark.sources.files.spark_values import of_orc, of_parquet, writer_zone
from airflow_provider_snowpipe.spark.sources.files.spec import ColumnFormat, SourceFile
from airflow_provider_snowpipe.spark.sources.files.storage import LocalStorage
from airflow_provider_snowpipe.spark.sources.logical_types import (
    column_types,
    logical_name,
    meaning,
    restored,
)
from airflow_provider_snowpipe.streaming.arguments import UnknownTypes
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

    :param after_line: number of the row before the first
    :param ends: bytes of the stored text up to each row's end, None where the rows have types instead
    """
    types = column_types(rows.schema) if ends is None else {}
    step = max(1, ENCODE_BYTES * rows.num_rows // max(rows.nbytes, 1))
    for begin in range(0, rows.num_rows, step):
        count = min(step, rows.num_rows - begin)
        part = with_values(rows.slice(begin, count), file)
        try:
            body = memoryview(encode_ndjson(part, options))
        except EncodingError as error:
            first = after_line + begin + 1
            raise EncodingError(
                f"file {file.path!r}, rows {first} to {first + count - 1} (here row 0 is {first}): {error}"
            ) from None
        line_ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE) + 1
        start, number = 0, after_line + begin
        for first, last in row_ranges(line_ends, part_bytes(limits), limits.rows):
            end = int(line_ends[last - 1])
            stored_end = 0 if ends is None else int(ends[begin + last - 1])
            at = number + first + 1, number + last
            yield RowBlock(body[start:end], *at, last - first, stored_end, types)
            start = end


def refuse_missing_columns(file: SourceFile, required: Iterable[str] | None, have: Iterable[str]) -> None:
    """Make sure that a file has the columns that the source names."""
    known = list(have)
    missing = [name for name in required or () if name not in known]
    if missing:
        raise ConfigurationError(
            f"file {file.path!r} has no column {missing[0]!r}, which the source's columns name; it has "
            f"{known}: correct columns"
        )


@dataclass(frozen=True, slots=True)
class NumberedRowsReader(FileReader):
    """Reads files whose rows are numbered by the file's own structure."""

    form: ColumnFormat

    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Make sure that the file has the committed row; where it is, its number shows."""
        have = self.row_count(file)
        if line > have:
            raise too_few_rows(file, have, line, "row")
        return FilePosition(done=line == have)

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the rows in their order."""
        number, options = after_line, NdjsonOptions(non_finite=self.form.non_finite)
        for rows in self.tables(file, after_line):
            yield from row_blocks_of(rows, file, after_line=number, limits=limits, options=options)
            number += rows.num_rows

    @abstractmethod
    def row_count(self, file: SourceFile) -> int:
        """Count a file's rows, from its own metadata.

        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if it is damaged or of another format
        """

    @abstractmethod
    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the rows after a given one, in pieces that fit the memory.

        :param after_row: number of the last row skipped, 0 for none
        """


def damaged(file: SourceFile, kind: str, error: Exception) -> EncodingError:
    """Return the error of a file that cannot be read as what the source declares."""
    return EncodingError(
        f"file {file.path!r} cannot be read as {kind} ({str(error)[:300]}): it is damaged, not finished, or "
        "of another format. Rows before that may have been sent; replace it by a whole file that "
        "begins with the same rows"
    )


@contextmanager
def _opened(file: SourceFile, kind: str) -> Iterator[Any]:
    """Open a file as Arrow reads it: a local one by its path, without Python; another one by its stream."""
    with open_listed(file, exact=True) as stream:
        is_local = isinstance(file.storage, LocalStorage)
        try:
            yield file.path if is_local else pa.PythonFile(stream, "r")
        except (pa.ArrowException, OSError) as error:
            raise getattr(stream, "failure", None) or damaged(file, kind, error) from None


# -- ORC files, stripe by stripe; on resume, the stripes before are counted by their first column --------


@dataclass(frozen=True, slots=True)
class OrcReader(NumberedRowsReader):
    """Reads ORC. A stripe is in memory as a whole while it is read."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _orc_file(file) as opened:
            return int(opened.nrows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the stripes that hold rows after a given one."""
        columns = None if self.form.columns is None else list(self.form.columns)
        with _orc_file(file) as opened:
            refuse_missing_columns(file, columns, opened.schema.names)
            skip = after_row
            for index in range(opened.nstripes):
                if skip:
                    rows = _stripe(opened, index, opened.schema.names[:1]).num_rows
                    if skip >= rows:
                        skip -= rows
                        continue
                zone = cache(partial(writer_zone, file.path, index))
                yield of_orc(_stripe(opened, index, columns), opened.schema, zone).slice(skip)
                skip = 0


def _stripe(opened: orc.ORCFile, index: int, columns: list[str] | None) -> pa.Table:
    rows = opened.read_stripe(index, columns=columns)
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


@contextmanager
def _orc_file(file: SourceFile) -> Iterator[orc.ORCFile]:
    with _opened(file, "ORC") as source:
        yield orc.ORCFile(source)


# -- Parquet files, row group by row group; on resume, row groups before the committed row are not read --

_MOST_ROWS = 16_384
_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class ParquetReader(NumberedRowsReader):
    """Reads Parquet. Timestamps stored as INT96 are read to the microsecond, which is what Spark writes."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _parquet_file(file) as parquet:
            return int(parquet.metadata.num_rows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the row groups that hold rows after a given one."""
        with _parquet_file(file) as parquet:
            refuse_missing_columns(file, self.form.columns, parquet.schema_arrow.names)
            meanings = _meanings(parquet, file, self.form.unknown_types)
            for batch, skip in batches_after(parquet, after_row, self.form.columns):
                rows = of_parquet(pa.Table.from_batches([batch.slice(skip)]), parquet)
                rows = _with_meanings(rows, meanings)
                # Parquet takes a name with a dot for a field of a structure as well.
                yield rows if self.form.columns is None else rows.select(list(self.form.columns))


def _meanings(parquet: pq.ParquetFile, file: SourceFile, unknown: UnknownTypes) -> dict[str, pa.DataType]:
    """What the Avro schema in a file's footer says of numbers for which Parquet itself has no type."""
    footer = parquet.metadata.metadata or {}
    schema = json.loads(footer.get(b"parquet.avro.schema") or footer.get(b"avro.schema") or b"{}")
    found = {}
    for one in schema.get("fields") or ():
        kinds = one["type"] if isinstance(one["type"], list) else [one["type"]]
        kind = next((kind for kind in kinds if isinstance(kind, dict)), {})
        if isinstance(kind.get("type"), str) and one["name"] in parquet.schema_arrow.names:
            try:
                found[one["name"]] = meaning(kind["type"], logical_name(kind), one["name"], unknown)
            except EncodingError as error:
                raise EncodingError(f"file {file.path!r}: {error}") from None
    return {name: kind for name, kind in found.items() if isinstance(kind, pa.DataType)}


def _with_meanings(rows: pa.Table, meanings: Mapping[str, pa.DataType]) -> pa.Table:
    for at, one in enumerate(rows.schema):
        kind = meanings.get(one.name)
        if kind is not None and pa.types.is_integer(one.type):
            values = restored(rows.column(at).combine_chunks(), kind)
            rows = rows.set_column(at, one.name, values)
    return rows


def batches_after(
    parquet: pq.ParquetFile, after_row: int, columns: Sequence[str] | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read the rows after a given one in pieces, with how many to skip; earlier row groups are not read."""
    required = None if columns is None else list(columns)
    skip = after_row
    for index in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(index)
        if skip >= group.num_rows:
            skip -= group.num_rows
            continue
        # As many rows as take about the memory that is encoded at once, going by the group's average.
        average = max(group.total_byte_size // max(group.num_rows, 1), 1)
        at_once = int(min(max(ENCODE_BYTES // average, _FEWEST_ROWS), _MOST_ROWS))
        for batch in parquet.iter_batches(at_once, [index], columns=required, use_threads=False):
            if skip < batch.num_rows:
                yield batch, skip
            skip = max(skip - batch.num_rows, 0)


@contextmanager
def _parquet_file(file: SourceFile) -> Iterator[pq.ParquetFile]:
    is_local = isinstance(file.storage, LocalStorage)
    with (
        _opened(file, "Parquet") as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=not is_local) as parquet,
    ):
        yield parquet
