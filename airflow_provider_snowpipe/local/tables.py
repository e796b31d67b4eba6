"""What the service knows about a table beyond DuckDB's catalog: Snowflake types, defaults, nullability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_snowpipe.local.identifiers import quote, quote_path
from airflow_provider_snowpipe.local.types import ColumnType

# Between the name of a temporary table and the id of its session; no client writes a control character.
TEMPORARY = "\x01"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as Snowflake describes it.

    :param name: exact name.
    :param type: Snowflake type.
    :param nullable: False for NOT NULL.
    :param default: DuckDB expression, or None; sequences behind AUTOINCREMENT appear as ``nextval``.
    :param default_text: the default as the statement wrote it, for DESCRIBE TABLE.
    """

    name: str
    type: ColumnType
    nullable: bool = True
    default: str | None = None
    default_text: str | None = None

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


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    :param database: exact database name.
    :param schema: exact schema name.
    :param name: exact table name.
    :param columns: in order.
    :param created_on_ms: creation time, epoch milliseconds.
    :param error_logging: rejected rows are kept for ERROR_TABLE.
    :param schema_evolution: rows may add columns and drop NOT NULL.
    :param clustering_key: of CLUSTER BY, or None.
    :param home: the engine's names of database and schema, which a rename does not change; None when they are
        the same.
    :param engine_name: the engine's name of the table where another one has the same letters in another case;
        None when it is the same.
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
