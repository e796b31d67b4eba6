"""Translation of Snowflake queries and DML to DuckDB."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import sqlglot
from sqlglot import Token, TokenType, exp, transforms
from sqlglot.helper import seq_get
from sqlglot.parsers.snowflake import SnowflakeParser

from snowpipe_local.access.access import insufficient
from snowpipe_local.access.model import SHARED_DATABASE, Securable
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.store import SEQUENCE, VIEW, SchemaObject
from snowpipe_local.errors import SqlError, compilation_error, invalid_identifier, object_missing, unsupported
from snowpipe_local.names import HIDDEN_SCHEMA
from snowpipe_local.sql import (
    assignments,
    checks,
    functions,
    history,
    information_schema,
    once,
    pivots,
    show,
    sources,
    staged_rows,
    timestamps,
    types,
)
from snowpipe_local.sql.relations import last_query_id, replace_table_functions
from snowpipe_local.sql.session import Session

# -- Names of result columns: an expression without alias is named by its text ---------------------------

_WRITTEN = "written"
_ENDS = frozenset(
    {TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING,
     TokenType.QUALIFY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH, TokenType.INTO, TokenType.UNION,
     TokenType.EXCEPT, TokenType.INTERSECT, TokenType.SEMICOLON}
)  # fmt: skip


def note_written(tree: exp.Expr, tokens: Sequence[Token], text: str) -> None:
    """Keep the text of each projection of a query beside its expression.

    A query whose list cannot be split token by token keeps none; its columns are then named by what
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


# -- Translation of Snowflake queries and DML to DuckDB --------------------------------------------------

_VERSION = "10.0.0"
_SNOWFLAKE = sqlglot.Dialect.get_or_raise("snowflake")


_MARK = "_SNOWPIPE_VALUE_"
_ROW = "ROWID"


class _Parser(SnowflakeParser):
    """Snowflake's grammar; a format of TO_CHAR and a parameter of TRY_PARSE_JSON stay as they are written."""

    FUNCTIONS: ClassVar = {
        **{name: read for name, read in SnowflakeParser.FUNCTIONS.items() if name not in functions.TEMPLATES},
        **dict.fromkeys(("TO_CHAR", "TO_VARCHAR"), exp.ToChar.from_arg_list),
        "TRY_PARSE_JSON": lambda args: exp.ParseJSON(
            this=seq_get(args, 0), expression=seq_get(args, 1), safe=True
        ),
    }

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        values = _long_list(self._tokens, self._index)
        if not values:
            return super()._parse_in(this, alias=alias)
        # The parentheses, the values and the commas between them.
        self._advance(2 * len(values) + 1)
        return self.expression(exp.In(this=this, expressions=_folded(values)))


# -- Long lists of literals: a node for each of them would be visited by every step of the translation -----

_LONG = 100
_WHOLE = re.compile(r"\d{1,18}")
# Texts that are written as they are, and end where a quote is.
_PLAIN = re.compile(r"[^'\\\x00-\x1f\x7f]*")


def _long_list(found: Sequence[Token], at: int) -> list[Token]:
    """Return the values of a long list of whole numbers or of plain texts, or none where there is none."""
    last = at + 1
    kind = found[last].token_type if last < len(found) else None
    if kind not in {TokenType.NUMBER, TokenType.STRING}:
        return []
    most = len(found) - 2
    while (
        last < most and found[last + 1].token_type is TokenType.COMMA and found[last + 2].token_type is kind
    ):
        last += 2
    values = list(found[at + 1 : last + 1 : 2])
    is_closed = last <= most and found[last + 1].token_type is TokenType.R_PAREN
    form = _WHOLE if kind is TokenType.NUMBER else _PLAIN
    is_folded = is_closed and len(values) >= _LONG and all(form.fullmatch(token.text) for token in values)
    return values if is_folded else []


def _folded(values: Sequence[Token]) -> list[exp.Expr]:
    """Return two nodes for a list, a literal and the text of the others, which are written as they are."""
    first, *others = values
    if first.token_type is TokenType.NUMBER:
        return [exp.Literal.number(first.text), exp.Literal.number(", ".join(token.text for token in others))]
    rest = "', '".join(token.text for token in others)
    return [exp.Literal.string(first.text), exp.Var(this=f"'{rest}'")]


def _lists_of_texts(tree: exp.Expr) -> list[exp.In]:
    """Return the conditions with a folded list of texts."""
    return [node for node in tree.find_all(exp.In) if _is_rest(node)]


def _is_rest(node: exp.In) -> bool:
    rest = node.expressions[-1] if node.expressions else None
    return isinstance(rest, exp.Var) and rest.name.startswith("'")


def _unfold(tree: exp.Expr) -> exp.Expr:
    """Return a statement with a node for each text of its lists."""
    for node in _lists_of_texts(tree):
        texts = node.expressions[-1].name[1:-1].split("', '")
        node.set("expressions", [node.expressions[0], *map(exp.Literal.string, texts)])
    return tree


# -- Reading and writing of trees ------------------------------------------------------------------------


def parse(text: str) -> exp.Expr:
    """Parse one Snowflake statement.

    :raises SqlError: for more than one statement, and for a call that no function of Snowflake's takes.
    """
    found = tokens(text)
    checks.check_lists(found)
    try:
        parsed = _Parser(dialect=_SNOWFLAKE).parse(found, text)
        # A comment behind the last semicolon is not a statement.
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


def to_duckdb(tree: exp.Expr, *, is_last: bool = False) -> str:
    """Generate DuckDB SQL for a prepared tree.

    :param is_last: nobody needs the tree any more: a copy of it is a tenth of the whole translation.
    """
    return once.to_sql(tree if is_last else tree.copy())


def prepare(session: Session, tree: exp.Expr, *, is_checked: bool = False) -> exp.Expr:
    """Apply what DuckDB lacks: Snowflake's names, context functions, JSON paths, result column names.

    :param is_checked: what the user wrote went through :func:`checks.check`; some of it is translated.
    :raises SqlError: for functions and tables that a statement cannot reach.
    """
    if isinstance(tree, exp.Select) and tree.args.get("into"):
        raise unsupported("SELECT .. INTO")
    if not is_checked:
        checks.check(tree)
    written = tree.copy() if _lists_of_texts(tree) else None
    tree = _prepared(session, tree)
    if written is not None and any(
        not isinstance(node.expressions[0], exp.Literal) for node in _lists_of_texts(tree)
    ):
        # These texts are read as another type, each of them.
        return _prepared(session, _unfold(written))
    return tree


def _prepared(session: Session, tree: exp.Expr) -> exp.Expr:
    name_projections(tree)
    with _literal_rows_aside(tree):
        quoted = normalize_identifiers(tree)
        if any(column.args.get("join_mark") for column in tree.find_all(exp.Column)):
            tree = transforms.eliminate_join_marks(tree)
        staged_rows.replace_staged_files(session, tree)
        pivots.complete(tree, partial(_rows, session))
        replace_table_functions(session, tree)
        tree = _rewrite_values(session, tree)
        _unqualify_targets(tree)
        _unqualify_columns(session, tree)
        qualify_tables(session, tree)
        marks = _tell_apart(session, tree)
        _check_case(session, tree, {marks.get(name, name) for name in quoted})
        tree = functions.rewrite_all(tree, partial(sources.of_star, session))
        _refuse_alike(session, tree)
        tree = sources.read_as_text_or_number(session, tree)
        assignments.align(tree)
    table = sources.changed_table(session, tree)
    if table is not None:
        assignments.convert(tree, table.columns, partial(assignments.given, session))
    for node in list(tree.find_all(exp.Anonymous, exp.JSONExtractScalar, exp.Extract)):
        if isinstance(node, exp.Extract):
            timestamps.cut_epoch(node)
            continue
        _exact_path(node)
        if isinstance(node, exp.Anonymous) and node.name.upper() in _TRIED:
            _try_behind(node)
    return tree


def _rows(session: Session, query: exp.Expr) -> list[tuple[Any, ...]]:
    """Return the rows of a query that a statement needs before it can be translated."""
    sql = to_duckdb(prepare(session, query, is_checked=True), is_last=True)
    return session.cursor.execute(sql).fetchall()


# -- What the engine does with a call depends on what stands around it -----------------------------------

_DIGITS_OF_DOUBLE = 15
_TRIED = frozenset({"TRY", "_TRY_PARSE_JSON", "_TRY_PARSE_JSON_ONCE"})
_OF_ROWS = (exp.AggFunc, exp.Window, exp.WithinGroup, exp.Filter, exp.Subquery)


def _exact_path(node: exp.Expr) -> None:
    """Let a path into a column keep the digits of what is shown, stored or cast to text or a NUMBER."""
    around = node.parent
    is_shown = isinstance(around, (exp.Alias, exp.Select))
    is_text = _is_text_of_path(node) and not isinstance(around, exp.Predicate)
    if not is_text and (not _is_path(node) or not (is_shown or _is_decimal(around))):
        return
    root, path = node, ""
    while _is_path(root) or root is node:
        # Each path begins with a dollar, the innermost one is the first.
        value, found_at = functions.arguments(root)[:2]
        step = functions.json_path(found_at) if isinstance(found_at, exp.JSONPath) else found_at.name
        root, path = value.unnest(), step[1:] + path
    if not isinstance(root, exp.Column):
        return
    found = node if is_shown or is_text or around is None else around
    written = [root.copy(), exp.Literal.string(f"${path}")]
    exact = exp.Anonymous(this="_exact" if found is node and not is_text else "_exact_text")
    found.replace(exact)
    exact.set("expressions", [found, *written])


def _is_decimal(node: exp.Expr | None) -> bool:
    """Return True for what is cast to a NUMBER with a fraction and more digits than the engine keeps."""
    cast = node.parent if isinstance(node, exp.Anonymous) and node.name == "_number_text" else None
    sizes = cast.to.expressions if isinstance(cast, exp.Cast) else []
    return len(sizes) == 2 and sizes[1].name != "0" and int(sizes[0].name) > _DIGITS_OF_DOUBLE


def _is_path(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name == "json_extract"


def _is_text_of_path(node: exp.Expr) -> bool:
    return isinstance(node, exp.JSONExtractScalar) or node.name == "json_extract_string"


def _try_behind(node: exp.Anonymous) -> None:
    """Take aggregates, windows and subqueries out of what is tried, where the engine takes none."""
    found = [
        part
        for part in node.walk(prune=lambda part: isinstance(part, _OF_ROWS))
        if isinstance(part, _OF_ROWS)
    ]
    if not found:
        return
    given = timestamps.call("row", *found)
    for number, part in enumerate(found, start=1):
        part.replace(timestamps.call("struct_extract", exp.column("_tried"), exp.Literal.number(number)))
    tried = exp.Lambda(this=node.copy(), expressions=[exp.to_identifier("_tried")])
    listed = timestamps.call("list_transform", exp.Array(expressions=[given]), tried)
    node.replace(timestamps.call("list_extract", listed, exp.Literal.number(1)))


@contextlib.contextmanager
def _literal_rows_aside(tree: exp.Expr) -> Iterator[None]:
    """Take the rows of an INSERT out of its tree, unless a value is more than a literal.

    A literal means the same to the engine; each step would visit all of them.
    """
    values = tree.expression if isinstance(tree, exp.Insert) else None
    if not isinstance(values, exp.Values) or not all(map(_is_plain, values.expressions)):
        yield
        return
    rows = values.args["expressions"]
    values.args["expressions"] = []
    yield
    values.args["expressions"] = rows


def _is_plain(value: exp.Expr) -> bool:
    if isinstance(value, exp.Tuple):
        return all(map(_is_plain, value.expressions))
    if isinstance(value, exp.Neg):
        return isinstance(value.this, exp.Literal) and not value.this.is_string
    return isinstance(value, (exp.Literal, exp.Null, exp.Boolean))


def _rewrite_values(session: Session, tree: exp.Expr) -> exp.Expr:
    """Rewrite what has a value of the session's, subscripts, and paths that are read as text.

    From the leaves up: a cast to text sees the path that a subscript became.
    """
    for node in reversed(list(tree.walk())):
        rewritten = _rewritten(session, node)
        if rewritten is not node:
            if node is tree:
                return rewritten
            node.replace(rewritten)
    return tree


def _rewritten(session: Session, node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Column):
        return _next_value(session, node)
    if isinstance(node, (exp.Bracket, exp.Dot)):
        return _subscript(node)
    if isinstance(node, (exp.EQ, exp.NEQ, exp.Cast)):
        return _text_of_json(node)
    if isinstance(node, exp.Parameter):
        return _variable(session, node)
    if isinstance(node, (exp.CurrentTimestamp, exp.CurrentDate)):
        return timestamps.later(node, session.catalog.clock.moved_seconds)
    return _context_function(session, node) if isinstance(node, exp.Func) else node


def normalize_identifiers(tree: exp.Expr) -> set[str]:
    """Upper-case unquoted identifiers and quote all of them.

    :returns: names of columns not in upper case, and ``ROWID``, by which the engine knows every row.
    """
    mixed: set[str] = set()
    for identifier in tree.find_all(exp.Identifier):
        # The key of an object is a text, not a name.
        is_key = (isinstance(identifier.parent, exp.PropertyEQ) and identifier.arg_key == "this") or (
            isinstance(identifier.parent, exp.Dot) and _is_member(identifier.parent)
        )
        if not identifier.args.get("quoted") and not is_key:
            identifier.set("this", identifier.this.upper())
            identifier.set("quoted", True)
            if identifier.this == _ROW and isinstance(identifier.parent, exp.Column):
                mixed.add(_ROW)
        elif identifier.this != identifier.this.upper() and identifier.arg_key == "this":
            mixed |= {identifier.this} if isinstance(identifier.parent, exp.Column) else set()
    return mixed


def _check_case(session: Session, tree: exp.Expr, quoted: set[str]) -> None:
    """Refuse a name that differs from a column by case: DuckDB would find it ("Identifier requirements").

    :param quoted: names of columns in the statement that are not in upper case, and ``ROWID``.
    """
    columns = list(sources.columns_of(session, tree))
    known = {column.name for column in columns}
    semi_structured = {column.name for column in columns if column.type.is_semi_structured}
    if semi_structured:
        _check_members(tree, semi_structured)
    used = quoted
    if any(name != name.upper() for name in known):
        used = {column.name for column in tree.find_all(exp.Column)}
    if not used:
        return
    known |= {alias.alias for alias in tree.find_all(exp.Alias)} | set(sources.FLATTEN)
    known |= {
        part.name for alias in tree.find_all(exp.TableAlias) for part in alias.args.get("columns") or ()
    }
    folded = {name.upper() for name in known}
    for name in sorted(used - known):
        if name.upper() in folded or name.upper() == _ROW:
            written = name if name == name.upper() else f'"{name}"'
            raise compilation_error(f"invalid identifier '{written}'", "000904")


def _tell_apart(session: Session, tree: exp.Expr) -> dict[str, str]:
    """Mark the names that a statement gives to columns and that differ from another one by case only.

    :returns: the marked names; those of tables and views stay as they are.
    """
    stored = {column.name for column in sources.columns_of(session, tree)}
    own = list(tree.walk(prune=lambda part: part.meta_get("engine") is True))
    named = [node.args["alias"] for node in own if isinstance(node, exp.Alias)]
    aliases = [node for node in own if isinstance(node, exp.TableAlias)]
    named += [part for node in aliases for part in node.args.get("columns") or ()]
    spelled: dict[str, set[str]] = {}
    for name in {*stored, *(part.name for part in named)}:
        spelled.setdefault(name.upper(), set()).add(name)
    marks = {
        name: name + types.MARK * number
        for found in spelled.values()
        for number, name in enumerate(sorted(found, key=lambda name: (name not in stored, name)))
        if number and name not in stored
    }
    for node in own if marks else ():
        is_relation = isinstance(node.parent, (exp.Table, exp.TableAlias)) and node.arg_key != "columns"
        is_owner = isinstance(node.parent, exp.Column) and node.arg_key != "this"
        if isinstance(node, exp.Identifier) and node.this in marks and not is_relation and not is_owner:
            node.set("this", marks[node.this])
    return marks


def _refuse_alike(session: Session, tree: exp.Expr) -> None:
    """Refuse two columns of a query whose names differ by case only where a name has to find one of them.

    The engine would take the first one for both. In the result itself nothing looks for a name.
    """
    for select in tree.find_all(exp.Select):
        names, query = sources.names_of(session, select), select.parent
        while isinstance(query, (exp.SetOperation, exp.Paren)):
            query = query.parent
        if query is None or (isinstance(query, (exp.Insert, exp.Create)) and query.expression is not None):
            own = [column for column in select.find_all(exp.Column) if not column.table]
            used = {column.name.upper() for column in own if column.parent is not select}
            names = [name for name in names if name.upper() in used]
        refuse_alike(names)
    for alias in tree.find_all(exp.TableAlias):
        refuse_alike([part.name for part in alias.args.get("columns") or ()])


def refuse_alike(names: Iterable[str]) -> None:
    """Refuse names of columns that differ by case only.

    :raises SqlError: 000002.
    """
    spelled: dict[str, str] = {}
    for name in names:
        if spelled.setdefault(name.upper(), name) != name:
            raise unsupported(
                f"two columns {spelled[name.upper()]} and {name}, whose names differ by case only"
            )


def _check_members(tree: exp.Expr, semi_structured: set[str]) -> None:
    """Refuse ``v.a`` for a member of a VARIANT, which is ``v:a``; the engine would read it."""
    suspect = [column for column in tree.find_all(exp.Column) if column.table in semi_structured]
    if suspect:
        relations = {
            node.alias_or_name for node in tree.find_all(exp.Table, exp.Subquery, exp.CTE, exp.Lateral)
        }
        for column in suspect:
            if column.table not in relations:
                raise invalid_identifier(f"{column.table}.{column.name}")


def qualify_tables(session: Session, tree: exp.Expr) -> None:
    """Complete every table name with the session's database and schema.

    :raises SqlError: when a table's database, schema or the table itself does not exist.
    """
    changed = sources.target_of(tree)
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
        if not table.args.get("db") and table.name in session.registered:
            continue
        if checks.is_common(table):
            continue
        privileges = written_privileges(tree) if table is changed else ("SELECT",)
        _qualify(session, tree, table, privileges)
    history.replace_histories(session, tree)


def _dotted(name: exp.Dot, *before: str) -> str:
    """The text of a name of four parts or more, which sqlglot makes a string where one is empty."""
    parts: list[str] = []
    rest: exp.Expr | str = name
    while isinstance(rest, exp.Dot):
        parts.append(rest.expression.name)
        rest = rest.this
    return ".".join(reversed([*parts, rest if isinstance(rest, str) else rest.name, *before]))


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
    # Found once: a table that is swapped meanwhile is read as it was found.
    known = database.tables.find(schema, name)
    if view is None and known is None:
        raise missing
    securable = "VIEW" if view else "TABLE", database.name, schema, name
    _require(session, privileges, securable, missing)
    if known is None:
        if view is not None:
            _expand(session, table, database, view)
        return
    has_alias = table.args.get("alias") is not None
    sources.put(table, database, known)
    if not has_alias:
        _give_alias(tree, table, path[-1], name)


def _require(
    session: Session, privileges: Sequence[str], securable: tuple[str, str, str, str], missing: SqlError
) -> None:
    """Require privileges on an object; one that is hidden looks like one that does not exist."""
    try:
        for privilege in privileges:
            session.require(privilege, *securable)
    except SqlError as error:
        raise missing if error.code == missing.code else error from None


def _give_alias(tree: exp.Expr, table: exp.Table, written: str, name: str) -> None:
    """Let columns be qualified by the name that the statement wrote for a table."""
    if table.name != name:
        # The engine would take it for the table of the same name.
        for column in (table.find_ancestor(exp.Select) or tree).find_all(exp.Column):
            if column.table == written:
                column.set("table", exp.to_identifier(table.name, quoted=True))
    elif isinstance(table.parent, (exp.From, exp.Join, exp.Subquery)) or name != written:
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


def _query_of(session: Session, database: Database, view: SchemaObject) -> exp.Expr:
    """Return the query of a view, translated with the rights of the view's owner.

    :raises SqlError: 002037 when a table of the view was dropped or changed.
    """
    owner = session.owner(VIEW, database.name, view.schema, view.name)
    inner = session.lender(owner, database.name, view.schema)
    try:
        return prepare(inner, parse(view.definition["query"]))
    except (SqlError, sqlglot.errors.SqlglotError) as error:
        detail = error.message if isinstance(error, SqlError) else str(error)
        raise compilation_error(
            f"Failure during expansion of view '{view.name}': {detail}", "002037", "42601"
        ) from error


def _next_value(session: Session, node: exp.Column) -> exp.Expr:
    """Return the engine's call for ``[[database.]schema.]seq.NEXTVAL``, or the node as it is."""
    if node.name != "NEXTVAL" or not node.table:
        return node
    path = tuple(part.name for part in node.parts[:-1])
    database, schema, name = session.resolve(path)
    known = database.objects.find(SEQUENCE, schema, name)
    if known is None:
        return node
    session.require("USAGE", SEQUENCE, database.name, schema, name)
    sequence = database.names.hidden(str(known.definition["engine_name"]))
    return exp.Anonymous(this="nextval", expressions=[exp.Literal.string(sequence)])


def _expand(session: Session, table: exp.Table, database: Database, view: SchemaObject) -> None:
    query = exp.Subquery(this=_query_of(session, database, view))
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
        alias = exp.Alias(alias=exp.to_identifier(name, quoted=True))
        projection.replace(alias)
        alias.set("this", projection)


def _unqualify_columns(session: Session, tree: exp.Expr) -> None:
    """``schema.t.a`` and ``database.schema.t.a`` are ``t.a`` where that table is read without an alias."""
    columns = [column for column in tree.find_all(exp.Column) if column.args.get("db")]
    read = {
        (table.name, table.db or session.schema, table.catalog or session.database)
        for table in tree.find_all(exp.Table)
        if columns and not table.alias
    }
    for column in columns:
        if (column.table, column.db, column.catalog or session.database) in read:
            column.set("db", None)
            column.set("catalog", None)


def _unqualify_targets(tree: exp.Expr) -> None:
    """``SET t.a = ..`` and ``INSERT (t.a)`` name columns of the target, which DuckDB takes without it."""
    target = sources.target_of(tree)
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


_CONTEXT: dict[str, Callable[[Session, exp.Expr], str | None]] = {
    "CURRENT_VERSION": lambda _session, _call: _VERSION,
    **dict.fromkeys(
        ("CURRENT_ACCOUNT", "CURRENT_ACCOUNT_NAME", "CURRENT_ORGANIZATION_NAME", "CURRENT_REGION"),
        lambda _session, _call: "LOCAL",
    ),
    "CURRENT_CLIENT": lambda _session, _call: "snowpipe-local",
    "CURRENT_IP_ADDRESS": lambda _session, _call: "127.0.0.1",
    "CURRENT_TRANSACTION": lambda session, _call: session.transaction.number,
    "CURRENT_ROLE_TYPE": lambda _session, _call: "ROLE",
    "CURRENT_SCHEMAS": lambda session, _call: json.dumps(
        [f"{session.database}.{session.schema}"] if session.schema else []
    ),
    "CURRENT_AVAILABLE_ROLES": lambda session, _call: json.dumps(
        sorted(session.catalog.access.closure(session.catalog.access.roles_of(session.user)))
    ),
    "CURRENT_SECONDARY_ROLES": lambda session, _call: json.dumps(
        {"roles": "", "value": "ALL" if session.secondary_roles else ""}
    ),
    "CURRENT_USER": lambda session, _call: session.user,
    "CURRENT_ROLE": lambda session, _call: session.role,
    "CURRENT_DATABASE": lambda session, _call: session.database,
    "CURRENT_SCHEMA": lambda session, _call: session.schema,
    "CURRENT_WAREHOUSE": lambda session, _call: session.warehouse,
    "CURRENT_SESSION": lambda session, _call: str(session.session_id),
    "LAST_QUERY_ID": lambda session, call: last_query_id(session, functions.arguments(call)),
    "GET_DDL": lambda session, call: information_schema.get_ddl(session, call.expressions),
}


def _context_function(session: Session, node: exp.Func) -> exp.Expr:
    name = node.name.upper() if isinstance(node, exp.Anonymous) else node.sql_name()
    if name == "IS_ROLE_IN_SESSION" and node.expressions:
        return exp.Boolean(this=node.expressions[0].name in session.roles)
    if name not in _CONTEXT:
        return node
    value = _CONTEXT[name](session, node)
    return exp.null() if value is None else exp.Literal.string(value)


def _variable(session: Session, node: exp.Parameter) -> exp.Expr:
    name = node.name.upper()
    if name in session.variables:
        return exp.convert(session.variables[name])
    if not name.isdigit():
        raise compilation_error(f"Session variable '${name}' does not exist", "002211", "02000")
    return node


def _is_member(node: exp.Dot) -> bool:
    """Return True for ``v[0].a``, which is not a name."""
    value = node.this
    while isinstance(value, exp.Dot):
        value = value.this
    return isinstance(value, exp.Bracket) and isinstance(node.expression, exp.Identifier)


def _subscript(node: exp.Bracket | exp.Dot) -> exp.Expr:
    if isinstance(node, exp.Dot):
        is_path = isinstance(node.this, exp.Anonymous) and node.this.name == "json_extract"
        if not is_path or not isinstance(node.expression, exp.Identifier):
            return node
        index: exp.Expr = exp.Literal.string(node.expression.name)
    elif len(node.expressions) != 1:
        return node
    else:
        index = node.expressions[0]
    if not isinstance(index, exp.Literal):
        return exp.GetExtract(this=node.this, expression=index)
    quoted = index.name.replace("\\", "\\\\").replace('"', '\\"')
    path = f'$."{quoted}"' if index.is_string else f"$[{index.name}]"
    return exp.Anonymous(this="json_extract", expressions=[node.this, exp.Literal.string(path)])


def _text_of_json(node: exp.EQ | exp.NEQ | exp.Cast) -> exp.Expr:
    """A path cast to text, or compared with text, yields the string itself, not its JSON form with quotes."""
    inner = node.this
    if not isinstance(node, exp.Cast):
        is_text = isinstance(node.expression, exp.Literal) and node.expression.is_string
        if is_text and isinstance(inner, exp.JSONExtract):
            node.set("this", exp.JSONExtractScalar(this=inner.this, expression=inner.expression))
        return node
    if not node.to.is_type(*exp.DataType.TEXT_TYPES):
        return node
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


def number_placeholders(
    tree: exp.Expr, names: Sequence[str] = (), times: Mapping[int, str] = MappingProxyType({})
) -> None:
    """Turn ``?``, ``:1`` and ``:name`` into DuckDB's ``$1``, which the translation may use several times.

    :param names: of the bound values, in their order.
    :param times: type words of those that are dates and times, by their numbers from 0.
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
            bound.meta.update(node.meta, bound=True)
            if int(written) - 1 in times:
                bound.meta[types.BOUND_TYPE] = times[int(written) - 1]
            node.replace(bound)
