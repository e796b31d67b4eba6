"""What a DataFrame's columns must be: checked on the driver, before any row moves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_snowpipe.spark.data_source.options import WriteOptions
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    EncodingError,
    UnknownColumnsError,
)
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

_PLAIN = re.compile(
    r"boolean|byte|short|integer|long|float|double|decimal\(\d+,\s*-?\d+\)|string( collate .*)?|char\(\d+\)"
    r"|varchar\(\d+\)|binary|date|timestamp|timestamp_ntz|time\(\d+\)|void"
)
_INTEGERS = ("byte", "short", "integer", "long")
_KEYS = re.compile(r"byte|short|integer|long|string( collate .*)?|char\(\d+\)|varchar\(\d+\)|date")
_REMEDIES = (
    (
        "variant",
        "make it a column of its own, which arrives as VARIANT, or cast it to a struct or a map "
        "(CAST(c AS MAP<STRING, STRING>))",
    ),
    ("interval", "cast it to STRING"),
    ("geo", "send its text, ST_AsText(c) or GeoJSON"),
    ("udt", "select the plain columns that it is made of"),
)


def check_schema(schema: Mapping[str, Any], options: WriteOptions) -> None:
    """Refuse columns whose values have no faithful JSON form, and key columns that do not serve as keys.

    :param schema: the DataFrame's schema as ``StructType.jsonValue`` gives it
    :param options: which columns are keys, and which are not sent
    :raises EncodingError: naming column, type and remedy
    :raises ConfigurationError: if a column that an option names is missing or of the wrong type
    """
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for name, column in (("channelColumn", options.channel_column), ("offsetColumn", options.offset_column)):
        if column is not None:
            _check_key(name, column, types)
    for column in options.omit_columns:
        _find("omitColumns", column, types)
    sent = [field for field in schema["fields"] if field["name"] not in options.omit_columns]
    if not sent:
        raise ConfigurationError("the DataFrame has no column to send: omit fewer columns")
    _refuse_equal_names(field["name"] for field in sent)
    for field in sent:
        if field["type"] == "variant":
            continue
        _check_type(field["name"], field["type"])


def unknown_columns(
    schema: Mapping[str, Any], options: WriteOptions, table: Sequence[TableColumn]
) -> list[str]:
    """The columns that are sent and for which the table has none; their values are passed over.

    :param schema: the DataFrame's schema as ``StructType.jsonValue`` gives it
    :param options: which columns are not sent, and what becomes of unknown ones
    :param table: the table's columns, none where they are not known
    :raises UnknownColumnsError: if there are some and the options refuse them, or no column has one
    """
    if not table or options.unknown_columns == "ignore":
        return []
    known = {column.name.upper() for column in table}
    sent = [field["name"] for field in schema["fields"] if field["name"] not in options.omit_columns]
    unknown = [name for name in sent if name.upper() not in known]
    if unknown and (options.unknown_columns == "fail" or len(unknown) == len(sent)):
        raise UnknownColumnsError(
            f"table {options.pipe.default_table!r} has no column for {', '.join(unknown)} of the DataFrame; "
            f"it has {', '.join(column.name for column in table)}. Nothing was sent: rename the columns, "
            "omit them (omitColumns), or add them to the table"
        )
    return unknown


def is_integer(schema: Mapping[str, Any], column: str | None) -> bool:
    """True for a column of whole numbers.

    :param schema: the DataFrame's schema as ``StructType.jsonValue`` gives it
    :param column: the column, None for none
    """
    return any(field["name"] == column and field["type"] in _INTEGERS for field in schema["fields"])


def variant_columns(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names of the VARIANT columns.

    :param schema: the DataFrame's schema as ``StructType.jsonValue`` gives it
    """
    return frozenset(field["name"] for field in schema["fields"] if field["type"] == "variant")


def _find(option: str, column: str, types: Mapping[str, Any]) -> Any:
    if column not in types:
        raise ConfigurationError(
            f"option {option} names the column {column!r}, which the DataFrame has not: it has "
            f"{', '.join(types)} (letters count as they are)"
        )
    return types[column]


def _check_key(option: str, column: str, types: Mapping[str, Any]) -> None:
    kind = _find(option, column, types)
    if kind in _INTEGERS or (isinstance(kind, str) and kind.startswith(("string", "varchar", "char("))):
        return
    raise ConfigurationError(
        f"option {option} names the column {column!r} of type {_shown(kind)}: it must be a whole number or a "
        f"text; cast it to BIGINT or STRING"
    )


def _refuse_equal_names(names: Iterator[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.upper(), name)
        if other is not name:
            raise EncodingError(
                f"columns {other!r} and {name!r} would go to the same column of the table: rename one"
            )


def _check_type(path: str, kind: Any) -> None:
    """Walk through a type; ``path`` names the place, for errors."""
    if isinstance(kind, str):
        if not _PLAIN.fullmatch(kind):
            raise _refused(path, kind)
        return
    shape = kind.get("type")
    if shape == "struct":
        if not kind["fields"]:
            raise EncodingError(f"column {path!r} is a struct without fields: drop it")
        for field in kind["fields"]:
            _check_type(f"{path}.{field['name']}", field["type"])
    elif shape == "array":
        _check_type(f"{path}.[]", kind["elementType"])
    elif shape == "map":
        if not isinstance(kind["keyType"], str) or not _KEYS.fullmatch(kind["keyType"]):
            raise EncodingError(
                f"column {path!r} is a map with keys of type {_shown(kind['keyType'])}: cast them to STRING"
            )
        _check_type(f"{path}.{{}}", kind["valueType"])
    else:
        raise _refused(path, kind)


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _refused(path: str, kind: Any) -> EncodingError:
    shown = _shown(kind)
    remedy = next((text for word, text in _REMEDIES if word in shown), "cast it to STRING")
    return EncodingError(f"column {path!r} has type {shown}, which has no JSON form here: {remedy}")
