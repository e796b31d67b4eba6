# ruff: noqa: S608 - names go through tables.quote, values are bound.
"""Stages, file formats and file pipes of one database: a hidden table each, and its picture in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import duckdb

from snowpipe_local.errors import object_exists, object_missing
from snowpipe_local.names import Names, Rename

T = TypeVar("T")


def transact(
    cursor: duckdb.DuckDBPyConnection,
    work: Callable[[], T],
    committing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> T:
    """Run work in one transaction of a cursor; nothing of it stays when it raises.

    :param committing: surrounds the COMMIT.
    """
    cursor.execute("BEGIN")
    try:
        result = work()
        with committing():
            cursor.execute("COMMIT")
    except BaseException:
        # A COMMIT that failed has ended the transaction already.
        with contextlib.suppress(duckdb.TransactionException):
            cursor.execute("ROLLBACK")
        raise
    return result


class Defined(Protocol):
    """An object that is nothing but its definition.

    :cvar WORD: how errors name the kind.
    :cvar RELATION: hidden table of the kind.
    """

    WORD: ClassVar[str]
    RELATION: ClassVar[str]

    @property
    def key(self) -> tuple[str, str]:
        """Schema and name."""

    def to_row(self) -> list[Any]:
        """Return the row of the hidden table: schema, name, time of creation and the rest as JSON."""

    @classmethod
    def from_row(cls, database: str, /, *row: Any) -> Self:
        """Read the row that :meth:`to_row` writes."""

    def moved(self, change: Rename) -> Self:
        """Return the object as it is after a rename."""


D = TypeVar("D", bound=Defined)
_COLUMNS = "schema_name VARCHAR, object_name VARCHAR, created_on_ms BIGINT, definition VARCHAR"
_IS_IT = "schema_name = ? AND object_name = ?"


class Definitions(Generic[D]):
    """The stages, file formats or file pipes of one database: a hidden table, and its picture in memory.

    Threading: writes hold the database's write lock; the dictionary is replaced under it and read without it.

    """

    def __init__(
        self, kind: type[D], names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock
    ) -> None:
        self._kind = kind
        self._names = names
        self._cursor = cursor
        self._lock = write_lock
        self._relation = f"{names.hidden_schema}.{kind.RELATION}"
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {self._relation} ({_COLUMNS})")
        rows = cursor.execute(f"SELECT * FROM {self._relation}").fetchall()
        self._known: dict[tuple[str, str], D] = {row[:2]: kind.from_row(names.database, *row) for row in rows}

    def __iter__(self) -> Iterator[D]:
        """Iterate over all of them as they are now, by schema and name."""
        return iter([known for _, known in sorted(self._known.items())])

    def find(self, schema: str, name: str) -> D | None:
        """Return one by its exact name."""
        return self._known.get((schema, name))

    def put(self, new: D, *, replace: bool, also: Callable[[], object] | None = None) -> D | None:
        """Create one, and return the one that it replaces.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            self._names.require_schema(new.key[0])
            old = self._known.get(new.key)
            if old is not None and not replace:
                raise object_exists(self._full(new.key))
            self._write(old, new, also)
            return old

    def change(self, old: D, new: D) -> None:
        """Change or rename one.

        :raises SqlError: when the new name is taken, or the old one is gone.
        """
        with self._lock:
            self.require(old.key)
            if old.key != new.key and new.key in self._known:
                raise object_exists(self._full(new.key))
            self._write(old, new, None)

    def drop(self, known: D, also: Callable[[], object] | None = None) -> None:
        """Drop one."""
        with self._lock:
            self._write(known, None, also)

    def drop_schema(self, schema: str) -> None:
        """Drop those of a schema."""
        for known in self:
            if known.key[0] == schema:
                self.drop(known)

    def require(self, key: tuple[str, str]) -> None:
        """Raise when one is gone.

        :raises SqlError: 002003.
        """
        if key not in self._known:
            raise object_missing(self._kind.WORD, self._full(key))

    def follow(self, change: Rename) -> Callable[[], None]:
        """Write what a new name of a database or schema changes beside the schemas' names.

        :returns: makes the picture in memory follow, once the open transaction is committed.
        """
        moved = {known.key: known for known in (each.moved(change) for each in self._known.values())}
        for key, known in moved.items():
            self._cursor.execute(
                f"UPDATE {self._relation} SET definition = ? WHERE {_IS_IT}", [known.to_row()[-1], *key]
            )

        def follow() -> None:
            self._known = moved

        return follow

    def _full(self, key: tuple[str, str]) -> str:
        return ".".join((self._names.database, *key))

    def _write(self, old: D | None, new: D | None, also: Callable[[], object] | None) -> None:
        """Replace a definition in its hidden table and, when that is committed, in memory."""

        def write() -> None:
            if old is not None:
                self._cursor.execute(f"DELETE FROM {self._relation} WHERE {_IS_IT}", list(old.key))
            if new is not None:
                self._cursor.execute(f"INSERT INTO {self._relation} VALUES (?, ?, ?, ?)", new.to_row())
            if also is not None:
                also()

        transact(self._cursor, write)
        known = {key: each for key, each in self._known.items() if old is None or key != old.key}
        self._known = known if new is None else {**known, new.key: new}
