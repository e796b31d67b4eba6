"""The type of each expression of a statement, in Snowflake's words, from the columns of its tables up.

:class:`Scopes` finds in its scope the relation of each column, and keeps its type beside it; from
there :func:`type_of` gives the type of any expression, before and after it was translated. What a function
returns is read from sqlglot's own metadata of the dialect, where it is the same in the engine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.typing import EXPRESSION_METADATA

from snowpipe_local.sql.once import Once, Operand
from snowpipe_local.tables import Column, ColumnType

BOUND_TYPE = "type"
"""Key of the type word of a bound date or time among the metadata of its placeholder."""
SHOWN = "shown"
"""Key of what :func:`outputs` says of a whole query, before it is translated, among its metadata."""
MARK = "\x02"
"""End of the engine's name of a column that differs from another one by case only."""
TIMES = frozenset({"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"})

_NOTED, _STAR, _OUTPUTS = "noted_type", "noted_star", "noted_outputs"
_DIGITS = 38
_MOST = 10**_DIGITS
_SHORT_BITS, _LONG_BITS, WIDE_BITS = 32, 64, 128
_COUNTED, _LASTED = 2**40, 2**60
_MOST_SCALE, _MORE_DIGITS, TEXT_SCALE = 12, 6, 5


class Type(NamedTuple):
    """What is known of the values of an expression.

    :param kind: Snowflake's word, VARIANT also for OBJECT and ARRAY, LIST for an array of the engine's; empty
        for a type that is not known.
    :param scale: fractional digits of a NUMBER, None where they are not known.
    :param most: greatest magnitude of a whole number that the engine keeps as such.
    :param bits: of the engine's type of such a number; 0 for a decimal number.
    :param length: characters of a VARCHAR or bytes of a BINARY, None where they are not known.
    :param form: OBJECT or ARRAY where a VARIANT is known to be one.
    :param null: False where no value is NULL.
    """

    kind: str = ""
    scale: int | None = None
    most: int = 0
    bits: int = 0
    length: int | None = None
    form: str = ""
    null: bool = True

    @property
    def is_number(self) -> bool:
        """True for NUMBER and FLOAT."""
        return self.kind in {"NUMBER", "FLOAT"}

    def described(self, given: ColumnType) -> ColumnType:
        """Return the type of a column that the engine describes so: it knows no lengths, OBJECT and ARRAY."""
        if self.length and self.kind == given.kind:
            return ColumnType(self.kind, length=self.length)
        return ColumnType(self.form) if self.form and given.kind == "VARIANT" else given

    def __deepcopy__(self, memo: dict[int, Any]) -> Type:
        """Trees are copied with what is noted in them."""
        return self

    @classmethod
    def of_column(cls, column: Column) -> Type:
        """Return the type of a column."""
        kind = column.type
        if kind.is_semi_structured:
            return cls("VARIANT", form=kind.kind.removeprefix("VARIANT"), null=column.nullable)
        return cls(kind.kind, kind.scale, length=kind.length, null=column.nullable)


_UNKNOWN, _NULL, _VARIANT, _TEXT = Type(), Type("NULL"), Type("VARIANT"), Type("VARCHAR")
_ARRAY, _OBJECT = Type("VARIANT", form="ARRAY"), Type("VARIANT", form="OBJECT")
_FLOAT, _NUMBER, _WHOLE, _BOOLEAN = Type("FLOAT"), Type("NUMBER"), Type("NUMBER", 0), Type("BOOLEAN")

# -- Types that words and functions have ------------------------------------------------------------------

_KIND = exp.DataType.Type
# A cast that is written to TIMESTAMPTZ is one of the engine's; TIMESTAMP_TZ is what macros make.
_WORDS: dict[object, Type] = {
    **dict.fromkeys((*exp.DataType.INTEGER_TYPES, _KIND.DECIMAL), _WHOLE),
    **dict.fromkeys(exp.DataType.FLOAT_TYPES, _FLOAT),
    **dict.fromkeys(exp.DataType.TEXT_TYPES - {_KIND.NAME}, _TEXT),
    **dict.fromkeys((_KIND.BINARY, _KIND.VARBINARY), Type("BINARY")),
    **dict.fromkeys((_KIND.TIMESTAMP, _KIND.TIMESTAMPNTZ), Type("TIMESTAMP_NTZ")),
    **dict.fromkeys((_KIND.TIMESTAMPLTZ, _KIND.TIMESTAMPTZ), Type("TIMESTAMP_LTZ")),
    **dict.fromkeys((_KIND.VARIANT, _KIND.JSON), _VARIANT),
    **dict.fromkeys((_KIND.OBJECT, _KIND.STRUCT, _KIND.MAP), _OBJECT),
    **dict.fromkeys((_KIND.ARRAY, _KIND.LIST), _ARRAY),
    _KIND.DATE: Type("DATE"),
    _KIND.TIME: Type("TIME"),
    _KIND.BOOLEAN: _BOOLEAN,
    _KIND.INTERVAL: Type("INTERVAL"),
}
_SNOWFLAKE = sqlglot.Dialect.get_or_raise("snowflake").EXPRESSION_METADATA
_COUNT = Type("NUMBER", 0, _COUNTED, _LONG_BITS)
_NEVER_NULL = (exp.Count, exp.RowNumber, exp.Rank, exp.DenseRank)
# What needs no look at the arguments.
_RETURNED: dict[type, Type] = {
    **{
        made: Type("LIST") if spec["returns"] == _KIND.ARRAY else _WORDS[spec["returns"]]
        for made, spec in (*EXPRESSION_METADATA.items(), *_SNOWFLAKE.items())
        if spec.get("returns") in _WORDS
    },
    **dict.fromkeys(
        (exp.Length, exp.ByteLength, exp.ArraySize, exp.RegexpCount, exp.StrPosition, exp.Year, exp.Month,
         exp.Day, exp.Extract),
        _COUNT,
    ),
    **dict.fromkeys(_NEVER_NULL, _COUNT._replace(null=False)),
    **dict.fromkeys((exp.GenerateSeries, exp.ArrayAgg, exp.ArrayUniqueAgg), Type("LIST")),
    **dict.fromkeys((exp.JSONExtract, exp.ParseJSON), _VARIANT),
    **dict.fromkeys((exp.TimestampFromParts, exp.ConvertTimezone, exp.AtTimeZone), Type("TIMESTAMP_NTZ")),
    **dict.fromkeys((exp.CurrentTimestamp, exp.TimestampLtzFromParts), Type("TIMESTAMP_LTZ")),
    exp.DateDiff: Type("NUMBER", 0, _LASTED, _LONG_BITS),
    exp.JSONExtractScalar: _TEXT, exp.ToNumber: _NUMBER, exp.Corr: _FLOAT, exp.Null: _NULL,
}  # fmt: skip
# Macros of the engine and its functions, by which the translation writes others.
_CALLED = {
    **dict.fromkeys(("_ntz", "_clock", "_scaled"), Type("TIMESTAMP_NTZ")),
    **dict.fromkeys(("_ltz", "_instant"), Type("TIMESTAMP_LTZ")),
    **dict.fromkeys(
        ("_tz", "_added", "_in_zone", "_zoned", "_zoned_local", "_at_offset"), Type("TIMESTAMP_TZ")
    ),
    **dict.fromkeys(("_binary", "unhex", "_hex"), Type("BINARY")),
    **dict.fromkeys(("json_extract_string", "_float_text", "_formatted", "_flat_path", "_exact_text"), _TEXT),
    **dict.fromkeys(
        ("json_extract", "json_merge_patch", "to_json", "get_path", "get", "to_variant", "_sorted_keys",
         "_parse_json", "_parse_json_once", "_try_parse_json", "_try_parse_json_once", "_marked", "_unmarked",
         "_member", "_flat_value", "_flat_this", "_exact"),
        _VARIANT,
    ),
    **dict.fromkeys(("json_array", "json_group_array", "_array", "_array_of", "_concatenated"), _ARRAY),
    **dict.fromkeys(
        ("json_object", "json_group_object", "to_object", "object_agg", "object_insert", "_object",
         "_object_of", "_picked", "_inserted"),
        _OBJECT,
    ),
    "_date": Type("DATE"),
    "_time": Type("TIME"),
}  # fmt: skip
_OF_ARGUMENT = frozenset({"try", "_cut", "cast_to_type", "arg_max", "arg_min"})
# Macros that are NULL for a NULL only.
_STRICT = frozenset(
    {"_cut", "left", "unhex", "_binary", "_boolean", "_date", "_time", "_ntz", "_ltz", "_tz", "_zoned_local"}
)

# -- Types that depend on those of parts ------------------------------------------------------------------

CHOICES = (
    exp.If, exp.Case, exp.Coalesce, exp.Greatest, exp.Least, exp.DecodeCase, exp.Nvl2, exp.Lag, exp.Lead,
)  # fmt: skip
OPERATIONS = (exp.Add, exp.Sub, exp.Mul)
COMPARED = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.NullSafeEQ, exp.NullSafeNEQ,
    exp.EqualNull,
)  # fmt: skip
MOVED = (
    exp.DateAdd, exp.DateSub, exp.AddMonths, exp.TimestampTrunc, exp.DateTrunc, exp.TimeSlice, exp.TimeAdd,
)  # fmt: skip
SAME = (
    exp.Paren, exp.Min, exp.Max, exp.AnyValue, exp.Window, exp.Mode, exp.ArgMax, exp.ArgMin, exp.FirstValue,
    exp.LastValue, exp.NthValue, exp.IgnoreNulls, exp.RespectNulls, exp.Filter, exp.Nullif, exp.Order,
    exp.Alias,
)  # fmt: skip
# What a choice is of, and what its other values may be of.
_WIDER = {
    "FLOAT": {"NUMBER", "VARCHAR", ""}, "TIMESTAMP_NTZ": {"DATE"}, "TIMESTAMP_LTZ": {"DATE", "TIMESTAMP_NTZ"},
}  # fmt: skip
_SUBTOTALS = ("rollup", "cube", "grouping_sets")
_OF_DAYS = frozenset({"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"})


def type_of(node: exp.Expr | None) -> Type:
    """Return the type of an expression of a statement whose columns are noted."""
    made = type(node)
    found = _RETURNED.get(made)
    if found is not None or node is None:
        return found or _UNKNOWN
    found = node.meta_get(_NOTED)
    if found is None:
        rule = _RULES.get(made)
        if rule is None:
            is_condition = isinstance(node, (exp.Predicate, exp.Connector, exp.Not))
            return _BOOLEAN if is_condition else _UNKNOWN
        found = rule(node)
        if made in _KEPT:
            node.meta[_NOTED] = found
    return found


def choices(node: exp.Expr) -> list[exp.Expr]:
    """Return the values of a choice (:data:`CHOICES`), without NULL."""
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


def tested(node: exp.Case | exp.DecodeCase) -> tuple[exp.Expr | None, list[exp.Expr]]:
    """Return the value that a choice compares, if any, and those that it is compared with."""
    if isinstance(node, exp.Case):
        return node.this, [part.this for part in node.args["ifs"]]
    value, *rest = node.expressions
    return value, rest[: len(rest) - len(rest) % 2 : 2]


def common(types: Iterable[Type]) -> Type:
    """Return the type of a choice among values of these types, as far as it is known."""
    found = set(types) - {_NULL}
    if len(found) == 1:
        return found.pop()
    kinds = {known.kind for known in found}
    if len(kinds) == 1:
        parts: Any = zip(*found, strict=True)
        merged: Any = (None if None in part else max(part) for part in parts)
        kind, scale, most, bits, length, _, null = merged
        is_whole = all(known.bits for known in found)
        form = next(iter(found)).form if len({known.form for known in found}) == 1 else ""
        return Type(kind, scale, most if is_whole else 0, bits if is_whole else 0, length, form, null)
    for kind in ("VARIANT", "TIMESTAMP_TZ"):
        if kind in kinds:
            return Type(kind)
    wider = (kind for kind, others in _WIDER.items() if kind in kinds and kinds <= {kind, *others})
    return Type(next(wider, "NUMBER" if kinds == {"NUMBER", "VARCHAR"} else ""))


def outputs(query: exp.Expr | None) -> list[tuple[str, Type]] | None:
    """Return names and types of the columns of a query, None where a star stands for what is not known."""
    sides: list[exp.SetOperation] = []
    query = _bare(query)
    while isinstance(query, exp.SetOperation) and query.meta_get(_OUTPUTS) is None:
        sides.append(query)
        query = _bare(query.this)
    found: list[tuple[str, Type]] | None = query.meta_get(_OUTPUTS) if query is not None else None
    if isinstance(query, exp.Select):
        shown = [
            projection.meta_get(_STAR)
            if projection.is_star
            else [(projection.alias_or_name, type_of(projection.unalias()))]
            for projection in query.expressions
        ]
        found = None if None in shown else list(itertools.chain.from_iterable(shown))
        group = query.args.get("group")
        if found and group is not None and any(group.args.get(part) for part in _SUBTOTALS):
            found = [(name, known._replace(null=True)) for name, known in found]
    for both in reversed(sides):
        other = outputs(both.expression)
        if found is None or other is None or len(found) != len(other) or both.args.get("by_name"):
            return None
        found = [(name, _beside(own, its, both)) for (name, own), (_, its) in zip(found, other, strict=True)]
        both.meta[_OUTPUTS] = found
    return found


def _bare(query: exp.Expr | None) -> exp.Expr | None:
    while isinstance(query, (exp.Subquery, exp.Any, exp.All, exp.Paren)):
        query = query.this
    return query


def _beside(own: Type, other: Type, both: exp.SetOperation) -> Type:
    """Return the type of two columns of a set operation: a text becomes what the other one is."""
    kinds = {own.kind, other.kind}
    is_read = "VARCHAR" in kinds and len(kinds) == 2 and not kinds & {"", "NULL"}
    made = (other if own.kind == "VARCHAR" else own) if is_read else common((own, other))
    if isinstance(both, exp.Except):
        return made._replace(null=own.null)
    is_null = own.null and other.null if isinstance(both, exp.Intersect) else own.null or other.null
    return made._replace(null=is_null)


def _literal(node: exp.Literal) -> Type:
    text = node.name.lower()
    if node.is_string:
        return _TEXT._replace(null=False)
    if text.isdecimal():
        value = int(text)
        bits = next((bits for bits in (_SHORT_BITS, _LONG_BITS) if value <= 2 ** (bits - 1)), WIDE_BITS)
        return Type("NUMBER", 0, value, bits, null=False)
    return (
        Type("FLOAT", null=False) if "e" in text else Type("NUMBER", len(text.partition(".")[2]), null=False)
    )


def _cast(node: exp.Cast) -> Type:
    kind = node.to
    null = isinstance(node, exp.TryCast) or type_of(node.this).null
    if kind.is_type(_KIND.DECIMAL):
        return Type("NUMBER", int(kind.expressions[1].name) if len(kind.expressions) == 2 else 0, null=null)
    return _WORDS.get(kind.this, _UNKNOWN)._replace(null=null)


def _call(node: exp.Anonymous) -> Type:
    name = node.name.lower()
    first = type_of(node.expressions[0]) if node.expressions else _UNKNOWN
    null = first.null or name not in _STRICT
    if name in _OF_ARGUMENT:
        return first._replace(null=null)
    if name == "left":
        # What a cast to a VARCHAR of a length is written as.
        size = node.expressions[1].name
        return Type("VARCHAR", length=int(size) if size.isdecimal() else None, null=null)
    if (name == "to_json" and first.kind == "LIST") or (
        name == "_enclosed" and node.expressions[0].name == "["
    ):
        return _ARRAY
    return _OBJECT if name == "_enclosed" else _CALLED.get(name, _UNKNOWN)._replace(null=null)


def _choice(node: exp.Expr) -> Type:
    given = [(value, type_of(value)) for value in choices(node)]
    if any(known.kind in TIMES for _, known in given):
        # A text that is written out is read as the type of the others.
        given = [(value, known) for value, known in given if not isinstance(value, exp.Literal)]
    is_filled = isinstance(node, exp.Coalesce) and any(not known.null for _, known in given)
    return common(known for _, known in given)._replace(null=not is_filled)


def _as_number(given: Type) -> Type:
    """Return what a value is in arithmetic: a text is read as NUMBER, a VARIANT as FLOAT."""
    if given.kind == "VARCHAR":
        return Type("NUMBER", TEXT_SCALE)
    return _FLOAT if given.kind == "VARIANT" else given


def _rounded(node: exp.Expr) -> Type:
    given, digits = _as_number(type_of(node.this)), node.args.get("decimals") or exp.Literal.number(0)
    if given.kind == "FLOAT":
        return _FLOAT
    is_known = given.scale is not None and digits.name.isdecimal()
    return Type("NUMBER", min(given.scale or 0, int(digits.name))) if is_known else _NUMBER


def _signed(node: exp.Expr) -> Type:
    given = _as_number(type_of(node.this))
    return given if given.is_number else _NUMBER


def _sum(node: exp.Expr) -> Type:
    given = type_of(node.this)
    if given.kind in {"VARCHAR", "VARIANT", "FLOAT"}:
        return _FLOAT
    is_whole = given.bits > 0
    return Type("NUMBER", given.scale, _MOST if is_whole else 0, WIDE_BITS if is_whole else 0)


def _average(node: exp.Avg) -> Type:
    given = _sum(node)
    return given if given.kind == "FLOAT" else Type("NUMBER", scale_of_quotient(given.scale))


def _interpolated(given: Type) -> Type:
    return given if given.kind != "NUMBER" or given.scale is None else Type("NUMBER", given.scale + 3)


def _in_order(node: exp.WithinGroup) -> Type:
    if not isinstance(node.this, (exp.PercentileCont, exp.PercentileDisc)):
        return type_of(node.this)
    given = type_of(node.expression.expressions[0].this)
    return _interpolated(given) if isinstance(node.this, exp.PercentileCont) else given


def scale_of_quotient(scale: int | None) -> int | None:
    """Return the scale of a quotient or an average ("Arithmetic operators"), None where it is not known.

    It is that of the numerator and 6 more, up to 12, and never less than that of the numerator.
    """
    return None if scale is None else max(min(scale + _MORE_DIGITS, _MOST_SCALE), scale)


def _operation(node: exp.Binary) -> Type:
    left, right = type_of(node.this), type_of(node.expression)
    if isinstance(node, (exp.Add, exp.Sub)):
        if TIMES & {left.kind, right.kind}:
            return _moved_by(node, left, right)
        if _days(node) is not None:
            return _UNKNOWN
    left, right = _as_number(left), _as_number(right)
    if "FLOAT" in {left.kind, right.kind}:
        return _FLOAT
    if isinstance(node, (exp.Add, exp.Sub)) and not (left.is_number and right.is_number):
        return _UNKNOWN
    if left.scale is None or right.scale is None:
        return _NUMBER
    if isinstance(node, exp.Div):
        return Type("NUMBER", scale_of_quotient(left.scale))
    null = left.null or right.null
    if not isinstance(node, exp.Mul):
        scale, most = max(left.scale, right.scale), left.most + right.most
    else:
        # "Arithmetic operators", "Multiplication"; the engine keeps the sum.
        scale = min(left.scale + right.scale, max(left.scale, right.scale, _MOST_SCALE))
        most = left.most * right.most
    if not (left.bits and right.bits and isinstance(node, OPERATIONS)):
        return Type("NUMBER", scale, null=null or not isinstance(node, OPERATIONS))
    bits = max(left.bits, right.bits)
    return Type("NUMBER", scale, min(most, _MOST), WIDE_BITS if most >= 2 ** (bits - 1) else bits, null=null)


def _days(node: exp.Expr) -> exp.Expr | None:
    """Return the operand that is a number of days, which the translation wrote so."""
    parts = (part for part in (node.this, node.expression) if isinstance(part, exp.Anonymous))
    return next((part for part in parts if part.name.lower() == "to_days"), None)


def _moved_by(node: exp.Binary, left: Type, right: Type) -> Type:
    """Return the type of a sum or a difference with a date or a time in it."""
    if isinstance(node.expression, exp.Interval):
        # "Interval constants"
        unit = node.expression.args.get("unit")
        words = [unit.name] if unit is not None else re.findall(r"[A-Za-z]+", node.expression.name)
        is_of_days = all(word.upper().rstrip("S") in _OF_DAYS for word in words or [""])
        return left if left.kind != "DATE" or is_of_days else Type("TIMESTAMP_NTZ")
    if left.kind == right.kind == "DATE":
        return _WHOLE if isinstance(node, exp.Sub) else _UNKNOWN
    moved, by, days = (left, right, node.expression) if left.kind in TIMES else (right, left, node.this)
    return moved if by.is_number or days is _days(node) else _UNKNOWN


def _moved(node: exp.Expr) -> Type:
    kind, unit = type_of(node.this).kind, node.args.get("unit")
    if kind == "DATE" and unit is not None and unit.name.upper().rstrip("S") not in _OF_DAYS:
        return Type("TIMESTAMP_NTZ")
    return Type(kind) if kind in TIMES else _UNKNOWN


def _read_time(node: exp.Expr) -> Type:
    target = node.args.get("target_type")
    return Type("TIMESTAMP_NTZ") if target is None else _WORDS.get(target.this, _UNKNOWN)


def _text(node: exp.Expr) -> Type:
    """A part of a BINARY, or several of them, are one; all others are texts."""
    parts = node.expressions if isinstance(node, exp.Concat) else [node.this]
    parts = [*parts, node.expression] if isinstance(node, exp.DPipe) else parts
    return Type("BINARY") if {type_of(part).kind for part in parts} == {"BINARY"} else _TEXT


def _first_output(node: exp.Expr) -> Type:
    found = outputs(node)
    return found[0][1]._replace(null=True) if found else _UNKNOWN


_RULES: dict[type, Callable[[Any], Type]] = {
    **dict.fromkeys(SAME, lambda node: type_of(node.this)._replace(null=True)),
    **dict.fromkeys((exp.Paren, exp.Alias, exp.Order), lambda node: type_of(node.this)),
    exp.Window: lambda node: type_of(node.this)._replace(null=not isinstance(node.this, _NEVER_NULL)),
    **dict.fromkeys(CHOICES, _choice),
    **dict.fromkeys((*OPERATIONS, exp.Div, exp.Mod), _operation),
    **dict.fromkeys((exp.Neg, exp.Abs), _signed),
    **dict.fromkeys((exp.Round, exp.Floor, exp.Ceil, exp.Trunc, exp.Sign), _rounded),
    **dict.fromkeys((exp.Cast, exp.TryCast, exp.JSONCast), _cast),
    **dict.fromkeys(MOVED, _moved),
    **dict.fromkeys((exp.UnixToTime, exp.StrToTime), _read_time),
    **dict.fromkeys((exp.Substring, exp.Left, exp.Right, exp.Concat, exp.DPipe, exp.Pad, exp.Reverse), _text),
    **dict.fromkeys((exp.Subquery, exp.Select, exp.Any, exp.All), _first_output),
    exp.Distinct: lambda node: type_of(node.expressions[0]) if node.expressions else _UNKNOWN,
    exp.Literal: _literal,
    exp.Boolean: lambda _: Type("BOOLEAN", null=False),
    exp.Anonymous: _call,
    exp.Sum: _sum,
    exp.Avg: _average,
    exp.Median: lambda node: _interpolated(_as_number(type_of(node.this))),
    exp.WithinGroup: _in_order,
    exp.Parameter: lambda node: Type(node.meta_get(BOUND_TYPE) or ""),
    Once: lambda node: type_of(node.this),
    Operand: lambda node: type_of(node.value),
    exp.Bracket: lambda node: _VARIANT if type_of(node.this).kind == "VARIANT" else _UNKNOWN,
}
for _ruled in _RULES:
    _RETURNED.pop(_ruled, None)
# Of what may be long, or be asked for often.
_KEPT = frozenset({*CHOICES, *OPERATIONS, exp.Div, exp.Mod, exp.DPipe, exp.Concat, exp.Subquery})

# -- Columns in their scopes ------------------------------------------------------------------------------

_SCOPES = (exp.Select, exp.Update, exp.Delete, exp.Merge)


class Scopes:
    """The relations that the columns of a statement are of.

    :param columns_of: gives the columns of a table, or of another relation that the service made; None for
        those that the statement makes itself.
    """

    def __init__(self, columns_of: Callable[[exp.Expr], Sequence[Column] | None]) -> None:
        self._columns_of = columns_of
        # By the id of a relation: its columns, and that it may have others.
        self._known: dict[int, tuple[dict[str, Type], bool]] = {}
        self._relations: dict[int, list[tuple[str, exp.Expr]]] = {}
        self._sides: dict[int, set[str]] = {}

    def note(self, nodes: Iterable[exp.Expr]) -> None:
        """Keep the types of columns, and of what stars stand for, beside them."""
        for node in nodes:
            if isinstance(node, exp.Column):
                if node.meta_get(_NOTED) is None:
                    # While it is searched, where an alias has the name of a column in it.
                    node.meta[_NOTED] = _UNKNOWN
                    node.meta[_NOTED] = self._column(node)
            elif isinstance(node, exp.Select):
                for projection in node.expressions:
                    if projection.is_star and projection.meta_get(_STAR) is None:
                        projection.meta[_STAR] = self._star(node, projection)

    def _column(self, column: exp.Column) -> Type:
        below: exp.Expr = column
        while (scope := below.parent) is not None:
            found = None
            if isinstance(scope, _SCOPES) and not isinstance(below, exp.With):
                found = self._find(column, scope)
            elif isinstance(scope, exp.SetOperation) and below.arg_key == "order":
                found = dict(self._outputs(scope.this) or ()).get(column.name)
            if found is not None:
                return found
            below = scope
        return _UNKNOWN

    def _find(self, column: exp.Column, scope: exp.Expr) -> Type | None:
        """Return the type of a column in a scope, None where it can only be of an outer one."""
        name, table = column.name, column.table
        aliases = scope.expressions if isinstance(scope, exp.Select) and not table else []
        named = next((part for part in aliases if isinstance(part, exp.Alias) and part.alias == name), None)
        order = column.parent.parent if isinstance(column.parent, exp.Ordered) else None
        is_ordered = order is not None and order is scope.args.get("order")
        is_open = False
        for alias, relation in self._relations_of(scope) if named is None or not is_ordered else ():
            if table and table != alias:
                continue
            columns, has_more = self._columns(relation)
            if name in columns or table:
                found = columns.get(name, _UNKNOWN)
                return found._replace(null=found.null or self._may_be_missing(relation, scope))
            is_open |= has_more
        if named is not None:
            self._note_whole(named)
            return type_of(named.this)
        return _UNKNOWN if is_open else None

    def _may_be_missing(self, relation: exp.Expr, scope: exp.Expr) -> bool:
        """Return True for a relation that an outer join may have no row of; under LEFT, all but the first."""
        sides = self._sides.get(id(scope))
        if sides is None:
            joins = scope.find_all(exp.Join)
            sides = self._sides[id(scope)] = {
                str(join.args["side"]) for join in joins if join.args.get("side")
            }
        first = scope.args.get("from_")
        return bool(sides) and (sides != {"LEFT"} or not first or first.this is not relation)

    def _relations_of(self, scope: exp.Expr) -> list[tuple[str, exp.Expr]]:
        found = self._relations.get(id(scope))
        if found is None:
            found = self._relations[id(scope)] = []
            parts = ("from_",) if isinstance(scope, exp.Select) else ("this", "using", "from_")
            given = [scope.args.get(part) for part in (*parts, "laterals", "joins")]
            waiting = [one for part in given for one in (part if isinstance(part, list) else [part])]
            while waiting:
                relation = waiting.pop(0)
                if not isinstance(relation, exp.Expr):
                    continue
                if isinstance(relation, (exp.From, exp.Join, exp.Schema)) or _is_around(relation):
                    waiting.insert(0, relation.this)
                else:
                    found.append((relation.alias_or_name, relation))
                    waiting = [*(relation.args.get("joins") or ()), *waiting]
        return found

    def _columns(self, relation: exp.Expr) -> tuple[dict[str, Type], bool]:
        found = self._known.get(id(relation))
        if found is None:
            # A recursive query is read inside of itself: it has the columns of its first part.
            self._known[id(relation)] = {}, True
            if isinstance(relation, exp.CTE) and isinstance(relation.this, exp.SetOperation):
                self._known[id(relation)] = _named(relation, self._outputs(relation.this.this))
            found = self._known[id(relation)] = _named(relation, self._given(relation))
        return found

    def _given(self, relation: exp.Expr) -> list[tuple[str, Type]] | None:
        known = self._columns_of(relation)
        if known is not None:
            return [(column.name, Type.of_column(column)) for column in known]
        if isinstance(relation, exp.Table):
            query = _common_of(relation)
            columns, is_open = self._columns(query) if query is not None else ({}, True)
            return None if is_open else list(columns.items())
        if isinstance(relation, exp.Values):
            rows = [row.expressions for row in relation.expressions if isinstance(row, exp.Tuple)]
            given = [list(map(type_of, values)) for values in zip(*rows, strict=False)]
            return [("", common(each)._replace(null=any(one.null for one in each))) for each in given]
        is_query = isinstance(relation, (exp.Subquery, exp.CTE, exp.Lateral))
        return self._outputs(relation.this) if is_query else None

    def _outputs(self, query: exp.Expr) -> list[tuple[str, Type]] | None:
        self._note_whole(query)
        return outputs(query)

    def _note_whole(self, tree: exp.Expr) -> None:
        nodes = list(tree.walk())
        self.note(nodes)
        # From the leaves up, for a sum may have a thousand terms.
        for node in reversed(nodes):
            if type(node) in _KEPT:
                type_of(node)

    def _star(self, select: exp.Select, star: exp.Expr) -> list[tuple[str, Type]] | None:
        written = star.this if isinstance(star, exp.Column) else star
        joins = select.args.get("joins") or ()
        if any(written.args.get(part) for part in ("replace", "rename", "ilike")) or any(
            join.args.get("method") for join in joins
        ):
            return None
        table = star.table if isinstance(star, exp.Column) else ""
        left_out = {column.name for column in written.args.get("except_") or ()}
        shared = {column.name for join in joins if not table for column in join.args.get("using") or ()}
        found: list[tuple[str, Type]] = []
        for alias, relation in self._relations_of(select):
            if table in {"", alias}:
                columns, is_open = self._columns(relation)
                if is_open:
                    return None
                is_missing = self._may_be_missing(relation, select)
                found += [
                    (name, kind._replace(null=kind.null or is_missing))
                    for name, kind in columns.items()
                    if name not in left_out
                ]
                left_out |= shared
        return found


def _is_around(relation: exp.Expr) -> bool:
    """Return True for parentheses around a relation that has its own name."""
    is_around = isinstance(relation, exp.Subquery) and not relation.alias
    return is_around and isinstance(relation.this, (exp.Table, exp.Subquery))


def _named(relation: exp.Expr, given: list[tuple[str, Type]] | None) -> tuple[dict[str, Type], bool]:
    """Return columns by the names that the alias of a relation gives them, and that there may be others."""
    if given is None:
        return {}, True
    names = [part.name for part in relation.args["alias"].columns] if relation.alias else []
    named = itertools.zip_longest(names, given)
    columns = {name or column[0]: column[1] for name, column in named if column is not None}
    return columns, len(columns) < len(given) or bool(relation.args.get("pivots"))


def _common_of(table: exp.Table) -> exp.CTE | None:
    """Return the query of a WITH clause that a table names."""
    above: exp.Expr | None = None if table.args.get("db") else table.parent
    while above is not None:
        clause = above.args.get("with_")
        for query in clause.expressions if clause is not None else ():
            if isinstance(query, exp.CTE) and query.alias == table.name:
                return query
        above = above.parent
    return None
