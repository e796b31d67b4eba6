"""Views, sequences, comments and table options of one database: a hidden table, and its picture in memory."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from airflow_provider_snowpipe.local.engine.rename import Rename

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.names import Names

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

    :param names: names of the database and its schemas.
    :param cursor: the database's own cursor.
    :param write_lock: the database's write lock.
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

    def put(self, new: SchemaObject) -> None:
        """Add an object, in the place of one of the same name."""
        with self._lock:
            if new.schema:
                self._names.require_schema(new.schema)
            self._remove(new.kind, new.schema, new.name)
            self._cursor.execute(
                f"INSERT INTO {self._schema}.schema_objects VALUES (?, ?, ?, ?, ?)",
                [new.kind, new.schema, new.name, new.created_on_ms, json.dumps(dict(new.definition))],
            )
            self._objects = {**self._objects, (new.kind, new.schema, new.name): new}

    def remove(self, kind: str, schema: str, name: str) -> None:
        """Forget an object; an absent one is no error."""
        with self._lock:
            self._remove(kind, schema, name)
            self._objects = {key: v for key, v in self._objects.items() if key != (kind, schema, name)}

    def forget_table(self, schema: str, table: str) -> None:
        """Forget comments and options of a table that was dropped, and of its columns."""
        for known in self._of_table(schema, table):
            self.remove(known.kind, schema, known.name)

    def rename_table(self, schema: str, old: str, new: str) -> None:
        """Keep comments and options of a table under its new name in the same schema."""
        for known in self._of_table(schema, old):
            name = new if known.kind in _OF_TABLES else column_key(new, json.loads(known.name)[1])
            self.remove(known.kind, schema, known.name)
            self.put(dataclasses.replace(known, name=name))

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

    def set_comment(self, kind: str, schema: str, name: str, text: str, now_ms: int) -> None:
        """Set the comment on an object; an empty text removes it."""
        if text:
            self.put(SchemaObject(f"COMMENT {kind}", schema, name, now_ms, {"text": text}))
        else:
            self.remove(f"COMMENT {kind}", schema, name)

    def _remove(self, kind: str, schema: str, name: str) -> None:
        self._cursor.execute(
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
