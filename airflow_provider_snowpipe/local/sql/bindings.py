"""Bound values of a statement, as connector protocol and SQL API send them."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Bindings:
    """Values for the placeholders of one statement.

    :param sent: position, counting from ``"1"``, to ``{"type": .., "value": ..}``; a list of values repeats
        the statement (``executemany`` of the connector).
    """

    sent: Mapping[str, Mapping[str, Any]]

    def __bool__(self) -> bool:
        """True when there is any value."""
        return bool(self.sent)

    @property
    def names(self) -> list[str]:
        """Keys of the values in their order; the .NET driver sends names instead of numbers."""
        return sorted(self.sent, key=int) if all(map(str.isdecimal, self.sent)) else list(self.sent)

    def each(self) -> list[Bindings]:
        """Return the values of each repetition by themselves."""
        sizes = {len(e["value"]) if isinstance(e["value"], list) else 1 for e in self.sent.values()}
        if len(sizes) != 1 or sizes == {1}:
            return [self]
        return [
            Bindings({key: {**e, "value": e["value"][row]} for key, e in self.sent.items()})
            for row in range(sizes.pop())
        ]

    def rows(self, targets: Mapping[int, str] = MappingProxyType({})) -> list[list[Any]]:
        """Return the values of each repetition, in the order of positions.

        :param targets: type word of the column that a value is for, by its number from 0. Connector 4.8.1
            sends a list of timestamps with a None in it as text that holds epoch numbers (observed).
        :raises SqlError: for a value that does not fit its type.
        """
        try:
            ordered = [self.sent[key] for key in self.names]
            lists = [
                entry["value"] if isinstance(entry["value"], list) else [entry["value"]] for entry in ordered
            ]
            columns = [
                [
                    _value(_kind(entry, value, targets.get(number)), value, targets.get(number))
                    for value in values
                ]
                for number, (entry, values) in enumerate(zip(ordered, lists, strict=True))
            ]
            return [list(row) for row in zip(*columns, strict=True)]
        except (ValueError, ArithmeticError, TypeError, LookupError) as error:
            raise SqlError("100038", "22018", f"a bound value does not fit its type: {error}") from error


def _kind(entry: Mapping[str, Any], value: Any, target: str | None) -> str:
    kind = str(entry["type"]).upper()
    if target == "BINARY" and kind == "TEXT":
        return target
    is_number = isinstance(value, str) and value.lstrip("-").split(" ")[0].isdigit()
    if target == "DATE" and kind == "TEXT":
        return "DATE_AS_NUMBER" if is_number else kind
    return target if target in _TIMES and kind not in _READERS and is_number else kind


def _value(kind: str, text: Any, target: str | None) -> Any:
    if text is None:
        return None
    text = str(text)
    if kind == target == "TIMESTAMP_TZ":
        return _timestamp_tz(text)
    if kind in _READERS:
        return _READERS[kind](text)
    return text


def _nanos(text: str) -> dt.timedelta:
    return dt.timedelta(microseconds=int(text.split()[0]) // 1000)


def _timestamp_ntz(text: str) -> dt.datetime:
    return _EPOCH + _nanos(text) if text.lstrip("-").isdigit() else dt.datetime.fromisoformat(text)


def _timestamp_utc(text: str) -> dt.datetime:
    if text.lstrip("-").split()[0].isdigit():
        return _EPOCH_UTC + _nanos(text)
    timestamp = dt.datetime.fromisoformat(text)
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)


def _timestamp_tz(text: str) -> Any:
    """Return instant and offset of a time that was sent with its minutes east of UTC, plus 1440."""
    parts = text.split()
    if len(parts) == 2 and parts[0].lstrip("-").isdigit():
        return {"t": _timestamp_utc(text), "o": int(parts[1]) - 1440}
    return text


def _date(text: str) -> dt.date:
    if text.lstrip("-").isdigit():
        return (_EPOCH + dt.timedelta(milliseconds=int(text))).date()
    return dt.date.fromisoformat(text)


def _date_as_number(text: str) -> dt.date:
    # Text of a number is seconds up to nanoseconds, by its size ("TO_DATE", "Usage notes").
    number, unit = int(text), 1
    while abs(number) >= 31_536_000_000 * unit and unit < 10**9:
        unit *= 1000
    return (_EPOCH + dt.timedelta(seconds=number // unit)).date()


def _time(text: str) -> dt.time:
    return (_EPOCH + _nanos(text)).time() if text.isdigit() else dt.time.fromisoformat(text)


_TIMES = frozenset({"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})
_READERS: dict[str, Callable[[str], Any]] = {
    "FIXED": lambda text: decimal.Decimal(text) if "." in text or "e" in text.lower() else int(text),
    "REAL": float,
    "BOOLEAN": lambda text: text.lower() in {"true", "1"},
    "BINARY": bytes.fromhex,
    "DATE": _date,
    "DATE_AS_NUMBER": _date_as_number,
    "TIME": _time,
    "TIMESTAMP_NTZ": _timestamp_ntz,
    "TIMESTAMP_LTZ": _timestamp_utc,
    "TIMESTAMP_TZ": _timestamp_utc,
}
