"""The data source ``snowpipe`` of PySpark: what Spark calls on its driver and in its tasks.

Spark makes a writer on the driver for each batch, in a helper process of its own, and pickles it to the
tasks; a stream's commit gets another one (observed with PySpark 4.2). So a writer's scoped token is as old as
its batch, and no writer remembers anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from airflow_provider_snowpipe.spark.data_source.gates import (
    FINDING_SCHEMA,
    BegunBatch,
    Finding,
    forget_agreement,
    identity_of,
    prepare,
    settle_batch,
)
from airflow_provider_snowpipe.spark.data_source.options import (
    WriteOptions,
    check_schema,
    is_integer,
    unknown_columns,
    variant_columns,
)
from airflow_provider_snowpipe.spark.data_source.parts import QUERY_ID
from airflow_provider_snowpipe.spark.data_source.task import Prepared, Task, TaskOutcome
from airflow_provider_snowpipe.spark.driver.report import ChannelReport
from airflow_provider_snowpipe.spark.sources.tables.plan_order import (
    pinned_layout,
    refuse_changing_rows,
    refuse_unordered_rows,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


NAME = "snowpipe"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task reports to the driver; a hint, never evidence."""

    outcome: TaskOutcome


class SnowpipeDataSource(DataSource):
    """Rows of a DataFrame into channels, each exactly once."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Check a ``df.write`` and prepare it; nothing has been sent when this returns."""
        options = self._checked(schema, overwrite)
        options.for_batch()
        return BatchWriter(options, self._prepared(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  Spark's name
        """Check a ``df.writeStream`` and prepare one micro-batch of it, or its commit."""
        options = self._checked(schema, overwrite)
        options.for_stream()
        return StreamWriter(options, self._prepared(schema, options))

    def _prepared(self, schema: StructType, options: WriteOptions) -> Prepared:
        options.refuse_unknown_spread()
        described = schema.jsonValue()
        prepared = prepare(
            options,
            integer_offsets=is_integer(described, options.offset_column),
            variants=variant_columns(described),
        )
        unknown = unknown_columns(described, options, prepared.columns)
        if unknown:
            _log(f"snowpipe table {options.pipe.default_table} has no column for {', '.join(unknown)}")
        return prepared

    def _checked(self, schema: StructType, overwrite: bool) -> WriteOptions:
        options = WriteOptions.parse(self.options)
        if overwrite:
            raise ConfigurationError(
                "rows are only ever added: use mode('append') for df.write and outputMode('append') for "
                "df.writeStream, and truncate the table by SQL where it is to be replaced"
            )
        check_schema(schema.jsonValue(), options)
        return options


class _Writer:
    def __init__(self, options: WriteOptions, prepared: Prepared) -> None:
        self._options = options
        self._prepared = prepared

    def _run(
        self, batches: Iterator[pa.RecordBatch], batch: int | None, query_id: str | None, context: TaskContext
    ) -> TaskMessage:
        identity = identity_of(self._options, batch, query_id)
        task = Task(self._options, self._prepared, identity, context.partitionId(), context.attemptNumber())
        return TaskMessage(task.run(batches))

    def _settle(self, messages: Sequence[WriterCommitMessage | None], batch: str, number: int | None) -> None:
        self._forget_agreement(number)
        _report_batch(
            batch,
            settle_batch(
                self._options, _outcomes(messages), batch, integer_offsets=self._prepared.integer_offsets
            ),
        )

    def _aborted(
        self, messages: Sequence[WriterCommitMessage | None], batch: str, number: int | None
    ) -> None:
        self._forget_agreement(number)
        _log(_describe_abort(self._options, _outcomes(messages), batch))

    def _forget_agreement(self, batch: int | None) -> None:
        try:
            forget_agreement(self._options, self._prepared.seen, batch)
        except SnowpipeError as error:  # they are in nobody's way
            _log(f"snowpipe channels of a comparison are left behind: {error}")


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of one ``df.write``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Load one partition; called in a task.

        Within ``foreachBatch`` a task knows the streaming query, and its tokens are bound to that query.
        """
        context = _context()
        return self._run(iterator, self._options.for_batch(), context.getLocalProperty(QUERY_ID), context)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Read the committed tokens after the last task; the write succeeds only if this returns."""
        self._settle(messages, self._label, self._options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the failed write may have left behind."""
        self._aborted(messages, self._label, self._options.batch_id)

    @property
    def _label(self) -> str:
        batch = self._options.batch_id
        return "write" if batch is None else f"batch={batch}"


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of one micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Load one partition of a micro-batch; called in a task."""
        context = _context()
        batch, query_id = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(QUERY_ID)
        if batch is None or query_id is None:
            raise ConfigurationError(
                f"Spark gave the task no {_BATCH_ID} and {QUERY_ID}: this release was tested with PySpark "
                "4.2, install that version, or use the option offsetColumn"
            )
        return self._run(iterator, int(batch), query_id, context)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Read the committed tokens after the last task; the micro-batch succeeds only if this returns."""
        self._settle(messages, f"batch={batchId}", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what the failed micro-batch may have left behind."""
        self._aborted(messages, f"batch={batchId}", batchId)


def _outcomes(messages: Sequence[WriterCommitMessage | None]) -> list[TaskOutcome | None]:
    return [message.outcome if isinstance(message, TaskMessage) else None for message in messages]


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("a writer's write() was called outside a Spark task: let Spark call it")
    return context


# -- What a batch did, in a line for the log ---------------------------------------------------------------


def _report_batch(batch: str, channels: Sequence[ChannelReport]) -> None:
    """Log a batch that is committed; of one without rows there is nothing to report."""
    if not channels:
        return
    lags = [one.latency_ms for one in channels if one.latency_ms is not None]
    _log(
        f"snowpipe committed {batch} channels={len(channels)} rows={sum(one.rows for one in channels)} "
        f"bytes={sum(one.bytes for one in channels)} rejected={sum(one.rejected for one in channels)} "
        f"dead_lettered={sum(one.dead_lettered for one in channels)} "
        f"append_seconds<={max(one.append_seconds for one in channels):.3f} "
        f"commit_seconds<={max(one.commit_seconds for one in channels):.3f} "
        f"retries={sum(one.retries for one in channels)}" + (f" latency_ms<={max(lags)}" if lags else "")
    )


def _describe_abort(options: WriteOptions, outcomes: Iterable[TaskOutcome | None], batch: str) -> str:
    """Describe what a batch that failed may have left behind; a task that failed or runs has no outcome."""
    known = [task for task in outcomes if task is not None]
    written = [channel for task in known for channel in task.channels if channel.target_token is not None]
    there = ", ".join(f"{channel.channel} to {channel.target_token}" for channel in written) or "none known"
    return (
        f"snowpipe aborted {batch}: rows that were committed stay in the table (channels: {there}; tasks "
        f"that failed or still run may have added to channels {options.channel_prefix}_*). A repeated "
        "batch goes on behind each channel's committed offset token"
    )


def _log(line: str) -> None:
    """To standard error, which ends up in the driver's log (observed with PySpark 4.2)."""
    print(line, file=sys.stderr, flush=True)


# -- df.write with a check of the plan first -------------------------------------------------------------
#
# A data source is asked for its writer in a process that knows no plan, so that what a plan does not promise
# comes to light there when a batch is repeated. With the DataFrame it is checked before the first row moves.

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
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if name.lower() != "fixedspread"
    }
    given["fixedSpread"] = "true"  # what is promised by that, is seen to here
    parsed = WriteOptions.parse(given)
    batch = parsed.for_batch()
    check_schema(df.schema.jsonValue(), parsed)
    with _active(df.sparkSession), pinned_layout(df.sparkSession):
        rows = df.select("*")  # planned again, with these settings
        what = f"rows for pipe {parsed.pipe}"
        if parsed.offset_column is not None and parsed.channel_column is not None:
            refuse_changing_rows(rows, what)
            rows = _channels_together(rows, parsed.channel_column, parsed.offset_column)
        else:
            refuse_unordered_rows(rows, what)
            channel = parsed.channel_column
            if channel is not None and not _has_channels_together(rows, channel):
                raise ConfigurationError(
                    "the plan does not bring each channel's rows into one partition, and option "
                    f"channelColumn is {channel!r}; nothing was sent. Write df.repartition(n, {channel!r})"
                    f".sortWithinPartitions({channel!r}, 'a unique key'), with no other column in repartition"
                )
        promised = parsed.partitions
        if promised is not None and (found := _partitions_of(rows)) != promised:
            raise ConfigurationError(
                f"the plan has {found} partitions, option partitions is {promised}; nothing was sent. Fix "
                f"the plan's number by repartition({promised}, column) and sort the rows within the "
                "partitions, or, for channels that hold nothing yet, give the number that the plan has"
            )
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
    identity = identity_of(options, batch, query_id)
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
