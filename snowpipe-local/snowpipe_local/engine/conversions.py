# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""What a value means, in DuckDB's words: macros, conversions of one JSON value, typed rows from NDJSON."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.sqltypes import BOOLEAN, VARCHAR

from snowpipe_local.engine.lines import MOST_LEVELS, is_deep
from snowpipe_local.tables import ZONED, Column, Table, literal, quote

# -- What values mean, as macros of the engine: one definition for SQL, COPY and streamed rows -----------
#
# Names begin with an underscore, which no statement of a client may call. Macros are kept by the instance
# in memory, so that they change with the program and not with a database file.

# What the engine may have rounded: 15 digits around a point, or an exponent.
_ROUNDED = r"""[0-9.]{16}|(?:^|[^0-9A-Za-z"-])-?[0-9.]+e"""
# Characters of the longest VARCHAR and VARIANT ("String & binary data types").
MAX_TEXT = 134_217_728
# Words of macros.sql.
_WORDS = {
    "NUMBERS": "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')",
    "HOURS": r"(?:[01]?[0-9]|2[0-3])(?::[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]*)?)?)?"
    r"(?:[Zz]|[+-][0-9]{1,2}(?::?[0-9]{2})?)?",
    "LONG": "'[0-9][0-9.]{16}'",
    "SUSPECT": "'[0-9.]{16}|[0-9.]e'",
    "OTHER_JSON": r'("(?:[^"\\]|\\.)*"|-?[0-9.]+[eE][+-]?[0-9]+)',
    "MOST_LEVELS": str(MOST_LEVELS),
    "MAX_TEXT": str(MAX_TEXT),
    "ZONED": ZONED,
}


def define_function(connection: duckdb.DuckDBPyConnection) -> None:
    """Define what no macro can do; it is called for long texts only."""
    connection.create_function("_is_deep", _is_deep, [VARCHAR], BOOLEAN)
    # The stubs have classes for what the engine takes by its name as well.
    kinds: Any = {"type": "arrow", "null_handling": "special"}
    connection.create_function("_as_written", _as_written, [VARCHAR] * 3, VARCHAR, **kinds)


# -- Numbers of JSON as their document has them: the engine writes those with a fraction through a DOUBLE --

_STEP = re.compile(r'\."((?:[^"\\]|\\.)*)"|\.([^."\[]+)|\[(\d+)\]')
# Begins the text of a number that is read as a text; no text of a document begins with it.
_DIGITS = "\x01"
_MARKED_DIGITS = re.compile(r'"\\u0001([^"]*)"')


def _as_written(found: pa.ChunkedArray, documents: pa.ChunkedArray, paths: pa.ChunkedArray) -> pa.Array:
    """Return what the engine found at paths, with the digits that numbers have in the documents."""
    is_rounded = pc.match_substring_regex(found, _ROUNDED)
    if not pc.any(is_rounded).as_py():
        return found
    rows = zip(*(part.to_pylist() for part in (is_rounded, found, documents, paths)), strict=True)
    return pa.array(
        [_written_at(text, document, path) if rounded else text for rounded, text, document, path in rows],
        pa.string(),
    )


def _written_at(found: str, document: str, path: str) -> str:
    try:
        value = json.loads(document, parse_float=_digits, parse_int=_digits)
        for key in _steps(path):
            value = value[key]  # the engine found it there
        if not isinstance(value, str):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return _MARKED_DIGITS.sub(r"\1", text)
    except (RecursionError, ValueError):
        # More levels than Python reads, or what the engine tolerates: a comma at the end.
        return found
    return value[1:] if value.startswith(_DIGITS) else found


def _digits(text: str) -> str:
    return _DIGITS + text


@functools.lru_cache(maxsize=1024)
def _steps(path: str) -> list[str | int]:
    """Return keys and positions of a path of the engine's."""
    return [
        int(index) if index else name or (json.loads(f'"{quoted}"') if quoted else "")
        for quoted, name, index in _STEP.findall(path)
    ]


# The engine asks for a constant again and again while it makes an expression simpler.
@functools.lru_cache(maxsize=1)
def _is_deep(text: str) -> bool:
    return is_deep(text.encode())


def define(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the macros in an instance, before a database is attached to it."""
    define_function(connection)
    connection.execute(macros())


@functools.cache
def macros() -> str:
    """Return the statements that define the macros."""
    text = Path(__file__).with_name("macros.sql").read_text(encoding="utf-8")
    for word, meaning in _WORDS.items():
        text = text.replace(f"${word}", meaning)
    return text


# -- DuckDB expressions that convert one JSON value to the type of its column, as Snowflake's casts do ---

# The type that the plain cast gives, and the macro that reads every text (module engine.values).
_TIMES = {
    "DATE": ("DATE", "_read_date"), "TIME": ("TIME", "_read_time"),
    "TIMESTAMP_NTZ": ("TIMESTAMP", "_read_ntz"), "TIMESTAMP_LTZ": ("TIMESTAMP WITH TIME ZONE", "_read_ltz"),
}  # fmt: skip


def convert_with(column: Column, raw: str, cast: str) -> str:
    """Return the conversion of a JSON value to a column's type, before numbers and texts are cast.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    :param cast: ``CAST`` fails on what it cannot convert, ``TRY_CAST`` gives NULL.
    """
    kind = column.type.kind
    if kind in _CONVERSIONS:
        return cut(column, _CONVERSIONS[kind](raw, cast))
    if kind in {"NUMBER", "VARCHAR", "VARIANT"}:
        return raw
    return f"{cast}({raw} AS {column.type.duckdb})"


def cut(column: Column, value: str) -> str:
    """Return an expression of a TIME or TIMESTAMP without the digits that its column does not keep."""
    kept = column.type.kept_micros
    return value if kept == 1 else f"_cut({value}, {kept})"


def _read(macro: str) -> Callable[[str, str], str]:
    return lambda raw, cast: f"{macro}({raw})" if cast == "CAST" else f"TRY({macro}({raw}))"


def _object(raw: str, cast: str) -> str:
    # The name of another JSON type is not JSON, so this cast fails; error() could not stand inside TRY.
    otherwise = f"CAST(json_type({raw}) AS JSON)" if cast == "CAST" else "NULL"
    return (
        f"CASE WHEN {raw} IS NULL THEN NULL WHEN json_type({raw}) = 'OBJECT' THEN {raw} ELSE {otherwise} END"
    )


def _array(raw: str, _cast: str) -> str:
    wrapped = f"CASE WHEN json_type({raw}) = 'ARRAY' THEN {raw} ELSE json_array({raw}) END"
    return f"CASE WHEN {raw} IS NOT NULL THEN {wrapped} END"


def _time(kind: str) -> Callable[[str, str], str]:
    target, macro = _TIMES[kind]
    # The plain cast is several times as fast; what it refuses, the macro reads in the isolating path.
    return lambda raw, cast: (
        f"TRY({macro}({raw}))"
        if cast == "TRY_CAST"
        else f"CAST({'_ended_time' if kind == 'TIME' else '_ended'}({raw}) AS {target})"
    )


_CONVERSIONS: dict[str, Callable[[str, str], str]] = {
    "BOOLEAN": _read("_read_boolean"),
    "BINARY": _read("from_base64"),
    "OBJECT": _object,
    "ARRAY": _array,
    "TIMESTAMP_TZ": _read("_read_tz"),
    **{kind: _time(kind) for kind in _TIMES},
}


def convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a JSON value's text (or JSON) into a column's type, or fails.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind in _TIMES:
        return cut(column, f"{_TIMES[column.type.kind][1]}({raw})")
    return f"CAST({convert_with(column, raw, 'CAST')} AS {column.type.duckdb})"


# What reads a value of any type as one of these.
MACROS = {
    "BOOLEAN": "_boolean", "DATE": "_date", "TIME": "_time", "TIMESTAMP_NTZ": "_ntz", "TIMESTAMP_LTZ": "_ltz",
    "TIMESTAMP_TZ": "_tz",
}  # fmt: skip


def cast(column: Column, value: str, *, tried: bool = False) -> str:
    """Return a cast of a value that may have any type to the type of a column.

    :param tried: the cast gives NULL where it fails.
    """
    if column.type.kind.startswith("TIMESTAMP"):
        read = f"{MACROS[column.type.kind]}({value})"
        return cut(column, f"TRY({read})" if tried else read)
    return f"{'TRY_' if tried else ''}CAST({value} AS {column.type.duckdb})"


def try_convert(column: Column, raw: str) -> str:
    """Return a DuckDB expression that turns a text (or JSON) into a column's type; NULL when it cannot.

    :param raw: expression of the text; of the JSON itself for VARIANT, OBJECT and ARRAY.
    """
    if column.type.kind == "NUMBER":
        return f"TRY_CAST({raw} AS {column.type.duckdb})"
    return convert_with(column, raw, "TRY_CAST")


def too_long(column: Column, value: str) -> str | None:
    """Return the condition that a value is longer than its column, or None when the type has no length."""
    limit = column.type.length
    if limit is None:
        return None
    if column.type.kind == "BINARY":
        return f"octet_length({value}) > {limit}"
    # The number of bytes is known, characters are counted.
    return f"strlen({value}) > {limit} AND length({value}) > {limit}"


# -- Why a row cannot be stored: branches of the CASE that names the reason, without the value -----------

# The line ``l`` as JSON, NULL when it is not an object.
AS_OBJECT = "CASE WHEN json_valid(l) THEN CASE WHEN json_type(l) = 'OBJECT' THEN l::JSON END END"
NOT_AN_OBJECT = "WHEN j IS NULL THEN 'the row is not a JSON object'"


def column_reasons(column: Column, value: str, *, failed: str, why: str) -> str:
    """Return the branches for one column: not converted, too long, absent but required.

    :param failed: condition under which the conversion failed.
    :param why: the error's text then.
    """
    name = f"column {quote(column.name)}"
    parts = [f"WHEN {failed} THEN {literal(f'{name}: {why}')}"]
    longer = too_long(column, value)
    if longer is not None:
        parts.append(f"WHEN {longer} THEN {literal(f'{name}: the value is longer than {column.type}')}")
    if not column.nullable:
        parts.append(required(column, f"{value} IS NULL"))
    return " ".join(parts)


def required(column: Column, missing: str = "true") -> str:
    """Return the branch for a column that must have a value.

    :param missing: condition under which it has none.
    """
    return f"WHEN {missing} THEN {literal(f'column {quote(column.name)}: a value is required (NOT NULL)')}"


# -- SQL that turns NDJSON lines into typed rows: a strict fast path and an isolating slow path that agree --
#
# Measured facts behind the shape of these statements (DuckDB 2.0.0):
#
# * ``read_json`` and an extraction as VARCHAR print fractional numbers through a double; a spec of
#   ``DECIMAL(p,s)`` reads the digits exactly, and rounds half away from zero as Snowflake does.
# * ``json_transform_strict`` fails on a missing or duplicate key, on a malformed line and on a non-object,
#   but accepts extra keys; so the keys of the whole group must be known before columns may be left out.
# * Without the ``OFFSET 0`` fence the optimizer parses the JSON once per column.
# * Struct field names ignore case; two spellings of one key need two specs.


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
    raws, values, reasons = [], [], [NOT_AN_OBJECT]
    for index, (column, spellings) in enumerate(keys.columns):
        raws.append(f"{spelled(spellings, 's')} AS r{index}")
        value = (
            spelled(spellings, "d")
            if column.type.kind == "NUMBER"
            else convert_with(column, f"r{index}", "TRY_CAST")
        )
        if column.default is not None:
            value = f"CASE WHEN {present(spellings)} OR j IS NULL THEN {value} ELSE {column.default} END"
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
        f"(SELECT i, l, j{transforms(keys)} FROM "
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
    if longer is None:
        return value
    return f"CASE WHEN {longer} THEN error('too long') ELSE {value} END"


def transforms(keys: KeyMap) -> str:
    """Return the spellings of each rank as columns of ``j``: text or JSON ``s0``.., digits ``d0``.."""
    found = ""
    for rank in range(max((len(spellings) for _, spellings in keys.columns), default=0)):
        at_rank = [(c, s[rank]) for c, s in keys.columns if len(s) > rank]
        raw = {key: "JSON" if c.type.is_semi_structured else "VARCHAR" for c, key in at_rank}
        exact = {key: c.type.duckdb for c, key in at_rank if c.type.kind == "NUMBER"}
        found += f", json_transform(j, {literal(json.dumps(raw))}) AS s{rank}"
        found += f", json_transform(j, {literal(json.dumps(exact))}) AS d{rank}" if exact else ""
    return found


def spelled(spellings: Sequence[str], struct: str) -> str:
    """Return the first value among the spellings of a key, of the columns that :func:`transforms` gives."""
    fields = [f"{struct}{rank}.{quote(key)}" for rank, key in enumerate(spellings)]
    return fields[0] if len(fields) == 1 else f"coalesce({', '.join(fields)})"


def present(spellings: Sequence[str]) -> str:
    """Return the condition that a row has a key in one of its spellings."""
    keys = ", ".join(literal(key) for key in spellings)
    return f"list_has_any(json_keys(j), [{keys}])"


def _required_but_absent(table: Table, keys: KeyMap) -> list[Column]:
    named = {column.name for column, _ in keys.columns}
    return [c for c in table.columns if not c.nullable and c.default is None and c.name not in named]
