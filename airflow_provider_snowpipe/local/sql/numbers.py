"""Numbers as Snowflake computes them: 38 digits, scales of quotients, whole numbers as arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.sql import functions
from airflow_provider_snowpipe.local.tables import Column

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
        has_room = float(node.name) != float("inf")
    else:
        has_room = len(mantissa.partition(".")[0].lstrip("0")) <= _DIGITS
    if not has_room:
        raise SqlError("100039", "22003", f"Numeric value '{node.name}' is out of range")


def check_rows(kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Refuse a result of 39 digits, for which the engine has room.

    :param kinds: the engine's types of the columns.
    :raises SqlError: 100046.
    """
    for number, kind in enumerate(kinds):
        if kind in _WIDER and any(row[number] is not None and abs(row[number]) >= _MOST for row in rows):
            raise SqlError("100046", "22003", "Number out of representable range")


# -- Whole numbers: the engine has four sizes of them, Snowflake one --------------------------------------
#
# Literals and counts are of 32 or 64 bits in the engine, and what it computes from two of them is as well.
# Where the result may need more, an operand is made one of 128 bits. Columns of tables are decimal numbers.


class _Whole(NamedTuple):
    """The greatest magnitude of a whole number, and the bits of the engine's type."""

    most: int
    bits: int


_SHORT_BITS, _LONG_BITS, _WIDE_BITS = 32, 64, 128
_COUNTS = (
    exp.Count, exp.Length, exp.ByteLength, exp.ArraySize, exp.RegexpCount, exp.StrPosition, exp.RowNumber,
    exp.Rank, exp.DenseRank, exp.Year, exp.Month, exp.Day, exp.Extract,
)  # fmt: skip
_NAMED = (exp.Literal, exp.DateDiff, *_COUNTS)
_COUNTED, _LASTED = 2**40, 2**60
_SIZE = "whole"
_OPERATIONS = (exp.Add, exp.Sub, exp.Mul)
# Of a whole number of the engine's, these are a DOUBLE in the engine.
_WHOLE_ALREADY = (exp.Ceil, exp.Floor)


def _names_of_whole(nodes: Sequence[exp.Expr], columns: Collection[str]) -> dict[str, _Whole]:
    """Return the names that a query gives to whole numbers of the engine's own types, but for columns."""
    found: dict[str, _Whole] = {}
    for node in nodes:
        if isinstance(node, exp.Alias) and isinstance(node.this, _NAMED):
            size = _whole(node.this, {})
            if size is not None:
                found[node.alias] = _widest([size, found.get(node.alias, size)])
        elif isinstance(node, exp.Values):
            named = [name.name for name in node.args["alias"].columns] if node.args.get("alias") else []
            rows = [row.expressions for row in node.expressions if isinstance(row, exp.Tuple)]
            for number, values in enumerate(zip(*rows, strict=False)):
                sizes = [size for value in values if (size := _whole(value, {})) is not None]
                if len(sizes) == len(values):
                    found[named[number] if number < len(named) else f"COLUMN{number + 1}"] = _widest(sizes)
    return {name: size for name, size in found.items() if name not in columns}


def _widen(node: exp.Expr, names: Mapping[str, _Whole]) -> None:
    """Give ``+``, ``-`` and ``*`` of whole numbers an operand of 128 bits where the result may need it."""
    left, right = _whole(node.this, names), _whole(node.expression, names)
    if left is None or right is None:
        return
    most = left.most * right.most if isinstance(node, exp.Mul) else left.most + right.most
    bits = max(left.bits, right.bits)
    if bits < _WIDE_BITS and most >= 2 ** (bits - 1):
        # A name may after all be of another type: to add nothing changes no value, as a cast would.
        nothing = exp.cast(exp.Literal.number(0), "INT128")
        node.set("this", exp.paren(exp.Add(this=node.this.copy(), expression=nothing), copy=False))
        bits = _WIDE_BITS
    node.meta[_SIZE] = _Whole(min(most, _MOST), bits)


def _whole(node: exp.Expr | None, names: Mapping[str, _Whole]) -> _Whole | None:
    """Return the size of an expression whose value the engine keeps as a whole number; None for others."""
    if isinstance(node, exp.Literal):
        return _literal(int(node.name)) if node.is_int else None
    if isinstance(node, (exp.Paren, exp.Neg, exp.Window, exp.Abs)):
        return _whole(node.this, names)
    if isinstance(node, exp.Column):
        return names.get(node.name)
    if isinstance(node, _OPERATIONS):
        size: _Whole | None = node.meta.get(_SIZE)
        return size
    if isinstance(node, (exp.If, exp.Case, exp.Coalesce)):
        sizes = [_whole(value, names) for value in choices(node)]
        known = [size for size in sizes if size is not None]
        return _widest(known) if known and len(known) == len(sizes) else None
    if isinstance(node, exp.DateDiff):
        return _Whole(_LASTED, _LONG_BITS)
    return _Whole(_COUNTED, _LONG_BITS) if isinstance(node, _COUNTS) else None


def _literal(value: int) -> _Whole:
    bits = next((bits for bits in (_SHORT_BITS, _LONG_BITS) if value <= 2 ** (bits - 1)), _WIDE_BITS)
    return _Whole(value, bits)


def _widest(sizes: Sequence[_Whole]) -> _Whole:
    return _Whole(max(size.most for size in sizes), max(size.bits for size in sizes))


# -- Scale of a product -----------------------------------------------------------------------------------
#
# It is the sum of those of the factors, but not more than 12 or the larger of the two (Snowflake
# documentation, "Arithmetic operators", "Multiplication"); the engine keeps the sum.

_MOST_SCALE = 12
_SCALE = "scale"


def _scales(nodes: Sequence[exp.Expr], columns: Iterable[Column]) -> dict[str, int | None]:
    """Return the scales of columns by their names; None for a name that is not always of one scale."""
    found: dict[str, set[int | None]] = {}
    for column in columns:
        scale = column.type.scale if column.type.kind == "NUMBER" else None
        found.setdefault(column.name, set()).add(scale)
    for node in nodes:
        if isinstance(node, exp.TableAlias):
            for named in node.args.get("columns") or ():
                found.setdefault(named.name, set()).add(None)
        elif isinstance(node, exp.Alias) and node.alias in found and not _is_same(node):
            found[node.alias].add(None)
    return {name: scales.pop() if len(scales) == 1 else None for name, scales in found.items()}


def _is_same(node: exp.Alias) -> bool:
    return isinstance(node.this, exp.Column) and node.this.name == node.alias


def _note_scale(node: exp.Alias, scales: dict[str, int | None]) -> None:
    """Remember the scale of what a query gives a name."""
    if not _is_same(node):
        scale = _scale_of(node.this, scales)
        scales[node.alias] = scale if scales.get(node.alias, scale) == scale else None


def _scaled(node: exp.Expr, names: Mapping[str, int | None]) -> exp.Expr:
    """Return a product with Snowflake's scale, where those of both factors are known; a sum as it is."""
    left, right = (_scale_of(part, names) for part in (node.this, node.expression))
    if left is None or right is None:
        return node
    node.meta[_SCALE] = left + right if isinstance(node, exp.Mul) else max(left, right)
    most = max(left, right, _MOST_SCALE)
    return decimal(node, most) if node.meta[_SCALE] > most else node


def _scale_of(node: exp.Expr, names: Mapping[str, int | None]) -> int | None:
    if isinstance(node, _OF_SAME_SCALE):
        return _scale_of(node.this, names)
    if isinstance(node, exp.Column):
        return names.get(node.name)
    if isinstance(node, exp.Count):
        return 0
    if isinstance(node, (*_OPERATIONS, *CHOICES, exp.Mod)):
        scale: int | None = node.meta.get(_SCALE)
        return scale
    if isinstance(node, exp.Literal) and not node.is_string and "e" not in node.name.lower():
        return len(node.name.partition(".")[2])
    if isinstance(node, exp.Cast) and node.to.is_type(exp.DataType.Type.DECIMAL):
        sizes = [size.name for size in node.to.expressions]
        return int(sizes[1]) if len(sizes) == 2 else 0
    return None


# -- Values of which an expression has one: the engine would round those of a larger scale ----------------
#
# Beside a NUMBER(38, 0) its common type of 2.5 is NUMBER(38, 0) as well; Snowflake's has the largest scale.

_OF_SAME_SCALE = (
    exp.Paren, exp.Neg, exp.Abs, exp.Sum, exp.Min, exp.Max, exp.AnyValue, exp.Window, exp.FirstValue,
    exp.LastValue, exp.NthValue, exp.IgnoreNulls, exp.Filter, exp.Distinct, exp.Nullif,
)  # fmt: skip
CHOICES = (
    exp.If, exp.Case, exp.Coalesce, exp.Greatest, exp.Least, exp.DecodeCase, exp.Nvl2, exp.Lag, exp.Lead,
)  # fmt: skip


def choices(node: exp.Expr) -> list[exp.Expr]:
    """Return the values of which an expression has one (:data:`CHOICES`), without NULL."""
    found: list[exp.Expr | None]
    if isinstance(node, exp.DecodeCase):
        rest = node.expressions[1:]
        found = [*rest[1::2], *(rest[-1:] if len(rest) % 2 else [])]
    elif isinstance(node, (exp.Case, exp.If, exp.Nvl2)):
        branches = [part.args["true"] for part in node.args.get("ifs") or ()]
        found = [*branches, *(node.args.get(name) for name in ("true", "false", "default"))]
    else:
        found = [node.this, *node.expressions, node.args.get("default")]
    return [value for value in found if value is not None and not isinstance(value, exp.Null)]


def _of_one_scale(node: exp.Expr, known: Names) -> None:
    """Cast the values of which an expression has one to their common type, where that has a larger scale."""
    values = [(value, _scale_of(value, known.scales)) for value in choices(node)]
    scales = {scale for _, scale in values if scale is not None}
    unknown = [value for value, scale in values if scale is None]
    most = max(scales, default=0)
    if not unknown:
        node.meta[_SCALE] = most if scales else None
    is_typed = any(scale is not None and not _is_literal(value) for value, scale in values)
    if not (is_typed or most) or (not unknown and len(scales) < 2) or not all(map(known.may_count, unknown)):
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


def _align_rows(node: exp.Values, known: Names) -> None:
    """Cast the computed values of a column of VALUES to the largest scale of the column."""
    rows = [row.expressions for row in node.expressions if isinstance(row, exp.Tuple)]
    for values in zip(*rows, strict=False):
        if all(isinstance(value, (exp.Literal, exp.Null)) for value in values):
            continue
        scales = [_scale_of(value, known.scales) for value in values]
        most = max((scale for scale in scales if scale is not None), default=0)
        for value, scale in zip(values, scales, strict=True):
            if scale is not None and scale < most and not _is_literal(value):
                value.replace(decimal(value, most))


def _remainder(node: exp.Mod, known: Names) -> None:
    """Give both operands of ``%`` the type that their sum has: of other types the engine makes a DOUBLE."""
    left, right = (_scale_of(part, known.scales) for part in (node.this, node.expression))
    if left is not None and right is not None:
        node.meta[_SCALE] = max(left, right)
        if not (_is_literal(node.this) and _is_literal(node.expression)):
            for part in (node.this, node.expression):
                part.replace(decimal(part, max(left, right)))
    elif known.may_count(node.this) and known.may_count(node.expression):
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


class Names(NamedTuple):
    """What is known of the columns and aliases of a statement: sizes of whole numbers, scales of NUMBER.

    :param others: names of columns of other types than numbers.
    """

    whole: Mapping[str, _Whole]
    scales: dict[str, int | None]
    others: Collection[str] = frozenset()

    def may_count(self, node: exp.Expr) -> bool:
        """Return True for an expression of an unknown scale that may be a number."""
        if isinstance(node, _OF_SAME_SCALE):
            return self.may_count(node.this)
        if isinstance(node, exp.Column):
            return node.name not in self.others
        if isinstance(node, exp.Cast):
            return bool(node.to.is_type(*exp.DataType.NUMERIC_TYPES))
        return _is_typed(node) or isinstance(node, (*_OPERATIONS, *_NUMBERS, *_COUNTS, exp.Avg))


def names(nodes: Sequence[exp.Expr], columns: Sequence[Column]) -> Names:
    """Return what :func:`computed` needs to know; nothing is searched without arithmetic.

    :param nodes: of the statement.
    :param columns: of its tables.
    """
    if not any(
        isinstance(node, (*_OPERATIONS, *CHOICES, exp.Mod, exp.Values, exp.In, *_WHOLE_ALREADY))
        for node in nodes
    ):
        return Names({}, {})
    others = {column.name for column in columns if column.type.kind not in {"NUMBER", "FLOAT"}}
    whole = _names_of_whole(nodes, {column.name for column in columns})
    return Names(whole, _scales(nodes, columns), others)


def computed(node: exp.Expr, known: Names) -> exp.Expr:
    """Return arithmetic and averages with Snowflake's digits and scale, any other node as it is.

    The operands are done already: calls come from the leaves up.
    """
    if isinstance(node, _OPERATIONS):
        _widen(node, known.whole)
        return _scaled(node, known.scales)
    if isinstance(node, _WHOLE_ALREADY) and not node.args.get("decimals") and _whole(node.this, known.whole):
        whole: exp.Expr = node.this
        return whole
    if isinstance(node, exp.Alias):
        _note_scale(node, known.scales)
    elif isinstance(node, CHOICES):
        _of_one_scale(node, known)
    elif isinstance(node, exp.Mod):
        _remainder(node, known)
    elif isinstance(node, exp.Values):
        _align_rows(node, known)
    elif isinstance(node, (exp.Median, exp.WithinGroup, exp.ApproxQuantile)):
        _interpolated(node)
    elif isinstance(node, exp.Round) or (isinstance(node, exp.Anonymous) and node.name.upper() == "TRUNC"):
        return _to_digits(node)
    return _typed(node) if isinstance(node, _QUOTIENTS) else node


def _to_digits(node: exp.Expr) -> exp.Expr:
    """Return ROUND and TRUNC as a choice where their digits are no constant, as the engine's are."""
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
_NUMBERS = (exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Floor, exp.Ceil, exp.Round, exp.Trunc, exp.Abs, exp.Sum)


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


def is_number(node: exp.Expr | None, names: frozenset[str]) -> bool:
    """Return True for an expression that is known to be a NUMBER.

    :param names: columns that are.
    """
    if isinstance(node, exp.Paren):
        return is_number(node.this, names)
    if isinstance(node, exp.Column):
        return node.name in names or f"{node.table}.{node.name}" in names
    if isinstance(node, (exp.Add, exp.Sub)):
        return is_number(node.this, names) and is_number(node.expression, names)
    if isinstance(node, exp.Cast):
        return bool(node.to.is_type(*exp.DataType.NUMERIC_TYPES))
    is_literal = isinstance(node, exp.Literal) and not node.is_string
    return is_literal or isinstance(node, (*_NUMBERS, *_COUNTS, exp.DateDiff))


# -- Types of ``/`` and AVG: of fixed-point numbers they are fixed-point numbers, where DuckDB makes DOUBLE --
#
# The scale of a quotient is that of the numerator and 6 more, up to 12, and never less than that of the
# numerator (Snowflake documentation, "Arithmetic operators"); AVG does the same with its argument. Which
# types the operands have, DuckDB knows when it binds the statement, so the type is written as an expression
# that has it and that is never computed.

_QUOTIENTS = (exp.Div, exp.Avg, exp.Window, exp.Filter)
_TYPED = "cast_to_type"
_SCALED = "round((_0) * CAST(1 AS DECIMAL(38, 6)), 12)"
_AT_LEAST = f"{_SCALED} + (_0) * CAST(1 AS DECIMAL(38, 0))"


def _typed(node: exp.Expr) -> exp.Expr:
    """Return a division, an AVG or an AVG .. OVER with Snowflake's type; any other node as it is.

    The operands are done already: calls come from the leaves up.
    """
    if isinstance(node, exp.Div):
        if _is_text(node.this) or _is_text(node.expression):
            return node
        form, given = _scale(node.this), [_type(node.this), _type(node.expression)]
        # A fixed-point literal changes nothing; a FLOAT makes the quotient a FLOAT.
        is_fixed = isinstance(node.expression, exp.Literal) and "e" not in node.expression.name.lower()
        return _cast(node, functions.fill(form if is_fixed else f"{form} + trunc(_1)", given))
    call = node
    while isinstance(call, (exp.Window, exp.Filter)):
        call = call.this
    if not isinstance(call, exp.Avg) or isinstance(node.parent, (exp.Window, exp.Filter)):
        return node
    value = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
    # An aggregate beside an aggregate; in a window the column itself.
    one = _type(value) if isinstance(node, exp.Window) else exp.AnyValue(this=_type(value))
    return _cast(node, functions.fill(_scale(value), [one]))


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


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
