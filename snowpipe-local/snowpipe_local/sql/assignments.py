"""Types to which values are converted: of set operations, beside IN and ANY, and of assigned columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sqlglot import exp

from snowpipe_local.engine.conversions import MACROS
from snowpipe_local.errors import compilation_error
from snowpipe_local.sql import functions, numbers, sources, timestamps
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.types import Type, outputs, type_of
from snowpipe_local.tables import MAX_VARCHAR, Column

# -- Types that two queries have in common: the engine makes texts, or rounds to the scale of the first --


def align(tree: exp.Expr) -> None:
    """Give both sides of set operations, and the values beside IN and ANY, their common type."""
    for node in reversed(list(tree.find_all(exp.SetOperation, exp.In, exp.Any, exp.All))):
        if isinstance(node, exp.SetOperation):
            sides = node.this, node.expression
            left, right = (outputs(side) or [] for side in sides)
            # Kept beside it before the sides change.
            if left and outputs(node) is not None:
                _convert(sides[0], left, right)
                _convert(sides[1], right, left)
        else:
            query = node.args.get("query") if isinstance(node, exp.In) else node.this
            value = node.this if isinstance(node, exp.In) else node.parent and node.parent.this
            scale = type_of(query).scale if isinstance(query, exp.Query) else None
            if scale and isinstance(value, exp.Expr) and value is not node:
                value.replace(functions.fill(f"CAST(0 AS DECIMAL(38, {scale})) + _0", [value]))


def _convert(side: exp.Expr, own: list[tuple[str, Type]], others: list[tuple[str, Type]]) -> None:
    """Convert the columns of one side of a set operation whose type the other side does not have."""
    columns = [exp.column(f"_{number}", quoted=True) for number in range(len(own))]
    values = [
        _converted(column, kind, other)
        for column, (_, kind), (_, other) in zip(columns, own, others, strict=True)
    ]
    if any(values):
        alias = exp.TableAlias(
            this=exp.to_identifier("_side", quoted=True), columns=[column.this.copy() for column in columns]
        )
        named = [
            exp.alias_(value or column.copy(), name or column.name, quoted=True)
            for column, value, (name, _) in zip(columns, values, own, strict=True)
        ]
        side.replace(exp.select(*named).from_(exp.Subquery(this=side.copy(), alias=alias)))


def _converted(value: exp.Expr, own: Type, common: Type) -> exp.Expr | None:
    """Return a value as what it becomes beside a value of another type, None where it stays as it is."""
    if common.kind == "NUMBER" and own.kind in {"VARCHAR", "NUMBER"}:
        is_changed = own.kind == "VARCHAR" or (common.scale or 0) > (own.scale or 0)
        return numbers.decimal(value, common.scale or 0) if is_changed else None
    if own.kind != "VARCHAR":
        return None
    if common.kind == "VARIANT":
        return timestamps.call("to_json", value)
    if common.kind == "FLOAT":
        return exp.cast(value.copy(), "DOUBLE")
    return timestamps.call(MACROS[common.kind], value) if common.kind in MACROS else None


# -- Values that a change assigns: what a VARCHAR column gets is the text that a cast makes ---------------


_NESTED = {"OBJECT": "_object", "ARRAY": "_array"}


Change = Callable[[exp.Expr, Type, Column], exp.Expr]
"""Gives the value of a type as a column gets it."""


def convert(tree: exp.Expr, columns: Sequence[Column], change: Change) -> None:
    """Change what a translated INSERT, UPDATE or MERGE assigns to the columns of its table."""
    known = {column.name: column for column in columns}
    for each in tree.find_all(exp.Insert, exp.Update):
        if isinstance(each, exp.Update):
            sets = [part for part in each.expressions if isinstance(part, exp.EQ)]
            _convert_row(
                [known.get(part.this.name) for part in sets], [part.expression for part in sets], change
            )
            continue
        listed = each.this.expressions if isinstance(each.this, (exp.Tuple, exp.Schema)) else []
        filled = [known.get(part.name) for part in listed] or list(columns)
        source = each.expression
        if isinstance(source, exp.Query):
            each.set("expression", converted(source, filled, change))
        elif source is not None:
            for row in source.expressions if isinstance(source, exp.Values) else [source]:
                _convert_row(
                    filled, list(row.expressions) if isinstance(row, exp.Tuple) else [row.this], change
                )


def _convert_row(columns: Sequence[Column | None], values: Sequence[exp.Expr], change: Change) -> None:
    for column, value in zip(columns, values, strict=False):
        changed = value if column is None else change(value, type_of(value), column)
        if changed is not value:
            value.replace(changed)


def converted(query: exp.Expr, columns: Sequence[Column | None], change: Change) -> exp.Expr:
    """Return a translated query whose values are changed as :func:`convert` does it.

    :param columns: those that it fills, in their order.
    """
    known = [kind for _, kind in outputs(query) or ()]
    kinds = known if len(known) == len(columns) else [Type()] * len(columns)
    made = [exp.column(f"_{number}", quoted=True) for number in range(len(columns))]
    values = [
        value if column is None else change(value, kind, column)
        for value, kind, column in zip(made, kinds, columns, strict=True)
    ]
    if values == made:
        return query
    alias = exp.TableAlias(
        this=exp.to_identifier("_new", quoted=True), columns=[value.this.copy() for value in made]
    )
    return exp.select(*values).from_(exp.Subquery(this=query.copy(), alias=alias))


def assigned(session: Session, query: exp.Expr, columns: Sequence[Column | None]) -> exp.Expr:
    """Return a translated query that gives VARCHAR columns the texts of its values.

    :raises SqlError: 002023 for a text that would be a VARIANT.
    """
    return converted(query, columns, partial(given, session))


def given(session: Session, value: exp.Expr, own: Type, column: Column) -> exp.Expr:
    """Return a value as a column gets it: a VARCHAR the text of a value.

    :raises SqlError: 002023 for a text that would be a VARIANT.
    """
    kind = column.type.kind
    if column.type.is_semi_structured and own.kind == "VARCHAR":
        shown = f"VARCHAR({len(value.name) if value.is_string else MAX_VARCHAR})"
        raise compilation_error(
            f"Expression type does not match column data type, expecting {column.type} but got {shown} for "
            f"column {column.name}",
            "002023",
            "22000",
        )
    if kind in _NESTED and own.kind == "VARIANT":
        return timestamps.call(_NESTED[kind], value)
    if kind != "VARCHAR":
        return value
    if own.kind in {"VARIANT", "LIST"}:
        return sources.text_of(value if own.kind == "VARIANT" else timestamps.call("to_json", value))
    return timestamps.text_of(value, own.kind, session.parameters) if own.kind in timestamps.KINDS else value
