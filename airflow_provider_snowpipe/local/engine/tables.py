"""The tables of one database: created, changed, renamed and dropped with what depends on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from airflow_provider_snowpipe.local.engine.names import free_name
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.store import transact
from airflow_provider_snowpipe.local.errors import object_exists, object_missing
from airflow_provider_snowpipe.local.identifiers import quote
from airflow_provider_snowpipe.local.tables import Table

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.database import Database


class Tables:
    """The tables of one database; iterating gives all of them, by schema and name.

    Threading: writes hold the database's write lock; the dictionary is changed under it and read without it.

    :param database: whose pipes, stages and load history follow the tables.
    :param cursor: the database's own cursor.
    """

    def __init__(self, database: Database, cursor: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._cursor = cursor
        # Commits of a table that take the isolating path before the strict one is tried again.
        self.isolated_groups: dict[tuple[str, str], int] = {}
        self._tables = {(table.schema, table.name): table for table in database.store.load_tables(cursor)}
        for table in self._tables.values():
            self._keep_offsets(table)

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

        A table of the same name counts as replaced.
        """
        taken = [known.engine for known in self if known.schema == schema and known.name != name]
        free = free_name(name, taken)
        return None if free == name else free

    def create(
        self,
        table: Table,
        statements: Sequence[str],
        *,
        replace: bool,
        lent: Mapping[str, pa.Table] = MappingProxyType({}),
    ) -> None:
        """Create a table; replacing one destroys its pipes and channels, as in Snowflake.

        :param statements: DuckDB statements that create it and, for CREATE TABLE AS, fill it.
        :param lent: relations that these statements read beside tables, by name.
        """
        with self._database.write_lock:
            self._database.names.require_schema(table.schema)
            exists = (table.schema, table.name) in self._tables
            if exists and not replace:
                raise object_exists(str(table))
            for name, rows in lent.items():
                self._cursor.register(name, rows)
            try:
                transact(self._cursor, lambda: self._replace(table, statements, exists))
            finally:
                for name in lent:
                    self._cursor.unregister(name)
            if exists:
                self._database.pipes.forget_table(table.schema, table.name)
                self._database.stages.drop_table(table.schema, table.name)
                self._database.objects.forget_table(table.schema, table.name)
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
            self._database.store.update_table(self._cursor, table)

        with self._database.write_lock:
            if (table.schema, table.name) not in self._tables:
                raise object_missing("Table", str(table))
            transact(self._cursor, change)
            self._tables[table.schema, table.name] = table
            self._database.dirty = True

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
            self._database.history.rename_table(self._cursor, old, new)
            self._database.store.remove_table(self._cursor, old.schema, old.name)
            self._database.store.add_table(self._cursor, new)

        with self._database.write_lock:
            if (new.schema, new.name) in self._tables:
                raise object_exists(str(new))
            transact(self._cursor, rename)
            self._database.pipes.forget_table(old.schema, old.name)
            del self._tables[old.schema, old.name]
            self._tables[new.schema, new.name] = new
            self._database.stages.rename_table((old.schema, old.name), (new.schema, new.name))
            self._database.objects.rename_table(old.schema, old.name, new.name)
            self._database.dirty = True

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema; the caller holds the write lock."""
        moved = [self._moved(table, change) for table in self._tables.values()]
        self._tables = {(table.schema, table.name): table for table in moved}
        self.isolated_groups.clear()

    def clear_rejected_rows(self, schema: str, name: str) -> None:
        """Empty the error table of a table."""
        with self._database.write_lock:
            self._database.store.clear_rejected_rows(self._cursor, schema, name)

    def drop(self, schema: str, name: str) -> None:
        """Drop a table with its pipes and channels.

        :raises SqlError: when it does not exist.
        """
        with self._database.write_lock:
            table = self._tables.get((schema, name))
            if table is None:
                raise object_missing("Table", f"{self._database.name}.{schema}.{name}")
            transact(self._cursor, lambda: self._drop(table))
            self._database.pipes.forget_table(schema, name)
            self._database.stages.drop_table(schema, name)
            self._database.objects.forget_table(schema, name)
            del self._tables[schema, name]

    def _keep_offsets(self, table: Table) -> None:
        """Give a TIMESTAMP_TZ column that an older version made room for offsets: all are UTC."""
        for column in table.columns:
            if column.type.kind != "TIMESTAMP_TZ":
                continue
            name = quote(column.name)
            described = self._cursor.execute(f"SELECT {name} FROM {table.path} LIMIT 0").description or []  # noqa: S608
            if str(described[0][1]) == "TIMESTAMP WITH TIME ZONE":
                start = f"ALTER TABLE {table.path} ALTER COLUMN {name}"
                self._cursor.execute(f"{start} DROP DEFAULT")
                self._cursor.execute(f"{start} TYPE {column.type.duckdb} USING _at_offset({name}, 0)")
                if column.default is not None:
                    self._cursor.execute(f"{start} SET DEFAULT _tz({column.default})")

    def _moved(self, table: Table, change: Rename) -> Table:
        home = table.home or (table.database, table.schema)
        database, schema = change.moved((table.database, table.schema))
        return dataclasses.replace(table, database=database, schema=schema, home=home)

    def _replace(self, table: Table, statements: Sequence[str], exists: bool) -> None:
        if exists:
            self._drop(self._tables[table.schema, table.name])
        for statement in statements:
            self._cursor.execute(statement)
        self._database.store.add_table(self._cursor, table)

    def _drop(self, table: Table) -> None:
        self._cursor.execute(f"DROP TABLE {table.path}")
        self._database.store.remove_table(self._cursor, table.schema, table.name)
