# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""One commit: rows of a group, tokens and counters of its channels, rejected rows; all or nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import duckdb
import numpy as np

from snowpipe_local.definitions import transact
from snowpipe_local.engine import conversions
from snowpipe_local.engine.channel import (
    ELASTIC,
    ROW_SEQ_GAP,
    TABLE_MISSING,
    Append,
    Channel,
    Committed,
    advance,
)
from snowpipe_local.engine.conversions import AS_OBJECT, NOT_AN_OBJECT, column_reasons, insert, required
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.engine.lines import RejectedLine, arrow_lines
from snowpipe_local.engine.tables import Tables
from snowpipe_local.names import PipeDefinition
from snowpipe_local.tables import BOOLEAN, NUMBER, TEXT, Column, ColumnType, Table, literal, quote

# -- SQL of custom pipes: every row is transformed by itself, so that one bad row spoils no other --------


def transforming_stage(table: Table, definition: PipeDefinition, source: str, target: str) -> str:
    """Return a statement that transforms every line and marks the ones that cannot be stored.

    TRY around a struct distinguishes an expression that failed (no struct) from one that is NULL.

    :param source: name of the relation with the columns ``i`` and ``l``.
    :param target: temporary table to create: ``i``, ``t0``..., ``reason`` (NULL for good rows), ``payload``.
    """
    columns = _columns(table, definition)
    values = "".join(
        f", TRY(struct_pack(v := {expression})) AS t{index}"
        for index, expression in enumerate(definition.expressions)
    )
    reasons = [NOT_AN_OBJECT]
    reasons += [
        column_reasons(
            column,
            f"t{index}.v",
            failed=f"t{index} IS NULL",
            why=f"the expression of the pipe failed or cannot be converted to {column.type}",
        )
        for index, column in enumerate(columns)
    ]
    reasons += [
        required(column)
        for column in table.columns
        if not column.nullable and column.default is None and column not in columns
    ]
    return (
        f"CREATE OR REPLACE TEMPORARY TABLE {target} AS "
        f"SELECT *, CASE {' '.join(reasons)} END AS reason, "
        f"CASE WHEN reason IS NOT NULL THEN l END AS payload FROM "
        f"(SELECT i, l, j{values} FROM "
        f"(SELECT i, l, {AS_OBJECT} AS j FROM {source} OFFSET 0) OFFSET 0)"
    )


def transformed_insert(table: Table, definition: PipeDefinition, staged: str) -> str:
    """Return the INSERT of the good rows that :func:`transforming_stage` left in its table."""
    values = [f"t{index}.v" for index in range(len(definition.columns))]
    good = f"{staged} WHERE reason IS NULL"
    clusters = definition.cluster_at_ingest_time
    return insert(table, _columns(table, definition), values, good, clusters=clusters)


def _columns(table: Table, definition: PipeDefinition) -> list[Column]:
    known = {column.name: column for column in table.columns}
    return [known[name] for name in definition.columns]


# -- Schema evolution: rows of a commit may add columns to their table and drop NOT NULL -----------------
#
# It runs in a transaction of its own ahead of the commit, under the database's write lock: a commit that
# finds the new columns in place cannot fail for them, and one that is repeated finds nothing left to
# change.

MAX_NEW_COLUMNS = 100
MAX_NAME_LENGTH = 255
_VARIANT = ColumnType("VARIANT")
_DATE = r"\d{4}-\d{2}-\d{2}"
_TIMESTAMP = _DATE + r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_ZONE = r"(Z|[+-]\d{2}:?\d{2})"


class EvolutionError(Exception):
    """The rows ask for a change that Snowflake refuses; their channels become invalid."""


def plan(
    cursor: duckdb.DuckDBPyConnection, table: Table, source: str, *, exact: bool
) -> tuple[Table, list[str]] | None:
    """Return the table as the rows make it, and the DuckDB statements for that; None when it stays.

    :param source: name of the relation with the column ``l``; lines that are not JSON objects are ignored.
    :param exact: keys are compared with the case of columns (MATCH_BY_COLUMN_NAME = CASE_SENSITIVE).
    :raises EvolutionError: for a name that no column can have, or too many new columns.
    """
    objects = f"(SELECT {AS_OBJECT} AS j FROM {source})"
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
    return dataclasses.replace(table, columns=(*columns, *added)), statements


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


log = logging.getLogger(__name__)

_SOURCE = "_lines"
_STAGED = "_staged"
# The distinct keys of all lines; it fails on malformed ones.
_KEYS = f"SELECT DISTINCT unnest(json_keys(l)) FROM {_SOURCE}"
# Groups of a table that take the isolating path after the strict one failed, before it is tried again.
_ISOLATED_GROUPS = 16
_DATA_ERRORS = (duckdb.DataError, duckdb.InvalidInputException, duckdb.IntegrityError)
MUST_REOPEN = "ERR_CHANNEL_MUST_BE_REOPENED"


class _StrictPathError(Exception):
    """The strict statement refused the group; take the isolating one."""

    def __init__(self, table: Table) -> None:
        self.table = table


# Rejected rows of each append, by position in the group.
_Rejected: TypeAlias = dict[int, list[RejectedLine]]


def commit_group(file: DatabaseFile, tables: Tables, group: Sequence[Append]) -> None:
    """Commit a group of appends; on an unexpected failure invalidate their channels, tokens unmoved.

    :param group: in order of acceptance.
    """
    with file.write_lock:
        live = _drop_out_of_sequence(_drop_tableless(tables, group))
        states: dict[Channel, Committed] = {}
        try:
            for append in live:
                append.restore()
            live = _evolve(file.committer_cursor, tables, live)
            if live:
                states = _commit(file, tables, live)
                for table, _ in _by_target(tables, live):
                    file.touch(table)
        except Exception:
            log.exception("commit of %d appends failed; their channels must be opened again", len(live))
            _invalidate(live, MUST_REOPEN)
            file.revive()
            return
        _report(live, states)


def _evolve(cursor: duckdb.DuckDBPyConnection, tables: Tables, group: list[Append]) -> list[Append]:
    """Let rows change their tables; where that fails, leave out the appends and invalidate their channels."""
    failed: set[Channel] = set()
    for (table, definition), positions in _by_target(tables, group).items():
        if not table.schema_evolution or (definition is not None and definition.columns):
            continue
        exact = definition is not None and definition.case_sensitive
        cursor.register(_SOURCE, arrow_lines([group[position].lines for position in positions]))
        try:
            # Another pipe of the same commit may have changed the table already.
            current = tables.find(table.schema, table.name) or table
            change = plan(cursor, current, _SOURCE, exact=exact)
            if change is not None:
                tables.change(*change)
        except (EvolutionError, duckdb.Error) as error:
            log.warning("schema evolution of %s failed; its channels must be opened again: %s", table, error)
            failed |= {group[position].channel for position in positions}
    if failed:
        _invalidate([append for append in group if append.channel in failed], MUST_REOPEN)
    return [append for append in group if append.channel not in failed]


def _drop_tableless(tables: Tables, group: Sequence[Append]) -> list[Append]:
    live: list[Append] = []
    orphans: list[Append] = []
    for append in group:
        channel = append.channel
        exists = tables.find(channel.pipe.key.schema, channel.pipe.table) is not None
        # A replaced table exists again; the channels of the old one do not.
        (live if exists and not channel.is_dropped else orphans).append(append)
    _invalidate(orphans, TABLE_MISSING)
    return live


def _drop_out_of_sequence(group: Sequence[Append]) -> list[Append]:
    """Leave out appends that come after lost ones: committing them would move the token past lost rows.

    A commit that failed invalidates its channels, but later appends of theirs may wait in the queue already.
    """
    live: list[Append] = []
    orphans: list[Append] = []
    due: dict[Channel, tuple[int, int]] = {}
    for append in group:
        channel, position = append.channel, (append.client_sequencer, append.row_sequencer)
        stored = channel.committed
        expected = due.get(channel, (stored.client_sequencer, stored.row_sequencer))
        if channel.name == ELASTIC or position == expected:
            due[channel] = (position[0], position[1] + 1)
            live.append(append)
        else:
            orphans.append(append)
    _invalidate(orphans, ROW_SEQ_GAP)
    return live


def _invalidate(appends: Sequence[Append], code: str) -> None:
    for append in appends:
        append.channel.invalidate(code)
        append.channel.discarded(1)
        append.durable.cancel()
        append.unpark()


def _report(group: Sequence[Append], states: dict[Channel, Committed]) -> None:
    for channel, state in states.items():
        channel.committed_up_to(state, sum(1 for append in group if append.channel is channel))
    for append in group:
        append.durable.set_result(None)
        if append.upload is not None:
            append.upload.remove()


def _commit(file: DatabaseFile, tables: Tables, group: Sequence[Append]) -> dict[Channel, Committed]:
    while True:
        try:
            return _attempt(file, tables, group)
        except _StrictPathError as failed:
            tables.isolated_groups[failed.table.schema, failed.table.name] = _ISOLATED_GROUPS


def _attempt(file: DatabaseFile, tables: Tables, group: Sequence[Append]) -> dict[Channel, Committed]:
    cursor = file.committer_cursor
    now_ms = file.clock.now_ms()
    outcome = {n: list(append.lines.rejected) for n, append in enumerate(group) if append.lines.rejected}
    states: dict[Channel, Committed] = {}

    def write() -> None:
        for (table, definition), positions in _by_target(tables, group).items():
            _insert(cursor, tables, table, definition, group, positions, outcome)
        states.update(_advance(group, outcome, now_ms))
        file.store.update_channels(cursor, list(states.values()))
        file.store.add_rejected_rows(cursor, _rejected_rows(tables, group, outcome, now_ms))
        file.reach("before-commit")

    transact(cursor, write)
    file.reach("after-commit")
    return states


def _by_target(
    tables: Tables, group: Sequence[Append]
) -> dict[tuple[Table, PipeDefinition | None], list[int]]:
    positions: dict[tuple[Table, PipeDefinition | None], list[int]] = {}
    for position, append in enumerate(group):
        table = tables.find(append.channel.pipe.key.schema, append.channel.pipe.table)
        if table is not None and append.lines.rows:
            positions.setdefault((table, append.channel.pipe.definition), []).append(position)
    return positions


def _insert(
    cursor: duckdb.DuckDBPyConnection,
    tables: Tables,
    table: Table,
    definition: PipeDefinition | None,
    group: Sequence[Append],
    positions: list[int],
    outcome: _Rejected,
) -> None:
    # A default pipe applies the clustering key by itself, a custom pipe when it sets that.
    at_ingest = definition is None or definition.cluster_at_ingest_time
    clusters = at_ingest and table.clustering_key is not None
    if clusters:
        # Rows with equal keys lie in the order of their channels' names.
        positions = sorted(positions, key=lambda position: group[position].channel.name)
    cursor.register(_SOURCE, arrow_lines([group[position].lines for position in positions]))
    if definition is not None and definition.columns:
        cursor.execute(transforming_stage(table, definition, _SOURCE, _STAGED))
        cursor.execute(transformed_insert(table, definition, _STAGED))
        _note_rejected(cursor, group, positions, outcome)
        return
    exact = definition is not None and definition.case_sensitive
    left = tables.isolated_groups.get((table.schema, table.name), 0)
    if left == 0:
        _insert_strictly(cursor, table, group[positions[0]], exact, clusters)
        return
    tables.isolated_groups[table.schema, table.name] = left - 1
    _insert_isolated(cursor, table, exact, clusters)
    _note_rejected(cursor, group, positions, outcome)


def _insert_strictly(
    cursor: duckdb.DuckDBPyConnection, table: Table, first: Append, exact: bool, clusters: bool
) -> None:
    try:
        keys = conversions.KeyMap.of(table, _first_row_keys(first), case_sensitive=exact)
        if not keys.covers(table):
            # Rows after the first may hold more keys, which the strict transform would lose silently.
            keys = conversions.KeyMap.of(
                table, [k for (k,) in cursor.execute(_KEYS).fetchall()], case_sensitive=exact
            )
        if not keys.columns or any(len(spellings) > 1 for _, spellings in keys.columns):
            raise _StrictPathError(table)
        cursor.execute(conversions.strict_insert(table, keys, _SOURCE, clusters=clusters))
    except (*_DATA_ERRORS, ValueError, RecursionError) as error:
        raise _StrictPathError(table) from error


def _first_row_keys(append: Append) -> list[str]:
    row = json.loads(append.lines.body[: append.lines.ends[0]])
    if not isinstance(row, dict):
        raise ValueError("the first row is not a JSON object")
    return list(row)


def _insert_isolated(cursor: duckdb.DuckDBPyConnection, table: Table, exact: bool, clusters: bool) -> None:
    named = [key for (key,) in cursor.execute(conversions.lenient_keys_query(_SOURCE)).fetchall()]
    keys = conversions.KeyMap.of(table, named, case_sensitive=exact)
    cursor.execute(conversions.isolating_stage(table, keys, _SOURCE, _STAGED))
    cursor.execute(conversions.isolated_insert(table, keys, _STAGED, clusters=clusters))


def _note_rejected(
    cursor: duckdb.DuckDBPyConnection, group: Sequence[Append], positions: list[int], outcome: _Rejected
) -> None:
    bad = cursor.execute(
        f"SELECT i, reason, payload FROM {_STAGED} WHERE reason IS NOT NULL ORDER BY i"
    ).fetchall()
    ends = np.cumsum([group[position].lines.rows for position in positions])
    for row, reason, payload in bad:
        nth = int(np.searchsorted(ends, row, side="right"))
        start = int(ends[nth - 1]) if nth else 0
        line = RejectedLine(row - start, payload.rstrip("\r\n").encode(), reason)
        outcome.setdefault(positions[nth], []).append(line)


def _advance(group: Sequence[Append], outcome: _Rejected, now_ms: int) -> dict[Channel, Committed]:
    states: dict[Channel, Committed] = {}
    for position, append in enumerate(group):
        rejected = outcome.get(position, [])
        before = states.get(append.channel, append.channel.committed)
        states[append.channel] = advance(
            before, append, len(rejected), rejected[-1].reason if rejected else None, now_ms=now_ms
        )
    return states


def _rejected_rows(
    tables: Tables, group: Sequence[Append], outcome: _Rejected, now_ms: int
) -> list[list[Any]]:
    return [
        [
            now_ms,
            append.channel.pipe.key.schema,
            append.channel.pipe.key.name,
            append.channel.pipe.table,
            append.channel.name,
            append.start_token,
            append.end_token,
            line.row,
            line.reason,
            line.payload,
        ]
        for position, append in enumerate(group)
        if _logs_errors(tables, append)
        for line in outcome.get(position, [])
    ]


def _logs_errors(tables: Tables, append: Append) -> bool:
    table = tables.find(append.channel.pipe.key.schema, append.channel.pipe.table)
    return table is not None and table.error_logging
