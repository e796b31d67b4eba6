"""Transactions of sessions: locks of tables, and what a failed statement leaves of an open one."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import duckdb
import pyarrow as pa

from snowpipe_local.errors import SqlError
from snowpipe_local.tables import TEMPORARY, Table

log = logging.getLogger(__name__)

T = TypeVar("T")

# -- Locks of tables: who changes rows of a table waits for the transaction that has changed some ---------

# "Transactions", "Aborting transactions": an idle transaction that blocks another one is aborted so late.
_IDLE_SECONDS = 300.0
_LOOK_SECONDS = 1.0
_MOST_WAITERS = 20


class TableLocks:
    """Which transaction holds which table; a lock ends with its transaction ("Resource locking")."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: dict[str, Transaction] = {}
        # Whose statement waits, by the table.
        self.waiting: dict[Transaction, str] = {}
        # Ends of transactions are numbered, to tell which of them a snapshot has not seen.
        self._freed: dict[str, int] = {}
        self.ended = 0

    def take(self, who: Transaction, table: Table, seconds: float) -> bool:
        """Wait until nobody else holds a table, and hold it.

        :returns: True when another transaction has held it since this one began.
        :raises SqlError: 000625 when it cannot be waited for, or not any longer; 000604 after an interrupt.
        """
        key, deadline = table.folder, time.monotonic() + seconds
        with self._changed:
            try:
                while (holder := self._holders.get(key, who)) is not who:
                    left = deadline - time.monotonic()
                    why = self._hopeless(who, key) or (
                        f"it waited for {seconds:g} seconds (LOCK_TIMEOUT)" if left <= 0 else ""
                    )
                    if why:
                        raise _locked(table, holder, why)
                    self.waiting[who] = key
                    self._changed.wait(min(left, _LOOK_SECONDS))
                    if who not in self.waiting:
                        raise SqlError("000604", "57014", "SQL execution canceled")
                    holder.abort_if_idle()
            finally:
                self.waiting.pop(who, None)
            self._holders[key] = who
            return self._freed.get(key, 0) > who.seen

    def _hopeless(self, who: Transaction, key: str) -> str:
        """Return why a table is not waited for: a deadlock, or too many who wait already."""
        if who not in self.waiting and list(self.waiting.values()).count(key) >= _MOST_WAITERS:
            return f"the number of waiters for this lock exceeds the {_MOST_WAITERS} statements limit"
        last: Transaction | None = self._holders[key]
        while last is not None and last is not who:
            last = self._holders.get(self.waiting.get(last, ""))
        return "the transactions wait for each other (deadlock)" if last is who else ""

    def interrupt(self, who: Transaction) -> None:
        """Let the statement that waits for a lock in this transaction fail."""
        with self._changed:
            if self.waiting.pop(who, None) is not None:
                self._changed.notify_all()

    def free(self, who: Transaction) -> None:
        """End the locks of a transaction that was committed or rolled back."""
        with self._changed:
            self.ended += 1
            for key in [key for key, holder in self._holders.items() if holder is who]:
                del self._holders[key]
                self._freed[key] = self.ended
            self._changed.notify_all()


def _locked(table: Table, holder: Transaction, why: str) -> SqlError:
    name = table.name.partition(TEMPORARY)[0]
    message = (
        f"Table '{name}' is locked in transaction {holder.number or 'of a single statement'} and this lock "
        f"has not yet been released. Your statement was aborted because {why}."
    )
    return SqlError("000625", "57014", message)


# -- Transactions of a session, which a failed statement leaves open -------------------------------------


class Transaction:
    """The transaction of one session, open or not.

    In Snowflake a statement that fails takes back its own changes only ("Transactions", "Failed statements
    within a transaction"). DuckDB has no savepoints and aborts the whole transaction, so the changes of the
    earlier statements are kept as work that can be done again: after a failure a new transaction begins and
    repeats them. That is as if the transaction had begun later, which READ COMMITTED allows; a change that
    then has another result, because somebody else changed the same rows meanwhile, is not kept silently: the
    transaction is lost, and every statement fails until it is rolled back.

    READ COMMITTED, too, is such a repetition: what a statement is to change is locked first, and the changes
    before it are repeated where another transaction has changed that table since this one began.

    :param registered: Arrow tables that statements read; DuckDB forgets them with a transaction.
    :param guard: the session's lock, which its statements hold while they run.
    """

    def __init__(
        self,
        cursor: Callable[[], duckdb.DuckDBPyConnection],
        registered: Mapping[str, pa.Table],
        locks: TableLocks,
        guard: threading.RLock,
    ) -> None:
        self._cursor = cursor
        self._registered = registered
        self._locks = locks
        self._guard = guard
        self.seen = 0
        self.used_at = time.monotonic()
        self.is_open = False
        self._number = 0
        self._is_partial = False
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
            self.seen = self._locks.ended
            self._cursor().execute("BEGIN")
            self.is_open = True
            self._number = time.time_ns()

    @contextlib.contextmanager
    def holding(self, table: Table | None, seconds: float) -> Iterator[None]:
        """Hold a table while rows of it change, and to the end of the open transaction.

        :param table: None for nothing to hold.
        :raises SqlError: 000625 when another transaction holds it on; the open one stays as it is.
        """
        is_stale = table is not None and self._locks.take(self, table, seconds)
        try:
            if is_stale and self.is_open:
                self._repeat_or_lose()
                if self.lost is not None:
                    raise self.lost
            yield
        finally:
            if not self.is_open:
                self._locks.free(self)

    def abort_if_idle(self) -> None:
        """Roll back when the session has done nothing for so long that others need not wait any longer."""
        if time.monotonic() - self.used_at < _IDLE_SECONDS or not self._guard.acquire(blocking=False):
            return
        try:
            if self.is_open and self.lost is None:
                self._lose("The transaction was aborted: it was idle and blocked another one.")
        finally:
            self._guard.release()

    def change(self, work: Callable[[], T]) -> T:
        """Do a change in the open transaction, or in one of its own.

        :param work: changes rows through the session's cursor; done again when a later statement fails, with
            the same result.
        """
        with self.whole():
            result = work()
            self._changes.append((work, result))
        return result

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Keep all changes or none: in the open transaction, which stays open, or in one of their own."""
        own, before = not self.is_open, len(self._changes)
        self.begin()
        try:
            yield
            if own:
                self.commit()
        except BaseException:
            if own:
                self.rollback()
            else:
                # The engine may not know of the failure, and keep what was written before it.
                del self._changes[before:]
                self._is_partial = True
            raise

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
            try:
                self._cursor().execute("COMMIT")
            finally:
                self._locks.free(self)
            for work in after:
                work()

    def rollback(self) -> None:
        """Roll back; harmless without a transaction."""
        was_open = self.is_open and self.lost is None
        self._end()
        if was_open:
            self._roll_back_engine()
        self._locks.free(self)

    def restore(self) -> None:
        """After a failed statement: bring back what the open transaction had changed before it."""
        if not self.is_open or self.lost is not None:
            return
        self.is_restoring = True
        try:
            if self._is_partial or not self._is_usable():
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
            log.warning("a transaction is lost: %s", error)
            self._lose(
                "The transaction was rolled back: its earlier changes had to be made again, and another "
                "session changed meanwhile what they change."
            )

    def _lose(self, why: str) -> None:
        self._roll_back_engine()
        self.lost = SqlError("000625", "57014", f"{why} Run ROLLBACK, then the transaction again.")
        self._locks.free(self)

    def _repeat(self) -> None:
        self._is_partial = False
        self._roll_back_engine()
        self.seen = self._locks.ended
        self._cursor().execute("BEGIN")
        for name, table in self._registered.items():
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
        self.is_open, self._is_partial, self.lost = False, False, None
        self._changes, self._after_commit = [], []

    def _roll_back_engine(self) -> None:
        try:
            self._cursor().execute("ROLLBACK")
        except duckdb.TransactionException:
            # A COMMIT that failed has ended the transaction already.
            return
