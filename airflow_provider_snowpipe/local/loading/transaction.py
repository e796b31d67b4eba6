"""The transaction of a load: it runs beside commits of channels, and again when one gets in its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import duckdb

from airflow_provider_snowpipe.local.engine.database import Database

T = TypeVar("T")
_ATTEMPTS = 5


def commit_load(database: Database, cursor: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Run work in a transaction of its own.

    Commits of channels go on while it reads; one that changes the table makes it start again, the last time
    with everything else held up.

    :param database: loads into one database wait for each other.
    :param cursor: cursor that the work uses; it must not be in a transaction.
    :param work: writes through the cursor; it may run more than once.
    """
    with database.load_lock:
        for _ in range(_ATTEMPTS):
            try:
                return _attempt(database, cursor, work)
            except duckdb.TransactionException:
                continue
        with database.write_lock:
            return _attempt(database, cursor, work)


def _attempt(database: Database, cursor: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    cursor.execute("BEGIN")
    try:
        result = work()
        with database.write_lock:
            database.reach("before-load-commit")
            cursor.execute("COMMIT")
            database.dirty = True
            database.reach("after-load-commit")
    except BaseException:
        _roll_back(cursor)
        raise
    return result


def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.TransactionException:
        # A COMMIT that failed has ended the transaction already.
        return
