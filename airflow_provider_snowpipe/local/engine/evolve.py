"""Schema evolution: rows of a commit may add columns to their table and drop NOT NULL.

It runs in a transaction of its own ahead of the commit, under the database's write lock: a commit that finds
the new columns in place cannot fail for them, and one that is repeated finds nothing left to change.
"""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses

import duckdb

from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.tables import Column, Table
from airflow_provider_snowpipe.local.types import BOOLEAN, NUMBER, TEXT, ColumnType

MAX_NEW_COLUMNS = 100
MAX_NAME_LENGTH = 255
_VARIANT = ColumnType("VARIANT")
_DATE = r"\d{4}-\d{2}-\d{2}"
_TIMESTAMP = _DATE + r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_ZONE = r"(Z|[+-]\d{2}:?\d{2})"


class EvolutionError(Exception):
    """The rows ask for a change that Snowflake refuses; their channels become invalid."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A table as it is to be, and the DuckDB statements that make it so."""

    table: Table
    statements: tuple[str, ...]


def plan(cursor: duckdb.DuckDBPyConnection, table: Table, source: str, *, exact: bool) -> Change | None:
    """Return what the rows change about their table, or None.

    :param source: name of the relation with the column ``l``; lines that are no JSON objects are ignored.
    :param exact: keys are compared with the case of columns (MATCH_BY_COLUMN_NAME = CASE_SENSITIVE).
    :raises EvolutionError: for a name that no column can have, or too many new columns.
    """
    objects = (
        f"(SELECT CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l::JSON END END AS j "
        f"FROM {source})"
    )
    added = _added(cursor, table, objects, exact)
    relaxed = _relaxed(cursor, table, objects, exact)
    if not added and not relaxed:
        return None
    columns = tuple(
        dataclasses.replace(column, nullable=True) if column.name in relaxed else column
        for column in table.columns
    )
    statements = [f"ALTER TABLE {table.path} ALTER COLUMN {quote(name)} DROP NOT NULL" for name in relaxed]
    statements += [f"ALTER TABLE {table.path} ADD COLUMN {column.ddl()}" for column in added]
    return Change(dataclasses.replace(table, columns=(*columns, *added)), tuple(statements))


def _added(cursor: duckdb.DuckDBPyConnection, table: Table, objects: str, exact: bool) -> list[Column]:
    known = {column.name.upper() for column in table.columns}
    found = cursor.execute(
        f"SELECT key, list(DISTINCT type), bool_and(regexp_full_match(atom, {literal(_DATE)})), "
        f"bool_and(regexp_full_match(atom, {literal(_TIMESTAMP)})), "
        f"bool_and(regexp_full_match(atom, {literal(_TIMESTAMP + _ZONE)})) "
        f"FROM (SELECT e.key, e.type, e.value ->> '$' AS atom FROM {objects} AS o, json_each(o.j) AS e) "
        f"GROUP BY key ORDER BY key"
    ).fetchall()
    columns: dict[str, Column] = {}
    for key, types, dates, timestamps, zoned in found:
        if key.upper() in known:
            continue
        if not key.strip() or len(key) > MAX_NAME_LENGTH:
            raise EvolutionError(f"a key of {len(key)} characters cannot be a column's name")
        kind = _infer(set(types) - {"NULL"}, dates, timestamps, zoned)
        # DuckDB knows one column for all spellings; the first spelling names it.
        name = key if exact else key.upper()
        if key.upper() in columns:
            kind = kind if kind == columns[key.upper()].type else TEXT
            name = columns[key.upper()].name
        columns[key.upper()] = Column(name, kind)
    if len(columns) > MAX_NEW_COLUMNS:
        raise EvolutionError(f"{len(columns)} new columns in one batch; at most {MAX_NEW_COLUMNS} are added")
    return list(columns.values())


def _infer(types: set[str], dates: bool | None, timestamps: bool | None, zoned: bool | None) -> ColumnType:
    if types & {"OBJECT", "ARRAY"}:
        return _VARIANT
    if types == {"VARCHAR"}:
        if dates:
            return ColumnType("DATE")
        if timestamps:
            return ColumnType("TIMESTAMP_NTZ", precision=9)
        return ColumnType("TIMESTAMP_TZ", precision=9) if zoned else TEXT
    if types == {"BOOLEAN"}:
        return BOOLEAN
    if types and types <= {"BIGINT", "UBIGINT"}:
        return NUMBER
    if types and types <= {"BIGINT", "UBIGINT", "DOUBLE"}:
        return ColumnType("FLOAT")
    return TEXT


def _relaxed(cursor: duckdb.DuckDBPyConnection, table: Table, objects: str, exact: bool) -> list[str]:
    required = [column for column in table.columns if not column.nullable]
    if not required:
        return []
    same = "e.key = {name}" if exact else "upper(e.key) = upper({name})"
    # A key that is present must have a value; one that is absent needs a default.
    filled = ", ".join(
        f"coalesce(bool_or(e.type <> 'NULL') FILTER ({same.format(name=literal(column.name))}), "
        f"{'true' if column.default is not None else 'false'})"
        for column in required
    )
    aliases = ", ".join(f"bool_and(f{index})" for index in range(len(required)))
    names = ", ".join(f"f{index}" for index in range(len(required)))
    # All rows are fetched: nothing can be registered while a result is open (observed with DuckDB 2.0.0).
    (row,) = cursor.execute(
        f"SELECT {aliases} FROM (SELECT {filled} FROM (SELECT row_number() OVER () AS n, j FROM {objects} "
        f"WHERE j IS NOT NULL) AS o LEFT JOIN LATERAL (SELECT key, type FROM json_each(o.j)) AS e ON true "
        f"GROUP BY o.n) AS filled({names})"
    ).fetchall()
    return [column.name for column, full in zip(required, row, strict=True) if full is False]
