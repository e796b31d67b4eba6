"""VARIANT values inside expressions: where Snowflake reads a text or a number, DuckDB needs to be told.

DuckDB knows VARIANT as JSON and would compare, join and cast the JSON text with its quotes. Which columns
hold JSON is known by name: from the tables of the query, from FLATTEN, and from aliases of such expressions.
Dates are followed the same way, because Snowflake's DATEADD of days keeps a DATE a DATE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import sqlglot
from sqlglot import exp

from airflow_provider_snowpipe.local.identifiers import quote
from airflow_provider_snowpipe.local.sql import arithmetic, functions, named_tables, timestamps
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column

_JSON_CALLS = frozenset(
    {"JSON_EXTRACT", "JSON_ARRAY", "JSON_OBJECT", "JSON_MERGE_PATCH", "TO_JSON", "JSON_GROUP_OBJECT",
     "_SORTED_KEYS", "_PARSE_JSON", "JSON_GROUP_ARRAY", "GET_PATH", "GET", "TO_VARIANT", "TO_OBJECT",
     "OBJECT_AGG", "OBJECT_INSERT"}
)  # fmt: skip
_FLATTENED = frozenset({"VALUE", "THIS"})
# Functions of text: an argument that holds JSON is read as its text.
_OF_TEXT = (
    exp.Upper, exp.Lower, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Like, exp.ILike, exp.Length, exp.Trim,
    exp.Substring, exp.SplitPart, exp.Split, exp.RegexpLike, exp.RegexpReplace, exp.RegexpExtract,
    exp.Replace, exp.Left, exp.Right, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Initcap, exp.Reverse,
)  # fmt: skip
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)
_COUNTED = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Sum, exp.Avg)
_TYPED = (exp.Div, exp.Avg, exp.Window, exp.Filter)
_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_PATHS = frozenset({"JSON_EXTRACT", "JSON_EXTRACT_STRING", "JSON_TYPE", "JSON_ARRAY_LENGTH"})
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "JSON", "STRUCT", "MAP", "LIST"})


def read_as_text_or_number(session: Session, tree: exp.Expr) -> exp.Expr:
    """Make casts, comparisons, arithmetic and functions of text read JSON as Snowflake reads a VARIANT."""
    names = _json_names(session, tree)

    kinds = _time_kinds(session, tree)

    def change(node: exp.Expr) -> exp.Expr:
        timed = timestamps.change(node, kinds, session.parameters)
        if timed is not node:
            return timed
        if isinstance(node, exp.Cast):
            return _cast(node, names)
        if isinstance(node, (exp.DateAdd, exp.TimestampTrunc)) and _stays_date(node, kinds):
            return exp.cast(node.copy(), "DATE")
        if isinstance(node, (exp.Min, exp.Max)) and is_json(node.this, names):
            call = "arg_max" if isinstance(node, exp.Max) else "arg_min"
            return _call(call, node.this, _call("_variant_key", node.this))
        _read_operands(node, names)
        return arithmetic.typed(node) if isinstance(node, _TYPED) else node

    if names:
        _sort_keys(session, tree, names)
    # From the leaves up: an inner cast decides what the outer one sees.
    for node in reversed(list(tree.walk(prune=lambda part: bool(part.meta.get("engine"))))):
        changed = change(node)
        if changed is not node:
            if node is tree:
                return changed
            node.replace(changed)
    return tree


def _read_operands(node: exp.Expr, names: set[str]) -> None:
    if isinstance(node, _OF_TEXT):
        _each(node, names, "VARCHAR")
    elif isinstance(node, _COMPARED):
        _compare(node, names)
    elif isinstance(node, _COUNTED):
        _each(node, names, "DOUBLE")
    elif isinstance(node, exp.Ordered) and is_json(value := _ordered(node), names):
        node.set("this", _call("_variant_key", value))


def _sort_keys(session: Session, tree: exp.Expr, names: set[str]) -> None:
    """Number the inputs of FLATTEN, and let a query read its semi-structured columns with sorted keys.

    Rows keep their values as they came: to sort keys costs more than to parse a row. A column that only
    paths lead into is left alone.
    """
    flattened = _number_inputs(session, tree)
    has_star = any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star))
    used = {column.name for column in tree.find_all(exp.Column) if not _is_below_path(column)}
    changed = tree.this if isinstance(tree, _CHANGES) else None
    changed = changed.this if isinstance(changed, exp.Schema) else changed
    for table in list(tree.find_all(exp.Table)):
        known = None if table is changed else named_tables.find_anywhere(session, table)
        columns = [c for c in known.columns if c.type.is_semi_structured] if known is not None else []
        columns = [column for column in columns if has_star or column.name in used & names]
        alias = table.args.get("alias")
        if not columns or alias is None or (has_star and alias.name in flattened):
            continue
        named = [quote(column.name) for column in columns]
        replaced = ", ".join(f"_sorted_keys({name}) AS {name}" for name in named)
        rowid = ", rowid AS rowid" if alias.name in flattened else ""
        query = sqlglot.parse_one(f"SELECT * REPLACE ({replaced}){rowid}", dialect="duckdb")
        source = table.copy()
        source.set("alias", None)
        query.set("from_", exp.From(this=source))
        wrapped = exp.Subquery(this=query, alias=alias.copy())
        wrapped.meta["engine"] = True
        for part in ("joins", "laterals", "pivots", "sample"):
            wrapped.set(part, source.args.pop(part, None))
        table.replace(wrapped)


def _is_below_path(column: exp.Column) -> bool:
    parent = column.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Anonymous) and parent.name.upper() in _PATHS


def _number_inputs(session: Session, tree: exp.Expr) -> set[str]:
    """Give each input record of a FLATTEN its SEQ; return the aliases of the tables that they come from."""
    flattened: set[str] = set()
    for view in tree.find_all(exp.Subquery):
        given = view.meta.get("flatten")
        if given is None:
            continue
        column = given.find(exp.Column)
        select = view.find_ancestor(exp.Select)
        number = "CAST(1 AS BIGINT)"
        if column is not None and select is not None:
            number = "CAST(hash(CAST(_0 AS VARCHAR)) >> 2 AS BIGINT)"
            for table in select.find_all(exp.Table):
                known = named_tables.find_anywhere(session, table)
                has_column = known is not None and any(c.name == column.name for c in known.columns)
                if has_column and column.table in {table.alias_or_name, ""}:
                    flattened.add(table.alias_or_name)
                    number = f"{quote(table.alias_or_name)}.rowid + 1"
        for marker in list(view.find_all(exp.Column)):
            if marker.name == "__seq":
                marker.replace(functions.fill(number, [given]))
    return flattened


def _stays_date(node: exp.Expr, kinds: Mapping[str, str]) -> bool:
    unit = node.args.get("unit")
    word = unit.name.upper().rstrip("S") if unit is not None else "DAY"
    is_date = timestamps.kind_of(node.this, kinds) == "DATE"
    return is_date and word in {"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}


def _time_kinds(session: Session, tree: exp.Expr) -> dict[str, str]:
    """Return the type words of columns and aliases that are a DATE, TIME or TIMESTAMP wherever they occur."""
    found: dict[str, set[str]] = {}
    for column in columns_of(session, tree):
        found.setdefault(column.name, set()).add(column.type.kind)
    kinds = {name: next(iter(words)) for name, words in found.items() if len(words) == 1}
    for alias in tree.find_all(exp.Alias):
        kind = timestamps.kind_of(alias.this, kinds)
        if kind is not None and alias.alias not in found:
            kinds[alias.alias] = kind
    return {name: kind for name, kind in kinds.items() if kind in timestamps.KINDS}


def columns_of(session: Session, tree: exp.Expr) -> Iterator[Column]:
    """Yield the columns of the tables and views of a statement."""
    for table in tree.find_all(exp.Table):
        known = named_tables.find_anywhere(session, table)
        yield from known.columns if known is not None else ()
    for view in tree.find_all(exp.Subquery):
        yield from view.meta.get("columns", ())


def is_json(node: exp.Expr | None, names: Iterable[str]) -> bool:
    """Return True for an expression whose value is JSON."""
    if isinstance(node, exp.Paren):
        return is_json(node.this, names)
    if isinstance(node, exp.Column):
        return node.name in names
    if isinstance(node, (exp.JSONExtract, exp.ParseJSON, exp.Bracket)):
        return not isinstance(node, exp.Bracket) or is_json(node.this, names)
    if isinstance(node, (exp.Coalesce, exp.If)):
        return any(is_json(child, names) for child in (node.this, *node.expressions, node.args.get("true")))
    if isinstance(node, exp.Cast):
        return _word(node.to) in _SEMI_STRUCTURED
    return isinstance(node, exp.Anonymous) and node.name.upper() in _JSON_CALLS


def _json_names(session: Session, tree: exp.Expr) -> set[str]:
    names: set[str] = set()
    plain: set[str] = set()
    for column in columns_of(session, tree):
        (names if column.type.is_semi_structured else plain).add(column.name)
    if any(node.meta.get("flatten") for node in tree.find_all(exp.Subquery)):
        names |= _FLATTENED
    names -= plain
    aliases = [alias for alias in tree.find_all(exp.Alias) if alias.alias not in plain]
    grown = True
    while grown:
        found = {alias.alias for alias in aliases if is_json(alias.this, names)}
        grown = not found <= names
        names |= found
    return names


def _word(kind: exp.Expr) -> str:
    return str(getattr(kind.this, "value", kind.this)).upper()


def _text(node: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="json_extract_string", expressions=[node.copy(), exp.Literal.string("$")])


def _call(name: str, *given: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[node.copy() for node in given])


def _as(node: exp.Expr, kind: str) -> exp.Expr:
    return _text(node) if kind == "VARCHAR" else exp.cast(_text(node), kind)


def _cast(node: exp.Cast, names: set[str]) -> exp.Expr:
    if _word(node.to) == "JSON":
        # No type of Snowflake: a cast that the service itself wrote.
        return node
    if _word(node.to) in _SEMI_STRUCTURED:
        if is_json(node.this, names):
            return node
        return exp.Anonymous(this="to_json", expressions=[node.this.copy()])
    if is_json(node.this, names):
        node.set("this", _text(node.this))
    return node


def _each(node: exp.Expr, names: set[str], kind: str) -> None:
    for child in list(node.iter_expressions()):
        if is_json(child, names):
            child.replace(_as(child, kind))


def _compare(node: exp.Expr, names: set[str]) -> None:
    children = list(node.iter_expressions())
    held = [child for child in children if is_json(child, names)]
    others = [child for child in children if child not in held]
    # SET a = b is no comparison.
    if not held or (isinstance(node.parent, exp.Update) and node.arg_key == "expressions"):
        return
    if not others:
        for child in held:
            child.replace(_call("_variant_key", child))
        return
    kinds = {_kind(child) for child in others}
    for child in held:
        text = _text(child)
        if len(kinds) == 1 and (kind := next(iter(kinds))) is not None:
            # Beside a number or a boolean, a VARIANT of another type is neither equal to it nor greater.
            text = exp.TryCast(this=text, to=exp.DataType.build(kind))
        child.replace(text)


def _ordered(node: exp.Ordered) -> exp.Expr:
    """Return what ORDER BY names, by its number or by itself."""
    select = node.parent.parent if isinstance(node.parent, exp.Order) else None
    value: exp.Expr = node.this
    if isinstance(select, exp.Select) and isinstance(value, exp.Literal) and value.is_int:
        number = int(value.name)
        if 0 < number <= len(select.expressions):
            value = select.expressions[number - 1].unalias()
    return value


def _kind(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Boolean):
        return "BOOLEAN"
    is_number = isinstance(node, exp.Literal) and not node.is_string
    return "DOUBLE" if is_number or isinstance(node, exp.Neg) else None
