"""ORC files, stripe by stripe; on resume, the stripes before are counted by their first column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import orc

from airflow_provider_snowpipe.spark.sources.files.arrow_format import (
    NumberedRowsReader,
    damaged,
    refuse_missing_columns,
)
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import open_listed


@dataclass(frozen=True, slots=True)
class OrcReader(NumberedRowsReader):
    """Reads ORC. A stripe is in memory as a whole while it is read."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _opened(file) as opened:
            return int(opened.nrows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the stripes that hold rows after a given one."""
        columns = None if self.columns is None else list(self.columns)
        with _opened(file) as opened:
            refuse_missing_columns(file, columns, opened.schema.names)
            skip = after_row
            for index in range(opened.nstripes):
                if skip:
                    rows = _stripe(opened, index, opened.schema.names[:1]).num_rows
                    if skip >= rows:
                        skip -= rows
                        continue
                yield _stripe(opened, index, columns).slice(skip)
                skip = 0


def _stripe(opened: orc.ORCFile, index: int, columns: list[str] | None) -> pa.Table:
    rows = opened.read_stripe(index, columns=columns)
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


@contextmanager
def _opened(file: SourceFile) -> Iterator[orc.ORCFile]:
    open_listed(file, exact=True).close()
    try:
        yield orc.ORCFile(file.path)
    except (pa.ArrowException, OSError) as error:
        raise damaged(file, "ORC", error) from None
