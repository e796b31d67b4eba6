"""The Delta source: the rows that each version of a table inserted, ordered by a key within the version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa

from airflow_provider_snowpipe.spark.source import CHANNEL, FrameWork
from airflow_provider_snowpipe.spark.sources.tables.reader import (
    OrderedPartition,
    OrderedSource,
    asked_of_spark,
    open_rows,
    with_facts,
)
from airflow_provider_snowpipe.spark.sources.tables.rows import POSITION, VERSION, versioned_parts
from airflow_provider_snowpipe.spark.sources.tables.spec import DeltaSource as DeltaSourceSpec
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.checkpoint import Binding
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset, Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_CHANGE, _COMMIT_VERSION = "_change_type", "_commit_version"
_FIRST = "snowpipe_first_version"


@dataclass(frozen=True, slots=True)
class DeltaPartition(OrderedPartition):
    """The rows of one value of the partition column, or all rows; the key orders those of a version."""

    offset_class: ClassVar[type[Offset]] = BatchRowOffset

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Cut the rows after a position into parts."""
        position = cast("BatchRowOffset | None", committed)
        return versioned_parts(
            batches, position, limits, column=self.key, ndjson=self.ndjson, extra=self.extra
        )


class DeltaSource(OrderedSource):
    """A Delta table that is only inserted into: a version that is gone, or was no insert, is an error."""

    _spec: DeltaSourceSpec
    _latest: int
    _id: str

    def use(self, session: SparkSession) -> None:
        """Open the table and fix the version up to which this run reads."""
        spec = self._spec
        self._open(session, spec.order_by, format="delta")
        target = spec.table or "delta.`" + (spec.path or "").replace("`", "``") + "`"
        history = asked_of_spark(
            lambda: session.sql(f"DESCRIBE HISTORY {target} LIMIT 1").collect(), spec.address
        )
        self._latest = int(history[0]["version"])
        detail = asked_of_spark(lambda: session.sql(f"DESCRIBE DETAIL {target}").collect(), spec.address)
        self._id = str(detail[0]["id"])

    def partitions(self) -> tuple[DeltaPartition, ...]:
        """List the column's values, or the one partition that there is."""
        reading = f"versions from order_by {self._key.name!r}"
        return tuple(
            DeltaPartition(
                name, Binding(f"Delta table {self._id}{self._where(name)}", reading), *self._written()
            )
            for name in self._names()
        )

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
        counts: dict[int, dict[int, int]] = {}
        for channel, version, count, changed, nulls in self._asked(facts.collect):
            self._refuse_version(version, changed, nulls)
            counts.setdefault(channel, {})[version] = count
        located = (_located(work, counts.get(number, {})) for number, work in enumerate(works))
        return [work for work in located if work is not None]

    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """One Spark partition for each channel, its rows ordered by version and key."""
        return self._ordered(self._numbered(works), works, VERSION, POSITION)

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
                self._rows.sparkSession,
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
