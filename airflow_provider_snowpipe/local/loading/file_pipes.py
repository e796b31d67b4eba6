"""Pipes that load files: their definitions and their queues, in the hidden schema of one database."""

# ruff: noqa: S608 - names go through identifiers.quote, values are bound.

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from airflow_provider_snowpipe.local.engine.pipe import PipeKey
from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.store import transact
from airflow_provider_snowpipe.local.errors import object_exists, object_missing
from airflow_provider_snowpipe.local.identifiers import literal

if TYPE_CHECKING:
    from airflow_provider_snowpipe.local.engine.names import Names

_ARRIVED = "_arrived_files"
_DDL = """
CREATE SEQUENCE IF NOT EXISTS {s}.queue_ids;
CREATE TABLE IF NOT EXISTS {s}.file_pipes (schema_name VARCHAR, pipe_name VARCHAR, created_on_ms BIGINT,
    definition VARCHAR);
CREATE TABLE IF NOT EXISTS {s}.pipe_queue (id BIGINT, schema_name VARCHAR, pipe_name VARCHAR, path VARCHAR,
    size BIGINT, received_on_ms BIGINT);
"""


@dataclass(frozen=True, slots=True)
class FilePipe:
    """One pipe that loads files with a COPY statement.

    :param key: exact schema and name.
    :param created_on_ms: creation time, epoch milliseconds.
    :param text: the COPY statement, from COPY on.
    :param table_schema: schema of the table that it fills.
    :param table: the table.
    :param auto_ingest: events of the stage's files feed the queue.
    :param comment: comment, or None.
    :param integration: INTEGRATION, remembered only.
    :param sns_topic: AWS_SNS_TOPIC, remembered only.
    :param error_integration: ERROR_INTEGRATION, remembered only.
    :param pattern: PATTERN of the COPY statement, for SHOW PIPES.
    :param paused_on_ms: since when it is paused, or None.
    """

    key: PipeKey
    created_on_ms: int
    text: str
    table_schema: str
    table: str
    auto_ingest: bool = False
    comment: str | None = None
    integration: str | None = None
    sns_topic: str | None = None
    error_integration: str | None = None
    pattern: str | None = None
    paused_on_ms: int | None = None

    @property
    def notification_channel(self) -> str | None:
        """Where its events come from, as SHOW PIPES tells it; None without AUTO_INGEST."""
        return (self.sns_topic or "local") if self.auto_ingest else None

    @property
    def copy_body(self) -> str:
        """The statement after COPY INTO."""
        return self.text.split(None, 2)[2]

    def to_json(self) -> str:
        """Return the form that the hidden table keeps."""
        kept = dataclasses.asdict(self)
        del kept["key"], kept["created_on_ms"]
        return json.dumps(kept)

    @classmethod
    def from_json(cls, schema: str, name: str, created_on_ms: int, text: str) -> FilePipe:
        """Read the form that :meth:`to_json` writes."""
        return cls(PipeKey(schema, name), created_on_ms, **json.loads(text))


@dataclass(frozen=True, slots=True)
class QueuedFile:
    """One file that waits in the queue of a pipe.

    :param id: order of arrival.
    :param path: path relative to the stage location of the pipe.
    :param size: bytes as the client said, or None.
    :param received_on_ms: when the service heard of it.
    """

    id: int
    path: str
    size: int | None
    received_on_ms: int


@dataclass(frozen=True, slots=True)
class PipeFailure:
    """Why a pipe does not load.

    :param state: executionState of SYSTEM$PIPE_STATUS.
    :param message: the error.
    :param at_ms: when it was seen, epoch milliseconds.
    """

    state: str
    message: str
    at_ms: int


class FilePipes:
    """File pipes of one database.

    Threading: writes hold the database's write lock; the dictionary is replaced under it and read without it.

    :param names: names of the database and its schemas.
    :param cursor: the database's own cursor.
    :param write_lock: the database's write lock.
    """

    def __init__(self, names: Names, cursor: duckdb.DuckDBPyConnection, write_lock: threading.RLock) -> None:
        self._names = names
        self._cursor = cursor
        self._lock = write_lock
        self._schema = names.hidden_schema
        cursor.execute(_DDL.format(s=self._schema))
        rows = cursor.execute(f"SELECT * FROM {self._schema}.file_pipes").fetchall()
        self._pipes = {pipe.key: pipe for pipe in (FilePipe.from_json(*row) for row in rows)}

    @property
    def pipes(self) -> list[FilePipe]:
        """All file pipes, by schema and name."""
        return sorted(self._pipes.values(), key=lambda pipe: (pipe.key.schema, pipe.key.name))

    def find(self, key: PipeKey) -> FilePipe | None:
        """Return a pipe by its exact name, or None."""
        return self._pipes.get(key)

    def create(self, pipe: FilePipe, *, replace: bool) -> None:
        """Create a pipe; replacing one empties its queue and forgets its loads.

        :raises SqlError: when it exists and is not to be replaced.
        """
        with self._lock:
            self._names.require_schema(pipe.key.schema)
            if pipe.key in self._pipes and not replace:
                raise object_exists(f"{self._names.database}.{pipe.key.schema}.{pipe.key.name}")
            transact(self._cursor, lambda: self._replace(pipe))
            self._pipes = {**self._pipes, pipe.key: pipe}

    def change(self, pipe: FilePipe) -> None:
        """Change the options of a pipe; queue and history stay.

        :raises SqlError: when it is gone.
        """
        with self._lock:
            if pipe.key not in self._pipes:
                raise object_missing("Pipe", f"{self._names.database}.{pipe.key.schema}.{pipe.key.name}")
            self._cursor.execute(
                f"UPDATE {self._schema}.file_pipes SET definition = ? "
                f"WHERE schema_name = ? AND pipe_name = ?",
                [pipe.to_json(), pipe.key.schema, pipe.key.name],
            )
            self._pipes = {**self._pipes, pipe.key: pipe}

    def drop(self, key: PipeKey) -> None:
        """Drop a pipe with its queue; files that wait are not loaded."""
        with self._lock:
            transact(self._cursor, lambda: self._delete(key))
            self._pipes = {known: pipe for known, pipe in self._pipes.items() if known != key}

    def drop_schema(self, schema: str) -> None:
        """Drop the pipes of a schema."""
        for pipe in self.pipes:
            if pipe.key.schema == schema:
                self.drop(pipe.key)

    def follow(self, change: Rename) -> Callable[[], None]:
        """Write what a new name of the database or a schema changes beside the schemas' names.

        :returns: makes the picture in memory follow, once the open transaction is committed.
        """
        moved = [_moved(pipe, change) for pipe in self._pipes.values()]
        for pipe in moved:
            self._cursor.execute(
                f"UPDATE {self._schema}.file_pipes SET definition = ? "
                f"WHERE schema_name = ? AND pipe_name = ?",
                [pipe.to_json(), pipe.key.schema, pipe.key.name],
            )

        def follow() -> None:
            self._pipes = {pipe.key: pipe for pipe in moved}

        return follow

    # -- queue ----------------------------------------------------------------------------------------------

    def enqueue(self, key: PipeKey, files: Iterable[tuple[str, int | None]], now_ms: int) -> None:
        """Queue files durably; those that wait already are not queued again.

        :param files: path relative to the pipe's location, and size or None.
        :raises SqlError: when the pipe is gone.
        """
        unique = dict(files)
        table = pa.table(
            {"path": pa.array(unique, pa.string()), "size": pa.array(unique.values(), pa.int64())}
        )
        with self._lock:
            if key not in self._pipes:
                raise object_missing("Pipe", f"{self._names.database}.{key.schema}.{key.name}")
            self._cursor.register(_ARRIVED, table)
            sequence = literal(f"{self._schema}.queue_ids")
            try:
                self._cursor.execute(
                    f"INSERT INTO {self._schema}.pipe_queue SELECT nextval({sequence}), ?, ?, path, size, ? "
                    f"FROM {_ARRIVED} WHERE path NOT IN (SELECT path FROM {self._schema}.pipe_queue "
                    f"WHERE schema_name = ? AND pipe_name = ?)",
                    [key.schema, key.name, now_ms, key.schema, key.name],
                ).fetchall()
            finally:
                self._cursor.unregister(_ARRIVED)

    def waiting(self, cursor: duckdb.DuckDBPyConnection, key: PipeKey, most: int) -> list[QueuedFile]:
        """Return the files that wait longest."""
        rows = cursor.execute(
            f"SELECT id, path, size, received_on_ms FROM {self._schema}.pipe_queue "
            f"WHERE schema_name = ? AND pipe_name = ? ORDER BY id LIMIT {int(most)}",
            [key.schema, key.name],
        ).fetchall()
        return [QueuedFile(*row) for row in rows]

    def count_waiting(self, cursor: duckdb.DuckDBPyConnection, key: PipeKey) -> int:
        """Return how many files wait."""
        ((count,),) = cursor.execute(
            f"SELECT count(*) FROM {self._schema}.pipe_queue WHERE schema_name = ? AND pipe_name = ?",
            [key.schema, key.name],
        ).fetchall()
        return int(count)

    def take(self, cursor: duckdb.DuckDBPyConnection, files: Sequence[QueuedFile]) -> None:
        """Remove files from the queue in the open transaction of a cursor, together with their rows."""
        cursor.execute(
            f"DELETE FROM {self._schema}.pipe_queue WHERE id IN (SELECT unnest(?::BIGINT[]))",
            [[file.id for file in files]],
        )

    def _replace(self, pipe: FilePipe) -> None:
        self._delete(pipe.key)
        self._cursor.execute(
            f"INSERT INTO {self._schema}.file_pipes VALUES (?, ?, ?, ?)",
            [pipe.key.schema, pipe.key.name, pipe.created_on_ms, pipe.to_json()],
        )

    def _delete(self, key: PipeKey) -> None:
        for relation in ("file_pipes", "pipe_queue"):
            self._cursor.execute(
                f"DELETE FROM {self._schema}.{relation} WHERE schema_name = ? AND pipe_name = ?",
                [key.schema, key.name],
            )


def _moved(pipe: FilePipe, change: Rename) -> FilePipe:
    _, schema = change.moved((change.old[0], pipe.key.schema))
    _, table_schema = change.moved((change.old[0], pipe.table_schema))
    return dataclasses.replace(pipe, key=PipeKey(schema, pipe.key.name), table_schema=table_schema)
