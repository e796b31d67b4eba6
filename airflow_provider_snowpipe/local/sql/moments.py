"""TO_TIMESTAMP and its variants of a value whose type shows when the query runs; time functions of loads."""

from __future__ import annotations

import datetime as dt
import re

from sqlglot import exp

_START = dt.datetime(1970, 1, 1)
_ZONED = frozenset({"TO_TIMESTAMP_LTZ", "TO_TIMESTAMP_TZ"})
_NAMES = _ZONED | {"TO_TIMESTAMP", "TO_TIMESTAMP_NTZ"}
# Text of the argument: a VARIANT shows its text in quotes, and DuckDB reads no blank before an offset.
_TEXT = (
    r"regexp_replace(trim(nullif(CAST(_0 AS VARCHAR), 'null'), '\"'), ' ([+-][0-9]{2}:?[0-9]{2})$', '\1')"
).replace(r"\"", '"')
_INTEGER = f"TRY_CAST({_TEXT} AS HUGEINT)"
# An integer in a text is seconds, milliseconds, microseconds or nanoseconds by its size; a number is always
# seconds (Snowflake documentation, "TO_TIMESTAMP", usage notes).
_BY_SIZE = (
    f"CASE WHEN abs({_INTEGER}) < 31536000000 OR typeof(_0) NOT IN ('VARCHAR', 'JSON') "
    f"THEN {_INTEGER} * 1000000 WHEN abs({_INTEGER}) < 31536000000000 THEN {_INTEGER} * 1000 "
    f"WHEN abs({_INTEGER}) < 31536000000000000 THEN {_INTEGER} ELSE {_INTEGER} // 1000 END"
)
_EPOCH = (
    f"CASE WHEN regexp_full_match({_TEXT}, '-?[0-9]+') THEN make_timestamp(CAST({_BY_SIZE} AS BIGINT)) "
    f"WHEN regexp_full_match({_TEXT}, '-?[0-9]+[.][0-9]+') "
    f"THEN make_timestamp(CAST(round(CAST({_TEXT} AS DOUBLE) * 1000000) AS BIGINT)) END"
)
# An offset counts for a moment with a time zone, and is left aside for one without.
_LOCAL = f"coalesce({_EPOCH}, CAST({_TEXT} AS TIMESTAMP))"
_INSTANT = f"coalesce(({_EPOCH}) AT TIME ZONE 'UTC', CAST({_TEXT} AS TIMESTAMPTZ))"


_OF_TEXT = "CASE WHEN typeof(_0) IN ('VARCHAR', 'JSON') THEN {moment} ELSE CAST(_0 AS {kind}) END"
_OFFSET = re.compile(r"\s+([+-]\d{2}:?\d{2})\Z")
_WHOLE = re.compile(r"-?\d+")
# Numbers below these are seconds, milliseconds and microseconds; from the last one on, nanoseconds.
_UNITS = ((31_536_000_000, 1_000_000), (31_536_000_000_000, 1_000), (31_536_000_000_000_000, 1))


def read_text(node: exp.Cast) -> str | None:
    """Let a cast to DATE or TIMESTAMP read a text as TO_DATE and TO_TIMESTAMP do ("TO_TIMESTAMP").

    A literal is changed in place; for a column the DuckDB expression of the whole cast is returned, of which
    the column is ``_0``.
    """
    zoned = node.to.is_type(exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)
    local = node.to.is_type(exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ)
    if not zoned and not local and not node.to.is_type(exp.DataType.Type.DATE):
        return None
    value = node.this
    if isinstance(value, exp.Literal) and value.is_string:
        text = value.name.strip()
        if _WHOLE.fullmatch(text):
            value.set("this", _iso(int(text)))
        elif zoned:
            value.set("this", _OFFSET.sub(r"\1", text))
    elif isinstance(value, exp.Column) and zoned:
        return _OF_TEXT.format(moment=_INSTANT, kind="TIMESTAMPTZ")
    elif isinstance(value, exp.Column) and local:
        return _OF_TEXT.format(moment=_LOCAL, kind="TIMESTAMP")
    return None


def _iso(number: int) -> str:
    micros = next((number * by for below, by in _UNITS if abs(number) < below), number // 1000)
    try:
        return (_START + dt.timedelta(microseconds=micros)).isoformat(sep=" ") + "+00:00"
    except OverflowError:
        return str(number)


def template(node: exp.Expr) -> str | None:
    """Return the DuckDB expression of a call with one argument ``_0``, or None for any other node."""
    if isinstance(node, exp.UnixToTime):
        target = node.args.get("target_type")
        is_text = isinstance(node.this, exp.Literal) and node.this.is_string
        if not is_text or node.args.get("scale") is not None or target is None:
            return None
        zoned = target.is_type(exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPLTZ)
        return _expression(zoned=zoned, tried=False)
    name = node.name.upper() if isinstance(node, exp.Anonymous) else ""
    wanted = name.removeprefix("TRY_")
    if wanted not in _NAMES or len(node.expressions) != 1:
        return None
    return _expression(zoned=wanted in _ZONED, tried=wanted != name)


def _expression(*, zoned: bool, tried: bool) -> str:
    moment = _INSTANT if zoned else _LOCAL
    return f"TRY({moment})" if tried else moment


def later(node: exp.Expr, seconds: float) -> exp.Expr:
    """Let the time functions of a statement follow the service's clock, by which history is dated.

    :param seconds: how far that clock was moved on.
    """
    if not isinstance(node, (exp.CurrentTimestamp, exp.CurrentDate)):
        return node
    ahead = exp.Interval(this=exp.Literal.string(str(round(seconds * 1e6))), unit=exp.var("MICROSECONDS"))
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Add(this=exp.CurrentTimestamp(), expression=ahead), "DATE")
    return exp.paren(exp.Add(this=node.copy(), expression=ahead), copy=False)


def at_start(node: exp.Expr) -> exp.Expr:
    """Replace a time function by the present: in a pipe or a load it has the value of its beginning."""
    now = dt.datetime.now(dt.UTC)
    if isinstance(node, exp.CurrentTimestamp):
        return exp.cast(exp.Literal.string(now.isoformat()), "TIMESTAMPTZ")
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Literal.string(now.date().isoformat()), "DATE")
    return node
