"""The streaming pipes of one database and their channels: opened, looked up, dropped, expired."""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Callable, Iterator

from snowpipe_local.definitions import transact
from snowpipe_local.engine.channel import (
    ELASTIC,
    MISSING,
    PIPE_MISSING,
    TABLE_MISSING,
    TOO_MANY_CHANNELS,
    Channel,
    Committed,
)
from snowpipe_local.engine.committer import Committer
from snowpipe_local.engine.file import DatabaseFile
from snowpipe_local.engine.tables import Tables
from snowpipe_local.errors import Refusal, object_exists, object_missing
from snowpipe_local.limits import Limits
from snowpipe_local.names import DEFAULT_PIPE_SUFFIX, Pipe, PipeDefinition, PipeKey, Rename
from snowpipe_local.tables import find_name

# -- The streaming pipes of one database: default pipes on first use, custom ones by CREATE PIPE ---------

_MISSING_TEXT = "does not exist or not authorized"


class Pipes:
    """The streaming pipes of one database; iterating gives all of them, by schema and name.

    Default pipes are there from their first use on. Threading: writes hold the database's write lock; the
    dictionary is replaced under it and read without it.

    :param gone: is called with the pipes that were dropped or replaced.
    """

    def __init__(self, file: DatabaseFile, tables: Tables, gone: Callable[[set[PipeKey]], None]) -> None:
        self._file = file
        self._cursor = file.cursor
        self._tables = tables
        self._gone = gone
        self._pipes = {pipe.key: pipe for pipe in file.store.load_pipes(file.cursor)}

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
        exact_schema = find_name(schema, self._file.schemas)
        if exact_schema is None:
            raise Refusal(404, PIPE_MISSING, f"schema {self._file.name}.{schema} {_MISSING_TEXT}")
        known = {key.name: pipe for key, pipe in self._pipes.items() if key.schema == exact_schema}
        exact = find_name(name, known)
        # A table of exactly this name goes before the pipe of one in another case.
        is_of_table = name.removesuffix(DEFAULT_PIPE_SUFFIX) in self._tables.names(exact_schema)
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
        with self._file.write_lock:
            exists = key in self._pipes
            if exists and not replace:
                raise object_exists(key.name)
            if self._tables.find(key.schema, table) is None:
                raise object_missing("Table", f"{self._file.name}.{key.schema}.{table}")
            pipe = Pipe(key, table, _new_key(), self._file.clock.now_ms(), definition)
            transact(self._cursor, lambda: self._replace(pipe))
            if exists:
                self._forget({key})
            self._pipes = {**self._pipes, key: pipe}

    def drop(self, key: PipeKey) -> None:
        """Drop a custom pipe with its channels.

        :raises SqlError: when it does not exist.
        """
        with self._file.write_lock:
            if key not in self._pipes:
                raise object_missing("Pipe", f"{self._file.name}.{key.schema}.{key.name}")
            transact(self._cursor, lambda: self._file.store.remove_pipe(self._cursor, key))
            self._forget({key})

    def forget_table(self, schema: str, table: str) -> None:
        """Forget the pipes of a table that is gone, with their channels; the caller holds the write lock."""
        self._forget(
            {key for key, pipe in self._pipes.items() if key.schema == schema and pipe.table == table}
        )

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema; the caller holds the write lock."""
        moved = [pipe.moved(change) for pipe in self._pipes.values()]
        self._pipes = {pipe.key: pipe for pipe in moved}

    def _replace(self, pipe: Pipe) -> None:
        self._file.store.remove_pipe(self._cursor, pipe.key)
        self._file.store.add_pipe(self._cursor, pipe)

    def _create_default(self, schema: str, name: str) -> Pipe:
        if not name.upper().endswith(DEFAULT_PIPE_SUFFIX):
            raise Refusal(404, PIPE_MISSING, f"pipe {self._file.name}.{schema}.{name} {_MISSING_TEXT}")
        table_name = name[: -len(DEFAULT_PIPE_SUFFIX)]
        with self._file.write_lock:
            table = find_name(table_name, self._tables.names(schema))
            if table is None:
                full_name = f"{self._file.name}.{schema}.{table_name}"
                raise Refusal(404, TABLE_MISSING, f"table {full_name} {_MISSING_TEXT}")
            key = PipeKey(schema, table + DEFAULT_PIPE_SUFFIX)
            if key not in self._pipes:
                pipe = Pipe(key, table, _new_key(), self._file.clock.now_ms())
                self._file.store.add_pipe(self._cursor, pipe)
                self._pipes = {**self._pipes, key: pipe}
            return self._pipes[key]

    def _forget(self, gone: set[PipeKey]) -> None:
        self._pipes = {key: pipe for key, pipe in self._pipes.items() if key not in gone}
        self._gone(gone)


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


# -- The channels of one database: opened, looked up, dropped, and gone after 30 days of inactivity ------

# Documentation, "Snowpipe Streaming channels": inactive channels and their tokens are deleted.
CHANNEL_LIFETIME_MS = 30 * 86_400_000


class Channels:
    """The channels of one database; iterating gives all that were opened, without the elastic ones.

    Threading: writes hold the database's write lock, opening and dropping the channel's ``open_lock`` before
    it; the dictionary is changed under the write lock and read without it.

    :param committer: discards the rows of fenced and dropped channels.
    """

    def __init__(self, file: DatabaseFile, pipes: Pipes, committer: Committer, limits: Limits) -> None:
        self._file = file
        self._cursor = file.cursor
        self._pipes = pipes
        self._committer = committer
        self._limits = limits
        self._channels: dict[tuple[PipeKey, str], Channel] = {}
        known = {pipe.key: pipe for pipe in pipes}
        for key, name, committed in file.store.load_channels(file.cursor):
            self._channels[key, name] = Channel(file.name, known[key], name, committed, limits)

    def __iter__(self) -> Iterator[Channel]:
        self._expire_inactive()
        return iter([self._channels[key] for key in sorted(self._channels) if key[1] != ELASTIC])

    def get(self, pipe: Pipe, name: str) -> Channel:
        """Return an open channel.

        :raises Refusal: 404 when no such channel was opened.
        """
        channel = self._live(pipe.key, name)
        if channel is None:
            raise Refusal(
                404, MISSING, f"channel {name} of pipe {pipe.key.name} does not exist; open it first"
            )
        return channel

    def find(self, pipe: Pipe, name: str) -> Channel | None:
        """Return a channel by its exact name, or None; the elastic channel always exists."""
        if name == ELASTIC:
            return self._get_or_create(pipe, ELASTIC)
        return self._live(pipe.key, name)

    def open(
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
            with self._file.write_lock:
                state = _new_session(channel, session, offset_token, self._file.clock.now_ms())
                self._file.store.update_channels(self._cursor, [state])
                channel.session_stored(state)
        return channel

    def set_offset_token(self, pipe: Pipe, name: str, token: str) -> Channel:
        """Set the committed token of a channel; its session and its rows stay as they are.

        :raises Refusal: 404 when no such channel was opened.
        """
        channel = self.get(pipe, name)
        with channel.open_lock, self._file.write_lock:
            state = dataclasses.replace(channel.committed, offset_token=token)
            self._file.store.update_channels(self._cursor, [state])
            channel.session_stored(state)
        return channel

    def drop(self, pipe: Pipe, name: str, *, fail_on_uncommitted_rows: bool = False) -> Channel:
        """Drop a channel with its token and its uncommitted rows.

        :param fail_on_uncommitted_rows: refuse instead of discarding rows.
        :raises Refusal: 404 for an unknown channel, 409 for uncommitted rows, 400 for the elastic channel.
        """
        if name.upper() == ELASTIC:
            raise Refusal(400, "ERR_RESERVED_CHANNEL_NAME", "the ELASTIC channel cannot be dropped")
        channel = self.get(pipe, name)
        with channel.open_lock, self._file.write_lock:
            channel.drop(self._forget_stored, fail_on_uncommitted_rows=fail_on_uncommitted_rows)
            self._committer.discard(channel, wait=False)
            self._channels.pop((pipe.key, name), None)
        return channel

    def forget(self, gone: set[PipeKey]) -> None:
        """Drop the channels of pipes that are gone; the caller holds the write lock."""
        for (key, name), channel in list(self._channels.items()):
            if key in gone:
                channel.drop()
                self._committer.discard(channel, wait=False)
                del self._channels[key, name]

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema; tokens and sessions stay.

        The caller holds the write lock.
        """
        for channel in self._channels.values():
            channel.moved(change.new[0], channel.pipe.moved(change))
        self._channels = {(channel.pipe.key, channel.name): channel for channel in self._channels.values()}

    def _get_or_create(self, pipe: Pipe, name: str) -> Channel:
        existing = self._live(pipe.key, name)
        if existing is not None:
            return existing
        with self._file.write_lock:
            current = self._pipes.current(pipe)
            if (pipe.key, name) not in self._channels:
                self._check_limit(pipe, name)
                file = self._file
                state = file.store.add_channel(self._cursor, pipe.key, name, file.clock.now_ms())
                self._channels[pipe.key, name] = Channel(file.name, current, name, state, self._limits)
            return self._channels[pipe.key, name]

    def _live(self, key: PipeKey, name: str) -> Channel | None:
        """Return a channel, unless it was inactive so long that it is gone with its token."""
        channel = self._channels.get((key, name))
        if channel is None or name == ELASTIC:
            return channel
        before_ms = self._file.clock.now_ms() - CHANNEL_LIFETIME_MS
        if channel.committed.active_on_ms >= before_ms:
            return channel
        with self._file.write_lock:
            if not channel.expire(before_ms, self._forget_stored):
                return channel
            self._channels.pop((key, name), None)
        return None

    def _forget_stored(self, channel_id: int) -> None:
        self._file.store.remove_channel(self._cursor, channel_id)

    def _expire_inactive(self) -> None:
        for key, name in list(self._channels):
            self._live(key, name)

    def _check_limit(self, pipe: Pipe, name: str) -> None:
        most = self._limits.channels_per_pipe
        if not most or name == ELASTIC:
            return
        self._expire_inactive()
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
