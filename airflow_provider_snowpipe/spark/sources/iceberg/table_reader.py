"""Rows of an Iceberg table's data files, with the columns that the table has now.

Columns are found by their ids, so that renamed, added, dropped, reordered and widened ones come out as the
table says ("Column Projection" in the Iceberg specification); PyIceberg does that to each Arrow batch. Row
groups before the committed row are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_snowpipe.spark.sources.files.parquet_format import batches_after
from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile
from airflow_provider_snowpipe.spark.sources.iceberg.library import require_pyiceberg
from airflow_provider_snowpipe.spark.sources.iceberg.uuid_text import with_uuid_text
from airflow_provider_snowpipe.streaming.errors import (
    EncodingError,
    SourcePositionError,
    SourceUnavailableError,
)

_STORE_PREFIXES = ("s3.", "gcs.", "gs.", "adls.", "hdfs.", "hf.", "client.")
_OWN_FILE_IO = "py-io-impl"


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads data files of one table; travels to executors, and its repr shows no setting of the store.

    :param schema: the table's columns, PyIceberg's ``Schema``
    :param names: names by which files without column ids are read, PyIceberg's ``NameMapping``, or None
    :param format_version: version of the table's format
    :param location: where the table is
    :param store: settings of its file store, which may hold credentials
    """

    schema: Any
    names: Any
    format_version: int
    location: str
    store: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, table: Any) -> TableReader:
        """Take what reading takes from a table that PyIceberg has opened.

        :param table: the table
        """
        metadata = table.metadata
        store = _of_the_store(table.io.properties)
        return cls(
            metadata.schema(), metadata.name_mapping(), metadata.format_version, table.location(), store
        )

    def tables(self, file: DataFile, after_row: int) -> Iterator[pa.Table]:
        """Read the rows after a given one, in pieces that fit the memory.

        :param file: the file
        :param after_row: number of the last row that is not wanted, 0 for none
        :raises SourcePositionError: if the file is gone, or is not what the snapshot says
        :raises SourceUnavailableError: if its store does not answer
        :raises EncodingError: if its columns cannot be brought into the table's form
        """
        with self._opened(file) as parquet:
            columns = _Columns(self, file, parquet.schema_arrow)
            for batch, skip in batches_after(parquet, after_row, columns.read):
                rows = pa.Table.from_batches([columns.projected(batch)])
                yield with_uuid_text(rows.slice(skip))

    @contextmanager
    def _opened(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        require_pyiceberg()
        from pyiceberg.io import load_file_io

        try:
            with (
                load_file_io(dict(self.store), self.location).new_input(file.path).open() as stored,
                pq.ParquetFile(stored, coerce_int96_timestamp_unit="us") as parquet,
            ):
                if parquet.metadata.num_rows != file.rows:
                    raise SourcePositionError(
                        f"data file {file.path!r} has {parquet.metadata.num_rows} row(s), its snapshot says "
                        f"{file.rows}: it was changed or replaced, which no Iceberg writer does"
                    )
                yield parquet
        except FileNotFoundError:
            raise SourcePositionError(
                f"data file {file.path!r} is gone: its snapshot expired while this run was under way. Run "
                "again, and keep snapshots for longer than a run takes"
            ) from None
        except pa.ArrowInvalid as error:
            raise EncodingError(
                f"data file {file.path!r} cannot be read as Parquet ({_one_line(error)}): it is damaged"
            ) from None
        except OSError as error:
            raise SourceUnavailableError(
                f"data file {file.path!r} cannot be read ({_one_line(error)}): its store does not answer, or "
                "it is damaged"
            ) from None


class _Columns:
    """One file's columns, and how they become the table's."""

    def __init__(self, reader: TableReader, file: DataFile, stored: pa.Schema) -> None:
        from pyiceberg.exceptions import ResolveError
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        self._errors = (ResolveError, ValueError, pa.ArrowException)
        self._reader = reader
        self._file = file
        with self._in_our_words():
            self._schema = pyarrow_to_schema(
                stored,
                reader.names,
                downcast_ns_timestamp_to_us=self._downcast,
                format_version=reader.format_version,
            )
        wanted = reader.schema.field_ids
        found = [column.name for column in self._schema.fields if _ids(column) & wanted]
        self.read = found or [self._schema.fields[0].name]
        """The columns to read; one at least, since its batches say how many rows there are."""

    @property
    def _downcast(self) -> bool:
        """Format 3 has nanoseconds; before it they are some writer's mistake."""
        return self._reader.format_version <= 2

    def projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor
        from pyiceberg.schema import visit_with_partner

        present = self._schema.field_ids
        constants = {number: value for number, value in self._file.constants if number not in present}
        change = ArrowProjectionVisitor(
            self._schema,
            self._downcast,
            projected_missing_fields=constants,
            allow_timestamp_tz_mismatch=True,
        )
        with self._in_our_words():
            struct = visit_with_partner(self._reader.schema, batch, change, ArrowAccessor(self._schema))
        return pa.RecordBatch.from_struct_array(struct)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise EncodingError(
                f"data file {self._file.path!r} does not fit the table's columns ({_one_line(error)}): "
                "nothing of it was sent; look at the table's schema, and at schema.name-mapping.default for "
                "files that Iceberg did not write"
            ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _ids(column: Any) -> set[int]:
    """The ids of a column and of all fields in it."""
    from pyiceberg.schema import Schema

    return set(Schema(column).field_ids)


def _of_the_store(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings by which files are read; a catalog's password is none, unless it signs the requests."""
    if any(name.startswith("s3.signer") for name in properties):
        return dict(properties)
    return {
        name: value
        for name, value in properties.items()
        if name.startswith(_STORE_PREFIXES) or name == _OWN_FILE_IO
    }
