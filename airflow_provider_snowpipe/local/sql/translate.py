"""Translation of Snowflake queries and DML to DuckDB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import sqlglot
from sqlglot import Token, TokenType, exp

from airflow_provider_snowpipe.local.access.access import insufficient
from airflow_provider_snowpipe.local.access.model import SHARED_DATABASE, Securable
from airflow_provider_snowpipe.local.engine.database import Database
from airflow_provider_snowpipe.local.engine.names import HIDDEN_SCHEMA
from airflow_provider_snowpipe.local.engine.store import SchemaObject
from airflow_provider_snowpipe.local.errors import (
    SqlError,
    compilation_error,
    invalid_identifier,
    object_missing,
    unsupported,
)
from airflow_provider_snowpipe.local.sql import (
    checks,
    functions,
    history,
    information_schema,
    numbers,
    show,
    staged_rows,
    timestamps,
    views,
)
from airflow_provider_snowpipe.local.sql.relations import last_query_id, replace_table_functions
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.tables import Column, Table, quote

# -- Names of result columns: an expression without alias is named by its text ---------------------------

_WRITTEN = "written"
_ENDS = frozenset(
    {TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING,
     TokenType.QUALIFY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH, TokenType.INTO, TokenType.UNION,
     TokenType.EXCEPT, TokenType.INTERSECT, TokenType.SEMICOLON}
)  # fmt: skip


def note_written(tree: exp.Expr, tokens: Sequence[Token], text: str) -> None:
    """Keep the text of each projection of a query beside its expression.

    A query whose list cannot be told apart token by token keeps none; its columns are then named by what
    :func:`written` makes of the expression.
    """
    select = tree
    while isinstance(select, exp.SetOperation):
        select = select.this
    if not isinstance(select, exp.Select):
        return
    found = _projections(tokens, text)
    if len(found) == len(select.expressions):
        for projection, part in zip(select.expressions, found, strict=True):
            projection.meta[_WRITTEN] = part


def written(projection: exp.Expr) -> str:
    """Return the name of a projection without alias: its text in upper case."""
    return str(projection.meta.get(_WRITTEN) or projection.sql(dialect="snowflake")).upper()


def _projections(tokens: Sequence[Token], text: str) -> list[str]:
    """Return the texts between the first SELECT outside of parentheses and its FROM."""
    depth, start, parts = 0, -1, []
    for token in tokens:
        if token.token_type in checks.OPENING:
            depth += 1
        elif token.token_type in checks.CLOSING:
            depth -= 1
        if depth:
            continue
        if start < 0:
            if token.token_type == TokenType.SELECT:
                start = token.end + 1
        elif token.token_type in {TokenType.DISTINCT, TokenType.ALL}:
            start = token.end + 1
        elif token.token_type == TokenType.COMMA:
            parts.append(text[start : token.start].strip())
            start = token.end + 1
        elif token.token_type in _ENDS:
            return [*parts, text[start : token.start].strip()]
    return [*parts, text[start:].strip()] if start >= 0 else []


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


# -- VARIANT values inside expressions: where Snowflake reads a text or a number, DuckDB needs to be told --
#
# DuckDB knows VARIANT as JSON and would compare, join and cast the JSON text with its quotes. Which columns
# hold JSON is known by name: from the tables of the query, from FLATTEN, and from aliases of such
# expressions. Dates are followed the same way, because Snowflake's DATEADD of days keeps a DATE a DATE.

_JSON_CALLS = frozenset(
    {"JSON_EXTRACT", "JSON_ARRAY", "JSON_OBJECT", "JSON_MERGE_PATCH", "TO_JSON", "JSON_GROUP_OBJECT",
     "_SORTED_KEYS", "_PARSE_JSON", "JSON_GROUP_ARRAY", "GET_PATH", "GET", "TO_VARIANT", "TO_OBJECT",
     "OBJECT_AGG", "OBJECT_INSERT", "_ARRAY", "_OBJECT"}
)  # fmt: skip
# Calls whose value is a list of the engine's.
_LISTS = (exp.ArrayAgg, exp.ArrayUniqueAgg, exp.Split)
_FLATTEN = ("SEQ", "KEY", "PATH", "INDEX", "VALUE", "THIS")
_FLATTENED = frozenset({"VALUE", "THIS"})
# Functions of text: an argument that holds JSON is read as its text.
_OF_TEXT = (
    exp.Upper, exp.Lower, exp.Concat, exp.ConcatWs, exp.DPipe, exp.Like, exp.ILike, exp.Length, exp.Trim,
    exp.Substring, exp.SplitPart, exp.Split, exp.RegexpLike, exp.RegexpReplace, exp.RegexpExtract,
    exp.Replace, exp.Left, exp.Right, exp.StartsWith, exp.EndsWith, exp.Contains, exp.Initcap, exp.Reverse,
)  # fmt: skip
# Macros that read a value of any type, JSON by its text.
_READING = frozenset({"_ntz", "_ltz", "_tz", "_date", "_time", "_boolean", "_binary", "_scaled"})
_COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)
_COUNTED = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Sum, exp.Avg)
_OF_NUMBERS = (
    exp.Sum, exp.Avg, exp.Median, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop,
)  # fmt: skip
_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_PATHS = frozenset({"JSON_EXTRACT", "JSON_EXTRACT_STRING", "JSON_TYPE", "JSON_ARRAY_LENGTH"})
_JSON_READERS = _PATHS | {"TO_JSON", "TRY", "IF"}
_SEMI_STRUCTURED = frozenset({"VARIANT", "OBJECT", "ARRAY", "JSON", "STRUCT", "MAP", "LIST"})


def read_as_text_or_number(session: Session, tree: exp.Expr) -> exp.Expr:
    """Make casts, comparisons, arithmetic and functions of text read JSON as Snowflake reads a VARIANT."""
    _cast_aggregated_texts(session, tree)
    names = _json_names(session, tree)

    kinds = _kinds(session, tree)
    number_names = frozenset(name for name, kind in kinds.items() if kind == "NUMBER")
    kinds = {name: kind for name, kind in kinds.items() if kind in timestamps.KINDS}

    def change(node: exp.Expr) -> exp.Expr:
        timed = timestamps.change(node, kinds, session.parameters)
        if timed is not node:
            return timed
        if isinstance(node, exp.Cast):
            return _semi_structured_cast(node, names)
        if isinstance(node, timestamps.MOVED) and timestamps.kind_of(node, kinds) == "DATE":
            return exp.cast(node.copy(), "DATE")
        if isinstance(node, (exp.Min, exp.Max)) and is_json(node.this, names):
            call = "arg_max" if isinstance(node, exp.Max) else "arg_min"
            return timestamps.call(call, node.this, timestamps.call("_variant_key", node.this))
        _read_operands(node, names)
        _read_whole_numbers(node, kinds, number_names)
        return numbers.computed(node, known)

    if names:
        _sort_keys(session, tree, names)
    nodes = list(tree.walk(prune=lambda part: part.meta.get("engine") is True))
    known = numbers.names(nodes, lambda: columns_of(session, tree))
    # From the leaves up: an inner cast decides what the outer one sees.
    for node in reversed(nodes):
        changed = change(node)
        if changed is not node:
            if node is tree:
                return changed
            node.replace(changed)
    return tree


def _cast_aggregated_texts(session: Session, tree: exp.Expr) -> None:
    """SUM and the like cast a VARCHAR to FLOAT ("SUM", "Usage notes")."""
    calls = list(tree.find_all(*_OF_NUMBERS))
    kinds: dict[str, set[str]] = {}
    for column in columns_of(session, tree) if calls else ():
        kinds.setdefault(column.name, set()).add(column.type.kind)
    for call in calls:
        for value in call.this.expressions if isinstance(call.this, exp.Distinct) else [call.this]:
            if isinstance(value, exp.Column) and kinds.get(value.name) == {"VARCHAR"}:
                value.replace(exp.cast(value.copy(), "DOUBLE"))


def _read_operands(node: exp.Expr, names: set[str]) -> None:
    if isinstance(node, _OF_TEXT) or (isinstance(node, exp.Anonymous) and node.name in _READING):
        _each(node, names, "VARCHAR")
    elif isinstance(node, _COMPARED):
        _compare(node, names)
    elif isinstance(node, _COUNTED):
        _each(node, names, "DOUBLE")
    elif isinstance(node, exp.Ordered) and is_json(value := _ordered(node), names):
        node.set("this", timestamps.call("_variant_key", value))


def _read_whole_numbers(node: exp.Expr, kinds: Mapping[str, str], names: frozenset[str]) -> None:
    """Cast what the engine takes as a whole number only: arguments, days by which a DATE moves, an index."""
    if type(node) not in numbers.OF_WHOLE:
        return
    numbers.as_whole_number(node)
    if isinstance(node, (exp.Add, exp.Sub)):
        left, right = node.this, node.expression
        moved, days = (left, right) if timestamps.kind_of(left, kinds) == "DATE" else (right, left)
        is_moved = moved is left or isinstance(node, exp.Add)
        if is_moved and numbers.is_number(days, names) and timestamps.kind_of(moved, kinds) == "DATE":
            days.replace(exp.cast(days.copy(), "INT"))
    elif isinstance(node, exp.GetExtract) and numbers.is_number(node.expression, names):
        node.set("expression", exp.cast(node.expression.copy(), "BIGINT"))


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
            named = [*columns, *_FLATTEN[len(columns) :]]
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


def _kinds(session: Session, tree: exp.Expr) -> dict[str, str]:
    """Return the type words of columns, and of aliases of times and numbers, that have but one."""
    found: dict[str, set[str]] = {}
    for column in columns_of(session, tree):
        found.setdefault(column.name, set()).add(column.type.kind)
    kinds = {name: next(iter(words)) for name, words in found.items() if len(words) == 1}
    for alias in reversed(list(tree.find_all(exp.Alias))):
        kind = timestamps.kind_of(alias.this, kinds)
        if kind is None and numbers.is_number(alias.this, frozenset()):
            kind = "NUMBER"
        if kind is not None and alias.alias not in found:
            kinds[alias.alias] = kind
    return kinds


def columns_of(session: Session, tree: exp.Expr) -> Iterator[Column]:
    """Yield the columns of the tables and views of a statement."""
    for table in tree.find_all(exp.Table):
        known = find_anywhere(session, table)
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
        node.set("this", text_of(node.this))
    elif node.to.is_type(*exp.DataType.TEXT_TYPES) and isinstance(node.this.unnest(), _LISTS):
        node.set("this", timestamps.call("to_json", node.this))
    return node


def _each(node: exp.Expr, names: set[str], kind: str) -> None:
    for child in list(node.iter_expressions()):
        if is_json(child, names):
            child.replace(text_of(child) if kind == "VARCHAR" else exp.cast(text_of(child), kind))


def _compare(node: exp.Expr, names: set[str]) -> None:
    children = list(node.iter_expressions())
    held = [child for child in children if is_json(child, names)]
    others = [child for child in children if child not in held]
    # SET a = b is no comparison.
    if not held or (isinstance(node.parent, exp.Update) and node.arg_key == "expressions"):
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
    is_number = isinstance(node, exp.Literal) and not node.is_string
    return "DOUBLE" if is_number or isinstance(node, exp.Neg) else None


# -- Translation of Snowflake queries and DML to DuckDB --------------------------------------------------

_VERSION = "10.0.0"
_SNOWFLAKE = sqlglot.Dialect.get_or_raise("snowflake")


_MARK = "_SNOWPIPE_VALUE_"


def parse(text: str) -> exp.Expr:
    """Parse one Snowflake statement.

    :raises SqlError: for more than one statement, and for a call that no function of Snowflake's takes.
    """
    found = tokens(text)
    try:
        parsed = _SNOWFLAKE.parser().parse(found, text)
        # A comment behind the last semicolon is no statement.
        trees = [tree for tree in parsed if tree is not None and not isinstance(tree, exp.Semicolon)]
    except (IndexError, sqlglot.errors.ParseError) as error:
        checks.check_calls(found, text, None)
        if isinstance(error, sqlglot.errors.ParseError):
            raise
        # sqlglot counts on the number of arguments that some functions must have.
        raise compilation_error("a function has the wrong number of arguments.") from error
    if len(trees) != 1:
        why = f"Actual statement count {len(trees)} did not match the desired statement count 1."
        raise SqlError("000008", "0A000", why)
    checks.check_calls(found, text, trees[0])
    note_written(trees[0], found, text)
    return trees[0]


def tokens(text: str) -> list[Token]:
    """Return the tokens of a statement; ``?::`` is a placeholder and a cast, not another sign."""
    found: list[Token] = []
    for token in _SNOWFLAKE.tokenize(text):
        if token.token_type != TokenType.QDCOLON:
            found.append(token)
            continue
        for kind, sign, start, end in (
            (TokenType.PLACEHOLDER, "?", token.start, token.start),
            (TokenType.DCOLON, "::", token.start + 1, token.end),
        ):
            column = token.col - token.end + end
            found.append(Token(kind, sign, line=token.line, col=column, start=start, end=end))
    return found


def to_duckdb(tree: exp.Expr) -> str:
    """Generate DuckDB SQL for a prepared tree."""
    return tree.sql(dialect="duckdb", unsupported_level=sqlglot.ErrorLevel.RAISE)


def prepare(session: Session, tree: exp.Expr, *, is_checked: bool = False) -> exp.Expr:
    """Apply what DuckDB lacks: Snowflake's names, context functions, JSON paths, result column names.

    :param is_checked: what the user wrote went through :func:`checks.check`; some of it is translated.
    :raises SqlError: for functions and tables that a statement cannot reach.
    """
    if isinstance(tree, exp.Select) and tree.args.get("into"):
        raise unsupported("SELECT .. INTO")
    if not is_checked:
        checks.check(tree)
    name_projections(tree)
    quoted = normalize_identifiers(tree)
    staged_rows.replace_staged_files(session, tree)
    replace_table_functions(session, tree)
    moved = session.catalog.clock.moved_seconds
    if moved:
        tree = tree.transform(partial(timestamps.later, seconds=moved), copy=False)
    tree = tree.transform(_context_function, session, copy=False)
    tree = tree.transform(_subscript, copy=False)
    tree = tree.transform(_text_of_json, copy=False)
    tree = tree.transform(partial(views.next_value, session), copy=False)
    _unqualify_targets(tree)
    qualify_tables(session, tree)
    _check_case(session, tree, quoted)
    tree = functions.rewrite_all(tree)
    return read_as_text_or_number(session, tree)


def normalize_identifiers(tree: exp.Expr) -> set[str]:
    """Upper-case unquoted identifiers and quote all of them; return names of columns not in upper case."""
    mixed: set[str] = set()
    for identifier in tree.find_all(exp.Identifier):
        # The key of an object literal is a text, not a name.
        is_key = isinstance(identifier.parent, exp.PropertyEQ) and identifier.arg_key == "this"
        if not identifier.args.get("quoted") and not is_key:
            identifier.set("this", identifier.this.upper())
            identifier.set("quoted", True)
        elif identifier.this != identifier.this.upper() and identifier.arg_key == "this":
            mixed |= {identifier.this} if isinstance(identifier.parent, exp.Column) else set()
    return mixed


def _check_case(session: Session, tree: exp.Expr, quoted: set[str]) -> None:
    """Refuse a name that differs from a column by case: DuckDB would find it ("Identifier requirements").

    :param quoted: names of columns in the statement that are not in upper case.
    """
    known = {column.name for column in columns_of(session, tree)}
    used = quoted
    if any(name != name.upper() for name in known):
        used = {column.name for column in tree.find_all(exp.Column)}
    if not used:
        return
    known |= {alias.alias for alias in tree.find_all(exp.Alias)} | set(_FLATTEN)
    known |= {
        part.name for alias in tree.find_all(exp.TableAlias) for part in alias.args.get("columns") or ()
    }
    folded = {name.upper() for name in known}
    for name in sorted(used - known):
        if name.upper() in folded:
            written = name if name == name.upper() else f'"{name}"'
            raise compilation_error(f"invalid identifier '{written}'", "000904")


def qualify_tables(session: Session, tree: exp.Expr) -> None:
    """Complete every table name with the session's database and schema.

    :raises SqlError: when a table's database, schema or the table itself does not exist.
    """
    changed = target_of(tree)
    for table in list(tree.find_all(exp.Table)):
        if history.is_error_table(table):
            table.replace(history.subquery(session, table))
            continue
        if table.meta.get("engine"):
            continue
        if isinstance(table.this, exp.Dot) and isinstance(table.this.expression, exp.Identifier):
            raise compilation_error(f"'{_dotted(table.this, table.db, table.catalog)}' has too many parts.")
        if not isinstance(table.this, exp.Identifier):
            raise unsupported(f"table function {table.this.sql(dialect='snowflake')}")
        if not table.args.get("db") and table.name in session.lent:
            continue
        if checks.is_common(table):
            continue
        privileges = written_privileges(tree) if table is changed else ("SELECT",)
        _qualify(session, tree, table, privileges)
    history.replace_histories(session, tree)


def _dotted(name: exp.Dot, *before: str) -> str:
    """The text of a name of four parts or more, of which sqlglot makes a string where one is empty."""
    parts: list[str] = []
    rest: exp.Expr | str = name
    while isinstance(rest, exp.Dot):
        parts.append(rest.expression.name)
        rest = rest.this
    return ".".join(reversed([*parts, rest if isinstance(rest, str) else rest.name, *before]))


def target_of(tree: exp.Expr) -> exp.Table | None:
    """Return the table that a DML statement changes, or None for a query."""
    if not isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)):
        return None
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    return target if isinstance(target, exp.Table) else None


def written_privileges(tree: exp.Expr) -> tuple[str, ...]:
    """Return what a DML statement does to its table: INSERT, UPDATE, DELETE; a MERGE may do all three."""
    if not isinstance(tree, exp.Merge):
        return (tree.key.upper(),)
    found = {
        clause.args["then"].key.upper()
        for clause in tree.find_all(exp.When)
        if isinstance(clause.args.get("then"), (exp.Insert, exp.Update))
    }
    deletes = any(isinstance(clause.args.get("then"), exp.Var) for clause in tree.find_all(exp.When))
    return tuple(sorted(found | ({"DELETE"} if deletes else set())))


def _qualify(session: Session, tree: exp.Expr, table: exp.Table, privileges: tuple[str, ...]) -> None:
    path = tuple(part.name for part in table.parts)
    if len(path) == 1 and session.schema == information_schema.SCHEMA:
        path = (information_schema.SCHEMA, *path)
    if len(path) >= 2 and path[-2] in {HIDDEN_SCHEMA, HIDDEN_SCHEMA.upper()}:
        raise object_missing("Object", ".".join(path))
    if path[-2:] == (information_schema.SCHEMA, "LOAD_HISTORY"):
        owner = session.visible_database(path[0] if len(path) == 3 else session.current_database())
        table.replace(history.load_history(session, owner, table.alias_or_name))
        return
    rows = _service_view(session, path, privileges)
    if rows is not None:
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(path[-1], quoted=True))
        table.replace(exp.Subquery(this=rows, alias=alias))
        return
    database, schema, name = session.resolve(path)
    view = database.objects.find("VIEW", schema, name)
    if view is not None and privileges != ("SELECT",):
        raise unsupported("changes through a view")
    missing = object_missing("Object", ".".join(path))
    if view is None and database.tables.find(schema, name) is None:
        raise missing
    place = "VIEW" if view else "TABLE", database.name, schema, name
    _require(session, privileges, place, missing)
    if view is not None:
        _expand(session, table, database, view)
        return
    has_alias = table.args.get("alias") is not None
    put(table, database, schema, name)
    if not has_alias:
        _give_alias(tree, table, path[-1], name)


def _require(
    session: Session, privileges: Sequence[str], place: tuple[str, str, str, str], missing: SqlError
) -> None:
    """Require privileges on an object; one that is hidden cannot be told from one that does not exist."""
    try:
        for privilege in privileges:
            session.require(privilege, *place)
    except SqlError as error:
        raise missing if error.code == missing.code else error from None


def _give_alias(tree: exp.Expr, table: exp.Table, written: str, name: str) -> None:
    """Let columns be qualified by the name that the statement wrote for a table."""
    if table.name != name:
        # The engine would take it for the table of the same letters.
        for column in tree.find_all(exp.Column):
            if column.table == written:
                column.set("table", exp.to_identifier(table.name, quoted=True))
    elif isinstance(table.parent, (exp.From, exp.Join)) or name != written:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(written, quoted=True)))


def _service_view(session: Session, path: tuple[str, ...], privileges: tuple[str, ...]) -> exp.Expr | None:
    """Return the query of a view of the service's own, None for any other name."""
    if len(path) >= 2 and path[-2] == information_schema.SCHEMA:
        owner = session.visible_database(path[0] if len(path) == 3 else session.current_database())
        return information_schema.relation(session, owner, path[-1])
    if len(path) != 3 or path[0] != SHARED_DATABASE:
        return None
    rows = history.relation(session, *path[1:])
    if privileges != ("SELECT",):
        raise insufficient(Securable("VIEW", path))
    return rows


def _expand(session: Session, table: exp.Table, database: Database, view: SchemaObject) -> None:
    query = exp.Subquery(this=views.expand(session, database, view))
    alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(view.name, quoted=True))
    columns = show.columns_of(view)
    if not alias.args.get("columns"):
        alias.set("columns", [exp.to_identifier(column.name, quoted=True) for column in columns])
    query.set("alias", alias)
    query.meta["engine"] = True
    query.meta["columns"] = columns
    table.replace(query)


def name_projections(tree: exp.Expr) -> None:
    """Name expressions without alias by their text in upper case, as Snowflake does."""
    select = tree
    while isinstance(select, (exp.SetOperation, exp.Subquery)):
        select = select.this
    if not isinstance(select, exp.Select):
        return
    for projection in list(select.expressions):
        is_next = (
            isinstance(projection, exp.Column) and projection.table and projection.name.upper() == "NEXTVAL"
        )
        is_named = isinstance(projection, (exp.Alias, exp.Column, exp.Star)) or projection.is_star
        if is_named and not is_next:
            continue
        name = "NEXTVAL" if is_next else written(projection)
        projection.replace(exp.alias_(projection.copy(), exp.to_identifier(name, quoted=True)))


def _unqualify_targets(tree: exp.Expr) -> None:
    """``SET t.a = ..`` and ``INSERT (t.a)`` name columns of the target, which DuckDB takes without it."""
    target = target_of(tree)
    if target is None:
        return
    for change in tree.find_all(exp.Update, exp.Insert):
        listed = change.this.expressions if isinstance(change.this, (exp.Tuple, exp.Schema)) else []
        sets = [part.this for part in change.expressions if isinstance(part, exp.EQ)]
        for column in (*sets, *listed):
            if isinstance(column, exp.Column) and column.table:
                if column.table not in {target.alias_or_name, target.name}:
                    written = column.sql(dialect="snowflake")
                    raise invalid_identifier(written)
                for part in ("table", "db", "catalog"):
                    column.set(part, None)


def _context_function(node: exp.Expr, session: Session) -> exp.Expr:
    name = ""
    if isinstance(node, exp.Anonymous):
        name = node.name.upper()
    elif isinstance(node, exp.Func):
        name = node.sql_name().upper()
    if not name and not isinstance(node, exp.Parameter):
        return node
    values = {
        "CURRENT_VERSION": _VERSION,
        "CURRENT_ACCOUNT": "LOCAL",
        "CURRENT_ORGANIZATION_NAME": "LOCAL",
        "CURRENT_CLIENT": "snowpipe-local",
        "CURRENT_IP_ADDRESS": "127.0.0.1",
        "CURRENT_TRANSACTION": session.transaction.number,
        "CURRENT_ROLE_TYPE": "ROLE",
        "CURRENT_SCHEMAS": json.dumps([f"{session.database}.{session.schema}"] if session.schema else []),
        "CURRENT_AVAILABLE_ROLES": json.dumps(
            sorted(session.catalog.access.closure(session.catalog.access.roles_of(session.user)))
        ),
        "CURRENT_SECONDARY_ROLES": json.dumps(
            {"roles": "", "value": "ALL" if session.secondary_roles else ""}
        ),
        "CURRENT_ACCOUNT_NAME": "LOCAL",
        "CURRENT_REGION": "LOCAL",
        "CURRENT_USER": session.user,
        "CURRENT_ROLE": session.role,
        "CURRENT_DATABASE": session.database,
        "CURRENT_SCHEMA": session.schema,
        "CURRENT_WAREHOUSE": session.warehouse,
        "CURRENT_SESSION": str(session.session_id),
        "LAST_QUERY_ID": last_query_id(session, functions.arguments(node)),
    }
    if name == "GET_DDL":
        return exp.Literal.string(information_schema.get_ddl(session, node.expressions))
    if name == "IS_ROLE_IN_SESSION" and node.expressions:
        return exp.Boolean(this=node.expressions[0].name in session.roles)
    if isinstance(node, exp.Parameter) and node.name.upper() in session.variables:
        return exp.convert(session.variables[node.name.upper()])
    if isinstance(node, exp.Parameter) and not node.name.isdigit():
        raise compilation_error(f"Session variable '${node.name.upper()}' does not exist", "002211", "02000")
    if name not in values:
        return node
    value = values[name]
    return exp.null() if value is None else exp.Literal.string(value)


def _subscript(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Bracket) or len(node.expressions) != 1:
        return node
    index = node.expressions[0]
    if not isinstance(index, exp.Literal):
        raise unsupported("subscripts that are not literals")
    path = f'$."{index.name}"' if index.is_string else f"$[{index.name}]"
    return exp.Anonymous(this="json_extract", expressions=[node.this, exp.Literal.string(path)])


def _text_of_json(node: exp.Expr) -> exp.Expr:
    """A path cast to text, or compared with text, yields the string itself, not its JSON form with quotes."""
    if isinstance(node, (exp.EQ, exp.NEQ)) and isinstance(node.this, exp.JSONExtract):
        if isinstance(node.expression, exp.Literal) and node.expression.is_string:
            path = node.this
            node.set("this", exp.JSONExtractScalar(this=path.this, expression=path.expression))
        return node
    if not isinstance(node, exp.Cast) or not node.to.is_type(*exp.DataType.TEXT_TYPES):
        return node
    inner = node.this
    if isinstance(inner, exp.JSONExtract):
        text: exp.Expr = exp.JSONExtractScalar(this=inner.this, expression=inner.expression)
    elif isinstance(inner, exp.Anonymous) and inner.name.lower() == "json_extract":
        text = exp.Anonymous(this="json_extract_string", expressions=inner.expressions)
    else:
        return node
    if not node.to.expressions:
        return text
    # A length is left to the cast.
    node.set("this", text)
    return node


def number_placeholders(tree: exp.Expr, names: Sequence[str] = ()) -> None:
    """Turn ``?``, ``:1`` and ``:name`` into DuckDB's ``$1``, which the translation may use several times.

    :param names: of the bound values, in their order.
    """
    placeholders = list(tree.find_all(exp.Placeholder))
    plain = [node for node in placeholders if not node.this]
    for position, node in enumerate(plain):
        node.set("this", f"{_MARK}{position}")
    # The tree keeps a WITH behind its query; the text has them in the order of the values.
    text = tree.sql(dialect="snowflake") if plain else ""
    for number, position in enumerate(re.findall(rf"{_MARK}(\d+)", text), start=1):
        plain[int(position)].set("this", str(number))
    for node in placeholders:
        written = str(node.this)
        if written in names and not written.isdigit():
            written = str(names.index(written) + 1)
        if written.isdigit():
            bound = exp.Parameter(this=exp.Literal.number(written))
            # Unlike the $1 of VALUES and of staged files, which stays a column.
            bound.meta["bound"] = True
            node.replace(bound)
