"""The tables of one database: created, changed, renamed and dropped with what depends on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

import duckdb

from snowpipe_local.definitions import transact
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.errors import object_exists, object_missing
from snowpipe_local.names import Rename, free_name
from snowpipe_local.tables import Table

T = TypeVar("T")
Noted: TypeAlias = AbstractContextManager[str]
"""Changes something outside of the file when its block ends, and gives the note that does it again."""


class Tables:
    """The tables of one database; iterating gives all of them, by schema and name.

    Threading: writes hold the database's write lock; the dictionary is changed under it and read without it.

    :param file: where they are; its stages, comments and load history follow them.
    :param gone: is called with schema and name of a table that was dropped, replaced or renamed.
    """

    def __init__(self, file: DatabaseFile, gone: Callable[[str, str], None]) -> None:
        self._file = file
        self._gone = gone
        self._cursor = file.cursor
        # Commits of a table that take the isolating path before the strict one is tried again.
        self.isolated_groups: dict[tuple[str, str], int] = {}
        self._tables = {(table.schema, table.name): table for table in file.store.load_tables(file.cursor)}

    def __iter__(self) -> Iterator[Table]:
        return iter([table for _, table in sorted(self._tables.items())])

    def find(self, schema: str, name: str) -> Table | None:
        """Return a table by its exact name, or None."""
        return self._tables.get((schema, name))

    def names(self, schema: str) -> list[str]:
        """Return the exact names of the tables in a schema."""
        return [name for owner, name in self._tables if owner == schema]

    def engine_name(self, schema: str, name: str) -> str | None:
        """Return the engine's name for a new table, None for its own: the engine ignores case.

        A table that is to be replaced keeps its name until then: a query may fill the new one from it.
        """
        taken = [known.engine for known in self if known.schema == schema]
        free = free_name(name, taken)
        return None if free == name else free

    def create(
        self,
        table: Table,
        statements: Sequence[str],
        *,
        replace: bool,
        cursor: duckdb.DuckDBPyConnection | None = None,
        noted: Noted | None = None,
    ) -> None:
        """Create a table; replacing one destroys its pipes and channels, as in Snowflake.

        :param statements: DuckDB statements that create it and, for CREATE TABLE AS, fill it.
        :param cursor: whose settings and relations the statements need, and which stops them; None for one
            of the database.
        :param noted: what changes with it outside of this file.
        """
        cursor = cursor or self._cursor
        key = table.schema, table.name
        replace = replace and key in self._tables
        with self._file.altering() if replace else self._file.write_lock:
            self._file.names.require_schema(table.schema)
            old = self._tables.get(key)
            if old is not None and not replace:
                raise object_exists(str(table))

            def write() -> Callable[[], None] | None:
                for statement in statements:
                    cursor.execute(statement)
                follow = None if old is None else self._drop(cursor, old)
                self._file.store.add_table(cursor, table)
                return follow

            follow = self._commit(cursor, write, noted)
            if old is not None and follow is not None:
                self._forget(old, follow)
            self._tables = {**self._tables, key: table}
            self.isolated_groups.pop(key, None)

    def change(self, table: Table, statements: Sequence[str] = ()) -> None:
        """Change columns or options of a table; its rows, pipes and channels stay.

        :param table: the table as it is to be, under its old name.
        """

        def change() -> None:
            for statement in statements:
                self._cursor.execute(statement)
            if table.clustering_key is not None:
                # A column of the key must stay, or no commit that sorts by it would succeed.
                self._cursor.execute(table.clustering_key.check(table.columns))
            self._file.store.update_table(self._cursor, table)

        with self._file.altering():
            if (table.schema, table.name) not in self._tables:
                raise object_missing("Table", str(table))
            transact(self._cursor, change)
            self._tables = {**self._tables, (table.schema, table.name): table}
            self._file.touch(table)

    def rename(self, renamed: Sequence[tuple[Table, str]], noted: Noted | None = None) -> None:
        """Give tables of a schema other names at once; their streaming pipes, channels and rejected rows go.

        :param renamed: each table with its new name, which may be the old one of another of them.
        :param noted: what changes with it outside of this file.
        :raises SqlError: when there is a table of a new name.
        """
        with self._file.altering():
            for table, _ in renamed:
                if (table.schema, table.name) not in self._tables:
                    raise object_missing("Table", str(table))
            olds = [self._tables[table.schema, table.name] for table, _ in renamed]
            schema, names = olds[0].schema, {old.name: name for old, name in renamed}
            kept = {key: table for key, table in self._tables.items() if table not in olds}
            for name in names.values():
                if (schema, name) in kept:
                    raise object_exists(str(dataclasses.replace(olds[0], name=name)))
            # The engine's name stays: a statement that runs reads the table that it was translated for.
            news = [
                dataclasses.replace(old, name=name, engine_name=None if old.engine == name else old.engine)
                for old, name in ((old, names[old.name]) for old in olds)
            ]

            def write() -> Callable[[], None]:
                for old in olds:
                    self._file.store.remove_table(self._cursor, schema, old.name)
                self._file.history.rename_tables(self._cursor, schema, names)
                for new in news:
                    self._file.store.add_table(self._cursor, new)
                return self._file.objects.moved_tables(self._cursor, schema, names)

            follow = self._commit(self._cursor, write, noted)
            for old in olds:
                self._gone(schema, old.name)
            self._tables = {**kept, **{(schema, new.name): new for new in news}}
            follow()
            self._file.dirty = True

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema; the caller holds the write lock."""
        moved = [self._moved(table, change) for table in self._tables.values()]
        self._tables = {(table.schema, table.name): table for table in moved}
        self.isolated_groups.clear()

    def clear_rejected_rows(self, schema: str, name: str) -> None:
        """Empty the error table of a table."""
        with self._file.write_lock:
            self._file.store.clear_rejected_rows(self._cursor, schema, name)

    def drop(self, schema: str, name: str) -> None:
        """Drop a table with its pipes and channels.

        :raises SqlError: when it does not exist.
        """
        with self._file.altering():
            table = self._tables.get((schema, name))
            if table is None:
                raise object_missing("Table", f"{self._file.name}.{schema}.{name}")
            self._forget(table, self._commit(self._cursor, lambda: self._drop(self._cursor, table)))
            self._tables = {key: known for key, known in self._tables.items() if known is not table}

    def _commit(
        self, cursor: duckdb.DuckDBPyConnection, write: Callable[[], T], noted: Noted | None = None
    ) -> T:
        """Commit a change with the intent of what follows outside of this file, then let that follow.

        A crash behind the commit leaves the intent: the next start does the rest.
        """

        def work(note: str) -> T:
            found = write()
            if note:
                self._file.store.add_intent(cursor, note)
            self._file.reach("before-table-commit")
            return found

        with noted or nullcontext("") as note:
            made = transact(cursor, lambda: work(note))
            self._file.reach("after-table-commit")
        if note:
            self._file.reach("before-intent-end")
            self._file.store.end_intents(self._cursor)
        return made

    def _forget(self, table: Table, follow: Callable[[], None]) -> None:
        self._gone(table.schema, table.name)
        self._file.stages.drop_folder(table.folder)
        follow()

    def _moved(self, table: Table, change: Rename) -> Table:
        home = table.home or (table.database, table.schema)
        database, schema = change.moved((table.database, table.schema))
        return dataclasses.replace(table, database=database, schema=schema, home=home)

    def _drop(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> Callable[[], None]:
        cursor.execute(f"DROP TABLE {table.path}")
        self._file.store.remove_table(cursor, table.schema, table.name)
        self._file.history.forget_table(cursor, table.schema, table.name)
        return self._file.objects.moved_tables(cursor, table.schema, {table.name: None})
