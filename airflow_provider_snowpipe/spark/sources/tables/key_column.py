"""The column that orders a table's rows: what types it may have, and its values as offset tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

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
        wanted = _offset_type(kind)
        if wanted is None:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}: use a column of whole "
                "numbers, strings with the collation UTF8_BINARY, dates or timestamps; a query can make one"
            )
        if wanted != offset_type:
            raise ConfigurationError(
                f"source offset_column {name!r} has type {kind.simpleString()}, but offset_type is "
                f"{offset_type!r}: set offset_type={wanted!r}"
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
