"""``df.write`` with a look at the plan first.

A data source is asked for its writer in a process that knows no plan, so that what a plan does not promise
comes to light there when a batch is repeated. Whoever has the DataFrame can look before the first row moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.spark.layout import pinned_layout
from airflow_provider_snowpipe.spark.plan_order import refuse_changing_rows, refuse_unordered_rows
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_checked(df: DataFrame, options: Mapping[str, Any]) -> None:
    """Append a DataFrame through ``format("snowpipe")`` unless its plan may bring other rows next time.

    The layout is pinned meanwhile: adaptive execution is off, and each file is one partition. In a stream,
    call it from ``foreachBatch`` with the batch's number as ``batchId``.

    :param df: the rows
    :param options: the options of the write
    :raises ConfigurationError: naming the operator of the plan, the reason and the remedy, or if the plan has
        another number of partitions than the option ``partitions``; nothing was sent
    """
    given = {name: _text(value) for name, value in options.items()}
    parsed = WriteOptions.parse(given)
    parsed.for_batch()
    with _active(df.sparkSession), pinned_layout(df.sparkSession):
        rows = df.select("*")  # planned anew, with these settings
        what = f"rows for pipe {parsed.pipe}"
        if parsed.offset_column is not None and parsed.channel_column is not None:
            refuse_changing_rows(rows, what)
        else:
            refuse_unordered_rows(rows, what)
        _refuse_other_number(rows, parsed.partitions)
        rows.write.format("snowpipe").options(**given).mode("append").save()


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make a session the active one of the calling thread.

    Spark looks for a Python data source in that session only, and threads other than the one that made the
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


def _refuse_other_number(rows: DataFrame, promised: int | None) -> None:
    if promised is None:
        return
    found = rows._jdf.queryExecution().toRdd().getNumPartitions()
    if found != promised:
        raise ConfigurationError(
            f"the plan has {found} partitions, option partitions is {promised}; nothing was sent. Fix the "
            f"plan's number by repartition({promised}, column) and sort the rows within the partitions, or, "
            "for channels that hold nothing yet, give the number that the plan has"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
