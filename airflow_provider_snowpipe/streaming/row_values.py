"""Checks one row against a table's columns exactly, and finds the columns that rows need.

It takes what the service takes and refuses what the service skips ("Snowpipe Streaming: supported data
types"; compared with the embedded service). A doubtful value is sent: the service counts what it skips.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import LONGEST_TEXT, ColumnType, TableColumn

# -- Texts that Snowflake reads as a date, a time or a timestamp -----------------------------------------
#
# Integer texts are timestamps, too: seconds, milliseconds, microseconds or nanoseconds since 1970 by their
# magnitude ("TO_TIMESTAMP", usage notes).

_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?P<mark>[-/ \\\\])(?P<month>[0-9]{1,2})(?P=mark)(?P<day>[0-9]{1,2})(?![0-9])"
)
_TIME = re.compile(r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.[0-9]*)?)?")
_ZONE = re.compile(
    r"(?:Z|\s*[+-][0-9]{1,2}(?::?[0-9]{2})?|\s+(?:Z|[A-Za-z][A-Za-z_]*(?:/[A-Za-z_+-]+[0-9]*)*))?\s*"
)
_EPOCH = re.compile(r"\s*[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\s*")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,15}")
_EARLIEST, _LATEST = -9_223_372_036_854, (1 << 63) - 1


_MONTHS = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_WEEKDAY = r"(?:mon|tue|wed|thu|fri|sat|sun)"
_DAY_OF_MONTH = r"(?:0?[1-9]|[12][0-9]|3[01])"
_OTHER_FORMS = re.compile(
    rf"(?:{_DAY_OF_MONTH}-{_MONTHS}-[0-9]{{4}}|(?:0?[1-9]|1[0-2])/{_DAY_OF_MONTH}/[0-9]{{4}})(?:[T ].*)?"
    rf"|(?:{_WEEKDAY},? )?{_DAY_OF_MONTH} {_MONTHS} [0-9]{{4}}(?: .*)?"
    rf"|{_WEEKDAY} {_MONTHS} {_DAY_OF_MONTH} .*[0-9]{{4}}",
    re.IGNORECASE,
)
"""Other forms of AUTO ("Date and time input formats"), RFC 2822 among them; the service reads the rest."""


def is_date(text: str) -> bool:
    """True for a date, a timestamp or an integer."""
    return _is_epoch(text) or _is_other_form(text) or _is_point_in_time(text.strip())


def is_timestamp(text: str) -> bool:
    """True for a timestamp, a date or an integer."""
    return _is_epoch(text) or _is_other_form(text) or _is_point_in_time(text.lstrip())


def _is_other_form(text: str) -> bool:
    return _OTHER_FORMS.fullmatch(text.strip()) is not None


def is_time(text: str) -> bool:
    """True for a time of the day, or an integer."""
    if _is_epoch(text):
        return True
    text = text.lstrip()
    match = _TIME.match(text)
    if match is None:
        return False
    rest = text[match.end() :]
    zoned = match["second"] is not None and _ZONE.fullmatch(rest) is not None
    return _in_a_day(match) and (not rest or zoned)


def _is_point_in_time(text: str) -> bool:
    match = _DATE.match(text)
    if match is None or not _in_calendar(match):
        return False
    rest = text[match.end() :]
    if not rest:
        return True
    if rest[0] not in "T ":
        return False
    time = _TIME.match(rest[1:].lstrip())
    if time is None or not _in_a_day(time):
        return False
    return _ZONE.fullmatch(rest[1:].lstrip()[time.end() :]) is not None


def _in_calendar(match: re.Match[str]) -> bool:
    try:
        dt.date(int(match["year"]), int(match["month"]), int(match["day"]))
    except ValueError:
        return False
    return True


def _in_a_day(match: re.Match[str]) -> bool:
    clock = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    return clock[0] < 24 and clock[1] < 60 and clock[2] < 60


def _is_epoch(text: str) -> bool:
    if _HEX.fullmatch(text):
        return True
    if not _EPOCH.fullmatch(text):
        return False
    number = Decimal(text.strip())
    return number.adjusted() < 20 and _EARLIEST <= number.to_integral_value(ROUND_HALF_UP) <= _LATEST


# -- One row compared with a table's columns, exactly -------------------------------------------------------

NOT_AN_OBJECT = "the row is not a JSON object"
NOT_UTF8 = "the row is not valid UTF-8"
REQUIRED = "a value is required (NOT NULL)"
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(
    rf"[ \t\n\v\f\r]*[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?[ \t\n\v\f\r]*"
)
_BOOLEAN = re.compile(r" *(?:true|t|yes|y|on|1|false|f|no|n|off|0) *", re.IGNORECASE)
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
    """Why a row does not fit the table; names the column, never the value."""

    column: str | None
    reason: str

    def __str__(self) -> str:
        return self.reason if self.column is None else f'column "{self.column}": {self.reason}'


class Loss(Fault):
    """Why a row that the service takes would not be in the table as it is."""

    __slots__ = ()


class RowValues:
    """The exact check of single rows."""

    def __init__(self, columns: Sequence[TableColumn], *, only_exact: bool = False) -> None:
        self._only_exact = only_exact
        self._columns = [(column, column.column_type) for column in columns]
        self._by_key: dict[str, int] = {}
        for index, column in enumerate(columns, start=1):
            self._by_key.setdefault(column.name.upper(), index)
        self._required = [
            index for index, one in enumerate(columns) if not one.nullable and not one.fills_itself
        ]

    def fault(self, line: bytes) -> Fault | None:
        """Find the first column that a row does not fit.

        :returns: None for a row that the service takes, and whose values it keeps where they must be exact
        """
        found = self._fault(line)
        return None if self._only_exact and not isinstance(found, Loss) else found

    def _fault(self, line: bytes) -> Fault | None:
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
                if not column.nullable and not self._only_exact:
                    return Fault(column.name, REQUIRED)
                continue
            reason = _fault_of(kind, value)
            if reason is None and column.exact and _is_changed(kind, value):
                shown = str(value)[:40]
                return Loss(column.name, f"the value {shown} would be rounded, cut or moved by {kind}")
            given = more.get(index, {}).values() if kind.kind == "NUMBER" else ()
            if reason and not self._only_exact and not any(_is_number(one, kind) for one in given):
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
            # Of several spellings of a key, NULL gives way to the next; the column's own comes first.
            name = self._columns[index][0].name
            found[index] = min(values.items(), key=lambda one: (one[1] is None, one[0] != name, one[0]))
        return found, more


def parse_row(text: str) -> list[tuple[str, Any]] | None:
    """Read a row's keys and values in their order; numbers stay as they are written.

    :returns: None if it is not a JSON object
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
    """A JSON value as VARCHAR: texts as they are, everything else as JSON."""
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
    if kind.length is None:
        return None
    text = text_of(value)
    length = len(_bytes(text) or b"") if kind.kind == "BINARY" else len(text)
    return f"the value is longer than {kind}" if length > kind.length else None


def _is_changed(kind: ColumnType, value: Any) -> bool:
    """True for a value that a column takes, and has otherwise than it was given."""
    text = str(value)
    if kind.kind == "TIMESTAMP_NTZ":
        return not isinstance(value, JsonNumber) and _ISO_ZONED.fullmatch(text.strip()) is not None
    if kind.kind == "DATE":
        time = text.partition(":")
        return bool(time[1]) and bool(re.search(r"[1-9]", time[0][-2:] + time[2][:12]))
    if isinstance(value, bool) or not isinstance(value, str) or not _NUMBER.fullmatch(text):
        return False
    number = _decimal(text)
    if number is None:
        return kind.kind == "NUMBER"
    if kind.kind == "NUMBER":
        return number != number.quantize(Decimal(1).scaleb(-kind.digits[1]), context=_EXACT)
    if kind.kind == "FLOAT":
        kept = float(number)
        return number not in (Decimal(kept), Decimal(repr(kept)))
    return kind.kind == "BOOLEAN" and number not in (0, 1)


def _is_number(value: Any, kind: ColumnType) -> bool:
    precision, scale = kind.digits
    if isinstance(value, bool):
        return True
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return False
    number = _decimal(value)
    if number is None or not number:
        return True
    if number.adjusted() >= precision - scale:
        return False
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return rounded.copy_abs() < Decimal(1).scaleb(precision - scale)


def _is_float(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return (_NOT_FINITE.fullmatch(value) or _NUMBER.fullmatch(value)) is not None


def _decimal(text: str) -> Decimal | None:
    """The number, None for one too small to be distinguished from zero."""
    mantissa, _, exponent = text.strip().lower().partition("e")
    if len(exponent) > 6 and exponent.lstrip("+-").lstrip("0"):
        small = exponent.startswith("-") or not mantissa.strip("+-0.")
        return None if small else Decimal("1e100000")
    return Decimal(text.strip())


def _is_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return isinstance(value, str) and (_BOOLEAN.fullmatch(value) is not None or _is_float(value))


def _is_binary(value: Any) -> bool:
    return _bytes(text_of(value)) is not None


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _text_is(check: Callable[[str], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and check(str(value))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "FLOAT": _is_float,
    "BOOLEAN": _is_boolean,
    "BINARY": _is_binary,
    "OBJECT": lambda value: isinstance(value, _Pairs),
    "DATE": _text_is(is_date),
    "TIME": _text_is(is_time),
    "TIMESTAMP_NTZ": _text_is(is_timestamp),
    "TIMESTAMP_LTZ": _text_is(is_timestamp),
    "TIMESTAMP_TZ": _text_is(is_timestamp),
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


# -- The columns that rows ask for
#
# The types are those that Snowflake itself infers when rows widen a table ("Table schema evolution"):
# structured values are VARIANT, what was only seen as NULL is VARCHAR, BINARY is never inferred.

_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO_TIMESTAMP = re.compile(_ISO_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?")
_ISO_ZONED = re.compile(_ISO_TIMESTAMP.pattern + r"(?:Z|[+-][0-9]{2}:?[0-9]{2})")
_LONGEST_INTEGER = re.compile(r"-?[0-9]{1,38}")
_MOST_DIGITS = 38
_NUMERIC = {"NUMBER(38,0)", "FLOAT"}
_DATES = {"DATE", "TIMESTAMP_NTZ(9)"}


def columns_of_rows(
    lines: Iterable[bytes], types: Mapping[str, str] | None = None
) -> tuple[TableColumn, ...]:
    """Infer columns from rows, in the order in which the rows name them; names in upper case.

    Integers are NUMBER(38,0), other numbers FLOAT or, where it loses digits, NUMBER with a scale; ISO texts
    DATE, TIMESTAMP_NTZ(9) or TIMESTAMP_TZ(9), objects and arrays VARIANT, mixtures VARCHAR. All are nullable.

    :param lines: NDJSON rows; those that are not JSON objects are skipped
    :param types: types of columns, by name, that a schema of the rows has; they count before the values
    """
    kinds: dict[str, set[str]] = {}
    numbers: dict[str, set[JsonNumber]] = {}
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
                if isinstance(value, JsonNumber):
                    numbers.setdefault(key.upper(), set()).add(value)
    if not kinds:
        raise ConfigurationError(
            "the source's first rows have no key, so that no column can be inferred: make the table first"
        )
    declared = {name.upper(): kind for name, kind in (types or {}).items()}
    return tuple(
        TableColumn(name, declared.get(name) or _common(found, numbers.get(name, ())))
        for name, found in kinds.items()
    )


def _type_of_fractions(numbers: Iterable[JsonNumber]) -> str:
    """FLOAT where it keeps every digit of every number, a NUMBER where that does."""
    exact = [number for number in map(_decimal, numbers) if number is not None and number.is_finite()]
    if all(Decimal(repr(float(number))) == number for number in exact):
        return "FLOAT"
    scale = max(0, *(-int(number.normalize(_EXACT).as_tuple().exponent) for number in exact))
    digits = max(number.adjusted() + 1 for number in exact)
    return f"NUMBER(38,{scale})" if max(digits, 0) + scale <= _MOST_DIGITS else "FLOAT"


def _kind_of(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return "NUMBER(38,0)" if _LONGEST_INTEGER.fullmatch(value) else "FLOAT"
    if isinstance(value, bool):
        return "BOOLEAN"
    if not isinstance(value, str):
        return "VARIANT"
    if _ISO_DATE.fullmatch(value) and is_date(value):
        return "DATE"
    if _ISO_TIMESTAMP.fullmatch(value) and is_timestamp(value):
        return "TIMESTAMP_NTZ(9)"
    return "TIMESTAMP_TZ(9)" if _ISO_ZONED.fullmatch(value) and is_timestamp(value) else LONGEST_TEXT


def _common(kinds: set[str], numbers: Iterable[JsonNumber]) -> str:
    if "FLOAT" in kinds and kinds <= _NUMERIC:
        return _type_of_fractions(numbers)
    if len(kinds) == 1:
        return next(iter(kinds))
    if "VARIANT" in kinds:
        return "VARIANT"
    return "TIMESTAMP_NTZ(9)" if kinds and kinds <= _DATES else LONGEST_TEXT
