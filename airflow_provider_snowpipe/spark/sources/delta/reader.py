"""The Delta source: the rows that each version of a table inserted, ordered by a key within the version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.source import (
    CHANNEL,
    FramePartition,
    FrameSource,
    FrameWork,
    OnDataLoss,
)
from airflow_provider_snowpipe.spark.sources.delta.spec import DeltaSourceSpec
from airflow_provider_snowpipe.spark.sources.tables.plan_order import (
    free_layout,
    pin_layout,
    refuse_unordered_rows,
)
from airflow_provider_snowpipe.spark.sources.tables.reader import (
    ONLY,
    KeyColumn,
    asked_of_spark,
    open_rows,
    partition_column,
    partition_names,
    with_facts,
)
from airflow_provider_snowpipe.spark.sources.tables.rows import (
    POSITION,
    VERSION,
    RowColumns,
    check_row_types,
    is_written_by_jvm,
    versioned_parts,
    written,
)
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_CHANGE, _COMMIT_VERSION = "_change_type", "_commit_version"
_FIRST = "snowpipe_first_version"


@dataclass(frozen=True, slots=True)
class DeltaPartition(FramePartition):
    """The rows of one value of the partition column, or all rows.

    :param key: the column that orders a version's rows
    :param ndjson: how tasks write the rows, None where Spark's JVM has
    :param extra: columns that are put into each row
    """

    name: str
    binding: Binding
    key: str
    rows: int = 0
    end: BatchRowOffset | None = None
    ndjson: NdjsonOptions | None = None
    extra: RowColumns = field(default_factory=RowColumns)
    offset_class: ClassVar[type[Offset]] = BatchRowOffset

    def check(self, committed: Offset | None) -> None:
        """Nothing to see before the table's versions are known."""

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Cut the rows after a position into parts."""
        position = cast("BatchRowOffset | None", committed)
        return versioned_parts(
            batches, position, limits, column=self.key, ndjson=self.ndjson, extra=self.extra
        )


class DeltaSource(FrameSource):
    """A Delta table that is only inserted into.

    :param on_data_loss: a version that is gone, or was no insert, is an error whatever it is
    """

    def __init__(self, spec: DeltaSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._session: SparkSession
        self._rows: DataFrame
        self._key: KeyColumn
        self._latest = 0
        self._id = ""
        self._by: str | None = None

    def use(self, session: SparkSession) -> None:
        """Open the table and fix the version up to which this run reads."""
        spec = self._spec
        pin_layout(session)
        self._session = session
        rows = open_rows(session, spec.address, table=spec.table, path=spec.path, format="delta")
        check_row_types(rows.schema)
        self._key = KeyColumn.of(rows, spec.order_by, spec.offset_type)
        if spec.partition_by is not None:
            self._by = partition_column(rows, spec.partition_by).name
        self._rows = rows
        target = spec.table or "delta.`" + (spec.path or "").replace("`", "``") + "`"
        history = asked_of_spark(
            lambda: session.sql(f"DESCRIBE HISTORY {target} LIMIT 1").collect(), spec.address
        )
        self._latest = int(history[0]["version"])
        detail = asked_of_spark(lambda: session.sql(f"DESCRIBE DETAIL {target}").collect(), spec.address)
        self._id = str(detail[0]["id"])

    def partitions(self) -> tuple[DeltaPartition, ...]:
        """List the column's values, or the one partition that there is."""
        ndjson = None if is_written_by_jvm(self._rows.schema) else self._spec.row_options
        reading = f"versions from order_by {self._key.name!r}"

        def make(name: str) -> DeltaPartition:
            where = "" if self._by is None else f", {self._by} = {name!r}"
            return DeltaPartition(
                name,
                Binding(f"Delta table {self._id}{where}", reading),
                key=self._key.name,
                ndjson=ndjson,
                extra=RowColumns(self._spec.metadata or {}, self.run),
            )

        if self._by is None:
            return (make(ONLY),)
        with free_layout(self._session):
            names = partition_names(self._rows, self._by, self._spec.address)
        return tuple(make(name) for name in names)

    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        """Count the rows of each version behind the committed ones; versions that did more are refused."""
        from pyspark.sql import functions as sf

        for work in works:
            committed = cast("BatchRowOffset | None", work.committed)
            if committed is not None and committed.batch > self._latest:
                raise SourcePositionError(
                    f"channel {work.channel!r}: {str(committed)!r} is committed, but the latest version of "
                    f"{self._spec.address!r} is {self._latest}: the table was recreated, or is another one. "
                    "Nothing was sent"
                )
        if all(_first_version(work, self._spec) > self._latest for work in works):
            return []
        counted = self._numbered(works).groupBy(CHANNEL, VERSION)
        facts = counted.agg(
            sf.count(sf.lit(1)),
            sf.count_if(sf.col(_CHANGE) != "insert"),
            sf.count_if(sf.col(POSITION).isNull()),
        )
        with free_layout(self._session):
            rows = asked_of_spark(facts.collect, self._spec.address)
        counts: dict[int, dict[int, int]] = {}
        for channel, version, count, changed, nulls in rows:
            self._refuse_version(version, changed, nulls)
            counts.setdefault(channel, {})[version] = count
        located = (_located(work, counts.get(number, {})) for number, work in enumerate(works))
        return [work for work in located if work is not None]

    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """One Spark partition for each channel, its rows ordered by version and key."""
        from pyspark.sql import functions as sf

        columns = written(self._rows.schema, self._spec.row_options)
        ready = self._numbered(works).select(CHANNEL, VERSION, POSITION, *columns)
        ordered = ready.repartitionById(len(works), sf.col(CHANNEL)).sortWithinPartitions(VERSION, POSITION)
        refuse_unordered_rows(ordered, f"source {self._spec.address!r}")
        return ordered

    def _numbered(self, works: Sequence[FrameWork]) -> DataFrame:
        """The changes from each channel's first required version on, with channel, version and key."""
        from pyspark.sql import functions as sf

        firsts = [_first_version(work, self._spec) for work in works]
        facts = {
            work.partition.name: {CHANNEL: number, _FIRST: first}
            for number, (work, first) in enumerate(zip(works, firsts, strict=True))
        }
        schema = pa.schema([(CHANNEL, pa.int32()), (_FIRST, pa.int64())])
        rows = with_facts(self._changes(min(firsts)), self._by, facts, schema)
        return (
            rows.withColumn(POSITION, self._key.position)
            .withColumn(VERSION, sf.col(_COMMIT_VERSION).cast("long"))
            .where(sf.col(VERSION) >= sf.col(_FIRST))
        )

    def _changes(self, first: int) -> DataFrame:
        spec = self._spec
        try:
            return open_rows(
                self._session,
                spec.address,
                table=spec.table,
                path=spec.path,
                format="delta",
                options={
                    "readChangeFeed": "true",
                    "startingVersion": str(first),
                    "endingVersion": str(self._latest),
                },
            )
        except ConfigurationError as error:
            raise SourcePositionError(
                f"the change data feed has not all of versions {first} to {self._latest} ({error}): the "
                "table needs delta.enableChangeDataFeed = true from the first of them on, and its log kept; "
                "starting_version sets where a channel begins that has nothing committed"
            ) from None

    def _refuse_version(self, version: int, changed: int, nulls: int) -> None:
        if changed:
            raise SourcePositionError(
                f"version {version} of {self._spec.address!r} changed or deleted {counted(changed, 'row')}, "
                "and a channel only adds rows: bring them into the table by other means, and reset the "
                "channel's offset token to that version on purpose. Nothing was sent"
            )
        if nulls:
            raise ConfigurationError(
                f"version {version} of {self._spec.address!r} has {counted(nulls, 'row')} with NULL in "
                f"order_by {self._key.name!r}, which orders them: choose a column that always has a value. "
                "Nothing was sent"
            )


def _first_version(work: FrameWork, spec: DeltaSourceSpec) -> int:
    committed = cast("BatchRowOffset | None", work.committed)
    return spec.starting_version if committed is None else committed.batch


def _located(work: FrameWork, counts: dict[int, int]) -> FrameWork | None:
    """Give a channel its end; None if it has everything."""
    committed = cast("BatchRowOffset | None", work.committed)
    done = 0
    if committed is not None:
        done = committed.row
        if counts.get(committed.batch, 0) < done:
            raise SourcePositionError(
                f"channel {work.channel!r}: {str(committed)!r} is committed, but version "
                f"{committed.batch} has {counted(counts.get(committed.batch, 0), 'row')} for it: the "
                "table was recreated, or is another one. Nothing was sent"
            )
    rows = sum(counts.values()) - done
    if not rows:
        return None
    last = max(counts)
    end = BatchRowOffset(last, counts[last])
    partition: Any = work.partition
    return replace(work, partition=replace(partition, rows=rows, end=end), end=end)
