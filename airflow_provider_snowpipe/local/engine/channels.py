"""The channels of one database: opened, looked up, dropped, and gone after 30 days of inactivity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import duckdb

from airflow_provider_snowpipe.local.engine.channel import ELASTIC, MISSING, Channel
from airflow_provider_snowpipe.local.engine.committed import Committed
from airflow_provider_snowpipe.local.engine.pipe import Pipe, PipeKey
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.limits import Limits

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.database import Database

TOO_MANY_CHANNELS = "ERR_TOO_MANY_CHANNELS_IN_PIPE"
# Documentation, "Snowpipe Streaming channels": inactive channels and their tokens are deleted.
CHANNEL_LIFETIME_MS = 30 * 86_400_000


class Channels:
    """The channels of one database; iterating gives all that were opened, without the elastic ones.

    Threading: writes hold the database's write lock, opening and dropping the channel's ``open_lock`` before
    it; the dictionary is changed under the write lock and read without it.

    :param database: whose committer discards the rows of fenced and dropped channels.
    :param cursor: the database's own cursor.
    :param limits: limits of channels and pipes.
    """

    def __init__(self, database: Database, cursor: duckdb.DuckDBPyConnection, limits: Limits) -> None:
        self._database = database
        self._cursor = cursor
        self._limits = limits
        self._channels: dict[tuple[PipeKey, str], Channel] = {}
        pipes = {pipe.key: pipe for pipe in database.pipes}
        for key, name, committed in database.store.load_channels(cursor, database.clock.now_ms()):
            self._channels[key, name] = Channel(database.name, pipes[key], name, committed, limits)

    def __iter__(self) -> Iterator[Channel]:
        self._expire_inactive()
        opened = sorted(self._channels.items(), key=_by_name)
        return iter([channel for (_, name), channel in opened if name != ELASTIC])

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
            self._database.committer.discard(channel)
            with self._database.write_lock:
                state = _new_session(channel, session, offset_token, self._database.clock.now_ms())
                self._database.store.update_channels(self._cursor, [state])
                channel.session_stored(state)
        return channel

    def set_offset_token(self, pipe: Pipe, name: str, token: str) -> Channel:
        """Set the committed token of a channel; its session and its rows stay as they are.

        :raises Refusal: 404 when no such channel was opened.
        """
        channel = self.get(pipe, name)
        with channel.open_lock, self._database.write_lock:
            state = dataclasses.replace(channel.committed, offset_token=token)
            self._database.store.update_channels(self._cursor, [state])
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
        with channel.open_lock:
            channel.drop(fail_on_uncommitted_rows=fail_on_uncommitted_rows)
            self._database.committer.discard(channel)
            with self._database.write_lock:
                self._database.store.remove_channel(self._cursor, channel.committed.channel_id)
                self._channels.pop((pipe.key, name), None)
        return channel

    def forget(self, gone: set[PipeKey]) -> None:
        """Drop the channels of pipes that are gone; the caller holds the write lock."""
        for (key, name), channel in list(self._channels.items()):
            if key in gone:
                channel.drop()
                self._database.committer.discard(channel, wait=False)
                del self._channels[key, name]

    def follow(self, change: Rename) -> None:
        """Follow a new name of the database or a schema, once the pipes have; tokens and sessions stay.

        The caller holds the write lock.
        """
        pipes = {pipe.key: pipe for pipe in self._database.pipes}
        moved: dict[tuple[PipeKey, str], Channel] = {}
        for (key, name), channel in self._channels.items():
            database, schema = change.moved((change.old[0], key.schema))
            channel.moved(database, pipes[PipeKey(schema, key.name)])
            moved[channel.pipe.key, name] = channel
        self._channels = moved

    def _get_or_create(self, pipe: Pipe, name: str) -> Channel:
        existing = self._live(pipe.key, name)
        if existing is not None:
            return existing
        with self._database.write_lock:
            current = self._database.pipes.current(pipe)
            if (pipe.key, name) not in self._channels:
                self._check_room(pipe, name)
                database = self._database
                state = database.store.add_channel(self._cursor, pipe.key, name, database.clock.now_ms())
                self._channels[pipe.key, name] = Channel(database.name, current, name, state, self._limits)
            return self._channels[pipe.key, name]

    def _live(self, key: PipeKey, name: str) -> Channel | None:
        """Return a channel, unless it was inactive so long that it is gone with its token."""
        channel = self._channels.get((key, name))
        if channel is None or name == ELASTIC:
            return channel
        if not channel.expire(self._database.clock.now_ms() - CHANNEL_LIFETIME_MS):
            return channel
        with self._database.write_lock:
            self._database.store.remove_channel(self._cursor, channel.committed.channel_id)
            self._channels.pop((key, name), None)
        return None

    def _expire_inactive(self) -> None:
        for key, name in list(self._channels):
            self._live(key, name)

    def _check_room(self, pipe: Pipe, name: str) -> None:
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


def _by_name(item: tuple[tuple[PipeKey, str], Channel]) -> tuple[str, str, str]:
    (key, name), _ = item
    return key.schema, key.name, name
