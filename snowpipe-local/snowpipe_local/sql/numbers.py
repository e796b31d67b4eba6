"""Numbers as Snowflake computes them: 38 digits, scales of quotients, whole numbers as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from snowpipe_local.errors import SqlError
from snowpipe_local.sql import functions
from snowpipe_local.sql.types import CHOICES, OPERATIONS, SAME, choices, type_of

# -- What has no room -------------------------------------------------------------------------------------

_DIGITS = 38
_MOST = 10**_DIGITS
# The engine's types of whole numbers that hold more than 38 digits.
_WIDER = frozenset({"HUGEINT", "UHUGEINT"})


def check_literal(node: exp.Literal) -> None:
    """Refuse a literal that neither NUMBER nor FLOAT has room for.

    :raises SqlError: 100039.
    """
    if node.is_string or "," in node.name:
        # A text, or the rest of a list of numbers that have room.
        return
    mantissa, _, exponent = node.name.lower().partition("e")
    if exponent:
        fits = float(node.name) != float("inf")
    else:
        fits = len(mantissa.partition(".")[0].lstrip("0")) <= _DIGITS
    if not fits:
        raise SqlError("100039", "22003", f"Numeric value '{node.name}' is out of range")


def check_rows(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Refuse a result of 39 digits, for which the engine has room.

    :raises SqlError: 100046.
    """
    for number, kind in enumerate(kinds):
        if kind in _WIDER and any(row[number] is not None and abs(row[number]) >= _MOST for row in rows):
            raise SqlError("100046", "22003", "Number out of representable range")


# -- Whole numbers: the engine has four sizes of them, Snowflake one --------------------------------------
#
# Literals and counts are of 32 or 64 bits in the engine, and what it computes from two of them is as well.
# Where the result may need more, an operand is made one of 128 bits. Columns of tables are decimal numbers.


def _operation(node: exp.Expr) -> exp.Expr:
    """Return ``+``, ``-`` and ``*`` with 128 bits where they may need them, and Snowflake's scale.

    The scale of a product is not more than 12 or the larger of the two ("Arithmetic operators",
    "Multiplication"); the engine keeps the sum.
    """
    left, right, made = (type_of(part) for part in (node.this, node.expression, node))
    if left.bits and right.bits and made.bits > max(left.bits, right.bits):
        node.set(
            "this",
            exp.paren(
                exp.Add(this=node.this.copy(), expression=exp.cast(exp.Literal.number(0), "INT128")),
                copy=False,
            ),
        )
    kept = (left.scale or 0) + (right.scale or 0) if isinstance(node, exp.Mul) else 0
    return node if made.scale is None or made.scale >= kept else decimal(node, made.scale)


# -- The values of a choice: the engine would round those of a larger scale --------------------------------
#
# Beside a NUMBER(38, 0) its common type of 2.5 is NUMBER(38, 0) as well; Snowflake's has the largest scale.


def _of_one_scale(node: exp.Expr) -> None:
    """Cast the values of a choice to their common type, where that has a larger scale."""
    values = [(value, type_of(value).scale) for value in choices(node)]
    scales = {scale for _, scale in values if scale is not None}
    unknown = [value for value, scale in values if scale is None]
    most = max(scales, default=0)
    is_typed = any(scale is not None and not _is_literal(value) for value, scale in values)
    if not (is_typed or most) or (not unknown and len(scales) < 2) or not all(map(_may_count, unknown)):
        return
    common: exp.Expr = decimal(exp.Literal.number(0), most)
    for value in unknown:
        common = exp.Add(this=common, expression=exp.paren(_type(value), copy=False))
    for value, scale in values:
        if unknown:
            value.replace(_cast(value, common.copy()))
        elif scale is not None and scale < most and not _is_literal(value):
            value.replace(decimal(value, most))


def decimal(value: exp.Expr, scale: int) -> exp.Expr:
    """Return a cast to a NUMBER of 38 digits; ``exp.cast`` would leave a cast to another NUMBER as it is."""
    return exp.Cast(this=value.copy(), to=exp.DataType.build(f"DECIMAL({_DIGITS}, {scale})"))


def _align_rows(node: exp.Values) -> None:
    """Cast the computed values of a column of VALUES to the largest scale of the column."""
    rows = [row.expressions for row in node.expressions if isinstance(row, exp.Tuple)]
    for values in zip(*rows, strict=False):
        if all(isinstance(value, (exp.Literal, exp.Null)) for value in values):
            continue
        scales = [type_of(value).scale for value in values]
        most = max((scale for scale in scales if scale is not None), default=0)
        for value, scale in zip(values, scales, strict=True):
            if scale is not None and scale < most and not _is_literal(value):
                value.replace(decimal(value, most))


def _remainder(node: exp.Mod) -> None:
    """Give both operands of ``%`` the type that their sum has: of other types the engine makes a DOUBLE."""
    left, right = (type_of(part).scale for part in (node.this, node.expression))
    if left is not None and right is not None:
        if not (_is_literal(node.this) and _is_literal(node.expression)):
            for part in (node.this, node.expression):
                part.replace(decimal(part, max(left, right)))
    elif _may_count(node.this) and _may_count(node.expression):
        kind = exp.Add(this=exp.paren(_type(node.this)), expression=exp.paren(_type(node.expression)))
        for part in (node.this, node.expression):
            part.replace(_cast(part, kind.copy()))


def _interpolated(node: exp.Expr) -> None:
    """Let MEDIAN and PERCENTILE_CONT compute with three more digits than their argument has.

    The engine rounds what lies between two values to the scale of the values.
    """
    if isinstance(node, exp.ApproxQuantile):
        node.set("this", exp.cast(node.this.copy(), "DOUBLE"))
        return
    value = node.this
    if isinstance(node, exp.WithinGroup):
        ordered = node.expression.expressions[0] if isinstance(value, exp.PercentileCont) else None
        value = ordered.this if isinstance(ordered, exp.Ordered) else None
    if value is not None:
        more = exp.Cast(this=exp.Literal.number(1), to=exp.DataType.build("DECIMAL(4, 3)"))
        value.replace(exp.Mul(this=exp.paren(value.copy(), copy=False), expression=more))


def _is_literal(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Neg) else node, exp.Literal)


def _may_count(node: exp.Expr) -> bool:
    """Return True for what may be a number, as far as its type is known."""
    while isinstance(node, SAME):
        node = node.this
    kind = type_of(node)
    return kind.is_number or (not kind.kind and isinstance(node, exp.Column))


def computed(node: exp.Expr) -> exp.Expr:
    """Return arithmetic and averages with Snowflake's digits and scale, any other node as it is.

    The operands are done already: calls come from the leaves up.
    """
    if isinstance(node, OPERATIONS):
        return _operation(node)
    is_whole = isinstance(node, (exp.Ceil, exp.Floor)) and type_of(node.this).bits > 0
    if is_whole and not node.args.get("decimals"):
        # The engine would make a DOUBLE of it.
        whole: exp.Expr = node.this
        return whole
    if isinstance(node, CHOICES):
        _of_one_scale(node)
    elif isinstance(node, exp.Mod):
        _remainder(node)
    elif isinstance(node, exp.Values):
        _align_rows(node)
    elif isinstance(node, (exp.Median, exp.WithinGroup, exp.ApproxQuantile)):
        _interpolated(node)
    elif isinstance(node, exp.Round) or (isinstance(node, exp.Anonymous) and node.name.upper() == "TRUNC"):
        return _to_digits(node)
    return _typed(node) if isinstance(node, _QUOTIENTS) else node


def _to_digits(node: exp.Expr) -> exp.Expr:
    """Return ROUND and TRUNC as a choice where their digits are not constants, as the engine's are."""
    given = functions.arguments(node)
    if len(given) != 2 or _is_literal(given[1]):
        return node
    call = "round" if isinstance(node, exp.Round) else "trunc"
    branches = " ".join(f"WHEN {n} THEN {call}(_0, {n})" for n in range(1 - _DIGITS, _DIGITS))
    others = f"CASE WHEN _1 >= {_DIGITS} THEN _0 WHEN _1 <= -{_DIGITS} THEN _0 - _0 END"
    return functions.fill(f"CASE CAST(_1 AS INTEGER) {branches} ELSE {others} END", given)


# -- Whole numbers as arguments: the engine takes no decimal number there ---------------------------------

_BITS = ("this", "expression")
_ARGUMENTS: dict[type[exp.Expr], tuple[tuple[str, ...], str]] = {
    exp.Left: (("expression",), "BIGINT"), exp.Right: (("expression",), "BIGINT"),
    exp.Substring: (("start", "length"), "BIGINT"), exp.Stuff: (("start", "length"), "BIGINT"),
    exp.StrPosition: (("position",), "BIGINT"), exp.SplitPart: (("part_index",), "BIGINT"),
    exp.Strtok: (("part_index",), "BIGINT"), exp.Chr: (("expressions",), "INT"),
    exp.BitwiseAnd: (_BITS, "INT128"), exp.BitwiseOr: (_BITS, "INT128"), exp.BitwiseXor: (_BITS, "INT128"),
    exp.BitwiseNot: (("this",), "INT128"), exp.Factorial: (("this",), "INT"),
    exp.Ntile: (("this",), "BIGINT"), exp.Lag: (("offset",), "BIGINT"), exp.Lead: (("offset",), "BIGINT"),
    exp.NthValue: (("offset",), "BIGINT"), exp.RegexpExtract: (("position", "occurrence"), "BIGINT"),
    exp.RegexpInstr: (("position", "occurrence"), "BIGINT"), exp.RegexpCount: (("position",), "BIGINT"),
    exp.GenerateSeries: (("start", "end", "step"), "BIGINT"),
    exp.DateAdd: (("expression",), "BIGINT"), exp.TimeAdd: (("expression",), "BIGINT"),
}  # fmt: skip


def as_whole_number(node: exp.Expr) -> None:
    """Cast the arguments of a function that are to be whole numbers, but for literals."""
    names, kind = _ARGUMENTS.get(type(node), ((), ""))
    for name in names:
        given = node.args.get(name)
        for value in given if isinstance(given, list) else [given]:
            is_whole = isinstance(value, exp.Literal) and value.is_int
            is_cast = isinstance(value, exp.Cast) and value.to == exp.DataType.build(kind)
            if value is not None and not is_whole and not is_cast:
                value.replace(exp.cast(value.copy(), kind))


# -- Types of ``/`` and AVG: of fixed-point numbers they are fixed-point numbers, where DuckDB makes DOUBLE --
#
# The scale of a quotient is that of the numerator and 6 more, up to 12, and never less than that of the
# numerator (Snowflake documentation, "Arithmetic operators"); AVG does the same with its argument. Which
# types the operands have, DuckDB knows when it binds the statement, so the type is written as an expression
# that has it and that is never computed.

# The variance that each of them is computed by; of whole numbers it has 6 digits (Snowpark's own tests).
_SPREADS: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.Variance: exp.Variance, exp.VariancePop: exp.VariancePop, exp.Stddev: exp.Variance,
    exp.StddevSamp: exp.Variance, exp.StddevPop: exp.VariancePop,
}  # fmt: skip
_QUOTIENTS: tuple[type[exp.Expr], ...] = (exp.Div, exp.Avg, exp.Window, exp.Filter, *_SPREADS)
_TYPED = "cast_to_type"
_SCALED = "round((_0) * CAST(1 AS DECIMAL(38, 6)), 12)"
_AT_LEAST = f"{_SCALED} + (_0) * CAST(1 AS DECIMAL(38, 0))"


def _typed(node: exp.Expr) -> exp.Expr:
    """Return a division, an AVG or an AVG .. OVER with Snowflake's type; any other node as it is.

    The operands are done already: calls come from the leaves up.
    """
    if isinstance(node, exp.Div):
        left, right, scale = (type_of(node.this), type_of(node.expression), type_of(node).scale)
        if "VARCHAR" in {left.kind, right.kind}:
            return node
        if scale is not None:
            return decimal(node, scale)
        form, given = _scale(node.this), [_type(node.this), _type(node.expression)]
        # A fixed-point literal changes nothing; a FLOAT makes the quotient a FLOAT.
        is_fixed = isinstance(node.expression, exp.Literal) and "e" not in node.expression.name.lower()
        return _cast(node, functions.fill(form if is_fixed else f"{form} + trunc(_1)", given))
    call = node
    while isinstance(call, (exp.Window, exp.Filter)):
        call = call.this
    if isinstance(node.parent, (exp.Window, exp.Filter)):
        return node
    if type(node) in _SPREADS and type_of(node.this).is_number and type_of(node.this).scale == 0:
        made = _SPREADS[type(node)]
        variance = decimal(made(this=node.this.copy()), 6)
        return variance if isinstance(node, made) else exp.Sqrt(this=exp.cast(variance, "DOUBLE"))
    if not isinstance(call, exp.Avg):
        return node
    value = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
    scale = type_of(call).scale
    if scale is not None:
        return decimal(node, scale)
    # An aggregate beside an aggregate; in a window the column itself.
    one = _type(value) if isinstance(node, exp.Window) else exp.AnyValue(this=_type(value))
    return _cast(node, functions.fill(_scale(value), [one]))


def _cast(node: exp.Expr, kind: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=_TYPED, expressions=[node.copy(), kind])


def _scale(node: exp.Expr) -> str:
    # A second copy of a chain of divisions would double its length with every link; two links reach 12.
    links = sum(_is_typed(part) for part in node.find_all(exp.Anonymous))
    return "_0" if links > 1 else _SCALED if links else _AT_LEAST


def _is_typed(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.this == _TYPED


def _type(node: exp.Expr) -> exp.Expr:
    """Return an expression of the same type that leaves out what only makes the value."""
    kind: exp.Expr = node.copy().transform(
        lambda part: part.expressions[1] if _is_typed(part) else part, copy=False
    )
    return kind
