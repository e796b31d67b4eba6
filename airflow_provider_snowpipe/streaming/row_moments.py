"""Texts that Snowflake reads as a date, a time or a timestamp.

Integer texts are timestamps, too: seconds, milliseconds, microseconds or nanoseconds since 1970 by their
magnitude ("TO_TIMESTAMP", usage notes).
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Decimal

_DATE = re.compile(
    r"(?P<year>-?[0-9]{1,7})(?P<mark>[-/ \\\\])(?P<month>[0-9]{1,2})(?P=mark)(?P<day>[0-9]{1,2})(?![0-9])"
)
_TIME = re.compile(r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.[0-9]*)?)?")
_ZONE = re.compile(
    r"(?:Z|\s*[+-][0-9]{1,2}(?::?[0-9]{2})?|\s+(?:Z|[A-Za-z][A-Za-z_]*(?:/[A-Za-z_+-]+[0-9]*)*))?\s*"
)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\s*")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,15}")
_WORDS = re.compile(r"[+-]?(?:inf|infinity)|epoch", re.IGNORECASE)
_NEVER = re.compile(r"[+-]?(?:inf|infinity)", re.IGNORECASE)
_EARLIEST, _LATEST = -9_223_372_036_854, (1 << 63) - 1
_LAST_YEAR_OF_DATES, _LAST_YEAR = 5_881_579, 294_246


def is_date(text: str) -> bool:
    """True for a date, a timestamp or an integer."""
    return _is_epoch(text) or _is_moment(text.strip(), _LAST_YEAR_OF_DATES)


def is_timestamp(text: str) -> bool:
    """True for a timestamp, a date or an integer."""
    return _is_epoch(text) or _is_moment(text.lstrip(), _LAST_YEAR)


def is_time(text: str) -> bool:
    """True for a time of the day, a timestamp or an integer."""
    if _is_epoch(text):
        return True
    text = text.lstrip()
    match = _TIME.match(text)
    if match is None:
        return _is_moment(text, _LAST_YEAR) and not _NEVER.fullmatch(text)
    rest = text[match.end() :]
    zoned = match["second"] is not None and _ZONE.fullmatch(rest) is not None
    return _in_a_day(match) and (not rest or zoned)


def _is_moment(text: str, last_year: int) -> bool:
    if _WORDS.fullmatch(text):
        return True
    match = _DATE.match(text)
    if match is None or not _in_calendar(match, last_year):
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


def _in_calendar(match: re.Match[str], last_year: int) -> bool:
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if abs(year) > last_year:
        return False
    try:
        # The calendar repeats every four hundred years.
        dt.date(2000 + year % 400, month, day)
    except ValueError:
        return False
    return True


def _in_a_day(match: re.Match[str]) -> bool:
    clock = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    return clock == (24, 0, 0) or (clock[0] < 24 and clock[1] < 60 and clock[2] < 60)


def _is_epoch(text: str) -> bool:
    if _HEX.fullmatch(text):
        return True
    if not _NUMBER.fullmatch(text):
        return False
    number = Decimal(text.strip())
    return number.adjusted() < 20 and _EARLIEST <= number.to_integral_value(ROUND_HALF_UP) <= _LATEST
