"""Operands that an expression needs several times are written once, so that calls in calls stay short.

The engine puts an argument in the place of each mention of a macro's parameter, a template puts it in the
place of each mark, and sqlglot writes some arguments twice: without names for values, a text would grow
exponentially with the depth of its calls. A :class:`Once` gives names to operands of the expression in it.
For the engine they are the fields of the one element of a list, to which a lambda is applied.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from sqlglot import ErrorLevel, exp
from sqlglot.dialects import DuckDB
from sqlglot.generators.duckdb import DuckDBGenerator

from snowpipe_local.engine.conversions import macros

MOST_COPIED = 1000
"""How many words the copies of an operand may have: the engine prepares them as fast as a name."""
_CONSTANTS = (exp.Literal, exp.Null, exp.Boolean, exp.Var, exp.DataType, exp.Identifier)
_ATOMS = (exp.Column, exp.Parameter, exp.Placeholder, *_CONSTANTS)
# These cannot stand inside a lambda.
_OF_ROWS = (exp.AggFunc, exp.Window, exp.Query)
# Copies that the engine makes of the first operand.
_BY_ENGINE: dict[type, int] = {exp.Between: 2, exp.In: 3, exp.Nullif: 2, exp.ArrayToString: 2}
_MACROS_OF_ENGINE = {"array_to_string": (10, [2, 1]), "nullif": (10, [2, 1]), "split_part": (10, [2, 2, 2])}
_CHOICES = (exp.Case, exp.If, exp.Coalesce, exp.DecodeCase, exp.Nvl2)


class Once(exp.Expression, exp.Condition):
    """An expression, and operands that have names in it: ``_2['v0']``, ``_2['v1']``, .. at height 2."""

    arg_types: ClassVar = {"this": True, "expressions": True, "height": True}


class Operand(exp.Expression, exp.Condition):
    """One mention of an operand of the :class:`Once` of this height around it."""

    arg_types: ClassVar = {"height": True, "number": True}

    @property
    def value(self) -> exp.Expr | None:
        """The operand; None as long as the expression is not complete."""
        above = self.parent
        while above is not None and above.args.get("height") != self.args["height"]:
            above = above.parent
        return None if above is None else above.expressions[self.args["number"]]


Around = Callable[[exp.Expr], exp.Expr]


def bound(given: Sequence[exp.Expr], times: Sequence[int]) -> tuple[list[exp.Expr], Around]:
    """Return what stands for operands in an expression, and what goes around that expression."""
    costs = [(n - 1) * weight(one) for one, n in zip(given, times, strict=True) if n > 1]
    if max(costs, default=0) <= MOST_COPIED:
        return list(given), lambda body: body
    named = [n > 1 and not isinstance(one, _ATOMS) for one, n in zip(given, times, strict=True)]
    operands, around = _named([one.copy() for one in given], named)
    return operands, lambda body: around(body.copy())


def _named(given: Sequence[exp.Expr], named: Sequence[bool]) -> tuple[list[exp.Expr], Around]:
    inner = (node.args["height"] for one in given for node in one.find_all(Once, Operand))
    height = 1 + max(inner, default=0)
    values: list[exp.Expr] = []
    operands: list[exp.Expr] = []
    for one, is_named in zip(given, named, strict=True):
        if is_named or one.find(*_OF_ROWS):
            operands.append(Operand(height=height, number=len(values)))
            values.append(one)
        else:
            operands.append(one)
    return operands, lambda body: Once(this=body, expressions=values, height=height)


# -- The text of a statement for the engine ----------------------------------------------------------------


def _once(generator: DuckDBGenerator, node: Once) -> str:
    fields = ", ".join(f"'v{n}': {generator.sql(value)}" for n, value in enumerate(node.expressions))
    body = generator.sql(node, "this")
    return f"list_transform([{{{fields}}}], lambda _{node.args['height']}: {body})[1]"


class _Generator(DuckDBGenerator):
    TRANSFORMS: ClassVar = {
        **DuckDBGenerator.TRANSFORMS,
        Once: _once,
        Operand: lambda _, node: f"_{node.args['height']}['v{node.args['number']}']",
    }


def to_sql(tree: exp.Expr) -> str:
    """Write a translated tree, which changes, with names for what the engine or sqlglot would copy.

    :raises UnsupportedError: for what the engine has no words for.
    """
    weights: dict[int, int] = {}
    for node in reversed(list(tree.walk(prune=_is_literal_row))):
        own, parts, times = _mentions(node)
        heavy = [
            n > 1 and (n - 1) * weights[id(part)] > MOST_COPIED for part, n in zip(parts, times, strict=True)
        ]
        if any(heavy) and not _is_open(node, parts):
            named = [n > 1 and not isinstance(part, _ATOMS) for part, n in zip(parts, times, strict=True)]
            operands, around = _named(parts, named)
            for part, operand in zip(parts, operands, strict=True):
                part.replace(operand)
            times = [1] * len(parts)
            mark = node.replace(exp.Null())
            once = around(node)
            tree = once if node is tree else tree
            mark.replace(once)
            weights[id(once)] = own + sum(weights[id(part)] for part in parts)
        weights[id(node)] = own + sum(n * weights[id(part)] for part, n in zip(parts, times, strict=True))
    return _Generator(dialect="duckdb", unsupported_level=ErrorLevel.RAISE).generate(tree, copy=False)


def _is_literal_row(node: exp.Expr) -> bool:
    is_row = isinstance(node, exp.Tuple) and isinstance(node.parent, exp.Values)
    return is_row and all(isinstance(value, exp.Literal) for value in node.expressions)


def _is_open(node: exp.Expr, parts: Sequence[exp.Expr]) -> bool:
    """Return True for a choice with operands that cannot be inside a lambda, and are not always computed."""
    return isinstance(node, _CHOICES) and any(part.find(*_OF_ROWS) for part in parts)


# -- How many words there are in the end -------------------------------------------------------------------


def weight(tree: exp.Expr) -> int:
    """Return how many words the engine makes of an expression, about."""
    weights: dict[int, int] = {}
    for node in reversed(list(tree.walk())):
        own, parts, times = _mentions(node)
        weights[id(node)] = own + sum(n * weights[id(part)] for part, n in zip(parts, times, strict=True))
    return weights[id(tree)]


def _mentions(node: exp.Expr) -> tuple[int, list[exp.Expr], Sequence[int]]:
    """Return how many words a node is, its parts, and how often each of them is written."""
    parts = list(node.iter_expressions()) if not _is_literal_row(node) else []
    if isinstance(node, exp.Anonymous):
        own, times = _macros().get(node.name.lower(), (1, ()))
        return own, parts, [*times, *[1] * len(parts)][: len(parts)]
    copies = len(node.args["ifs"]) if isinstance(node, exp.Case) and node.this else _BY_ENGINE.get(type(node))
    if copies is not None and not node.args.get("query"):
        return 1, parts, [copies, *[1] * len(parts)][: len(parts)]
    is_plain = not isinstance(node, exp.Func) or isinstance(node, (exp.AggFunc, exp.Cast, exp.Case, exp.If))
    own, times = (1, [1] * len(parts)) if is_plain else _written(node, parts)
    return own, parts, times


# By the class of a call, its options, and which of its arguments are more than constants.
_WRITTEN: dict[tuple[object, ...], tuple[int, list[int]]] = {}


def _written(node: exp.Expr, parts: list[exp.Expr]) -> tuple[int, list[int]]:
    """Return how many words sqlglot makes of a call, and how often it writes its parts: in a CASE, say."""
    is_value = [isinstance(part, exp.Condition) and not isinstance(part, _CONSTANTS) for part in parts]
    options = (option for option in node.args.items() if isinstance(option[1], (bool, str)))
    keys = zip((part.arg_key for part in parts), is_value, strict=True)
    shape = (type(node), *options, *keys)
    if shape not in _WRITTEN:
        probe = node.copy()
        for n, part in enumerate(list(probe.iter_expressions())):
            if is_value[n]:
                part.replace(exp.column(f"_part_{n}_"))
        text = _Generator(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE).generate(probe)
        times = [max(text.count(f"_part_{n}_"), 1) for n in range(len(parts))]
        _WRITTEN[shape] = len(re.findall(r"\w+", text)) - sum(times) + 1, times
    return _WRITTEN[shape]


@functools.cache
def _macros() -> dict[str, tuple[int, list[int]]]:
    """Return of each macro of the engine how many words it is, and how often it writes each argument."""
    found = dict(_MACROS_OF_ENGINE)
    text = re.sub(r"^--.*$", "", macros(), flags=re.MULTILINE)
    for name, forms in re.findall(r"CREATE OR REPLACE MACRO (\w+)(.*?);\n", text, re.DOTALL):
        for given, body in re.findall(r"\((.*?)\) AS\s+(.*?)(?=,\n    \(x |\Z)", forms, re.DOTALL):
            own, times = _expanded(body, re.findall(r"(\w+)(?: [^,]*)?(?:, |$)", given), found)
            most, others = found.get(name, (0, times))
            found[name] = max(own, most), list(map(max, times, others))
    return found


def _expanded(body: str, given: list[str], known: dict[str, tuple[int, list[int]]]) -> tuple[int, list[int]]:
    own, factor, before, times = 0, 1, "", dict.fromkeys(given, 0)
    around: list[tuple[int, list[int]]] = []
    for token in DuckDB().tokenize(body):
        word = token.text
        if word in times:
            times[word] += factor
        own += factor
        if word in {"(", "[", "{"}:
            size, inner = known.get(before, (0, []))
            own += factor * size
            around.append((factor, inner if word == "(" else []))
        elif word in {")", "]", "}"}:
            factor = around.pop()[0]
        if word in {"(", ","} and around and around[-1][1]:
            outer, (first, *rest) = around[-1]
            factor, around[-1] = outer * first, (outer, rest)
        before = word.lower()
    return own, list(times.values())
