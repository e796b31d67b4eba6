"""Expressions of a COPY transformation over records of files: ``$1``, ``$2:a.b::T``, METADATA$FILENAME."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from snowpipe_local.engine import conversions
from snowpipe_local.errors import SqlError, compilation_error, invalid_identifier, unsupported
from snowpipe_local.loading import selection
from snowpipe_local.loading.chunks import COLUMNS, CSV, FileShape
from snowpipe_local.loading.selection import (
    METADATA,
    RECORDS,
    Filled,
    Projection,
    expression,
    field_number,
    json_source,
    text_field,
    whole_row,
)
from snowpipe_local.sql import checks, sources, timestamps, translate
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.timestamps import named_type
from snowpipe_local.tables import Column, ColumnType, Table, literal


@dataclass(frozen=True, slots=True)
class ByExpression:
    """The SELECT of a COPY statement fills the columns.

    :param columns: columns in the order of the expressions.
    """

    session: Session
    columns: tuple[Column, ...]
    expressions: tuple[exp.Expr, ...]
    options: Mapping[str, Any]

    @property
    def width(self) -> int:
        """The highest field that an expression names."""
        named = [int(p.name) for e in self.expressions for p in e.find_all(exp.Parameter)]
        return max(named, default=1)

    def project(
        self, cursor: duckdb.DuckDBPyConnection, shape: FileShape, facts: Mapping[str, str]
    ) -> Projection:
        """Return the projection of the registered chunk."""
        source = json_source(self.options) if shape.kind not in (CSV, COLUMNS) else RECORDS
        compiler = _Compiler(self.session, shape, facts, self.options)
        filled = tuple(
            compiler.filled(column, tree) for column, tree in zip(self.columns, self.expressions, strict=True)
        )
        return Projection(source, filled)


_QUOTED_FIELD = re.compile(r"\$[1-9]\d{0,8}")


def read_expressions(text: str) -> list[exp.Expr]:
    """Parse what stands between SELECT and FROM; aliases stay, the alias of the stage goes.

    :raises SqlError: for subqueries, aggregates and window functions, which Snowflake refuses here.
    """
    tree = translate.parse(f"SELECT {text}")
    if not isinstance(tree, exp.Select) or not _is_plain(tree):
        raise unsupported("anything but expressions in the SELECT of COPY INTO")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise compilation_error(
            "COPY statement only supports simple SELECT from stage statements for import.", "002079", "0A000"
        )
    checks.check(tree)
    tree = tree.transform(_without_alias)
    found = list(tree.expressions)
    for projection in found:
        for column in projection.find_all(exp.Column):
            if column.name.upper() not in METADATA:
                name = column.sql(dialect="snowflake")
                if column.table and column.name.upper() == "NEXTVAL":
                    raise unsupported(f"{name} in the SELECT of COPY INTO; make it the DEFAULT of the column")
                raise invalid_identifier(name)
    return found


def _without_alias(node: exp.Expr) -> exp.Expr:
    """``t.$1`` is ``$1``: a COPY reads one stage; Snowpark (1.54) writes ``"$1"``."""
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Parameter):
        return node.this
    if isinstance(node, exp.Column) and _QUOTED_FIELD.fullmatch(node.name):
        return exp.Parameter(this=exp.Literal.number(node.name[1:]))
    return node


def count_mismatch(columns: int, expressions: int) -> SqlError:
    """Return the error for another number of expressions than of columns (002020)."""
    words = f"Insert value list does not match column list expecting {columns} but got {expressions}"
    return compilation_error(words, "002020", "21S01")


def _is_plain(tree: exp.Select) -> bool:
    return {name for name, value in tree.args.items() if value} <= {"expressions", "kind"}


def _between(written: Column, column: Column, sql: str, *, tried: bool = False) -> str:
    """Return a value of the written type as one of the column's."""
    if column.type.is_semi_structured:
        return sql if written.type.is_semi_structured else f"to_json({sql})"
    return conversions.cast(column, sql, tried=tried)


def _text_casts(
    node: exp.Expr, is_path: Callable[[exp.Expr], bool], text: Callable[[exp.Expr], exp.Expr]
) -> exp.Expr:
    """A path inside a function: its text for every type but the semi-structured ones."""
    if isinstance(node, exp.ParseJSON) and is_path(node.this):
        return exp.Cast(this=text(node.this), to=exp.DataType.build("JSON"))
    if not isinstance(node, exp.Cast) or isinstance(node, exp.TryCast):
        return node
    kind = ColumnType.from_sqlglot(node.to)
    inner = node.this if kind.is_semi_structured or not is_path(node.this) else text(node.this)
    return exp.Cast(this=inner, to=named_type(kind, node.to))


@dataclass(frozen=True, slots=True)
class _Compiler:
    session: Session
    shape: FileShape
    facts: Mapping[str, str]
    options: Mapping[str, Any]

    def filled(self, column: Column, tree: exp.Expr) -> Filled:
        """Return how one expression fills one column."""
        tree = tree.unalias()
        while isinstance(tree, exp.Paren):
            tree = tree.this
        if _is_path(tree):
            return self._path(column, tree)
        if isinstance(tree, exp.Cast) and _is_path(tree.this):
            return self._cast(column, tree)
        checks.check(tree)
        holder: exp.Expr = exp.Select(expressions=[tree.copy()])
        holder = holder.transform(timestamps.at_start)
        holder = holder.transform(_text_casts, _is_path, self._text).transform(self._leaf)
        prepared = translate.prepare(self.session, holder.expressions[0], is_checked=True)
        sql = translate.to_duckdb(prepared)
        return expression(column, f"({sql})")

    def _cast(self, column: Column, tree: exp.Cast) -> Filled:
        written = Column(column.name, ColumnType.from_sqlglot(tree.to))
        inner = self._path(written, tree.this)
        if str(written.type) == str(column.type):
            return Filled(column, inner.value, inner.raw, inner.position)

        def value(raw: str) -> str:
            return _between(written, column, inner.value(raw), tried=True)

        return Filled(column, value, inner.raw, inner.position)

    def _path(self, column: Column, tree: exp.Expr) -> Filled:
        """A value of the record itself: converted as the streaming path converts it."""
        number, keys = _root(tree), _keys(tree)
        if self.shape.kind == CSV and not keys:
            return text_field(column, number, self.options)
        if self.shape.kind == COLUMNS and len(keys) == 1 and isinstance(keys[0], str):
            self._check_single(number)
            name, kind = self._arrow_column(keys[0])
            if name is None or kind is None:
                return selection.absent(column)
            sql = selection.arrow_value(column, name, kind, self.options)
            return Filled(column, lambda _raw: sql, selection.arrow_text(name, kind, self.options))
        json = self._json(tree)
        why = f"CASE WHEN json_type({json}) <> 'NULL' THEN {json} END"
        return Filled(column, lambda raw: selection.json_value(column, raw, self.options), why)

    def _json(self, tree: exp.Expr) -> str:
        """Return an expression of a path's value as JSON."""
        number, keys = _root(tree), _keys(tree)
        if self.shape.kind == CSV:
            root = f"TRY(CAST(_shallow(c{number}) AS JSON))"
        else:
            self._check_single(number)
            root = whole_row(self.shape, self.options)
        if self.shape.kind == COLUMNS and keys and isinstance(keys[0], str):
            name, kind = self._arrow_column(keys[0])
            root = (
                "CAST(NULL AS JSON)"
                if name is None or kind is None
                else selection.arrow_json(name, kind, self.options)
            )
            keys = keys[1:]
        if not keys:
            return f"({root})"
        path = "$" + "".join(f"[{key}]" if isinstance(key, int) else f'."{key}"' for key in keys)
        return f"({root} -> {literal(path)})"

    def _check_single(self, number: int) -> None:
        if number:
            raise compilation_error(
                f"invalid column ${number + 1}: files of this type have one column, $1: the whole record."
            )

    def _arrow_column(self, key: str) -> tuple[str | None, Any]:
        if key not in self.shape.names:
            return None, None
        number = self.shape.names.index(key)
        return f"c{number}", self.shape.types[number]

    def _text(self, tree: exp.Expr) -> exp.Expr:
        if self.shape.kind == CSV and not _keys(tree):
            return tree
        return sources.text_of(tree)

    def _leaf(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name.upper() in METADATA:
            return _duckdb(self.facts[node.name.upper()])
        if not _is_path(node):
            return node
        if self.shape.kind == CSV and not _keys(node):
            return exp.column(exp.to_identifier(f"c{_root(node)}", quoted=True))
        return _duckdb(self._json(node))


def _duckdb(sql: str) -> exp.Expr:
    return sqlglot.parse_one(sql, dialect="duckdb").transform(_quoted)


def _quoted(node: exp.Expr) -> exp.Expr:
    # Names of record columns are lower case; normalization would change them.
    if isinstance(node, exp.Identifier):
        node.set("quoted", True)
    return node


def _is_path(tree: exp.Expr) -> bool:
    if isinstance(tree, exp.Bracket):
        entries = tree.expressions
        return len(entries) == 1 and isinstance(entries[0], exp.Literal) and _is_path(tree.this)
    return isinstance(tree, exp.Parameter) or (isinstance(tree, exp.JSONExtract) and _is_path(tree.this))


def _root(tree: exp.Expr) -> int:
    while not isinstance(tree, exp.Parameter):
        tree = tree.this
    return field_number(tree.name) - 1


def _keys(tree: exp.Expr) -> Sequence[str | int]:
    """Return the keys and subscripts of a path from the record down."""
    if isinstance(tree, exp.Parameter):
        return []
    if isinstance(tree, exp.Bracket):
        entry = tree.expressions[0]
        return [*_keys(tree.this), str(entry.name) if entry.is_string else int(entry.name)]
    keys = list(_keys(tree.this))
    for part in tree.expression.expressions:
        if isinstance(part, exp.JSONPathKey):
            keys.append(str(part.this))
        elif isinstance(part, exp.JSONPathSubscript):
            keys.append(int(part.this))
        elif not isinstance(part, exp.JSONPathRoot):
            raise unsupported(f"path {tree.sql(dialect='snowflake')}")
    return keys


# -- The SELECT of a streaming pipe, compiled to one DuckDB expression a column --------------------------


def compile_select(
    session: Session, table: Table, listed: list[str] | None, select: str, matching: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compile the SELECT of a streaming pipe.

    :param matching: ``CASE_SENSITIVE`` or ``CASE_INSENSITIVE`` of MATCH_BY_COLUMN_NAME, or None.
    :returns: columns to fill, and a DuckDB expression over the row ``j`` for each.
    :raises SqlError: for what a pipe cannot do, and for columns that the table does not have.
    """
    tree = translate.parse(f"SELECT {select}")
    if not isinstance(tree, exp.Select) or not _is_plain(tree):
        raise unsupported("anything but expressions in the transformation of a pipe")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise unsupported("subqueries and aggregates in the transformation of a pipe")
    projections = list(tree.expressions)
    if matching is not None:
        names = _named(projections)
    elif listed is not None:
        names = listed
    else:
        names = [column.name for column in table.columns]
    if len(names) != len(projections):
        raise count_mismatch(len(names), len(projections))
    columns = [_column(table, name, matching == "CASE_INSENSITIVE") for name in names]
    if len({column.name for column in columns}) != len(columns):
        raise compilation_error("a column is filled twice.")
    expressions = tuple(
        _expression(session, column, projection.unalias())
        for column, projection in zip(columns, projections, strict=True)
    )
    for sql in expressions:
        session.cursor.execute(f"DESCRIBE SELECT {sql} FROM (SELECT CAST(NULL AS JSON) AS j)")  # noqa: S608
    return tuple(column.name for column in columns), expressions


def _named(projections: list[exp.Expr]) -> list[str]:
    names: list[str] = []
    for projection in projections:
        if not isinstance(projection, exp.Alias):
            raise compilation_error("MATCH_BY_COLUMN_NAME needs AS and a name for every expression.")
        translate.normalize_identifiers(projection.args["alias"])
        names.append(projection.alias)
    return names


def _column(table: Table, name: str, ignore_case: bool) -> Column:
    for column in table.columns:
        if column.name == name or (ignore_case and column.name.upper() == name.upper()):
            return column
    raise invalid_identifier(name)


def _expression(session: Session, column: Column, tree: exp.Expr) -> str:
    if tree.find(exp.Column):
        name = next(iter(tree.find_all(exp.Column))).sql(dialect="snowflake")
        raise invalid_identifier(name)
    if isinstance(tree, exp.Cast) and _is_streamed_path(tree.this):
        written = Column(column.name, ColumnType.from_sqlglot(tree.to))
        first = _converted(written, tree.this)
        return first if str(written.type) == str(column.type) else _between(written, column, first)
    if _is_streamed_path(tree):
        return _converted(column, tree)
    checks.check(tree)
    holder: exp.Expr = exp.Select(expressions=[tree.copy()])
    holder = holder.transform(timestamps.at_start)
    holder = holder.transform(_text_casts, _is_streamed_path, sources.text_of).transform(_row)
    sql = translate.to_duckdb(translate.prepare(session, holder.expressions[0], is_checked=True))
    if column.type.is_semi_structured:
        return f"to_json({sql})"
    return conversions.cast(column, sql)


def _is_streamed_path(tree: exp.Expr) -> bool:
    return isinstance(tree, (exp.JSONExtract, exp.Parameter)) and (
        isinstance(tree, exp.Parameter) or _is_streamed_path(tree.this)
    )


def _converted(column: Column, path: exp.Expr) -> str:
    raw = f"({translate.to_duckdb(path.copy().transform(_row))})"
    if column.type.is_semi_structured:
        return conversions.convert(column, f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END")
    return conversions.convert(column, f"({raw} ->> '$')")


def _row(node: exp.Expr) -> exp.Expr:
    if not isinstance(node, exp.Parameter):
        return node
    if node.name != "1":
        raise unsupported(f"column ${node.name} of a streaming source; the row is $1")
    return exp.column(exp.to_identifier("j", quoted=True))
