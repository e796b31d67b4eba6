"""``df.write`` with a check of the plan first.

A data source is asked for its writer in a process that knows no plan, so that what a plan does not promise
comes to light there when a batch is repeated. With the DataFrame it is checked before the first row moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_snowpipe.spark.data_source.gates import identity_of
from airflow_provider_snowpipe.spark.data_source.options import WriteOptions, check_schema, variant_columns
from airflow_provider_snowpipe.spark.data_source.parts import GIVEN_WRITER, QUERY_ID
from airflow_provider_snowpipe.spark.data_source.whole_batch import FINDING_SCHEMA, BegunBatch, Finding
from airflow_provider_snowpipe.spark.driver.layout import pinned_layout
from airflow_provider_snowpipe.spark.driver.plan_order import refuse_changing_rows, refuse_unordered_rows
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FINDING = pa.schema(
    [("partition", pa.int32()), *((name, pa.string()) for name in ("channel", "error_type", "error"))]
)


def write_checked(df: DataFrame, options: Mapping[str, Any]) -> None:
    """Append a DataFrame through ``format("snowpipe")`` unless its plan may bring other rows next time.

    The layout is pinned meanwhile: adaptive execution is off, and each file is one partition. In a stream,
    call it from ``foreachBatch`` with the batch's number as ``batchId``.

    :param df: the rows
    :param options: the options of the write
    :raises ConfigurationError: naming the operator of the plan, the reason and the remedy, or if the plan has
        another number of partitions than the option ``partitions``; nothing was sent
    :raises SourcePositionError: if an earlier run has committed rows of the batch that are not, on each of
        its channels, the first ones now; nothing was sent
    """
    given = {name: _text(value) for name, value in options.items() if name.lower() != "fixedspread"}
    given["fixedSpread"] = "true"  # what is promised by that, is seen to here
    parsed = WriteOptions.parse(given)
    batch = parsed.for_batch()
    check_schema(df.schema.jsonValue(), parsed)
    with _active(df.sparkSession), pinned_layout(df.sparkSession):
        rows = df.select("*")  # planned anew, with these settings
        what = f"rows for pipe {parsed.pipe}"
        if parsed.offset_column is not None and parsed.channel_column is not None:
            refuse_changing_rows(rows, what)
            rows = _channels_together(rows, parsed.channel_column, parsed.offset_column)
        else:
            refuse_unordered_rows(rows, what)
            if parsed.channel_column is not None:
                _refuse_channels_apart(rows, parsed.channel_column)
        _refuse_other_number(rows, parsed.partitions)
        if batch is not None:
            _refuse_other_batch(rows, parsed, batch)
        rows.write.format("snowpipe").options(**given).mode("append").save()


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make a session the active one of the calling thread.

    Spark searches for a Python data source in that session only, and threads other than the one that made the
    session have none: DATA_SOURCE_NOT_FOUND (observed with Spark 4.2).
    """
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _channels_together(rows: DataFrame, channel: str, offset: str) -> DataFrame:
    """Bring each channel's rows into one partition and into their order, as far as the plan does not.

    Spark leaves a sort out where the plan has it already.
    """
    if not _has_channels_together(rows, channel):
        rows = rows.repartition(_partitions_of(rows), _quoted(channel))
    return rows.sortWithinPartitions(_quoted(channel), _quoted(offset))


def _refuse_channels_apart(rows: DataFrame, channel: str) -> None:
    if not _has_channels_together(rows, channel):
        raise ConfigurationError(
            f"the plan does not bring each channel's rows into one partition, and option channelColumn is "
            f"{channel!r}; nothing was sent. Write df.repartition(n, {channel!r})"
            f".sortWithinPartitions({channel!r}, 'a unique key'), with no other column in repartition"
        )


def _has_channels_together(rows: DataFrame, channel: str) -> bool:
    """True where Spark knows that rows with the same value lie in one partition."""
    if _partitions_of(rows) <= 1:
        return True
    jvm: Any = rows.sparkSession._jvm
    plan = rows._jdf.queryExecution().executedPlan()
    output = plan.output()
    columns = [output.apply(number) for number in range(output.size())]
    named = [column for column in columns if column.name() == channel]
    together = jvm.org.apache.spark.sql.catalyst.plans.physical.ClusteredDistribution(
        jvm.PythonUtils.toSeq(named), False, jvm.scala.Option.empty()
    )
    return bool(plan.outputPartitioning().satisfies(together))


def _partitions_of(rows: DataFrame) -> int:
    found: int = rows._jdf.queryExecution().toRdd().getNumPartitions()
    return found


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _refuse_other_batch(rows: DataFrame, options: WriteOptions, batch: int) -> None:
    """Refuse a batch that an earlier run has begun with other rows, or with rows in other channels."""
    query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    identity = identity_of(options, batch, query_id, GIVEN_WRITER)
    if identity is None:
        return
    begun = BegunBatch.find(options, identity, variant_columns(rows.schema.jsonValue()))
    if begun is None:
        return

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        for one in begun.compare(partition, batches):
            yield pa.RecordBatch.from_pylist([asdict(one)], schema=_FINDING)

    found = rows.mapInArrow(compare, FINDING_SCHEMA).collect()
    begun.refuse_differences(Finding(**one.asDict()) for one in found)


def _refuse_other_number(rows: DataFrame, promised: int | None) -> None:
    if promised is None:
        return
    found = _partitions_of(rows)
    if found != promised:
        raise ConfigurationError(
            f"the plan has {found} partitions, option partitions is {promised}; nothing was sent. Fix the "
            f"plan's number by repartition({promised}, column) and sort the rows within the partitions, or, "
            "for channels that hold nothing yet, give the number that the plan has"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
