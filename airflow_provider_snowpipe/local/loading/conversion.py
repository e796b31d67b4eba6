"""DuckDB expressions that convert the values of files to the types of columns, as Snowflake's casts do.

They build on the conversions of streamed rows, so that a value means the same whichever way it comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.errors import unsupported
from airflow_provider_snowpipe.local.identifiers import literal
from airflow_provider_snowpipe.local.tables import Column

_TIME_KINDS = {"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"}
_FORMAT_OPTIONS = {"DATE": "DATE_FORMAT", "TIME": "TIME_FORMAT"}
_FORMAT_PARTS = {
    "YYYY": "%Y", "YY": "%y", "MM": "%m", "MON": "%b", "MMMM": "%B", "DD": "%d", "DY": "%a", "HH24": "%H",
    "HH12": "%I", "AM": "%p", "PM": "%p", "MI": "%M", "SS": "%S", "TZHTZM": "%z", "TZH:TZM": "%z",
    "TZH": "%z",
}  # fmt: skip
_FORMAT_TOKEN = re.compile(
    r"\.?FF\d?|YYYY|YY|MMMM|MON|MM|DD|DY|HH24|HH12|AM|PM|MI|SS|TZH:?TZM|TZH|\"[^\"]*\"|.",
    re.IGNORECASE | re.DOTALL,
)


def text_value(column: Column, raw: str, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a text to a column's type; NULL when it cannot.

    :param raw: expression of the text.
    :param options: DATE_FORMAT, TIME_FORMAT, TIMESTAMP_FORMAT and BINARY_FORMAT of the file format.
    """
    kind = column.type.kind
    if kind == "BINARY":
        return _binary(raw, str(options.get("BINARY_FORMAT", "HEX")))
    if kind in _TIME_KINDS:
        return _time(column, raw, str(options.get(_FORMAT_OPTIONS.get(kind, "TIMESTAMP_FORMAT"), "AUTO")))
    if column.type.is_semi_structured:
        # Text of a CSV field is parsed, as PARSE_JSON would.
        return json_value(column, f"TRY(CAST({raw} AS JSON))", options)
    return conversions.try_convert(column, raw)


def json_value(column: Column, raw: str, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a JSON value to a column's type; NULL when it cannot.

    :param raw: expression of the JSON value.
    :param options: as for :func:`text_value`.
    """
    if not column.type.is_semi_structured:
        return text_value(column, f"({raw} ->> '$')", options)
    present = f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END"
    return conversions.try_convert(column, f"({present})")


def arrow_value(column: Column, name: str, kind: pa.DataType, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a Parquet or ORC column to a table column's type; NULL if it cannot.

    :param name: quoted name of the Arrow column.
    :param kind: its Arrow type.
    :param options: as for :func:`text_value`.
    """
    wanted = column.type
    if wanted.is_semi_structured:
        return conversions.try_convert(column, arrow_json(name, kind))
    if _is_binary(kind) and wanted.kind == "BINARY":
        return name
    if pa.types.is_temporal(kind) and wanted.kind in _TIME_KINDS:
        return (
            f"TRY(_tz({name}))" if wanted.kind == "TIMESTAMP_TZ" else f"TRY_CAST({name} AS {wanted.duckdb})"
        )
    return text_value(column, arrow_text(name, kind), options)


def arrow_text(name: str, kind: pa.DataType) -> str:
    """Return an expression of an Arrow column's text; binary values are text too (BINARY_AS_TEXT = TRUE)."""
    if _is_binary(kind):
        return f"TRY(decode({name}))"
    if pa.types.is_nested(kind):
        return f"CAST(to_json({name}) AS VARCHAR)"
    return f"CAST({name} AS VARCHAR)"


def arrow_json(name: str, kind: pa.DataType) -> str:
    """Return an expression of an Arrow column's value as JSON."""
    return f"to_json({arrow_text(name, kind) if _is_binary(kind) else name})"


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _binary(raw: str, written: str) -> str:
    if written == "BASE64":
        return f"TRY(from_base64({raw}))"
    return f"encode({raw})" if written.startswith("UTF") else f"TRY(unhex({raw}))"


def _time(column: Column, raw: str, written: str) -> str:
    target, zoned = column.type.duckdb, column.type.kind == "TIMESTAMP_TZ"
    if written != "AUTO":
        parsed = f"try_strptime({raw}, {literal(strptime_format(written))})"
        return _zoned(raw, parsed) if zoned else f"CAST({parsed} AS {target})"
    return conversions.try_convert(column, raw)


def _zoned(raw: str, parsed: str) -> str:
    """A format gives the instant; its offset is the one at the end of the text."""
    offset = f"regexp_extract({raw}, '[+-][0-9]{{2}}:?[0-9]{{2}}$')"
    minutes = f"_read_tz('2000-01-01 00:00:00' || coalesce(nullif({offset}, ''), '+00')).o"
    return f"_at_offset(CAST({parsed} AS TIMESTAMP WITH TIME ZONE), {minutes})"


def strptime_format(written: str) -> str:
    """Translate a Snowflake format such as ``DD.MM.YYYY HH24:MI:SS.FF`` to DuckDB's.

    :raises SqlError: for an element that is not known here.
    """
    parts: list[str] = []
    for part in _FORMAT_TOKEN.findall(written):
        upper = part.upper()
        if upper in _FORMAT_PARTS:
            parts.append(_FORMAT_PARTS[upper])
        elif upper.lstrip(".").startswith("FF"):
            parts.append((".%n" if upper.endswith("9") else ".%f") if upper[0] == "." else "%f")
        elif len(part) > 1:
            parts.append(part.strip('"').replace("%", "%%"))
        elif part.isalpha() and upper not in {"T", "Z"}:
            raise unsupported(f"'{part}' in the date or time format {written}")
        else:
            parts.append("%%" if part == "%" else part)
    return "".join(parts)
