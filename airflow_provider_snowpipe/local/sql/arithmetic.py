"""Types of ``/`` and AVG: of fixed-point numbers they are fixed-point numbers, where DuckDB makes DOUBLE.

The scale of a quotient is that of the numerator and 6 more, up to 12, and never less than that of the
numerator (Snowflake documentation, "Arithmetic operators"); AVG does the same with its argument. Which types
the operands have, DuckDB knows when it binds the statement, so the type is written as an expression that has
it and that is never computed.
"""

from __future__ import annotations

from sqlglot import exp

from airflow_provider_snowpipe.local.sql import functions

_TYPED = "cast_to_type"
_SCALED = "round((_0) * CAST(1 AS DECIMAL(38, 6)), 12)"
_AT_LEAST = f"{_SCALED} + (_0) * CAST(1 AS DECIMAL(38, 0))"


def typed(node: exp.Expr) -> exp.Expr:
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
