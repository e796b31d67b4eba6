"""The streaming pipes of one database: default pipes on first use, custom ones by CREATE PIPE."""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import duckdb

from airflow_provider_snowpipe.local.engine.pipe import DEFAULT_PIPE_SUFFIX, Pipe, PipeDefinition, PipeKey
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.store import transact
from airflow_provider_snowpipe.local.errors import Refusal, object_exists, object_missing
from airflow_provider_snowpipe.local.identifiers import find_name

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.database import Database

PIPE_MISSING = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
TABLE_MISSING = "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
_MISSING_TEXT = "does not exist or not authorized"


class Pipes:
    """The streaming pipes of one database; iterating gives all of them, by schema and name.

    Default pipes are there from their first use on. Threading: writes hold the database's write lock; the
    dictionary is replaced under it and read without it.

    :param database: whose tables the pipes fill and whose channels go with them.
    :param cursor: the database's own cursor.
    """

    def __init__(self, database: Database, cursor: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._cursor = cursor
        self._pipes = {pipe.key: pipe for pipe in database.store.load_pipes(cursor)}

    def __iter__(self) -> Iterator[Pipe]:
        return iter(sorted(self._pipes.values(), key=lambda pipe: (pipe.key.schema, pipe.key.name)))

    def find(self, key: PipeKey) -> Pipe | None:
        """Return a pipe by its exact name, or None."""
        return self._pipes.get(key)

    def resolve(self, schema: str, name: str) -> Pipe:
        """Return a pipe; the default pipe ``<TABLE>-STREAMING`` is created on first use.

        :param schema: schema, case-insensitive.
        :param name: pipe, case-insensitive.
        :raises Refusal: 404 with the code of what is missing.
        """
        exact_schema = find_name(schema, self._database.schemas)
        if exact_schema is None:
            raise Refusal(404, PIPE_MISSING, f"schema {self._database.name}.{schema} {_MISSING_TEXT}")
        known = {key.name: pipe for key, pipe in self._pipes.items() if key.schema == exact_schema}
        exact = find_name(name, known)
        # A table of exactly this name goes before the pipe of one in another case.
        is_of_table = name.removesuffix(DEFAULT_PIPE_SUFFIX) in self._database.tables.names(exact_schema)
        if exact is not None and (exact == name or not is_of_table):
            return known[exact]
        return self._create_default(exact_schema, name)

    def current(self, pipe: Pipe) -> Pipe:
        """Return the pipe that has a pipe's name now; the caller holds the write lock.

        :raises Refusal: 404 when it was dropped.
        """
        # A pipe that was replaced meanwhile has its channels on the new one.
        found = self._pipes.get(pipe.key)
        if found is None and pipe.definition is None:
            # Its table was replaced between the look-up of the pipe and this call.
            found = self._create_default(pipe.key.schema, pipe.key.name)
        if found is None:
            raise Refusal(404, PIPE_MISSING, f"pipe {pipe.key.name} was dropped")
        return found

    def create(self, key: PipeKey, table: str, definition: PipeDefinition, *, replace: bool) -> None:
        """Create a custom pipe; replacing one destroys its channels, as in Snowflake.

        :param table: exact name of the table that it fills, in the same schema.
        :raises SqlError: when the pipe exists, or the table does not.
        """
        with self._database.write_lock:
            exists = key in self._pipes
            if exists and not replace:
                raise object_exists(key.name)
            if self._database.tables.find(key.schema, table) is None:
                raise object_missing("Table", f"{self._database.name}.{key.schema}.{table}")
            pipe = Pipe(key, table, _new_key(), self._database.clock.now_ms(), definition)
            transact(self._cursor, lambda: self._replace(pipe))
            if exists:
                self._forget({key})
            self._pipes = {**self._pipes, key: pipe}

    def drop(self, key: PipeKey) -> None:
        """Drop a custom pipe with its channels.

        :raises SqlError: when it does not exist.
        """
        with self._database.write_lock:
            if key not in self._pipes:
                raise object_missing("Pipe", f"{self._database.name}.{key.schema}.{key.name}")
            transact(self._cursor, lambda: self._database.store.remove_pipe(self._cursor, key))
            self._forget({key})

    def forget_table(self, schema: str, table: str) -> None:
        """Forget the pipes of a table that is gone, with their channels; the caller holds the write lock."""
        self._forget(
            {key for key, pipe in self._pipes.items() if key.schema == schema and pipe.table == table}
        )

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema; the caller holds the write lock."""
        moved: list[Pipe] = []
        for pipe in self._pipes.values():
            _, schema = change.moved((change.old[0], pipe.key.schema))
            moved.append(dataclasses.replace(pipe, key=PipeKey(schema, pipe.key.name)))
        self._pipes = {pipe.key: pipe for pipe in moved}

    def _replace(self, pipe: Pipe) -> None:
        self._database.store.remove_pipe(self._cursor, pipe.key)
        self._database.store.add_pipe(self._cursor, pipe)

    def _create_default(self, schema: str, name: str) -> Pipe:
        if not name.upper().endswith(DEFAULT_PIPE_SUFFIX):
            raise Refusal(404, PIPE_MISSING, f"pipe {self._database.name}.{schema}.{name} {_MISSING_TEXT}")
        wanted = name[: -len(DEFAULT_PIPE_SUFFIX)]
        with self._database.write_lock:
            table = find_name(wanted, self._database.tables.names(schema))
            if table is None:
                place = f"{self._database.name}.{schema}.{wanted}"
                raise Refusal(404, TABLE_MISSING, f"table {place} {_MISSING_TEXT}")
            key = PipeKey(schema, table + DEFAULT_PIPE_SUFFIX)
            if key not in self._pipes:
                pipe = Pipe(key, table, _new_key(), self._database.clock.now_ms())
                self._database.store.add_pipe(self._cursor, pipe)
                self._pipes = {**self._pipes, key: pipe}
            return self._pipes[key]

    def _forget(self, gone: set[PipeKey]) -> None:
        self._pipes = {key: pipe for key, pipe in self._pipes.items() if key not in gone}
        self._database.channels.forget(gone)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
