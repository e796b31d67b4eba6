"""One Snowflake database: its DuckDB file, what is inside it, and the lock that orders writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb

from airflow_provider_snowpipe.local.clock import Clock
from airflow_provider_snowpipe.local.engine import disk
from airflow_provider_snowpipe.local.engine.channels import Channels
from airflow_provider_snowpipe.local.engine.committer import Committer
from airflow_provider_snowpipe.local.engine.names import Names
from airflow_provider_snowpipe.local.engine.pipes import Pipes
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.renaming import follow_elsewhere, rename
from airflow_provider_snowpipe.local.engine.schema_objects import SchemaObjects
from airflow_provider_snowpipe.local.engine.spool import Spool
from airflow_provider_snowpipe.local.engine.store import Store, transact
from airflow_provider_snowpipe.local.engine.tables import Tables
from airflow_provider_snowpipe.local.faults import Faults, die
from airflow_provider_snowpipe.local.identifiers import literal, quote
from airflow_provider_snowpipe.local.limits import Limits
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipes
from airflow_provider_snowpipe.local.loading.history import LoadHistory
from airflow_provider_snowpipe.local.stages.registry import Stages
from airflow_provider_snowpipe.local.stages.storage import Storage

log = logging.getLogger(__name__)


class Database:
    """One attached database and everything that writes to it.

    Threading: writes of rows, DDL and channel state hold :attr:`write_lock`, the one lock of :attr:`tables`,
    :attr:`pipes`, :attr:`channels`, :attr:`stages`, :attr:`file_pipes` and :attr:`objects`.

    :param engine_name: name under which the file is attached; it never changes.
    :param name: exact name, unless the file says that it was renamed.
    :param connect: returns a new cursor on the service's DuckDB instance, where the file is attached.
    :param faults: faults for tests.
    :param limits: limits of channels and pipes.
    :param clock: the service's clock.
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
        # Taken before the write lock: loads of files wait for each other, not for commits of channels.
        self.load_lock = threading.RLock()
        self.committer_cursor = connect()
        self.dirty = False
        self._cursor = connect()
        self.names = Names(engine_name, name, self._cursor)
        self.store = Store(self.names)
        self.store.create(self._cursor)
        self.history = LoadHistory(self.names, self._cursor)
        self.file_pipes = FilePipes(self.names, self._cursor, self.write_lock)
        self.stages = Stages(self.names, self._cursor, self.write_lock, storage)
        self.objects = SchemaObjects(self.names, self._cursor, self.write_lock)
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
        self.checkpoint()
        self.committer_cursor.close()
        self._cursor.close()

    def checkpoint(self) -> bool:
        """Move committed rows from the write-ahead log into the file; skipped while others read old data.

        :returns: False when it was skipped; the rows are safe in the write-ahead log.
        """
        with self.write_lock:
            self.dirty = False
            if not self.has_room(2 * self._log_bytes()):
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

    def has_room(self, size: int) -> bool:
        """Return True when the database's disk takes so many more bytes."""
        return self._file is None or disk.has_room(self._file.parent, size)

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
        """Give the database or one of its schemas another name; the caller holds load lock and write lock.

        :raises SqlError: 002002 when the name is taken, 002003 when there is no such schema.
        """
        rename(self, self._cursor, change)

    def follow(self, change: Rename) -> None:
        """Follow the new name of another database, or of a schema there."""
        follow_elsewhere(self, self._cursor, change)
