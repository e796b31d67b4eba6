"""SELECT and DML: transpiled to DuckDB, run in the session's cursor."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from snowpipe_local.engine.conversions import MACROS, cut
from snowpipe_local.engine.database import Database
from snowpipe_local.errors import SqlError, compilation_error, unsupported
from snowpipe_local.limits import DEFAULTS
from snowpipe_local.sql import (
    assignments,
    checks,
    functions,
    numbers,
    results,
    sources,
    timestamps,
    translate,
)
from snowpipe_local.sql.relations import registered_result
from snowpipe_local.sql.results import Bindings, Result, ResultColumn
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.types import MARK, SHOWN, Type
from snowpipe_local.tables import (
    MAX_VARCHAR,
    NUMBER,
    PLAIN_DATE,
    PLAIN_TIME,
    ZONED,
    Column,
    ColumnType,
    Table,
)

# -- Lengths of VARCHAR and BINARY, and text for BINARY, in what DML writes ("String & binary data types") --

# Key of a placeholder's number among the metadata of its node.
_BOUND = "number"
# A text that the engine reads as Snowflake does; for a TIME it would read the time of a date as well.
_PLAIN = re.compile(rf"{PLAIN_DATE}(?:[ T]{PLAIN_TIME}(?:\.\d{{1,6}})?)?|true|false")
_PLAIN_TIME = re.compile(PLAIN_TIME)
# A list of one, so that the value is computed once.
_CHECKED = (
    "list_transform([{value}], lambda x: CASE WHEN {size}(x) > {most} "
    "THEN error('{kind} ''' || {shown} || ''' is too long and would be truncated') ELSE x END)[1]"
)


def is_plain(value: Any, kind: str) -> bool:
    """Return True for a bound value, or the text of a literal, that the engine reads as Snowflake does."""
    if kind == "TIMESTAMP_TZ":
        return value is None or isinstance(value, dict)
    written = _PLAIN_TIME if kind == "TIME" else _PLAIN
    if isinstance(value, duckdb.Value):
        return False
    return not isinstance(value, str) or written.fullmatch(value) is not None


def enforce(session: Session, tree: exp.Expr, typed: Collection[int] = ()) -> None:
    """Let a prepared INSERT, UPDATE or MERGE check what it writes; a table without limits stays as it is.

    :param typed: numbers of the placeholders whose values need no reading (:func:`is_plain`).
    :raises SqlError: 100078 for a literal that is too long, 100115 for one that is not a hexadecimal text.
    """
    table = sources.changed_table(session, tree)
    if table is not None and any(map(_is_limited, table.columns)):
        assignments.convert(tree, table.columns, partial(_checked, typed=typed))


def checked(query: exp.Expr, columns: Sequence[Column]) -> exp.Expr:
    """Return a prepared query that checks what it writes into these columns, all of them in their order."""
    return assignments.converted(query, columns, _checked)


def _checked(value: exp.Expr, _own: Type, column: Column, typed: Collection[int] = ()) -> exp.Expr:
    is_read = column.type.kind in MACROS and column.type.kept_micros == 1
    is_typed = is_read and value.meta_get(_BOUND) in typed
    return _guard(value, column) if _is_limited(column) and not is_typed else value


def _is_limited(column: Column) -> bool:
    if column.type.kind in {"BINARY", *MACROS}:
        return True
    return column.type.kind == "VARCHAR" and (column.type.length or MAX_VARCHAR) < MAX_VARCHAR


def _guard(value: exp.Expr, column: Column) -> exp.Expr:
    if isinstance(value, (exp.Null, exp.Var, exp.Boolean)):
        return value
    if column.type.kind in MACROS:
        is_read = isinstance(value, exp.Literal) and column.type.kept_micros == 1
        if is_read and is_plain(value.name, column.type.kind):
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


# -- SELECT and DML: transpiled to DuckDB, run in the session's cursor -----------------------------------

_COUNTS = {
    "INSERT": "number_of_rows_inserted",
    "UPDATE": "number_of_rows_updated",
    "DELETE": "number_of_rows_deleted",
}
_CHANGED = {"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted", "DUPLICATE": "duplicated"}
_STATEMENT_TYPES = {
    "INSERT": results.INSERT, "UPDATE": results.UPDATE, "DELETE": results.DELETE, "MERGE": results.MERGE,
}  # fmt: skip
# "SEQ1 / SEQ2 / SEQ4 / SEQ8": whole numbers of one, two, four and eight bytes.
_SEQUENCES: dict[type, ColumnType] = {
    exp.Seq1: ColumnType("NUMBER", precision=3, scale=0),
    exp.Seq2: ColumnType("NUMBER", precision=5, scale=0),
    exp.Seq4: ColumnType("NUMBER", precision=10, scale=0),
    exp.Seq8: ColumnType("NUMBER", precision=19, scale=0),
}
_NEVER_NULL = (*_SEQUENCES, exp.Literal, exp.Boolean, exp.Count, exp.Randstr, exp.Rand, exp.CurrentTimestamp)
_OVERWRITE = re.compile(r"INSERT\s+OVERWRITE\b", re.IGNORECASE)
_REFUSES = "ERROR_ON_NONDETERMINISTIC_UPDATE"
_LITERAL = r"(?:\d+(?:\.\d+)?|'[^'\\]*'|TRUE|FALSE|NULL)"
_CONSTANTS: dict[str, Result] = {}
_MOST_CONSTANTS, _LONGEST_CONSTANT = 64, 200
# Rows that are fetched at once: those of 16 MB take as much as a result may. Bytes of a row and of a value in
# Python, without the letters of a text.
_FETCHED, _ROW_BYTES, _VALUE_BYTES = 64, 56, 48
_OF_FIXED_SIZE = frozenset({"NUMBER", "FLOAT", "BOOLEAN", "DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"})
_CONSTANT = re.compile(rf"SELECT\s+{_LITERAL}(?:\s*,\s*{_LITERAL})*", re.IGNORECASE)


def select(session: Session, text: str, bindings: Bindings) -> Result:
    """SELECT, WITH ... SELECT and VALUES."""
    if len(text) < _LONGEST_CONSTANT and _CONSTANT.fullmatch(text) and not bindings.rows():
        return _constant(text, session.cursor)
    tree = translate.parse(text)
    if isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)):
        return modify(session, text, bindings)
    if not isinstance(tree, exp.Query):
        raise unsupported(" ".join(text.split()[:3]))
    translate.number_placeholders(tree, bindings.names, bindings.times)
    return _selected(session, tree, bindings)


def _selected(session: Session, tree: exp.Expr, bindings: Bindings) -> Result:
    projections = [node.unalias() for node in tree.selects] if isinstance(tree, exp.Select) else []
    tree = translate.prepare(session, tree)
    shown = tree.meta_get(SHOWN)
    sql = translate.to_duckdb(tree, is_last=True)
    rows = _bound_rows(bindings)
    cursor = session.cursor.execute(sql, rows[0]) if rows else session.cursor.execute(sql)
    return _fetched(cursor, projections, session.catalog.limits.result_bytes, shown)


def _bound_rows(bindings: Bindings, targets: Mapping[int, str] = MappingProxyType({})) -> list[list[Any]]:
    """Return the bound values of each repetition; the engine is given the type of a TIMESTAMP_TZ."""
    rows = bindings.rows(targets)
    zoned = [n for n, kind in bindings.times.items() if kind == "TIMESTAMP_TZ" and targets.get(n) != kind]
    for row, number in itertools.product(rows, zoned):
        at = row[number]
        if at is not None:
            offset = at.utcoffset() // dt.timedelta(minutes=1)
            row[number] = duckdb.Value({"t": at, "o": offset}, duckdb.sqltype(ZONED))
    return rows


def described(
    projections: Sequence[exp.Expr | None],
    columns: Sequence[tuple[str, Any]],
    shown: Sequence[tuple[str, Type]] | None = None,
) -> tuple[ResultColumn, ...]:
    """Return the columns of a query: what a function gives that is never NULL is described so.

    :param projections: what the statement wrote for them; not used where a star stands for several.
    :param shown: what is known of their types.
    :raises SqlError: 000002 for a difference of times, which is not a value in Snowflake.
    """
    if any(str(kind) == "INTERVAL" for _, kind in columns):
        raise unsupported("data type INTERVAL")
    written = projections if len(projections) == len(columns) else [None] * len(columns)
    known = [own for _, own in shown or ()]
    types = known if len(known) == len(columns) else [Type()] * len(columns)
    return tuple(
        ResultColumn(
            name.rstrip(MARK),
            _SEQUENCES.get(type(node)) or own.described(ColumnType.from_duckdb(str(kind))),
            own.null and not isinstance(node, _NEVER_NULL),
        )
        for (name, kind), node, own in zip(columns, written, types, strict=True)
    )


def _fetched(
    cursor: duckdb.DuckDBPyConnection,
    projections: Sequence[exp.Expr] = (),
    most: int = DEFAULTS.result_bytes,
    shown: Sequence[tuple[str, Type]] | None = None,
) -> Result:
    columns = described(projections, [(name, kind) for name, kind, *_ in cursor.description], shown)
    rows, held = _rows(cursor, columns, most)
    numbers.check_rows([str(kind) for _, kind, *_ in cursor.description], rows)
    zoned = [number for number, column in enumerate(columns) if column.type.kind == "TIMESTAMP_TZ"]
    return Result(columns, [_zoned(row, zoned) for row in rows] if zoned else rows, held_bytes=held)


def _rows(
    cursor: duckdb.DuckDBPyConnection, columns: Sequence[ResultColumn], most: int
) -> tuple[list[Sequence[Any]], int]:
    """Return all rows of a result and about the bytes that they take, if the service has room for them.

    :raises SqlError: 000603 when they take more bytes than that.
    """
    texts = [number for number, column in enumerate(columns) if column.type.kind not in _OF_FIXED_SIZE]
    rows: list[Sequence[Any]] = []
    held = 0
    while batch := cursor.fetchmany(_FETCHED):
        rows += batch
        held += len(batch) * (_ROW_BYTES + _VALUE_BYTES * len(columns))
        held += sum(
            len(row[number]) for number in texts for row in batch if isinstance(row[number], (str, bytes))
        )
        if held > most:
            raise SqlError(
                "000603",
                "XX000",
                "The result is larger than the local service keeps in memory: ask for less at a time, or "
                "start the service with --limits result-bytes=..",
            )
        if len(batch) < _FETCHED:
            break
    return rows, held


def _zoned(row: Sequence[Any], zoned: Sequence[int]) -> Sequence[Any]:
    """Return a row with each TIMESTAMP_TZ as a time at its own offset."""
    values = list(row)
    for number in zoned:
        if values[number] is not None:
            at, offset = values[number]["t"], dt.timezone(dt.timedelta(minutes=values[number]["o"]))
            values[number] = at
            # The last time that there is has no clock further east; one beyond Python's years is a text.
            with contextlib.suppress(OverflowError, AttributeError):
                values[number] = at.astimezone(offset)
    return tuple(values)


def _constant(text: str, cursor: duckdb.DuckDBPyConnection) -> Result:
    """Return the result of a query of literals only.

    Pools ask ``SELECT 1`` before every use of a connection. Such a query means the same in every session, so
    it runs once; all others depend on names, privileges or the session.
    """
    known = _CONSTANTS.get(text)
    if known is None:
        tree = translate.parse(text)
        checks.check(tree)
        translate.name_projections(tree)
        known = _fetched(cursor.execute(translate.to_duckdb(tree)))
        if len(_CONSTANTS) < _MOST_CONSTANTS:
            _CONSTANTS[text] = known
    return Result(known.columns, list(known.rows))


def modify(session: Session, text: str, bindings: Bindings) -> Result:
    """INSERT, UPDATE, DELETE and MERGE.

    Outside a transaction the database's rows lock is held: other statements, and what alters tables, wait
    instead of colliding; commits of channels go on, for they only add rows.
    """
    tree = translate.parse(text)
    translate.number_placeholders(tree, bindings.names, bindings.times)
    if isinstance(tree, exp.MultitableInserts):
        return _insert_into_many(session, tree, bindings, overwrite=_OVERWRITE.match(text) is not None)
    return _modified(session, tree, bindings)


def _insert_into_many(
    session: Session, tree: exp.MultitableInserts, bindings: Bindings, *, overwrite: bool
) -> Result:
    """INSERT [OVERWRITE] ALL | FIRST ("INSERT (multi-table)"): one query; all tables or none get rows."""
    found = _selected(session, tree.args["source"], bindings)
    inserts = _branches(session, tree, found)
    counted: dict[str, int] = {}
    changed: Counter[str] = Counter()
    with session.together():
        for insert in inserts:
            target = insert.find(exp.Table)
            assert target is not None  # noqa: S101 - every branch names its table
            name = target.name if target.this.args.get("quoted") else target.name.upper()
            insert.set("overwrite", overwrite and name not in counted)
            made = _modified(session, insert, Bindings({})).changed or {}
            counted[name] = counted.get(name, 0) + made["inserted"]
            changed.update(made)
    columns = tuple(
        ResultColumn(f"number of rows inserted into {name}", NUMBER, nullable=False) for name in counted
    )
    return Result(columns, [tuple(counted.values())], results.MULTI_TABLE_INSERT, changed=changed)


def _branches(session: Session, tree: exp.MultitableInserts, found: Result) -> list[exp.Insert]:
    """Return an INSERT for each INTO, over the rows that the query gave."""
    first = str(tree.args["kind"]).upper() == "FIRST"
    if first and not any(branch.args.get("expression") for branch in tree.expressions):
        raise compilation_error("syntax error: INSERT FIRST needs WHEN.")
    before: list[exp.Expr] = []
    condition: exp.Expr | None = None
    made: list[exp.Insert] = []
    for branch in tree.expressions:
        written = branch.args.get("expression")
        if branch.args.get("else_"):
            condition = exp.and_(*(_is_not(each) for each in before))
        elif written is not None:
            condition = exp.and_(*(_is_not(each) for each in before), written) if first else written
            before.append(written)
        insert = branch.this.copy()
        source = timestamps.aliased(registered_result(session, found), "SOURCE")
        select = exp.select(*_values(insert)).from_(source, copy=False)
        insert.set(
            "expression", select.where(condition.copy(), copy=False) if condition is not None else select
        )
        made.append(insert)
    return made


def _is_not(condition: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Coalesce(this=exp.paren(condition.copy()), expressions=[exp.false()]))


def _values(insert: exp.Insert) -> list[exp.Expr]:
    """Return the values of an INTO; a column that is to get its default leaves the list."""
    values = insert.expression
    if values is None:
        return [exp.Star()]
    given = values.expressions[0].expressions
    listed = list(insert.this.expressions) if isinstance(insert.this, exp.Schema) else []
    kept = [part.sql(dialect="snowflake").upper() != "DEFAULT" for part in given]
    if all(kept):
        return list(given)
    if len(listed) != len(given):
        raise unsupported("DEFAULT in an INTO without a list of columns")
    insert.this.set("expressions", [name for name, stays in zip(listed, kept, strict=True) if stays])
    return [part for part, stays in zip(given, kept, strict=True) if stays]


def _modified(session: Session, tree: exp.Expr, bindings: Bindings) -> Result:
    overwrite = isinstance(tree, exp.Insert) and bool(tree.args.get("overwrite"))
    if overwrite:
        tree.set("overwrite", False)
    tree = translate.prepare(session, tree)
    database = _target(session, tree)
    replaced = _replaced(session, database, tree) if overwrite else None
    targets = _bound_columns(session, tree)
    rows = _bound_rows(bindings, targets)
    # A value that is missing is the engine's to refuse.
    typed = {n for n, kind in targets.items() if all(n < len(row) and is_plain(row[n], kind) for row in rows)}
    enforce(session, tree, typed)
    sql = translate.to_duckdb(tree)
    if isinstance(tree, exp.Merge):
        sql += " RETURNING merge_action"
    if len(rows) > 1 and replaced is None and _insert_at_once(session, tree, rows):
        sql, rows = translate.to_duckdb(tree), []

    joined = _joined(tree) if isinstance(tree, exp.Update) and tree.args.get("from_") else ""

    def work() -> Counter[str]:
        return _run(session, sql, rows, replaced, tree.key.upper(), joined)

    table = sources.changed_table(session, tree)
    # Rows that are only added are in nobody's way.
    with session.holding(table if tree.key != "insert" else replaced):
        if session.transaction.is_open or not session.autocommit:
            changed = session.change(work)
        else:
            with database.rows_lock:
                # DuckDB commits a single statement by itself.
                changed = session.change(work) if len(rows) > 1 or replaced is not None else work()
        if table is not None:
            session.changed(database, table)
    return counts(tree, changed)


def _insert_at_once(session: Session, tree: exp.Expr, rows: list[list[Any]]) -> bool:
    """Let a prepared INSERT of one row of placeholders read all bound rows as a relation, which is faster.

    :returns: False, with the tree as it was, for another statement and for values of mixed types.
    """
    values = tree.expression if isinstance(tree, exp.Insert) else None
    row = values.expressions[0] if isinstance(values, exp.Values) and len(values.expressions) == 1 else None
    if not isinstance(row, exp.Tuple) or row.find(exp.Query):
        return False
    names = [f"_{number}" for number in range(1, len(rows[0]) + 1)]
    try:
        table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    except (pa.ArrowException, OverflowError):
        return False
    tree.set(
        "expression", exp.select(*row.expressions).from_(exp.table_(session.register(table), quoted=True))
    )
    for parameter in list(tree.find_all(exp.Parameter)):
        parameter.replace(exp.column(f"_{parameter.name}", quoted=True))
    return True


def _bound_columns(session: Session, tree: exp.Expr) -> dict[int, str]:
    """Return the types of the columns that an INSERT of one row of placeholders fills, by their numbers.

    A date or time for a VARCHAR becomes the text that the session writes.
    """
    values = tree.expression if isinstance(tree, exp.Insert) else None
    known = sources.changed_table(session, tree)
    if not isinstance(values, exp.Values) or len(values.expressions) != 1 or known is None:
        return {}
    listed = [part.name for part in tree.this.expressions] if isinstance(tree.this, exp.Schema) else []
    types = {column.name: column.type.kind for column in known.columns}
    names = listed or list(types)
    found: dict[int, str] = {}
    for name, value in zip(names, values.expressions[0].expressions, strict=False):
        if isinstance(value, exp.Parameter) and value.name.isdigit():
            found[int(value.name) - 1] = types.get(name, "")
            value.meta[_BOUND] = int(value.name) - 1
            bound = timestamps.kind_of(value)
            if bound is not None and types.get(name) == "VARCHAR":
                value.replace(timestamps.text_of(value.copy(), bound, session.parameters))
    return found


def _replaced(session: Session, database: Database, tree: exp.Expr) -> Table:
    """Return the table whose rows an INSERT OVERWRITE replaces."""
    table = sources.changed_table(session, tree)
    if table is None:
        raise unsupported("INSERT OVERWRITE into something that is not a table")
    session.require("DELETE", "TABLE", database.name, table.schema, table.name)
    return table


def _joined(tree: exp.Expr) -> str:
    """Return a query that counts the rows that an UPDATE .. FROM changes though several rows match them.

    Its second column is how many of the matches are too many ("UPDATE", "Usage notes").
    """
    target, source = tree.this, tree.args["from_"].this.copy()
    joins = [exp.Join(this=source, kind="CROSS"), *(source.args.pop("joins", None) or ())]
    rowid = exp.column("rowid", table=exp.to_identifier(target.alias_or_name, quoted=True))
    matches = exp.select(exp.alias_(exp.Count(this=exp.Star()), "n")).from_(target.copy()).group_by(rowid)
    matches.set("joins", joins)
    matches.set("where", tree.args.get("where"))
    counted = exp.select("count(*)", "coalesce(sum(n) - count(*), 0)").from_(matches.subquery("m"))
    return translate.to_duckdb(counted.where("n > 1"))


def _run(
    session: Session, sql: str, rows: list[list[Any]], replaced: Table | None, kind: str, joined: str = ""
) -> Counter[str]:
    """Run a statement once for each row of bound values, and count the rows that it changed.

    :raises SqlError: 100090 for an UPDATE that sets a row several times, where the session refuses that.
    """
    # The new rows may be read from the old ones, so those go last.
    last = f"SELECT coalesce(max(rowid), -1) FROM {replaced.path}" if replaced else None  # noqa: S608
    old = session.cursor.execute(last).fetchone() if last else None
    changed: Counter[str] = Counter()
    for row in rows or [[]]:
        if joined:
            used = {str(n): value for n, value in enumerate(row, 1) if re.search(rf"\${n}\b", joined)}
            twice = session.cursor.execute(joined, used).fetchall()[0]
            changed.update(dict(zip(("JOINED", "DUPLICATE"), map(int, twice), strict=True)))
            if twice[0] and str(session.parameters.get(_REFUSES, "false")).lower() == "true":
                raise SqlError("100090", "42P18", "Duplicate row detected during DML action")
        cursor = session.cursor.execute(sql, row) if row else session.cursor.execute(sql)
        if kind == "MERGE":
            changed.update(action for (action,) in cursor.fetchall())
        else:
            changed[kind] += sum(count for (count,) in cursor.fetchall())
    if replaced is not None:
        gone = session.cursor.execute(f"DELETE FROM {replaced.path} WHERE rowid <= ?", old)  # noqa: S608
        changed["DELETE"] = gone.fetchall()[0][0]
    return changed


def _target(session: Session, tree: exp.Expr) -> Database:
    target = sources.target_of(tree)
    if target is None:
        raise unsupported(f"{tree.key.upper()} into something that is not a table")
    return sources.database_of(session, target)


def counts(tree: exp.Expr, changed: Mapping[str, int] = MappingProxyType({})) -> Result:
    """Return the result of a DML statement.

    A MERGE has the columns of its own branches ("MERGE", "Examples").

    :param changed: number of rows by ``INSERT``, ``UPDATE`` and ``DELETE``.
    """
    kinds = translate.written_privileges(tree)
    columns = {_COUNTS[kind]: changed.get(kind, 0) for kind in _COUNTS if kind in kinds}
    if isinstance(tree, exp.Update):
        columns["number_of_multi-joined_rows_updated"] = changed.get("JOINED", 0)
    return results.row_counts(
        _STATEMENT_TYPES[tree.key.upper()],
        columns,
        {word: changed.get(kind, 0) for kind, word in _CHANGED.items()},
    )
