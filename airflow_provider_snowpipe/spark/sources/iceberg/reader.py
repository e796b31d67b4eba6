"""The Iceberg source: each partition's rows in the order of the snapshots that appended them.

The driver reads the table's metadata through PyIceberg and fixes the snapshot up to which a run reads. A task
reads the data files of its channel with Arrow; neither needs an Iceberg runtime in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

from airflow_provider_snowpipe.spark.sources.files.arrow_format import row_blocks_of
from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.spark.sources.iceberg.history import History
from airflow_provider_snowpipe.spark.sources.iceberg.opened import open_table
from airflow_provider_snowpipe.spark.sources.iceberg.snapshots import histories
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSourceSpec
from airflow_provider_snowpipe.spark.sources.iceberg.table_reader import TableReader
from airflow_provider_snowpipe.spark.sources.source import (
    Behind,
    OnDataLoss,
    Source,
    SourcePartition,
    SourceSecrets,
)
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset


class IcebergSource(Source):
    """An Iceberg table that is only appended to.

    :param spec: the source
    :param on_data_loss: what to do if snapshots behind the committed position have expired
    """

    def __init__(self, spec: IcebergSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._secrets = SourceSecrets()

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take secret properties of the catalog."""
        self._secrets = secrets

    def partitions(self) -> tuple[IcebergPartition, ...]:
        """Open the table, and list the values of the partition field, or the one partition that there is."""
        table = open_table(self._spec, self._secrets)
        reader, options = TableReader.of(table), self._spec.row_options
        return tuple(
            IcebergPartition(name, history, reader, options, self._on_data_loss)
            for name, history in histories(table, self._spec).items()
        )


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """A place in a partition: just after a position.

    :param after: the position, None for the beginning
    """

    after: BatchRowOffset | None


@dataclass(frozen=True, slots=True)
class IcebergPartition(SourcePartition[IcebergPlace]):
    """The rows of one value of the partition field, or all rows.

    :param name: the partition's name
    :param history: the files that snapshots appended to it
    :param reader: reads them
    :param options: how values are written that JSON has no form for
    :param on_data_loss: what to do if snapshots behind the committed position have expired
    """

    name: str
    history: History
    reader: TableReader
    options: NdjsonOptions
    on_data_loss: OnDataLoss
    offset_class: ClassVar[type[Offset]] = BatchRowOffset

    def check(self, committed: Offset | None) -> None:
        """Hold a position against the table's history."""
        self.history.check(_position(committed), self.on_data_loss)

    def resume(self, committed: Offset | None) -> IcebergPlace | None:
        """Find the place just after a row; no data file is read for it."""
        self.check(committed)
        position = _position(committed)
        rest = self.history.pieces_after(position)
        return None if next(rest, None) is None else IcebergPlace(position)

    def read(self, place: IcebergPlace, limits: BatchLimits) -> Iterator[Part]:
        """Read the data files one after the other, none of it twice."""
        for piece in self.history.pieces_after(place.after):
            row = piece.skip
            file = SourceFile(piece.file.path, piece.file.path, piece.file.bytes)
            for rows in self.reader.tables(piece.file, row):
                for block in row_blocks_of(rows, file, after_line=row, limits=limits, options=self.options):
                    first, last = piece.position(block.first_line), piece.position(block.last_line)
                    yield Part(block.body, first, last, block.rows)
                row += rows.num_rows

    def behind(self, committed: str | None) -> Behind:
        """Count the rows behind a position, and the bytes of the files that hold them."""
        position = None if committed is None else BatchRowOffset.parse(committed)
        pieces = list(self.history.pieces_after(position))
        rows = sum(piece.file.rows - piece.skip for piece in pieces)
        return Behind(sum(piece.file.bytes for piece in pieces), f"rows_behind={rows}", rows)


def _position(committed: Offset | None) -> BatchRowOffset | None:
    return cast("BatchRowOffset | None", committed)
