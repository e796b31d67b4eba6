"""DuckDB expressions that convert one JSON value to the type of its column, as Snowflake's casts do."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_snowpipe.local.tables import Column

# The type that the plain cast gives, and the macro that reads every text (module engine.values).
_TIMES = {
    "DATE": ("DATE", "_read_date"),
    "TIME": ("TIME", "_read_time"),
    "TIMESTAMP_NTZ": ("TIMESTAMP", "_read_ntz"),
    "TIMESTAMP_LTZ": ("TIMESTAMP WITH TIME ZONE", "_read_ltz"),
}


def convert_with(column: Column, raw: str, cast: str) -> str:
    """Return the conversion of a JSON value to a column's type, before numbers and texts are cast.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    :param cast: ``CAST`` fails on what it cannot convert, ``TRY_CAST`` gives NULL.
    """
    kind = column.type.kind
    if kind in _CONVERSIONS:
        return cut(column, _CONVERSIONS[kind](raw, cast))
    if kind in {"NUMBER", "VARCHAR", "VARIANT"}:
        return raw
    return f"{cast}({raw} AS {column.type.duckdb})"


def _boolean(raw: str, cast: str) -> str:
    return f"_read_boolean({raw})" if cast == "CAST" else f"TRY(_read_boolean({raw}))"


def cut(column: Column, value: str) -> str:
    """Return an expression of a TIME or TIMESTAMP without the digits that its column does not keep."""
    kept = column.type.kept_micros
    return value if kept == 1 else f"_cut({value}, {kept})"


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


def _time(kind: str) -> Callable[[str, str], str]:
    target, macro = _TIMES[kind]

    def convert(raw: str, cast: str) -> str:
        if cast == "TRY_CAST":
            return f"TRY({macro}({raw}))"
        # The plain cast is several times as fast; what it refuses, the macro reads in the isolating path.
        return f"CAST({raw} AS {target})"

    return convert


def _zoned(raw: str, cast: str) -> str:
    return f"_read_tz({raw})" if cast == "CAST" else f"TRY(_read_tz({raw}))"


_CONVERSIONS: dict[str, Callable[[str, str], str]] = {
    "BOOLEAN": _boolean,
    "BINARY": _binary,
    "OBJECT": _object,
    "ARRAY": _array,
    "TIMESTAMP_TZ": _zoned,
    **{kind: _time(kind) for kind in _TIMES},
}


def convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a JSON value's text (or JSON) into a column's type, or fails.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind in _TIMES:
        return cut(column, f"{_TIMES[column.type.kind][1]}({raw})")
    return f"CAST({convert_with(column, raw, 'CAST')} AS {column.type.duckdb})"


# What reads a value of any type as one of these.
MACROS = {
    "BOOLEAN": "_boolean", "DATE": "_date", "TIME": "_time", "TIMESTAMP_NTZ": "_ntz", "TIMESTAMP_LTZ": "_ltz",
    "TIMESTAMP_TZ": "_tz",
}  # fmt: skip


def cast(column: Column, value: str, *, tried: bool = False) -> str:
    """Return a cast of a value that may have any type to the type of a column.

    :param tried: the cast gives NULL where it fails.
    """
    if column.type.kind.startswith("TIMESTAMP"):
        read = f"{MACROS[column.type.kind]}({value})"
        return cut(column, f"TRY({read})" if tried else read)
    return f"{'TRY_' if tried else ''}CAST({value} AS {column.type.duckdb})"


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
