"""The DuckDB file of one database: its cursors, the locks that order writes, its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from snowpipe_local.datadir import Clock
from snowpipe_local.engine import spool as disk
from snowpipe_local.engine.load_history import FilePipes, LoadHistory
from snowpipe_local.engine.store import SchemaObjects, Store
from snowpipe_local.faults import Faults, die
from snowpipe_local.names import Names
from snowpipe_local.stages.storage import Stages, Storage
from snowpipe_local.tables import Table, literal, quote

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


class DatabaseFile:
    """One attached file with what its hidden schema keeps, and the locks for whatever writes to it.

    Threading: commits of rows, DDL and channel state hold :attr:`write_lock`.

    :param engine_name: name under which it is attached; it never changes.
    :param name: exact name of the database, unless the file records that it was renamed.
    :param connect: returns a new cursor on the service's DuckDB instance, where the file is attached.
    """

    def __init__(
        self,
        path: Path,
        engine_name: str,
        name: str,
        connect: Callable[[], duckdb.DuckDBPyConnection],
        faults: Faults,
        clock: Clock,
        storage: Storage,
    ) -> None:
        self._path = path
        self._faults = faults
        self.reach = faults.reach
        self.clock = clock
        self.write_lock = threading.RLock()
        # Held by a statement that changes rows, for its whole run, and by what alters tables.
        self.rows_lock = threading.RLock()
        # Taken before the write lock: loads of files wait for each other, not for commits of channels.
        self.load_lock = threading.RLock()
        self.committer_cursor = connect()
        self.dirty = False
        self.cursor = connect()
        # In a new file the hidden tables appear together.
        self.cursor.execute("BEGIN")
        self.names = Names(engine_name, name, self.cursor)
        self.store = Store(self.names)
        self.store.create(self.cursor)
        self.history = LoadHistory(self.names, self.cursor)
        self.file_pipes = FilePipes(self.names, self.cursor, self.write_lock)
        self.stages = Stages(self.names, self.cursor, self.write_lock, storage)
        self.objects = SchemaObjects(self.names, self.cursor, self.write_lock)
        self.cursor.execute("COMMIT")
        self._tables = self.names.hidden("tables")
        # When tables were changed last, by their folders; written down with a checkpoint.
        self.altered_ms: dict[str, int] = dict(
            self.cursor.execute(f"SELECT folder, altered_on_ms FROM {self._tables}").fetchall()  # noqa: S608
        )

    def touch(self, table: Table) -> None:
        """Note that rows or columns of a table have changed now."""
        self.altered_ms[table.folder] = self.clock.now_ms()
        self.dirty = True

    @property
    def name(self) -> str:
        """Exact name."""
        return self.names.database

    @property
    def schemas(self) -> frozenset[str]:
        """Exact names of the schemas that a user sees."""
        return self.names.schemas

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
            self.cursor.execute(
                f"UPDATE {self._tables} SET altered_on_ms = map(?::VARCHAR[], ?::BIGINT[])[folder]",  # noqa: S608
                [list(self.altered_ms), list(self.altered_ms.values())],
            )
            if not self.has_space(2 * self._log_bytes()):
                # The engine gives up a database whose checkpoint failed.
                log.warning("checkpoint of %s postponed: the disk is full", self.name)
                return False
            dies = self._faults.is_due("during-checkpoint")
            if dies:
                # DuckDB stops after it wrote the rows, before the header that makes them count.
                self.cursor.execute("SET GLOBAL debug_checkpoint_abort = 'before_header'")
            try:
                self.cursor.execute(f"CHECKPOINT {quote(self.names.engine)}")
            except duckdb.Error as error:
                if dies:
                    die()
                log.warning("checkpoint of %s postponed: %s", self.name, error)
                self.revive()
                return False
            return True

    def has_space(self, size: int) -> bool:
        """Return True when the database's disk takes so many more bytes."""
        return disk.has_space(self._path.parent, size)

    def _log_bytes(self) -> int:
        log_file = self._path.with_suffix(".duckdb.wal")
        return log_file.stat().st_size if log_file.exists() else 0

    def revive(self) -> None:
        """Attach the file again when the engine has given the database up; nothing committed is lost."""
        engine = quote(self.names.engine)
        with self.write_lock:
            try:
                self.cursor.execute(f"SELECT 1 FROM {self.names.hidden('channels')} LIMIT 0")  # noqa: S608
            except duckdb.Error as error:
                if not disk.is_invalidated(error):
                    return
                log.warning("the file of %s is attached again: %s", self.name, error)
                self.cursor.execute(f"DETACH {engine}")
                self.cursor.execute(f"ATTACH {literal(str(self._path))} AS {engine}")
