"""What the service knows about a table beyond DuckDB's catalog: names, types, defaults, nullability."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from snowpipe_local.errors import compilation_error, unsupported

# -- Identifiers: unquoted names are upper-cased, quoted names are kept ----------------------------------

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([A-Za-z_][\w$]*))')
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")
_DOT = re.compile(r"\s*\.")


def quote(name: str) -> str:
    """Quote one identifier for DuckDB or Snowflake.

    :param name: exact name, any characters.
    """
    return '"' + name.replace('"', '""') + '"'


def shown(name: str) -> str:
    """Return an identifier as Snowflake shows it: quoted where its name needs that."""
    return name if _PLAIN.fullmatch(name) else quote(name)


def quote_path(*parts: str) -> str:
    """Quote and join the parts of a qualified name."""
    return ".".join(quote(part) for part in parts)


def literal(text: str) -> str:
    """Quote a text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def read_path(text: str) -> tuple[tuple[str, ...], str]:
    """Read a dotted identifier from the start of a text.

    :param text: SQL text that starts with an identifier.
    :returns: the parts under Snowflake's case rules, and the rest of the text.
    :raises SqlError: when the text does not start with an identifier.
    """
    parts: list[str] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None:
            raise compilation_error(
                f"syntax error: expected an identifier at '{text[position : position + 30]}'."
            )
        quoted, bare = match.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else bare.upper())
        position = match.end()
        dot = _DOT.match(text, position)
        if dot is None:
            return tuple(parts), text[position:].strip()
        position = dot.end()
        if (twice := _DOT.match(text, position)) is not None:
            # ``database..name`` leaves out the schema PUBLIC ("Object name resolution").
            parts.append("PUBLIC")
            position = twice.end()


def read_whole_path(text: str) -> tuple[str, ...]:
    """Read a text that is one dotted identifier, as an argument of a function is.

    :returns: the parts under Snowflake's case rules.
    :raises SqlError: when something follows the identifier: a name that needs quotes would be another's.
    """
    path, rest = read_path(text)
    if rest:
        raise compilation_error(f"invalid identifier '{text[:80]}'.")
    return path


@dataclass(frozen=True, slots=True)
class UrlName:
    """A name in a URL of the streaming REST API.

    :param is_quoted: it was quoted, and means no name in other case.
    """

    text: str
    is_quoted: bool = False

    @classmethod
    def read(cls, segment: str) -> UrlName:
        """Read a decoded path segment; one that is not wholly a quoted identifier is taken as it is.

        The Kafka connector 4 quotes the pipe; the SDK passes on what it is given (observed).
        """
        quoted = _QUOTED.fullmatch(segment)
        return cls(segment) if quoted is None else cls(quoted[1].replace('""', '"'), is_quoted=True)

    def find(self, names: Iterable[str]) -> str | None:
        """Find the name: letter by letter if it was quoted, else as :func:`find_name`."""
        if self.is_quoted:
            return self.text if self.text in names else None
        return find_name(self.text, names)


def find_name(name: str, names: Iterable[str]) -> str | None:
    """Find a name the way the streaming REST API does: exact first, then ignoring case.

    :param names: an iterable of existing names.
    :returns: the existing spelling, or None.
    """
    candidates = list(names)
    if name in candidates:
        return name
    folded = name.upper()
    return next((candidate for candidate in candidates if candidate.upper() == folded), None)


# -- Snowflake column types and their DuckDB storage types -----------------------------------------------

# A TIMESTAMP_TZ: the instant, and the offset in minutes that it was written with.
ZONED = "STRUCT(t TIMESTAMP WITH TIME ZONE, o SMALLINT)"
IDENTITY = re.compile(r"IDENTITY START (-?\d+) INCREMENT (-?\d+)")
"""How the default of an AUTOINCREMENT column is written."""
MAX_VARCHAR = 16_777_216
# Texts that the engine's cast reads as Snowflake does: the engine knows a year 0 and an hour 24, too.
PLAIN_DATE = r"(?!0000)\d{4}-\d\d-\d\d"
PLAIN_TIME = r"(?:[01]\d|2[0-3]):\d\d:\d\d"
MAX_BINARY = 8_388_608
# By type, what a column may ask for; without a number it gets the sizes above.
_LARGEST = {"VARCHAR": 134_217_728, "BINARY": 67_108_864}

_INTEGER_WORDS = frozenset(
    {"INT", "INTEGER", "BIGINT", "SMALLINT", "TINYINT", "BYTEINT", "UBIGINT", "MEDIUMINT"}
)
_SIMPLE = {
    "BOOLEAN": "BOOLEAN", "DATE": "DATE", "FLOAT": "FLOAT", "DOUBLE": "FLOAT", "REAL": "FLOAT",
    "VARIANT": "VARIANT", "JSON": "VARIANT", "OBJECT": "OBJECT", "STRUCT": "OBJECT", "MAP": "OBJECT",
    "ARRAY": "ARRAY", "LIST": "ARRAY",
}  # fmt: skip
_TEXT_WORDS = frozenset({"VARCHAR", "TEXT", "CHAR", "NCHAR", "NVARCHAR", "NAME"})
_BINARY_WORDS = frozenset({"BINARY", "VARBINARY", "BLOB"})
_TIMESTAMP_WORDS = {
    "TIMESTAMP": "TIMESTAMP_NTZ", "DATETIME": "TIMESTAMP_NTZ", "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TIMESTAMPLTZ": "TIMESTAMP_LTZ", "TIMESTAMPTZ": "TIMESTAMP_TZ",
}  # fmt: skip
_DUCKDB = {
    "FLOAT": "DOUBLE", "VARCHAR": "VARCHAR", "BINARY": "BLOB", "BOOLEAN": "BOOLEAN", "DATE": "DATE",
    "TIME": "TIME", "TIMESTAMP_NTZ": "TIMESTAMP", "TIMESTAMP_LTZ": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_TZ": ZONED, "VARIANT": "JSON", "OBJECT": "JSON", "ARRAY": "JSON",
}  # fmt: skip
_WIRE = {"NUMBER": "FIXED", "FLOAT": "REAL", "VARCHAR": "TEXT"}
_FROM_DUCKDB = {
    "BOOLEAN": "BOOLEAN", "DATE": "DATE", "TIME": "TIME", "TIME_NS": "TIME", "DOUBLE": "FLOAT",
    "FLOAT": "FLOAT", "VARCHAR": "VARCHAR", "UUID": "VARCHAR", "INTERVAL": "VARCHAR", "BLOB": "BINARY",
    "JSON": "VARIANT", "TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP_NS": "TIMESTAMP_NTZ",
    "TIMESTAMP_MS": "TIMESTAMP_NTZ", "TIMESTAMP_S": "TIMESTAMP_NTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ", ZONED.upper(): "TIMESTAMP_TZ",
}  # fmt: skip
_DUCKDB_INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT",
     "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
)  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A Snowflake type with its parameters.

    :param kind: Snowflake's own word, for example ``NUMBER`` or ``TIMESTAMP_NTZ``.
    :param precision: digits of a NUMBER, fractional digits of TIME and TIMESTAMP.
    :param scale: fractional digits of a NUMBER.
    :param length: characters of a VARCHAR, bytes of a BINARY.
    """

    kind: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    @property
    def duckdb(self) -> str:
        """DuckDB type that stores the values."""
        if self.kind == "NUMBER":
            return f"DECIMAL({self.precision},{self.scale})"
        return _DUCKDB[self.kind]

    @property
    def wire(self) -> str:
        """Word of the protocols for the type."""
        return _WIRE.get(self.kind, self.kind)

    @property
    def kept_micros(self) -> int:
        """Microseconds in the unit of a TIME or TIMESTAMP; 1 for every other type."""
        has_less = self.kind.startswith("TIME") and self.precision is not None and self.precision < 6
        return int(10 ** (6 - (self.precision or 0))) if has_less else 1

    @property
    def is_semi_structured(self) -> bool:
        """True for VARIANT, OBJECT and ARRAY, which are stored as JSON text."""
        return self.kind in {"VARIANT", "OBJECT", "ARRAY"}

    def __str__(self) -> str:
        """Snowflake spelling with parameters, as DESCRIBE TABLE prints it."""
        if self.kind == "NUMBER":
            return f"NUMBER({self.precision},{self.scale})"
        if self.kind in {"VARCHAR", "BINARY"}:
            return f"{self.kind}({self.length})"
        if self.kind.startswith("TIME"):
            return f"{self.kind}({9 if self.precision is None else self.precision})"
        return self.kind

    @classmethod
    @functools.cache
    def from_text(cls, text: str) -> ColumnType:
        """Read the spelling that :meth:`__str__` writes."""
        return cls.from_sqlglot(exp.DataType.build(text, dialect="snowflake"))

    @classmethod
    def from_sqlglot(cls, node: exp.DataType) -> ColumnType:
        """Read a parsed column type.

        :raises SqlError: for a type that the local service does not store (GEOGRAPHY, VECTOR, ...).
        """
        word = str(getattr(node.this, "value", node.this)).upper()
        sizes = [_size(node, param) for param in node.expressions if isinstance(param, exp.DataTypeParam)]
        if word in _INTEGER_WORDS:
            return NUMBER
        if word in {"DECIMAL", "NUMBER", "NUMERIC"}:
            precision = sizes[0] if sizes else 38
            return cls("NUMBER", precision=precision, scale=sizes[1] if len(sizes) > 1 else 0)
        if word in _TEXT_WORDS:
            default = 1 if word in {"CHAR", "NCHAR"} else MAX_VARCHAR
            return cls("VARCHAR", length=_length("VARCHAR", sizes, default))
        if word in _BINARY_WORDS:
            return cls("BINARY", length=_length("BINARY", sizes, MAX_BINARY))
        if word == "TIME" or word in _TIMESTAMP_WORDS:
            if sizes and sizes[0] > 9:
                raise compilation_error(f"{word} has a precision of 0 to 9, not {sizes[0]}.")
            return cls(_TIMESTAMP_WORDS.get(word, word), precision=sizes[0] if sizes else 9)
        # With types of elements it is a structured type. FLOAT(n) is FLOAT in the connector's tests.
        is_float = _SIMPLE.get(word) == "FLOAT" and len(sizes) == len(node.expressions) == 1
        if word in _SIMPLE and (is_float or not node.expressions):
            return cls(_SIMPLE[word])
        raise unsupported(f"data type {node.sql(dialect='snowflake')}")

    @classmethod
    def from_duckdb(cls, text: str) -> ColumnType:
        """Return the Snowflake type that describes a DuckDB result column."""
        word = text.upper()
        if word in _DUCKDB_INTEGERS:
            return NUMBER
        match = _DECIMAL.fullmatch(word)
        if match:
            return cls("NUMBER", precision=int(match[1]), scale=int(match[2]))
        other = "OBJECT" if word.startswith(("STRUCT", "MAP")) else "VARCHAR"
        kind = _FROM_DUCKDB.get(word, "ARRAY" if word.endswith("[]") else other)
        if kind == "VARCHAR":
            return TEXT
        if kind == "BINARY":
            return cls("BINARY", length=MAX_BINARY)
        return cls(kind, precision=9 if kind.startswith("TIME") else None)


def _size(node: exp.DataType, param: exp.DataTypeParam) -> int:
    try:
        return int(param.this.name)
    except ValueError as error:
        raise compilation_error(f"invalid size in data type {node.sql(dialect='snowflake')}.") from error


def _length(kind: str, sizes: Sequence[int], default: int) -> int:
    length = sizes[0] if sizes else default
    if not 1 <= length <= _LARGEST[kind]:
        raise compilation_error(f"{kind} has a length of 1 to {_LARGEST[kind]}, not {length}.")
    return length


NUMBER = ColumnType("NUMBER", precision=38, scale=0)
TEXT = ColumnType("VARCHAR", length=MAX_VARCHAR)
BOOLEAN = ColumnType("BOOLEAN")
TIMESTAMP_LTZ = ColumnType("TIMESTAMP_LTZ", precision=9)


# -- What the service knows about a table beyond DuckDB's catalog: Snowflake types, defaults, nullability --

# Between the name of a temporary table and the id of its session; no client writes a control character.
TEMPORARY = "\x01"
# Keys that a column may have part in.
PRIMARY, UNIQUE = "PRIMARY", "UNIQUE"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as Snowflake describes it.

    :param nullable: False for NOT NULL.
    :param default: DuckDB expression, or None; sequences behind AUTOINCREMENT appear as ``nextval``.
    :param default_text: the default as the statement wrote it, for DESCRIBE TABLE.
    :param keys: :data:`PRIMARY` and :data:`UNIQUE`, where the column has part in such a key.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    default: str | None = None
    default_text: str | None = None
    keys: frozenset[str] = frozenset()

    def ddl(self) -> str:
        """Return the column's part of a DuckDB CREATE TABLE."""
        parts = [quote(self.name), self.type.duckdb]
        if self.default is not None:
            parts.append(f"DEFAULT {self.default}")
        if not self.nullable:
            parts.append("NOT NULL")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class ClusteringKey:
    """Clustering key of a table.

    :param text: as SHOW TABLES prints it, ``LINEAR(A, TO_DATE(B))``.
    :param expressions: DuckDB expressions over the table's columns, in order.
    """

    text: str
    expressions: tuple[str, ...]

    def check(self, columns: Sequence[Column]) -> str:
        """Return a statement that fails when a table with these columns cannot have the key."""
        empty = ", ".join(f"CAST(NULL AS {c.type.duckdb}) AS {quote(c.name)}" for c in columns)
        return f"DESCRIBE SELECT {', '.join(self.expressions)} FROM (SELECT {empty})"  # noqa: S608


def new_folder() -> str:
    """Return a name for the folder of a new table's stage."""
    return f"table-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    :param columns: in order.
    :param schema_evolution: rows may add columns and drop NOT NULL.
    :param home: the engine's names of database and schema, which a rename does not change; None when they are
        the same.
    :param engine_name: the engine's name of the table where another one has the same letters in another case;
        None when it is the same.
    :param folder: where the files of the table's stage are, whatever the table's name is.
    """

    database: str
    schema: str
    name: str
    columns: tuple[Column, ...]
    created_on_ms: int
    error_logging: bool = False
    schema_evolution: bool = False
    clustering_key: ClusteringKey | None = None
    home: tuple[str, str] | None = None
    engine_name: str | None = None
    folder: str = field(default_factory=new_folder)

    @property
    def engine(self) -> str:
        """The engine's own name of the table in its schema."""
        return self.engine_name or self.name

    @property
    def path(self) -> str:
        """Quoted, fully qualified name in the engine."""
        return quote_path(*(self.home or (self.database, self.schema)), self.engine)

    @property
    def is_temporary(self) -> bool:
        """True for a table that only one session knows, and that goes with it."""
        return TEMPORARY in self.name

    def __str__(self) -> str:
        """Name as Snowflake's messages print it."""
        return f"{self.database}.{self.schema}.{self.name.partition(TEMPORARY)[0]}"
