"""The specification of a Delta table that is read version by version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from airflow_provider_snowpipe.spark.sources.tables.spec import TypedRowsSource
from airflow_provider_snowpipe.streaming.arguments import BinaryFormat, NonFinite
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset


@dataclass(frozen=True, slots=True, repr=False)
class DeltaSource(TypedRowsSource):
    """The rows that were inserted into a Delta table, version by version, from its change data feed.

    The position of a row is the version that inserted it and its number in that version, ordered by a column
    whose values are unique within a version. The table's property ``delta.enableChangeDataFeed`` is set.

    :param order_by: that column
    :param path: the table's directory
    :param table: the table's name in Spark's catalog instead
    :param offset_type: ``integer``: ``order_by`` has whole numbers; ``text``: strings, dates or timestamps
    :param partition_by: a column whose values are the partitions, each with a channel; without, one channel
    :param starting_version: the first version that is read where nothing is committed
    :param binary: the pipe's ``BINARY_INPUT_FORMAT``; a default pipe takes BASE64
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, years outside 0 to 9999, times beyond a day
    :param explicit_nulls: True writes nulls, which store NULL; False leaves them out, so that a column's
        DEFAULT applies
    :param metadata: columns that show where rows are from, each with ``run_id``, ``version`` or ``row``
    :param kind: always ``delta``
    """

    order_by: str
    path: str | None = None
    table: str | None = None
    offset_type: Literal["integer", "text"] = "integer"
    partition_by: str | None = None
    starting_version: int = 0
    binary: BinaryFormat = "BASE64"
    non_finite: NonFinite = "refuse"
    explicit_nulls: bool = True
    metadata: Mapping[str, str] | None = None
    kind: Literal["delta"] = "delta"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.delta.reader:DeltaSource"

    def _check(self) -> None:
        if not self.order_by:
            raise ConfigurationError("source order_by is empty: name the column that orders a version's rows")
        self._check_one_address()
        self._check_metadata()
        if self.starting_version < 0:
            raise ConfigurationError(f"source starting_version is {self.starting_version}: give 0 or more")

    @property
    def offset_format(self) -> str:
        """``batch:row``: the version and the number of the row in it."""
        return BatchRowOffset.format_name

    @property
    def default_name(self) -> str:
        """The table's name, or the last part of the path."""
        return self.table.rpartition(".")[2].strip("`") if self.table else Path(self.path or "").name

    @property
    def address(self) -> str:
        """The table or its directory."""
        return self.table or self.path or ""


DeltaSourceSpec = DeltaSource
"""The name of the class inside the job, where a DeltaSource reads what the spec describes."""
