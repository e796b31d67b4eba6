"""One row held against a table's columns, exactly: the slow half of the check before sending.

It takes what the service takes and refuses what the service skips (forms of values: "Snowpipe Streaming:
supported data types"; compared value by value with the embedded service). A value that neither is sure of
is sent, since the service counts what it skips.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.row_moments import is_date, is_time, is_timestamp
from airflow_provider_snowpipe.streaming.table_columns import ColumnType, TableColumn

NOT_AN_OBJECT = "the row is not a JSON object"
NOT_UTF8 = "the row is not valid UTF-8"
REQUIRED = "a value is required (NOT NULL)"
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(
    rf"[ \t\n\v\f\r]*[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?[ \t\n\v\f\r]*"
)
_WORDS = re.compile(r" *(?:true|t|yes|y|on|1|false|f|no|n|off|0) *", re.IGNORECASE)
_NOT_FINITE = re.compile(r" *[+-]?(?:nan|inf|infinity) *", re.IGNORECASE)
_INTEGER = re.compile(r" *[+-]?[0-9]+ *")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NO_COLUMN = pa.schema([pa.field("\0", pa.bool_())])
"""Arrow counts no rows without a column."""
_EXACT = Context(prec=200, rounding=ROUND_HALF_UP)


class JsonNumber(str):
    """A number as the row writes it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a row does not fit the table; names the column, never the value.

    :param column: the column's name, None where the whole row is at fault
    :param reason: in words
    """

    column: str | None
    reason: str

    def __str__(self) -> str:
        return self.reason if self.column is None else f'column "{self.column}": {self.reason}'


class RowValues:
    """The exact check of single rows.

    :param columns: the table's columns
    """

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = [(column, column.column_type) for column in columns]
        self._by_key: dict[str, int] = {}
        for index, column in enumerate(columns, start=1):
            self._by_key.setdefault(column.name.upper(), index)
        self._required = [
            index for index, one in enumerate(columns) if not one.nullable and not one.fills_itself
        ]

    def fault(self, line: bytes) -> Fault | None:
        """Find the first column that a row does not fit.

        :param line: the row as it would be sent
        :returns: None for a row that the service takes
        """
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            return Fault(None, NOT_UTF8)
        try:
            row = parse_row(text)
        except RecursionError:
            return None if _is_object(line) else Fault(None, NOT_AN_OBJECT)
        if row is None:
            return Fault(None, NOT_AN_OBJECT)
        found, more = self._by_column(row)
        for index in sorted({*found, *self._required}):
            column, kind = self._columns[index]
            value = found[index][1] if index in found else None
            if value is None:
                if not column.nullable:
                    return Fault(column.name, REQUIRED)
                continue
            reason = _fault_of(kind, value)
            if reason is not None and not (kind.kind == "NUMBER" and _any_fits(kind, more.get(index))):
                return Fault(column.name, reason)
        return None

    def _by_column(
        self, row: list[tuple[str, Any]]
    ) -> tuple[dict[int, tuple[str, Any]], dict[int, dict[str, Any]]]:
        """Each column's key and value; and all its keys, where a row names it in several spellings."""
        found: dict[int, tuple[str, Any]] = {}
        more: dict[int, dict[str, Any]] = {}
        for key, value in row:
            index = self._by_key.get(key) or self._by_key.get(key.upper())
            if index is None:
                continue
            if found.setdefault(index - 1, (key, value))[0] != key:
                more.setdefault(index - 1, dict([found[index - 1]])).setdefault(key, value)
        for index, values in more.items():
            found[index] = _first_given(values, self._columns[index][0].name)
        return found, more


def _first_given(values: dict[str, Any], name: str) -> tuple[str, Any]:
    """Of several spellings of a key, the column's own comes first; NULL gives way to the next."""
    keys = sorted(values, key=lambda key: (key != name, key))
    return next(((key, values[key]) for key in keys if values[key] is not None), (keys[0], None))


def _any_fits(kind: ColumnType, values: dict[str, Any] | None) -> bool:
    return any(_is_number(value, kind) for value in (values or {}).values() if value is not None)


def parse_row(text: str) -> list[tuple[str, Any]] | None:
    """Read a row's keys and values in their order; numbers stay as they are written.

    :returns: None if it is no JSON object
    :raises RecursionError: if it is nested deeper than Python reads
    """
    try:
        row = _DECODER.decode(text)
    except ValueError:
        return None
    if not isinstance(row, _Pairs) or ("\\u" in text and _LONE_SURROGATE.search(text_of(row))):
        return None
    return row


def _is_object(line: bytes) -> bool:
    """True for a JSON object, of whatever depth: Arrow's parser does not recurse."""
    try:
        read = pj.read_json(
            pa.BufferReader(line),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(line) + 1),
            parse_options=pj.ParseOptions(explicit_schema=_NO_COLUMN, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return False
    return bool(read.num_rows == 1)


def is_number(text: str) -> bool:
    """True for a text that reads as a number."""
    return _NUMBER.fullmatch(text) is not None


def text_of(value: Any) -> str:
    """A JSON value as VARCHAR: texts as they are, everything else as JSON.

    :param value: from :func:`parse_row`
    """
    if isinstance(value, JsonNumber):
        return _printed(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value)


def _fault_of(kind: ColumnType, value: Any) -> str | None:
    check = _CHECKS.get(kind.kind)
    if not (_is_number(value, kind) if kind.kind == "NUMBER" else check is None or check(value)):
        return f"the value cannot be converted to {kind}"
    if kind.length is not None and _length(value, kind.kind) > kind.length:
        return f"the value is longer than {kind}"
    return None


def _is_number(value: Any, kind: ColumnType) -> bool:
    precision, scale = kind.precision or 38, kind.scale or 0
    if isinstance(value, bool):
        return True
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return False
    number = _decimal(value)
    if number is None or not number:
        return True
    if number.adjusted() >= precision - scale:
        return False
    if number.adjusted() < -scale - 1:
        return True
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return rounded.copy_abs() < Decimal(1).scaleb(precision - scale)


def _is_float(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return (_NOT_FINITE.fullmatch(value) or _NUMBER.fullmatch(value)) is not None


def _decimal(text: str) -> Decimal | None:
    """The number, None for one too small to be told from zero."""
    mantissa, _, exponent = text.strip().lower().partition("e")
    if len(exponent) > 6 and exponent.lstrip("+-").lstrip("0"):
        small = exponent.startswith("-") or not mantissa.strip("+-0.")
        return None if small else Decimal("1e100000")
    return Decimal(text.strip())


def _is_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return isinstance(value, str) and (_WORDS.fullmatch(value) is not None or _is_float(value))


def _is_binary(value: Any) -> bool:
    return _bytes(text_of(value)) is not None


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _length(value: Any, kind: str) -> int:
    text = text_of(value)
    return len(_bytes(text) or b"") if kind == "BINARY" else len(text)


def _moment(check: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and check(str(value))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "FLOAT": _is_float,
    "BOOLEAN": _is_boolean,
    "BINARY": _is_binary,
    "OBJECT": lambda value: isinstance(value, _Pairs),
    "DATE": _moment(is_date),
    "TIME": _moment(is_time),
    "TIMESTAMP_NTZ": _moment(is_timestamp),
    "TIMESTAMP_LTZ": _moment(is_timestamp),
    "TIMESTAMP_TZ": _moment(is_timestamp),
}


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in their order, repeated keys too."""


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber
)


def _json(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "{" + ",".join(f"{_quoted(key)}:{_json(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, JsonNumber):
        return _printed(value)
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _printed(number: JsonNumber) -> str:
    """A number as the service prints it: integers digit by digit, fractions through a double."""
    if _INTEGER.fullmatch(number):
        return str(number)
    fraction = float(number)
    return repr(fraction) if math.isfinite(fraction) else str(number)
