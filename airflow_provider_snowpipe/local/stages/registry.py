"""Named stages and file formats of one database, and the files of its stages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import duckdb

from airflow_provider_snowpipe.local.engine.names import Names, Rename
from airflow_provider_snowpipe.local.engine.store import Definitions
from airflow_provider_snowpipe.local.stages.definition import FileFormatDefinition, StageDefinition
from airflow_provider_snowpipe.local.stages.storage import Storage, table_identity

Staged = TypeVar("Staged", StageDefinition, FileFormatDefinition)


class Stages:
    """Stages and file formats of one database.

    :param storage: files of internal stages.
    """

    def __init__(
        self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock, storage: Storage
    ) -> None:
        self._names = names
        self._storage = storage
        self._lock = write_lock
        given = (names, cursor, write_lock)
        self.stages = Definitions(StageDefinition, StageDefinition.from_row, *given)
        self.formats = Definitions(FileFormatDefinition, FileFormatDefinition.from_row, *given)

    def of(self, kind: type[Staged]) -> Definitions[Staged]:
        """Return those of one kind that outlive their session."""
        known: Any = self.stages if kind is StageDefinition else self.formats
        return cast("Definitions[Staged]", known)

    def put(self, new: Staged, *, replace: bool) -> None:
        """Create one; the files of an internal stage that it replaces are deleted.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            old = self.of(type(new)).put(new, replace=replace)
            self._storage.create(*new.folders)
            self._storage.remove(old.folders if old is not None else ())

    def drop(self, known: Staged) -> None:
        """Drop one, a stage with its internal files."""
        with self._lock:
            self.of(type(known)).drop(known)
            self._storage.remove(known.folders)

    def drop_schema(self, schema: str) -> None:
        """Drop the stages and file formats of a schema."""
        for known in (*self.stages, *self.formats):
            if known.schema == schema:
                self.drop(known)

    def drop_table(self, schema: str, table: str) -> None:
        """Delete the files of a table's stage."""
        self._storage.remove([table_identity(*self._names.home(schema), table)])

    def rename_table(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Keep the files of a table's stage when the table gets another name in its schema.

        :param old: schema and name as they were.
        :param new: schema and name as they are now.
        """
        home = self._names.home(new[0])
        self._storage.rename(table_identity(*home, old[1]), table_identity(*home, new[1]))

    def follow(self, change: Rename) -> Callable[[], None]:
        """Follow a new name of a database or schema, as :meth:`Definitions.follow` does."""
        followers = self.stages.follow(change), self.formats.follow(change)

        def follow() -> None:
            for each in followers:
                each()

        return follow


class TemporaryObjects:
    """Temporary stages and file formats of one session; they hide permanent ones of the same name."""

    def __init__(self) -> None:
        self._known: dict[type[Any], dict[tuple[str, str, str], Any]] = {}

    def of(self, kind: type[Staged]) -> dict[tuple[str, str, str], Staged]:
        """Return those of one kind, by database, schema and name."""
        return self._known.setdefault(kind, {})

    def follow(self, change: Rename) -> None:
        """Keep the objects when their database or schema, or that of a file format, gets another name."""
        for kind, known in self._known.items():
            moved = [each.moved(change) for each in known.values()]
            self._known[kind] = {each.path: each for each in moved}

    def clear(self, storage: Storage) -> None:
        """Drop everything, at the end of the session."""
        for known in self._known.values():
            storage.remove(folder for each in known.values() for folder in each.folders)
        self._known.clear()
