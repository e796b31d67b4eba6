"""Tables and columns of a statement: what the engine calls them, and which of them hold VARIANT values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

import sqlglot
from sqlglot import exp
from sqlglot.helper import seq_get

from snowpipe_local.engine.conversions import MACROS
from snowpipe_local.engine.database import Database
from snowpipe_local.errors import compilation_error, unsupported
from snowpipe_local.sql import functions, numbers, timestamps
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.types import (
    CHOICES,
    COMPARED,
    MOVED,
    SHOWN,
    TEXT_SCALE,
    Scopes,
    choices,
    outputs,
    tested,
    type_of,
)
from snowpipe_local.tables import PLAIN_DATE, PLAIN_TIME, Column, Table, quote

# -- Tables that a statement names: the engine's path goes into its tree, Snowflake's stays beside -------

_FULL_NAME = "full name"


def new(database: Database, schema: str, name: str, columns: tuple[Column, ...]) -> Table:
    """Return a table that a statement is to create, at the home of its schema."""
    now = database.clock.now_ms()
    return Table(
        database.name,
        schema,
        name,
        columns,
        now,
        home=database.names.home(schema),
        engine_name=database.tables.engine_name(schema, name),
    )


def put(node: exp.Table, database: Database, table: Table) -> None:
    """Let a node name a table as the engine does."""
    engine = (*database.names.home(table.schema), table.engine)
    for part, word in zip(("catalog", "db", "this"), engine, strict=True):
        node.set(part, exp.to_identifier(word, quoted=True))
    node.meta[_FULL_NAME] = (database.name, table.schema, table.name)


def database_of(session: Session, node: exp.Table) -> Database:
    """Return the database of a table that :func:`put` named.

    :raises SqlError: when it was dropped meanwhile.
    """
    return session.catalog.database(node.meta[_FULL_NAME][0])


def find_anywhere(session: Session, node: exp.Table) -> Table | None:
    """Return the table that :func:`put` named, or None for another relation."""
    full_name = node.meta.get(_FULL_NAME)
    database = session.catalog.find(full_name[0]) if full_name is not None else None
    return database.tables.find(*full_name[1:]) if full_name is not None and database is not None else None


def changed_table(session: Session, tree: exp.Expr) -> Table | None:
    """Return the table that a DML statement changes, None for another statement."""
    target = target_of(tree)
    return None if target is None else find_anywhere(session, target)


def target_of(tree: exp.Expr) -> exp.Table | None:
    """Return the table that a DML statement changes, or None for a query."""
    if not isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)):
        return None
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    return target if isinstance(target, exp.Table) else None


# -- VARIANT values inside expressions: where Snowflake reads a text or a number, DuckDB needs the type ----
#
# DuckDB knows VARIANT as JSON and would compare, join and cast the JSON text with its quotes.

FLATTEN = ("SEQ", "KEY", "PATH", "INDEX", "VALUE", "THIS")
"""Columns of FLATTEN."""
# Functions of text: an argument that holds JSON is read as its text.
_OF_TEXT = (
    exp.Upper, exp.Lower, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Like, exp.ILike, exp.Length, exp.Trim,
    exp.Substring, exp.SplitPart, exp.Split, exp.RegexpLike, exp.RegexpReplace, exp.RegexpExtract,
    exp.Replace, exp.Left, exp.Right, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Initcap, exp.Reverse,
    exp.ToChar, exp.Pad, exp.MD5, exp.SHA, exp.SHA2, exp.StrPosition, exp.Translate, exp.RegexpCount,
    exp.RegexpInstr, exp.Repeat, exp.Strtok,
)  # fmt: skip
# A number of more digits than a DOUBLE keeps, and the fractional digits of what is compared with it.
_LONG, _LONG_SCALE = re.compile(r"(?=.{17})\d+(?:\.\d*)?"), 12
# Macros that read a value of any type, JSON by its text.
_READING = frozenset({"_ntz", "_ltz", "_tz", "_date", "_time", "_boolean", "_binary", "_scaled"})
_CHOICES = (exp.Case, exp.If, exp.Coalesce, exp.DecodeCase, exp.Nvl2)
_CHOSEN = (exp.Min, exp.Max, exp.Nullif)
# Functions of dates and times, which read a text as a timestamp.
_OF_TIMES = (
    exp.Year, exp.Month, exp.Day, exp.Hour, exp.Minute, exp.Second, exp.Quarter, exp.Extract, exp.LastDay,
    exp.DateDiff, exp.DateAdd, exp.DateTrunc, exp.TimestampTrunc, exp.Week, exp.DayOfWeek, exp.DayOfYear,
    exp.Dayname, exp.Monthname,
)  # fmt: skip
_OF_NUMBERS = (
    exp.Sum, exp.Avg, exp.Median, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop,
    exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log, exp.Pow,
)  # fmt: skip
_ARITHMETIC = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Trunc,
    exp.Sign,
)  # fmt: skip
_PATHS = frozenset(
    {"JSON_EXTRACT", "JSON_EXTRACT_STRING", "JSON_TYPE", "JSON_ARRAY_LENGTH", "_MEMBER", "_EXACT",
     "_FLAT_THIS", "_FLAT_VALUE"}
)  # fmt: skip
_JSON_READERS = _PATHS | {"TO_JSON", "TRY", "IF"}
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "JSON", "STRUCT", "MAP", "LIST"})


def read_as_text_or_number(session: Session, tree: exp.Expr) -> exp.Expr:
    """Make casts, comparisons, arithmetic and functions of text read JSON as Snowflake reads a VARIANT."""
    Scopes(partial(known_columns, session)).note(_own(tree))
    shown = outputs(tree) if isinstance(tree, exp.Query) else None
    _sort_keys(session, tree)
    # From the leaves up: an inner cast decides what the outer one sees.
    for node in reversed(list(_own(tree))):
        changed = _read(session, node)
        if changed is not node:
            if node is tree:
                return changed
            node.replace(changed)
    tree.meta[SHOWN] = shown
    return tree


def _own(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the nodes of a statement, but for those that the service wrote in the engine's words."""
    return tree.walk(prune=lambda part: part.meta_get("engine") is True)


def known_columns(session: Session, relation: exp.Expr) -> Sequence[Column] | None:
    """Return the columns of a table, or of another relation that the service made; None for others."""
    known = find_anywhere(session, relation) if isinstance(relation, exp.Table) else None
    made = relation.this if isinstance(relation, exp.Subquery) else relation
    found: Sequence[Column] | None = relation.meta_get("columns") or made.meta_get("columns")
    return found if known is None else known.columns


def _read(session: Session, node: exp.Expr) -> exp.Expr:
    """Return an expression as the engine can compute it; its parts are done already."""
    type_of(node)
    _check_tried(node)
    read = _read_text(node)
    if read is node:
        read = timestamps.change(node, session.parameters)
    if read is node:
        read = _semi_structured_cast(node) if isinstance(node, exp.Cast) else _of_json(node)
    if read is not node or isinstance(node, exp.Cast):
        return read
    numbers.as_whole_number(node)
    kept = _of_type(node)
    if kept is not node:
        return kept
    _write_text(node, session)
    _read_texts(node)
    _read_operands(node)
    node = _read_numbers(node)
    _read_whole_numbers(node)
    return numbers.computed(node)


def _is_json(node: exp.Expr | None) -> bool:
    return type_of(node).kind == "VARIANT"


def _of_json(node: exp.Expr) -> exp.Expr:
    """Leave JSON as it is, also in arrays: the engine would write its numbers through a DOUBLE."""
    if isinstance(node, exp.JSONFormat) and _is_json(node.this):
        return exp.cast(node.this.copy(), "TEXT")
    if isinstance(node, _CHOSEN) and _is_json(node.this):
        return _chosen(node)
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in {"to_json", "_enclosed"}:
        return node
    if node.name == "_enclosed":
        return _without_json(node)
    value: exp.Expr = node.expressions[0]
    listed = value.this if isinstance(value, exp.Coalesce) else value
    while isinstance(listed, (exp.Window, exp.WithinGroup, exp.Filter)):
        listed = listed.this
    if isinstance(listed, (exp.ArrayAgg, exp.ArrayUniqueAgg)):
        held = listed.this
        while isinstance(held, (exp.Order, exp.Distinct)):
            held = held.this or seq_get(held.expressions, 0)
        return timestamps.call("_array_of", value) if _is_json(held) else node
    return value if _is_json(value) else node


def _without_json(node: exp.Anonymous) -> exp.Expr:
    """Let the engine build an array that has no JSON in it, which is faster; others stay joined texts."""
    elements = [part.expressions[0] for part in node.expressions[2].expressions if part.name == "_element"]
    written = [part for part in elements if isinstance(part, exp.Anonymous) and part.name == "to_json"]
    if not elements or written != elements:
        return node
    return timestamps.call("json_array", *(part.expressions[0] for part in written))


def _of_type(node: exp.Expr) -> exp.Expr:
    """Return a part of a BINARY as one, and a DATE that is moved by days as one."""
    if isinstance(node, _PARTS) and timestamps.kind_of(node.this) == "BINARY":
        return _of_bytes(node)
    is_moved = isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.expression, exp.Interval)
    if (is_moved or isinstance(node, MOVED)) and timestamps.kind_of(node) == "DATE":
        return exp.cast(node.copy(), "DATE")
    return node


def _chosen(node: exp.Min | exp.Max | exp.Nullif) -> exp.Expr:
    """Return MIN, MAX and NULLIF of VARIANT values, which are compared by their types."""
    if isinstance(node, exp.Nullif):
        equal = exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        _compare(equal)
        return exp.If(this=equal, true=exp.null(), false=node.this.copy())
    call = "arg_max" if isinstance(node, exp.Max) else "arg_min"
    return timestamps.call(call, node.this, timestamps.call("_variant_key", node.this))


def _check_tried(node: exp.Expr) -> None:
    """Refuse TRY_CAST of what is not text ("TRY_CAST", Usage notes).

    :raises SqlError: 001065.
    """
    if not isinstance(node, exp.TryCast) or not node.args.get("requires_string"):
        return
    kind = type_of(node.this).kind
    if kind in {"NUMBER", *timestamps.KINDS}:
        target = node.to.sql(dialect="snowflake")
        raise compilation_error(
            f"Function TRY_CAST cannot be used with arguments of types {kind} and {target}", "001065", "22023"
        )


def _read_text(node: exp.Expr) -> exp.Expr:
    """Return a cast of what is known to be a text as the macro that reads it; what is tried is one always."""
    if not isinstance(node, (exp.Cast, exp.TsOrDsToDate)):
        return node
    value = node.this.unnest()
    is_text = isinstance(node, exp.TryCast) or (_is_text(value) and not isinstance(value, exp.Literal))
    if not is_text or _is_json(value):
        return node
    if isinstance(node, exp.Cast):
        return timestamps.read_cast(node, is_text=True)
    return timestamps.read_by_format(node, is_text=True)


_PARTS = (exp.Substring, exp.Left, exp.Right)


def _of_bytes(node: exp.Expr) -> exp.Expr:
    """Return SUBSTR, LEFT and RIGHT of a BINARY: of its digits, which are two for each byte."""
    digits: exp.Expr = timestamps.call("hex", node.this)
    sizes = functions.arguments(node)[1:]
    twice = [functions.fill("2 * CAST(_0 AS BIGINT)", [size]) for size in sizes]
    if isinstance(node, exp.Substring):
        twice[0] = functions.fill("2 * CAST(_0 AS BIGINT) - CASE WHEN _0 > 0 THEN 1 ELSE 0 END", sizes)
    return timestamps.call("unhex", timestamps.call(node.key, digits, *twice))


def _write_text(node: exp.Expr, session: Session) -> None:
    """Give a function of text the text of a number, a time or a boolean."""
    value = node.this if isinstance(node, _OF_TEXT) else None
    kind = type_of(value).kind
    if value is None or kind == "BINARY":
        return
    if kind in timestamps.KINDS:
        value.replace(timestamps.text_of(value, kind, session.parameters))
    elif kind in {"NUMBER", "BOOLEAN"}:
        value.replace(exp.cast(value.copy(), "TEXT"))


def _read_operands(node: exp.Expr) -> None:
    if isinstance(node, _OF_TEXT) or (isinstance(node, exp.Anonymous) and node.name in _READING):
        _each(node, "VARCHAR")
    elif isinstance(node, exp.GroupConcat):
        value = node.this.this if isinstance(node.this, exp.Order) else node.this
        if _is_json(value):
            value.replace(text_of(value))
    elif isinstance(node, _CHOICES):
        if isinstance(node, (exp.Case, exp.DecodeCase)):
            _choose(node)
        values = choices(node)
        others = [value for value in values if not _is_json(value)]
        for value in others if len(others) < len(values) else ():
            value.replace(timestamps.call("to_json", value))
    elif isinstance(node, COMPARED):
        _compare(node)
    elif isinstance(node, (*_OF_NUMBERS, *_ARITHMETIC)):
        _each(node, "DOUBLE")
    elif isinstance(node, exp.Ordered) and _is_json(value := _ordered(node)):
        node.set("this", timestamps.call("_variant_key", value))


def _read_numbers(node: exp.Expr) -> exp.Expr:
    """Cast texts that are operands of arithmetic, or that are compared with or chosen beside numbers.

    SUM and the like cast a VARCHAR to FLOAT ("SUM", "Usage notes"); beside a FLOAT it is one as well.

    :returns: the expression; NULLIF of a text and a number as a choice that keeps the text.
    """
    if isinstance(node, exp.Nullif):
        equal = exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        _read_numbers(equal)
        is_same = equal.this == node.this and equal.expression == node.expression
        return node if is_same else exp.If(this=equal, true=exp.null(), false=node.this.copy())
    is_float = isinstance(node, _OF_NUMBERS)
    is_number = is_float or isinstance(node, _ARITHMETIC)
    for group in _beside(node):
        given = [_projected(value) for value in group]
        found = [value for value in given if _is_text(value)]
        others = [value for value in given if value not in found] if found else []
        known = {timestamps.kind_of(value) for value in others}
        is_other = any(kind is not None and kind != "FLOAT" for kind in known)
        if not found or is_other or any(isinstance(value, exp.Interval) for value in others):
            continue
        made_float = is_float or "FLOAT" in known
        if not (is_number or made_float or any(type_of(value).is_number for value in others)):
            continue
        for value in found:
            # The engine reads a literal as the type beside it, but not one that a query shows.
            is_shown = isinstance(value.parent, (exp.Select, exp.Alias))
            is_whole = isinstance(value, exp.Literal) and value.name.isdecimal()
            if is_number or is_shown or not is_whole:
                number = (
                    exp.cast(value.copy(), "DOUBLE") if made_float else numbers.decimal(value, TEXT_SCALE)
                )
                value.replace(number)
    return node


# What the engine reads as Snowflake does.
_PLAIN = re.compile(rf"{PLAIN_DATE}(?: {PLAIN_TIME}(?:\.\d{{1,6}})?)?|{PLAIN_TIME}")


def _read_texts(node: exp.Expr) -> None:
    """Read texts that are compared with times of one type, or with BINARY, as values of this type.

    A column of texts in a function of times is read as a timestamp.
    """
    for part in list(node.iter_expressions()) if isinstance(node, _OF_TIMES) else ():
        if isinstance(part, exp.Column) and _is_text(part):
            part.replace(timestamps.call("_ntz", part))
    if isinstance(node, (exp.Case, exp.DecodeCase)):
        value, others = tested(node)
        given = [value, *others] if value is not None else []
    else:
        is_compared = isinstance(node, COMPARED) and not _is_assignment(node)
        given = list(node.iter_expressions()) if is_compared else []
    found = {timestamps.kind_of(value) for value in given} - {None}
    kind = found.pop() if len(found) == 1 else None
    for value in given if kind in MACROS or kind == "BINARY" else ():
        if not _is_text(value) or isinstance(value, exp.Subquery):
            continue
        if kind == "BINARY":
            value.replace(functions.binary_of(value.copy()))
        elif kind != "TIMESTAMP_TZ" and not (isinstance(value, exp.Literal) and _PLAIN.fullmatch(value.name)):
            value.replace(timestamps.call(MACROS[str(kind)], value))


def _projected(node: exp.Expr) -> exp.Expr:
    """Return what a subquery shows, where it is one; any other expression as it is."""
    query = node
    while isinstance(query, (exp.Subquery, exp.Any, exp.All)):
        query = query.this
    return query.selects[0].unalias() if isinstance(query, exp.Select) and query.selects else node


def _beside(node: exp.Expr) -> list[list[exp.Expr]]:
    """Return groups of values in which a text is read as a number: operands, what is compared or chosen."""
    if isinstance(node, _OF_NUMBERS):
        return [list((node.this if isinstance(node.this, exp.Distinct) else node).iter_expressions())]
    if isinstance(node, _ARITHMETIC):
        return [[node.this, node.expression] if isinstance(node, exp.Binary) else [node.this]]
    if isinstance(node, COMPARED):
        return [] if _is_assignment(node) else [list(node.iter_expressions())]
    groups = [choices(node)] if isinstance(node, CHOICES) else []
    if isinstance(node, (exp.Case, exp.DecodeCase)):
        value, others = tested(node)
        groups += [[value, *others]] if value is not None else []
    return groups


def _is_assignment(node: exp.Expr) -> bool:
    """Return True for ``SET a = b``, which is not a comparison."""
    return isinstance(node.parent, exp.Update) and node.arg_key == "expressions"


def _is_text(node: exp.Expr) -> bool:
    return type_of(node).kind == "VARCHAR"


def _read_whole_numbers(node: exp.Expr) -> None:
    """Cast the days by which a DATE or a timestamp moves, which the engine takes as a whole number only."""
    if not isinstance(node, (exp.Add, exp.Sub)):
        return
    left, right = node.this, node.expression
    moved, days = (right, left) if timestamps.kind_of(left) is None else (left, right)
    kind = timestamps.kind_of(moved)
    if not (moved is left or isinstance(node, exp.Add)) or not type_of(days).is_number:
        return
    if kind in {"DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}:
        whole = exp.cast(days.copy(), "INT")
        days.replace(whole if kind == "DATE" else timestamps.call("to_days", whole))


def _sort_keys(session: Session, tree: exp.Expr) -> None:
    """Number the inputs of FLATTEN, and let a query read its semi-structured columns with sorted keys.

    Rows keep their values as they came: to sort keys costs more than to parse a row. A column that only
    paths lead into is left alone.
    """
    flattened = _number_inputs(session, tree)
    changed = target_of(tree)
    tables = [
        (table, find_anywhere(session, table)) for table in tree.find_all(exp.Table) if table is not changed
    ]
    held = [
        (table, columns)
        for table, known in tables
        if known is not None and (columns := [c for c in known.columns if c.type.is_semi_structured])
    ]
    if not held:
        return
    has_star = any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star))
    used = {column.name for column in tree.find_all(exp.Column) if not _is_below_path(column)}
    for table, semi_structured in held:
        columns = [column for column in semi_structured if has_star or column.name in used]
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
    orders: dict[int, tuple[exp.Select, list[exp.Column | None]]] = {}
    for view in tree.find_all(exp.Subquery):
        given = view.meta.get("flatten")
        if given is None:
            continue
        column = given.find(exp.Column)
        select = view.find_ancestor(exp.Select)
        number = "CAST(1 AS BIGINT)"
        start: list[exp.Column] = []
        if column is not None and select is not None:
            number = "CAST(hash(CAST(_0 AS VARCHAR)) >> 2 AS BIGINT)"
            for table in select.find_all(exp.Table):
                known = find_anywhere(session, table)
                has_column = known is not None and any(c.name == column.name for c in known.columns)
                if has_column and column.table in {table.alias_or_name, ""}:
                    flattened.add(table.alias_or_name)
                    number = f"{quote(table.alias_or_name)}.rowid + 1"
                    start = [exp.column("rowid", table=table.alias_or_name, quoted=True)]
        for marker in list(view.find_all(exp.Column)):
            if marker.name == "__seq":
                marker.replace(functions.fill(number, [given]))
        if select is not None and isinstance(view.parent, exp.Lateral):
            _, keys = orders.setdefault(id(select), (select, []))
            columns = [part.name for part in view.parent.args["alias"].columns]
            named = [*columns, *FLATTEN[len(columns) :]]
            earlier = {key.table for key in keys if key is not None}
            is_known = (column is None or start or column.table in earlier) and not view.meta["recursive"]
            position = [exp.column(named[at], table=view.parent.alias, quoted=True) for at in (3, 1)]
            keys += [*start, *position] if is_known else [None]
    for select, keys in orders.values():
        _order(select, keys)
    return flattened


def _order(select: exp.Select, keys: Sequence[exp.Column | None]) -> None:
    """Let a query give the elements of FLATTEN in their order, which the engine's join does not keep.

    Objects have sorted keys. Not where a query asks for another order or makes other rows.
    """
    parts = ("order", "group", "having", "distinct")
    calls = (call for shown in select.expressions for call in shown.find_all(exp.AggFunc, exp.Anonymous))
    is_changed = any(
        isinstance(call, exp.AggFunc) or not (call.name.startswith("_") or call.name.upper() in _JSON_READERS)
        for call in calls
    )
    if None in keys or is_changed or any(select.args.get(part) for part in parts):
        return
    order = exp.Order(expressions=[exp.Ordered(this=key, nulls_first=False) for key in keys])
    order.meta["engine"] = True
    select.set("order", order)


def of_star(session: Session, star: exp.Star) -> list[exp.Column]:
    """Return the columns for which a star stands that is an argument.

    :raises SqlError: 000002 where the columns of a relation of its query are not known by name.
    """
    select = star.find_ancestor(exp.Select)
    joins = [join.this for join in select.args.get("joins") or ()] if select is not None else []
    first = select.args.get("from_") if select is not None else None
    left_out = {column.name for column in star.args.get("except_") or ()}
    found: list[exp.Column] = []
    for relation in [first.this, *joins] if first is not None else []:
        names = [column.name for column in known_columns(session, relation) or ()]
        if isinstance(relation, exp.Subquery) and not names and not relation.this.is_star:
            names = relation.this.named_selects
        if not names or star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
            raise unsupported("* as the argument of a function over this relation")
        found += [
            exp.column(n, relation.alias_or_name or None, quoted=True) for n in names if n not in left_out
        ]
    return found


def names_of(session: Session, query: exp.Expr) -> list[str]:
    """Return the names of a query's columns, as far as they are known; a star stands for those it reads."""
    while isinstance(query, (exp.Subquery, exp.SetOperation, exp.Paren)):
        query = query.this
    names: list[str] = []
    for projection in query.expressions if isinstance(query, exp.Select) else ():
        if not projection.is_star:
            names.append(projection.alias_or_name)
            continue
        owner = projection.table if isinstance(projection, exp.Column) else ""
        star = projection.this if isinstance(projection, exp.Column) else projection
        left_out = {column.name for column in star.args.get("except_") or ()}
        read = [query.args["from_"].this] if query.args.get("from_") else []
        read += [join.this for join in query.args.get("joins") or ()]
        for relation in read:
            if owner in {"", relation.alias_or_name}:
                names += [name for name in _names_read(session, relation) if name not in left_out]
    return names


def _names_read(session: Session, relation: exp.Expr) -> list[str]:
    alias = relation.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return [part.name for part in alias.args["columns"]]
    known = known_columns(session, relation)
    if known is not None:
        return [column.name for column in known]
    if isinstance(relation, exp.Table):
        holders = (holder.args.get("with_") for holder in _around(relation))
        ctes = (cte for holder in holders if holder is not None for cte in holder.expressions)
        cte = next((cte for cte in ctes if cte.alias == relation.name), None)
        # A recursive query reads itself.
        if cte is None or relation.find_ancestor(exp.CTE) is cte:
            return []
        listed = cte.args["alias"].args.get("columns") or ()
        return [part.name for part in listed] or names_of(session, cte.this)
    return names_of(session, relation) if isinstance(relation, exp.Subquery) else []


def _around(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def columns_of(session: Session, tree: exp.Expr) -> Iterator[Column]:
    """Yield the columns of the tables and views of a statement."""
    for relation in tree.find_all(exp.Table, exp.Subquery):
        yield from known_columns(session, relation) or ()


def _word(kind: exp.Expr) -> str:
    return str(getattr(kind.this, "value", kind.this)).upper()


def text_of(node: exp.Expr) -> exp.Expr:
    """Return the text of a JSON value, of a string without its quotes."""
    return timestamps.call("json_extract_string", node, exp.Literal.string("$"))


def _semi_structured_cast(node: exp.Cast) -> exp.Expr:
    if _word(node.to) == "JSON" or (node.to.expressions and _word(node.to) in _SEMI_STRUCTURED):
        # No type of Snowflake: a cast that the service itself wrote.
        return node
    if _word(node.to) in _SEMI_STRUCTURED:
        # The engine has a VARIANT of its own, in which a JSON null is not a value.
        value = node.this.copy() if _is_json(node.this) else timestamps.call("to_json", node.this)
        macro = {"ARRAY": "_array", "LIST": "_array", "OBJECT": "_object"}.get(_word(node.to))
        return timestamps.call(macro, value) if macro else value
    if _is_json(node.this):
        is_number = node.to.is_type(*exp.DataType.NUMERIC_TYPES)
        node.set("this", timestamps.call("_number_text", node.this) if is_number else text_of(node.this))
    elif node.to.is_type(*exp.DataType.TEXT_TYPES) and type_of(node.this).kind == "LIST":
        node.set("this", timestamps.call("to_json", node.this))
    return node


def _each(node: exp.Expr, kind: str) -> None:
    for child in list(node.iter_expressions()):
        if _is_json(child):
            child.replace(text_of(child) if kind == "VARCHAR" else exp.cast(text_of(child), kind))


def _choose(node: exp.Case | exp.DecodeCase) -> None:
    """Read the value that CASE and DECODE compare as the type of what it is compared with."""
    value, others = tested(node)
    if value is None or not _is_json(value) or any(_is_json(other) for other in others):
        return
    kinds = {_kind(other) for other in others}
    text = text_of(value)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    value.replace(text if kind is None else exp.TryCast(this=text, to=exp.DataType.build(kind)))


def _compare(node: exp.Expr) -> None:
    children = list(node.iter_expressions())
    held = [child for child in children if _is_json(child)]
    others = [child for child in children if child not in held]
    if not held or _is_assignment(node):
        return
    if not others:
        for child in held:
            child.replace(timestamps.call("_variant_key", child))
        return
    kinds = {_kind(child) for child in others}
    for child in held:
        text = text_of(child)
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
    literal = node.this if isinstance(node, exp.Neg) else node
    if isinstance(literal, exp.Literal) and _LONG.fullmatch(literal.name) and not literal.is_string:
        # More digits than a DOUBLE has.
        return f"DECIMAL(38, {max(0, min(_LONG_SCALE, 38 - len(literal.name.partition('.')[0])))})"
    return "DOUBLE" if isinstance(node, exp.Neg) or (literal.is_number and literal is node) else None
