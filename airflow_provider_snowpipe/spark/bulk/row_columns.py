"""The columns of rows in the form in which COPY reads every value of them back from Parquet.

Plain types stay: Parquet has them with their precision. What is nested becomes JSON as text, written by the
same code as for a channel, since Snowflake reads Parquet's lists and maps in one form or another by the
scanner it takes (page "CREATE FILE FORMAT", USE_VECTORIZED_SCANNER), and Parquet has no VARIANT of Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_snowpipe.spark.sources.tables.rows import check_row_types, quoted_column, value_text
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions
from airflow_provider_snowpipe.streaming.table_columns import TableColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NESTED = frozenset({"struct", "array", "map", "variant"})
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "MAP"})
_MOST_NAMED = 5


def columns_for_copy(
    rows: DataFrame, table: Sequence[TableColumn]
) -> tuple[DataFrame, tuple[str, ...], tuple[str, ...]]:
    """Give the rows the table's names, and every value a form that COPY reads back.

    :param rows: the rows
    :param table: the table's columns
    :returns: the rows, their columns, and those of them that COPY has to parse as JSON
    :raises ConfigurationError: if a column is not in the table
    :raises EncodingError: if a column's type has no faithful form
    """
    from pyspark.sql import functions as sf

    check_row_types(rows.schema)
    names = _names(rows.columns, table)
    kinds = {column.name: column.column_type.kind for column in table}
    selected, parsed = [], []
    for field in rows.schema.fields:
        name, kind = names[field.name], field.dataType.typeName()
        column = sf.col(quoted_column(field.name))
        if kind in _NESTED:
            column = value_text(field.name, column, field.dataType, NdjsonOptions())
            if kinds[name] in _SEMI_STRUCTURED:
                parsed.append(name)
        elif kind == "void":
            column = column.cast("string")
        selected.append(column.alias(name))
    return rows.select(*selected), tuple(names[field.name] for field in rows.schema.fields), tuple(parsed)


def _names(columns: Sequence[str], table: Sequence[TableColumn]) -> dict[str, str]:
    """The table's name of each column: the same letters, or the same but for their case."""
    exact = {column.name for column in table}
    folded = {column.name.upper(): column.name for column in table}
    found = {name: name if name in exact else folded.get(name.upper()) for name in columns}
    missing = [name for name, known in found.items() if known is None]
    if missing:
        shown = ", ".join(map(repr, missing[:_MOST_NAMED])) + (" …" if len(missing) > _MOST_NAMED else "")
        raise ConfigurationError(
            f"the table lacks {len(missing):,} of the {len(columns):,} columns that the rows have: {shown}. "
            "Nothing was written, since COPY would pass their values over: add them to the table, or select "
            "the others by a query"
        )
    return {name: known for name, known in found.items() if known is not None}
