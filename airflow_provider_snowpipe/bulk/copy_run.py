"""One run's COPY, once: statements under request ids that every try of a task derives alike.

A try that finds statements of an earlier one joins them instead of submitting its own. Try number ``n`` goes
through the request ids of the tries 1 to ``n``: a statement that ran, or still runs, under one of them
answers for the work; one that failed there changed nothing, so the next id may run it again.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_snowpipe.bulk.copy_outcome import CopyOutcome
from airflow_provider_snowpipe.bulk.copy_statement import CopyInto
from airflow_provider_snowpipe.bulk.file_load import LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.streaming.errors import ApiError, SqlError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.statement_client import StatementState

_NAMESPACE = uuid.UUID("5c0c4a0e-4df5-4f0c-9a53-0c1f0c1f5a11")
_CANCELLED = 604
_UNKNOWN = 404
_MOST_LOST = 3
_NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_FIRST_LOOKS = (0.2, 0.4, 0.8)
Rows = list[dict[str, Any]]
Wait = Callable[[str, str], Rows]
"""Waits for a statement, given its handle and its text; its rows."""
History = Callable[[Sequence[str]], Sequence[FileLoad]]
"""Loads of files with these paths, as far back as they are remembered, from the oldest."""


class Statements(Protocol):
    """As much of the SQL API's client as a run needs."""

    def submit(self, statement: str, request_id: str, *, query_tag: str | None = None) -> StatementState:
        """Submit, or find what was submitted under this id."""

    def state(self, handle: str, statement: str) -> StatementState:
        """Ask whether a statement runs."""

    def cancel(self, handle: str, statement: str) -> bool:
        """Cancel a statement."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose work a COPY is, the same for every try.

    :param names: what tells one piece of work from another, such as DAG, run, task and map index
    :param since: when the run began: what was loaded before was loaded by somebody else
    :param try_number: 1 for the first try
    """

    names: tuple[str, ...]
    since: dt.datetime
    try_number: int = 1

    def request_ids(self, statement: str, marks: Sequence[str]) -> list[str]:
        """The request id of each try so far.

        :param statement: the statement
        :param marks: what tells the files' contents apart, such as their checksums: files that were changed
            are other work
        """
        return [
            str(uuid.uuid5(_NAMESPACE, json.dumps([self.names, statement, list(marks), number])))
            for number in range(1, self.try_number + 1)
        ]

    @property
    def query_tag(self) -> str:
        """The same in the account's query history."""
        return json.dumps({"snowpipe": list(self.names)})[:2000]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to copy.

    :param path: below the stage
    :param mark: tells its content from an earlier one of that name, such as its checksum
    :param size: bytes, None where that is not said
    :param staged_at: since when it is there, None where that is not said
    """

    path: str
    mark: str = ""
    size: int | None = None
    staged_at: dt.datetime | None = None


@dataclass(slots=True)
class CopyRun:
    """The COPY of some files, in as many statements as they need, one after the other.

    :param copy: the statement; its location is the stage without a path
    :param stage: the stage
    :param client: the account's SQL API
    :param history: asks load history
    :param identity: whose work it is
    :param url: what an external stage stands for
    """

    copy: CopyInto
    stage: StageReference
    client: Statements
    history: History
    identity: RunIdentity
    url: str | None = None
    _running: tuple[str, str] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def load(self, files: Sequence[StagedFile], wait: Wait | None = None) -> CopyOutcome:
        """Load the files; what was loaded by an earlier try of this run is not loaded again.

        :param files: the files
        :param wait: waits for a statement, None to ask for it in this thread
        :raises SqlError: if a statement fails
        """
        outcome = CopyOutcome()
        marks = {file.path: file.mark for file in files}
        for paths, statement in self.copy.statements([file.path for file in files]):
            outcome += self._part(paths, statement, [marks[path] for path in paths], wait or self._ask)
        return outcome

    def stop(self) -> None:
        """Cancel the statement that runs, and begin no other."""
        self._stopped = True
        if self._running is not None:
            self.client.cancel(*self._running)

    def look(self, handle: str, statement: str) -> Rows | None:
        """Ask for a statement a few times; its rows, None while it runs.

        :param handle: the statement's handle
        :param statement: its text
        """
        for pause in _FIRST_LOOKS:
            rows = self.client.state(handle, statement).rows
            if rows is not None:
                return rows
            time.sleep(pause)
        return None

    def _part(self, paths: tuple[str, ...], statement: str, marks: list[str], wait: Wait) -> CopyOutcome:
        asks, lost = self.identity.try_number > 1, 0
        while True:
            known = self._loaded_by_this_run(paths) if asks else None
            if known is not None:
                return known
            try:
                rows = self._rows(statement, self.identity.request_ids(statement, marks), wait)
            except SqlError as error:
                raise SqlError(f"{error}{self.copy.format_remedy(paths)}", errno=error.errno) from None
            except ApiError as error:
                if error.http_status != _UNKNOWN or lost == _MOST_LOST:
                    raise
                # The service has lost the statement with its outcome, so history has to say.
                asks, lost = True, lost + 1
            else:
                return self._read(paths, rows, asks)

    def _read(self, paths: tuple[str, ...], rows: Rows, tried_before: bool) -> CopyOutcome:
        outcome = CopyOutcome.read(rows, self.stage, self.url)
        if self.copy.options.return_failed_only:
            return outcome
        skipped = tuple(dict.fromkeys((*outcome.skipped(), *outcome.unnamed(paths))))
        if not skipped:
            return outcome
        # What a first submission skips was loaded by somebody else, however lately.
        since = self.identity.since if tried_before else _NEVER
        return outcome.with_history(skipped, self.history(skipped), since)

    def _loaded_by_this_run(self, paths: tuple[str, ...]) -> CopyOutcome | None:
        """What load history says since the run began, where it says that the statement has run.

        Asked for with FORCE only: without it, COPY itself skips what is loaded. One statement is one
        transaction, so it has dealt with all of its files (with SIZE_LIMIT, with some), or with none; where
        history knows some of them only, somebody else has loaded those.
        """
        if not self.copy.options.force:
            return None
        found = CopyOutcome().with_history(paths, self.history(paths), self.identity.since)
        some = any(load.status in (LOADED, PARTIALLY_LOADED) for load in found.loads)
        every = not found.before or self.copy.options.size_limit is not None
        return found if some and every else None

    def _rows(self, statement: str, request_ids: list[str], wait: Wait) -> Rows:
        for request_id in request_ids[:-1]:
            try:
                return self._wait(statement, request_id, wait)
            except SqlError:
                continue  # that try's statement failed, and left the table as it was
        return self._wait(statement, request_ids[-1], wait)

    def _wait(self, statement: str, request_id: str, wait: Wait) -> Rows:
        if self._stopped:
            raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)
        state = self.client.submit(statement, request_id, query_tag=self.identity.query_tag)
        self._running = (state.handle, statement)
        rows = wait(state.handle, statement) if state.rows is None else state.rows
        self._running = None
        return rows

    def _ask(self, handle: str, statement: str) -> Rows:
        seconds = _FIRST_PAUSE
        while (state := self.client.state(handle, statement)).rows is None:
            time.sleep(seconds)
            seconds = min(_LONGEST_PAUSE, seconds * 1.5)
        return state.rows
