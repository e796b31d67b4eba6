"""The tables of one database: created, changed, renamed and dropped with what depends on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import duckdb

from snowpipe_local.definitions import transact
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.errors import object_exists, object_missing
from snowpipe_local.names import Rename, free_name
from snowpipe_local.tables import Table, quote


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
    ) -> None:
        """Create a table; replacing one destroys its pipes and channels, as in Snowflake.

        :param statements: DuckDB statements that create it and, for CREATE TABLE AS, fill it.
        :param cursor: whose settings and relations the statements need, and which stops them; None for one
            of the database.
        """
        cursor = cursor or self._cursor
        replace = replace and (table.schema, table.name) in self._tables
        with self._file.altering() if replace else self._file.write_lock:
            self._file.names.require_schema(table.schema)
            exists = (table.schema, table.name) in self._tables
            if exists and not replace:
                raise object_exists(str(table))
            transact(cursor, lambda: self._replace(cursor, table, statements, exists))
            if exists:
                self._forget(table.schema, table.name)
            self._tables[table.schema, table.name] = table
            self.isolated_groups.pop((table.schema, table.name), None)

    def change(self, table: Table, statements: Sequence[str] = ()) -> None:
        """Change columns or options of a table; its rows, pipes and channels stay.

        :param table: the table as it is to be, under its old name.
        :param statements: DuckDB statements that change the columns.
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
            self._tables[table.schema, table.name] = table
            self._file.dirty = True

    def rename(self, old: Table, new: Table) -> None:
        """Give a table another name in its schema; its streaming pipes, channels and rejected rows go.

        :param new: the table as it is to be.
        :raises SqlError: when there is a table of that name.
        """
        old = self._tables[old.schema, old.name]
        # Another case alone is no other name for the engine.
        engine = old.engine if new.name.upper() == old.engine.upper() else None
        engine = engine or self.engine_name(new.schema, new.name)
        new = dataclasses.replace(new, engine_name=None if engine == new.name else engine)

        def rename() -> None:
            if new.engine != old.engine:
                self._cursor.execute(f"ALTER TABLE {old.path} RENAME TO {quote(new.engine)}")
            self._file.history.rename_table(self._cursor, old, new)
            self._file.store.remove_table(self._cursor, old.schema, old.name)
            self._file.store.add_table(self._cursor, new)

        with self._file.altering():
            if (new.schema, new.name) in self._tables:
                raise object_exists(str(new))
            transact(self._cursor, rename)
            self._gone(old.schema, old.name)
            del self._tables[old.schema, old.name]
            self._tables[new.schema, new.name] = new
            self._file.stages.rename_table((old.schema, old.name), (new.schema, new.name))
            self._file.objects.rename_table(old.schema, old.name, new.name)
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
            transact(self._cursor, lambda: self._drop(self._cursor, table))
            self._forget(schema, name)
            del self._tables[schema, name]

    def _forget(self, schema: str, name: str) -> None:
        self._gone(schema, name)
        self._file.stages.drop_table(schema, name)
        self._file.objects.forget_table(schema, name)

    def _moved(self, table: Table, change: Rename) -> Table:
        home = table.home or (table.database, table.schema)
        database, schema = change.moved((table.database, table.schema))
        return dataclasses.replace(table, database=database, schema=schema, home=home)

    def _replace(
        self, cursor: duckdb.DuckDBPyConnection, table: Table, statements: Sequence[str], exists: bool
    ) -> None:
        for statement in statements:
            cursor.execute(statement)
        if exists:
            self._drop(cursor, self._tables[table.schema, table.name])
        self._file.store.add_table(cursor, table)

    def _drop(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        cursor.execute(f"DROP TABLE {table.path}")
        self._file.store.remove_table(cursor, table.schema, table.name)
