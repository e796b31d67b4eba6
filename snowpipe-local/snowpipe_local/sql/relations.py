"""Table functions and other relations of a FROM clause that are not tables."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.loading import loader
from snowpipe_local.loading.selection import ByName, ByPosition
from snowpipe_local.loading.staging import CopyPlan, RowError, StagedRecords
from snowpipe_local.sql import functions
from snowpipe_local.sql.inferred_schema import infer_schema
from snowpipe_local.sql.results import Result, ResultColumn, json_text
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.files import StagedFile
from snowpipe_local.tables import NUMBER, TEXT, Column, ColumnType, literal, quote

# -- VALIDATION_MODE of COPY INTO, and VALIDATE(): the errors of files, without loading them -------------

MOST_ERRORS = 10_000
_NUMBERS = {"LINE", "CHARACTER", "BYTE_OFFSET", "CODE", "ROW_NUMBER", "ROW_START_LINE"}
_COLUMNS = tuple(
    ResultColumn(name, NUMBER if name in _NUMBERS else TEXT)
    for name in (
        "ERROR", "FILE", "LINE", "CHARACTER", "BYTE_OFFSET", "CATEGORY", "CODE", "SQL_STATE", "COLUMN_NAME",
        "ROW_NUMBER", "ROW_START_LINE", "REJECTED_RECORD",
    )
)  # fmt: skip


def validate(session: Session, plan: CopyPlan, mode: str) -> Result:
    """Return the errors of the files, or their first rows.

    :param mode: RETURN_ERRORS, RETURN_ALL_ERRORS or RETURN_<n>_ROWS.
    :raises SqlError: with RETURN_<n>_ROWS, for an error among these rows.
    """
    if mode.endswith("_ROWS"):
        # Of files that were loaded as well.
        return _first_rows(session, plan.forced(), int(mode.split("_")[1]))
    if mode == "RETURN_ALL_ERRORS":
        # Files that were loaded in part are read again.
        plan = plan.forced()
    return _errors(session, plan, loader.choose(plan, session.cursor)[0])


def past_errors(session: Session, table: tuple[str, ...], job_id: str) -> Result:
    """Return the errors of a past COPY INTO, whose files are read again (page "VALIDATE").

    :param job_id: query id of the COPY, of the same user; ``_last`` for the last one of the session.
    :raises SqlError: when no such COPY is known, or it transformed its rows.
    """
    database, schema, name = session.resolve(table)
    query_id = session.last_copy_id if job_id.lower() == "_last" else job_id
    known = session.catalog.copies.get((session.user, query_id))
    if known is None:
        raise _unknown_copy(name, job_id)
    plan, files = known
    if (plan.database, plan.table.schema, plan.table.name) != (database, schema, name):
        raise _unknown_copy(name, job_id)
    if not isinstance(plan.selection, (ByName, ByPosition)):
        raise compilation_error("VALIDATE does not support COPY statements that transform data.")
    return _errors(session, plan, loader.choose(plan, session.cursor)[0] if files is None else list(files))


def _errors(session: Session, plan: CopyPlan, files: Sequence[StagedFile]) -> Result:
    rows: list[Sequence[Any]] = []
    for file in files:
        staged = StagedRecords(session.cursor, plan, MOST_ERRORS - len(rows), with_records=True)
        name = plan.location.listed_name(file)
        try:
            staged.fill(file)
        except SqlError as error:
            if error.sqlstate.startswith(("0A", "42")):
                raise
            staged.errors.append(RowError(error.code, error.sqlstate, error.message, 1, 1, 1, None))
        rows += [_row(name, error) for error in staged.errors]
        if len(rows) >= MOST_ERRORS:
            break
    return Result(_COLUMNS, rows)


def _first_rows(session: Session, plan: CopyPlan, most: int) -> Result:
    columns = tuple(ResultColumn(column.name, column.type) for column in plan.selection.columns)
    rows: list[Sequence[Any]] = []
    for file in loader.choose(plan, session.cursor)[0]:
        if len(rows) >= most:
            break
        staged = StagedRecords(session.cursor, plan)
        staged.fill(file)
        for error in staged.errors:
            if error.row <= most - len(rows):
                raise error.abort(plan.location.listed_name(file))
        rows += staged.first_rows(most - len(rows))
    return Result(columns, rows)


def _row(file: str, error: RowError) -> tuple[Any, ...]:
    category = "parsing" if error.column is None else "conversion"
    return (
        error.message, file, error.line, error.character, None, category, int(error.code), error.sqlstate,
        error.column, error.row, error.line, error.record,
    )  # fmt: skip


def _unknown_copy(table: str, job_id: str) -> SqlError:
    return compilation_error(
        f"Invalid argument [{job_id[:80]}] for VALIDATE: no COPY INTO {table} with this query id is known."
    )


# -- Table functions and other relations of a FROM clause that are not tables -----------------------------

_EACH = """SELECT __seq AS "SEQ", _flat_key(e.fullkey, e.key) AS "KEY", _flat_path(e.fullkey) AS "PATH",
    CASE WHEN e.fullkey LIKE '%]' THEN CAST(e.key AS BIGINT) END AS "INDEX",
    _flat_value(e.value, __document, __prefix || substr(e.fullkey, 2)) AS "VALUE",
    _flat_this(json_extract(__input, e.path), __document, __prefix || substr(e.path, 2)) AS "THIS"
    FROM {function}(__input, {path}) AS e WHERE NOT e.key IS NULL"""
_BEHIND = "substr(e.fullkey, length(__path) + 1)"
_MODES = {
    "BOTH": "",
    "OBJECT": f" AND NOT {_BEHIND} LIKE '%]%'",
    "ARRAY": f" AND regexp_full_match({_BEHIND}, '(\\[[0-9]+\\])*')",
}
_ROWS_EVERY_SECONDS = 0.02
_ARROW = {
    "FLOAT": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
}


# Table functions of INFORMATION_SCHEMA; each has a module of its own.
SERVICE_FUNCTIONS = (
    "COPY_HISTORY", "QUERY_HISTORY", "QUERY_HISTORY_BY_SESSION", "QUERY_HISTORY_BY_USER",
    "QUERY_HISTORY_BY_WAREHOUSE",
)  # fmt: skip


_ROW_NUMBERS = (exp.Seq1, exp.Seq2, exp.Seq4, exp.Seq8)


def is_service_function(call: exp.Expr, *names: str) -> bool:
    """Return True for a call of ``INFORMATION_SCHEMA.name(..)``, with or without a database.

    :param names: the names that count, upper case.
    """
    return (
        isinstance(call, exp.Dot)
        and isinstance(call.expression, exp.Anonymous)
        and call.expression.name.upper() in names
    )


def service_arguments(call: exp.Anonymous, names: Sequence[str]) -> dict[str, exp.Expr]:
    """Return the arguments of such a call by name; those without a name have the names in their order.

    :raises SqlError: for an unknown or repeated one.
    """
    found: dict[str, exp.Expr] = {}
    for position, argument in enumerate(call.expressions):
        is_named = isinstance(argument, exp.Kwarg)
        name = argument.this.name.upper() if is_named else names[position] if position < len(names) else ""
        if name not in names or name in found:
            raise compilation_error(f"invalid argument '{name}' of {call.name.upper()}.")
        found[name] = argument.expression if is_named else argument
    return found


def replace_table_functions(session: Session, tree: exp.Expr) -> None:
    """Replace FLATTEN, RESULT_SCAN, GENERATOR, SPLIT_TO_TABLE and VALUES by what DuckDB can read.

    :raises SqlError: 000002 for another table function.
    """
    found = list(tree.find_all(*_COMPLETED, exp.Lateral))
    for node in found:
        if type(node) in _COMPLETED:
            _COMPLETED[type(node)](node)
    for node in found:
        if isinstance(node, (exp.Lateral, exp.TableFromRows)) and node.parent is not None:
            if isinstance(node.parent, exp.Subquery) and isinstance(node.parent.parent, (exp.From, exp.Join)):
                node.set("alias", node.args.get("alias") or node.parent.args.get("alias"))
                node.parent.replace(node)
            _replace(session, node)


def _complete_table(node: exp.Table) -> None:
    if isinstance(node.this, exp.DynamicIdentifier):
        _identifier(node, node.this.this)
    elif node.args.get("catalog") and not node.db:
        # "Object name resolution": the schema between two dots is PUBLIC.
        node.set("db", _identifier_of("PUBLIC"))
    if node.args.get("when") is not None:
        raise unsupported("time travel (AT and BEFORE)")


def _complete_rows(node: exp.TableFromRows) -> None:
    """TABLE('name') is the table ("Table literals")."""
    if isinstance(node.this, exp.Literal):
        table = exp.Table(alias=node.args.get("alias"))
        _identifier(table, node.this)
        node.replace(table)


def _sample_rows(node: exp.TableSample) -> None:
    """SAMPLE (n ROWS) draws row by row."""
    if node.args.get("size") is not None:
        node.set("method", None)


def _number_rows(node: exp.Expr) -> None:
    """Windows by SEQ8() take rows as they come."""
    if isinstance(node.find_ancestor(exp.Window, exp.Select), exp.Window):
        node.replace(exp.null())


def _recurse(node: exp.With) -> None:
    """The word RECURSIVE may be left out ("WITH")."""
    names = {query.alias for query in node.expressions if isinstance(query.this, exp.Union)}
    if any(not table.db and table.name in names for table in node.find_all(exp.Table)):
        node.set("recursive", True)


def _complete_join(join: exp.Join) -> None:
    """Write a join as the engine takes it, with the columns of USING first ("JOIN")."""
    using, on = join.args.get("using"), join.args.get("on")
    if join.args.get("kind") == "INNER" and not (using or on or join.args.get("method")):
        join.set("kind", "CROSS")
    select, parent = join.find_ancestor(exp.Select), join.parent
    stars = [part for part in select.expressions if isinstance(part, exp.Star)] if select is not None else []
    if parent is None:
        return
    left: exp.Expr = parent.args["from_"].this if isinstance(parent, exp.Select) else parent
    if using and stars and parent.args["joins"][0] is join:
        left = _with_first(left, [exp.column(column.copy()) for column in using])
    if join.args.get("match_condition") is None:
        return
    # ASOF JOIN keeps rows without a match; the engine takes all conditions together ("ASOF JOIN").
    for column in using or ():
        hidden = exp.to_identifier(f"{column.name}\x03", quoted=True)
        right = _with_first(join.this, [exp.alias_(exp.column(column.copy()), hidden)])
        if not (left.alias_or_name and right.alias_or_name):
            raise unsupported("ASOF JOIN with USING of a relation without a name")
        same = (exp.column(column.copy(), left.alias_or_name), exp.column(hidden.copy(), right.alias_or_name))
        on = exp.and_(on, exp.EQ(this=same[0], expression=same[1]), copy=False)
        for star in stars:
            star.append("except_", hidden.copy())
    join.set("using", None)
    join.set("on", exp.and_(join.args.pop("match_condition"), on, copy=False))
    join.set("side", "LEFT")


def _with_first(relation: exp.Expr, columns: Sequence[exp.Expr]) -> exp.Expr:
    """Let a relation of a join have some of its columns first; return what stands in its place."""
    others = exp.Star(except_=[column.unalias().this.copy() for column in columns])
    name = exp.TableAlias(this=_identifier_of(relation.alias_or_name)) if relation.alias_or_name else None
    wrapped = exp.Subquery(alias=name)
    joins = relation.args.pop("joins", None)
    relation.replace(wrapped)
    wrapped.set("joins", joins)
    wrapped.set("this", exp.select(*columns, others).from_(relation, copy=False))
    return wrapped


def _order_by_all(order: exp.Order) -> None:
    """ORDER BY ALL: by each column in turn ("ORDER BY")."""
    first = order.expressions[0]
    by, query = first.this, order.parent
    is_all = isinstance(by, exp.Column) and by.name == "ALL" and not by.table and len(order.expressions) == 1
    if not is_all or not isinstance(query, exp.Query) or any(node.is_star for node in query.selects):
        if is_all:
            first.set("this", exp.var("ALL"))
        return
    each = [first.copy() for _ in query.selects]
    for number, ordered in enumerate(each, start=1):
        ordered.set("this", exp.Literal.number(number))
    order.set("expressions", each)


# Relations, clauses and numbers of rows that are to be written in a form that the engine takes, or refused.
_COMPLETED: dict[type[exp.Expr], Callable[[Any], None]] = {
    exp.Values: lambda node: _name_values(node),
    exp.Table: _complete_table,
    exp.TableFromRows: _complete_rows,
    exp.TableSample: _sample_rows,
    exp.Join: _complete_join,
    exp.Order: _order_by_all,
    exp.With: _recurse,
    **dict.fromkeys(_ROW_NUMBERS, _number_rows),
}


def _replace(session: Session, node: exp.Expr) -> None:
    call = node.this
    if isinstance(node, exp.TableFromRows) and not isinstance(node.parent, (exp.From, exp.Join)):
        raise compilation_error("a table function stands in FROM only.")
    alias = node.args.get("alias")
    if isinstance(call, exp.Explode):
        _flatten(node, call, alias)
        return
    if isinstance(node, exp.Lateral) and isinstance(call, exp.SplitToTable):
        named = alias or exp.TableAlias(this=_identifier_of("SPLIT_TO_TABLE"))
        _laterally(node, exp.Subquery(this=_split(call)), named)
        return
    if isinstance(node, exp.Lateral) or is_service_function(call, *SERVICE_FUNCTIONS):
        return
    function = call.expression if isinstance(call, exp.Dot) else call
    name = function.name.upper() if isinstance(function, exp.Anonymous) else function.key.upper()
    named = alias.copy() if alias is not None else exp.TableAlias(this=_identifier_of(name))
    if isinstance(call, exp.Dot):
        raise unsupported(f"table function {name}")
    if name in _RESULTS:
        rows = registered_result(session, _RESULTS[name](session, call))
        node.replace(exp.Subquery(this=rows, alias=named))
    elif name == "GENERATOR":
        node.replace(exp.Subquery(this=_generator(session, call), alias=named))
    elif name == "SPLITTOTABLE":
        _laterally(node, exp.Subquery(this=_split(call)), named)
    else:
        raise unsupported(f"table function {name}")


def _identifier_of(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _flatten(node: exp.Expr, call: exp.Explode, alias: exp.Expr | None) -> None:
    options: dict[str, exp.Expr] = {}
    for position, given in enumerate((call.this, *call.expressions)):
        if isinstance(given, exp.Kwarg):
            options[given.this.name.upper()] = given.expression
        elif position == 0:
            options["INPUT"] = given
        else:
            raise compilation_error("FLATTEN takes named arguments after the first one.")
    unknown = set(options) - {"INPUT", "PATH", "OUTER", "RECURSIVE", "MODE"}
    if unknown or "INPUT" not in options:
        raise unsupported(f"FLATTEN with {', '.join(sorted(unknown)) or 'no INPUT'}")
    path = options["PATH"].name if "PATH" in options else ""
    recursive = _is_true(options.get("RECURSIVE"))
    text = _EACH.format(function="json_tree" if recursive else "json_each", path=literal(_json_path(path)))
    text += _mode(options.get("MODE"))
    document, prefix = _document(options["INPUT"])
    query = _query(
        text,
        {
            "__input": functions.fill("_sorted_keys(to_json(_0))", [options["INPUT"]]),
            "__document": document,
            "__prefix": exp.Literal.string(prefix),
            "__path": exp.Literal.string(_json_path(path)),
        },
    )
    subquery = exp.Subquery(this=query)
    subquery.meta["flatten"] = options["INPUT"].copy()
    subquery.meta["recursive"] = recursive
    named = alias.copy() if alias is not None else exp.TableAlias(this=_identifier_of("FLATTEN"))
    is_outer = _is_true(options.get("OUTER"))
    if not isinstance(node.parent, exp.Join) and is_outer:
        outer = _query("SELECT f.* FROM (SELECT 1) AS _o LEFT JOIN LATERAL (SELECT 1) AS f ON TRUE", {})
        for lateral in outer.find_all(exp.Lateral):
            lateral.this.set("this", query)
        subquery.set("this", outer)
    _laterally(node, subquery, named, is_outer=is_outer)


def _document(given: exp.Expr) -> tuple[exp.Expr, str]:
    """Return the document that holds the input of FLATTEN, and the engine's path to the input in it."""
    root, path = given.unnest(), ""
    while isinstance(root, exp.JSONExtract) and isinstance(root.expression, exp.JSONPath):
        root, path = root.this.unnest(), functions.json_path(root.expression)[1:] + path
    return root, f"${path}"


def _laterally(node: exp.Expr, rows: exp.Subquery, alias: exp.Expr, *, is_outer: bool = False) -> None:
    """Put the rows of a table function in its place; behind a join they may be of the row before it."""
    join = node.parent
    if not isinstance(join, exp.Join):
        rows.set("alias", alias)
        node.replace(rows)
        return
    node.replace(exp.Lateral(this=rows, alias=alias))
    if is_outer or str(join.args.get("side") or "").upper() == "LEFT":
        join.set("side", "LEFT")
        join.set("kind", None)
        join.set("on", join.args.get("on") or exp.true())


def _mode(given: exp.Expr | None) -> str:
    """Return the condition of FLATTEN's MODE: what is not of that kind is neither shown nor gone through.

    :raises SqlError: for another word ("FLATTEN", arguments).
    """
    mode = given.name.upper() if isinstance(given, exp.Literal) else "BOTH" if given is None else ""
    if mode not in _MODES:
        raise compilation_error("MODE of FLATTEN is 'OBJECT', 'ARRAY' or 'BOTH'.")
    return _MODES[mode]


def _json_path(path: str) -> str:
    """Return the JSON path of a FLATTEN path such as ``a.b[0]``."""
    if not path:
        return "$"
    return "$" + (path if path.startswith("[") else f".{path}")


def _is_true(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Boolean) and bool(node.this)


def _generator(session: Session, call: exp.Expr) -> exp.Expr:
    count, seconds = call.args.get("rowcount"), call.args.get("timelimit")
    for value, form in ((count, r"\d+"), (seconds, r"\d+(\.\d+)?")):
        if value is not None and not (isinstance(value, exp.Literal) and re.fullmatch(form, value.name)):
            raise unsupported("GENERATOR without a literal ROWCOUNT or TIMELIMIT")
    # "GENERATOR", usage notes: without both arguments there are no rows.
    rows = f"range({int(count.name) if count else 0})"
    if seconds is not None and float(seconds.name) > 0:
        rows = rows_for(session, float(seconds.name)) + (f" LIMIT {int(count.name)}" if count else "")
    return _query(f"SELECT NULL AS n FROM {rows}", {})  # noqa: S608 - a name of our own, or a number


def rows_for(session: Session, seconds: float) -> str:
    """Lend the session a relation that takes a time to read, a few rows every 20 ms; its name, quoted.

    The statement that reads it can be cancelled.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        end, idle = time.monotonic() + seconds, threading.Event()
        while (left := end - time.monotonic()) > 0:
            idle.wait(min(left, _ROWS_EVERY_SECONDS))
            yield batch

    batch = pa.record_batch([pa.array(range(10), pa.int64())], names=["n"])
    return quote(session.register(pa.RecordBatchReader.from_batches(batch.schema, batches())))


def _split(call: exp.Expr) -> exp.Expr:
    template = (
        'SELECT CAST(1 AS BIGINT) AS "SEQ", generate_subscripts(p.p, 1) AS "INDEX", unnest(p.p) AS "VALUE" '
        "FROM (SELECT string_split(__text, __by) AS p) AS p"
    )
    return _query(template, {"__text": call.this, "__by": call.expression})


def _query(text: str, columns: dict[str, exp.Expr]) -> exp.Expr:
    """Parse a DuckDB query of our own and replace some of its columns by expressions."""
    query = functions.parsed(text).copy()
    for table in query.find_all(exp.Table):
        # What a function of the engine is given may be the statement's own, which is to be translated.
        table.meta["engine"] = True if isinstance(table.this, exp.Identifier) else "function"
    for column in list(query.find_all(exp.Column)):
        if column.name in columns:
            column.replace(columns[column.name].copy())
    return query


def _name_values(values: exp.Values) -> None:
    """Columns of VALUES are COLUMN1, COLUMN2, .. unless the alias names them; ``$1`` is the first."""
    rows = values.expressions
    if not isinstance(values.parent, (exp.From, exp.Join)) or not rows:
        return
    width = len(rows[0].expressions) if isinstance(rows[0], exp.Tuple) else 1
    alias = values.args.get("alias") or exp.TableAlias(this=_identifier_of("VALUES"))
    if not alias.args.get("columns"):
        alias.set("columns", [_identifier_of(f"COLUMN{n}") for n in range(1, width + 1)])
    values.set("alias", alias)
    select = values.find_ancestor(exp.Select)
    for parameter in list(select.find_all(exp.Parameter)) if select is not None else ():
        number = parameter.name
        if number.isdecimal() and 0 < int(number) <= width and not parameter.meta.get("bound"):
            named: exp.Expr = exp.column(alias.args["columns"][int(number) - 1].copy())
            holder = parameter.parent if isinstance(parameter.parent, exp.Column) else parameter
            if isinstance(holder.parent, exp.Select):
                named = exp.alias_(named, _identifier_of(f"${number}"))
            holder.replace(named)


def _identifier(table: exp.Table, given: exp.Expr) -> None:
    """Let a table have the name that IDENTIFIER('name') or TABLE('name') gives."""
    if not isinstance(given, exp.Literal):
        raise unsupported("IDENTIFIER of something that is not a literal")
    parsed = exp.to_table(given.name, dialect="snowflake")
    for part in ("this", "db", "catalog"):
        table.set(part, parsed.args.get(part))
    for identifier in table.find_all(exp.Identifier):
        if not identifier.args.get("quoted"):
            identifier.set("this", identifier.this.upper())
            identifier.set("quoted", True)


def scanned(session: Session, call: exp.Expr) -> Result:
    """Return the result that RESULT_SCAN(..) names: by query id, or by LAST_QUERY_ID([n]).

    :raises SqlError: 000709 when it is not, or no longer, known.
    """
    given = call.expressions[0] if call.expressions else None
    if isinstance(given, exp.Literal) and given.is_string:
        query_id: str | None = given.name
    elif isinstance(given, exp.Anonymous) and given.name.upper() == "LAST_QUERY_ID":
        query_id = last_query_id(session, given.expressions)
    else:
        raise unsupported("RESULT_SCAN of something that is not a query id or LAST_QUERY_ID()")
    result = session.results.get(query_id or "")
    if result is None:
        raise SqlError("000709", "02000", f"Statement {query_id} not found")
    return result


def _validated(session: Session, call: exp.Expr) -> Result:
    """Return the rows of VALIDATE(table, JOB_ID => '_last' | query id)."""
    table, *more = call.expressions or [None]
    job = more[0].expression if len(more) == 1 and isinstance(more[0], exp.Kwarg) else None
    if (
        not isinstance(table, exp.Column)
        or job is None
        or more[0].this.name.upper() != "JOB_ID"
        or not job.is_string
    ):
        raise compilation_error("expected VALIDATE(table, JOB_ID => '_last' or a query id).")
    return past_errors(session, tuple(part.name for part in table.parts), job.name)


_RESULTS: dict[str, Callable[[Session, Any], Result]] = {
    "RESULT_SCAN": scanned, "VALIDATE": _validated, "INFER_SCHEMA": infer_schema,
}  # fmt: skip


def last_query_id(session: Session, given: list[exp.Expr]) -> str | None:
    """Return the id of an earlier statement of the session, or None: -1 is the last one, 1 the first."""
    position = int(given[0].sql()) if given and re.fullmatch(r"-?\d+", given[0].sql()) else -1
    known = list(session.results)
    index = position if position < 0 else position - 1
    return known[index] if -len(known) <= index < len(known) else None


def registered_result(session: Session, result: Result) -> exp.Expr:
    """Return a query for the rows of a result, readable until the end of the statement."""
    arrays = []
    for position, column in enumerate(result.columns):
        values = [row[position] for row in result.rows]
        arrays.append(_array(values, column.type))
    table = pa.Table.from_arrays(arrays, names=[str(position) for position in range(len(arrays))])
    relation = session.register(table)
    selected = ", ".join(
        f"{_converted(position, column.type)} AS {quote(column.name)}"
        for position, column in enumerate(result.columns)
    )
    query = sqlglot.parse_one(f"SELECT {selected} FROM {quote(relation)}", dialect="duckdb")  # noqa: S608
    query.meta["columns"] = [Column(column.name, column.type) for column in result.columns]
    return query


def _array(values: list[object], kind: ColumnType) -> pa.Array:
    if kind.kind == "NUMBER":
        return pa.array(values, pa.decimal128(38, kind.scale or 0))
    if kind.kind == "TIMESTAMP_TZ":
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if kind.kind in _ARROW:
        return pa.array(values, _ARROW[kind.kind])
    return pa.array([None if value is None else json_text(value) for value in values], pa.string())


def _converted(position: int, kind: ColumnType) -> str:
    name = quote(str(position))
    if kind.kind == "TIMESTAMP_TZ":
        return f"_read_tz({name})"
    return f"json_extract({name}, '$')" if kind.is_semi_structured else name
