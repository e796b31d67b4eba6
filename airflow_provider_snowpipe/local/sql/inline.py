"""Owned statements made plain: no comments, IDENTIFIER(..) resolved, bound values written as literals."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

from airflow_provider_snowpipe.local.errors import SqlError, unsupported
from airflow_provider_snowpipe.local.sql.bindings import Bindings

_STRING = r"'(?:[^'\\]|\\.|'')*'"
_TOKEN = re.compile(
    rf"(?P<kept>{_STRING}|\"(?:[^\"]|\"\")*\"|\$\$.*?\$\$)"
    r"|(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)"
    r"|(?P<bind>\?|(?<![\w:$]):(?P<number>\d+))",
    re.DOTALL,
)
# A placeholder of PUT and GET stands alone: their paths may hold its signs.
_WORD = re.compile(rf"(?P<kept>{_STRING})|(?<!\S)(?P<bind>\?|:(?P<number>\d+))(?!\S)", re.DOTALL)
_IDENTIFIER = re.compile(rf"\bIDENTIFIER\s*\(\s*(?P<name>{_STRING})\s*\)", re.IGNORECASE | re.DOTALL)


def inline(text: str, bindings: Bindings) -> str:
    """Return a statement that needs no bindings.

    ``IDENTIFIER('name')`` becomes the name. Text inside of strings and quoted names stays as it is.

    :raises SqlError: when a placeholder has no value, or the statement is to run for several rows.
    """
    values, used = _values(bindings), 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal used
        if match["kept"]:
            return match[0]
        if match["comment"]:
            return " "
        if not values:
            return match[0]
        used += 1
        return _bound(values, int(match["number"]) if match["number"] else used)

    plain = _TOKEN.sub(replaced, text)
    return _IDENTIFIER.sub(lambda match: _unquoted(match["name"]), plain).strip()


def inline_words(text: str, bindings: Bindings) -> str:
    """Return a PUT or GET that needs no bindings; comments stay, because a path may look like one.

    :raises SqlError: as :func:`inline` does.
    """
    values, used = _values(bindings), 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal used
        if match["kept"] or not values:
            return match[0]
        used += 1
        return _bound(values, int(match["number"]) if match["number"] else used)

    return _WORD.sub(replaced, text)


def _values(bindings: Bindings) -> list[Any]:
    rows = bindings.rows() if bindings else []
    if len(rows) > 1:
        raise unsupported("several rows of bound values in a statement that is not DML")
    return rows[0] if rows else []


def _bound(values: list[Any], number: int) -> str:
    if not 1 <= number <= len(values):
        raise SqlError("002049", "42601", "SQL compilation error:\nBind variable not set.")
    return _literal(values[number - 1])


def _unquoted(literal: str) -> str:
    return re.sub(r"\\(.)|''", lambda found: found[1] or "'", literal[1:-1], flags=re.DOTALL)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float, decimal.Decimal)):
        return str(value)
    if isinstance(value, bytes):
        return f"'{value.hex()}'"
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return f"'{value.isoformat()}'"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"
