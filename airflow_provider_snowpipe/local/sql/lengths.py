"""Lengths of VARCHAR and BINARY, and text for BINARY, in what DML writes ("String & binary data types")."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from sqlglot import exp

from airflow_provider_snowpipe.local.engine.conversions import MACROS, cut
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.sql import functions, named_tables, translate
from airflow_provider_snowpipe.local.tables import Column
from airflow_provider_snowpipe.local.types import MAX_VARCHAR

# Key of a placeholder's number among the metadata of its node.
NUMBER = "number"
# A text that the engine reads as Snowflake does.
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)?|\d\d:\d\d:\d\d|true|false")
# A list of one, so that the value is computed once.
_CHECKED = (
    "list_transform([{value}], lambda x: CASE WHEN {size}(x) > {most} "
    "THEN error('{kind} ''' || {shown} || ''' is too long and would be truncated') ELSE x END)[1]"
)


def is_plain(value: Any, kind: str) -> bool:
    """Return True for a bound value that the engine by itself reads as Snowflake does.

    :param kind: type word of the column that it is for.
    """
    return not isinstance(value, str) or (kind != "TIMESTAMP_TZ" and _PLAIN.fullmatch(value) is not None)


def enforce(database: Database, tree: exp.Expr, typed: Collection[int] = ()) -> None:
    """Let a prepared INSERT, UPDATE or MERGE check what it writes; a table without limits stays as it is.

    :param typed: numbers of the placeholders whose values need no reading (:func:`is_plain`).
    :raises SqlError: 100078 for a literal that is too long, 100115 for one that is no hexadecimal text.
    """
    target = translate.target_of(tree)
    table = named_tables.find(database, target) if target is not None else None
    if table is None:
        return
    names = [column.name for column in table.columns]
    limited = {column.name: column for column in table.columns if _is_limited(column)}
    if not limited:
        return
    for change in tree.find_all(exp.Insert, exp.Update):
        if isinstance(change, exp.Update):
            for part in change.expressions:
                if isinstance(part, exp.EQ) and part.this.name in limited:
                    part.set("expression", _guard(part.expression, limited[part.this.name]))
        elif isinstance(change, exp.Insert):
            listed = change.this.expressions if isinstance(change.this, (exp.Tuple, exp.Schema)) else []
            _enforce_rows(change, [part.name for part in listed] or names, limited, typed)


def _enforce_rows(
    insert: exp.Insert, names: list[str], limited: dict[str, Column], typed: Collection[int]
) -> None:
    source = insert.expression
    if isinstance(source, (exp.Values, exp.Tuple)):
        for row in source.expressions if isinstance(source, exp.Values) else [source]:
            values = row.expressions if isinstance(row, exp.Tuple) else [row.this]
            for name, value in zip(names, list(values), strict=False):
                is_read = name in limited and limited[name].type.kept_micros == 1
                if is_read and limited[name].type.kind in MACROS and value.meta.get(NUMBER) in typed:
                    continue
                if name in limited:
                    value.replace(_guard(value, limited[name]))
        return
    if isinstance(source, exp.Query) and limited.keys() & set(names):
        insert.set("expression", _enforced(source, names, limited))


def checked(query: exp.Expr, columns: Sequence[Column]) -> exp.Expr:
    """Return a prepared query that checks what it writes into these columns, all of them in their order."""
    limited = {column.name: column for column in columns if _is_limited(column)}
    return _enforced(query, [column.name for column in columns], limited) if limited else query


def _enforced(query: exp.Expr, names: list[str], limited: dict[str, Column]) -> exp.Expr:
    given = [exp.to_identifier(f"_{number}", quoted=True) for number in range(len(names))]
    columns = [exp.Column(this=name.copy()) for name in given]
    alias = exp.TableAlias(this=exp.to_identifier("_new", quoted=True), columns=given)
    return exp.select(
        *(
            _guard(value, limited[name]) if name in limited else value
            for name, value in zip(names, columns, strict=True)
        )
    ).from_(exp.Subquery(this=query.copy(), alias=alias))


def _is_limited(column: Column) -> bool:
    if column.type.kind in {"BINARY", *MACROS}:
        return True
    return column.type.kind == "VARCHAR" and (column.type.length or MAX_VARCHAR) < MAX_VARCHAR


def _guard(value: exp.Expr, column: Column) -> exp.Expr:
    if isinstance(value, (exp.Null, exp.Var, exp.Boolean)):
        return value
    if column.type.kind in MACROS:
        if (
            isinstance(value, exp.Literal)
            and column.type.kind != "TIMESTAMP_TZ"
            and column.type.kept_micros == 1
            and _PLAIN.fullmatch(value.name)
        ):
            return value
        return functions.fill(cut(column, f"{MACROS[column.type.kind]}(_0)"), [value])
    most, is_text = column.type.length, column.type.kind == "VARCHAR"
    if isinstance(value, exp.Literal):
        if is_text:
            if len(value.name) > (most or 0):
                raise SqlError("100078", "22000", f"String '{value.name}' is too long and would be truncated")
            return value
        value = functions.binary_of(value)
    checked = _CHECKED.format(
        value="CAST(_0 AS VARCHAR)" if is_text else "_binary(_0)",
        size="length" if is_text else "octet_length",
        most=most,
        kind="String" if is_text else "Binary value",
        shown="left(x, 200)" if is_text else "left(hex(x), 200)",
    )
    return functions.fill(checked, [value])
