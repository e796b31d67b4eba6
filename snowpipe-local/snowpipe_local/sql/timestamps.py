"""TIMESTAMP values inside expressions: casts, TO_TIMESTAMP, output formats, and the offset of TIMESTAMP_TZ.

The macros of :mod:`engine.values` convert values by the type that they have when the query is bound. A
TIMESTAMP_TZ is a pair of instant and offset, which the engine's own functions do not take.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from sqlglot import exp

from snowpipe_local.errors import unsupported
from snowpipe_local.sql import once
from snowpipe_local.sql.show import DEFAULT_PARAMETERS
from snowpipe_local.sql.types import CHOICES, COMPARED, MOVED, TIMES, choices, tested, type_of
from snowpipe_local.tables import PLAIN_DATE, PLAIN_TIME, ColumnType

E = TypeVar("E", bound=exp.Expr)
KINDS = TIMES | {"FLOAT", "BINARY"}
_MACROS = {
    "TO_TIMESTAMP": "_ntz", "TO_TIMESTAMP_NTZ": "_ntz", "TO_TIMESTAMP_LTZ": "_ltz", "TO_TIMESTAMP_TZ": "_tz",
}  # fmt: skip
_TYPES = {
    exp.DataType.Type.TIMESTAMP: "_ntz", exp.DataType.Type.TIMESTAMPNTZ: "_ntz",
    exp.DataType.Type.TIMESTAMPLTZ: "_ltz", exp.DataType.Type.TIMESTAMPTZ: "_tz",
}  # fmt: skip
# Macros that the engine chooses by the type of their argument, and the engine's type of what they return.
_BY_TYPE = {
    "_ntz": "TIMESTAMP", "_ltz": "TIMESTAMPTZ", "_tz": "TIMESTAMPTZ", "_date": "DATE", "_time": "TIME",
    "_formatted": "VARCHAR", "_cut": "", "_binary": "BLOB",
}  # fmt: skip
_OF_VARIANT = frozenset({"to_json", "to_variant"})
_MIXED = (exp.Case, exp.If, exp.DecodeCase, exp.Coalesce, exp.Greatest, exp.Least, exp.Nullif)
# These pass a value on, or count it, whatever its type is.
_PASSED_ON = (
    exp.Count, exp.Min, exp.Max, exp.AnyValue, exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.Lag,
    exp.Lead, exp.Cast,
)  # fmt: skip
_ZONE_PARTS = {"TIMEZONE_HOUR": "h", "TIMEZONE_MINUTE": "m"}
_OFFSET = re.compile(r"%[:-]?z")
_PLAIN_DATE = re.compile(PLAIN_DATE)
_FORMAT = re.compile(
    r'YYYY|YY|MMMM|MON|MM|DD|DY|HH24|HH12|HH|MI|SS|\.?FF[0-9]?|AM|PM|TZH:TZM|TZHTZM|TZH|"[^"]*"|.',
    re.IGNORECASE | re.DOTALL,
)
_STRFTIME = {
    "YYYY": "%Y", "YY": "%y", "MMMM": "%B", "MON": "%b", "MM": "%m", "DD": "%d", "DY": "%a", "HH24": "%H",
    "HH12": "%I", "HH": "%H", "MI": "%M", "SS": "%S", "AM": "%p", "PM": "%p",
    "TZHTZM": "\x01", "TZH:TZM": "\x02", "TZH": "\x03",
}  # fmt: skip
_BINARY_FORMATS = {"HEX": "hex", "BASE64": "to_base64", "UTF-8": "decode", "UTF8": "decode"}
_FRACTIONS = {"0": "", "3": "%g", "6": "%f", "9": "%n", "": "%n"}


def output_format(written: str) -> str:
    r"""Return the engine's form of a format such as ``YYYY-MM-DD HH24:MI:SS.FF3 TZHTZM``.

    \x01, \x02 and \x03 stand for the offset, which only the macros know.

    :raises SqlError: 000002 for another number of digits of a fraction than 0, 3, 6 and 9.
    """
    parts: list[str] = []
    for part in _FORMAT.findall(written):
        upper = part.upper()
        if upper in _STRFTIME:
            parts.append(_STRFTIME[upper])
        elif "FF" in upper:
            digits = upper.rpartition("FF")[2]
            if digits not in _FRACTIONS:
                raise unsupported(f"the format {upper.lstrip('.')}")
            point = "." if upper[0] == "." and digits != "0" else ""
            parts.append(point + _FRACTIONS[digits])
        else:
            parts.append(part.strip('"').replace("%", "%%") if len(part) > 1 else part.replace("%", "%%"))
    return "".join(parts)


def of_parameters(kind: str, parameters: Mapping[str, Any]) -> str:
    """Return the format in which a session writes values of a type as text ("Date and time output formats").

    :param kind: ``DATE``, ``TIME``, ``TIMESTAMP_NTZ``, ``TIMESTAMP_LTZ`` or ``TIMESTAMP_TZ``.
    """
    name = f"{kind}_OUTPUT_FORMAT"
    given = str(parameters.get(name) or DEFAULT_PARAMETERS[name])
    general = "TIMESTAMP_OUTPUT_FORMAT"
    found = given or str(parameters.get(general) or DEFAULT_PARAMETERS[general])
    return "YYYY-MM-DD" if found == "AUTO" and kind == "DATE" else found


# What the engine's cast of a literal reads as the macro does.
_PLAIN_TIME = re.compile(rf"{PLAIN_TIME}(?:\.\d{{1,6}})?")


def read_cast(node: exp.Cast, *, is_text: bool = False) -> exp.Expr:
    """Return a cast to a TIMESTAMP or of a text to DATE as the macro that does it; others as they are."""
    name = _TYPES.get(node.to.this)
    if name is not None:
        return _cut(node, _tried(node, call(name, node.this)))
    if node.to.is_type(exp.DataType.Type.TIME):
        is_literal = isinstance(node.this, exp.Literal) and not node.to.expressions
        is_time = is_literal and _PLAIN_TIME.fullmatch(node.this.name) is not None
        return node if is_time else _cut(node, _tried(node, call("_time", node.this)))
    value = node.this.unnest()
    is_plain = isinstance(value, exp.Literal) and _PLAIN_DATE.fullmatch(value.name) is not None
    may_be_text = isinstance(value, (exp.Literal, exp.Column, exp.Placeholder, exp.Parameter))
    is_read = (is_text or may_be_text) and not is_plain
    return _tried(node, call("_date", value)) if is_read and node.to.is_type(exp.DataType.Type.DATE) else node


def named_type(kind: ColumnType, written: exp.DataType) -> exp.DataType:
    """Return the type of a cast that is to be translated: a TIMESTAMP as written, the engine's otherwise."""
    if kind.kind.startswith("TIMESTAMP"):
        return written.copy()
    return exp.DataType.build(kind.duckdb, dialect="duckdb")


def read_call(node: exp.Expr) -> exp.Expr | None:
    """Return TO_TIMESTAMP and its variants of one argument, or of a scale, as the macro that does it.

    :returns: None for others.
    """
    if isinstance(node, exp.UnixToTime):
        target, scale = node.args.get("target_type"), node.args.get("scale")
        if target is not None and isinstance(scale, exp.Literal):
            zoned = call("_zoned", clock := call("_scaled", node.this, scale), exp.Literal.number(0))
            return {"_tz": zoned, "_ltz": call("_instant", zoned)}.get(_TYPES.get(target.this, ""), clock)
        is_text = isinstance(node.this, exp.Literal) and node.this.is_string
        is_zoned = target is not None and target.is_type(exp.DataType.Type.TIMESTAMPTZ)
        if scale is not None or target is None or not (is_text or is_zoned):
            return None
        return call(_TYPES.get(target.this, "_ntz"), node.this)
    name = node.name.upper() if isinstance(node, exp.Anonymous) else ""
    macro = _MACROS.get(name.removeprefix("TRY_"))
    if macro is None or len(node.expressions) != 1:
        return None
    read = call(macro, node.expressions[0])
    return call("TRY", read) if name.startswith("TRY_") else read


def parsed(node: exp.StrToTime) -> exp.Expr:
    """Return TO_TIMESTAMP of a text in a format, with the offset that the text has or that of the session.

    :raises SqlError: 000002 for a format with an offset that is not its end.
    """
    kind = _TYPES.get(node.args["target_type"].this, "_ntz") if node.args.get("target_type") else "_ntz"
    written = node.args["format"].name if isinstance(node.args.get("format"), exp.Literal) else ""
    if written.upper() == "AUTO":
        return _read(node, kind)
    node = _before_noon(node)
    if _OFFSET.search(written) is None:
        return call("_zoned_local", node) if kind == "_tz" else node
    if _OFFSET.split(written)[1:] != [""]:
        raise unsupported("a format with an offset that is not its end")
    read = node.copy()
    read.set("target_type", exp.DataType.build("TIMESTAMPTZ"))
    zoned = call("_at_offset", read, call("_minutes_east", node.this))
    return {"_tz": zoned, "_ltz": read}.get(kind) or call("_clock", zoned)


def _before_noon(node: E) -> E:
    """Return what reads a text, with AM where its format has an hour of twelve alone: 12 is midnight then."""
    written = node.args["format"].name if isinstance(node.args.get("format"), exp.Literal) else ""
    if "%I" not in written or "%p" in written or _OFFSET.search(written):
        return node
    node = node.copy()
    node.set("this", exp.DPipe(this=node.this, expression=exp.Literal.string(" AM")))
    node.set("format", exp.Literal.string(f"{written} %p"))
    return node


def read_by_format(node: exp.TsOrDsToDate | exp.TsOrDsToTime, *, is_text: bool = False) -> exp.Expr:
    """Return TO_DATE and TO_TIME without a format, or with AUTO, as the macro that reads it.

    :param is_text: the value is known to be a text; others than columns may be what the engine's cast reads.
    """
    written = node.args.get("format")
    if written is None:
        is_read = (
            is_text or node.args.get("safe") or isinstance(node.this.unnest(), (exp.Literal, exp.Column))
        )
    else:
        is_read = written.name.upper() == "AUTO"
    if not is_read:
        return _before_noon(node)
    return _read(node, "_date" if isinstance(node, exp.TsOrDsToDate) else "_time")


def _read(node: exp.Expr, macro: str) -> exp.Expr:
    read = call(macro, node.this)
    return call("TRY", read) if node.args.get("safe") else read


def _cut(node: exp.Cast, read: exp.Expr) -> exp.Expr:
    """Leave out the digits of a fraction that the type does not keep ("Date & time data types")."""
    kept = ColumnType.from_sqlglot(node.to).kept_micros
    return read if kept == 1 else call("_cut", read, exp.Literal.number(kept))


def _tried(node: exp.Cast, read: exp.Expr) -> exp.Expr:
    return call("TRY", read) if isinstance(node, exp.TryCast) else read


def aliased(query: exp.Expr, name: str) -> exp.Subquery:
    """Return a query as a relation of this exact name."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))


def call(name: str, *given: exp.Expr) -> exp.Expr:
    """Return a call of a macro."""
    return exp.Anonymous(this=name, expressions=[value.copy() for value in given])


def kind_of(node: exp.Expr | None) -> str | None:
    """Return the type word of an expression that is known to be one of :data:`KINDS`, None for others."""
    kind = type_of(node).kind
    return kind if kind in KINDS else None


def _values(node: exp.Expr) -> list[exp.Expr]:
    """Return what an expression is computed from; of a choice its values."""
    return choices(node) if isinstance(node, CHOICES) else list(node.iter_expressions())


def change(node: exp.Expr, parameters: Mapping[str, Any]) -> exp.Expr:
    """Return an expression over times as the engine can compute it; any other one as it is."""
    if isinstance(node, (exp.Cast, exp.ToChar)):
        return _written(node, parameters)
    if isinstance(node, exp.Anonymous) and node.name in _BY_TYPE and _has_aggregate(node):
        return _of_aggregate(node, kind_of(node.expressions[0]))
    is_joined = isinstance(node, (exp.DPipe, exp.Concat, exp.ConcatWs))
    is_listed = isinstance(node, (exp.ArrayAgg, exp.ArrayUniqueAgg, exp.GroupConcat))
    if is_joined or is_listed or _name(node) in _OF_VARIANT:
        children = list(node.iter_expressions())
        if is_joined and {kind_of(child) for child in children} == {"BINARY"}:
            return node
        for child in children:
            kind = kind_of(child)
            if kind is not None and (is_joined or kind == "BINARY" or kind.startswith("TIMESTAMP")):
                child.replace(text_of(child, kind, parameters))
        return node
    _compare_instants(node)
    zoned = [child for child in _values(node) if kind_of(child) == "TIMESTAMP_TZ"]
    # SET a = b is not a comparison.
    if not zoned or (isinstance(node.parent, exp.Update) and node.arg_key == "expressions"):
        return node
    return _of_zoned(node, zoned)


def _compare_instants(node: exp.Expr) -> None:
    """Let CASE and DECODE compare a TIMESTAMP_TZ as an instant."""
    if isinstance(node, (exp.Case, exp.DecodeCase)):
        value, others = tested(node)
        for child in (value, *others):
            if child is not None and kind_of(child) == "TIMESTAMP_TZ":
                child.replace(call("_instant", child))


def _of_zoned(node: exp.Expr, zoned: list[exp.Expr]) -> exp.Expr:
    """Return an expression with values that are a TIMESTAMP_TZ."""
    zone_part = _ZONE_PARTS.get(node.name.upper()) if isinstance(node, exp.Extract) else None
    if zone_part is not None:
        return call("_zone_part", node.expression, exp.Literal.string(zone_part))
    is_moved = isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.expression, exp.Interval)
    if is_moved or isinstance(node, MOVED):
        (given,), around = once.bound([node.this], [2])
        node.set("this", call("_clock", given))
        return around(call("_added", node, given))
    read, changed = _operands(node, zoned)
    for operand in changed:
        is_text = isinstance(operand, exp.Literal)
        operand.replace(call("_ltz" if is_text else read, operand))
    return node


def _has_aggregate(node: exp.Expr) -> bool:
    made = (call for call in node.find_all(exp.Anonymous) if call.name in {"arg_max", "arg_min"})
    return node.find(exp.AggFunc, exp.Window) is not None or any(made)


def _of_aggregate(node: exp.Anonymous, kind: str | None) -> exp.Expr:
    """Return a call without the choice by type, which the engine does not make for an aggregate."""
    value: exp.Expr = node.expressions[0]
    if node.name == "_formatted":
        written = node.expressions[1]
        if kind in TIMES:
            return call(f"_format_{kind.lower()}", value, written)
        return call("strftime", value, exp.Literal.string(re.sub("[\x01-\x03]", "", written.name)))
    if node.name == "_cut":
        return value
    if node.name == "_binary":
        return value if kind == "BINARY" else call("_hex", value)
    if kind == "TIMESTAMP_TZ":
        clock = call("_clock", value)
        return {"_tz": value, "_ltz": call("_instant", value), "_ntz": clock}.get(
            node.name, exp.cast(clock, _BY_TYPE[node.name], dialect="duckdb")
        )
    if kind is None:
        return call(f"_read{node.name}", exp.cast(value.copy(), "VARCHAR", dialect="duckdb"))
    plain = exp.cast(value.copy(), _BY_TYPE[node.name], dialect="duckdb")
    return call("_zoned_local", plain) if node.name == "_tz" else plain


def _operands(node: exp.Expr, zoned: list[exp.Expr]) -> tuple[str, list[exp.Expr]]:
    """Return the macro that an expression with a TIMESTAMP_TZ in it needs, and for which of its operands."""
    if isinstance(node, COMPARED):
        texts = [
            child for child in node.iter_expressions() if isinstance(child, exp.Literal) and child.is_string
        ]
        return "_instant", zoned + texts
    part = node.this.name.upper() if isinstance(node, exp.Extract) else ""
    if (
        isinstance(node, exp.TimeToUnix)
        or "epoch" in _name(node)
        or _name(node) == "_hash_key"
        or part.startswith("EPOCH")
    ):
        return "_instant", zoned
    if isinstance(node, _MIXED):
        others = [child for child in _values(node) if child not in zoned]
        return "_tz", [child for child in others if kind_of(child) in TIMES]
    is_ours = isinstance(node, exp.Anonymous) and node.name.startswith("_")
    takes_any = is_ours or isinstance(node, _PASSED_ON) or not isinstance(node, exp.Func)
    return "_clock", [] if takes_any else zoned


def _name(node: exp.Expr) -> str:
    return node.name.lower() if isinstance(node, exp.Anonymous) else ""


def _written(node: exp.Cast | exp.ToChar, parameters: Mapping[str, Any]) -> exp.Expr:
    kind = kind_of(node.this)
    if kind is None:
        return node
    if isinstance(node, exp.Cast) and not node.to.is_type(*exp.DataType.TEXT_TYPES):
        if node.to.is_type(exp.DataType.Type.VARIANT) and (kind == "BINARY" or kind.startswith("TIMESTAMP")):
            return call("to_json", text_of(node.this, kind, parameters))
        if kind == "TIMESTAMP_TZ" and node.to.is_type(exp.DataType.Type.DATE, exp.DataType.Type.TIME):
            node.set("this", call("_clock", node.this))
        return node
    text = text_of(node.this, kind, parameters)
    if isinstance(node, exp.Cast) and node.to.expressions:
        return exp.Left(this=text, expression=node.to.expressions[0].this.copy())
    return text


def text_of(node: exp.Expr, kind: str, parameters: Mapping[str, Any]) -> exp.Expr:
    """Return the text of a value of one of :data:`KINDS`, as the session writes it."""
    if kind not in TIMES:
        return call("hex" if kind == "BINARY" else "_float_text", node)
    return call(
        f"_format_{kind.lower()}", node, exp.Literal.string(output_format(of_parameters(kind, parameters)))
    )


def to_char(node: exp.ToChar) -> exp.Expr:
    """Return TO_CHAR with a format of dates and times, or of BINARY; texts that are joined are one format.

    :raises SqlError: 000002 for a format of numbers, or one that is not a constant.
    """
    if node.args.get("format") is None:
        return node
    written = constant_text(node.args["format"])
    if written is None:
        raise unsupported("TO_CHAR with a format that is not a constant text")
    if written.upper() in _BINARY_FORMATS:
        return call(_BINARY_FORMATS[written.upper()], node.this)
    if re.search(r"(?<![Ff])[90X$]", written):
        raise unsupported("TO_CHAR with a format of numbers")
    return call("_formatted", node.this, exp.Literal.string(output_format(written)))


def constant_text(node: exp.Expr) -> str | None:
    """Return the text that an expression of texts alone stands for, None for any other expression."""
    node = node.unnest()
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEXT_TYPES) and not node.to.expressions:
        return constant_text(node.this)
    if not isinstance(node, (exp.DPipe, exp.Concat)):
        return None
    parts = [constant_text(part) for part in node.iter_expressions()]
    return None if None in parts else "".join(filter(None, parts))


_EPOCHS = {"EPOCH_SECOND": 1_000_000, "EPOCH_MILLISECOND": 1_000}


def cut_epoch(node: exp.Extract) -> None:
    """Replace the seconds or milliseconds since 1970, which the engine rounds and Snowflake cuts."""
    micros = _EPOCHS.get(node.name.upper().removesuffix("S"))
    if micros is not None:
        value = node.expression
        is_text = isinstance(value.unnest(), exp.Literal) or kind_of(value) == "DATE"
        value = exp.cast(value.copy(), "TIMESTAMP", dialect="duckdb") if is_text else value
        node.replace(call("_whole_epoch", value, exp.Literal.number(micros)))


def later(node: exp.CurrentTimestamp | exp.CurrentDate, seconds: float) -> exp.Expr:
    """Let the time functions of a statement follow the service's clock, by which history is dated.

    :param seconds: how far that clock was moved on.
    """
    if not seconds:
        return node
    ahead = exp.Interval(this=exp.Literal.string(str(round(seconds * 1e6))), unit=exp.var("MICROSECONDS"))
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Add(this=exp.CurrentTimestamp(), expression=ahead), "DATE")
    return exp.paren(exp.Add(this=node.copy(), expression=ahead), copy=False)


def at_start(node: exp.Expr) -> exp.Expr:
    """Replace a time function by the present: in a pipe or a load it has the value of its beginning."""
    now = dt.datetime.now(dt.UTC)
    if isinstance(node, exp.CurrentTimestamp):
        return exp.cast(exp.Literal.string(now.isoformat()), "TIMESTAMPLTZ")
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Literal.string(now.date().isoformat()), "DATE")
    return node
