"""DuckDB expressions that convert one JSON value to the type of its column, as Snowflake's casts do."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_snowpipe.local.tables import Column

_TRUE, _FALSE = "' *(?i:true|t|yes|y|on|1) *'", "' *(?i:false|f|no|n|off|0) *'"
# Integer-stored times, by magnitude: seconds, milliseconds, microseconds, nanoseconds
# (Snowflake documentation, "TO_TIMESTAMP", usage notes).
_SECONDS_LIMIT, _MILLIS_LIMIT, _MICROS_LIMIT = 31_536_000_000, 31_536_000_000_000, 31_536_000_000_000_000


def convert_with(column: Column, raw: str, cast: str) -> str:
    """Return the conversion of a JSON value to a column's type, before numbers and texts are cast.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    :param cast: ``CAST`` fails on what it cannot convert, ``TRY_CAST`` gives NULL.
    """
    kind = column.type.kind
    if kind in _CONVERSIONS:
        return _CONVERSIONS[kind](raw, cast)
    if kind in {"NUMBER", "VARCHAR", "VARIANT"}:
        return raw
    return f"{cast}({raw} AS {column.type.duckdb})"


def _boolean(raw: str, cast: str) -> str:
    # Nothing is said twice about the value: DuckDB would work it out for every row, true and false included.
    return (
        f"CASE WHEN {raw} = 'true' THEN true WHEN {raw} = 'false' THEN false "
        f"WHEN regexp_full_match({raw}, {_TRUE}) THEN true "
        f"WHEN regexp_full_match({raw}, {_FALSE}) THEN false "
        f"ELSE {cast}({raw} AS DOUBLE) <> 0 END"
    )


def _binary(raw: str, cast: str) -> str:
    return f"from_base64({raw})" if cast == "CAST" else f"TRY(from_base64({raw}))"


def _object(raw: str, cast: str) -> str:
    # The name of another JSON type is no JSON, so this cast fails; error() could not stand inside TRY.
    otherwise = f"CAST(json_type({raw}) AS JSON)" if cast == "CAST" else "NULL"
    return (
        f"CASE WHEN {raw} IS NULL THEN NULL WHEN json_type({raw}) = 'OBJECT' THEN {raw} ELSE {otherwise} END"
    )


def _array(raw: str, _cast: str) -> str:
    wrapped = f"CASE WHEN json_type({raw}) = 'ARRAY' THEN {raw} ELSE json_array({raw}) END"
    return f"CASE WHEN {raw} IS NOT NULL THEN {wrapped} END"


def _timestamp(target: str) -> Callable[[str, str], str]:
    def convert(raw: str, cast: str) -> str:
        written = f"{cast}({raw} AS {target})"
        if cast == "CAST":
            return written
        return f"coalesce({written}, {_epoch_micros(raw, target)})"

    return convert


def _epoch_micros(raw: str, target: str) -> str:
    number = f"TRY_CAST({raw} AS BIGINT)"
    micros = (
        f"CASE WHEN {number} < {_SECONDS_LIMIT} THEN TRY({number} * 1000000) "
        f"WHEN {number} < {_MILLIS_LIMIT} THEN {number} * 1000 "
        f"WHEN {number} < {_MICROS_LIMIT} THEN {number} ELSE {number} // 1000 END"
    )
    moment = f"TRY(make_timestamp({micros}))"
    if target == "TIMESTAMP WITH TIME ZONE":
        return f"({moment} AT TIME ZONE 'UTC')"
    return f"CAST({moment} AS {target})"


_CONVERSIONS: dict[str, Callable[[str, str], str]] = {
    "BOOLEAN": _boolean,
    "BINARY": _binary,
    "OBJECT": _object,
    "ARRAY": _array,
    "DATE": _timestamp("DATE"),
    "TIME": _timestamp("TIME"),
    "TIMESTAMP_NTZ": _timestamp("TIMESTAMP"),
    "TIMESTAMP_LTZ": _timestamp("TIMESTAMP WITH TIME ZONE"),
    "TIMESTAMP_TZ": _timestamp("TIMESTAMP WITH TIME ZONE"),
}


def convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a JSON value's text (or JSON) into a column's type, or fails.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    target = column.type.duckdb
    if column.type.kind in {"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"}:
        return (
            f"CASE WHEN regexp_full_match({raw}, '-?[0-9]+') THEN {_epoch_micros(raw, target)} "
            f"ELSE CAST({raw} AS {target}) END"
        )
    return f"CAST({convert_with(column, raw, 'CAST')} AS {target})"


def try_convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a text (or JSON) into a column's type; NULL when it cannot.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind == "NUMBER":
        return f"TRY_CAST({raw} AS {column.type.duckdb})"
    return convert_with(column, raw, "TRY_CAST")


def too_long(column: Column, value: str) -> str | None:
    """Return the condition that a value is longer than its column, or None when the type has no length."""
    limit = column.type.length
    if limit is None:
        return None
    measure = "octet_length" if column.type.kind == "BINARY" else "length"
    return f"{measure}({value}) > {limit}"
