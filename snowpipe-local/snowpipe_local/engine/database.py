"""One Snowflake database: its file, its tables and pipes, and the thread that commits to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from snowpipe_local.datadir import Clock
from snowpipe_local.definitions import transact
from snowpipe_local.engine.channel import Append
from snowpipe_local.engine.committer import Committer
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.engine.ingest import commit_group
from snowpipe_local.engine.pipes import Channels, Pipes
from snowpipe_local.engine.spool import Spool
from snowpipe_local.engine.tables import Tables
from snowpipe_local.faults import Faults
from snowpipe_local.limits import Limits
from snowpipe_local.names import Rename
from snowpipe_local.stages.storage import Storage


class Database(DatabaseFile):
    """One attached database and everything that writes to it.

    Threading: :attr:`write_lock` is the one lock of :attr:`tables`, :attr:`pipes`, :attr:`channels`,
    :attr:`stages`, :attr:`file_pipes` and :attr:`objects`.

    :param spool: bodies in flight on disk; None keeps them in memory.
    """

    def __init__(
        self,
        path: Path,
        engine_name: str,
        name: str,
        connect: Callable[[], duckdb.DuckDBPyConnection],
        faults: Faults,
        limits: Limits,
        clock: Clock,
        storage: Storage,
        spool: Spool | None = None,
    ) -> None:
        super().__init__(path, engine_name, name, connect, faults, clock, storage)
        self.tables = Tables(self, lambda schema, table: self.pipes.forget_table(schema, table))
        self.pipes = Pipes(self, self.tables, lambda pipes: self.channels.forget(pipes))
        self.committer = Committer(self, self.commit, lambda: faults.commit_delay, limits, spool)
        self.channels = Channels(self, self.pipes, self.committer, limits)
        self.committer.start()
        for left in [table for table in self.tables if table.is_temporary]:
            # Of a session that a crash ended.
            self.tables.drop(left.schema, left.name)

    def commit(self, group: Sequence[Append]) -> None:
        """Commit a group of appends, as :func:`commit_group` does."""
        commit_group(self, self.tables, group)

    def close(self) -> None:
        """Commit what is queued and write the file's log into it."""
        self.committer.stop()
        with self.altering():
            self.checkpoint()
        self.committer_cursor.close()
        self.cursor.close()

    def create_schema(self, name: str) -> None:
        """Create a schema.

        :raises SqlError: when it exists.
        """
        with self.write_lock:
            transact(self.cursor, lambda: self.names.create_schema(name))
            self.names.reload()

    def drop_schema(self, name: str) -> None:
        """Drop a schema with its tables, pipes and channels."""
        with self.write_lock:
            for table in self.tables.names(name):
                self.tables.drop(name, table)
            self.stages.drop_schema(name)
            self.file_pipes.drop_schema(name)
            self.objects.drop_schema(name)
            transact(self.cursor, lambda: self.names.drop_schema(name))
            self.names.reload()

    def rename(self, change: Rename) -> None:
        """Rename the database, or one of its schemas, in one transaction, then in memory.

        Rows, tokens, queued appends and open sessions of channels stay; a commit before and one after it
        write to the same table. The caller holds load lock and write lock.

        :raises SqlError: 002002 when the name is taken, 002003 when there is no such schema.
        """
        self.names.check_free(change)

        def write() -> list[Callable[[], None]]:
            self.names.write(change)
            followers = [room.follow(change) for room in (self.stages, self.file_pipes, self.objects)]
            self.reach("before-rename-commit")
            return followers

        followers = transact(self.cursor, write)
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
            transact(self.cursor, lambda: self.stages.follow(change))()
