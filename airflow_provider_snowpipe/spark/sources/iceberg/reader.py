"""The Iceberg source: each partition's rows in the order of the snapshots that appended them.

The driver reads the table's metadata through PyIceberg and fixes the snapshot up to which a run reads. A task
reads the data files of its channel with Arrow; neither needs an Iceberg runtime in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_snowpipe.spark.source import (
    Behind,
    OnDataLoss,
    Source,
    SourcePartition,
    SourceSecrets,
    release,
)
from airflow_provider_snowpipe.spark.sources.files.arrow_format import batches_after, row_blocks_of
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile
from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile, History, histories
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSource as IcebergSourceSpec
from airflow_provider_snowpipe.spark.sources.tables.rows import RowColumns
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    EncodingError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset


class IcebergSource(Source):
    """An Iceberg table that is only appended to."""

    def __init__(self, spec: IcebergSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._secrets = SourceSecrets()

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take secret properties of the catalog."""
        self._secrets = secrets

    def partitions(self) -> tuple[IcebergPartition, ...]:
        """Open the table, and list the values of the partition field, or the one partition that there is."""
        table = _open_table(self._spec, self._secrets)
        field, table_id = self._spec.partition_by, str(table.metadata.table_uuid)
        start = self._spec.starting_snapshot
        # Its rows are numbered through all files that the table had then, else through its own ones.
        reading = "" if start is None else f"from all rows of snapshot {start}"
        reader, options = TableReader.of(table), self._spec.row_options
        return tuple(
            IcebergPartition(
                name,
                Binding(f"Iceberg table {table_id}{f', {field} = {name!r}' if field else ''}", reading),
                history,
                reader,
                options,
                self._on_data_loss,
                RowColumns(self._spec.metadata or {}, self.run),
            )
            for name, history in histories(table, self._spec).items()
        )


@dataclass(frozen=True, slots=True)
class _IcebergPosition:
    """Where the reading of a partition goes on: just after a position, None for the beginning."""

    after: BatchRowOffset | None


@dataclass(frozen=True, slots=True)
class IcebergPartition(SourcePartition[_IcebergPosition]):
    """The rows of one value of the partition field, or all rows."""

    name: str
    binding: Binding
    history: History
    reader: TableReader
    options: NdjsonOptions
    on_data_loss: OnDataLoss
    extra: RowColumns
    offset_class: ClassVar[type[Offset]] = BatchRowOffset

    def check(self, committed: Offset | None) -> None:
        """Hold a position against the table's history."""
        self.history.check(_position(committed), self.on_data_loss)

    def resume(self, committed: Offset | None) -> _IcebergPosition | None:
        """Find the position just after a row; no data file is read for it."""
        self.check(committed)
        position = _position(committed)
        rest = self.history.pieces_after(position)
        return None if next(rest, None) is None else _IcebergPosition(position)

    def read(self, resume_at: _IcebergPosition, limits: BatchLimits) -> Iterator[Part]:
        """Read the data files one after the other, none of it twice."""
        for piece in self.history.pieces_after(resume_at.after):
            row = piece.skip
            file = SourceFile(piece.file.path, piece.file.path, piece.file.bytes)
            for rows in self.reader.tables(piece.file, row):
                for block in row_blocks_of(rows, file, after_line=row, limits=limits, options=self.options):
                    first, last = piece.position(block.first_line), piece.position(block.last_line)
                    numbers = np.arange(first.row, last.row + 1)
                    body = self.extra.put(block.body, np.full(len(numbers), first.batch), numbers)
                    yield Part(body, first, last, block.rows, types=block.types)
                row += rows.num_rows

    def behind(self, committed: Offset | None) -> Behind:
        """Count the rows behind a position, and the bytes of the files that hold them."""
        pieces = list(self.history.pieces_after(_position(committed)))
        rows = sum(piece.file.rows - piece.skip for piece in pieces)
        return Behind(sum(piece.file.bytes for piece in pieces), rows)


def _position(committed: Offset | None) -> BatchRowOffset | None:
    return cast("BatchRowOffset | None", committed)


# -- PyIceberg, which reads an Iceberg table's metadata on the driver and maps its columns on the executors --

_TESTED = "0.12"


def require_pyiceberg() -> None:
    """Make sure that the library is there, in the release whose projection of columns this room uses."""
    try:
        found = version("pyiceberg")
    except PackageNotFoundError:
        found = "none"
    if release(found) != release(_TESTED):
        raise ConfigurationError(
            f"the Iceberg source needs pyiceberg {_TESTED}, and this Python has {found}: install "
            "airflow-provider-snowpipe[iceberg] where Spark runs, on the driver's and the executors' Python. "
            "Nothing was sent"
        )


# -- Rows of an Iceberg table's data files, with the columns that the table has now ----------------------
#
# Columns are found by their ids, so that renamed, added, dropped, reordered and widened ones come out as
# the table declares ("Column Projection" in the Iceberg specification); PyIceberg does that to each Arrow
# batch. Row groups before the committed row are not read.

_STORE_PREFIXES = ("s3.", "gcs.", "gs.", "adls.", "hdfs.", "hf.", "client.")
_OWN_FILE_IO = "py-io-impl"


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads data files of one table; travels to executors, and its repr shows no setting of the store.

    :param schema: the table's columns, PyIceberg's ``Schema``
    :param names: names by which files without column ids are read, PyIceberg's ``NameMapping``, or None
    :param store: settings of its file store, which may hold credentials
    """

    schema: Any
    names: Any
    format_version: int
    location: str
    store: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, table: Any) -> TableReader:
        """Take what reading takes from a table that PyIceberg has opened."""
        metadata = table.metadata
        store = _of_the_store(table.io.properties)
        return cls(
            metadata.schema(), metadata.name_mapping(), metadata.format_version, table.location(), store
        )

    def tables(self, file: DataFile, after_row: int) -> Iterator[pa.Table]:
        """Read the rows after a given one, 0 for none, in pieces that fit the memory."""
        with self._opened(file) as parquet:
            columns = _Columns(self, file, parquet.schema_arrow)
            for batch, skip in batches_after(parquet, after_row, columns.read):
                rows = pa.Table.from_batches([columns.projected(batch)])
                yield rows.slice(skip)

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
                        f"data file {file.path!r} has {counted(parquet.metadata.num_rows, 'row')}, its "
                        f"snapshot states {file.rows}: it was changed or replaced, which no Iceberg writer "
                        "does"
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
    def __init__(self, reader: TableReader, file: DataFile, stored: pa.Schema) -> None:
        from pyiceberg.exceptions import ResolveError
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        self._errors = (ResolveError, ValueError, pa.ArrowException)
        self._reader = reader
        self._file = file
        with self._translated():
            self._schema = pyarrow_to_schema(
                stored,
                reader.names,
                downcast_ns_timestamp_to_us=self._downcast,
                format_version=reader.format_version,
            )
        required = reader.schema.field_ids
        found = [column.name for column in self._schema.fields if _ids(column) & required]
        self.read = found or [self._schema.fields[0].name]
        """The columns to read; one at least, since its batches count the rows."""

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
            self._schema, self._downcast, projected_missing_fields=constants, allow_timestamp_tz_mismatch=True
        )
        with self._translated():
            struct = visit_with_partner(self._reader.schema, batch, change, ArrowAccessor(self._schema))
        return pa.RecordBatch.from_struct_array(struct)

    @contextmanager
    def _translated(self) -> Iterator[None]:
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


# -- Opening a table by its name in a catalog, or by its metadata's path ---------------------------------


def _open_table(spec: IcebergSourceSpec, secrets: SourceSecrets) -> Any:
    require_pyiceberg()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
    from pyiceberg.table import StaticTable

    properties = {**spec.options, **secrets.values}
    try:
        if spec.path is not None:
            return StaticTable.from_metadata(spec.path, properties)
        return load_catalog(spec.catalog, **properties).load_table(str(spec.table))
    except (NoSuchTableError, NoSuchNamespaceError, FileNotFoundError) as error:
        raise SourcePositionError(
            f"source {spec.address!r} is not there: {_error_text(error, secrets)}. Nothing was read or sent"
        ) from None
    except (RESTError, OSError) as error:
        raise SourceUnavailableError(
            f"the catalog of source {spec.address!r} does not answer: {_error_text(error, secrets)}"
        ) from None
    except Exception as error:  # noqa: BLE001  each catalog raises what its client raises
        raise ConfigurationError(
            f"PyIceberg cannot open source {spec.address!r}: {_error_text(error, secrets)}; the catalog "
            f"{spec.catalog!r} is configured in .pyiceberg.yaml, by PYICEBERG_CATALOG__… in the driver's "
            "environment, or by the source's options"
        ) from None


def _error_text(error: Exception, secrets: SourceSecrets) -> str:
    """The error of a catalog's client, in one line and without a secret."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for value in sorted(secrets.values.values(), key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text[:400]
