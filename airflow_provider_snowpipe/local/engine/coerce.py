"""SQL that turns NDJSON lines into typed rows: a strict fast path and an isolating slow path that agree.

Measured facts behind the shape of these statements (DuckDB 2.0.0):

* ``read_json`` and an extraction as VARCHAR print fractional numbers through a double; a spec of
  ``DECIMAL(p,s)`` reads the digits exactly, and rounds half away from zero as Snowflake does.
* ``json_transform_strict`` fails on a missing or duplicate key, on a malformed line and on a non-object,
  but accepts extra keys; so the keys of the whole group must be known before columns may be left out.
* Without the ``OFFSET 0`` fence the optimizer parses the JSON once per column.
* Struct field names ignore case; two spellings of one key need two specs.
"""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_snowpipe.local.engine.conversions import convert_with, too_long
from airflow_provider_snowpipe.local.engine.reasons import NOT_AN_OBJECT, column_reasons, required
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.tables import Column, Table


@dataclass(frozen=True, slots=True)
class KeyMap:
    """Which JSON keys feed which columns, for one group of lines.

    :param columns: columns that at least one key names, with the spellings of that key.
    """

    columns: tuple[tuple[Column, tuple[str, ...]], ...]

    @classmethod
    def of(cls, table: Table, keys: Sequence[str], *, case_sensitive: bool = False) -> KeyMap:
        """Match keys to columns, ignoring case (default pipes use MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE).

        :param keys: distinct keys, in any order.
        :param case_sensitive: for a pipe with MATCH_BY_COLUMN_NAME = CASE_SENSITIVE.
        """
        spellings: dict[str, list[str]] = {}
        for key in keys:
            spellings.setdefault(key if case_sensitive else key.upper(), []).append(key)
        matched = []
        for column in table.columns:
            found = spellings.get(column.name if case_sensitive else column.name.upper())
            if found:
                # An exact spelling wins over others in one and the same row.
                exact = [key for key in found if key == column.name]
                others = sorted(key for key in found if key != column.name)
                matched.append((column, (*exact, *others)))
        return cls(tuple(matched))

    def covers(self, table: Table) -> bool:
        """True when every column of the table is named by a key."""
        return len(self.columns) == len(table.columns)

    def has_one_spelling_each(self) -> bool:
        """True when no column is named in two spellings."""
        return all(len(spellings) == 1 for _, spellings in self.columns)


def keys_query(source: str) -> str:
    """Return a query for the distinct top-level keys of all lines; it fails on malformed lines."""
    return f"SELECT DISTINCT unnest(json_keys(l)) FROM {source}"


def lenient_keys_query(source: str) -> str:
    """Return a query for the distinct top-level keys of those lines that are JSON objects."""
    return (
        f"SELECT DISTINCT unnest(json_keys(l)) FROM (SELECT CASE WHEN json_valid(l) THEN "
        f"CASE WHEN json_type(l) = 'OBJECT' THEN l END END AS l FROM {source})"
    )


def strict_insert(table: Table, keys: KeyMap, source: str, *, clusters: bool = False) -> str:
    """Return the fast INSERT: it takes every line or fails as a whole.

    :param keys: columns named by the lines, one spelling each; other columns get their default.
    :param source: name of the relation with the columns ``i`` and ``l``.
    :param clusters: the rows are sorted by the clustering key of the table.
    """
    spec = {spellings[0]: _spec_type(column) for column, spellings in keys.columns}
    columns = [column for column, _ in keys.columns]
    values = [
        _checked(column, convert_with(column, f"s.{quote(spellings[0])}", "CAST"))
        for column, spellings in keys.columns
    ]
    return insert(
        table,
        columns,
        values,
        f"(SELECT i, json_transform_strict(l, {literal(json.dumps(spec))}) AS s FROM {source} OFFSET 0)",
        clusters=clusters,
        ordered=False,
    )


def insert(
    table: Table,
    columns: Sequence[Column],
    values: Sequence[str],
    source: str,
    *,
    clusters: bool,
    ordered: bool = True,
) -> str:
    """Return an INSERT of values, in the order of the rows or in that of the table's clustering key.

    :param columns: the columns that the values are for, in the same order; others get their default.
    :param source: the FROM clause; a relation with the row number ``i``.
    :param clusters: sort by the clustering key, when the table has one.
    :param ordered: sort by the row number otherwise; not needed where the source is in order.
    """
    names = ", ".join(quote(column.name) for column in columns)
    if not clusters or table.clustering_key is None:
        order = " ORDER BY i" if ordered else ""
        return f"INSERT INTO {table.path} ({names}) SELECT {', '.join(values)} FROM {source}{order}"
    # The key may name any column; one without a value of its own has the same in all rows.
    typed = [
        f"CAST({value} AS {column.type.duckdb}) AS {quote(column.name)}"
        for column, value in zip(columns, values, strict=True)
    ]
    filled = {column.name for column in columns}
    typed += [
        f"CAST(NULL AS {c.type.duckdb}) AS {quote(c.name)}" for c in table.columns if c.name not in filled
    ]
    keys = ", ".join((*table.clustering_key.expressions, "_i"))
    return (
        f"INSERT INTO {table.path} ({names}) SELECT {names} FROM "
        f"(SELECT i AS _i, {', '.join(typed)} FROM {source}) ORDER BY {keys}"
    )


def isolating_stage(table: Table, keys: KeyMap, source: str, target: str) -> str:
    """Return a statement that converts every line and marks the ones that cannot be stored.

    :param keys: columns named by any line, in all their spellings.
    :param source: name of the relation with the columns ``i`` and ``l``.
    :param target: temporary table to create: ``i``, ``v0``..., ``reason`` (NULL for good rows), ``payload``.
    """
    ranks = max((len(spellings) for _, spellings in keys.columns), default=0)
    structs = ["j"]
    for rank in range(ranks):
        at_rank = [(c, s[rank]) for c, s in keys.columns if len(s) > rank]
        raw = {key: "JSON" if c.type.is_semi_structured else "VARCHAR" for c, key in at_rank}
        exact = {key: c.type.duckdb for c, key in at_rank if c.type.kind == "NUMBER"}
        structs.append(f"json_transform(j, {literal(json.dumps(raw))}) AS s{rank}")
        if exact:
            structs.append(f"json_transform(j, {literal(json.dumps(exact))}) AS d{rank}")
    raws, values, reasons = [], [], [NOT_AN_OBJECT]
    for index, (column, spellings) in enumerate(keys.columns):
        raws.append(f"{_coalesce(spellings, 's')} AS r{index}")
        value = (
            _coalesce(spellings, "d")
            if column.type.kind == "NUMBER"
            else convert_with(column, f"r{index}", "TRY_CAST")
        )
        if column.default is not None:
            value = f"CASE WHEN {_present(spellings)} OR j IS NULL THEN {value} ELSE {column.default} END"
        values.append(f"{value} AS v{index}")
        failed = f"r{index} IS NOT NULL AND v{index} IS NULL"
        why = f"the value cannot be converted to {column.type}"
        reasons.append(column_reasons(column, f"v{index}", failed=failed, why=why))
    reasons += [required(column) for column in _required_but_absent(table, keys)]
    numbered = ", ".join(f"v{index}" for index in range(len(keys.columns)))
    return (
        f"CREATE OR REPLACE TEMPORARY TABLE {target} AS "
        f"SELECT i, {numbered + ', ' if numbered else ''}"
        f"CASE {' '.join(reasons)} END AS reason, CASE WHEN reason IS NOT NULL THEN l END AS payload FROM "
        f"(SELECT *{''.join(', ' + value for value in values)} FROM "
        f"(SELECT *{''.join(', ' + raw for raw in raws)} FROM "
        f"(SELECT i, l, {', '.join(structs)} FROM "
        f"(SELECT i, l, CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l END END AS j "
        f"FROM {source} OFFSET 0) OFFSET 0) OFFSET 0))"
    )


def isolated_insert(table: Table, keys: KeyMap, staged: str, *, clusters: bool = False) -> str:
    """Return the INSERT of the good rows that :func:`isolating_stage` left in its table.

    :param clusters: the rows are sorted by the clustering key of the table.
    """
    if not keys.columns:
        first = table.columns[0]
        default = first.default or "NULL"
        target = f"{table.path} ({quote(first.name)})"
        return f"INSERT INTO {target} SELECT {default} FROM {staged} WHERE reason IS NULL"
    values = [f"v{index}" for index in range(len(keys.columns))]
    good = f"{staged} WHERE reason IS NULL"
    return insert(table, [column for column, _ in keys.columns], values, good, clusters=clusters)


def _spec_type(column: Column) -> str:
    if column.type.kind == "NUMBER":
        return column.type.duckdb
    return "JSON" if column.type.is_semi_structured else "VARCHAR"


def _checked(column: Column, value: str) -> str:
    longer = too_long(column, value)
    # Columns of maximal length need no check: a request holds less than that.
    if longer is None or (column.type.length or 0) >= 8_388_608:
        return value
    return f"CASE WHEN {longer} THEN error('too long') ELSE {value} END"


def _coalesce(spellings: Sequence[str], struct: str) -> str:
    fields = [f"{struct}{rank}.{quote(key)}" for rank, key in enumerate(spellings)]
    return fields[0] if len(fields) == 1 else f"coalesce({', '.join(fields)})"


def _present(spellings: Sequence[str]) -> str:
    keys = ", ".join(literal(key) for key in spellings)
    return f"list_has_any(json_keys(j), [{keys}])"


def _required_but_absent(table: Table, keys: KeyMap) -> list[Column]:
    named = {column.name for column, _ in keys.columns}
    return [c for c in table.columns if not c.nullable and c.default is None and c.name not in named]
