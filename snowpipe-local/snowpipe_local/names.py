# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""Names of one database, its schemas and its streaming pipes, and what a new name changes.

The engine's names for databases and schemas never change. A new name is one row in a hidden table, so that a
rename is one transaction in one file and moves neither rows nor files: DuckDB can neither rename a schema nor
move a table to another one (DuckDB 2.0.0).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import ClassVar, NamedTuple

import duckdb

from snowpipe_local.errors import object_exists, object_missing
from snowpipe_local.tables import find_name, quote_path

# -- The change of a database's or schema's name, as everything that holds such a name sees it -----------


@dataclass(frozen=True, slots=True)
class Rename:
    """A database or a schema gets another name.

    :param old: exact path as it was: database, or database and schema.
    :param new: exact path as it is to be, of the same length.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``DATABASE`` or ``SCHEMA``."""
        return "DATABASE" if len(self.old) == 1 else "SCHEMA"

    def moved(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return where a path from the database down is afterwards."""
        if path[: len(self.old)] != self.old:
            return path
        return self.new + path[len(self.old) :]

    def moved_object(self, path: tuple[str, str, str]) -> tuple[str, str, str]:
        """Return where an object of a schema is afterwards."""
        database, schema, name = self.moved(path)
        return database, schema, name


# -- What a custom streaming pipe does with a row: transformations, or columns matched by name -----------


@dataclass(frozen=True, slots=True)
class PipeDefinition:
    """The COPY statement of a custom pipe, compiled.

    :param columns: columns that the expressions fill, in order; empty for a pipe that matches names.
    :param expressions: one DuckDB expression a column, over the row ``j`` as JSON.
    :param case_sensitive: a matching pipe compares names with their case.
    :param cluster_at_ingest_time: rows of a commit are sorted by the clustering key of the table.
    """

    text: str
    columns: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    case_sensitive: bool = False
    cluster_at_ingest_time: bool = False

    def to_json(self) -> str:
        """Return the form that the hidden table keeps."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PipeDefinition:
        """Read the form that :meth:`to_json` writes."""
        stored = json.loads(text)
        lists = {name: tuple(stored[name]) for name in ("columns", "expressions")}
        return cls(**{**stored, **lists})


DEFAULT_PIPE_SUFFIX = "-STREAMING"


class PipeKey(NamedTuple):
    """Exact schema and name of a pipe inside one database."""

    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe and the table it fills.

    :param encryption_key: base64 of the 32-byte AES key for file mode.
    :param definition: what a custom pipe does; None for a default pipe.
    """

    comment: ClassVar[str | None] = None
    notification_channel: ClassVar[str | None] = None
    integration: ClassVar[str | None] = None
    error_integration: ClassVar[str | None] = None
    pattern: ClassVar[str | None] = None

    key: PipeKey
    table: str
    encryption_key: str = field(repr=False)
    created_on_ms: int
    definition: PipeDefinition | None = None

    @property
    def text(self) -> str | None:
        """The COPY statement of a custom pipe."""
        return None if self.definition is None else self.definition.text

    def seen_as(self, database: str) -> tuple[str, str, str, str]:
        """Return kind and path of what it shows with: a default pipe has no grants but those of its table."""
        kind, name = ("TABLE", self.table) if self.definition is None else ("PIPE", self.key.name)
        return kind, database, self.key.schema, name

    def moved(self, change: Rename) -> Pipe:
        """Return the pipe as it is after a rename of its database or schema."""
        _, schema = change.moved((change.old[0], self.key.schema))
        return dataclasses.replace(self, key=PipeKey(schema, self.key.name))


# -- Names of one database and its schemas, apart from the engine's names for them, which never change ---

HIDDEN_SCHEMA = "_snowpipe"
# Nobody's to give: Snowflake's own schema of every database, and the hidden one here.
_RESERVED_SCHEMAS = ("INFORMATION_SCHEMA", HIDDEN_SCHEMA)
_DDL = """
CREATE SCHEMA IF NOT EXISTS {s};
CREATE TABLE IF NOT EXISTS {s}.database_name (database_name VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.schema_homes (schema_name VARCHAR, engine_name VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.unfinished_renames (old_path VARCHAR[], new_path VARCHAR[]);
"""


class Names:
    """The names of one database and of its schemas.

    Threading: changes hold the database's write lock; the dictionary is replaced under it, read without it.

    :param default: the database's name, unless it was renamed.
    """

    def __init__(self, engine: str, default: str, cursor: duckdb.DuckDBPyConnection) -> None:
        self.engine = engine
        self.hidden_schema = quote_path(engine, HIDDEN_SCHEMA)
        self._cursor = cursor
        cursor.execute(_DDL.format(s=self.hidden_schema))
        given = cursor.execute(f"SELECT database_name FROM {self.hidden_schema}.database_name").fetchall()
        self.database = str(given[0][0]) if given else default
        self._homes = self._load_homes()

    @property
    def schemas(self) -> frozenset[str]:
        """The schemas that a user sees."""
        return frozenset(self._homes)

    def home(self, schema: str) -> tuple[str, str]:
        """Return the engine's names of the database and of one of its schemas."""
        return self.engine, self._homes.get(schema, schema)

    def hidden(self, relation: str) -> str:
        """Return the quoted path of an object in the hidden schema."""
        return f"{self.hidden_schema}.{quote_path(relation)}"

    def require_schema(self, schema: str) -> None:
        """Raise unless a schema exists.

        :raises SqlError: 002003.
        """
        if schema not in self._homes:
            raise object_missing("Schema", f"{self.database}.{schema}")

    def create_schema(self, name: str) -> None:
        """Create a schema in the open transaction of the cursor, and know it.

        :raises SqlError: when it exists.
        """
        if find_name(name, self._homes) is not None:
            raise object_exists(name)
        engine = free_name(name, self._homes.values())
        self._cursor.execute(f"CREATE SCHEMA {quote_path(self.engine, engine)}")
        if engine != name:
            self._cursor.execute(
                f"INSERT INTO {self.hidden_schema}.schema_homes VALUES (?, ?)", [name, engine]
            )

    def drop_schema(self, name: str) -> None:
        """Drop a schema with what the engine has in it, in the open transaction of the cursor."""
        self._cursor.execute(f"DROP SCHEMA {quote_path(*self.home(name))} CASCADE")
        self._cursor.execute(f"DELETE FROM {self.hidden_schema}.schema_homes WHERE schema_name = ?", [name])

    def reload(self) -> None:
        """Read again which schemas there are, after a transaction that created or dropped one."""
        self._homes = self._load_homes()

    def check_free(self, change: Rename) -> None:
        """Raise when a schema cannot get its new name.

        :raises SqlError: 002002 when the name is taken, 002003 when there is no such schema.
        """
        if change.kind == "SCHEMA":
            old, new = change.old[1], change.new[1]
            self.require_schema(old)
            if find_name(new, (*_RESERVED_SCHEMAS, *(self.schemas - {old}))) is not None or old == new:
                raise object_exists(new)

    def write(self, change: Rename) -> None:
        """Write a new name, in the open transaction of the cursor: the one step that makes it count.

        Every hidden table that names schemas is changed. The rename stays noted until :meth:`finish`.
        """
        if change.kind == "DATABASE":
            self._cursor.execute(f"DELETE FROM {self.hidden_schema}.database_name")
            self._cursor.execute(
                f"INSERT INTO {self.hidden_schema}.database_name VALUES (?)", [change.new[0]]
            )
        else:
            self._write_schema(change.old[1], change.new[1])
        self._cursor.execute(
            f"INSERT INTO {self.hidden_schema}.unfinished_renames VALUES (?, ?)",
            [list(change.old), list(change.new)],
        )

    def follow(self, change: Rename) -> None:
        """Know the new name, once it is committed."""
        self.database = change.new[0]
        self._homes = {
            change.moved((change.old[0], schema))[1]: engine for schema, engine in self._homes.items()
        }

    def unfinished(self) -> list[Rename]:
        """Return the renames that not everything outside of this file has followed."""
        rows = self._cursor.execute(
            f"SELECT old_path, new_path FROM {self.hidden_schema}.unfinished_renames ORDER BY rowid"
        ).fetchall()
        return [Rename(tuple(old), tuple(new)) for old, new in rows]

    def finish(self) -> None:
        """Note that everything has followed the new names."""
        self._cursor.execute(f"DELETE FROM {self.hidden_schema}.unfinished_renames")

    def _write_schema(self, old: str, new: str) -> None:
        self._cursor.execute(f"DELETE FROM {self.hidden_schema}.schema_homes WHERE schema_name = ?", [old])
        naming = self._cursor.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = ? "
            "AND schema_name = ? AND column_name IN ('schema_name', 'pipe_schema')",
            [self.engine, HIDDEN_SCHEMA],
        ).fetchall()
        for relation, column in naming:
            self._cursor.execute(
                f"UPDATE {self.hidden(relation)} SET {column} = ? WHERE {column} = ?", [new, old]
            )
        _, engine = self.home(old)
        self._cursor.execute(f"INSERT INTO {self.hidden_schema}.schema_homes VALUES (?, ?)", [new, engine])

    def _load_homes(self) -> Mapping[str, str]:
        given = {
            engine: name
            for name, engine in self._cursor.execute(
                f"SELECT schema_name, engine_name FROM {self.hidden_schema}.schema_homes"
            ).fetchall()
        }
        rows = self._cursor.execute(
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ? AND NOT internal", [self.engine]
        ).fetchall()
        return {given.get(name, name): name for (name,) in rows if name not in {HIDDEN_SCHEMA, "main"}}


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return an engine name: the name itself, or with ``+2``, ``+3`` .. while something renamed has it.

    :param taken: engine names in use; the engine ignores case.
    """
    used = {other.upper() for other in taken}
    candidates = chain([name], (f"{name}+{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate.upper() not in used)
