"""Parquet and ORC files as Arrow chunks of their own columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import orc, parquet

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.loading.chunks import COLUMNS, Chunk, FileShape, Position

_ROWS = 122_880


def read_columns(path: Path, name: str, kind: str) -> Iterator[Chunk]:
    """Yield the rows of a Parquet or ORC file.

    :param path: readable local path.
    :param name: name of the staged file, for messages.
    :param kind: ``PARQUET`` or ``ORC``.
    :raises SqlError: 100152 for a file of another format.
    """
    row = 0
    try:
        for batch in _parquet(path) if kind == "PARQUET" else _orc(path):
            yield _chunk(batch, row)
            row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise SqlError("100152", "22000", f"Error parsing the {kind} file '{name}': {error}") from error


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(_ROWS)


def _orc(path: Path) -> Iterator[pa.RecordBatch]:
    file = orc.ORCFile(path)
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe)


def _chunk(batch: pa.RecordBatch, row: int) -> Chunk:
    shape = FileShape(COLUMNS, tuple(batch.schema.names), tuple(batch.schema.types))
    size = batch.num_rows
    columns = {"i": pa.array(np.arange(row, row + size, dtype=np.int64)), "x": pa.nulls(size, pa.string())}
    columns |= {f"c{index}": column for index, column in enumerate(batch.columns)}

    def locate(record: int, _field: int | None) -> Position:
        return Position(record + 1, 1)

    return Chunk(shape, pa.table(columns), locate)
