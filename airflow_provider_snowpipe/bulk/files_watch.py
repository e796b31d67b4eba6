"""Waiting for files: deciding, poll by poll, whether they are loaded, in one thread or in a shared poll."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_snowpipe.bulk.load_history import (
    REMEMBERED,
    HistoryQuestion,
    LoadHistory,
    PolledLoads,
    poll_loads,
)
from airflow_provider_snowpipe.bulk.staged_files import (
    FINAL,
    LOAD_FAILED,
    PARTIALLY_LOADED,
    ExpectedFiles,
    FileLoad,
)
from airflow_provider_snowpipe.streaming.arguments import FAIL_OR_REPORT, check_one_of
from airflow_provider_snowpipe.streaming.commits import FailedPolls, Failure, RetryBudget, WaitState
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesNotLoadedError,
    FilesRejectedError,
    NothingStagedError,
    RetriesExhaustedError,
    SnowpipeError,
    WaitRefusedError,
)
from airflow_provider_snowpipe.streaming.names import first_few
from airflow_provider_snowpipe.streaming.polling import GATHER_SECONDS, PollClient, SharedPoll, loop_time

log = logging.getLogger(__name__)


class FilesFailure(Failure):
    """Why a wait for files cannot end well."""

    LOAD_FAILED = "load_failed", FilesRejectedError
    PARTIALLY_LOADED = "partially_loaded", FilesRejectedError
    TIMEOUT = "timeout", FilesNotLoadedError
    CONFIGURATION = "configuration", ConfigurationError
    REFUSED = "refused", WaitRefusedError
    TOO_MANY_ERRORS = "too_many_errors", RetriesExhaustedError
    NO_FILES = "no_files", NothingStagedError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Which loads that did not go well a wait accepts, and reports.

    :param partial: ``fail`` or ``report`` a file that is loaded in part
    :param failed: ``fail`` or ``report`` a file that is not loaded
    """

    partial: str = "fail"
    failed: str = "fail"

    def __post_init__(self) -> None:
        for name, value in (("on_partial", self.partial), ("on_failed", self.failed)):
            check_one_of(name, value, FAIL_OR_REPORT)

    def objects_to(self, load: FileLoad) -> bool:
        """True when this load ends the wait.

        :param load: a final one
        """
        given = {PARTIALLY_LOADED: self.partial, LOAD_FAILED: self.failed}.get(load.status)
        return given == "fail"


@dataclass(frozen=True, slots=True)
class FilesVerdict:
    """What a wait knows after a poll.

    :param results: for each file whose load has ended, what :meth:`FileLoad.result` returns for it
    :param total: files waited for
    :param missing: names of the others, as far as they have names
    :param message: what happened and what to do, when failed; the error that is endured, while waiting
    """

    state: WaitState
    results: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    total: int = 0
    missing: tuple[str, ...] = ()
    reason: FilesFailure | None = None
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return self.message
        return f"{self.progress()}{self.without()}"

    @property
    def done(self) -> int:
        """Number of files whose load has ended."""
        return len(self.results)

    @property
    def value(self) -> dict[str, dict[str, Any]]:
        """The value of a task whose wait is complete: what became of each file."""
        return dict(self.results)

    def failed(self, reason: FilesFailure, message: str) -> FilesVerdict:
        """The same, as the end of the wait."""
        return replace(self, state=WaitState.FAILED, reason=reason, message=message)

    def progress(self) -> str:
        """How many files are loaded."""
        return f"{self.done} of {self.total} files loaded"

    def without(self) -> str:
        """Which files are not, as far as they have names."""
        return f"; missing: {first_few([repr(one) for one in self.missing])}" if self.missing else ""


class FilesWatch:
    """One wait's memory between polls.

    :param since: loads before this time do not count; None for all that load history remembers, 14 days
    """

    def __init__(
        self, expected: ExpectedFiles, since: dt.datetime | None, tolerance: Tolerance, budget: RetryBudget
    ) -> None:
        self.expected = expected
        self.since = since or dt.datetime.now(dt.UTC) - REMEMBERED
        names = frozenset(expected.names) if expected.prefix is None else None
        self.question = [HistoryQuestion(names, self.since)]
        self._tolerance = tolerance
        self._failed = FailedPolls(budget)
        self._loads: dict[str, FileLoad] = {}

    def at_once(self) -> FilesVerdict | None:
        """The end of a wait without a file, None where there is something to wait for."""
        return None if self.expected.total else self.verdict()

    def see(self, answer: PolledLoads, now: float) -> FilesVerdict:
        """Take in one poll.

        :param answer: it may have other files as well
        :param now: when it was made, seconds since 1970
        """
        if answer.error is not None:
            return self._endure(answer.error, now)
        self._failed.count = 0
        for name, load in self.expected.of(answer.loads):
            self._take(name, load)
        return self.verdict()

    def expired(self, seconds: float) -> FilesVerdict:
        """The error for the end of the time."""
        verdict = self.verdict()
        return verdict.failed(
            FilesFailure.TIMEOUT,
            f"{verdict.progress()} after {seconds:.0f} s{verdict.without()}. See whether they were "
            "staged under these names and given to COPY or to the pipe, and whether the pipe runs "
            "(SYSTEM$PIPE_STATUS)",
        )

    def memory(self) -> dict[str, Any]:
        """What a wait that goes on in another process has to know; JSON."""
        return {"errors": self._failed.count, "names": list(self.expected.names)}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from another process's memory."""
        self._failed.count = int(memory["errors"])

    def _take(self, name: str, load: FileLoad) -> None:
        """Keep the newest final load of each file; a load that has not ended reports nothing yet."""
        if load.status not in FINAL or (load.loaded_at is not None and load.loaded_at < self.since):
            return
        known = self._loads.get(name)
        if (
            known is None
            or known.loaded_at is None
            or load.loaded_at is None
            or load.loaded_at >= known.loaded_at
        ):
            self._loads[name] = load

    def verdict(self) -> FilesVerdict:
        """What is known of the files; complete where there is none to wait for."""
        results = {name: load.result() for name, load in sorted(self._loads.items())}
        missing = tuple(name for name in self.expected.names if name not in self._loads)
        verdict = FilesVerdict(WaitState.WAITING, results, self.expected.total, missing)
        bad = {name: load for name, load in sorted(self._loads.items()) if self._tolerance.objects_to(load)}
        if bad:
            return _objection(verdict, bad)
        if len(results) >= verdict.total:
            return replace(verdict, state=WaitState.COMPLETE)
        return verdict

    def _endure(self, error: Exception, now: float) -> FilesVerdict:
        verdict = self.verdict()
        reason, message = self._failed.take(error, now)
        if reason is not None:
            return verdict.failed(FilesFailure(reason.value), message)
        return replace(verdict, state=WaitState.WAITING, message=message) if message else verdict


def _objection(verdict: FilesVerdict, bad: Mapping[str, FileLoad]) -> FilesVerdict:
    failed = any(load.status == LOAD_FAILED for load in bad.values())
    texts = [
        f"{name!r} is {load.status} with {load.rows_loaded} of {load.rows_parsed} rows: "
        f"{load.first_error or 'no message'}"
        for name, load in bad.items()
    ]
    remedy = (
        "Fix the files and load them again; a pipe takes a file that failed again under its name"
        if failed
        else "The rows in error are lost for the table: fix them and load them under another name; "
        "on_partial='report' accepts such files"
    )
    return verdict.failed(
        FilesFailure.LOAD_FAILED if failed else FilesFailure.PARTIALLY_LOADED,
        f"{len(bad)} of {verdict.total} files did not load: {first_few(texts, '; ')}. {remedy}",
    )


class HistoryPoll(SharedPoll[LoadHistory, HistoryQuestion, PolledLoads]):
    """Asks what became of files."""

    def __init__(self, connect: Callable[[], Awaitable[LoadHistory]]) -> None:
        super().__init__("snowpipe load history", connect)

    async def answers(self) -> AsyncGenerator[PolledLoads]:
        """Poll for ever; one value for each round in which somebody waits."""
        with PollClient(
            "snowpipe-history", self._connect, poll_loads, lambda _, error: PolledLoads(error=error)
        ) as client:
            while True:
                while not self._questions:
                    await self._is_changed(None)
                    await asyncio.sleep(GATHER_SECONDS)
                began = loop_time()
                answer = await client.poll(list(self._questions))
                if answer.error is not None:
                    client.drop()  # the next one is made from settings that may have changed
                yield answer
                await self._pause(began)


def wait_for_loads(
    history: LoadHistory, watch: FilesWatch, *, timeout: float, interval: float
) -> dict[str, dict[str, Any]]:
    """Poll load history until every file's load has ended.

    :param timeout: seconds for all of it
    :return: what became of each file, by its path
    :raises FilesRejectedError: if one did not load as a whole
    :raises FilesNotLoadedError: if the time is over
    """
    deadline = time.monotonic() + timeout
    while True:
        verdict = watch.see(poll_loads(history, watch.question), time.time())
        if verdict.state is WaitState.COMPLETE:
            return dict(verdict.results)
        if verdict.state is WaitState.WAITING and time.monotonic() >= deadline:
            verdict = watch.expired(timeout)
        if verdict.state is WaitState.FAILED:
            raise load_failure(str(verdict.reason), verdict.message)
        log.info("%s", verdict)
        time.sleep(min(interval, max(0.0, deadline - time.monotonic())))


def load_failure(reason: str, message: str) -> SnowpipeError:
    """The error for a wait that ended badly."""
    text = f"{reason}: {message}"
    kind = FilesFailure(reason).error_class
    return FilesRejectedError(text, files=(), rejected=0) if kind is FilesRejectedError else kind(text)
