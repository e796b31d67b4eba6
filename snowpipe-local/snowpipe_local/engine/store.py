# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""Hidden schema of one database file: tables, columns, pipes, channels, rejected rows, and further objects.

It lives in the same DuckDB file as the rows because one DuckDB transaction can write to one file only; that
is what makes "rows and token in one commit" possible.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from snowpipe_local.engine.channel import Committed
from snowpipe_local.names import Names, Pipe, PipeDefinition, PipeKey, Rename
from snowpipe_local.tables import ClusteringKey, Column, ColumnType, Table

# -- Views, sequences, comments and table options of one database: a hidden table, and its picture in memory -

VIEW, SEQUENCE, TABLE_OPTIONS = "VIEW", "SEQUENCE", "TABLE OPTIONS"
_OF_TABLES = ("COMMENT TABLE", TABLE_OPTIONS)
_DDL = """CREATE TABLE IF NOT EXISTS {s}.schema_objects (kind VARCHAR, schema_name VARCHAR,
    object_name VARCHAR, created_on_ms BIGINT, definition VARCHAR)"""


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """One object that is nothing but its definition.

    :param kind: ``VIEW``, ``SEQUENCE``, ``TABLE OPTIONS``, or ``COMMENT TABLE`` and the like.
    :param schema: exact schema name; empty for the comment of a database.
    :param name: exact name; of a column's comment, table and column as a JSON list.
    :param created_on_ms: epoch milliseconds; 0 of a comment.
    :param definition: values that JSON can hold.
    """

    kind: str
    schema: str
    name: str
    created_on_ms: int
    definition: Mapping[str, Any]


class SchemaObjects:
    """The objects of one database.

    Threading: writes hold the database's write lock; the dictionary is replaced under it and read without it.
    """

    def __init__(self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock) -> None:
        self._cursor = cursor
        self._lock = write_lock
        self._names = names
        self._schema = names.hidden_schema
        cursor.execute(_DDL.format(s=self._schema))
        rows = cursor.execute(f"SELECT * FROM {self._schema}.schema_objects").fetchall()
        self._objects = {
            (kind, schema, name): SchemaObject(kind, schema, name, created, json.loads(definition))
            for kind, schema, name, created, definition in rows
        }

    def find(self, kind: str, schema: str, name: str) -> SchemaObject | None:
        """Return an object by its exact name, or None."""
        return self._objects.get((kind, schema, name))

    def table_option(self, schema: str, table: str, option: str) -> Any:
        """Return what is kept of a table beside its columns, None where nothing is.

        :param option: ``iceberg``, ``stage`` or ``transient``.
        """
        known = self.find(TABLE_OPTIONS, schema, table)
        return None if known is None else known.definition.get(option)

    def of(self, kind: str, schema: str) -> list[SchemaObject]:
        """Return the objects of a kind in a schema, by name."""
        found = [known for known in self._objects.values() if (known.kind, known.schema) == (kind, schema)]
        return sorted(found, key=lambda known: known.name)

    def all(self, kind: str) -> list[SchemaObject]:
        """Return the objects of a kind, by schema and name."""
        found = [known for known in self._objects.values() if known.kind == kind]
        return sorted(found, key=lambda known: (known.schema, known.name))

    def put(self, new: SchemaObject) -> None:
        """Add an object, or replace one of the same name."""
        with self._lock:
            if new.schema:
                self._names.require_schema(new.schema)
            self._delete(self._cursor, new.kind, new.schema, new.name)
            self._insert(self._cursor, new)
            self._objects = {**self._objects, (new.kind, new.schema, new.name): new}

    def remove(self, kind: str, schema: str, name: str) -> None:
        """Forget an object; an absent one is not an error."""
        with self._lock:
            self._delete(self._cursor, kind, schema, name)
            self._objects = {key: v for key, v in self._objects.items() if key != (kind, schema, name)}

    def moved_tables(
        self, cursor: duckdb.DuckDBPyConnection, schema: str, names: Mapping[str, str | None]
    ) -> Callable[[], None]:
        """Write the new names of tables in one schema for what is kept of them; None of a table that is gone.

        :returns: makes the picture in memory follow, once the open transaction of the cursor is committed.
        """
        gone = [known for old in names for known in self._of_table(schema, old)]
        made = []
        for known in gone:
            own = known.kind in _OF_TABLES
            table, column = (known.name, "") if own else json.loads(known.name)
            name = names[table]
            if name is not None:
                made.append(dataclasses.replace(known, name=name if own else column_key(name, column)))
        for known in gone:
            self._delete(cursor, known.kind, schema, known.name)
        for known in made:
            self._insert(cursor, known)

        def follow() -> None:
            left = {(known.kind, known.schema, known.name) for known in gone}
            kept = {key: known for key, known in self._objects.items() if key not in left}
            self._objects = kept | {(known.kind, known.schema, known.name): known for known in made}

        return follow

    def _of_table(self, schema: str, table: str) -> list[SchemaObject]:
        return [
            known
            for known in self._objects.values()
            if known.schema == schema
            and (
                (known.kind in _OF_TABLES and known.name == table)
                or (known.kind == "COMMENT COLUMN" and json.loads(known.name)[0] == table)
            )
        ]

    def drop_schema(self, schema: str) -> None:
        """Forget everything in a schema."""
        with self._lock:
            self._cursor.execute(f"DELETE FROM {self._schema}.schema_objects WHERE schema_name = ?", [schema])
            self._objects = {key: v for key, v in self._objects.items() if key[1] != schema}

    def follow(self, change: Rename) -> Callable[[], None]:
        """Write what a new name of the database or a schema changes beside the schemas' names.

        :returns: makes the picture in memory follow, once the open transaction is committed.
        """
        self._cursor.execute(
            f"UPDATE {self._schema}.schema_objects SET object_name = ? WHERE kind = ? AND object_name = ?",
            [change.new[-1], f"COMMENT {change.kind}", change.old[-1]],
        )
        moved = [_moved(known, change) for known in self._objects.values()]

        def follow() -> None:
            self._objects = {(known.kind, known.schema, known.name): known for known in moved}

        return follow

    def comment(self, kind: str, schema: str, name: str) -> str:
        """Return the comment on an object, or an empty text."""
        known = self.find(f"COMMENT {kind}", schema, name)
        return str(known.definition["text"]) if known is not None else ""

    def set_comment(self, kind: str, schema: str, name: str, text: str) -> None:
        """Set the comment on an object; an empty text removes it."""
        if text:
            self.put(SchemaObject(f"COMMENT {kind}", schema, name, 0, {"text": text}))
        else:
            self.remove(f"COMMENT {kind}", schema, name)

    def _insert(self, cursor: duckdb.DuckDBPyConnection, new: SchemaObject) -> None:
        cursor.execute(
            f"INSERT INTO {self._schema}.schema_objects VALUES (?, ?, ?, ?, ?)",
            [new.kind, new.schema, new.name, new.created_on_ms, json.dumps(dict(new.definition))],
        )

    def _delete(self, cursor: duckdb.DuckDBPyConnection, kind: str, schema: str, name: str) -> None:
        cursor.execute(
            f"DELETE FROM {self._schema}.schema_objects WHERE kind = ? AND schema_name = ? "
            "AND object_name = ?",
            [kind, schema, name],
        )


def _moved(known: SchemaObject, change: Rename) -> SchemaObject:
    schema = change.moved((change.old[0], known.schema))[-1] if known.schema else ""
    renamed = (known.kind, known.name) == (f"COMMENT {change.kind}", change.old[-1])
    name = change.new[-1] if renamed else known.name
    return dataclasses.replace(known, schema=schema, name=name)


def column_key(table: str, column: str) -> str:
    """Return the name under which the comment of a column is kept."""
    return json.dumps([table, column])


# -- Hidden schema of one database file: tables, columns, pipes, channels and rejected rows --------------

_STORE_DDL = """
CREATE SEQUENCE IF NOT EXISTS {s}.ids;
CREATE TABLE IF NOT EXISTS {s}.tables (schema_name VARCHAR, table_name VARCHAR, created_on_ms BIGINT,
    error_logging BOOLEAN, schema_evolution BOOLEAN, cluster_by VARCHAR, cluster_by_sql VARCHAR[],
    engine_name VARCHAR, folder VARCHAR, altered_on_ms BIGINT);
CREATE TABLE IF NOT EXISTS {s}.intents (note VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.columns (schema_name VARCHAR, table_name VARCHAR, ordinal INTEGER,
    column_name VARCHAR, type_text VARCHAR, nullable BOOLEAN, default_sql VARCHAR, default_text VARCHAR,
    keys VARCHAR[]);
CREATE TABLE IF NOT EXISTS {s}.pipes (schema_name VARCHAR, pipe_name VARCHAR, table_name VARCHAR,
    encryption_key VARCHAR, created_on_ms BIGINT, definition VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.channels (schema_name VARCHAR, pipe_name VARCHAR, channel_name VARCHAR,
    channel_id BIGINT, client_sequencer BIGINT, row_sequencer BIGINT, offset_token VARCHAR,
    rows_inserted BIGINT, rows_parsed BIGINT, rows_error_count BIGINT, last_error_offset_upper_bound VARCHAR,
    last_error_message VARCHAR, last_error_timestamp_ms BIGINT, latency_ms BIGINT, last_request_id VARCHAR,
    created_on_ms BIGINT, active_on_ms BIGINT);
CREATE TABLE IF NOT EXISTS {s}.rejected_rows (recorded_on_ms BIGINT, schema_name VARCHAR, pipe_name VARCHAR,
    table_name VARCHAR, channel_name VARCHAR, offset_token_lower_bound VARCHAR,
    offset_token_upper_bound VARCHAR,
    row_in_append BIGINT, error_message VARCHAR, payload BLOB);
"""

_COMMITTED_FIELDS = tuple(field.name for field in dataclasses.fields(Committed))
_COMMITTED_TYPES = pa.schema(
    [
        (field.name, pa.string() if str(field.type).startswith("str") else pa.int64())
        for field in dataclasses.fields(Committed)
    ]
)
_MUTABLE = tuple(name for name in _COMMITTED_FIELDS if name not in {"channel_id", "created_on_ms"})


class Store:
    """Reads and writes the hidden schema of one attached database.

    Methods that write expect the caller to hold the database's write lock and, for more than one call, an
    open transaction on the given cursor.

    :param names: names of the database, of its schemas, and of the hidden one.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._schema = names.hidden_schema

    def create(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Create the hidden tables in a new database file; harmless on an old one."""
        cursor.execute(_STORE_DDL.format(s=self._schema))

    def load_tables(self, cursor: duckdb.DuckDBPyConnection) -> list[Table]:
        """Return all tables with their columns."""
        columns: dict[tuple[str, str], list[Column]] = {}
        for schema, table, name, kind, nullable, default, text, keys in cursor.execute(
            f"SELECT schema_name, table_name, column_name, type_text, nullable, default_sql, default_text, "
            f"keys FROM {self._schema}.columns ORDER BY ordinal"
        ).fetchall():
            column = Column(name, ColumnType.from_text(kind), nullable, default, text, frozenset(keys))
            columns.setdefault((schema, table), []).append(column)
        tables = cursor.execute(
            f"SELECT schema_name, table_name, created_on_ms, error_logging, schema_evolution, cluster_by, "
            f"cluster_by_sql, engine_name, folder FROM {self._schema}.tables"
        ).fetchall()
        return [
            Table(
                self._names.database, schema, name, tuple(columns[schema, name]), created, logging, evolution,
                None if key is None else ClusteringKey(key, tuple(expressions)),
                self._names.home(schema), engine_name, folder,
            )
            for schema, name, created, logging, evolution, key, expressions, engine_name, folder in tables
        ]  # fmt: skip

    def add_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Record a table that was just created."""
        key, name = table.clustering_key, (table.schema, table.name)
        self._add(
            cursor, "tables", schema_name=table.schema, table_name=table.name,
            created_on_ms=table.created_on_ms, error_logging=table.error_logging,
            schema_evolution=table.schema_evolution, cluster_by=None if key is None else key.text,
            cluster_by_sql=None if key is None else list(key.expressions), engine_name=table.engine_name,
            folder=table.folder,
        )  # fmt: skip
        cursor.executemany(
            f"INSERT INTO {self._schema}.columns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                [*name, n, c.name, str(c.type), c.nullable, c.default, c.default_text, sorted(c.keys)]
                for n, c in enumerate(table.columns)
            ],
        )

    def _add(self, cursor: duckdb.DuckDBPyConnection, relation: str, **row: Any) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        statement = f"INSERT INTO {self._schema}.{relation} ({names}) VALUES ({marks})"
        cursor.execute(statement, list(row.values()))

    def add_intent(self, cursor: duckdb.DuckDBPyConnection, note: str) -> None:
        """Record what is to be done outside of this file once the open transaction is committed."""
        self._add(cursor, "intents", note=note)

    def intents(self, cursor: duckdb.DuckDBPyConnection) -> list[str]:
        """Return what is left to be done outside of this file, after a crash."""
        return [note for (note,) in cursor.execute(f"SELECT note FROM {self._schema}.intents").fetchall()]

    def end_intents(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Forget the intents: all of it is done."""
        cursor.execute(f"DELETE FROM {self._schema}.intents")

    def update_table(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        """Record the changed columns or options of a table."""
        self._delete(cursor, "table_name", table.schema, table.name, "tables", "columns")
        self.add_table(cursor, table)

    def clear_rejected_rows(self, cursor: duckdb.DuckDBPyConnection, schema: str, table: str) -> None:
        """Forget the rejected rows of a table."""
        self._delete(cursor, "table_name", schema, table, "rejected_rows")

    def remove_table(self, cursor: duckdb.DuckDBPyConnection, schema: str, name: str) -> None:
        """Forget a table, its pipes and their channels."""
        pipes = f"(SELECT pipe_name FROM {self._schema}.pipes WHERE schema_name = ? AND table_name = ?)"
        cursor.execute(
            f"DELETE FROM {self._schema}.channels WHERE schema_name = ? AND pipe_name IN {pipes}",
            [schema, schema, name],
        )
        self._delete(cursor, "table_name", schema, name, "tables", "columns", "pipes", "rejected_rows")

    def load_pipes(self, cursor: duckdb.DuckDBPyConnection) -> list[Pipe]:
        """Return all pipes."""
        rows = cursor.execute(
            f"SELECT schema_name, pipe_name, table_name, encryption_key, created_on_ms, definition "
            f"FROM {self._schema}.pipes"
        ).fetchall()
        return [
            Pipe(PipeKey(*name), table, key, created, text and PipeDefinition.from_json(text))
            for *name, table, key, created, text in rows
        ]

    def remove_pipe(self, cursor: duckdb.DuckDBPyConnection, pipe: PipeKey) -> None:
        """Forget a pipe and its channels."""
        self._delete(cursor, "pipe_name", pipe.schema, pipe.name, "channels", "pipes")

    def _delete(
        self, cursor: duckdb.DuckDBPyConnection, column: str, schema: str, name: str, *relations: str
    ) -> None:
        for relation in relations:
            of_it = f"WHERE schema_name = ? AND {column} = ?"
            cursor.execute(f"DELETE FROM {self._schema}.{relation} {of_it}", [schema, name])

    def add_pipe(self, cursor: duckdb.DuckDBPyConnection, pipe: Pipe) -> None:
        """Record a new pipe."""
        self._add(
            cursor, "pipes", schema_name=pipe.key.schema, pipe_name=pipe.key.name, table_name=pipe.table,
            encryption_key=pipe.encryption_key, created_on_ms=pipe.created_on_ms,
            definition=None if pipe.definition is None else pipe.definition.to_json(),
        )  # fmt: skip

    def load_channels(self, cursor: duckdb.DuckDBPyConnection) -> list[tuple[PipeKey, str, Committed]]:
        """Return all channels with their durable state."""
        fields = ", ".join(_COMMITTED_FIELDS)
        rows = cursor.execute(
            f"SELECT schema_name, pipe_name, channel_name, {fields} FROM {self._schema}.channels"
        ).fetchall()
        return [(PipeKey(row[0], row[1]), row[2], Committed(*row[3:])) for row in rows]

    def add_channel(
        self, cursor: duckdb.DuckDBPyConnection, pipe: PipeKey, name: str, now_ms: int
    ) -> Committed:
        """Record a new channel, with a NULL token, and return its state."""
        row = cursor.execute(f"SELECT nextval('{self._schema.replace(chr(39), chr(39) * 2)}.ids')").fetchone()
        assert row is not None  # noqa: S101 - nextval always returns one row
        state = Committed(row[0], 0, 0, None, 0, 0, 0, None, None, None, None, None, now_ms, now_ms)
        named = {"schema_name": pipe.schema, "pipe_name": pipe.name, "channel_name": name}
        self._add(cursor, "channels", **named, **dataclasses.asdict(state))
        return state

    def update_channels(self, cursor: duckdb.DuckDBPyConnection, states: Sequence[Committed]) -> None:
        """Store the state of some channels in one statement."""
        columns = [pa.array([getattr(s, f.name) for s in states], f.type) for f in _COMMITTED_TYPES]
        cursor.register("_channel_states", pa.Table.from_arrays(columns, schema=_COMMITTED_TYPES))
        assignments = ", ".join(f"{name} = u.{name}" for name in _MUTABLE)
        cursor.execute(
            f"UPDATE {self._schema}.channels AS c SET {assignments} FROM _channel_states AS u "
            f"WHERE c.channel_id = u.channel_id"
        )

    def remove_channel(self, cursor: duckdb.DuckDBPyConnection, channel_id: int) -> None:
        """Forget a channel and its token."""
        cursor.execute(f"DELETE FROM {self._schema}.channels WHERE channel_id = ?", [channel_id])

    def add_rejected_rows(self, cursor: duckdb.DuckDBPyConnection, rows: Iterable[Sequence[Any]]) -> None:
        """Record skipped rows with payload and reason; the order of values is that of the hidden table."""
        listed = list(rows)
        if listed:
            types = (pa.int64(), *(pa.string(),) * 6, pa.int64(), pa.string(), pa.binary())
            columns = [
                pa.array(values, kind) for values, kind in zip(zip(*listed, strict=True), types, strict=True)
            ]
            cursor.register(
                "_rejected", pa.Table.from_arrays(columns, names=[f"c{i}" for i in range(len(types))])
            )
            cursor.execute(f"INSERT INTO {self._schema}.rejected_rows SELECT * FROM _rejected")
