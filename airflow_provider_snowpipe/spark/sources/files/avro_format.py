"""Avro files, block by block; on resume, blocks before the committed row are passed over unread.

Rows become Python objects on their way, made and taken apart again by compiled code (fastavro and Arrow):
no vectorised reader of Avro covers all of its types (the ones looked at lack maps, decimals or unions).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.arrow_format import (
    NumberedRowsReader,
    damaged,
    refuse_missing_columns,
)
from airflow_provider_snowpipe.spark.sources.files.avro_container import (
    Block,
    ContainerError,
    container_of,
    read_blocks,
    read_header,
)
from airflow_provider_snowpipe.spark.sources.files.avro_types import AvroRows, rows_of
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import open_listed
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError

_DECODE_BYTES = 1 << 20
"""Bytes of rows that are decoded at once, unless one block is larger."""
_MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class AvroReader(NumberedRowsReader):
    """Reads Avro."""

    def row_count(self, file: SourceFile) -> int:
        """Add up what the blocks say."""
        with _opened(file) as stream:
            header = read_header(stream)
            return sum(block.rows for block in read_blocks(stream, header, skip_rows=1 << 62))

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the blocks that hold rows after a given one."""
        with _opened(file) as stream:
            header = read_header(stream)
            try:
                rows = rows_of(header.schema)
            except EncodingError as error:
                raise EncodingError(f"file {file.path!r}: {error}") from None
            refuse_missing_columns(file, self.columns, rows.arrow.names)
            skip = after_row
            for block in _joined(read_blocks(stream, header, skip_rows=after_row)):
                if skip < block.rows:
                    table = _decoded(block, rows).slice(skip)
                    yield table if self.columns is None else table.select(list(self.columns))
                skip = max(skip - block.rows, 0)


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Put small blocks together, since decoding has a price for each call."""
    count, data = 0, bytearray()
    for block in blocks:
        if block.passed_over:
            yield block
            continue
        count += block.rows
        data += block.data
        if len(data) >= _DECODE_BYTES or count >= _MOST_ROWS:
            yield Block(count, bytes(data))
            count, data = 0, bytearray()
    if count:
        yield Block(count, bytes(data))


def _decoded(block: Block, rows: AvroRows) -> pa.Table:
    reader = _fastavro_reader()
    records = list(reader(io.BytesIO(container_of(rows.read_schema, block.rows, block.data))))
    if len(records) != block.rows:
        raise ContainerError(f"a block says {block.rows} rows and holds {len(records)}")
    array = pa.array(records, pa.struct(list(rows.arrow)))
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(array)])


def _fastavro_reader() -> Any:
    try:
        from fastavro import reader
    except ModuleNotFoundError:
        raise ConfigurationError(
            "format is 'avro', and this Python has no module 'fastavro': install "
            "airflow-provider-snowpipe[avro], or fastavro, in the environment that PYSPARK_PYTHON names on "
            "every host"
        ) from None
    return reader


@contextmanager
def _opened(file: SourceFile) -> Iterator[BinaryIO]:
    with open_listed(file, exact=True) as raw, io.BufferedReader(raw) as stream:  # type: ignore[type-var]
        try:
            yield stream
        except (ContainerError, pa.ArrowException, ValueError, LookupError, TypeError, EOFError) as error:
            if isinstance(error, (EncodingError, ConfigurationError)):
                raise
            raise damaged(file, "Avro", error) from None
