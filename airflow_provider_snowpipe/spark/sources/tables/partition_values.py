"""The partitions of a frame source: one, one for each value of a column, or one for each range of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.tables.key_column import column_of
from airflow_provider_snowpipe.spark.sources.tables.reading import asked_of_spark
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ONLY = "all"
"""Name of the partition of a source that has only one."""


def partition_names(rows: DataFrame, column: str, address: str) -> tuple[str, ...]:
    """List the values of a column as names of partitions.

    :param rows: the rows
    :param column: the column
    :param address: the source, for errors
    :return: the names in order
    :raises ConfigurationError: if there is a NULL or an empty value
    :raises SourcePositionError: if there is no row
    """
    values = rows.select(column_of(column).cast("string")).distinct()
    found = [row[0] for row in asked_of_spark(values.collect, address)]
    if None in found or "" in found:
        empty = "NULL" if None in found else "an empty text"
        raise ConfigurationError(
            f"source {address!r} has rows with {empty} in {column!r}, which names their channel: give them a "
            "value, or leave them out in a query. Nothing was sent"
        )
    if not found:
        raise SourcePositionError(
            f"source {address!r} has no rows, so that {column!r} tells no partition: run again when it has"
        )
    return tuple(sorted(found))


def with_facts(
    rows: DataFrame, column: str | None, facts: dict[str, dict[str, Any]], schema: pa.Schema
) -> DataFrame:
    """Give each row of the wanted partitions what belongs to its partition; others are left out.

    The facts are sent to every task, so that no row moves.

    :param rows: the rows
    :param column: the column whose value is the partition, None where there is one partition
    :param facts: further columns by partition
    :param schema: their types
    """
    from pyspark.sql import functions as sf

    if column is None:
        (only,) = facts.values()
        for field in schema:
            kind = "string" if pa.types.is_string(field.type) else str(field.type).replace("int64", "long")
            rows = rows.withColumn(field.name, sf.lit(only[field.name]).cast(kind.replace("int32", "int")))
        return rows

    session = rows.sparkSession
    name = "snowpipe_partition"
    columns = {name: pa.array(list(facts), pa.string())} | {
        field.name: pa.array([values[field.name] for values in facts.values()], field.type)
        for field in schema
    }
    small = session.createDataFrame(pa.table(columns))
    mine = rows.where(column_of(column).isin(list(facts))) if len(facts) <= _MOST_LISTED else rows
    same = column_of(column).cast("string") == sf.col(name)
    return mine.join(sf.broadcast(small), same).drop(name)


_MOST_LISTED = 200
"""So many values in a condition are quickly compared, and let a scan leave out directories."""
