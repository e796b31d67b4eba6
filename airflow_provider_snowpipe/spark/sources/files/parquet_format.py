"""Parquet files, row group by row group; on resume, row groups before the committed row are not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_snowpipe.spark.sources.files.arrow_format import (
    ENCODE_BYTES,
    NumberedRowsReader,
    damaged,
    refuse_missing_columns,
)
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import open_listed

_MOST_ROWS = 16_384
_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class ParquetReader(NumberedRowsReader):
    """Reads Parquet. Timestamps stored as INT96 are read to the microsecond, which is what Spark writes."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _opened(file) as parquet:
            return int(parquet.metadata.num_rows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the row groups that hold rows after a given one."""
        with _opened(file) as parquet:
            refuse_missing_columns(file, self.columns, parquet.schema_arrow.names)
            for batch, skip in batches_after(parquet, after_row, self.columns):
                yield pa.Table.from_batches([batch.slice(skip)])


def batches_after(
    parquet: pq.ParquetFile, after_row: int, columns: Sequence[str] | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read the rows after a given one, in pieces that fit the memory; row groups before it are not read.

    :param parquet: the open file
    :param after_row: number of the last row that is not wanted, 0 for none
    :param columns: the columns to read, None for all
    :return: batches, each with the number of its first rows that are not wanted
    """
    wanted = None if columns is None else list(columns)
    skip = after_row
    for index in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(index)
        if skip >= group.num_rows:
            skip -= group.num_rows
            continue
        for batch in parquet.iter_batches(_rows_at_once(group), [index], columns=wanted, use_threads=False):
            if skip < batch.num_rows:
                yield batch, skip
            skip = max(skip - batch.num_rows, 0)


def _rows_at_once(group: pq.RowGroupMetaData) -> int:
    """Rows that take about as much memory as is encoded at once, going by the row group's average.

    :param group: what the file's footer says of the row group
    """
    average = max(group.total_byte_size // max(group.num_rows, 1), 1)
    return int(min(max(ENCODE_BYTES // average, _FEWEST_ROWS), _MOST_ROWS))


@contextmanager
def _opened(file: SourceFile) -> Iterator[pq.ParquetFile]:
    open_listed(file, exact=True).close()
    try:
        with pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us") as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise damaged(file, "Parquet", error) from None
