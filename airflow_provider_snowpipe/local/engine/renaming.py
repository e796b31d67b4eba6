"""A database or schema gets another name: tables, pipes, channels and stages stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.engine.store import transact

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

    from airflow_provider_snowpipe.local.engine.database import Database


def rename(database: Database, cursor: duckdb.DuckDBPyConnection, change: Rename) -> None:
    """Rename a database, or one of its schemas, in one transaction, then in memory.

    Rows, tokens, queued appends and open sessions of channels stay; a commit before and one after it write
    to the same table. The caller holds the database's load lock and write lock.

    :param cursor: the database's own cursor.
    :raises SqlError: 002002 when the name is taken, 002003 when there is no such schema.
    """
    database.names.check_free(change)
    followers: list[Callable[[], None]] = []

    def write() -> None:
        database.names.write(change)
        followers.extend(
            room.follow(change) for room in (database.stages, database.file_pipes, database.objects)
        )
        database.reach("before-rename-commit")

    transact(cursor, write)
    database.reach("after-rename-commit")
    database.tables.follow(change)
    database.pipes.follow(change)
    database.channels.follow(change)
    for follow in followers:
        follow()
    database.names.follow(change)
    database.dirty = True


def follow_elsewhere(database: Database, cursor: duckdb.DuckDBPyConnection, change: Rename) -> None:
    """Let the stages of another database follow, whose file format was renamed with its place."""
    with database.write_lock:
        followers: list[Callable[[], None]] = []
        transact(cursor, lambda: followers.append(database.stages.follow(change)))
        for follow in followers:
            follow()
