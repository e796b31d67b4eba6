"""A table as Snowflake describes it, and the SQL that makes it or adds columns to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName, full_name, quote_identifier, string_literal

if TYPE_CHECKING:
    import pyarrow as pa


# -- The columns of a table as Snowflake describes them: what a row may hold -----------------------------

MAX_VARCHAR = 16_777_216
MAX_BINARY = 8_388_608
_DIGITS = 38
LONGEST_TEXT = f"VARCHAR({MAX_VARCHAR})"
_WRITTEN = re.compile(
    r"\s*(?P<word>[A-Z_]\w*(?:\s+(?:PRECISION|VARYING|WITH(?:OUT)?\s+(?:LOCAL\s+)?TIME\s+ZONE))?)\s*"
    r"(?:\(\s*(?P<first>[0-9]{1,9})\s*(?:,\s*(?P<second>[0-9]{1,9})\s*)?\))?",
    re.IGNORECASE,
)
_INTEGERS = frozenset({"INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT"})
_KINDS = {
    **dict.fromkeys(("NUMBER", "DECIMAL", "NUMERIC", "DEC", "FIXED"), "NUMBER"),
    **dict.fromkeys(("FLOAT", "FLOAT4", "FLOAT8", "DOUBLE", "DOUBLE PRECISION", "REAL"), "FLOAT"),
    **dict.fromkeys(("VARCHAR", "TEXT", "STRING", "CHAR", "CHARACTER", "NCHAR", "NVARCHAR"), "VARCHAR"),
    **dict.fromkeys(("BINARY", "VARBINARY"), "BINARY"),
    **dict.fromkeys(("TIMESTAMP_NTZ", "TIMESTAMPNTZ", "DATETIME", "TIMESTAMP"), "TIMESTAMP_NTZ"),
    **dict.fromkeys(("TIMESTAMP_LTZ", "TIMESTAMPLTZ"), "TIMESTAMP_LTZ"),
    **dict.fromkeys(("TIMESTAMP_TZ", "TIMESTAMPTZ"), "TIMESTAMP_TZ"),
    **{kind: kind for kind in ("BOOLEAN", "DATE", "TIME", "VARIANT", "OBJECT", "ARRAY")},
    **{kind: kind for kind in ("GEOGRAPHY", "GEOMETRY", "VECTOR", "MAP", "DECFLOAT", "UUID", "FILE")},
}
_STRUCTURED = frozenset({"OBJECT", "ARRAY", "MAP", "VECTOR"})


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type with its parameters.

    :param kind: Snowflake's word for it without synonyms, for example ``NUMBER`` or ``TIMESTAMP_NTZ``
    :param precision: digits of a NUMBER, fractional digits of a TIME or a TIMESTAMP
    :param scale: fractional digits of a NUMBER
    :param length: characters of a VARCHAR, bytes of a BINARY
    """

    kind: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a type as ``DESCRIBE TABLE`` or a ``CREATE TABLE`` writes it."""
        match = _WRITTEN.match(text)
        word = " ".join(match["word"].upper().split()) if match else ""
        if match is not None and (word in _INTEGERS or word in _KINDS):
            rest = text[match.end() :].strip()
            if not rest or _KINDS.get(word) in _STRUCTURED or rest.upper().startswith("COLLATE"):
                first, second = (None if n is None else int(n) for n in (match["first"], match["second"]))
                return cls._of(word, first, second)
        raise ConfigurationError(
            f"column type {text!r} is unknown: write it as DESCRIBE TABLE does, for example 'NUMBER(38,0)'"
        )

    @classmethod
    def _of(cls, word: str, first: int | None, second: int | None) -> Self:
        if word in _INTEGERS:
            return cls("NUMBER", precision=38, scale=0)
        kind = _KINDS[word]
        if kind == "NUMBER":
            return cls(kind, precision=38 if first is None else first, scale=second or 0)
        if kind == "VARCHAR":
            longest = 1 if word in ("CHAR", "CHARACTER", "NCHAR") else MAX_VARCHAR
            return cls(kind, length=longest if first is None else first)
        if kind == "BINARY":
            return cls(kind, length=MAX_BINARY if first is None else first)
        if kind.startswith("TIME"):
            return cls(kind, precision=9 if first is None else first)
        return cls(kind)

    @property
    def digits(self) -> tuple[int, int]:
        """Digits of a NUMBER, and how many of them are fractional."""
        return (_DIGITS if self.precision is None else self.precision), (self.scale or 0)

    def __str__(self) -> str:
        """As ``DESCRIBE TABLE`` writes it."""
        if self.kind == "NUMBER":
            return f"NUMBER({self.precision},{self.scale})"
        if self.kind in ("VARCHAR", "BINARY"):
            return f"{self.kind}({self.length})"
        return f"{self.kind}({self.precision})" if self.kind.startswith("TIME") else self.kind


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table.

    :param name: its name, letter by letter
    :param type: its type as ``DESCRIBE TABLE`` writes it
    :param nullable: False for NOT NULL
    :param default: the expression of its DEFAULT, None where it has none
    :param identity: True if Snowflake numbers its rows (AUTOINCREMENT)
    :param exact: True where a value that the column would round or cut does not fit, since the column's type
        was inferred from other rows
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    identity: bool = False
    exact: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("a column's name is empty: give it the name that the table has")
        ColumnType.parse(self.type)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of ``DESCRIBE TABLE``, whose keys are the columns' names in lower case.

        An AUTOINCREMENT column has ``IDENTITY START … INCREMENT …`` as its default ("DESCRIBE TABLE").
        """
        default = None if row.get("default") in (None, "") else str(row["default"])
        identity = default is not None and default.upper().startswith(("IDENTITY ", "AUTOINCREMENT"))
        return cls(
            name=str(row["name"]),
            type=str(row["type"]),
            nullable=str(row.get("null?", "Y")).upper() not in ("N", "NO", "FALSE"),
            default=None if identity else default,
            identity=identity,
        )

    @property
    def column_type(self) -> ColumnType:
        """The type, taken apart."""
        return ColumnType.parse(self.type)

    @property
    def fills_itself(self) -> bool:
        """True if a row that does not name the column still gives it a value."""
        return self.default is not None or self.identity

    @property
    def ddl(self) -> str:
        """Its part of a ``CREATE TABLE``."""
        return f"{quote_identifier(self.name)} {self.type}" + ("" if self.nullable else " NOT NULL")


def columns_of_describe(rows: Iterable[Mapping[str, Any]]) -> tuple[TableColumn, ...]:
    """Read the result of ``DESCRIBE TABLE``; what is not a column of the table is skipped."""
    kinds = ((row, str(row.get("kind") or "COLUMN").upper()) for row in rows)
    return tuple(TableColumn.from_row(row) for row, kind in kinds if kind == "COLUMN")


# -- The SQL that makes a table for a source's rows, or adds columns to it -------------------------------


def table_of(pipe: PipeName) -> str:
    """The quoted full name of the default pipe's table."""
    if pipe.default_table is None:
        raise ConfigurationError(
            f"pipe {pipe} is not a table's default pipe, so that the columns of its rows are not the "
            "table's: give table=… instead of pipe=…, or leave out what concerns columns"
        )
    return full_name(pipe.database, pipe.schema, pipe.default_table)


def show_table(pipe: PipeName) -> str:
    """The statement that lists the default pipe's table, and others that are named like it."""
    like = string_literal(str(pipe.default_table))
    return f"SHOW TABLES LIKE {like} IN SCHEMA {full_name(pipe.database, pipe.schema)}"


def widens_itself(shown: Iterable[Mapping[str, Any]], table: str) -> bool:
    """True if the service adds columns to a table for keys that it has none for (ENABLE_SCHEMA_EVOLUTION)."""
    on = ("Y", "YES", "TRUE", "ON")
    return any(
        row["name"] == table and str(row.get("enable_schema_evolution", "")).upper() in on for row in shown
    )


def create_table_if_missing(table: str, columns: Sequence[TableColumn]) -> str:
    """The statement that makes a table unless there is one."""
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(column.ddl for column in columns)})"


def add_columns(table: str, columns: Sequence[TableColumn]) -> str:
    """The statement that adds columns to a table; they can be empty, since there are rows already."""
    return f"ALTER TABLE {table} ADD COLUMN {', '.join(column.ddl for column in columns)}"


def missing_columns(expected: Iterable[TableColumn], have: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """The columns that a table lacks; names are compared as a default pipe does, without regard to case."""
    known = {column.name.upper() for column in have}
    return tuple(column for column in expected if column.name.upper() not in known)


def column_type(kind: pa.DataType) -> str | None:
    """The type of the column that takes an Arrow column's values as NDJSON; None where they show it."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_dictionary(kind) or is_a.is_run_end_encoded(kind):
        return column_type(kind.value_type)
    if is_a.is_decimal(kind):
        fits = kind.precision <= _DIGITS and kind.scale >= 0
        return f"NUMBER({kind.precision},{kind.scale})" if fits else None
    if is_a.is_integer(kind):
        return "NUMBER(38,0)"
    if is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_fixed_size_binary(kind):
        return f"BINARY({MAX_BINARY})"
    if is_a.is_timestamp(kind):
        return "TIMESTAMP_NTZ(9)" if kind.tz is None else "TIMESTAMP_TZ(9)"
    if is_a.is_nested(kind):
        return "VARIANT"
    simple = {
        is_a.is_boolean: "BOOLEAN",
        is_a.is_floating: "FLOAT",
        is_a.is_date: "DATE",
        is_a.is_time: "TIME(9)",
        is_a.is_string: LONGEST_TEXT,
        is_a.is_large_string: LONGEST_TEXT,
        is_a.is_string_view: LONGEST_TEXT,
    }
    return next((name for test, name in simple.items() if test(kind)), None)


_INFERRED = ("NUMBER(38,0)", "DATE", "BOOLEAN")
"""Types that are inferred from some rows, and that round or cut other values."""


def with_exact(columns: Iterable[TableColumn], required: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """The columns of a table that loads make or widen, which must not round or cut values."""
    own = {one.name.upper(): str(one.column_type) for one in required}
    return tuple(
        replace(one, exact=kind in _INFERRED or own.get(one.name.upper()) == kind)
        for one in columns
        for kind in [str(one.column_type)]
    )


def common_types(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The types of columns that two schemas name; each takes the values of both."""
    found = dict(one)
    for name, kind in other.items():
        known = found.get(name, kind)
        found[name] = known if known == kind else _wider(ColumnType.parse(known), ColumnType.parse(kind))
    return found


def _wider(one: ColumnType, other: ColumnType) -> str:
    kinds = {one.kind, other.kind}
    if kinds == {"NUMBER"}:
        scale = max(one.digits[1], other.digits[1])
        digits = max(precision - scale for precision, scale in (one.digits, other.digits))
        return f"NUMBER({min(_DIGITS, digits + scale)},{scale})"
    if kinds == {"NUMBER", "FLOAT"}:
        return "FLOAT"
    return "VARIANT" if "VARIANT" in kinds else LONGEST_TEXT
