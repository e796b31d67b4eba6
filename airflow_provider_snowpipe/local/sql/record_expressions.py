"""Expressions of a COPY transformation over records of files: ``$1``, ``$2:a.b::T``, METADATA$FILENAME."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from airflow_provider_snowpipe.local.engine import conversions
from airflow_provider_snowpipe.local.errors import SqlError, compilation_error, unsupported
from airflow_provider_snowpipe.local.identifiers import literal
from airflow_provider_snowpipe.local.loading import selection
from airflow_provider_snowpipe.local.loading.chunks import COLUMNS, CSV, FileShape
from airflow_provider_snowpipe.local.loading.selection import (
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
from airflow_provider_snowpipe.local.sql import engine_errors, timestamps, translate
from airflow_provider_snowpipe.local.sql.session import Session
from airflow_provider_snowpipe.local.sql.timestamps import named_type
from airflow_provider_snowpipe.local.tables import Column, ColumnType


@dataclass(frozen=True, slots=True)
class ByExpression:
    """The SELECT of a COPY statement fills the columns.

    :param session: resolves names; its user runs the statement.
    :param columns: columns in the order of the expressions.
    :param expressions: parsed expressions, without alias.
    :param options: of the file format.
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


def read_expressions(text: str) -> list[exp.Expr]:
    """Parse what stands between SELECT and FROM; aliases stay, the alias of the stage goes.

    :raises SqlError: for subqueries, aggregates and window functions, which Snowflake refuses here.
    """
    tree = translate.parse(f"SELECT {text}")
    if not isinstance(tree, exp.Select) or {name for name, value in tree.args.items() if value} - {
        "expressions",
        "kind",
    }:
        raise unsupported("anything but expressions in the SELECT of COPY INTO")
    if tree.find(exp.Subquery, exp.AggFunc, exp.Window):
        raise SqlError(
            "002079",
            "0A000",
            "SQL compilation error:\nCOPY statement only supports simple SELECT from stage statements "
            "for import.",
        )
    engine_errors.check(tree)
    tree = tree.transform(_without_alias)
    found = list(tree.expressions)
    for projection in found:
        for column in projection.find_all(exp.Column):
            if column.name.upper() not in METADATA:
                name = column.sql(dialect="snowflake")
                raise SqlError("000904", "42000", f"SQL compilation error:\ninvalid identifier '{name}'")
    return found


def _without_alias(node: exp.Expr) -> exp.Expr:
    """``t.$1`` is ``$1``: a COPY reads one stage."""
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Parameter):
        return node.this
    return node


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
        holder: exp.Expr = exp.Select(expressions=[tree.copy()])
        holder = holder.transform(timestamps.at_start).transform(self._inner_cast).transform(self._leaf)
        sql = translate.to_duckdb(translate.prepare(self.session, holder.expressions[0]))
        return expression(column, f"({sql})")

    def _cast(self, column: Column, tree: exp.Cast) -> Filled:
        written = Column(column.name, ColumnType.from_sqlglot(tree.to))
        inner = self._path(written, tree.this)
        if str(written.type) == str(column.type):
            return Filled(column, inner.value, inner.raw, inner.position)

        def value(raw: str) -> str:
            first = inner.value(raw)
            if column.type.is_semi_structured:
                return first if written.type.is_semi_structured else f"to_json({first})"
            return conversions.cast(column, first, tried=True)

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
                return Filled(column, lambda _raw: "NULL", "CAST(NULL AS VARCHAR)")
            sql = selection.arrow_value(column, name, kind, self.options)
            return Filled(column, lambda _raw: sql, selection.arrow_text(name, kind))
        json = self._json(tree)
        return Filled(
            column,
            lambda raw: selection.json_value(column, raw, self.options),
            f"CASE WHEN json_type({json}) <> 'NULL' THEN {json} END",
        )

    def _json(self, tree: exp.Expr) -> str:
        """Return an expression of a path's value as JSON."""
        number, keys = _root(tree), _keys(tree)
        if self.shape.kind == CSV:
            root = f"TRY(CAST(c{number} AS JSON))"
        else:
            self._check_single(number)
            root = whole_row(self.shape)
        if self.shape.kind == COLUMNS and keys and isinstance(keys[0], str):
            name, kind = self._arrow_column(keys[0])
            root = "CAST(NULL AS JSON)" if name is None or kind is None else selection.arrow_json(name, kind)
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

    def _inner_cast(self, node: exp.Expr) -> exp.Expr:
        """A path inside a function: its text for every type but the semi-structured ones."""
        if isinstance(node, exp.ParseJSON) and _is_path(node.this):
            return exp.Cast(this=self._text(node.this), to=exp.DataType.build("JSON"))
        if not isinstance(node, exp.Cast) or isinstance(node, exp.TryCast):
            return node
        kind = ColumnType.from_sqlglot(node.to)
        inner = node.this if kind.is_semi_structured or not _is_path(node.this) else self._text(node.this)
        return exp.Cast(this=inner, to=named_type(kind, node.to))

    def _text(self, tree: exp.Expr) -> exp.Expr:
        if self.shape.kind == CSV and not _keys(tree):
            return tree
        return exp.Anonymous(this="json_extract_string", expressions=[tree, exp.Literal.string("$")])

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
