"""Statements while they run and after: waiting for them, cancelling them, asking for their result again."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import sqlglot.errors
from sqlglot import exp

from snowpipe_local.errors import SqlError
from snowpipe_local.sql import front, history, query, results, translate, types
from snowpipe_local.sql.reader import strip_comments
from snowpipe_local.sql.results import OTHER, Result, ResultColumn
from snowpipe_local.sql.session import Session

# -- Description of a statement without running it: ``describeOnly`` of the connector protocol -----------
#
# Connector 5.2.0 asks for it before an ``executemany``, and ``cursor.describe`` of both generations uses
# it.

_ROW_STATEMENTS = (exp.Query, exp.Insert, exp.Update, exp.Delete, exp.Merge)


def describe(session: Session, statement: str) -> tuple[Result, int]:
    """Return what a statement would return, without rows, and how many placeholders it has.

    :raises SqlError: when it does not compile.
    """
    text = strip_comments(statement).rstrip().rstrip(";")
    with session.lock, front.snowflake_errors(session):
        try:
            tree = translate.parse(text) if text[:1].upper() in set("SWVIUDM(") else None
        except (sqlglot.errors.SqlglotError, SqlError):
            # SHOW and other statements that only the front itself can read.
            tree = None
        if text[:4].upper() in {"SHOW", "DESC"}:
            found = front.listed(session, text)
            return Result(found.columns, [], found.statement_type), 0
        if not isinstance(tree, _ROW_STATEMENTS):
            return Result(results.status("").columns, [], results.OTHER), 0
        translate.number_placeholders(tree)
        binds = len({node.name for node in tree.find_all(exp.Parameter) if node.meta.get("bound")})
        if isinstance(tree, exp.Query):
            return _columns(session, tree, binds), binds
        counted = query.counts(translate.prepare(session, tree))
        return Result(counted.columns, [], counted.statement_type), binds


def _columns(session: Session, tree: exp.Query, binds: int) -> Result:
    projections = [node.unalias() for node in tree.selects] if isinstance(tree, exp.Select) else []
    prepared = translate.prepare(session, tree)
    sql = translate.to_duckdb(prepared)
    found = session.cursor.execute(f"DESCRIBE {sql}", [None] * binds).fetchall()
    shown = prepared.meta_get(types.SHOWN)
    return Result(query.described(projections, [(row[0], row[1]) for row in found], shown), [])


# -- Statements while they run and after: waiting for them, cancelling them, asking for their result again --

_REMEMBERED = 256
_CANCEL_SECONDS = 5.0
_DAY_SECONDS = 86_400.0
_CANCEL_POLL_SECONDS = 0.05


class _Ending:
    """Something that ends once."""

    def __init__(self) -> None:
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """True when it has ended."""
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; False when the time ran out first."""
        return self._done.wait(seconds)


class Execution(_Ending):
    """One statement. It runs once, on the thread that calls :meth:`run`; all else may come from any thread.

    :param bindings: bound values, as :func:`front.execute` takes them.
    :param parameters: the statement's own, which the session does not keep.
    """

    def __init__(
        self,
        session: Session,
        statement: str,
        bindings: Mapping[str, Mapping[str, Any]] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.query_id = str(uuid.uuid4())
        self.session = session
        self.statement = statement
        self.created_on_ms = int(time.time() * 1000)
        self.result: Result | None = None
        self.error: SqlError | None = None
        # What a client fetches of a large result after its first rows, for which it has to show the key.
        self.chunks: list[bytes] = []
        self.chunk_key = secrets.token_urlsafe()
        self.parameters = {name.upper(): value for name, value in (parameters or {}).items()}
        self._bindings = bindings
        self._interruption: SqlError | None = None
        super().__init__()

    def run(self) -> None:
        """Run the statement to its end; failures are kept in :attr:`error`."""
        seconds = self.session.seconds_of(self.parameters)
        entry = history.begin(self.session, self.query_id, self.statement, self.parameters)
        timer = None
        # A thread costs more than a small statement: none for the days that are the default.
        if 0 < seconds < _DAY_SECONDS:
            timer = threading.Timer(seconds, self.cancel, [timed_out(seconds)])
            timer.daemon = True
            timer.start()
        try:
            with self.session.lock:
                if self._interruption is not None:
                    raise self._interruption
                self.result = front.execute(
                    self.session, self.statement, self._bindings, self.query_id, self.parameters
                )
        except SqlError as error:
            self.error = self._interruption or error
        finally:
            if timer is not None:
                timer.cancel()
            history.end(self.session, entry, self.result, self.error)
            self._done.set()

    def abandon(self, error: SqlError) -> None:
        """Finish a statement that is never to run, because one before it failed."""
        self.error = error
        self._done.set()

    @property
    def held_bytes(self) -> int:
        """About what its result takes in memory."""
        return 0 if self.result is None else self.result.held_bytes

    def expire(self) -> None:
        """Forget the rows of the result."""
        if self.result is not None:
            self.result = dataclasses.replace(self.result, rows=[], held_bytes=0, has_expired=True)
            self.chunks = []

    def cancel(self, reason: SqlError | None = None) -> bool:
        """Stop the statement and wait until it has stopped.

        :param reason: error of the statement; None for a cancellation by the user.
        :returns: False when the statement had ended by itself.
        """
        if self.is_done:
            return False
        self._interruption = reason or SqlError("000604", "57014", "SQL execution canceled")
        deadline = time.monotonic() + _CANCEL_SECONDS
        # An interrupt between two engine calls is lost, so it is repeated until the statement has ended.
        while not self._done.wait(_CANCEL_POLL_SECONDS) and time.monotonic() < deadline:
            self.session.interrupt()
        return self.error is self._interruption


class Batch(_Ending):
    """Statements that run one after the other until one fails.

    :param parts: at least one.
    """

    def __init__(self, parts: Sequence[Execution]) -> None:
        self.parts = parts
        self.session = parts[0].session
        self.statement = "; ".join(part.statement for part in parts)
        # A single statement is its own handle; several have a handle of their own beside it.
        self.query_id = parts[0].query_id if len(parts) == 1 else str(uuid.uuid4())
        super().__init__()

    def run(self) -> None:
        """Run to the end or to the first failure."""
        failed: SqlError | None = None
        try:
            for part in self.parts:
                if failed is None:
                    part.run()
                    failed = part.error
                else:
                    part.abandon(failed)
        finally:
            self._done.set()

    def cancel(self, reason: SqlError | None = None) -> bool:
        """Stop what runs; what has not begun never does. False when all had ended."""
        return any([part.cancel(reason) for part in self.parts])

    @property
    def error(self) -> SqlError | None:
        """The first failure."""
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def result(self) -> Result | None:
        """Result of the request; of several statements, the one cell that reports it."""
        if len(self.parts) == 1:
            return self.parts[0].result
        message = "Multiple statements executed successfully."
        return Result((ResultColumn("multiple statement execution"),), [(message,)], OTHER)

    @property
    def created_on_ms(self) -> int:
        """Time of the request."""
        return self.parts[0].created_on_ms


def timed_out(seconds: float) -> SqlError:
    """Return the error of a statement that took too long (000630)."""
    why = f"Statement reached its statement or warehouse timeout of {seconds:g} second(s) and was canceled."
    return SqlError("000630", "57014", why)


def expired(query_id: str) -> SqlError:
    """Return the error of who asks for a result that the service has forgotten (000710)."""
    return SqlError("000710", "02000", f"Result for query {query_id} has expired")


class Executions:
    """The last statements of one front, by query id and by the client's request id.

    :param most_bytes: about what their results may take in memory together; older ones expire.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, Any] = OrderedDict()
        self._by_request: OrderedDict[tuple[Hashable, str], tuple[str, Any]] = OrderedDict()

    def get_or_add(
        self, owner: Hashable, request_id: str | None, content: object, make: Callable[[], Any]
    ) -> tuple[Any, bool]:
        """Return what a request started, starting it only when the request id is new to its owner.

        :param owner: owner of the request id: the session, or the user where there is none.
        :param request_id: the client's id of the request; a repeat after a lost answer carries the same.
        :param make: makes an object with a ``query_id``.
        :returns: the object, and whether it was made now.
        :raises SqlError: when the owner used the id for something else.
        """
        # A repetition is the same body, with its keys in the same order.
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        with self._lock:
            if request_id and (owner, request_id) in self._by_request:
                known, made = self._by_request[owner, request_id]
                if known != digest:
                    raise SqlError(
                        "391902",
                        "22023",
                        f"The requestId {request_id[:80]} was used for another statement; each statement "
                        "needs an id of its own, which only its repetitions share.",
                    )
                return made, False
            made = make()
            self._by_id[made.query_id] = made
            if request_id:
                self._by_request[owner, request_id] = digest, made
            while len(self._by_id) > _REMEMBERED:
                self._by_id.popitem(last=False)
            while len(self._by_request) > _REMEMBERED:
                self._by_request.popitem(last=False)
            self._expire()
            return made, True

    def add(self, made: Any) -> None:
        """Remember one more object by its ``query_id``."""
        with self._lock:
            self._by_id[made.query_id] = made

    def _expire(self) -> None:
        single = [made for made in self._by_id.values() if isinstance(made, Execution)]
        held = sum(made.held_bytes for made in single)
        for made in single:
            if held <= self._most_bytes:
                break
            held -= made.held_bytes
            if made.held_bytes:
                made.expire()

    def find(self, query_id: str) -> Any | None:
        """Return what has this query id, or None."""
        with self._lock:
            return self._by_id.get(query_id)

    def cancel_all(self, concerns: Callable[[Any], bool] = lambda _made: True) -> None:
        """Stop what still runs, all of it at the same time.

        :param concerns: False for what may go on.
        """
        with self._lock:
            running = [made for made in self._by_id.values() if not made.wait(0) and concerns(made)]
        threads = [threading.Thread(target=made.cancel, daemon=True) for made in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def find_request(self, owner: Hashable, request_id: str) -> Any | None:
        """Return what a request of an owner started, or None."""
        with self._lock:
            return self._by_request.get((owner, request_id), ("", None))[1]


def in_background(work: Callable[[], None]) -> None:
    """Run work on a thread that does not hold up the end of the process."""
    threading.Thread(target=work, name="statement", daemon=True).start()
