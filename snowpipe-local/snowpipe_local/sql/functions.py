"""Snowflake functions that neither sqlglot nor DuckDB knows, written as DuckDB expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sqlglot
from sqlglot import exp

from snowpipe_local.engine.conversions import MAX_TEXT
from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.sql import once, timestamps
from snowpipe_local.sql.types import MARK

# Characters that need no check.
_SHORT = 10_000
_SHORT_REPLACEMENT = 16
_SLASHED = re.compile(r"\d{1,2}/\d{1,2}/\d{4}")
# The engine tries no call of error().
_TOO_LONG = "CAST('too long and would be truncated' AS INTEGER)"
_READ_AS_TEXT = (exp.Literal, exp.Column, exp.Placeholder, exp.Parameter)
_SEEDED = "CAST(CAST(hash(_0, row_number() OVER ()) AS HUGEINT) - 9223372036854775808 AS BIGINT)"
_WHOLE_DRAWN = "CAST(_0 + CAST(hash(_2) AS HUGEINT) % (_1 - _0 + 1) AS BIGINT)"
_DRAWN = "_0 + CAST(hash(_2) AS DOUBLE) / 18446744073709551616.0 * (_1 - _0)"
# With types of elements they are structured types.
_NESTED = (exp.DataType.Type.ARRAY, exp.DataType.Type.MAP, exp.DataType.Type.STRUCT, exp.DataType.Type.OBJECT)
_NOT_KEPT = (
    exp.DataType.Type.DECFLOAT, exp.DataType.Type.VECTOR, exp.DataType.Type.GEOGRAPHY,
    exp.DataType.Type.GEOMETRY,
)  # fmt: skip
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT_DRAWN = (
    "list_transform([_1], lambda g: array_to_string(list_transform(range(CAST(_0 AS BIGINT)), "
    f"lambda i: substring('{_LETTERS}', CAST(hash(g, i) % 62 AS INTEGER) + 1, 1)), ''))[1]"
)
_INTEGERS = "('BIGINT', 'UBIGINT', 'HUGEINT')"
_AS_DOUBLE = "CASE WHEN json_type(to_json(_0)) IN ('DOUBLE', 'BIGINT', 'UBIGINT') THEN CAST(_0 AS DOUBLE) END"
_KEYED = (
    "list_transform(list_filter(_elements(to_json(_0)), lambda x: json_type(x) <> 'NULL'), "
    "lambda x: {'k': _variant_key(_unmarked(x)), 'v': x})"
)
# Argument number n is the column _n.
# sqlglot's own forms of these write an operand twice.
TEMPLATES = {
    "DIV0": "CASE WHEN _1 = 0 AND NOT _0 IS NULL THEN 0 ELSE _0 / _1 END",
    "DIV0NULL": "CASE WHEN _1 = 0 OR _1 IS NULL THEN 0 ELSE _0 / _1 END",
    "ZEROIFNULL": "CASE WHEN _0 IS NULL THEN 0 ELSE _0 END",
    "NULLIFZERO": "CASE WHEN _0 = 0 THEN NULL ELSE _0 END",
}
_TEMPLATES = {
    **TEMPLATES,
    "BOOLAND": "(CAST(_0 AS BOOLEAN) AND CAST(_1 AS BOOLEAN))",
    "BOOLOR": "(CAST(_0 AS BOOLEAN) OR CAST(_1 AS BOOLEAN))",
    "XOR": "(CAST(_0 AS BOOLEAN) <> CAST(_1 AS BOOLEAN))",
    "BOOLNOT": "(NOT CAST(_0 AS BOOLEAN))",
    "ARRAY_SIZE": "CASE WHEN json_type(to_json(_0)) = 'ARRAY' THEN json_array_length(to_json(_0)) END",
    "TO_ARRAY": "_array(to_json(_0))",
    "TO_OBJECT": "_object(to_json(_0))",
    "TO_VARIANT": "to_json(_0)",
    "AS_INTEGER": f"CASE WHEN json_type(_0) IN {_INTEGERS} THEN CAST(_0 AS DECIMAL(38, 0)) END",
    **dict.fromkeys(("AS_DOUBLE", "AS_REAL"), _AS_DOUBLE),
    "AS_BOOLEAN": "CASE WHEN json_type(_0) = 'BOOLEAN' THEN CAST(_0 AS BOOLEAN) END",
    **dict.fromkeys(
        ("AS_VARCHAR", "AS_CHAR"), "CASE WHEN json_type(_0) = 'VARCHAR' THEN json_extract_string(_0, '$') END"
    ),
    "AS_ARRAY": "CASE WHEN json_type(_0) = 'ARRAY' THEN _0 END",
    "AS_OBJECT": "CASE WHEN json_type(_0) = 'OBJECT' THEN _0 END",
    "IS_OBJECT": "json_type(_0) = 'OBJECT'",
    "IS_BOOLEAN": "json_type(_0) = 'BOOLEAN'",
    **dict.fromkeys(("IS_VARCHAR", "IS_CHAR"), "json_type(_0) = 'VARCHAR'"),
    "IS_INTEGER": f"json_type(_0) IN {_INTEGERS}",
    **dict.fromkeys(
        ("IS_DECIMAL", "IS_DOUBLE", "IS_REAL"), "json_type(_0) IN ('DOUBLE', 'BIGINT', 'UBIGINT', 'HUGEINT')"
    ),
    "TYPEOF": "_variant_type(_0)",
    "OBJECT_AGG": (
        "coalesce(_object_of(map_from_entries(list(row(CAST(_0 AS VARCHAR), to_json(_1))) "
        "FILTER (WHERE NOT _0 IS NULL AND NOT _1 IS NULL))), CAST('{}' AS JSON))"
    ),
    "WIDTH_BUCKET": (
        "CASE WHEN _0 < _1 THEN 0 WHEN _0 >= _2 THEN _3 + 1 "
        "ELSE CAST(floor((_0 - _1) * _3 / (_2 - _1)) AS BIGINT) + 1 END"
    ),
    "BITWISE_AND_AGG": "bit_and(CAST(_0 AS HUGEINT))",
    "BITWISE_OR_AGG": "bit_or(CAST(_0 AS HUGEINT))",
    "BITWISE_XOR_AGG": "bit_xor(CAST(_0 AS HUGEINT))",
    "ARRAY_REVERSE": "_array_of(list_reverse(_elements(to_json(_0))))",
    "ARRAY_REMOVE": "_array_of(list_filter(_elements(to_json(_0)), lambda x: x <> _marked(to_json(_1))))",
    "ARRAY_REMOVE_AT": (
        "_array_of(list_filter(_elements(to_json(_0)), lambda x, i: i <> 1 + CAST("
        "CASE WHEN _1 < 0 THEN json_array_length(to_json(_0)) + _1 ELSE _1 END AS BIGINT)))"
    ),
    "M_D5_NUMBER_LOWER64": "CAST('0x' || right(md5(_0), 16) AS UBIGINT)",
    "M_D5_NUMBER_UPPER64": "CAST('0x' || left(md5(_0), 16) AS UBIGINT)",
    "GETBIT": "((CAST(_0 AS HUGEINT) >> CAST(_1 AS INTEGER)) & 1)",
    "ARRAY_APPEND": "_concatenated(to_json(_0), _enclosed('[', ']', _element(to_json(_1))))",
    "ARRAY_PREPEND": "_concatenated(_enclosed('[', ']', _element(to_json(_1))), to_json(_0))",
    "ARRAY_CONCAT": "_concatenated(to_json(_0), to_json(_1))",
    "ARRAY_CONTAINS": "list_contains(_elements(to_json(_0)), _marked(to_json(_1)))",
    "ARRAY_POSITION": "list_position(_elements(to_json(_0)), _marked(to_json(_1))) - 1",
    "ARRAY_OVERLAPS": "list_has_any(_elements(to_json(_0)), _elements(to_json(_1)))",
    "ARRAY_DISTINCT": "_array_of(list_distinct(_elements(to_json(_0))))",
    "ARRAY_COMPACT": "_array_of(list_filter(_elements(to_json(_0)), lambda x: json_type(x) <> 'NULL'))",
    "ARRAY_MAX": f"_unmarked(list_extract(list_sort({_KEYED}), -1).v)",
    "ARRAY_MIN": f"_unmarked(list_extract(list_sort({_KEYED}), 1).v)",
    "ARRAY_SLICE": (
        "_array_of(list_slice(_elements(to_json(_0)), _index(_1, json_array_length(to_json(_0))) + 1, "
        "_index(_2, json_array_length(to_json(_0)))))"
    ),
    "ARRAY_TO_STRING": (
        "array_to_string(list_transform(_elements(to_json(_0)), "
        "lambda x: replace(coalesce(json_extract_string(x, '$'), ''), chr(1), '')), _1)"
    ),
    "HLL": "approx_count_distinct(_0)",
    "BYTE_LENGTH": "strlen(CAST(_0 AS VARCHAR))",
    "TIME": "CAST(_0 AS TIME)",
    "HAVERSINE": (
        "2 * 6371.0 * asin(sqrt(sin(radians(_2 - _0) / 2) ** 2 "
        "+ cos(radians(_0)) * cos(radians(_2)) * sin(radians(_3 - _1) / 2) ** 2))"
    ),
    "TRY_BASE64_DECODE_STRING": "TRY(decode(from_base64(_0)))",
    "CBRT": "CASE WHEN round(cbrt(_0)) ** 3 = _0 THEN round(cbrt(_0)) ELSE cbrt(_0) END",
    "CURRENT_DATE": "CAST(now() AS DATE)",
}


def rewrite_all(tree: exp.Expr, of_star: Callable[[exp.Star], list[exp.Column]] | None = None) -> exp.Expr:
    """Rewrite every function call of a tree, from the leaves up.

    :param of_star: gives the columns for which a star stands that is an argument; None where no columns are.
    :raises SqlError: as :func:`rewrite`, and 000002 for such a star without columns.
    """
    for node in reversed(list(tree.walk(prune=lambda part: part.meta.get("engine") is True))):
        call = node.parent
        if isinstance(node, exp.Star) and call is not None and _takes_star(call):
            if of_star is None:
                raise unsupported("* as the argument of a function without a table")
            call.set("expressions", of_star(node))
            continue
        changed = rewrite(node)
        if changed is not node:
            if node is tree:
                return changed
            node.replace(changed)
    return tree


def _takes_star(call: exp.Expr) -> bool:
    is_hash = isinstance(call, exp.Anonymous) and call.name.upper() == "HASH"
    return isinstance(call, exp.StarMap) or is_hash


def rewrite(node: exp.Expr) -> exp.Expr:
    """Return the DuckDB form of one function call, or the node as it is.

    :raises SqlError: 000002 for a form of a function that has none.
    """
    form = _FORMS.get(type(node))
    if form is not None:
        return form(node)
    if isinstance(node, exp.Anonymous) and node.name.upper() in _NAMED:
        return _NAMED[node.name.upper()](node)
    if isinstance(node, exp.JSONExtract) and isinstance(node.expression, exp.JSONPath):
        # The arrow that sqlglot writes is also DuckDB's sign of a lambda.
        path = exp.Literal.string(json_path(node.expression))
        return exp.Anonymous(this="json_extract", expressions=[node.this, path])
    if not isinstance(node, exp.Func) or isinstance(node, exp.Cast):
        return node
    read = timestamps.read_call(node)
    if read is not None:
        return read
    template = _TEMPLATES.get(_name(node))
    if template is None:
        return node
    return fill(template, arguments(node))


def fill(template: str, given: list[exp.Expr]) -> exp.Expr:
    """Return a template with its argument columns ``_0``, ``_1``, .. replaced.

    :raises SqlError: 000002 when there are fewer arguments than the template needs.
    """
    body = exp.Paren(this=parsed(template).copy())
    marks = [node for node in body.find_all(exp.Column) if re.fullmatch(r"_\d+", node.name)]
    numbers = [int(mark.name[1:]) for mark in marks]
    if max(numbers, default=-1) >= len(given):
        raise unsupported("this number of arguments")
    is_of_rows = body.find(exp.AggFunc, exp.Filter) is not None
    times = [1 if is_of_rows else numbers.count(n) for n in range(len(given))]
    operands, around = once.bound(given, times)
    for mark, number in zip(marks, numbers, strict=True):
        mark.replace(exp.Paren(this=operands[number].copy()))
    return around(body.this.pop())


def arguments(node: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of a function call in order."""
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    found: list[exp.Expr] = []
    for name in node.arg_types:
        value = node.args.get(name)
        found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, exp.Expression)]
    return found


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@cache
def parsed(template: str) -> exp.Expr:
    """Return the tree of a query or an expression of the engine's, to be copied."""
    return sqlglot.parse_one(template, dialect="duckdb")


def json_path(path: exp.JSONPath) -> str:
    """Return the engine's text of a path, such as ``$.a[0]``."""
    text = "$"
    for part in path.expressions[1:]:
        key = part.this
        if isinstance(part, exp.JSONPathKey) and isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
            text += f".{key}"
        elif isinstance(part, exp.JSONPathSubscript) and isinstance(key, int):
            text += f"[{key}]"
        else:
            return str(sqlglot.parse_one(path.sql(dialect="duckdb"), dialect="duckdb").name)
    return text


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.upper()
    return node.sql_name().upper() if isinstance(node, exp.Func) else ""


def binary_of(node: exp.Expr) -> exp.Expr:
    """Return a value as BINARY: text is hexadecimal, as BINARY_INPUT_FORMAT is.

    :raises SqlError: 100115 for a literal that is not.
    """
    if isinstance(node, exp.Literal) and node.is_string:
        try:
            bytes.fromhex(node.name)
        except ValueError as error:
            raise SqlError(
                "100115", "22000", f"The following string is not a legal hex-encoded value: '{node.name}'"
            ) from error
        return timestamps.call("unhex", node)
    return timestamps.call("_binary", node)


def _cast(node: exp.Cast) -> exp.Expr:
    """A cast to text of a length cuts off the rest; a cast to BINARY reads hexadecimal text.

    :raises SqlError: 000002 for a type that the engine would take for another one.
    """
    kind = node.to
    if (
        isinstance(kind.this, exp.Interval)
        or (kind.expressions and kind.is_type(*_NESTED))
        or kind.is_type(*_NOT_KEPT)
    ):
        raise unsupported(f"data type {kind.sql(dialect='snowflake')}")
    if kind.is_type(*exp.DataType.INTEGER_TYPES):
        # INT and its synonyms are NUMBER(38, 0) ("Numeric data types").
        node.set("to", exp.DataType.build("DECIMAL(38, 0)"))
    if isinstance(node, exp.TryCast):
        return node
    if node.to.is_type(*exp.DataType.TEXT_TYPES):
        # CHAR is VARCHAR(1) ("String & binary data types").
        default = "1" if node.to.is_type(exp.DataType.Type.CHAR, exp.DataType.Type.NCHAR) else ""
        length = node.to.expressions[0].name if node.to.expressions else default
        if not length.isdigit():
            return node
        return timestamps.call("left", exp.cast(node.this.copy(), "TEXT"), exp.Literal.number(length))
    if node.to.is_type(exp.DataType.Type.BINARY, exp.DataType.Type.VARBINARY):
        return binary_of(node.this)
    if node.to.is_type(exp.DataType.Type.BOOLEAN) and isinstance(node.this, _READ_AS_TEXT):
        return timestamps.call("_boolean", node.this)
    return timestamps.read_cast(node)


def _convert_timezone(node: exp.ConvertTimezone) -> exp.Expr:
    """With two arguments the result is a TIMESTAMP_TZ ("CONVERT_TIMEZONE")."""
    if node.args.get("source_tz") is not None:
        return node
    return timestamps.call(
        "_in_zone", timestamps.call("_ltz", node.args["timestamp"]), node.args["target_tz"]
    )


def _sysdate(node: exp.CurrentTimestamp) -> exp.Expr:
    """SYSDATE is a TIMESTAMP_NTZ in UTC ("SYSDATE")."""
    if not node.args.get("sysdate"):
        return node
    return exp.AtTimeZone(this=exp.CurrentTimestamp(), zone=exp.Literal.string("UTC"))


def _tz_from_parts(node: exp.TimestampTzFromParts) -> exp.Expr:
    """Without a zone it is that of the session ("TIMESTAMP_FROM_PARTS")."""
    zone = node.args.get("zone")
    clock = _clock_parts(node, node.args)
    if zone is None:
        return timestamps.call("_tz", clock)
    return timestamps.call("_in_zone", exp.AtTimeZone(this=clock, zone=zone), zone)


def _parse_json(node: exp.ParseJSON) -> exp.Expr:
    """The words null, true and false are read in any case (observed by the connector's own tests)."""
    if isinstance(node.this, exp.Literal) and node.this.name.strip().lower() in {"null", "true", "false"}:
        node.set("this", exp.Literal.string(node.this.name.strip().lower()))
    mode = node.args.get("expression") or exp.Literal.string("s")
    if not isinstance(mode, exp.Literal) or mode.name not in {"d", "s"}:
        raise compilation_error("argument of function PARSE_JSON needs to be 'd' or 's'", "001015", "22023")
    tried, once = "_try" if node.args.get("safe") else "", "" if mode.name == "d" else "_once"
    return timestamps.call(f"{tried}_parse_json{once}", node.this)


def _to_binary(node: exp.ToBinary) -> exp.Expr:
    written = node.args.get("format") or exp.Literal.string("HEX")
    is_safe = node.args.get("safe")
    node.set("safe", None)
    read = timestamps.call("_binary", node.this) if written.name.upper() == "HEX" else node
    return timestamps.call("TRY", read) if is_safe else read


def _date_add(node: exp.DateAdd) -> exp.Expr:
    """A text is a timestamp with its time ("DATEADD")."""
    if isinstance(node.this, exp.Null) or (isinstance(node.this, exp.Literal) and node.this.is_string):
        node.set("this", exp.cast(node.this.copy(), "TIMESTAMP"))
    return node


def _date_diff(node: exp.DateDiff) -> exp.Expr:
    """A text that is a date as ``::DATE`` reads one is that date, also with slashes ("DATEDIFF")."""
    for part in (node.this, node.expression):
        if isinstance(part, exp.Literal) and _SLASHED.fullmatch(part.name):
            part.replace(timestamps.call("_date", part.copy()))
    return node


def _bounded(node: exp.Repeat | exp.Pad | exp.Space) -> exp.Expr:
    """Refuse a text that is longer than a VARCHAR may be, before the engine makes room for it."""
    name = {exp.Repeat: "times", exp.Pad: "expression", exp.Space: "this"}[type(node)]
    count = node.args[name]
    fill_pattern = node.args.get("fill_pattern")
    if isinstance(fill_pattern, exp.Literal) and not fill_pattern.name:
        # Nothing is filled in ("LPAD").
        return exp.Left(this=node.this.copy(), expression=count.copy())
    is_short = isinstance(count, exp.Literal) and count.is_int and int(count.name) <= _SHORT
    if is_short and not (isinstance(node, exp.Repeat) and not isinstance(node.this, exp.Literal)):
        return node
    (count, text), around = once.bound([count, node.this], [2, 2])
    each = "greatest(length(CAST(_1 AS VARCHAR)), 1)" if isinstance(node, exp.Repeat) else "1"
    bounded = fill(
        f"CAST(CASE WHEN _0 * {each} > {MAX_TEXT} THEN {_TOO_LONG} ELSE _0 END AS INTEGER)", [count, text]
    )
    node.set("this", text)
    node.set(name, bounded)
    return around(node)


def _bounded_replacement(node: exp.Replace | exp.RegexpReplace) -> exp.Expr:
    """Refuse a text that may grow far beyond a VARCHAR by what it is given, before the engine makes room."""
    new = node.args.get("replacement")
    if new is None or (isinstance(new, exp.Literal) and len(new.name) <= _SHORT_REPLACEMENT):
        return node
    (text, new), around = once.bound([node.this, new], [2, 2])
    size = "length(CAST(_0 AS VARCHAR)) * length(CAST(_1 AS VARCHAR))"
    refused = f"CASE WHEN {size} > {4 * MAX_TEXT} THEN CAST({_TOO_LONG} AS VARCHAR) ELSE _1 END"
    node.set("this", text)
    node.set("replacement", fill(refused, [text, new]))
    return around(node)


def _months_between(node: exp.MonthsBetween) -> exp.Expr:
    """Six digits of a fraction ("MONTHS_BETWEEN", Examples)."""
    times = (timestamps.call("_ntz", part) for part in (node.this, node.expression))
    months = timestamps.call("_months_between", *times)
    return exp.Cast(this=months, to=exp.DataType.build("DECIMAL(38, 6)"))


def _add_months(node: exp.AddMonths) -> exp.Expr:
    """The last day of a month becomes the last day of another one ("ADD_MONTHS", usage notes)."""
    given = node.this
    if isinstance(given, exp.Literal) and given.is_string:
        given = exp.cast(given.copy(), "TIMESTAMP")
    (given, months), around = once.bound([given, node.expression], [5, 3])
    moved = exp.AddMonths(this=given.copy(), expression=months.copy())
    days = fill(
        "CASE WHEN day(last_day(_0)) = day(_0) THEN day(last_day(_1)) - day(_1) ELSE 0 END", [given, moved]
    )
    whole = exp.Add(this=moved, expression=exp.Interval(this=exp.paren(days), unit=exp.var("DAY")))
    return around(exp.paren(whole, copy=False))


def _clock_parts(node: exp.Expr, parts: Mapping[str, exp.Expr]) -> exp.Expr:
    """Parts may be less or more than a clock shows ("TIMESTAMP_FROM_PARTS", usage notes)."""
    days = exp.DateFromParts(
        **{name: parts[name].copy() for name in ("year", "month", "day")}, allow_overflow=True
    )
    given = [parts.get(name) or exp.Literal.number(0) for name in ("hour", "min", "sec", "nano")]
    form = (
        "CAST(_0 AS TIMESTAMP) + to_microseconds(3600000000 * CAST(_1 AS BIGINT) "
        "+ 60000000 * CAST(_2 AS BIGINT) + 1000000 * CAST(_3 AS BIGINT) + CAST(_4 AS BIGINT) // 1000)"
    )
    return exp.cast(fill(form, [days, *given]), "TIMESTAMP")


def _from_parts(node: exp.TimestampFromParts | exp.TimestampLtzFromParts) -> exp.Expr:
    if node.args.get("year") is None:
        return node
    clock = _clock_parts(node, node.args)
    return clock if isinstance(node, exp.TimestampFromParts) else timestamps.call("_ltz", clock)


def _count(node: exp.Count) -> exp.Expr:
    """COUNT of several values counts the rows in which none is NULL ("COUNT", arguments)."""
    values = [node.this, *node.expressions]
    if len(values) == 1:
        return node
    missing = exp.or_(*(exp.Is(this=value.copy(), expression=exp.null()) for value in values))
    return exp.Count(this=exp.If(this=missing, true=exp.null(), false=exp.Literal.number(1)))


def _contains(node: exp.Contains) -> exp.Expr:
    for part in (node.this, node.expression):
        if isinstance(part, exp.Null):
            part.replace(exp.cast(part.copy(), "TEXT"))
    return node


def _interval(node: exp.Interval) -> exp.Expr:
    """``INTERVAL '1 day, 2 hours'``: the engine separates the parts by blanks."""
    if isinstance(node.this, exp.Literal) and "," in node.name:
        node.set("this", exp.Literal.string(node.name.replace(",", " ")))
    return node


def _as_number(node: exp.Anonymous) -> exp.Expr:
    """AS_NUMBER and AS_DECIMAL, which are NUMBER(38, 0) without a precision ("AS_DECIMAL , AS_NUMBER")."""
    value, *sizes = node.expressions
    if not all(isinstance(size, exp.Literal) and size.is_int for size in sizes):
        raise unsupported(f"{node.name.upper()} with a precision that is not a literal")
    kind = ", ".join([size.name for size in sizes] + ["38", "0"][len(sizes) :])
    number = f"CAST(CAST(_0 AS VARCHAR) AS DECIMAL({kind}))"
    return fill(f"CASE WHEN _variant_type(_0) IN ('INTEGER', 'DECIMAL') THEN {number} END", [value])


def _rounded(node: exp.Ceil | exp.Floor) -> exp.Expr:
    """CEIL and FLOOR to a number of digits: what ROUND gives, or one unit beside it."""
    scale = node.args.get("decimals")
    if scale is None:
        return node
    digits = int(scale.sql()) if re.fullmatch(r"-?\d+", scale.sql()) else None
    if digits is None:
        raise unsupported(f"{node.key.upper()} to a number of digits that is not a literal")
    unit = "1" + "0" * -digits if digits < 0 else f"0.{'0' * (digits - 1)}1" if digits else "1"
    beside = f"< _0 THEN round(_0, {digits}) + {unit}"
    if isinstance(node, exp.Floor):
        beside = f"> _0 THEN round(_0, {digits}) - {unit}"
    form = f"round(CASE WHEN round(_0, {digits}) {beside} ELSE round(_0, {digits}) END, {digits})"
    return fill(form, [node.this])


def _random(node: exp.Rand) -> exp.Expr:
    """RANDOM(seed) gives the same values in the same order each time ("RANDOM").

    :raises SqlError: 000002 in an aggregate function, where no row has a number.
    """
    if node.this is None:
        return node
    if isinstance(node.find_ancestor(exp.AggFunc, exp.Query), exp.AggFunc):
        raise unsupported("RANDOM(seed) in an aggregate function: select it in a subquery")
    return node if isinstance(node.parent, (exp.Uniform, exp.Randstr)) else fill(_SEEDED, [node.this])


def _drawn(node: exp.Uniform | exp.Randstr) -> exp.Expr:
    """UNIFORM and RANDSTR: the same for the same number of their generator ("UNIFORM", "RANDSTR")."""
    drawn = node.args.get("gen" if isinstance(node, exp.Uniform) else "generator") or exp.Rand()
    if isinstance(drawn, exp.Rand):
        drawn = exp.Anonymous(this="random") if drawn.this is None else fill(_SEEDED, [drawn.this])
    if isinstance(node, exp.Randstr):
        return fill(_TEXT_DRAWN, [node.this, drawn])
    bounds = [node.this, node.expression]
    is_whole = all(one.find(exp.Literal) is None or "." not in one.sql() for one in bounds)
    return fill(_WHOLE_DRAWN if is_whole else _DRAWN, [*bounds, drawn])


def _substring(node: exp.Substring) -> exp.Expr:
    """A start before the first character gives an empty text; the engine gives what is there ("SUBSTR")."""
    start = node.args.get("start")
    if start is None or (isinstance(start, exp.Literal) and not start.is_string):
        return node
    (text, start), around = once.bound([node.this, start], [3, 3])
    size = exp.Length(this=exp.cast(text.copy(), "TEXT"))
    node.set("this", text)
    node.set("start", fill("CASE WHEN _0 < 0 AND _1 < -_0 THEN _1 + 1 ELSE _0 END", [start, size]))
    return around(node)


def _sha2(node: exp.SHA2) -> exp.Expr:
    size = node.args.get("length")
    if size is not None and size.name not in {"0", "256"}:
        raise unsupported(f"SHA2 of {size.sql(dialect='snowflake')} bits")
    return node


def _trim(node: exp.Trim) -> exp.Expr:
    """TRIM takes any value as text; the text of a VARIANT is the string itself."""
    if isinstance(node.this, exp.JSONExtract):
        node.set("this", exp.JSONExtractScalar(this=node.this.this, expression=node.this.expression))
    else:
        node.set("this", exp.cast(node.this, exp.DataType.Type.TEXT))
    return node


def _regexp_substr(node: exp.RegexpExtract | exp.RegexpExtractAll) -> exp.Expr:
    """The parameter ``e`` without a number means the first group ("REGEXP_SUBSTR", arguments)."""
    parameters = node.args.get("parameters")
    group = node.args.get("group")
    is_whole = group is None or (isinstance(group, exp.Literal) and group.name == "0")
    if is_whole and isinstance(parameters, exp.Literal) and "e" in parameters.name:
        node.set("group", exp.Literal.number(1))
    return node


def _ratio(node: exp.Window) -> exp.Expr:
    call = node.this
    if not isinstance(call, exp.Anonymous) or call.name.upper() != "RATIO_TO_REPORT":
        return node
    total = node.copy()
    total.set("this", exp.Sum(this=call.expressions[0].copy()))
    share = exp.Nullif(this=total, expression=exp.Literal.number(0))
    return exp.Div(this=call.expressions[0].copy(), expression=share, typed=False, safe=True)


def _literal(node: exp.Expr) -> exp.Expr:
    """ARRAY_CONSTRUCT, ``[..]``, OBJECT_CONSTRUCT and ``{..}``: JSON, whose elements may differ in type."""
    if isinstance(node, exp.Array):
        values = [timestamps.call("to_json", part) for part in node.expressions]
        return _joined("[]", [timestamps.call("_element", value) for value in values])
    return _object([_pair(part) for part in node.expressions])


def _object(pairs: list[list[exp.Expr]]) -> exp.Expr:
    """Return the object of these keys and texts of JSON; what has a NULL in a pair is left out."""
    names = {str(key.name): (key, value) for key, value in pairs if isinstance(key, exp.Literal)}
    # A key whose value is SQL NULL is left out, as in Snowflake; a JSON null stays.
    written = [
        str(key.name) for key, value in pairs if isinstance(key, exp.Literal) and not value.find(exp.Null)
    ]
    twice = (
        next((name for name in written if written.count(name) > 1), None)
        if len(names) < len(written)
        else None
    )
    if twice is not None:
        raise SqlError("100069", "22P02", f"Duplicate field key '{twice}'")
    if len(names) == len(pairs):
        ordered = sorted(names, key=str.encode)
        return _joined("{}", [timestamps.call("_pair", *names[name]) for name in ordered])
    form = "_object_of(map_from_entries(list_filter(_0, lambda x: NOT x[1] IS NULL AND NOT x[2] IS NULL)))"
    return fill(form, [exp.Array(expressions=[exp.Tuple(expressions=pair) for pair in pairs])])


def _kept(node: exp.JSONObject) -> exp.Expr:
    """OBJECT_CONSTRUCT_KEEP_NULL: a value that is NULL is a JSON null, a key that is NULL is left out."""
    written = [(pair.this, pair.expression) for pair in node.expressions]
    return _object(
        [
            [key, timestamps.call("_element", timestamps.call("to_json", value))]
            for key, value in written
            if not isinstance(key, exp.Null)
        ]
    )


def _pair(part: exp.Expr) -> list[exp.Expr]:
    """Return the key and the JSON of the value of one argument of OBJECT_CONSTRUCT."""
    if isinstance(part, exp.PropertyEQ):
        key, value = part.this, part.expression
    elif isinstance(part.parent, exp.StarMap):
        key, value = part.this, part
    else:
        raise unsupported("OBJECT_CONSTRUCT of these arguments")
    if isinstance(key, (exp.Identifier, exp.Literal)):
        key = exp.Literal.string(key.name.rstrip(MARK))
    return [key, timestamps.call("to_json", value)]


def _joined(brackets: str, parts: list[exp.Expr]) -> exp.Expr:
    """Return the texts of elements as one array, or those of pairs without NULLs as one object."""
    if not parts:
        return exp.cast(exp.Literal.string(brackets), "JSON")
    joined = timestamps.call("concat_ws", exp.Literal.string(","), *parts)
    return timestamps.call("_enclosed", *map(exp.Literal.string, brackets), joined)


def _keys(node: exp.Anonymous) -> exp.Expr:
    target, *keys = node.expressions
    if not keys or not all(isinstance(key, exp.Literal) for key in keys):
        raise unsupported(f"{node.name.upper()} with keys that are not literals")
    if node.name.upper() == "OBJECT_DELETE":
        patch = timestamps.call("json_object", *(part for key in keys for part in (key, exp.null())))
        return fill("_unmarked(json_merge_patch(_marked(to_json(_0)), _1))", [target, patch])
    return fill("_picked(_marked(to_json(_0)), _1)", [target, exp.Array(expressions=keys)])


def _hash(node: exp.Anonymous) -> exp.Expr:
    """HASH is a signed number of 64 bits, the same for equal numbers of any type ("HASH", usage notes)."""
    keys = (timestamps.call("_hash_key", value) for value in node.expressions)
    return fill("CAST(CAST(_0 AS HUGEINT) - 9223372036854775808 AS BIGINT)", [timestamps.call("hash", *keys)])


def _to_date(node: exp.Anonymous) -> exp.Expr:
    """TO_DATE of a timestamp and of a text of digits, which sqlglot leaves as they are."""
    if len(node.expressions) != 1:
        return node
    read = _cast(exp.cast(node.expressions[0].copy(), "DATE"))
    return timestamps.call("TRY", read) if node.name.upper().startswith("TRY_") else read


def _extract(node: exp.Extract) -> exp.Expr:
    """The parts that sqlglot leaves as they are written ("Supported date and time parts")."""
    part = _PARTS.get(node.name.upper())
    if part is not None:
        node.set("this", exp.var(part))
    return node


def _inserted(node: exp.ObjectInsert) -> exp.Expr:
    """A key that is there is replaced only if the fourth argument is TRUE ("OBJECT_INSERT")."""
    given = [node.this, node.args["key"], node.args["value"], node.args.get("update_flag") or exp.false()]
    return fill("_inserted(_marked(to_json(_0)), CAST(_1 AS VARCHAR), to_json(_2), _3)", given)


def _of_no_rows(node: exp.Expr) -> exp.Expr:
    """LISTAGG of no rows is an empty text, ARRAY_AGG an empty array ("LISTAGG", "ARRAY_AGG")."""
    call = node
    while isinstance(call, _AROUND):
        call = call.this
    is_inner = isinstance(node.parent, _AROUND) and node.arg_key == "this"
    if is_inner or not isinstance(call, (exp.GroupConcat, exp.ArrayAgg, exp.ArrayUniqueAgg)):
        return _ratio(node) if isinstance(node, exp.Window) else node
    if isinstance(call, exp.GroupConcat):
        # The engine reads a call that is written twice once.
        bounded = f"CASE WHEN strlen(_0) > {MAX_TEXT} THEN {_TOO_LONG}::VARCHAR ELSE coalesce(_0, '') END"
        return fill(bounded, [node.copy()])
    return timestamps.call("to_json", exp.Coalesce(this=node.copy(), expressions=[exp.Array()]))


def _base64(node: exp.Base64Encode) -> exp.Expr:
    """BASE64_ENCODE takes texts as well, which are in UTF-8 ("BASE64_ENCODE")."""
    if len(arguments(node)) > 1:
        raise unsupported("BASE64_ENCODE with a length of lines or an alphabet")
    return fill("to_base64(unhex(hex(_0)))", [node.this])


def _sort_array(node: exp.ArraySort) -> exp.Expr:
    """ARRAY_SORT by the order of VARIANT values; a JSON null is the last."""
    if node.args.get("asc") is not None:
        raise unsupported("ARRAY_SORT in another order")
    keyed = "list_transform(_elements(to_json(_0)), lambda x: {'k': _variant_key(_unmarked(x)), 'v': x})"
    return fill(f"_array_of(list_transform(list_sort({keyed}), lambda y: y['v']))", [node.this])


_PARTS = {"TZH": "TIMEZONE_HOUR", "TZM": "TIMEZONE_MINUTE", "EPOCH": "EPOCH_SECOND"}
_AROUND = (exp.Window, exp.WithinGroup, exp.Filter)
_LACKING = (
    exp.ArrayExcept, exp.ArrayIntersect, exp.ArrayInsert, exp.ArraysZip, exp.Flatten, exp.ArrayFilter,
    exp.Transform, exp.Reduce,
)  # fmt: skip


def _lacking(node: exp.Func) -> exp.Expr:
    """Refuse what would be an array of the engine's, not of VARIANT values."""
    raise unsupported(node.sql_name())


_NAMED: dict[str, Callable[[exp.Anonymous], exp.Expr]] = {
    "OBJECT_DELETE": _keys, "OBJECT_PICK": _keys, "TO_DATE": _to_date,
    "TRY_TO_DATE": _to_date, "HASH": _hash, "AS_NUMBER": _as_number, "AS_DECIMAL": _as_number,
}  # fmt: skip


_FORMS: dict[type[exp.Expr], Callable[[Any], exp.Expr]] = {
    **dict.fromkeys((*_AROUND, exp.GroupConcat, exp.ArrayAgg, exp.ArrayUniqueAgg), _of_no_rows),
    **dict.fromkeys((exp.Uniform, exp.Randstr), _drawn),
    **dict.fromkeys((exp.RegexpExtract, exp.RegexpExtractAll), _regexp_substr),
    **dict.fromkeys((exp.TimestampFromParts, exp.TimestampLtzFromParts), _from_parts),
    **dict.fromkeys((exp.Repeat, exp.Pad, exp.Space), _bounded),
    **dict.fromkeys((exp.Replace, exp.RegexpReplace), _bounded_replacement),
    **dict.fromkeys((exp.Array, exp.Struct, exp.StarMap), _literal),
    **dict.fromkeys((exp.Cast, exp.TryCast, exp.JSONCast), _cast),
    **dict.fromkeys((exp.TsOrDsToDate, exp.TsOrDsToTime), timestamps.read_by_format),
    **dict.fromkeys((exp.Ceil, exp.Floor), _rounded),
    **dict.fromkeys(_LACKING, _lacking),
    exp.JSONObject: _kept, exp.Substring: _substring, exp.SHA2: _sha2, exp.ToChar: timestamps.to_char,
    exp.Rand: _random, exp.Trim: _trim, exp.AddMonths: _add_months, exp.Count: _count,
    exp.Contains: _contains, exp.Interval: _interval, exp.ParseJSON: _parse_json,
    exp.ConvertTimezone: _convert_timezone, exp.CurrentTimestamp: _sysdate,
    exp.TimestampTzFromParts: _tz_from_parts, exp.ToBinary: _to_binary, exp.Extract: _extract,
    exp.StrToTime: timestamps.parsed, exp.DateAdd: _date_add, exp.DateDiff: _date_diff,
    exp.Base64Encode: _base64,
    exp.MonthsBetween: _months_between, exp.ObjectInsert: _inserted, exp.ArraySort: _sort_array,
    # The engine's own gives NULL for no row.
    exp.CountIf: lambda node: exp.Count(this=exp.If(this=node.this, true=exp.Literal.number(1))),
    # A position counts from the beginning only ("GET").
    exp.GetExtract: lambda node: fill("_member(_0, CAST(_1 AS VARCHAR))", [node.this, node.expression]),
    exp.JSONKeys: lambda node: fill("to_json(json_keys(_0))", [node.this]),
}  # fmt: skip
