"""Transactions of a session, which a failed statement leaves open."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import duckdb
import pyarrow as pa

from airflow_provider_snowpipe.local.errors import SqlError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Transaction:
    """The transaction of one session, open or not.

    In Snowflake a statement that fails takes back its own changes only ("Transactions", "Failed statements
    within a transaction"). DuckDB has no savepoints and aborts the whole transaction, so the changes of the
    earlier statements are kept as work that can be done again: after a failure a new transaction begins and
    repeats them. That is as if the transaction had begun later, which READ COMMITTED allows; a change that
    then has another result, because somebody else changed the same rows meanwhile, is not kept silently: the
    transaction is lost, and says so until it is rolled back.

    :param cursor: returns the session's cursor.
    :param lent: Arrow tables that statements read; DuckDB forgets them with a transaction.
    """

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection], lent: Mapping[str, pa.Table]) -> None:
        self._cursor = cursor
        self._lent = lent
        self.is_open = False
        self._number = 0
        self.is_restoring = False
        self.lost: SqlError | None = None
        self._changes: list[tuple[Callable[[], object], object]] = []
        self._after_commit: list[Callable[[], None]] = []

    @property
    def has_changes(self) -> bool:
        """True when an open transaction has changed something."""
        return bool(self._changes)

    @property
    def number(self) -> str | None:
        """What CURRENT_TRANSACTION answers: the time of the start in nanoseconds; None without one."""
        return str(self._number) if self.is_open else None

    def begin(self) -> None:
        """Start; one that is open stays open, as in Snowflake."""
        if not self.is_open:
            self._cursor().execute("BEGIN")
            self.is_open = True
            self._number = time.time_ns()

    def change(self, work: Callable[[], T]) -> T:
        """Do a change in the open transaction, or in one of its own.

        :param work: changes rows through the session's cursor; done again when a later statement fails, with
            the same result.
        """
        if self.is_open:
            result = work()
            self._changes.append((work, result))
            return result
        self.begin()
        try:
            result = work()
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return result

    def after_commit(self, work: Callable[[], None]) -> None:
        """Do something once the open transaction is committed, or now when there is none."""
        if self.is_open:
            self._after_commit.append(work)
        else:
            work()

    def commit(self) -> None:
        """Commit; harmless without a transaction.

        :raises SqlError: for a lost transaction, which stays as it is until it is rolled back.
        """
        if self.lost is not None:
            raise self.lost
        if self.is_open:
            after = self._after_commit
            self._end()
            self._cursor().execute("COMMIT")
            for work in after:
                work()

    def rollback(self) -> None:
        """Roll back; harmless without a transaction."""
        was_open = self.is_open and self.lost is None
        self._end()
        if was_open:
            self._roll_back_engine()

    def restore(self) -> None:
        """After a failed statement: bring back what the open transaction had changed before it."""
        if not self.is_open or self.lost is not None:
            return
        self.is_restoring = True
        try:
            if not self._is_usable():
                self._repeat_or_lose()
        finally:
            self.is_restoring = False

    def _repeat_or_lose(self) -> None:
        try:
            try:
                self._repeat()
            except duckdb.InterruptException:
                # It was meant for the statement that has ended.
                self._repeat()
        except (duckdb.Error, SqlError) as error:
            log.warning("a transaction is lost after a failed statement: %s", error)
            self._roll_back_engine()
            self.lost = SqlError(
                "000625",
                "57014",
                "The transaction was rolled back: one of its statements failed, and another session changed "
                "meanwhile what it had changed before. Run ROLLBACK, then the transaction again.",
            )

    def _repeat(self) -> None:
        self._roll_back_engine()
        self._cursor().execute("BEGIN")
        for name, table in self._lent.items():
            self._cursor().register(name, table)
        for work, result in self._changes:
            if work() != result:
                raise SqlError("000625", "57014", "the same statement changes other rows now")

    def _is_usable(self) -> bool:
        try:
            self._cursor().execute("SELECT 1").fetchall()
        except duckdb.Error:
            return False
        return True

    def _end(self) -> None:
        self.is_open, self.lost = False, None
        self._changes, self._after_commit = [], []

    def _roll_back_engine(self) -> None:
        try:
            self._cursor().execute("ROLLBACK")
        except duckdb.TransactionException:
            # A COMMIT that failed has ended the transaction already.
            return
