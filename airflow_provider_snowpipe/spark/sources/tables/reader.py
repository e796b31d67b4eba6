"""The table source: rows ordered by a unique, growing column, a channel for each partition of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.driver.frames import CHANNEL, FramePartition, FrameSource, FrameWork
from airflow_provider_snowpipe.spark.driver.layout import free_layout, layout_fingerprint, pin_layout
from airflow_provider_snowpipe.spark.driver.plan_order import refuse_changing_rows, refuse_unordered_rows
from airflow_provider_snowpipe.spark.sources.source import Behind, OnDataLoss
from airflow_provider_snowpipe.spark.sources.tables.columns import (
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
    check_row_types,
    is_written_by_jvm,
    keyed_parts,
    written,
)
from airflow_provider_snowpipe.spark.sources.tables.spec import TableSourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.offsets import (
    IntegerOffset,
    LexicographicOffset,
    Offset,
    TopicPartitionOffset,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_AFTER, _END = "snowpipe_after", "snowpipe_end"


@dataclass(frozen=True, slots=True)
class TablePartition(FramePartition):
    """The rows of one value, of one range, or all of them.

    :param name: the partition's name
    :param key: the column that orders them
    :param layout: the ranges as they are written into tokens, None without ranges
    :param number: number of the range
    :param rows: rows that this run is to load, as far as they are counted
    :param end: the last position of this run, None until it is known
    :param ndjson: how tasks write the rows, None where Spark's JVM has
    """

    name: str
    key: str
    offset_type: str
    layout: str | None = None
    number: int = 0
    rows: int = 0
    end: Offset | None = None
    ndjson: NdjsonOptions | None = None
    gaps_legal = True

    @property
    def offset_class(self) -> type[Offset]:  # type: ignore[override]
        """The format of its tokens."""
        if self.layout is not None:
            return TopicPartitionOffset
        return IntegerOffset if self.offset_type == "integer" else LexicographicOffset

    def offset(self, value: Any) -> Offset:
        """The position of a row.

        :param value: its key
        """
        if self.layout is not None:
            return TopicPartitionOffset(self.layout, self.number, value)
        return IntegerOffset(value) if self.offset_type == "integer" else LexicographicOffset(value)

    def value(self, position: Offset) -> Any:
        """The key of a position; what :meth:`offset` took."""
        return position.sort_key()[0]

    def check(self, committed: Offset | None) -> None:
        """Refuse a position of other ranges; whether the row is there is for the source to say."""
        if isinstance(committed, TopicPartitionOffset) and (
            (committed.topic, committed.partition) != (self.layout, self.number)
        ):
            raise SourcePositionError(
                f"{str(committed)!r} is committed, which belongs to range {committed.partition} of the "
                f"ranges {committed.topic!r}; this is range {self.number} of {self.layout!r}. With other "
                "ranges rows would be loaded twice: give the ones of before, or another channel_prefix and "
                "an empty table"
            )

    def behind(self, committed: str | None) -> Behind:
        """Say how many rows the run has to load; how many bytes they are nobody knows before."""
        done = (
            committed is not None
            and self.end is not None
            and (self.offset_class.parse(committed) >= self.end)
        )
        rows = 0 if done else self.rows
        return Behind(0 if done else None, f"rows_behind<={rows}", rows)

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Cut the rows after a position into parts; their keys have to grow."""
        return keyed_parts(
            batches,
            committed,
            limits,
            column=self.key,
            value=self.value,
            offset=self.offset,
            ndjson=self.ndjson,
        )


class TableSource(FrameSource):
    """A table, a query or files that Spark reads, ordered by a column.

    :param spec: the source
    :param on_data_loss: what to do if a committed row is gone
    """

    def __init__(self, spec: TableSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._rows: DataFrame
        self._key: KeyColumn
        self._by: str | None = None

    def use(self, session: SparkSession) -> None:
        """Open the rows and refuse what cannot be loaded in order."""
        spec = self._spec
        pin_layout(session)
        rows = open_rows(
            session,
            spec.address,
            table=spec.table,
            query=spec.query,
            path=spec.path,
            format=spec.format,
            options=spec.options,
        )
        check_row_types(rows.schema)
        self._key = KeyColumn.of(rows, spec.offset_column, spec.offset_type)
        if spec.partition_by is not None:
            self._by = partition_column(rows, spec.partition_by).name
        refuse_changing_rows(rows, f"source {spec.address!r}")
        self._rows = rows

    def partitions(self) -> tuple[TablePartition, ...]:
        """List the column's values, the ranges, or the one partition that there is."""
        spec = self._spec
        self._refuse_null_keys()
        ndjson = None if is_written_by_jvm(self._rows.schema) else spec.row_options
        make = partial(TablePartition, key=self._key.name, offset_type=self._key.offset_type, ndjson=ndjson)
        if self._by is not None:
            with free_layout(self._rows.sparkSession):
                return tuple(make(name) for name in partition_names(self._rows, self._by, spec.address))
        if not spec.ranges:
            return (make(ONLY),)
        layout = f"{self._key.name}@{layout_fingerprint(self._key.name, list(spec.ranges))}"
        return tuple(
            make(str(number), layout=layout, number=number) for number in range(len(spec.ranges) + 1)
        )

    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        """Ask for each channel's last row, the rows to load, and whether the committed one is there."""
        from pyspark.sql import functions as sf

        position, after = sf.col(POSITION), sf.col(_AFTER)
        counts = (
            self._numbered(works, from_committed=True)
            .groupBy(CHANNEL)
            .agg(
                sf.max(position),
                sf.min(position),
                sf.count_if(after.isNull() | (position > after)),
                sf.count_if(position == after),
            )
        )
        with free_layout(self._rows.sparkSession):
            found = {row[0]: row for row in asked_of_spark(counts.collect, self._spec.address)}
        located = []
        for number, work in enumerate(works):
            row = found.get(number)
            self._refuse_changed_past(work, 0 if row is None else row[4])
            if row is None or not row[3]:
                continue
            partition = _partition(work)
            self._refuse_negative(row[2])
            end = partition.offset(row[1])
            located.append(replace(work, partition=replace(partition, rows=row[3], end=end), end=end))
        return located

    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """One Spark partition for each channel, its rows ordered by the key."""
        from pyspark.sql import functions as sf

        rows = self._numbered(works, from_committed=False)
        schema = self._rows.schema
        ready = rows.select(CHANNEL, POSITION, *written(schema, self._spec.row_options))
        ordered = ready.repartitionById(len(works), sf.col(CHANNEL)).sortWithinPartitions(POSITION)
        refuse_unordered_rows(ordered, f"source {self._spec.address!r}")
        return ordered

    def _numbered(self, works: Sequence[FrameWork], *, from_committed: bool) -> DataFrame:
        """The rows of the works with channel and position, from or behind the committed one to the end."""
        from pyspark.sql import functions as sf

        facts = {
            work.partition.name: {
                CHANNEL: number,
                _AFTER: None if work.committed is None else _partition(work).value(work.committed),
                _END: None if work.end is None else _partition(work).value(work.end),
            }
            for number, work in enumerate(works)
        }
        rows = self._pruned(works)
        if self._spec.ranges:
            for name in (CHANNEL, _AFTER, _END):
                values = [one[name] for one in facts.values()]
                rows = rows.withColumn(name, self._by_range(works, values, name))
        else:
            kind = pa.int64() if self._key.offset_type == "integer" else pa.string()
            schema = pa.schema([(CHANNEL, pa.int32()), (_AFTER, kind), (_END, kind)])
            rows = with_facts(rows, self._by, facts, schema)
        position, after, end = sf.col(POSITION), sf.col(_AFTER), sf.col(_END)
        lower = position >= after if from_committed else position > after
        return rows.withColumn(POSITION, self._key.position).where(
            sf.col(CHANNEL).isNotNull() & (after.isNull() | lower) & (end.isNull() | (position <= end))
        )

    def _by_range(self, works: Sequence[FrameWork], values: list[Any], name: str) -> Column:
        """A value for each range, by a row's key."""
        from pyspark.sql import functions as sf

        bounds, key = self._spec.ranges, self._key.position
        chosen: Any = sf
        for work, value in zip(works, values, strict=True):
            number = _partition(work).number
            inside = sf.lit(True)
            if number > 0:
                inside = inside & (key >= bounds[number - 1])
            if number < len(bounds):
                inside = inside & (key < bounds[number])
            chosen = chosen.when(inside, sf.lit(value).cast("int" if name == CHANNEL else "long"))
        result: Column = chosen
        return result

    def _pruned(self, works: Sequence[FrameWork]) -> DataFrame:
        """The rows from the least committed position to the last end, as conditions that a scan can use."""
        rows, key = self._rows, self._key
        committed = [work.committed for work in works if work.committed is not None]
        ends = [work.end for work in works if work.end is not None]
        if len(committed) == len(works):
            least = min(_partition(works[0]).value(position) for position in committed)
            rows = rows.where(key.column >= key.literal(least))
        if len(ends) == len(works):
            last = max(_partition(works[0]).value(position) for position in ends)
            rows = rows.where(key.column <= key.literal(last))
        return rows

    def _refuse_null_keys(self) -> None:
        address, key = self._spec.address, self._key
        with free_layout(self._rows.sparkSession):
            nulls = asked_of_spark(self._rows.where(key.column.isNull()).count, address)
        if nulls:
            raise ConfigurationError(
                f"source {address!r} has {nulls} row(s) with NULL in offset_column {key.name!r}: a row's "
                "position is its value; give them one, or leave them out in a query. Nothing was sent"
            )

    def _refuse_changed_past(self, work: FrameWork, found: int) -> None:
        if work.committed is None or found == 1:
            return
        key, token = self._key.name, str(work.committed)
        if found > 1:
            raise SourcePositionError(
                f"channel {work.channel!r}: {token!r} is committed, and {found} rows have that {key} now: a "
                f"row that came later would never be loaded. Give {key} values that only grow. Nothing was "
                "sent"
            )
        if self._on_data_loss == "fail":
            raise SourcePositionError(
                f"channel {work.channel!r}: {token!r} is committed, but no row of source "
                f"{self._spec.address!r} has that {key} any more: rows behind it may be missing, too; "
                f"on_data_loss='skip' goes on with the next larger {key}. Nothing was sent"
            )

    def _refuse_negative(self, least: Any) -> None:
        if self._key.offset_type == "integer" and least < 0:
            raise ConfigurationError(
                f"source offset_column {self._key.name!r} has the value {least}: positions are whole "
                "numbers from 0; add a constant in a query. Nothing was sent"
            )


def _partition(work: FrameWork) -> TablePartition:
    return cast("TablePartition", work.partition)
