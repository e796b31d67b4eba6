"""Types to which values are converted: of set operations, beside IN and ANY, and of assigned columns."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import sqlglot
from sqlglot import exp

from airflow_provider_snowpipe.local.engine.conversions import MACROS
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.sql import functions, numbers, sources, timestamps
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, ColumnType, Table, quote

# -- Types that two queries have in common: the engine makes texts, or rounds to the scale of the first --


def align(session: Session, tree: exp.Expr) -> None:
    """Give both sides of set operations, and the values beside IN and ANY, their common type."""
    # Of set operations inside others: a chain of a thousand would be described a thousand times.
    described: dict[int, list[tuple[str, str]]] = {}
    for node in reversed(list(tree.find_all(exp.SetOperation, exp.In, exp.Any, exp.All))):
        if isinstance(node, exp.SetOperation):
            sides = node.this, node.expression
            kinds = [described.get(id(side)) or _described(session, node, side) for side in sides]
            if all(kinds) and len(kinds[0]) == len(kinds[1]):
                for number, side in enumerate(sides):
                    _convert(side, kinds[number], kinds[1 - number])
                if not node.args.get("by_name"):
                    described[id(node)] = _united(session, *kinds)
        else:
            query = node.args.get("query") if isinstance(node, exp.In) else node.this
            value = node.this if isinstance(node, exp.In) else node.parent and node.parent.this
            scale = _scale_in(session, node, query) if isinstance(query, exp.Query) else 0
            if scale and isinstance(value, exp.Expr) and value is not node:
                value.replace(functions.fill(f"CAST(0 AS DECIMAL(38, {scale})) + _0", [value]))


def _scale_in(session: Session, node: exp.Expr, query: exp.Query) -> int:
    """Return the scale of the column of a query in an expression, 0 where it is not known."""
    columns = _described(session, node, query)
    return ColumnType.from_duckdb(columns[0][1]).scale or 0 if len(columns) == 1 else 0


def _described(session: Session, node: exp.Expr, query: exp.Expr) -> list[tuple[str, str]]:
    """Return names and types of the engine's of the columns of a query, none where it depends on others.

    :param node: the part of the statement in which it stands.
    """
    if query.find(exp.Parameter) is not None:
        return []
    own = node.args.get("with_") if query is not node else None
    common: list[exp.Expr] = list(own.expressions) if own is not None else []
    below = node
    while (above := below.parent) is not None:
        clause = above.args.get("with_")
        if clause is not None and clause is not below:
            common = [*clause.expressions, *common]
        elif isinstance(above, exp.With):
            common = [*above.expressions[: below.index or 0], *common]
        below = above
    alone = exp.select("*").from_(exp.Subquery(this=query.copy()))
    if common:
        alone.set("with_", exp.With(expressions=[part.copy() for part in common]))
    # An error would end the session's transaction.
    with session.cursor.cursor() as cursor:
        try:
            # Binds the query, where a DESCRIBE would also be planned and run.
            found = cursor.sql(alone.sql(dialect="duckdb"))
            return list(zip(found.columns, map(str, found.types), strict=True))
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
            return []


def _united(
    session: Session, left: list[tuple[str, str]], right: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return names and types of a set operation, from those of its sides; none where they are not known."""
    if [kind for _, kind in left] == [kind for _, kind in right]:
        return left
    stands_for = []
    for own, others in ((left, right), (right, left)):
        values = ", ".join(f"CAST(NULL AS {kind}) AS {quote(name)}" for name, kind in own)
        query = exp.Subquery(this=sqlglot.parse_one(f"SELECT {values}", dialect="duckdb"))
        _convert(query.this, own, others)
        stands_for.append(query.this)
    both = exp.Union(this=stands_for[0], expression=stands_for[1], distinct=False)
    return _described(session, both, both)


def _convert(side: exp.Expr, own: list[tuple[str, str]], others: list[tuple[str, str]]) -> None:
    """Convert the columns of one side of a set operation whose type the other side does not have."""
    columns = [exp.column(f"_{number}", quoted=True) for number in range(len(own))]
    named: list[exp.Expr] = []
    is_changed = False
    for column, (name, kind), (_, other) in zip(columns, own, others, strict=True):
        value = _converted(column, kind, other)
        is_changed |= value is not None
        named.append(exp.alias_(value or column.copy(), name, quoted=True))
    if is_changed:
        alias = exp.TableAlias(
            this=exp.to_identifier("_side", quoted=True), columns=[column.this.copy() for column in columns]
        )
        side.replace(exp.select(*named).from_(exp.Subquery(this=side.copy(), alias=alias)))


def _converted(value: exp.Expr, kind: str, other: str) -> exp.Expr | None:
    """Return a value as what it becomes beside a value of another type, None where it stays as it is."""
    own, common = ColumnType.from_duckdb(kind), ColumnType.from_duckdb(other)
    if common.kind == "NUMBER" and (kind == "VARCHAR" or own.kind == "NUMBER"):
        scale = common.scale or 0
        return numbers.decimal(value, scale) if kind == "VARCHAR" or scale > (own.scale or 0) else None
    if kind != "VARCHAR":
        return None
    if other == "JSON":
        return timestamps.call("to_json", value)
    if common.kind == "FLOAT":
        return exp.cast(value.copy(), "DOUBLE")
    return timestamps.call(MACROS[common.kind], value) if common.kind in MACROS else None


# -- Values that a change assigns: what a VARCHAR column gets is the text that a cast makes ---------------


_NESTED = {"OBJECT": "_object", "ARRAY": "_array"}
_ASSIGNED = (exp.Literal, exp.Null, exp.Var, exp.Boolean, exp.Parameter, exp.Placeholder)


def target(session: Session, tree: exp.Expr) -> Table | None:
    """Return the table that a statement changes, with its names as the engine has them; None for a query."""
    changed = tree.this if isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)) else None
    changed = changed.this if isinstance(changed, exp.Schema) else changed
    return sources.find_anywhere(session, changed) if isinstance(changed, exp.Table) else None


def cast_assigned(tree: exp.Expr, table: Table) -> None:
    """Cast what VALUES, UPDATE and MERGE assign to VARCHAR columns, but for what is a text.

    :raises SqlError: 002023 for a text that would be a VARIANT.
    """
    known = {column.name: column for column in table.columns}
    for change in tree.find_all(exp.Insert, exp.Update):
        if isinstance(change, exp.Update):
            for part in change.expressions:
                if isinstance(part, exp.EQ) and part.this.name in known:
                    _cast_one(part.expression, known[part.this.name])
            continue
        listed = change.this.expressions if isinstance(change.this, (exp.Tuple, exp.Schema)) else []
        columns = [known.get(part.name) for part in listed] or list(table.columns)
        source = change.expression
        rows = source.expressions if isinstance(source, exp.Values) else [source]
        for row in rows:
            for column, value in zip(
                columns, row.expressions if isinstance(row, exp.Tuple) else [], strict=False
            ):
                if column is not None:
                    _cast_one(value, column)


def _cast_one(value: exp.Expr, column: Column) -> None:
    if column.type.is_semi_structured and isinstance(value, exp.Literal) and value.is_string:
        raise _not_of_type(column, f"VARCHAR({len(value.name)})")
    if isinstance(value, _ASSIGNED):
        return
    if column.type.kind == "VARCHAR":
        value.replace(exp.cast(value.copy(), "TEXT"))
    elif column.type.kind in _NESTED:
        value.replace(timestamps.call(_NESTED[column.type.kind], timestamps.call("to_json", value)))


def _not_of_type(column: Column, given: str) -> SqlError:
    return compilation_error(
        f"Expression type does not match column data type, expecting {column.type} but got {given} for "
        f"column {column.name}",
        "002023",
        "22000",
    )


def assigned(session: Session, query: exp.Expr, columns: Sequence[Column | None]) -> exp.Expr:
    """Return a translated query that gives VARCHAR columns the texts of its values.

    :param columns: those that it fills, in their order.
    :raises SqlError: 002023 for a text that would be a VARIANT.
    """
    values = query.selects if isinstance(query, exp.Select) and not query.is_star else [None] * len(columns)
    if all(_stays(value, column) for value, column in zip(values, columns, strict=False)):
        return query
    found = _described(session, query, query)
    if len(found) != len(columns):
        return query
    given = [exp.column(f"_{number}", quoted=True) for number in range(len(found))]
    values = [
        _given(session, value, kind, column)
        for column, value, (_, kind) in zip(columns, given, found, strict=True)
    ]
    if all(isinstance(value, exp.Column) for value in values):
        return query
    names = [value.this.copy() for value in given]
    alias = exp.TableAlias(this=exp.to_identifier("_given", quoted=True), columns=names)
    return exp.select(*values).from_(exp.Subquery(this=query.copy(), alias=alias))


def _given(session: Session, value: exp.Column, kind: str, column: Column | None) -> exp.Expr:
    """Return a value of one of the engine's types as a column gets it."""
    own = ColumnType.from_duckdb(kind)
    if column is None:
        return value
    if column.type.is_semi_structured and kind == "VARCHAR":
        raise _not_of_type(column, str(own))
    if column.type.kind in _NESTED and kind == "JSON":
        return timestamps.call(_NESTED[column.type.kind], value)
    if column.type.kind != "VARCHAR":
        return value
    if own.is_semi_structured:
        return sources.text_of(value if kind == "JSON" else timestamps.call("to_json", value))
    return timestamps.text_of(value, own.kind, session.parameters) if own.kind in timestamps.KINDS else value


def assign(session: Session, tree: exp.Expr, table: Table) -> None:
    """Let a translated INSERT of a query convert its values as :func:`assigned` does."""
    if not isinstance(tree, exp.Insert) or not isinstance(tree.expression, exp.Query):
        return
    listed = [part.name for part in tree.this.expressions] if isinstance(tree.this, exp.Schema) else []
    known = {column.name: column for column in table.columns}
    columns = [known.get(name) for name in listed] if listed else list(table.columns)
    tree.set("expression", assigned(session, tree.expression, columns))


def _stays(value: exp.Expr | None, column: Column | None) -> bool:
    """Return True for a value that a column gets as it is, whatever type the engine finds that it has."""
    if column is None or (column.type.kind != "VARCHAR" and not column.type.is_semi_structured):
        return True
    value = value.unalias() if value is not None else None
    if column.type.kind == "VARCHAR":
        return isinstance(value, exp.Literal) and bool(value.is_string)
    return column.type.kind == "VARIANT" and sources.is_json(value, ())
