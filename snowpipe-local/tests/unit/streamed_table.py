"""A table of the local service's engine and writers to its channels, in the test's own process."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snowpipe_local.catalog import Catalog
from snowpipe_local.datadir import Clock, DataDirectory
from snowpipe_local.engine.channel import ELASTIC, Append, Channel
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.lines import split_lines
from snowpipe_local.engine.spool import Spool
from snowpipe_local.faults import Faults
from snowpipe_local.limits import Limits
from snowpipe_local.names import Pipe, PipeDefinition, PipeKey
from snowpipe_local.tables import NUMBER, TEXT, Column, Table

_numbers = itertools.count(1)
_requests = itertools.count(1)
Enqueue = Callable[[Append], None]


class Engine:
    """A catalog on a folder, with a spool, and no rate limits."""

    def __init__(self, folder: Path, limits: Limits | None = None, clock: Clock | None = None) -> None:
        self.home = DataDirectory(folder)
        self.home.create()
        self.faults = Faults()
        self.spool = Spool(self.home.spool_dir, self.home.stage_dir, self.home.spool_keys_file)
        self.catalog = Catalog(
            self.home.databases_dir, self.faults, limits or Limits(0.0, 0.0, 0), spool=self.spool, clock=clock
        )
        self.database = self.catalog.database("LOCAL")

    def table(self, **options: Any) -> StreamedTable:
        """A new table of the columns ID (a number, required) and NAME."""
        return StreamedTable(self.database, f"T{next(_numbers)}", **options)

    @contextmanager
    def after_a_crash(self, folder: Path) -> Iterator[Database]:
        """The database as a new process finds it that starts on the files as they are now."""
        shutil.copytree(self.home.databases_dir, folder)
        catalog = Catalog(folder, Faults())
        try:
            yield catalog.database("LOCAL")
        finally:
            catalog.close()


class StreamedTable:
    """A table, its default pipe, and what clients do with the channels."""

    def __init__(self, database: Database, name: str, *, schema: str = "PUBLIC", **options: Any) -> None:
        self.database, self.name, self.schema = database, name, schema
        columns = options.pop("columns", (Column("ID", NUMBER, nullable=False), Column("NAME", TEXT)))
        self.definition = Table("LOCAL", schema, name, columns, database.clock.now_ms(), **options)
        self.create()

    def create(self, *, replace: bool = False) -> None:
        engine_name = self.database.tables.engine_name(self.schema, self.name)
        self.definition = dataclasses.replace(self.definition, engine_name=engine_name)
        columns = ", ".join(column.ddl() for column in self.definition.columns)
        statement = f"CREATE TABLE {self.definition.path} ({columns})"
        self.database.tables.create(self.definition, [statement], replace=replace)

    @property
    def pipe(self) -> Pipe:
        return self.database.pipes.resolve(self.schema, f"{self.name}-STREAMING")

    def custom_pipe(self, **options: Any) -> Pipe:
        """A new pipe into the table, of a :class:`PipeDefinition` with these options."""
        key = PipeKey(self.schema, f"P{next(_numbers)}")
        self.database.pipes.create(key, self.name, PipeDefinition("COPY INTO ..", **options), replace=False)
        return self.database.pipes.resolve(*key)

    def open(
        self, name: str = "c", *, token: str | None = None, fail: bool = False, pipe: Pipe | None = None
    ) -> Channel:
        return self.database.channels.open(
            pipe or self.pipe, name, offset_token=token, fail_on_uncommitted_rows=fail
        )

    def elastic(self) -> Channel:
        channel = self.database.channels.find(self.pipe, ELASTIC)
        assert channel is not None
        return channel

    def send(
        self,
        channel: Channel,
        *rows: bytes,
        token: str | None = None,
        request: str | None = None,
        enqueue: Enqueue | None = None,
    ) -> Append:
        """Have a channel take an append; it waits for its commit with the committer by default."""
        made: list[Append] = []
        request = request or f"r{next(_requests)}"

        def make(client: int, row: int) -> Append:
            lines = split_lines(b"".join(line + b"\n" for line in rows))
            return Append(channel, client, row, request, lines, None, token, time.monotonic())

        def given(append: Append) -> None:
            made.append(append)
            (enqueue or self.database.committer.enqueue)(append)

        if channel.name == ELASTIC:
            channel.accept_unordered(request, make, given)
        else:
            channel.accept(channel.continuation_token, request, make, given)
        return made[0]

    def take(
        self, channel: Channel, *rows: bytes, token: str | None = None, request: str | None = None
    ) -> Append:
        """Have a channel take an append that the test commits by itself."""
        return self.send(channel, *rows, token=token, request=request, enqueue=lambda _: None)

    def rows(self, database: Database | None = None) -> list[tuple[Any, ...]]:
        """The table's rows in their order, here or in a database that was restored."""
        cursor = (database or self.database).committer_cursor.cursor()
        return cursor.execute(f"SELECT * FROM {self.definition.path} ORDER BY ALL").fetchall()

    def token(self, name: str = "c", database: Database | None = None) -> str | None:
        """The channel's committed token as the file has it."""
        store = (database or self.database).store
        cursor = (database or self.database).committer_cursor.cursor()
        (found,) = [
            state
            for pipe, channel, state in store.load_channels(cursor)
            if (pipe.name, channel) == (f"{self.name}-STREAMING", name)
        ]
        return found.offset_token


class MadeTable(StreamedTable):
    """A table of LOCAL.PUBLIC that a statement made."""

    def __init__(self, database: Database, name: str = "T") -> None:
        self.database, self.name, self.schema = database, name, "PUBLIC"

    def send_at_once(self, *lines: bytes) -> None:
        """Send rows, and wait for their commit."""
        self.send(self.open(), *lines).durable.result(20.0)


def row(number: int, name: str | None = None) -> bytes:
    """A row as a client sends it; without a name it lacks that key."""
    return f'{{"id":{number}}}'.encode() if name is None else f'{{"id":{number},"name":"{name}"}}'.encode()
