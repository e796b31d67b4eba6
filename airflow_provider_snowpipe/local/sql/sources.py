"""Tables and columns of a statement: what the engine calls them, and which of them hold VARIANT values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.helper import seq_get

from airflow_provider_snowpipe.local.engine.conversions import MACROS
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.errors import compilation_error, unsupported
from airflow_provider_snowpipe.local.sql import functions, numbers, timestamps
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, Table, quote

# -- Tables that a statement names: the engine's path goes into its tree, Snowflake's stays beside -------

_PLACE = "place"


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


def put(node: exp.Table, database: Database, schema: str, name: str) -> None:
    """Let a node name a table as the engine does."""
    table = database.tables.find(schema, name)
    engine = (*database.names.home(schema), name if table is None else table.engine)
    for part, word in zip(("catalog", "db", "this"), engine, strict=True):
        node.set(part, exp.to_identifier(word, quoted=True))
    node.meta[_PLACE] = (database.name, schema, name)


def database_of(session: Session, node: exp.Table) -> Database:
    """Return the database of a table that :func:`put` named.

    :raises SqlError: when it was dropped meanwhile.
    """
    return session.catalog.database(node.meta[_PLACE][0])


def find(database: Database, node: exp.Table) -> Table | None:
    """Return the table of a database that :func:`put` named, or None for another relation."""
    place = node.meta.get(_PLACE)
    return None if place is None or place[0] != database.name else database.tables.find(*place[1:])


def find_anywhere(session: Session, node: exp.Table) -> Table | None:
    """Return the table that :func:`put` named, or None for another relation."""
    place = node.meta.get(_PLACE)
    database = None if place is None else session.catalog.find(place[0])
    return None if database is None else find(database, node)


# -- VARIANT values inside expressions: where Snowflake reads a text or a number, DuckDB needs the type ----
#
# DuckDB knows VARIANT as JSON and would compare, join and cast the JSON text with its quotes. Which columns
# hold JSON is known by name: from the tables of the query, from FLATTEN, and from aliases of such
# expressions. Dates are followed the same way, because Snowflake's DATEADD of days keeps a DATE a DATE.

_JSON_CALLS = frozenset(
    {"JSON_EXTRACT", "JSON_ARRAY", "JSON_OBJECT", "JSON_MERGE_PATCH", "TO_JSON", "JSON_GROUP_OBJECT",
     "_SORTED_KEYS", "_PARSE_JSON", "_PARSE_JSON_ONCE", "_TRY_PARSE_JSON", "_TRY_PARSE_JSON_ONCE",
     "JSON_GROUP_ARRAY", "GET_PATH", "GET", "TO_VARIANT", "TO_OBJECT", "OBJECT_AGG", "OBJECT_INSERT",
     "_ARRAY", "_OBJECT", "_ARRAY_OF", "_OBJECT_OF", "_ENCLOSED", "_MARKED", "_UNMARKED", "_PICKED",
     "_INSERTED", "_MEMBER"}
)  # fmt: skip
_SAME_VALUE = (
    exp.AnyValue, exp.Min, exp.Max, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Lag, exp.Lead,
    exp.IgnoreNulls, exp.Window, exp.Nullif,
)  # fmt: skip
# Calls whose value is a list of the engine's.
_LISTS = (exp.Split, exp.GenerateSeries, exp.StrtokToArray, exp.RegexpExtractAll)
FLATTEN = ("SEQ", "KEY", "PATH", "INDEX", "VALUE", "THIS")
"""Columns of FLATTEN."""
_FLATTENED = frozenset({"VALUE", "THIS"})
# Functions of text: an argument that holds JSON is read as its text.
_OF_TEXT = (
    exp.Upper, exp.Lower, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Like, exp.ILike, exp.Length, exp.Trim,
    exp.Substring, exp.SplitPart, exp.Split, exp.RegexpLike, exp.RegexpReplace, exp.RegexpExtract,
    exp.Replace, exp.Left, exp.Right, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Initcap, exp.Reverse,
    exp.ToChar, exp.Pad, exp.MD5, exp.SHA, exp.SHA2, exp.StrPosition, exp.Translate, exp.RegexpCount,
    exp.RegexpInstr, exp.Repeat, exp.Strtok,
)  # fmt: skip
_TEXTS = (
    exp.Upper, exp.Lower, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Trim, exp.Substring, exp.SplitPart,
    exp.RegexpReplace, exp.RegexpExtract, exp.Replace, exp.Left, exp.Right, exp.Initcap, exp.Reverse,
    exp.ToChar, exp.Pad, exp.Translate, exp.Repeat, exp.Strtok, exp.GroupConcat, exp.JSONExtractScalar,
)  # fmt: skip
_TEXT_CALLS = frozenset({"left", "json_extract_string", "_float_text", "_formatted", "_flat_path"})
# Fractional digits of the number that is made of a text.
_TEXT_SCALE = 5
# A number of more digits than a DOUBLE keeps, and the fractional digits of what is compared with it.
_LONG, _LONG_SCALE = re.compile(r"(?=.{17})\d+(?:\.\d*)?"), 12
# Macros that read a value of any type, JSON by its text.
_READING = frozenset({"_ntz", "_ltz", "_tz", "_date", "_time", "_boolean", "_binary", "_scaled"})
_COMPARED = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip
_CHOICES = (exp.Case, exp.If, exp.Coalesce, exp.DecodeCase, exp.Nvl2)
_CHOSEN = (exp.Min, exp.Max, exp.Nullif)
_COUNTED = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Sum, exp.Avg, exp.Median, exp.Abs, exp.Round,
    exp.Floor, exp.Ceil, exp.Sign, exp.Sqrt, exp.Pow,
)  # fmt: skip
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
_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_PATHS = frozenset(
    {"JSON_EXTRACT", "JSON_EXTRACT_STRING", "JSON_TYPE", "JSON_ARRAY_LENGTH", "_MEMBER", "_EXACT",
     "_FLAT_THIS", "_FLAT_VALUE"}
)  # fmt: skip
_JSON_READERS = _PATHS | {"TO_JSON", "TRY", "IF"}
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "JSON", "STRUCT", "MAP", "LIST"})


def read_as_text_or_number(session: Session, tree: exp.Expr) -> exp.Expr:
    """Make casts, comparisons, arithmetic and functions of text read JSON as Snowflake reads a VARIANT."""
    columns = list(columns_of(session, tree))
    parts = list(tree.walk())
    names = _json_names(columns, parts)
    kinds = _kinds(session, tree, columns, parts)
    number_names = frozenset(name for name, kind in kinds.items() if kind == "NUMBER")
    text_names = frozenset(name for name, kind in kinds.items() if kind == "VARCHAR")
    kinds = {name: kind for name, kind in kinds.items() if kind in timestamps.KINDS}

    def change(node: exp.Expr) -> exp.Expr:
        _check_tried(node, kinds, number_names)
        read = _read_text(node, names)
        timed = read if read is not node else timestamps.change(node, kinds, session.parameters)
        if timed is not node:
            return timed
        read = _semi_structured_cast(node, names) if isinstance(node, exp.Cast) else _of_json(node, names)
        if read is not node or isinstance(node, exp.Cast):
            return read
        numbers.as_whole_number(node)
        kept = _of_type(node, kinds)
        if kept is not node:
            return kept
        _write_text(node, kinds, number_names, session)
        _read_texts(node, kinds, text_names)
        _read_operands(node, names)
        node = _read_numbers(node, kinds, number_names, text_names)
        _read_whole_numbers(node, kinds, number_names)
        return numbers.computed(node, known)

    if names:
        _sort_keys(session, tree, names)
    nodes = list(tree.walk(prune=lambda part: part.meta.get("engine") is True))
    known = numbers.names(nodes, columns)
    # From the leaves up: an inner cast decides what the outer one sees.
    for node in reversed(nodes):
        changed = change(node)
        if changed is not node:
            if node is tree:
                tree = changed
                break
            node.replace(changed)
    return tree


def _of_json(node: exp.Expr, names: set[str]) -> exp.Expr:
    """Leave JSON as it is, also in arrays: the engine would write its numbers through a DOUBLE."""
    if isinstance(node, exp.JSONFormat) and is_json(node.this, names):
        return exp.cast(node.this.copy(), "TEXT")
    if isinstance(node, _CHOSEN) and is_json(node.this, names):
        return _chosen(node, names)
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
        return timestamps.call("_array_of", value) if is_json(held, names) else node
    return value if is_json(value, names) else node


def _without_json(node: exp.Anonymous) -> exp.Expr:
    """Let the engine build an array that has no JSON in it, which is faster; others stay joined texts."""
    elements = [part.expressions[0] for part in node.expressions[2].expressions if part.name == "_element"]
    written = [part for part in elements if isinstance(part, exp.Anonymous) and part.name == "to_json"]
    if not elements or written != elements:
        return node
    return timestamps.call("json_array", *(part.expressions[0] for part in written))


def _of_type(node: exp.Expr, kinds: Mapping[str, str]) -> exp.Expr:
    """Return a part of a BINARY as one, and a DATE that is moved by days as one."""
    if isinstance(node, _PARTS) and timestamps.kind_of(node.this, kinds) == "BINARY":
        return _of_bytes(node)
    is_moved = isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.expression, exp.Interval)
    if (is_moved or isinstance(node, timestamps.MOVED)) and timestamps.kind_of(node, kinds) == "DATE":
        return exp.cast(node.copy(), "DATE")
    return node


def _chosen(node: exp.Min | exp.Max | exp.Nullif, names: set[str]) -> exp.Expr:
    """Return MIN, MAX and NULLIF of VARIANT values, which are compared by their types."""
    if isinstance(node, exp.Nullif):
        equal = exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        _compare(equal, names)
        return exp.If(this=equal, true=exp.null(), false=node.this.copy())
    call = "arg_max" if isinstance(node, exp.Max) else "arg_min"
    return timestamps.call(call, node.this, timestamps.call("_variant_key", node.this))


def _check_tried(node: exp.Expr, kinds: Mapping[str, str], numbers_named: frozenset[str]) -> None:
    """Refuse TRY_CAST of what is no text ("TRY_CAST", Usage notes).

    :raises SqlError: 001065.
    """
    if not isinstance(node, exp.TryCast) or not node.args.get("requires_string"):
        return
    kind = timestamps.kind_of(node.this, kinds)
    if kind is None and numbers.is_number(node.this, numbers_named):
        kind = "NUMBER"
    if kind is not None:
        target = node.to.sql(dialect="snowflake")
        raise compilation_error(
            f"Function TRY_CAST cannot be used with arguments of types {kind} and {target}", "001065", "22023"
        )


def _read_text(node: exp.Expr, names: set[str]) -> exp.Expr:
    """Return a cast of what is known to be a text as the macro that reads it; what is tried is one always."""
    if not isinstance(node, (exp.Cast, exp.TsOrDsToDate)):
        return node
    is_text = isinstance(node, exp.TryCast) or isinstance(node.this.unnest(), _TEXTS)
    if not is_text or is_json(node.this, names):
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


def _write_text(
    node: exp.Expr, kinds: Mapping[str, str], numbers_named: frozenset[str], session: Session
) -> None:
    """Give a function of text the text of a number, a time or a boolean."""
    value = node.this if isinstance(node, _OF_TEXT) else None
    kind = timestamps.kind_of(value, kinds)
    if value is None or kind == "BINARY":
        return
    if kind is not None:
        value.replace(timestamps.text_of(value, kind, session.parameters))
    elif numbers.is_number(value, numbers_named) or isinstance(value, exp.Boolean):
        value.replace(exp.cast(value.copy(), "TEXT"))


def _read_operands(node: exp.Expr, names: set[str]) -> None:
    if isinstance(node, _OF_TEXT) or (isinstance(node, exp.Anonymous) and node.name in _READING):
        _each(node, names, "VARCHAR")
    elif isinstance(node, exp.GroupConcat):
        value = node.this.this if isinstance(node.this, exp.Order) else node.this
        if is_json(value, names):
            value.replace(text_of(value))
    elif isinstance(node, _CHOICES):
        if isinstance(node, (exp.Case, exp.DecodeCase)):
            _choose(node, names)
        values = numbers.choices(node)
        others = [value for value in values if not is_json(value, names)]
        for value in others if len(others) < len(values) else ():
            value.replace(timestamps.call("to_json", value))
    elif isinstance(node, _COMPARED):
        _compare(node, names)
    elif isinstance(node, _COUNTED):
        _each(node, names, "DOUBLE")
    elif isinstance(node, exp.Ordered) and is_json(value := _ordered(node), names):
        node.set("this", timestamps.call("_variant_key", value))


def _read_numbers(
    node: exp.Expr, kinds: Mapping[str, str], numbers_named: frozenset[str], texts: frozenset[str]
) -> exp.Expr:
    """Cast texts that are operands of arithmetic, or that are compared with or chosen beside numbers.

    SUM and the like cast a VARCHAR to FLOAT ("SUM", "Usage notes"); beside a FLOAT it is one as well.

    :returns: the expression; NULLIF of a text and a number as a choice that keeps the text.
    """
    if isinstance(node, exp.Nullif):
        equal = exp.EQ(this=node.this.copy(), expression=node.expression.copy())
        _read_numbers(equal, kinds, numbers_named, texts)
        is_same = equal.this == node.this and equal.expression == node.expression
        return node if is_same else exp.If(this=equal, true=exp.null(), false=node.this.copy())
    is_float = isinstance(node, _OF_NUMBERS)
    is_number = is_float or isinstance(node, _ARITHMETIC)
    for group in _beside(node):
        given = [_projected(value) for value in group]
        found = [value for value in given if _is_text(value, texts)]
        others = [value for value in given if value not in found] if found else []
        known = {timestamps.kind_of(value, kinds) for value in others}
        is_other = any(kind is not None and kind != "FLOAT" for kind in known)
        if not found or is_other or any(isinstance(value, exp.Interval) for value in others):
            continue
        made_float = is_float or "FLOAT" in known
        if not (is_number or made_float or any(numbers.is_number(value, numbers_named) for value in others)):
            continue
        for value in found:
            # The engine reads a literal as the type beside it, but not one that a query shows.
            is_shown = isinstance(value.parent, (exp.Select, exp.Alias))
            is_whole = isinstance(value, exp.Literal) and value.name.isdecimal()
            if is_number or is_shown or not is_whole:
                number = (
                    exp.cast(value.copy(), "DOUBLE") if made_float else numbers.decimal(value, _TEXT_SCALE)
                )
                value.replace(number)
    return node


# What the engine reads as Snowflake does.
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?|\d\d:\d\d:\d\d")


def _read_texts(node: exp.Expr, kinds: Mapping[str, str], texts: frozenset[str]) -> None:
    """Read texts that are compared with times of one type, or with BINARY, as values of this type.

    A column of texts in a function of times is read as a timestamp.
    """
    for part in list(node.iter_expressions()) if isinstance(node, _OF_TIMES) else ():
        if isinstance(part, exp.Column) and _is_text(part, texts):
            part.replace(timestamps.call("_ntz", part))
    if isinstance(node, (exp.Case, exp.DecodeCase)):
        tested, others = _tested(node)
        given = [tested, *others] if tested is not None else []
    else:
        is_compared = isinstance(node, _COMPARED) and not _is_assignment(node)
        given = list(node.iter_expressions()) if is_compared else []
    found = {timestamps.kind_of(value, kinds) for value in given} - {None}
    kind = found.pop() if len(found) == 1 else None
    for value in given if kind in MACROS or kind == "BINARY" else ():
        if not _is_text(value, texts) or isinstance(value, exp.Subquery):
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
    if isinstance(node, _COMPARED):
        return [] if _is_assignment(node) else [list(node.iter_expressions())]
    groups = [numbers.choices(node)] if isinstance(node, numbers.CHOICES) else []
    if isinstance(node, (exp.Case, exp.DecodeCase)):
        value, others = _tested(node)
        groups += [[value, *others]] if value is not None else []
    return groups


def _is_assignment(node: exp.Expr) -> bool:
    """Return True for ``SET a = b``, which is no comparison."""
    return isinstance(node.parent, exp.Update) and node.arg_key == "expressions"


def _is_text(node: exp.Expr | None, texts: frozenset[str]) -> bool:
    """Return True for an expression that is known to be a VARCHAR.

    :param texts: columns and aliases that are.
    """
    if isinstance(node, exp.Column):
        return node.name in texts or f"{node.table}.{node.name}" in texts
    if isinstance(node, (exp.Paren, *_SAME_VALUE)):
        return _is_text(node.this, texts)
    if isinstance(node, (exp.Coalesce, exp.If, exp.Case)):
        values = numbers.choices(node)
        return bool(values) and all(_is_text(value, texts) for value in values)
    if isinstance(node, exp.Cast):
        return bool(node.to.is_type(*exp.DataType.TEXT_TYPES)) and node.to.this != exp.DataType.Type.NAME
    if isinstance(node, exp.Anonymous):
        return node.name in _TEXT_CALLS
    return isinstance(node, _TEXTS) or (isinstance(node, exp.Literal) and bool(node.is_string))


def _read_whole_numbers(node: exp.Expr, kinds: Mapping[str, str], names: frozenset[str]) -> None:
    """Cast the days by which a DATE or a timestamp moves, which the engine takes as a whole number only."""
    if not isinstance(node, (exp.Add, exp.Sub)):
        return
    left, right = node.this, node.expression
    moved, days = (right, left) if timestamps.kind_of(left, kinds) is None else (left, right)
    kind = timestamps.kind_of(moved, kinds)
    if not (moved is left or isinstance(node, exp.Add)) or not numbers.is_number(days, names):
        return
    if kind in {"DATE", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}:
        whole = exp.cast(days.copy(), "INT")
        days.replace(whole if kind == "DATE" else timestamps.call("to_days", whole))


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
        known = None if table is changed else find_anywhere(session, table)
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


def _kinds(
    session: Session, tree: exp.Expr, columns: Sequence[Column], parts: Sequence[exp.Expr]
) -> dict[str, str]:
    """Return the type words of columns, and of aliases of times and numbers, that have but one."""
    found: dict[str, set[str]] = {}
    for column in columns:
        found.setdefault(column.name, set()).add(column.type.kind)
    kinds = {name: next(iter(words)) for name, words in found.items() if len(words) == 1}
    if len(kinds) < len(found):
        kinds |= _qualified_kinds(session, tree)
    for alias in reversed([part for part in parts if isinstance(part, exp.Alias)]):
        kind = _kind_of(alias.this, kinds)
        if kind is not None and alias.alias not in found:
            kinds[alias.alias] = kind if kinds.get(alias.alias, kind) == kind else ""
    for name, texts in _named_values(parts):
        if all(_is_text(value, frozenset()) for value in texts) and name not in found:
            kinds[name] = "VARCHAR"
    return kinds


def _kind_of(node: exp.Expr, kinds: Mapping[str, str]) -> str | None:
    kind = timestamps.kind_of(node, kinds)
    if kind is None and numbers.is_number(node, frozenset()):
        return "NUMBER"
    return "VARCHAR" if kind is None and _is_text(node, frozenset()) else kind


def _qualified_kinds(session: Session, tree: exp.Expr) -> dict[str, str]:
    """Return the type words of columns by the name of their relation and their own, with a point between."""
    kinds: dict[str, str] = {}
    for table in tree.find_all(exp.Table):
        known = find_anywhere(session, table)
        columns = known.columns if known is not None else ()
        kinds |= {f"{table.alias_or_name}.{column.name}": column.type.kind for column in columns}
    for relation in reversed(list(tree.find_all(exp.Subquery, exp.CTE))):
        query = relation.this
        if relation.alias and isinstance(query, exp.Select):
            inner = {column.name: column.type.kind for column in columns_of(session, query)}
            for projection in query.selects:
                kind = _kind_of(projection.unalias(), inner)
                if kind is not None:
                    kinds[f"{relation.alias}.{projection.alias_or_name}"] = kind
    return kinds


def _named_values(parts: Sequence[exp.Expr]) -> Iterator[tuple[str, Sequence[exp.Expr]]]:
    """Yield the names of the columns of VALUES in a FROM clause, and what is in each."""
    for values in parts:
        alias = values.args.get("alias") if isinstance(values, exp.Values) else None
        if alias is not None:
            rows = [row.expressions for row in values.expressions if isinstance(row, exp.Tuple)]
            yield from zip((column.name for column in alias.columns), zip(*rows, strict=False), strict=False)


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
        known = find_anywhere(session, relation) if isinstance(relation, exp.Table) else None
        names = [column.name for column in (known.columns if known else relation.meta.get("columns", ()))]
        if isinstance(relation, exp.Subquery) and not names and not relation.this.is_star:
            names = relation.this.named_selects
        if not names or star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
            raise unsupported("* as the argument of a function over this relation")
        found += [
            exp.column(n, relation.alias_or_name or None, quoted=True) for n in names if n not in left_out
        ]
    return found


def columns_of(session: Session, tree: exp.Expr) -> Iterator[Column]:
    """Yield the columns of the tables and views of a statement."""
    for relation in tree.find_all(exp.Table, exp.Subquery):
        known = find_anywhere(session, relation) if isinstance(relation, exp.Table) else None
        yield from relation.meta.get("columns", ()) if known is None else known.columns


def is_json(node: exp.Expr | None, names: Iterable[str]) -> bool:
    """Return True for an expression whose value is JSON."""
    if isinstance(node, exp.Paren):
        return is_json(node.this, names)
    if isinstance(node, exp.Column):
        return node.name in names
    if isinstance(node, (exp.JSONExtract, exp.ParseJSON, exp.Bracket)):
        return not isinstance(node, exp.Bracket) or is_json(node.this, names)
    if isinstance(node, _SAME_VALUE):
        return is_json(node.this, names)
    if isinstance(node, exp.Subquery):
        chosen = node.unnest()
        return isinstance(chosen, exp.Select) and is_json(chosen.selects[0].unalias(), names)
    if isinstance(node, exp.Anonymous) and node.name in {"arg_max", "arg_min"}:
        return is_json(node.expressions[0], names)
    if isinstance(node, exp.Case):
        values = [part.args["true"] for part in node.args["ifs"]]
        return any(is_json(value, names) for value in (*values, node.args.get("default")))
    if isinstance(node, (exp.Coalesce, exp.If)):
        branches = (node.args.get(name) for name in ("true", "false"))
        return any(is_json(child, names) for child in (node.this, *node.expressions, *branches))
    if isinstance(node, exp.Cast):
        return _word(node.to) in _SEMI_STRUCTURED
    return isinstance(node, exp.Anonymous) and node.name.upper() in _JSON_CALLS


def _json_names(columns: Sequence[Column], parts: Sequence[exp.Expr]) -> set[str]:
    names: set[str] = set()
    plain: set[str] = set()
    for column in columns:
        (names if column.type.is_semi_structured else plain).add(column.name)
    if any(isinstance(part, exp.Subquery) and part.meta.get("flatten") for part in parts):
        names |= _FLATTENED
    names -= plain
    aliases = [part for part in parts if isinstance(part, exp.Alias) and part.alias not in plain]
    grown = True
    while grown:
        found = {alias.alias for alias in aliases if is_json(alias.this, names)}
        grown = not found <= names
        names |= found
    return names


def _word(kind: exp.Expr) -> str:
    return str(getattr(kind.this, "value", kind.this)).upper()


def text_of(node: exp.Expr) -> exp.Expr:
    """Return the text of a JSON value, of a string without its quotes."""
    return timestamps.call("json_extract_string", node, exp.Literal.string("$"))


def _semi_structured_cast(node: exp.Cast, names: set[str]) -> exp.Expr:
    if _word(node.to) == "JSON" or (node.to.expressions and _word(node.to) in _SEMI_STRUCTURED):
        # No type of Snowflake: a cast that the service itself wrote.
        return node
    if _word(node.to) in _SEMI_STRUCTURED:
        if node.to.expressions and is_json(node.this, names):
            return node
        # The engine has a VARIANT of its own, in which a JSON null is no value.
        value = node.this.copy() if is_json(node.this, names) else timestamps.call("to_json", node.this)
        macro = {"ARRAY": "_array", "LIST": "_array", "OBJECT": "_object"}.get(_word(node.to))
        return timestamps.call(macro, value) if macro else value
    if is_json(node.this, names):
        is_number = node.to.is_type(*exp.DataType.NUMERIC_TYPES)
        node.set("this", timestamps.call("_number_text", node.this) if is_number else text_of(node.this))
    elif node.to.is_type(*exp.DataType.TEXT_TYPES) and isinstance(node.this.unnest(), _LISTS):
        node.set("this", timestamps.call("to_json", node.this))
    return node


def _each(node: exp.Expr, names: set[str], kind: str) -> None:
    for child in list(node.iter_expressions()):
        if is_json(child, names):
            child.replace(text_of(child) if kind == "VARCHAR" else exp.cast(text_of(child), kind))


def _choose(node: exp.Case | exp.DecodeCase, names: set[str]) -> None:
    """Read the value that CASE and DECODE compare as the type of what it is compared with."""
    value, others = _tested(node)
    if value is None or not is_json(value, names) or any(is_json(other, names) for other in others):
        return
    kinds = {_kind(other) for other in others}
    text = text_of(value)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    value.replace(text if kind is None else exp.TryCast(this=text, to=exp.DataType.build(kind)))


def _tested(node: exp.Case | exp.DecodeCase) -> tuple[exp.Expr | None, list[exp.Expr]]:
    """Return the value that a choice compares, if any, and those that it is compared with."""
    if isinstance(node, exp.Case):
        return node.this, [part.this for part in node.args["ifs"]]
    value, *rest = node.expressions
    return value, rest[: len(rest) - len(rest) % 2 : 2]


def _compare(node: exp.Expr, names: set[str]) -> None:
    children = list(node.iter_expressions())
    held = [child for child in children if is_json(child, names)]
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
