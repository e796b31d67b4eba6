# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""Which value of a record fills which column: by position, by name, or by the expressions of a statement."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from snowpipe_local.engine import conversions
from snowpipe_local.errors import compilation_error, unsupported
from snowpipe_local.loading.chunks import COLUMNS, CSV, JSON, FileShape
from snowpipe_local.tables import Column, Table, literal, quote

# -- DuckDB expressions that convert the values of files to the types of columns, as Snowflake's casts do --
#
# They build on the conversions of streamed rows, so that a value means the same whichever way it comes.

_TIME_KINDS = {"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIMESTAMP_TZ"}
_FORMAT_OPTIONS = {"DATE": "DATE_FORMAT", "TIME": "TIME_FORMAT"}
_FORMAT_PARTS = {
    "YYYY": "%Y", "YY": "%y", "MM": "%m", "MON": "%b", "MMMM": "%B", "DD": "%d", "DY": "%a", "HH24": "%H",
    "HH12": "%I", "AM": "%p", "PM": "%p", "MI": "%M", "SS": "%S", "TZHTZM": "%z", "TZH:TZM": "%z",
    "TZH": "%z",
}  # fmt: skip
_FORMAT_TOKEN = re.compile(
    r"\.?FF\d?|YYYY|YY|MMMM|MON|MM|DD|DY|HH24|HH12|AM|PM|MI|SS|TZH:?TZM|TZH|\"[^\"]*\"|.",
    re.IGNORECASE | re.DOTALL,
)


def text_value(column: Column, raw: str, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a text to a column's type; NULL when it cannot.

    :param options: DATE_FORMAT, TIME_FORMAT, TIMESTAMP_FORMAT and BINARY_FORMAT of the file format.
    """
    kind = column.type.kind
    if kind == "BINARY":
        return _binary(raw, str(options.get("BINARY_FORMAT", "HEX")))
    if kind in _TIME_KINDS:
        return _time(column, raw, str(options.get(_FORMAT_OPTIONS.get(kind, "TIMESTAMP_FORMAT"), "AUTO")))
    if column.type.is_semi_structured:
        # Text of a CSV field is parsed, as PARSE_JSON would.
        return json_value(column, f"_compact(TRY(CAST(_shallow({raw}) AS JSON)))", options)
    return conversions.try_convert(column, raw)


def json_value(column: Column, raw: str, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a JSON value to a column's type; NULL when it cannot."""
    if not column.type.is_semi_structured:
        return text_value(column, f"({raw} ->> '$')", options)
    present = f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END"
    return conversions.try_convert(column, f"({present})")


def arrow_value(column: Column, name: str, kind: pa.DataType, options: Mapping[str, Any]) -> str:
    """Return an expression that converts a Parquet or ORC column to a table column's type; NULL if it cannot.

    :param name: quoted name of the Arrow column.
    """
    target_type = column.type
    if target_type.is_semi_structured:
        return conversions.try_convert(column, arrow_json(name, kind, options))
    if _is_binary(kind) and target_type.kind == "BINARY":
        return name
    if pa.types.is_temporal(kind) and target_type.kind in _TIME_KINDS:
        if pa.types.is_timestamp(kind):
            # The engine converts nanoseconds to few other types.
            name = f"TRY_CAST({name} AS TIMESTAMP{' WITH TIME ZONE' if kind.tz else ''})"
        return (
            f"TRY(_tz({name}))"
            if target_type.kind == "TIMESTAMP_TZ"
            else f"TRY_CAST({name} AS {target_type.duckdb})"
        )
    return text_value(column, arrow_text(name, kind, options), options)


def arrow_text(name: str, kind: pa.DataType, options: Mapping[str, Any]) -> str:
    """Return an expression of an Arrow column's text; binary values are text too, or hexadecimal.

    :param options: BINARY_AS_TEXT of the file format, TRUE if it is not there.
    """
    if _is_binary(kind):
        return f"TRY(decode({name}))" if options.get("BINARY_AS_TEXT", True) else f"hex({name})"
    if pa.types.is_nested(kind):
        return f"CAST(to_json({name}) AS VARCHAR)"
    return f"CAST({name} AS VARCHAR)"


def arrow_json(name: str, kind: pa.DataType, options: Mapping[str, Any]) -> str:
    """Return an expression of an Arrow column's value as JSON."""
    if pa.types.is_struct(kind):
        # A row's own keys are those that have a value: its file has the keys of all rows.
        return f"json_merge_patch('{{}}', to_json({name}))"
    return f"to_json({arrow_text(name, kind, options) if _is_binary(kind) else name})"


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


def _binary(raw: str, written: str) -> str:
    if written == "BASE64":
        return f"TRY(from_base64({raw}))"
    return f"encode({raw})" if written.startswith("UTF") else f"TRY(_hex({raw}))"


def _time(column: Column, raw: str, written: str) -> str:
    target, zoned = column.type.duckdb, column.type.kind == "TIMESTAMP_TZ"
    if written != "AUTO":
        read, text = strptime_format(written), f"_finite({raw})"
        if "%I" in read and "%p" not in read:
            # Without AM or PM, 12 is midnight.
            read, text = f"{read} %p", f"{text} || ' AM'"
        parsed = f"try_strptime({text}, {literal(read)})"
        if re.search("(?<!Y)YY(?!Y)", written.upper()):
            # TWO_DIGIT_CENTURY_START is 1970, the engine's is 1969.
            later = f"{parsed} + to_years(100)"
            parsed = f"CASE WHEN year({parsed}) = 1969 THEN {later} ELSE {parsed} END"
        if zoned:
            return _zoned(raw, parsed)
        if column.type.kind != "TIMESTAMP_LTZ" and "TZ" in written.upper():
            # A type without an offset takes the time as it is written.
            return f"CAST(_clock({_zoned(raw, parsed)}) AS {target})"
        return f"CAST({parsed} AS {target})"
    return conversions.try_convert(column, raw)


def _zoned(raw: str, parsed: str) -> str:
    """A format gives the instant; its offset is the one at the end of the text."""
    offset = f"regexp_extract({raw}, '[+-][0-9]{{2}}:?[0-9]{{2}}$')"
    minutes = f"_read_tz('2000-01-01 00:00:00' || coalesce(nullif({offset}, ''), '+00')).o"
    return f"_at_offset(CAST({parsed} AS TIMESTAMP WITH TIME ZONE), {minutes})"


def strptime_format(written: str) -> str:
    """Translate a Snowflake format such as ``DD.MM.YYYY HH24:MI:SS.FF`` to DuckDB's.

    :raises SqlError: for an element that is not known here.
    """
    parts: list[str] = []
    for part in _FORMAT_TOKEN.findall(written):
        upper = part.upper()
        if upper in _FORMAT_PARTS:
            parts.append(_FORMAT_PARTS[upper])
        elif upper.lstrip(".").startswith("FF"):
            parts.append((".%n" if upper.endswith("9") else ".%f") if upper[0] == "." else "%f")
        elif len(part) > 1:
            parts.append(part.strip('"').replace("%", "%%"))
        elif part.isalpha() and upper not in {"T", "Z"}:
            raise unsupported(f"'{part}' in the date or time format {written}")
        else:
            parts.append("%%" if part == "%" else part)
    return "".join(parts)


RECORDS = "_records"
METADATA = (
    "METADATA$FILENAME", "METADATA$FILE_ROW_NUMBER", "METADATA$FILE_CONTENT_KEY",
    "METADATA$FILE_LAST_MODIFIED", "METADATA$START_SCAN_TIME",
)  # fmt: skip
# More than any table of Snowflake's can have.
_MOST_FIELDS = 10_000


@dataclass(frozen=True, slots=True)
class Filled:
    """A column, and the expressions that fill it from a record.

    :param value: DuckDB expression of its value; NULL when the value cannot be converted. It may use ``raw``.
    :param raw: expression of the value as the file holds it; None for ``value`` that fails by itself, which
        must then be a struct with the field ``v``, or NULL when it failed.
    :param position: number of the record's field, counting from 0, or None.
    """

    column: Column
    value: Callable[[str], str]
    raw: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """How the records of one chunk become rows.

    :param source: relation with the columns ``i`` and ``x``, and those that the expressions use.
    :param filled: columns in the order of the table.
    :param fields: number of fields that a record must have, or None when it may have any number.
    """

    source: str
    filled: tuple[Filled, ...]
    fields: int | None = None


class Selection(Protocol):
    """The choice of values that one COPY statement makes."""

    @property
    def width(self) -> int:
        """Fields that are needed of each CSV record."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that the statement fills, in order."""

    def project(
        self, cursor: duckdb.DuckDBPyConnection, shape: FileShape, facts: Mapping[str, str]
    ) -> Projection:
        """Return the projection of the chunk that is registered under :data:`RECORDS`.

        :param facts: METADATA$... columns of the file, as DuckDB expressions by upper-case name.
        """


@dataclass(frozen=True, slots=True)
class ByPosition:
    """Fields fill the columns in order; JSON and Parquet fill one semi-structured column."""

    columns: tuple[Column, ...]
    options: Mapping[str, Any]

    @property
    def width(self) -> int:
        """As many fields as columns."""
        return len(self.columns)

    def project(
        self, cursor: duckdb.DuckDBPyConnection, shape: FileShape, facts: Mapping[str, str]
    ) -> Projection:
        """Return the projection of the registered chunk."""
        if shape.kind == CSV:
            strict = bool(self.options.get("ERROR_ON_COLUMN_COUNT_MISMATCH", True))
            filled = tuple(text_field(column, n, self.options) for n, column in enumerate(self.columns))
            return Projection(RECORDS, filled, self.width if strict else None)
        column = self.columns[0]
        if len(self.columns) != 1 or not column.type.is_semi_structured:
            kind = "JSON" if shape.kind == JSON else "This"
            raise compilation_error(
                f"{kind} file format can produce one and only one column of variant, object, or array type. "
                "Load data into separate columns using the MATCH_BY_COLUMN_NAME copy option or copy with "
                "transformation.",
                "002007",
                "0A000",
            )
        source = RECORDS if shape.kind == COLUMNS else json_source(self.options)
        whole = whole_row(shape, self.options)
        return Projection(source, (Filled(column, _json(column, self.options), whole),))


@dataclass(frozen=True, slots=True)
class ByName:
    """MATCH_BY_COLUMN_NAME: fields fill the columns of their name; other columns are NULL.

    :param exact: names are compared with their case.
    """

    table: Table
    options: Mapping[str, Any]
    exact: bool
    included: Mapping[str, str] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The header decides the number of fields."""
        return 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the table."""
        return self.table.columns

    def project(
        self, cursor: duckdb.DuckDBPyConnection, shape: FileShape, facts: Mapping[str, str]
    ) -> Projection:
        """Return the projection of the registered chunk."""
        source, fields = RECORDS, None
        if shape.kind == JSON:
            source, found, names = self._keys(cursor)
        else:
            found, names = self._fields(shape), shape.names
            if shape.kind == CSV and self.options.get("ERROR_ON_COLUMN_COUNT_MISMATCH", True):
                fields = len(shape.names)
        self._refuse_new_columns(names)
        filled = []
        for column in self.table.columns:
            if column.name in self.included:
                filled.append(expression(column, facts[self.included[column.name]]))
            else:
                matched = found.get(column.name)
                filled.append(absent(column) if matched is None else self._cleaned(matched, shape.kind))
        return Projection(source, tuple(filled), fields)

    def _refuse_new_columns(self, names: Sequence[str]) -> None:
        known = {self._folded(column.name) for column in self.table.columns}
        if self.table.schema_evolution and (new := [n for n in names if self._folded(n) not in known]):
            raise unsupported(f"ENABLE_SCHEMA_EVOLUTION by COPY INTO (new columns {', '.join(new)[:100]})")

    def _fields(self, shape: FileShape) -> dict[str, Filled]:
        names = {self._folded(name): number for number, name in reversed(list(enumerate(shape.names)))}
        found = {}
        for column in self.table.columns:
            number = names.get(self._folded(column.name))
            if number is not None and shape.kind == CSV:
                found[column.name] = text_field(column, number, self.options)
            elif number is not None:
                found[column.name] = arrow_field(column, number, shape, self.options)
        return found

    def _cleaned(self, filled: Filled, kind: str) -> Filled:
        """Apply NULL_IF and TRIM_SPACE, which the reader of CSV has applied already."""
        nulls, trims = self.options.get("NULL_IF"), bool(self.options.get("TRIM_SPACE"))
        if kind == CSV or filled.raw is None or not (nulls or trims):
            return filled
        is_json = kind == JSON and filled.column.type.is_semi_structured
        text = f"trim({filled.raw}, ' \t\r\n')" if trims and not is_json else filled.raw
        if nulls:
            compared = f"(({text}) ->> '$')" if is_json else text
            listed = ", ".join(literal(str(value)) for value in nulls)
            text = f"CASE WHEN {compared} NOT IN ({listed}) THEN {text} END"
        is_text = filled.column.type.kind == "VARCHAR"

        def value(raw: str) -> str:
            return raw if is_text else f"CASE WHEN {raw} IS NOT NULL THEN {filled.value(raw)} END"

        return dataclasses.replace(filled, value=value, raw=text)

    def _folded(self, name: str) -> str:
        return name if self.exact else name.upper()

    def _keys(self, cursor: duckdb.DuckDBPyConnection) -> tuple[str, dict[str, Filled], Sequence[str]]:
        query = conversions.lenient_keys_query(f"(SELECT l FROM {RECORDS} WHERE l IS NOT NULL)")
        named = [key for (key,) in cursor.execute(query).fetchall()]
        keys = conversions.KeyMap.of(self.table, named, case_sensitive=self.exact)
        source = f"(SELECT *{conversions.transforms(keys)} FROM {json_source(self.options)} OFFSET 0)"
        return source, {column.name: self._key(column, spelled) for column, spelled in keys.columns}, named

    def _key(self, column: Column, spelled: Sequence[str]) -> Filled:
        raw = conversions.spelled(spelled, "s")

        def value(name: str) -> str:
            if column.type.kind == "NUMBER":
                # The digits come from the JSON itself; its text form went through a floating-point number.
                converted = conversions.spelled(spelled, "d")
            elif column.type.is_semi_structured:
                converted = _json(column, self.options)(name)
            else:
                converted = text_value(column, name, self.options)
            return converted

        if column.type.is_semi_structured:
            raw = f"CASE WHEN json_type({raw}) <> 'NULL' THEN {raw} END"
        return Filled(column, value, raw)


def field_number(written: str) -> int:
    """Return the number of a field that ``$1``, ``$2``, .. names.

    :raises SqlError: 001003 for what names no field.
    """
    number = int(written) if written.isdecimal() and len(written) < 9 else 0
    if not 1 <= number <= _MOST_FIELDS:
        raise compilation_error(f"invalid column ${written[:20]}; columns of files are $1, $2, ..")
    return number


def text_field(column: Column, number: int, options: Mapping[str, Any]) -> Filled:
    """Return how a field of a CSV record fills a column."""
    return Filled(column, lambda raw: text_value(column, raw, options), f"c{number}", number)


def arrow_field(column: Column, number: int, shape: FileShape, options: Mapping[str, Any]) -> Filled:
    """Return how a Parquet or ORC column fills a column."""
    name, kind = f"c{number}", shape.types[number]
    value = arrow_value(column, name, kind, options)
    return Filled(column, lambda _raw: value, arrow_text(name, kind, options), number)


def expression(column: Column, sql: str) -> Filled:
    """Return how an expression that may fail fills a column."""
    converted = f"to_json({sql})" if column.type.is_semi_structured else conversions.cast(column, sql)
    return Filled(column, lambda _raw: f"TRY(struct_pack(v := {converted}))")


def json_source(options: Mapping[str, Any]) -> str:
    """Return the relation of JSON records with the document as column ``j``; broken ones get a reason."""
    document = "CASE WHEN json_valid(l) THEN _compact(CAST(_shallow(l) AS JSON)) END"
    twice = "" if options.get("ALLOW_DUPLICATE") else (
        "WHEN _has_key_twice(j) "
        "THEN 'Error parsing JSON: duplicate object attribute in ' || left(trim(l, ' \t\r\n'), 60) "
    )  # fmt: skip
    return (
        f"(SELECT i, l, j, CASE WHEN x IS NULL AND j IS NULL "
        f"THEN 'Error parsing JSON: ' || left(trim(l, ' \t\r\n'), 100) {twice}"
        f"ELSE x END AS x FROM (SELECT i, x, l, CASE WHEN x IS NULL THEN {document} END AS j "
        f"FROM {RECORDS} OFFSET 0) OFFSET 0)"
    )


def whole_row(shape: FileShape, options: Mapping[str, Any]) -> str:
    """Return an expression of a whole record as JSON."""
    if shape.kind == JSON:
        return "j"
    fields = ", ".join(
        f"{quote(name)} := {arrow_json(f'c{number}', kind, options)}"
        for number, (name, kind) in enumerate(zip(shape.names, shape.types, strict=True))
    )
    return f"to_json(struct_pack({fields}))"


def _json(column: Column, options: Mapping[str, Any]) -> Callable[[str], str]:
    return lambda raw: json_value(column, raw, options)


def absent(column: Column) -> Filled:
    """Return how a column is filled that the record has no field for."""
    return Filled(column, lambda _raw: f"CAST(NULL AS {column.type.duckdb})", "CAST(NULL AS VARCHAR)")
