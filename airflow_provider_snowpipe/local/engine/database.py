"""One Snowflake database: DuckDB file, tables, pipes and channels, and the lock that orders writes."""

from __future__ import annotations

import base64
import dataclasses
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import duckdb
import pyarrow as pa

from airflow_provider_snowpipe.local.clock import Clock
from airflow_provider_snowpipe.local.engine.channels import (
    ELASTIC,
    MISSING,
    Channel,
    Committed,
    Pipe,
    PipeKey,
)
from airflow_provider_snowpipe.local.engine.committer import Backlog, CommitRecord, Committer
from airflow_provider_snowpipe.local.engine.definition import PipeDefinition
from airflow_provider_snowpipe.local.engine.schema_objects import SchemaObjects
from airflow_provider_snowpipe.local.engine.spool import Spool
from airflow_provider_snowpipe.local.engine.store import HIDDEN_SCHEMA, Store, quoted_schema
from airflow_provider_snowpipe.local.errors import Refusal, object_exists, object_missing
from airflow_provider_snowpipe.local.faults import Faults, die
from airflow_provider_snowpipe.local.identifiers import find_name, quote
from airflow_provider_snowpipe.local.limits import Limits
from airflow_provider_snowpipe.local.loading.file_pipes import FilePipes
from airflow_provider_snowpipe.local.loading.history import LoadHistory
from airflow_provider_snowpipe.local.stages.registry import Stages
from airflow_provider_snowpipe.local.stages.storage import Storage
from airflow_provider_snowpipe.local.tables import Table

log = logging.getLogger(__name__)

PIPE_MISSING = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
TABLE_MISSING = "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
TOO_MANY_CHANNELS = "ERR_TOO_MANY_CHANNELS_IN_PIPE"
DEFAULT_PIPE_SUFFIX = "-STREAMING"
# Documentation, "Snowpipe Streaming channels": inactive channels and their tokens are deleted.
CHANNEL_LIFETIME_MS = 30 * 86_400_000


class Database:
    """One attached database and everything that writes to it.

    Threading: writes of rows, DDL and channel state hold :attr:`write_lock`; the dictionaries are changed
    under it as well and read without it.

    :param name: exact name.
    :param connect: returns a new cursor on the service's DuckDB instance, where the file is attached.
    :param faults: faults for tests.
    :param limits: limits of channels and pipes.
    :param clock: the service's clock.
    :param storage: files of stages.
    :param spool: bodies in flight on disk; None keeps them in memory.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], duckdb.DuckDBPyConnection],
        faults: Faults,
        limits: Limits,
        clock: Clock,
        storage: Storage,
        spool: Spool | None = None,
    ) -> None:
        self.reach = faults.reach
        self._faults = faults
        self.clock = clock
        self.name = name
        self._limits = limits
        self.write_lock = threading.RLock()
        # Taken before the write lock: loads of files wait for each other, not for commits of channels.
        self.load_lock = threading.RLock()
        self.committer_cursor = connect()
        self.store = Store(name)
        self.dirty = False
        self.isolated_groups: dict[tuple[str, str], int] = {}
        self._cursor = connect()
        self.store.create(self._cursor)
        self.history = LoadHistory(name, self._cursor)
        self.file_pipes = FilePipes(name, self._cursor, self.write_lock)
        self.stages = Stages(name, self._cursor, self.write_lock, storage)
        self.objects = SchemaObjects(name, self._cursor, self.write_lock)
        self.schemas = self.store.load_schemas(self._cursor)
        self._tables = {(table.schema, table.name): table for table in self.store.load_tables(self._cursor)}
        self._pipes = {pipe.key: pipe for pipe in self.store.load_pipes(self._cursor)}
        self._channels: dict[tuple[PipeKey, str], Channel] = {}
        for key, channel, committed in self.store.load_channels(self._cursor, clock.now_ms()):
            self._channels[key, channel] = Channel(name, self._pipes[key], channel, committed, limits)
        self._committer = Committer(self, lambda: faults.commit_delay, limits, spool)
        self._committer.start()
        for left in [table for table in self.tables if table.is_temporary]:
            # Of a session that a crash ended.
            self.drop_table(left.schema, left.name)

    def close(self) -> None:
        """Commit what is queued and write the file's log into it."""
        self._committer.stop()
        self.checkpoint()
        self.committer_cursor.close()
        self._cursor.close()

    def checkpoint(self) -> bool:
        """Move committed rows from the write-ahead log into the file; skipped while others read old data.

        :returns: False when it was skipped; the rows are safe in the write-ahead log.
        """
        with self.write_lock:
            self.dirty = False
            dies = self._faults.is_due("during-checkpoint")
            if dies:
                # DuckDB stops after it wrote the rows, before the header that makes them count.
                self._cursor.execute("SET GLOBAL debug_checkpoint_abort = 'before_header'")
            try:
                self._cursor.execute(f"CHECKPOINT {quote(self.name)}")
            except duckdb.Error as error:
                if dies:
                    die()
                log.warning("checkpoint of %s postponed: %s", self.name, error)
                return False
            return True

    # -- tables ---------------------------------------------------------------------------------------------

    @property
    def tables(self) -> list[Table]:
        """All tables, by schema and name."""
        return [table for _, table in sorted(self._tables.items())]

    @property
    def channels(self) -> list[Channel]:
        """All channels that were opened, without the elastic ones."""
        self._expire_channels()
        return [
            channel for (_, name), channel in sorted(self._channels.items(), key=_by_name) if name != ELASTIC
        ]

    def table(self, schema: str, name: str) -> Table | None:
        """Return a table by its exact name."""
        return self._tables.get((schema, name))

    def create_schema(self, name: str) -> None:
        """Create a schema.

        :raises SqlError: when it exists.
        """
        with self.write_lock:
            if name in self.schemas:
                raise object_exists(name)
            self._cursor.execute(f"CREATE SCHEMA {quoted_schema(self.name, name)}")
            self.schemas = self.schemas | {name}

    def drop_schema(self, name: str) -> None:
        """Drop a schema with its tables, pipes and channels."""
        with self.write_lock:
            for schema, table in list(self._tables):
                if schema == name:
                    self.drop_table(schema, table)
            self.stages.drop_schema(name)
            self.file_pipes.drop_schema(name)
            self.objects.drop_schema(name)
            self._cursor.execute(f"DROP SCHEMA {quoted_schema(self.name, name)} CASCADE")
            self.schemas = self.schemas - {name}

    def create_table(
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
        with self.write_lock:
            exists = (table.schema, table.name) in self._tables
            if exists and not replace:
                raise object_exists(str(table))
            for name, rows in lent.items():
                self._cursor.register(name, rows)
            try:
                self._transact(lambda: self._replace_table(table, statements, exists))
            finally:
                for name in lent:
                    self._cursor.unregister(name)
            if exists:
                self._forget_pipes(table.schema, table.name)
                self.stages.drop_table(table.schema, table.name)
            self._tables[table.schema, table.name] = table
            self.isolated_groups.pop((table.schema, table.name), None)

    def change_table(self, table: Table, statements: Sequence[str] = ()) -> None:
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
            self.store.update_table(self._cursor, table)

        with self.write_lock:
            if (table.schema, table.name) not in self._tables:
                raise object_missing("Table", str(table))
            self._transact(change)
            self._tables[table.schema, table.name] = table
            self.dirty = True

    def rename_table(self, old: Table, new: Table) -> None:
        """Give a table another name in its schema; its streaming pipes, channels and rejected rows go.

        :param new: the table as it is to be.
        :raises SqlError: when there is a table of that name.
        """

        def rename() -> None:
            self._cursor.execute(f"ALTER TABLE {old.path} RENAME TO {quote(new.name)}")
            self.history.rename_table(self._cursor, old, new)
            self.store.remove_table(self._cursor, old.schema, old.name)
            self.store.add_table(self._cursor, new)

        with self.write_lock:
            if (new.schema, new.name) in self._tables:
                raise object_exists(str(new))
            self._transact(rename)
            self._forget_pipes(old.schema, old.name)
            del self._tables[old.schema, old.name]
            self._tables[new.schema, new.name] = new
            self.stages.rename_table((old.schema, old.name), (new.schema, new.name))
            self.dirty = True

    def clear_rejected_rows(self, schema: str, name: str) -> None:
        """Empty the error table of a table."""
        with self.write_lock:
            self.store.clear_rejected_rows(self._cursor, schema, name)

    def drop_table(self, schema: str, name: str) -> None:
        """Drop a table with its pipes and channels.

        :raises SqlError: when it does not exist.
        """
        with self.write_lock:
            table = self._tables.get((schema, name))
            if table is None:
                raise object_missing("Table", f"{self.name}.{schema}.{name}")
            self._transact(lambda: self._drop_table(table))
            self._forget_pipes(schema, name)
            self.stages.drop_table(schema, name)
            del self._tables[schema, name]

    def _replace_table(self, table: Table, statements: Sequence[str], exists: bool) -> None:
        if exists:
            self._drop_table(self._tables[table.schema, table.name])
        for statement in statements:
            self._cursor.execute(statement)
        self.store.add_table(self._cursor, table)

    def _drop_table(self, table: Table) -> None:
        self._cursor.execute(f"DROP TABLE {table.path}")
        self.store.remove_table(self._cursor, table.schema, table.name)

    def _transact(self, work: Callable[[], None]) -> None:
        self._cursor.execute("BEGIN")
        try:
            work()
            self._cursor.execute("COMMIT")
        except BaseException:
            self._cursor.execute("ROLLBACK")
            raise

    def _forget_pipes(self, schema: str, table: str) -> None:
        self._forget(
            {key for key, pipe in self._pipes.items() if key.schema == schema and pipe.table == table}
        )

    def _forget(self, gone: set[PipeKey]) -> None:
        self._pipes = {key: pipe for key, pipe in self._pipes.items() if key not in gone}
        for (key, name), channel in list(self._channels.items()):
            if key in gone:
                channel.drop()
                self._committer.discard(channel, wait=False)
                del self._channels[key, name]

    # -- pipes ----------------------------------------------------------------------------------------------

    def pipe(self, schema: str, name: str) -> Pipe:
        """Return a pipe; the default pipe ``<TABLE>-STREAMING`` is created on first use.

        :param schema: schema, case-insensitive.
        :param name: pipe, case-insensitive.
        :raises Refusal: 404 with the code of what is missing.
        """
        exact_schema = find_name(schema, self.schemas)
        if exact_schema is None:
            raise Refusal(404, PIPE_MISSING, f"schema {self.name}.{schema} does not exist or not authorized")
        known = {key.name: pipe for key, pipe in self._pipes.items() if key.schema == exact_schema}
        exact = find_name(name, known)
        if exact is not None:
            return known[exact]
        return self._create_default_pipe(exact_schema, name)

    @property
    def pipes(self) -> list[Pipe]:
        """All pipes, by schema and name; default pipes from their first use on."""
        return sorted(self._pipes.values(), key=lambda pipe: (pipe.key.schema, pipe.key.name))

    def find_pipe(self, key: PipeKey) -> Pipe | None:
        """Return a pipe by its exact name, or None."""
        return self._pipes.get(key)

    def create_pipe(self, key: PipeKey, table: str, definition: PipeDefinition, *, replace: bool) -> None:
        """Create a custom pipe; replacing one destroys its channels, as in Snowflake.

        :param table: exact name of the table that it fills, in the same schema.
        :raises SqlError: when the pipe exists, or the table does not.
        """
        with self.write_lock:
            exists = key in self._pipes
            if exists and not replace:
                raise object_exists(key.name)
            if (key.schema, table) not in self._tables:
                raise object_missing("Table", f"{self.name}.{key.schema}.{table}")
            pipe = Pipe(key, table, _new_key(), self.clock.now_ms(), definition)
            self._transact(lambda: self._replace_pipe(pipe))
            if exists:
                self._forget({key})
            self._pipes = {**self._pipes, key: pipe}

    def drop_pipe(self, key: PipeKey) -> None:
        """Drop a custom pipe with its channels.

        :raises SqlError: when it does not exist.
        """
        with self.write_lock:
            if key not in self._pipes:
                raise object_missing("Pipe", f"{self.name}.{key.schema}.{key.name}")
            self._transact(lambda: self.store.remove_pipe(self._cursor, key))
            self._forget({key})

    def _replace_pipe(self, pipe: Pipe) -> None:
        self.store.remove_pipe(self._cursor, pipe.key)
        self.store.add_pipe(self._cursor, pipe)

    def _create_default_pipe(self, schema: str, name: str) -> Pipe:
        if not name.upper().endswith(DEFAULT_PIPE_SUFFIX):
            raise Refusal(
                404, PIPE_MISSING, f"pipe {self.name}.{schema}.{name} does not exist or not authorized"
            )
        wanted = name[: -len(DEFAULT_PIPE_SUFFIX)]
        with self.write_lock:
            table = find_name(wanted, [table for owner, table in self._tables if owner == schema])
            if table is None:
                raise Refusal(
                    404,
                    TABLE_MISSING,
                    f"table {self.name}.{schema}.{wanted} does not exist or not authorized",
                )
            key = PipeKey(schema, table + DEFAULT_PIPE_SUFFIX)
            if key not in self._pipes:
                pipe = Pipe(key, table, _new_key(), self.clock.now_ms())
                self.store.add_pipe(self._cursor, pipe)
                self._pipes = {**self._pipes, key: pipe}
            return self._pipes[key]

    # -- channels -------------------------------------------------------------------------------------------

    def channel(self, pipe: Pipe, name: str) -> Channel:
        """Return an open channel.

        :raises Refusal: 404 when no such channel was opened.
        """
        channel = self._live_channel(pipe.key, name)
        if channel is None:
            raise Refusal(
                404, MISSING, f"channel {name} of pipe {pipe.key.name} does not exist; open it first"
            )
        return channel

    def find_channel(self, pipe: Pipe, name: str) -> Channel | None:
        """Return a channel by its exact name, or None; the elastic channel always exists."""
        if name == ELASTIC:
            return self._get_or_create(pipe, ELASTIC)
        return self._live_channel(pipe.key, name)

    def open_channel(
        self, pipe: Pipe, name: str, *, offset_token: str | None, fail_on_uncommitted_rows: bool
    ) -> Channel:
        """Open or reopen a channel: older writers are fenced, their uncommitted rows discarded.

        :param offset_token: token to set, or None to keep the committed one.
        :param fail_on_uncommitted_rows: refuse instead of discarding.
        :raises Refusal: 409 ``ERR_CHANNEL_HAS_UNCOMMITTED_DATA``, 400 for the reserved name.
        """
        if name.upper() == ELASTIC:
            raise Refusal(400, "ERR_RESERVED_CHANNEL_NAME", "ELASTIC is reserved; it needs no opening")
        if not name:
            raise Refusal(400, "INVALID_CHANNEL_NAME", "a channel needs a name")
        channel = self._get_or_create(pipe, name)
        with channel.open_lock:
            session = channel.begin_session(fail_on_uncommitted_rows=fail_on_uncommitted_rows)
            self._committer.discard(channel)
            with self.write_lock:
                state = _new_session(channel, session, offset_token, self.clock.now_ms())
                self.store.update_channels(self._cursor, [state])
                channel.session_stored(state)
        return channel

    def set_offset_token(self, pipe: Pipe, name: str, token: str) -> Channel:
        """Set the committed token of a channel; its session and its rows stay as they are.

        :raises Refusal: 404 when no such channel was opened.
        """
        channel = self.channel(pipe, name)
        with channel.open_lock, self.write_lock:
            state = dataclasses.replace(channel.committed, offset_token=token)
            self.store.update_channels(self._cursor, [state])
            channel.session_stored(state)
        return channel

    def drop_channel(self, pipe: Pipe, name: str, *, fail_on_uncommitted_rows: bool = False) -> Channel:
        """Drop a channel with its token and its uncommitted rows.

        :param fail_on_uncommitted_rows: refuse instead of discarding rows.
        :raises Refusal: 404 for an unknown channel, 409 for uncommitted rows, 400 for the elastic channel.
        """
        if name.upper() == ELASTIC:
            raise Refusal(400, "ERR_RESERVED_CHANNEL_NAME", "the ELASTIC channel cannot be dropped")
        channel = self.channel(pipe, name)
        with channel.open_lock:
            channel.drop(fail_on_uncommitted_rows=fail_on_uncommitted_rows)
            self._committer.discard(channel)
            with self.write_lock:
                self.store.remove_channel(self._cursor, channel.committed.channel_id)
                self._channels.pop((pipe.key, name), None)
        return channel

    @property
    def enqueue(self) -> Callable[..., None]:
        """Hand an accepted append to the committer."""
        return self._committer.enqueue

    @property
    def commits(self) -> list[CommitRecord]:
        """The last commits, the oldest first."""
        return self._committer.records

    def backlog(self) -> dict[Channel, Backlog]:
        """Return what of each channel waits for its commit."""
        return self._committer.backlog()

    def arrival(self, channel: Channel) -> tuple[float, bool]:
        """Return a channel's measured bytes per second, and whether it commits alone."""
        return self._committer.arrival(channel)

    def _get_or_create(self, pipe: Pipe, name: str) -> Channel:
        existing = self._live_channel(pipe.key, name)
        if existing is not None:
            return existing
        with self.write_lock:
            # A pipe that was replaced meanwhile has its channels on the new one.
            current = self._pipes.get(pipe.key)
            if current is None and pipe.definition is None:
                # Its table was replaced between the look-up of the pipe and this call.
                current = self._create_default_pipe(pipe.key.schema, pipe.key.name)
            if current is None:
                raise Refusal(404, PIPE_MISSING, f"pipe {pipe.key.name} was dropped")
            if (pipe.key, name) not in self._channels:
                self._check_room(pipe, name)
                state = self.store.add_channel(self._cursor, pipe.key, name, self.clock.now_ms())
                self._channels[pipe.key, name] = Channel(self.name, current, name, state, self._limits)
            return self._channels[pipe.key, name]

    def _live_channel(self, key: PipeKey, name: str) -> Channel | None:
        """Return a channel, unless it was inactive so long that it is gone with its token."""
        channel = self._channels.get((key, name))
        if channel is None or name == ELASTIC:
            return channel
        if not channel.expire(self.clock.now_ms() - CHANNEL_LIFETIME_MS):
            return channel
        with self.write_lock:
            self.store.remove_channel(self._cursor, channel.committed.channel_id)
            self._channels.pop((key, name), None)
        return None

    def _expire_channels(self) -> None:
        for key, name in list(self._channels):
            self._live_channel(key, name)

    def _check_room(self, pipe: Pipe, name: str) -> None:
        most = self._limits.channels_per_pipe
        if not most or name == ELASTIC:
            return
        self._expire_channels()
        if sum(1 for key, other in self._channels if key == pipe.key and other != ELASTIC) >= most:
            raise Refusal(
                400,
                TOO_MANY_CHANNELS,
                f"pipe {pipe.key.name} has {most} channels, the most it may have; drop unused ones",
            )


def _new_session(channel: Channel, session: int, offset_token: str | None, now_ms: int) -> Committed:
    stored = channel.committed
    token = stored.offset_token if offset_token is None else offset_token
    return dataclasses.replace(
        stored,
        client_sequencer=session,
        row_sequencer=0,
        offset_token=token,
        last_request_id=None,
        active_on_ms=now_ms,
    )


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _by_name(item: tuple[tuple[PipeKey, str], Channel]) -> tuple[str, str, str]:
    (key, name), _ = item
    return key.schema, key.name, name


__all__ = ["HIDDEN_SCHEMA", "PIPE_MISSING", "TABLE_MISSING", "Database"]
