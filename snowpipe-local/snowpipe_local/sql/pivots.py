"""PIVOT: the values of ANY and of subqueries, the names of its columns, and DEFAULT ON NULL.

The engine takes literals only, so a query for the values runs first, as in Snowflake ("PIVOT").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from snowpipe_local.errors import compilation_error, unsupported
from snowpipe_local.tables import ColumnType

_VALUES = "VALUES"


def complete(tree: exp.Expr, read: Callable[[exp.Expr], list[tuple[Any, ...]]]) -> None:
    """Write out the values and the names of each PIVOT of a statement.

    :param read: returns the rows of a query.
    :raises SqlError: 001003 for a query that is not of one column, 000002 for values without a column.
    """
    for pivot in [node for node in tree.find_all(exp.Pivot) if not node.unpivot]:
        field = pivot.fields[0]
        given = field.expressions
        if isinstance(given[0], (exp.PivotAny, exp.Query)):
            rows = read(_query_of_values(pivot, field.this, given[0]))
            if rows and len(rows[0]) > 1:
                raise compilation_error("Pivot subquery must select single column")
            values = [row[0] for row in rows]
            if not values or None in values:
                raise unsupported("PIVOT over no values, or over NULL")
            given = [exp.convert(value) for value in values]
        called = pivot.expressions[0]
        suffix = f"_{called.alias}" if isinstance(called, exp.Alias) else ""
        names = [exp.to_identifier(_name(value) + suffix, quoted=True) for value in given]
        pivot.set("expressions", [called.unalias()])
        pivot.set("columns", None)
        listed = zip(given, names, strict=True)
        field.set("expressions", [exp.PivotAlias(this=_bare(value), alias=name) for value, name in listed])
        if pivot.args.get("default_on_null"):
            _fill(pivot, names)


def _bare(value: exp.Expr) -> exp.Expr:
    return value.this if isinstance(value, exp.PivotAlias) else value


def _name(value: exp.Expr) -> str:
    """Return how Snowflake names the column of a value."""
    if isinstance(value, exp.PivotAlias):
        return str(value.alias)
    if isinstance(value, exp.Cast) and not value.this.is_string:
        return f"CAST({value.this.sql()} AS {ColumnType.from_sqlglot(value.to)})"
    return (value.this if isinstance(value, exp.Cast) else value).sql(dialect="snowflake")


def _fill(pivot: exp.Pivot, names: list[exp.Identifier]) -> None:
    """Put the value of DEFAULT ON NULL where a column of the pivot is NULL."""
    default, relation = pivot.args.pop("default_on_null"), _of(pivot)
    wrapped = exp.Subquery(alias=pivot.args.pop("alias", None))
    relation.replace(wrapped)
    filled = [
        exp.alias_(exp.Coalesce(this=exp.column(name.copy()), expressions=[default.copy()]), name.copy())
        for name in names
    ]
    wrapped.set("this", exp.select(exp.Star(replace=filled)).from_(relation, copy=False))


def _of(pivot: exp.Pivot) -> exp.Expr:
    """Return the relation that a PIVOT is of."""
    relation = pivot.parent
    if relation is None:
        raise unsupported("this form of PIVOT")
    return relation


def _query_of_values(pivot: exp.Pivot, column: exp.Expr, given: exp.Expr) -> exp.Expr:
    if isinstance(given, exp.Query):
        query = given.copy()
        if query.args.get("order") and not query.args.get("distinct"):
            raise compilation_error("Invalid subquery pivot order by must be distinct query")
    else:
        source = _of(pivot).copy()
        source.set("pivots", None)
        query = exp.select(column.copy()).distinct().from_(source, copy=False)
        query.set("order", given.this.copy() if given.this else None)
    if not query.args.get("order"):
        named = exp.TableAlias(this=exp.to_identifier(_VALUES, quoted=True))
        listed = exp.Subquery(this=query, alias=named)
        query = exp.select(exp.Star()).distinct().from_(listed, copy=False).order_by(exp.Literal.number(1))
    seen: list[exp.Expr] = []
    way: list[exp.Expr] = [pivot]
    while (above := way[-1].parent) is not None:
        clause = above.args.get("with_")
        ctes = clause.expressions if clause is not None else ()
        before = itertools.takewhile(lambda cte: all(cte is not part for part in way), ctes)
        seen = [*(cte.copy() for cte in before), *seen]
        way.append(above)
    if seen:
        query.set("with_", exp.With(expressions=seen))
    return query
