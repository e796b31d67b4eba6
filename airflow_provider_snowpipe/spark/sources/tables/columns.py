"""The columns by which a table is read: the key that orders its rows, and the one that parts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


# -- The column that orders a table's rows: what types it may have, and its values as offset tokens ------

_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_PARTITION_TYPES = _INTEGERS | {"string", "char", "varchar", "boolean", "date"}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column whose values order the rows, with the expression for their positions.

    :param name: the column's name
    :param kind: its type in Spark
    :param offset_type: ``integer`` or ``text``, as the plan says
    """

    name: str
    kind: DataType
    offset_type: Literal["integer", "text"]

    @classmethod
    def of(cls, df: DataFrame, name: str, offset_type: Literal["integer", "text"]) -> KeyColumn:
        """Find the column.

        :param df: the rows
        :param name: the column's name
        :param offset_type: what the plan says it holds
        :raises ConfigurationError: if there is none, or its type does not fit
        """
        field = field_of(df, name, "offset_column")
        kind = field.dataType
        required = _offset_type(kind)
        if required is None:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}: use a column of whole "
                "numbers, strings with the collation UTF8_BINARY, dates or timestamps; a query can make one"
            )
        if required != offset_type:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}, but offset_type is "
                f"{offset_type!r}: set offset_type={required!r}"
            )
        return cls(field.name, kind, offset_type)

    @property
    def column(self) -> Column:
        """The column itself."""
        return column_of(self.name)

    @property
    def position(self) -> Column:
        """Its values as positions: a long, or a text whose order by code points is that of the values."""
        from pyspark.sql import functions as sf

        kind = self.kind.typeName()
        if self.offset_type == "integer":
            return self.column.cast("long")
        if kind == "timestamp":
            return sf.date_format(self.column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
        if kind == "timestamp_ntz":
            return sf.date_format(self.column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
        return self.column.cast("string")

    def literal(self, position: int | str) -> Column:
        """A position as a value of the column, for conditions that scans can use.

        :param position: a whole number or a text from :attr:`position`
        """
        from pyspark.sql import functions as sf

        return sf.lit(position).cast(self.kind)


def partition_column(df: DataFrame, name: str) -> Any:
    """Find the column whose values are partitions.

    :param df: the rows
    :param name: the column's name
    :return: the column's field
    :raises ConfigurationError: if there is none, or its values cannot be names
    """
    field = field_of(df, name, "partition_by")
    if field.dataType.typeName() not in _PARTITION_TYPES or not _is_binary(field.dataType):
        raise ConfigurationError(
            f"source partition_by {name!r} has type {field.dataType.simpleString()}: channels are named by "
            "whole numbers, strings, dates or booleans"
        )
    return field


def field_of(df: DataFrame, name: str, what: str) -> Any:
    """Find a column by name, as Spark does: whatever the case.

    :param df: the rows
    :param name: the column's name
    :param what: the plan's key, for the error
    :raises ConfigurationError: if there is no such column, or more than one
    """
    found = [field for field in df.schema.fields if field.name.upper() == name.upper()]
    if len(found) != 1:
        raise ConfigurationError(
            f"source {what} is {name!r}, but the rows have {len(found) or 'no'} such column(s): use one of "
            f"{[field.name for field in df.schema.fields][:50]}"
        )
    return found[0]


def column_of(name: str) -> Column:
    """A column by its exact name, dots included.

    :param name: the name
    """
    from pyspark.sql import functions as sf

    return sf.col("`" + name.replace("`", "``") + "`")


def _offset_type(kind: Any) -> Literal["integer", "text"] | None:
    name = kind.typeName()
    if name in _INTEGERS or (name == "decimal" and kind.scale == 0):
        return "integer"
    if name in ("date", "timestamp", "timestamp_ntz"):
        return "text"
    return "text" if name in ("string", "char", "varchar") and _is_binary(kind) else None


def _is_binary(kind: Any) -> bool:
    """True unless strings compare by a collation other than their bytes."""
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


# -- Opening what Spark is to read, with errors that name the source -------------------------------------

_T = TypeVar("_T")
_GONE = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")


def open_rows(
    session: SparkSession,
    address: str,
    *,
    table: str | None,
    query: str | None,
    path: str | None,
    format: str,
    options: Mapping[str, str],
) -> DataFrame:
    """Open a table, a query or files; nothing is read but what Spark needs to know the columns.

    :param session: the session
    :param address: what it is, for errors
    :param table: a table's name, or None
    :param query: a query, or None
    :param path: a path, or None
    :param format: the path's format
    :param options: options of the reader
    :raises SourcePositionError: if it is not there
    :raises ConfigurationError: if Spark refuses it
    """

    def read() -> DataFrame:
        if query is not None:
            return session.sql(query)
        reader = session.read.options(**dict(options))
        return reader.table(table) if table is not None else reader.format(format).load(path)

    return asked_of_spark(read, address)


def asked_of_spark(ask: Callable[[], _T], address: str) -> _T:
    """Ask Spark about a source; its refusal becomes an error in one line.

    :param ask: the question
    :param address: the source, for errors
    :raises SourcePositionError: if it is not there
    :raises ConfigurationError: if Spark refuses it
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return ask()
    except (PySparkException, Py4JJavaError) as error:
        text = in_one_line(error)
    if any(gone in text for gone in _GONE):
        raise SourcePositionError(f"source {address!r} is not there: {text}. Nothing was read or sent")
    remedy = "; give the format's package with packages=…" if "DATA_SOURCE_NOT_FOUND" in text else ""
    raise ConfigurationError(f"Spark cannot read source {address!r}: {text}{remedy}")


def in_one_line(error: Any) -> str:
    """What Spark says, without the Java stack.

    :param error: its exception
    """
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return " ".join(text.partition("JVM stacktrace")[0].partition("\n\tat ")[0].split())[:600]


# -- The partitions of a frame source: one, one for each value of a column, or one for each range of the key -

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
    """Give each row of the required partitions what belongs to its partition; others are left out.

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
