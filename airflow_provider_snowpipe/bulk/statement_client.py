"""The SQL API, whose statements outlive the process that submitted them, and a run's COPY through it, once.

A request id makes a submission repeatable: Snowflake runs the statement of one id once, and answers a
repetition with the state of that run (page "Snowflake SQL REST API").
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyInto, CopyOutcome, RunIdentity
from airflow_provider_snowpipe.bulk.staged_files import (
    LOAD_FAILED,
    LOADED,
    PARTIALLY_LOADED,
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StageReference,
    is_of_stage,
    newest_loads,
)
from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair, Signed, base_url
from airflow_provider_snowpipe.streaming.errors import ApiError, SqlError
from airflow_provider_snowpipe.streaming.http import Answer, HttpSession, Transports
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import full_name, grant_remedy, quote_url_segment
from airflow_provider_snowpipe.streaming.table_schema import TableColumn, columns_of_describe

_RUNNING = 202
_FAILED = (408, 422)
_ENDED_ALREADY = "000709"
_SHOWN = 60
_WAIT_SECONDS = 60
_POLL_SECONDS = 0.2


# pragma: no mutate start (tested over the wire)


@dataclass(frozen=True, slots=True)
class StatementState:
    """What the service reports of one statement.

    :param rows: its result once it has one, the columns' names in lower case; None while it runs
    :param created: when it was submitted, None where the service does not report that
    """

    handle: str
    rows: list[dict[str, Any]] | None = field(default=None, repr=False)
    created: dt.datetime | None = None

    @property
    def is_running(self) -> bool:
        """True while there is no result."""
        return self.rows is None


class StatementClient:
    """A client of an account's SQL API; takes key pairs, access tokens and OAuth.

    The constructor does no I/O.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param warehouse: the warehouse, None for the user's default
    :param role: the role, None for the user's default
    :param ca_bundle: a PEM file of trusted roots, None for the environment's or the public ones
    :raises ConfigurationError: if the URL or the bundle is not usable
    """

    def __init__(
        self,
        account_url: str,
        credentials: Credentials,
        *,
        warehouse: str | None = None,
        role: str | None = None,
        ca_bundle: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._url = f"{base_url(account_url)}/api/v2/statements"
        self._context = {"warehouse": warehouse, "role": role}
        self._transports = Transports(ca_bundle)
        self._session = HttpSession(self._transports, retry, Signed(credentials), refused=_failure)

    def __repr__(self) -> str:
        return f"StatementClient({self._url!r})"

    def close(self) -> None:
        """Give the connections back."""
        self._transports.close()

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Run a short statement that changes nothing; its rows, the columns' names in lower case.

        :param statement: a DESCRIBE or SHOW statement
        :raises SqlError: if the statement fails or takes too long
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        state = self.submit(statement, str(uuid.uuid4()), waits=True)
        while state.rows is None:
            if time.monotonic() > deadline:
                raise SqlError(
                    f"{statement!r} has no result after {_WAIT_SECONDS:g} s: look at the account's query "
                    "history, then run again"
                )
            time.sleep(_POLL_SECONDS)
            state = self.state(state.handle, statement)
        return state.rows

    def submit(
        self, statement: str, request_id: str, *, query_tag: str | None = None, waits: bool = False
    ) -> StatementState:
        """Submit one statement, or find the one that was submitted under this id before.

        :param request_id: a UUID; the same for the same piece of work, whoever repeats it
        :param waits: whether the answer may take until the statement has ended, 45 s at most ("Submitting a
            request to execute SQL statements")
        :raises SqlError: if the statement has failed already
        """
        body: dict[str, Any] = {"statement": statement, "timeout": _WAIT_SECONDS if waits else 0}
        body |= {name: value for name, value in self._context.items() if value}
        if query_tag:
            body["parameters"] = {"QUERY_TAG": query_tag}
        query = {"requestId": request_id, "retry": "true", "async": "false" if waits else "true"}
        answer = self._session.request(_head(statement), "POST", self._url, query=query, json_body=body)
        return self._state(answer, statement)

    def state(self, handle: str, statement: str) -> StatementState:
        """Ask whether a statement runs, and for its rows once it has ended.

        :raises SqlError: if it has failed, or was cancelled
        """
        address = f"{self._url}/{quote_url_segment(handle)}"
        return self._state(self._session.request(_head(statement), "GET", address), statement)

    def cancel(self, handle: str, statement: str) -> bool:
        """Cancel a statement; False where it had ended already."""
        address = f"{self._url}/{quote_url_segment(handle)}/cancel"
        try:
            self._session.request(_head(statement), "POST", address, json_body={})
        except SqlError as error:
            if error.errno == int(_ENDED_ALREADY):
                return False
            raise
        return True

    def _state(self, answer: Answer, statement: str) -> StatementState:
        body = answer.json
        handle = body.get("statementHandle") if isinstance(body, Mapping) else None
        if not isinstance(handle, str):
            raise ApiError(
                f"{_head(statement)!r}: the answer (HTTP {answer.status}) names no statement; check that the "
                "account URL leads to Snowflake",
                http_status=answer.status,
            )
        since = body.get("createdOn")  # milliseconds since 1970
        created = dt.datetime.fromtimestamp(since / 1_000, dt.UTC) if isinstance(since, int) else None
        if answer.status == _RUNNING:
            return StatementState(handle, created=created)
        if "resultSetMetaData" not in body:  # the submission of one that ended before gets its handle only
            return self.state(handle, statement)
        described = body["resultSetMetaData"]
        names = [str(column["name"]).lower() for column in described["rowType"]]
        data = list(body["data"])
        for number in range(1, len(described.get("partitionInfo") or [])):
            address = f"{self._url}/{quote_url_segment(handle)}"
            query = {"partition": str(number)}
            data += self._session.request(_head(statement), "GET", address, query=query).json["data"]
        rows = [dict(zip(names, row, strict=True)) for row in data]
        return StatementState(handle, rows, created)


def _failure(what: str, answer: Answer) -> SqlError | None:
    if answer.status not in _FAILED or not isinstance(answer.json, Mapping) or not answer.code.isdigit():
        return None
    message = " ".join(str(answer.json.get("message") or "no reason given").split())[:600]
    return SqlError(f"{what!r} failed: {message}{grant_remedy(message)}", errno=int(answer.code))


def _head(statement: str) -> str:
    """The words of a statement that identify it."""
    words = statement.partition(" FILES = ")[0]
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"


# -- The columns of a table, asked for over the SQL API by who has no connector --------------------------
#
# A DataFrame's writer runs where neither Airflow nor the connector need be installed, with the same
# credentials that it streams with. ``DESCRIBE TABLE`` takes no warehouse, and any right on the table will
# do.


def describe_table(
    account_url: str,
    credentials: Credentials,
    table: str,
    *,
    ca_bundle: str | None = None,
    retry: RetryPolicy | None = None,
) -> tuple[TableColumn, ...]:
    """Ask for a table's columns by ``DESCRIBE TABLE``.

    :param table: the table's quoted full name
    :raises SqlError: if the statement fails, as it does where there is no such table, or takes too long
    :raises AuthenticationError: if the service refuses the credentials
    """
    rows = statement_rows(
        account_url, credentials, f"DESCRIBE TABLE {table}", ca_bundle=ca_bundle, retry=retry
    )
    return columns_of_describe(rows)


def statement_rows(
    account_url: str,
    credentials: Credentials,
    statement: str,
    *,
    ca_bundle: str | None = None,
    retry: RetryPolicy | None = None,
) -> list[dict[str, Any]]:
    """The rows of a statement that needs no warehouse, with the names of its columns in lower case.

    :param statement: a DESCRIBE or SHOW statement
    :raises SqlError: if the statement fails or takes too long
    :raises AuthenticationError: if the service refuses the credentials
    """
    role = credentials.role if isinstance(credentials, KeyPair) else None
    client = StatementClient(account_url, credentials, role=role, ca_bundle=ca_bundle, retry=retry)
    with closing(client):
        return client.rows(statement)


# pragma: no mutate end
# -- One run's COPY, once: statements under request ids that every try of a task derives alike -----------
#
# A try that finds statements of an earlier one joins them instead of submitting its own. Try number ``n``
# goes through the request ids of the tries 1 to ``n``: a statement that ran, or still runs, under one of them
# answers for the work; one that failed there changed nothing, so the next id may run it again.

_CANCELLED = 604
_UNKNOWN = 404
_CLOCK_STEP = dt.timedelta(milliseconds=1)
"""The service shows the time of a statement in whole milliseconds."""
_MOST_LOST = 3
_NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_FIRST_POLLS = (0.2, 0.4, 0.8)
Rows = list[dict[str, Any]]
Wait = Callable[[str, str], Rows]
"""Waits for a statement, given its handle and its text; its rows."""
History = Callable[[Sequence[str]], Sequence[FileLoad]]
"""Loads of files with these paths, as far back as they are remembered, from the oldest."""
MayHaveRun = Callable[[dt.datetime, str | None], bool]
"""False where no statement of this run, or not this one, has ended well since then."""


@dataclass(slots=True)
class CopyRun:
    """The COPY of some files, in as many statements as they need, one after the other.

    :param copy: the statement; its location is the stage without a path
    :param url: what an external stage stands for
    :param count: counts the table's rows; None unless it had none when a later try with FORCE began
    """

    copy: CopyInto
    stage: StageReference
    client: StatementClient
    history: History
    may_have_run: MayHaveRun
    identity: RunIdentity
    url: str | None = None
    count: Callable[[], int] | None = None
    _counted: int = field(default=0, init=False)
    _running: tuple[str, str] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def load(self, files: Sequence[StagedFile], wait: Wait | None = None) -> CopyOutcome:
        """Load the files; what was loaded by an earlier try of this run is not loaded again.

        :param wait: waits for a statement, None to ask for it in this thread
        :raises SqlError: if a statement fails
        """
        marks, parts = {file.path: file.mark for file in files}, []
        # Asked before this try has a statement of its own.
        has_begun = self.identity.try_number > 1 and self.may_have_run(self.identity.since, None)
        for paths, statement in self.copy.statements(list(marks)):
            contents = [marks[path] for path in paths]
            asks, lost = has_begun, 0
            while (part := self._loaded_by_this_run(paths, statement) if asks else None) is None:
                try:
                    rows = self._rows(statement, contents, wait or self._ask)
                except SqlError as error:
                    raise SqlError(f"{error}{self.copy.format_remedy(paths)}", errno=error.errno) from None
                except ApiError as error:
                    if error.http_status != _UNKNOWN or lost == _MOST_LOST:
                        raise
                    # The service has lost the statement with its outcome, so history has to show it.
                    asks, lost = True, lost + 1
                    continue
                part = CopyOutcome.read(rows, self.stage, self.url)
                skipped = () if self.copy.options.return_failed_only else part.skipped(paths)
                if skipped:
                    # What a first submission skips was loaded by somebody else, however lately.
                    since = self.identity.since if asks else _NEVER
                    part = part.with_history(skipped, self._copies(skipped), since)
                break
            parts.append(part)
            if self.count is not None:
                self._counted += sum(load.rows_loaded for load in part.loads)
        return CopyOutcome(
            tuple(load for part in parts for load in part.loads),
            tuple(load for part in parts for load in part.before),
        )

    def finish(self, handle: str, wait: Wait | None = None) -> None:
        """Wait until a statement of an earlier try has ended, well or not: COPY then knows what it loaded."""
        words = f"COPY INTO {full_name(*self.copy.table)}"
        self._running = (handle, words)
        with suppress(SqlError):  # which has left the table as it was
            (wait or self._ask)(handle, words)
        self._running = None
        if self._stopped:
            raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)

    def stop(self) -> None:
        """Cancel the statement that runs, and begin no other."""
        self._stopped = True
        if self._running is not None:
            self.client.cancel(*self._running)

    def poll(self, handle: str, statement: str) -> Rows | None:
        """Ask for a statement a few times; its rows, None while it runs."""
        for pause in _FIRST_POLLS:
            rows = self.client.state(handle, statement).rows
            if rows is not None:
                return rows
            time.sleep(pause)
        return None

    def _copies(self, paths: Sequence[str]) -> list[FileLoad]:
        """COPY's loads of these files; those of pipes, and of files of another stage, are not this run's."""
        stage = StageReference.parse(self.copy.location)
        return [
            load for load in self.history(paths) if load.pipe is None and is_of_stage(load, stage, self.url)
        ]

    def _loaded_by_this_run(self, paths: tuple[str, ...], statement: str) -> CopyOutcome | None:
        """What load history reports since the run began, where the statement has run.

        Asked for with FORCE only: without it, COPY itself skips what is loaded. One statement is one
        transaction, so it has dealt with all of its files (with SIZE_LIMIT, with some), or with none; where
        history knows some of them only, somebody else has loaded those. Somebody else may have loaded all of
        them as well, such as another instance of a mapped task.
        """
        if not self.copy.options.force:
            return None
        found = CopyOutcome().with_history(paths, self._copies(paths), self.identity.since)
        some = any(load.status in (LOADED, PARTIALLY_LOADED) for load in found.loads)
        every = not found.before or self.copy.options.size_limit is not None
        if not (some and every) or self._are_gone(found.loads):
            return None
        first = min(load.loaded_at for load in found.loads if load.loaded_at is not None)
        return found if self.may_have_run(first, statement) else None

    def _rows(self, statement: str, contents: list[str], wait: Wait) -> Rows:
        work, earlier = self.identity, dict[str, dict[str, Any]]()
        left = work.request_ids(statement, contents)
        while True:
            if self._stopped:
                raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)
            try:
                state = self.client.submit(statement, left.pop(0), query_tag=self.identity.query_tag)
                self._running = (state.handle, statement)
                rows = wait(state.handle, statement) if state.rows is None else state.rows
            except SqlError:
                if not left:
                    raise
                continue  # that try's statement failed, and left the table as it was
            self._running = None
            # A run that was deleted has had the same ids; a result that skips all shows that COPY remembers.
            # Where the clock of Airflow is ahead of Snowflake's, history is asked for nothing.
            is_before = state.created is not None and state.created + _CLOCK_STEP <= self.identity.since
            if (
                is_before
                and not left
                and any(row.get("status") in (LOADED, PARTIALLY_LOADED) for row in rows)
            ):
                work = replace(work, try_number=work.try_number + 1)
                left = work.request_ids(statement, contents)[-1:]
            if earlier:
                rows = self._with_skipped(rows, earlier)
            if not (left and self._is_undone(rows)):
                return rows
            done = (row for row in rows if row.get("status") in (LOADED, PARTIALLY_LOADED))
            earlier = {row["file"]: row for row in done}

    def _with_skipped(self, rows: Rows, earlier: Mapping[str, dict[str, Any]]) -> Rows:
        """A result, with what an earlier try's statement has reported of files that it skips, by name or not.

        What COPY skips it remembers to have loaded, though load history may not show it yet.

        :param earlier: rows of files that the earlier one has loaded
        """
        found = [earlier.get(row["file"], row) if row.get("status") == LOAD_SKIPPED else row for row in rows]
        if self.copy.options.size_limit is not None:
            return found
        named = {row.get("file") for row in rows}
        return [*found, *(row for file, row in earlier.items() if file not in named)]

    def _is_undone(self, rows: Rows) -> bool:
        """True where files are left to load of which an earlier try's statement has given a result.

        That are files that failed, since the table may have been altered, and those that load history does
        not know any more: a table that is emptied or recreated loses its history with its rows. The next
        statement loads nothing twice: COPY remembers what history knows, or knows late. With FORCE it does
        not, so that the result counts unless its rows are gone. One of failed files only shows nothing of the
        others.
        """
        options, loads = self.copy.options, CopyOutcome.read(rows, self.stage, self.url).loads
        if options.force:
            return self._are_gone(loads)
        if options.return_failed_only or any(load.status == LOAD_FAILED for load in loads):
            return True
        paths = tuple(load.path for load in loads if load.status in (LOADED, PARTIALLY_LOADED))
        return bool(paths) and len(newest_loads(ExpectedFiles(paths), self._copies(paths))) < len(paths)

    def _are_gone(self, loads: Sequence[FileLoad]) -> bool:
        """True where a table that was empty has only what this try has loaded so far: these rows are gone.

        A statement of an earlier try may as well run only now, as the answer to its request id.
        """
        has_rows = self.copy.options.return_failed_only or any(load.rows_loaded for load in loads)
        return self.count is not None and has_rows and self.count() == self._counted

    def _ask(self, handle: str, statement: str) -> Rows:
        seconds = _FIRST_PAUSE
        while (state := self.client.state(handle, statement)).rows is None:
            time.sleep(seconds)
            seconds = min(_LONGEST_PAUSE, seconds * 1.5)
        return state.rows
