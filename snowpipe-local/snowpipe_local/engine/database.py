"""One Snowflake database: its DuckDB file, its tables and pipes, and the lock that orders writes."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb

from snowpipe_local.datadir import Clock
from snowpipe_local.engine import spool as disk
from snowpipe_local.engine.channel import Channels
from snowpipe_local.engine.committer import Committer
from snowpipe_local.engine.names import (
    DEFAULT_PIPE_SUFFIX,
    Names,
    Pipe,
    PipeDefinition,
    PipeKey,
    Rename,
    free_name,
)
from snowpipe_local.engine.spool import Spool
from snowpipe_local.engine.store import SchemaObjects, Store, transact
from snowpipe_local.errors import Refusal, object_exists, object_missing
from snowpipe_local.faults import Faults, die
from snowpipe_local.limits import Limits
from snowpipe_local.loading.history import FilePipes, LoadHistory
from snowpipe_local.stages.storage import Stages, Storage
from snowpipe_local.tables import Table, find_name, literal, quote

# -- The streaming pipes of one database: default pipes on first use, custom ones by CREATE PIPE ---------

PIPE_MISSING = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
TABLE_MISSING = "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
_MISSING_TEXT = "does not exist or not authorized"


class Pipes:
    """The streaming pipes of one database; iterating gives all of them, by schema and name.

    Default pipes are there from their first use on. Threading: writes hold the database's write lock; the
    dictionary is replaced under it and read without it.

    :param database: whose tables the pipes fill and whose channels go with them.
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
        table_name = name[: -len(DEFAULT_PIPE_SUFFIX)]
        with self._database.write_lock:
            table = find_name(table_name, self._database.tables.names(schema))
            if table is None:
                full_name = f"{self._database.name}.{schema}.{table_name}"
                raise Refusal(404, TABLE_MISSING, f"table {full_name} {_MISSING_TEXT}")
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


# -- The tables of one database: created, changed, renamed and dropped with what depends on them ---------


class Tables:
    """The tables of one database; iterating gives all of them, by schema and name.

    Threading: writes hold the database's write lock; the dictionary is changed under it and read without it.

    :param database: whose pipes, stages and load history follow the tables.
    """

    def __init__(self, database: Database, cursor: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._cursor = cursor
        # Commits of a table that take the isolating path before the strict one is tried again.
        self.isolated_groups: dict[tuple[str, str], int] = {}
        self._tables = {(table.schema, table.name): table for table in database.store.load_tables(cursor)}

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
        with self._database.altering() if replace else self._database.write_lock:
            self._database.names.require_schema(table.schema)
            exists = (table.schema, table.name) in self._tables
            if exists and not replace:
                raise object_exists(str(table))
            transact(cursor, lambda: self._replace(cursor, table, statements, exists))
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

        with self._database.altering():
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

        with self._database.altering():
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
        with self._database.altering():
            table = self._tables.get((schema, name))
            if table is None:
                raise object_missing("Table", f"{self._database.name}.{schema}.{name}")
            transact(self._cursor, lambda: self._drop(self._cursor, table))
            self._database.pipes.forget_table(schema, name)
            self._database.stages.drop_table(schema, name)
            self._database.objects.forget_table(schema, name)
            del self._tables[schema, name]

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
        self._database.store.add_table(cursor, table)

    def _drop(self, cursor: duckdb.DuckDBPyConnection, table: Table) -> None:
        cursor.execute(f"DROP TABLE {table.path}")
        self._database.store.remove_table(cursor, table.schema, table.name)


log = logging.getLogger(__name__)


# How long a statement that holds the rows lock waits for the write lock before it gives way.
_TRIED_SECONDS = 0.1


@contextlib.contextmanager
def _unless_held(lock: threading.RLock) -> Iterator[bool]:
    """Hold a lock, or give False where another thread holds it."""
    is_free = lock.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            lock.release()


class Database:
    """One attached database and everything that writes to it.

    Threading: commits of rows, DDL and channel state hold :attr:`write_lock`, the one lock of :attr:`tables`,
    :attr:`pipes`, :attr:`channels`, :attr:`stages`, :attr:`file_pipes` and :attr:`objects`.

    :param engine_name: name under which the file is attached; it never changes.
    :param name: exact name, unless the file records that it was renamed.
    :param connect: returns a new cursor on the service's DuckDB instance, where the file is attached.
    :param storage: files of stages.
    :param spool: bodies in flight on disk; None keeps them in memory.
    :param file: the DuckDB file; None for one that needs no room on a disk.
    """

    def __init__(
        self,
        engine_name: str,
        name: str,
        connect: Callable[[], duckdb.DuckDBPyConnection],
        faults: Faults,
        limits: Limits,
        clock: Clock,
        storage: Storage,
        spool: Spool | None = None,
        file: Path | None = None,
    ) -> None:
        self._file = file
        self.reach = faults.reach
        self._faults = faults
        self.clock = clock
        self.write_lock = threading.RLock()
        # Held by a statement that changes rows, for its whole run, and by what alters tables.
        self.rows_lock = threading.RLock()
        # Taken before the write lock: loads of files wait for each other, not for commits of channels.
        self.load_lock = threading.RLock()
        self.committer_cursor = connect()
        self.dirty = False
        self._cursor = connect()
        # In a new file the hidden tables appear together.
        self._cursor.execute("BEGIN")
        self.names = Names(engine_name, name, self._cursor)
        self.store = Store(self.names)
        self.store.create(self._cursor)
        self.history = LoadHistory(self.names, self._cursor)
        self.file_pipes = FilePipes(self.names, self._cursor, self.write_lock)
        self.stages = Stages(self.names, self._cursor, self.write_lock, storage)
        self.objects = SchemaObjects(self.names, self._cursor, self.write_lock)
        self._cursor.execute("COMMIT")
        self.tables = Tables(self, self._cursor)
        self.pipes = Pipes(self, self._cursor)
        self.channels = Channels(self, self._cursor, limits)
        self.committer = Committer(self, lambda: faults.commit_delay, limits, spool)
        self.committer.start()
        for left in [table for table in self.tables if table.is_temporary]:
            # Of a session that a crash ended.
            self.tables.drop(left.schema, left.name)

    @property
    def name(self) -> str:
        """Exact name."""
        return self.names.database

    @property
    def schemas(self) -> frozenset[str]:
        """Exact names of the schemas that a user sees."""
        return self.names.schemas

    def close(self) -> None:
        """Commit what is queued and write the file's log into it."""
        self.committer.stop()
        with self.altering():
            self.checkpoint()
        self.committer_cursor.close()
        self._cursor.close()

    @contextlib.contextmanager
    def altering(self) -> Iterator[None]:
        """Hold both locks: the write lock is not held while a statement that changes rows is waited for.

        A commit that alters a table holds the write lock already: it gets the other one, for nobody waits
        with that.
        """
        while True:
            self.rows_lock.acquire()
            if self.write_lock.acquire(timeout=_TRIED_SECONDS):
                break
            self.rows_lock.release()
            # A commit that alters a table has the rows lock first.
            self.write_lock.acquire()
            if self.rows_lock.acquire(blocking=False):
                break
            self.write_lock.release()
        try:
            yield
        finally:
            self.write_lock.release()
            self.rows_lock.release()

    def checkpoint(self) -> bool:
        """Move committed rows from the write-ahead log into the file; skipped while others read old data.

        :returns: False when it was skipped; the rows are safe in the write-ahead log.
        """
        with self.write_lock, _unless_held(self.rows_lock) as is_free:
            # The statement that holds it sets it again.
            self.dirty = False
            if not is_free:
                return False
            if not self.has_space(2 * self._log_bytes()):
                # The engine gives up a database whose checkpoint failed.
                log.warning("checkpoint of %s postponed: the disk is full", self.name)
                return False
            dies = self._faults.is_due("during-checkpoint")
            if dies:
                # DuckDB stops after it wrote the rows, before the header that makes them count.
                self._cursor.execute("SET GLOBAL debug_checkpoint_abort = 'before_header'")
            try:
                self._cursor.execute(f"CHECKPOINT {quote(self.names.engine)}")
            except duckdb.Error as error:
                if dies:
                    die()
                log.warning("checkpoint of %s postponed: %s", self.name, error)
                self.revive()
                return False
            return True

    def has_space(self, size: int) -> bool:
        """Return True when the database's disk takes so many more bytes."""
        return self._file is None or disk.has_space(self._file.parent, size)

    def _log_bytes(self) -> int:
        log_file = self._file.with_suffix(".duckdb.wal") if self._file else None
        return log_file.stat().st_size if log_file is not None and log_file.exists() else 0

    def revive(self) -> None:
        """Attach the file again when the engine has given the database up; nothing committed is lost."""
        engine = quote(self.names.engine)
        with self.write_lock:
            try:
                self._cursor.execute(f"SELECT 1 FROM {self.names.hidden('channels')} LIMIT 0")  # noqa: S608
            except duckdb.Error as error:
                if self._file is None or not disk.is_invalidated(error):
                    return
                log.warning("the file of %s is attached again: %s", self.name, error)
                self._cursor.execute(f"DETACH {engine}")
                self._cursor.execute(f"ATTACH {literal(str(self._file))} AS {engine}")

    def create_schema(self, name: str) -> None:
        """Create a schema.

        :raises SqlError: when it exists.
        """
        with self.write_lock:
            transact(self._cursor, lambda: self.names.create_schema(name))
            self.names.reload()

    def drop_schema(self, name: str) -> None:
        """Drop a schema with its tables, pipes and channels."""
        with self.write_lock:
            for table in self.tables.names(name):
                self.tables.drop(name, table)
            self.stages.drop_schema(name)
            self.file_pipes.drop_schema(name)
            self.objects.drop_schema(name)
            transact(self._cursor, lambda: self.names.drop_schema(name))
            self.names.reload()

    def rename(self, change: Rename) -> None:
        """Rename the database, or one of its schemas, in one transaction, then in memory.

        Rows, tokens, queued appends and open sessions of channels stay; a commit before and one after it
        write to the same table. The caller holds load lock and write lock.

        :raises SqlError: 002002 when the name is taken, 002003 when there is no such schema.
        """
        self.names.check_free(change)
        followers: list[Callable[[], None]] = []

        def write() -> None:
            self.names.write(change)
            followers.extend(room.follow(change) for room in (self.stages, self.file_pipes, self.objects))
            self.reach("before-rename-commit")

        transact(self._cursor, write)
        self.reach("after-rename-commit")
        for follow in (self.tables.follow, self.pipes.follow, self.channels.follow):
            follow(change)
        for follow_in_memory in followers:
            follow_in_memory()
        self.names.follow(change)
        self.dirty = True

    def follow(self, change: Rename) -> None:
        """Let stages follow the new name of another database or a schema there, where their format is."""
        with self.write_lock:
            followers: list[Callable[[], None]] = []
            transact(self._cursor, lambda: followers.append(self.stages.follow(change)))
            for follow in followers:
                follow()
