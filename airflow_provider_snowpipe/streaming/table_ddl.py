"""The SQL that makes a table for a source's rows, or room in it, and the columns that such rows ask for.

The types are those that Snowflake itself infers when rows widen a table ("Table schema evolution"):
structured values are VARIANT, what was only seen as NULL is VARCHAR, BINARY is never inferred.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.listing import full_name
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.row_moments import is_date, is_timestamp
from airflow_provider_snowpipe.streaming.row_values import JsonNumber, parse_row
from airflow_provider_snowpipe.streaming.table_columns import MAX_BINARY, ColumnType, TableColumn

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?")
_ZONED = re.compile(_MOMENT.pattern + r"(?:Z|[+-][0-9]{2}:?[0-9]{2})")
_INTEGER = re.compile(r"-?[0-9]{1,38}")
_DIGITS = 38
_TEXT = "VARCHAR(16777216)"
_NUMBERS = {"NUMBER(38,0)", "FLOAT"}
_MOMENTS = {"DATE", "TIMESTAMP_NTZ(9)"}


def table_of(pipe: PipeName) -> str:
    """The quoted full name of the table whose default pipe this is.

    :param pipe: the pipe
    :raises ConfigurationError: if it is a pipe of its own, whose rows are not the table's
    """
    if pipe.default_table is None:
        raise ConfigurationError(
            f"pipe {pipe} is not a table's default pipe, so that the columns of its rows are not the "
            "table's: give table=… instead of pipe=…, or leave out what concerns columns"
        )
    return full_name(pipe.database, pipe.schema, pipe.default_table)


def show_table(pipe: PipeName) -> str:
    """The statement that lists the table whose default pipe this is, and others that are named like it.

    :param pipe: the pipe
    """
    like = str(pipe.default_table).replace("\\", "\\\\").replace("'", "''")
    return f"SHOW TABLES LIKE '{like}' IN SCHEMA {full_name(pipe.database, pipe.schema)}"


def widens_itself(shown: Iterable[Mapping[str, Any]], table: str) -> bool:
    """True if the service adds columns to a table for keys that it has none for (ENABLE_SCHEMA_EVOLUTION).

    :param shown: the rows of ``SHOW TABLES``
    :param table: the table's name
    """
    on = ("Y", "YES", "TRUE", "ON")
    return any(
        row["name"] == table and str(row.get("enable_schema_evolution", "")).upper() in on for row in shown
    )


def create_table_if_missing(table: str, columns: Sequence[TableColumn]) -> str:
    """The statement that makes a table unless there is one.

    :param table: its quoted full name
    :param columns: its columns
    """
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(column.ddl for column in columns)})"


def add_columns(table: str, columns: Sequence[TableColumn]) -> str:
    """The statement that adds columns to a table.

    :param table: its quoted full name
    :param columns: the new columns, at least one; they can be empty, since there are rows already
    """
    return f"ALTER TABLE {table} ADD COLUMN {', '.join(column.ddl for column in columns)}"


def missing_columns(wanted: Iterable[TableColumn], have: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """The columns that a table lacks; names are compared as a default pipe does, without regard to case.

    :param wanted: what the rows have
    :param have: the table's columns
    """
    known = {column.name.upper() for column in have}
    return tuple(column for column in wanted if column.name.upper() not in known)


def columns_of_rows(
    lines: Iterable[bytes], types: Mapping[str, str] | None = None
) -> tuple[TableColumn, ...]:
    """Infer columns from rows, in the order in which the rows name them; names in capital letters.

    Integers are NUMBER(38,0), other numbers FLOAT, ISO texts DATE and TIMESTAMP_NTZ(9) or, with a zone,
    TIMESTAMP_TZ(9), objects and arrays VARIANT; a column with values of several kinds is VARCHAR. All are
    nullable.

    :param lines: NDJSON rows; those that are no JSON objects are passed over
    :param types: types of columns, by name, that a schema of the rows says; they count before the values
    :raises ConfigurationError: if no row has a key
    """
    kinds: dict[str, set[str]] = {}
    for line in lines:
        try:
            row = parse_row(line.decode("utf-8"))
        except (UnicodeDecodeError, RecursionError):
            continue
        for key, value in row or ():
            if key.strip():
                found = kinds.setdefault(key.upper(), set())
                if value is not None:
                    found.add(_kind_of(value))
    if not kinds:
        raise ConfigurationError(
            "the source's first rows have no key, so that no column can be inferred: make the table first"
        )
    said = {name.upper(): kind for name, kind in (types or {}).items()}
    return tuple(TableColumn(name, said.get(name) or _common(found)) for name, found in kinds.items())


def column_type(kind: pa.DataType) -> str | None:
    """The type of the column that takes an Arrow column's values, in the form that NDJSON gives them.

    :param kind: Arrow's type
    :return: None where the values say as much
    """
    is_a = pa.types
    if is_a.is_decimal(kind):
        return (
            f"NUMBER({kind.precision},{kind.scale})"
            if kind.precision <= _DIGITS and kind.scale >= 0
            else None
        )
    if is_a.is_integer(kind):
        return "NUMBER(38,0)"
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return f"BINARY({MAX_BINARY})"
    if is_a.is_timestamp(kind):
        return "TIMESTAMP_NTZ(9)" if kind.tz is None else "TIMESTAMP_TZ(9)"
    if is_a.is_nested(kind):
        return "VARIANT"
    simple = {
        is_a.is_boolean: "BOOLEAN",
        is_a.is_floating: "FLOAT",
        is_a.is_date: "DATE",
        is_a.is_time: "TIME(9)",
        is_a.is_string: _TEXT,
        is_a.is_large_string: _TEXT,
    }
    return next((name for test, name in simple.items() if test(kind)), None)


def common_types(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The types of columns that two schemas name, each of which takes the values of both.

    :param one: types by name
    :param other: types by name
    """
    found = dict(one)
    for name, kind in other.items():
        known = found.get(name, kind)
        found[name] = known if known == kind else _wider(ColumnType.parse(known), ColumnType.parse(kind))
    return found


def _wider(one: ColumnType, other: ColumnType) -> str:
    kinds = {one.kind, other.kind}
    if kinds == {"NUMBER"}:
        scale = max(one.scale or 0, other.scale or 0)
        digits = max((kind.precision or _DIGITS) - (kind.scale or 0) for kind in (one, other))
        return f"NUMBER({min(_DIGITS, digits + scale)},{scale})"
    if kinds == {"NUMBER", "FLOAT"}:
        return "FLOAT"
    return "VARIANT" if "VARIANT" in kinds else _TEXT


def _kind_of(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return "NUMBER(38,0)" if _INTEGER.fullmatch(value) else "FLOAT"
    if isinstance(value, bool):
        return "BOOLEAN"
    if not isinstance(value, str):
        return "VARIANT"
    if _DATE.fullmatch(value) and is_date(value):
        return "DATE"
    if _MOMENT.fullmatch(value) and is_timestamp(value):
        return "TIMESTAMP_NTZ(9)"
    return "TIMESTAMP_TZ(9)" if _ZONED.fullmatch(value) and is_timestamp(value) else _TEXT


def _common(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    if "VARIANT" in kinds:
        return "VARIANT"
    if kinds and kinds <= _NUMBERS:
        return "FLOAT"
    return "TIMESTAMP_NTZ(9)" if kinds and kinds <= _MOMENTS else _TEXT
