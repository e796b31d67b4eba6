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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_snowpipe.bulk.copy_statement import CopyInto
from airflow_provider_snowpipe.bulk.expected_files import ExpectedFiles
from airflow_provider_snowpipe.bulk.file_load import LOAD_FAILED, LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    ConfigurationError,
    FilesRejectedError,
    SqlError,
)

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.statement_client import StatementState


_NAMESPACE = uuid.UUID("5c0c4a0e-4df5-4f0c-9a53-0c1f0c1f5a11")
_CANCELLED = 604
_UNKNOWN = 404
_MOST_LOST = 3
_NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_FIRST_POLLS = (0.2, 0.4, 0.8)
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

    def poll(self, handle: str, statement: str) -> Rows | None:
        """Ask for a statement a few times; its rows, None while it runs.

        :param handle: the statement's handle
        :param statement: its text
        """
        for pause in _FIRST_POLLS:
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
        skipped = outcome.skipped(paths)
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


# -- What a COPY did with each file: read from its result, never assumed ---------------------------------

LOAD_SKIPPED = "LOAD_SKIPPED"
ON_REJECTED = ("fail", "report")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The files of one COPY, or of several.

    :param loads: what became of each file; ``path`` is below the stage
    :param before: the loads of files that were loaded before, by another run or another way
    """

    loads: tuple[FileLoad, ...] = ()
    before: tuple[FileLoad, ...] = ()

    @classmethod
    def read(
        cls, rows: Iterable[Mapping[str, Any]], stage: StageReference, url: str | None = None
    ) -> CopyOutcome:
        """Read the rows of a COPY's result, whose keys are the columns' names in lower case.

        A COPY that found nothing to do answers with one row that has a status and no file.

        :param rows: the rows
        :param stage: the stage that was copied from
        :param url: what an external stage stands for: its files are named by their URLs
        """
        loads = []
        for row in rows:
            if row.get("file") is not None:
                load = FileLoad.from_copy_result(row)
                path = path_below(stage.relative(load.path), url)
                loads.append(replace(load, path=path, location=stage.name))
        return cls(tuple(loads))

    def __add__(self, other: CopyOutcome) -> CopyOutcome:
        return CopyOutcome(self.loads + other.loads, self.before + other.before)

    @property
    def rows_loaded(self) -> int:
        """Rows that this COPY put into the table."""
        return sum(load.rows_loaded for load in self.loads)

    @property
    def rejected(self) -> int:
        """Records in error."""
        return sum(load.errors_seen for load in self.loads)

    def skipped(self, files: Iterable[str]) -> tuple[str, ...]:
        """Files that were loaded before: those that the result says so of, and those that it does not name.

        COPY leaves out of its result what it has nothing to say of.

        :param files: paths below the stage of the files that were to be copied
        """
        named = {load.path for load in self.loads}
        said = (load.path for load in self.loads if load.status == LOAD_SKIPPED)
        return tuple(dict.fromkeys((*said, *(path for path in files if path not in named))))

    def with_history(
        self, files: Sequence[str], history: Iterable[FileLoad], since: dt.datetime
    ) -> CopyOutcome:
        """Say of files that were loaded before what load history says of that load, the newest one.

        :param files: paths of these files, below the stage
        :param history: loads from the oldest
        :param since: what was loaded from this time on was loaded by this run
        """
        if not files:
            return self
        known = newest_loads(files, history)
        ours = {
            path: load
            for path, load in known.items()
            if load.loaded_at is not None and load.loaded_at >= since
        }
        others = [known.get(path) or FileLoad(path, "", LOAD_SKIPPED) for path in files if path not in ours]
        asked = frozenset(files)
        kept = [load for load in self.loads if load.path not in asked]
        return CopyOutcome((*kept, *(ours[path] for path in files if path in ours)), (*self.before, *others))

    def require(self, on_rejected: str, table: str) -> None:
        """Object to files that failed or were loaded in part.

        :param on_rejected: ``fail``, or ``report`` to accept them
        :param table: the table, for the error's text
        :raises FilesRejectedError: if there is such a file and ``on_rejected`` is ``fail``
        """
        if on_rejected not in ON_REJECTED:
            raise ConfigurationError(f"on_rejected is {on_rejected!r}: give 'fail' or 'report'")
        every = self.loads + self.before
        bad = [load for load in every if load.status in (LOAD_FAILED, PARTIALLY_LOADED)]
        if not bad or on_rejected == "report":
            return
        named = "; ".join(
            f"{load.path!r} {load.status}, {load.rows_loaded:,} of {load.rows_parsed:,} rows"
            + (f", first error: {load.first_error}" if load.first_error else "")
            for load in bad[:_MOST_NAMED]
        )
        more = f"; and {len(bad) - _MOST_NAMED:,} more" if len(bad) > _MOST_NAMED else ""
        raise FilesRejectedError(
            f"COPY into {table}: {len(bad):,} of {len(every):,} files were not loaded as a whole: "
            f"{named}{more}. "
            "Fix these files and stage them again, or say on_rejected='report'",
            files=tuple(load.path for load in bad),
            rejected=sum(load.errors_seen for load in bad),
        )

    def result(self) -> dict[str, Any]:
        """The outcome as JSON, for a task's value: totals, and each file by its path."""
        return {
            "rows_loaded": self.rows_loaded,
            "rejected": self.rejected,
            "files": {load.path: load.result() for load in self.loads},
            "loaded_before": {load.path: load.result() for load in self.before},
        }


def path_below(name: str, url: str | None) -> str:
    """A file's path below its stage.

    :param name: the same, or its URL in an external stage
    :param url: what the external stage stands for, None for an internal one
    """
    return name.removeprefix(url).lstrip("/") if url else name


def newest_loads(files: Sequence[str], history: Iterable[FileLoad]) -> dict[str, FileLoad]:
    """The newest load of each file that ended, by its path below the stage.

    :param files: the files' paths below the stage
    :param history: loads from the oldest
    """
    expected = ExpectedFiles(tuple(files))
    known: dict[str, FileLoad] = {}
    for load in history:
        path = expected.name_of(load)
        if path is not None and load.is_final:
            known[path] = replace(load, path=path)
    return known
