"""Deciding, look by look, whether files are loaded: the pure part of waiting for files."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from airflow_provider_snowpipe.bulk.file_load import LOAD_FAILED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.load_history import (
    REMEMBERED,
    HistoryLook,
    HistoryQuestion,
    LoadHistory,
    look_at,
)
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles
from airflow_provider_snowpipe.streaming.commit_wait import WaitState
from airflow_provider_snowpipe.streaming.commit_watch import Patience
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesNotLoadedError,
    FilesRejectedError,
    NothingStagedError,
    RetriesExhaustedError,
    SnowpipeError,
    WaitRefusedError,
)

_NAMED_IN_TEXT = 10
"""How many files a message names; the others are counted."""
_PACE = 0.8
"""Share of a wait's own interval after which its next failed look counts; a round may come a little early."""


class FilesFailure(StrEnum):
    """Why a wait for files cannot end well."""

    LOAD_FAILED = "load_failed"
    PARTIALLY_LOADED = "partially_loaded"
    TIMEOUT = "timeout"
    CONFIGURATION = "configuration"
    REFUSED = "refused"
    TOO_MANY_ERRORS = "too_many_errors"
    NO_FILES = "no_files"

    @property
    def error_class(self) -> type[SnowpipeError]:
        """The error that a load which waited itself raises; it says whether another try can help."""
        return _ERRORS[self]


_ERRORS: dict[FilesFailure, type[SnowpipeError]] = {
    FilesFailure.LOAD_FAILED: FilesRejectedError,
    FilesFailure.PARTIALLY_LOADED: FilesRejectedError,
    FilesFailure.TIMEOUT: FilesNotLoadedError,
    FilesFailure.CONFIGURATION: ConfigurationError,
    FilesFailure.REFUSED: WaitRefusedError,
    FilesFailure.TOO_MANY_ERRORS: RetriesExhaustedError,
    FilesFailure.NO_FILES: NothingStagedError,
}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Which loads that did not go well a wait accepts, and reports.

    :param partial: ``fail`` or ``report`` a file of which only some rows are loaded
    :param failed: ``fail`` or ``report`` a file of which nothing is
    """

    partial: str = "fail"
    failed: str = "fail"

    def __post_init__(self) -> None:
        for name, value in (("on_partial", self.partial), ("on_failed", self.failed)):
            if value not in ("fail", "report"):
                raise ConfigurationError(f"{name} is {value!r}: give 'fail' or 'report'")

    def objects_to(self, load: FileLoad) -> bool:
        """True when this load ends the wait.

        :param load: a final one
        """
        given = {PARTIALLY_LOADED: self.partial, LOAD_FAILED: self.failed}.get(load.status)
        return given == "fail"


@dataclass(frozen=True, slots=True)
class FilesVerdict:
    """What a wait knows after a look.

    :param state: complete, waiting or failed
    :param results: for each file whose load has ended, what :meth:`FileLoad.result` says of it
    :param total: files waited for
    :param missing: names of the others, as far as they have names
    :param reason: why it failed
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

    def progress(self) -> str:
        """How many files are loaded."""
        return f"{len(self.results)} of {self.total} files loaded"

    def without(self) -> str:
        """Which files are not, as far as they have names."""
        return f"; missing: {_enumerated(self.missing)}" if self.missing else ""


class FilesWatch:
    """One wait's memory between looks.

    :param wanted: the files
    :param since: loads before this moment do not count; None for all that load history remembers, 14 days
    :param tolerance: which loads that did not go well are accepted
    :param patience: which failed looks are put up with
    """

    def __init__(
        self, wanted: WantedFiles, since: dt.datetime | None, tolerance: Tolerance, patience: Patience
    ) -> None:
        self.wanted = wanted
        self.question = HistoryQuestion(
            names=frozenset(wanted.names) if wanted.prefix is None else None,
            since=since or dt.datetime.now(dt.UTC) - REMEMBERED,
        )
        self._tolerance = tolerance
        self._patience = patience
        self._loads: dict[str, FileLoad] = {}
        self._errors = 0
        self._counted_at = float("-inf")

    def see(self, look: HistoryLook, now: float) -> FilesVerdict:
        """Take in one look.

        :param look: it may tell of other files as well
        :param now: when it was made, seconds since 1970
        :returns: what is known now
        """
        if look.error is not None:
            return self._endure(look.error, now)
        self._errors = 0
        for load in look.loads:
            self._take(load)
        return self.verdict()

    def expired(self, seconds: float) -> FilesVerdict:
        """What to say when the time is over.

        :param seconds: how long the wait was
        """
        verdict = self.verdict()
        return replace(
            verdict,
            state=WaitState.FAILED,
            reason=FilesFailure.TIMEOUT,
            message=f"{verdict.progress()} after {seconds:.0f} s{verdict.without()}. See whether they were "
            "staged under these names and given to COPY or to the pipe, and whether the pipe runs "
            "(SYSTEM$PIPE_STATUS)",
        )

    def memory(self) -> dict[str, Any]:
        """What a wait that goes on in another process has to know; JSON."""
        return {"errors": self._errors, "names": list(self.wanted.names)}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from another process's memory.

        :param memory: what :meth:`memory` gave there
        """
        self._errors = int(memory["errors"])

    def _take(self, load: FileLoad) -> None:
        """Keep the newest final load of each file; a load that has not ended says nothing yet."""
        if not load.is_final or (load.loaded_at is not None and load.loaded_at < self.question.since):
            return
        name = self.wanted.name_of(load)
        if name is None:
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
        missing = tuple(name for name in self.wanted.names if name not in self._loads)
        verdict = FilesVerdict(WaitState.WAITING, results, self.wanted.total, missing)
        bad = {name: load for name, load in sorted(self._loads.items()) if self._tolerance.objects_to(load)}
        if bad:
            return _objection(verdict, bad)
        if len(results) >= verdict.total:
            return replace(verdict, state=WaitState.COMPLETE)
        return verdict

    def _endure(self, error: Exception, now: float) -> FilesVerdict:
        verdict = self.verdict()
        if isinstance(error, SnowpipeError) and not error.retryable:
            wrong = isinstance(error, ConfigurationError)
            reason = FilesFailure.CONFIGURATION if wrong else FilesFailure.REFUSED
            return replace(verdict, state=WaitState.FAILED, reason=reason, message=str(error))
        if now - self._counted_at < self._patience.interval * _PACE:
            return verdict
        self._errors += 1
        self._counted_at = now
        text = str(error) if isinstance(error, SnowpipeError) else f"{type(error).__name__}: {error}"
        if self._errors >= self._patience.max_consecutive_errors:
            return replace(
                verdict,
                state=WaitState.FAILED,
                reason=FilesFailure.TOO_MANY_ERRORS,
                message=f"{self._errors} looks in a row failed, the last: {text}",
            )
        return replace(
            verdict, state=WaitState.WAITING, message=f"look failed ({self._errors} in a row): {text}"
        )


def _objection(verdict: FilesVerdict, bad: Mapping[str, FileLoad]) -> FilesVerdict:
    failed = any(load.status == LOAD_FAILED for load in bad.values())
    texts = [
        f"{name!r} is {load.status} with {load.rows_loaded} of {load.rows_parsed} rows: "
        f"{load.first_error or 'no message'}"
        for name, load in list(bad.items())[:_NAMED_IN_TEXT]
    ]
    more = f"; and {len(bad) - _NAMED_IN_TEXT} more" if len(bad) > _NAMED_IN_TEXT else ""
    remedy = (
        "Mend the files and load them again; a pipe takes a file that failed again under its name"
        if failed
        else "The rows in error are lost for the table: mend them and load them under another name; "
        "on_partial='report' accepts such files"
    )
    return replace(
        verdict,
        state=WaitState.FAILED,
        reason=FilesFailure.LOAD_FAILED if failed else FilesFailure.PARTIALLY_LOADED,
        message=f"{len(bad)} of {verdict.total} files did not load: {'; '.join(texts)}{more}. {remedy}",
    )


def _enumerated(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED_IN_TEXT]))
    more = len(names) - _NAMED_IN_TEXT
    return f"{shown} and {more} more" if more > 0 else shown


# -- Waiting in one thread until files are loaded, and the errors of a wait that ends badly --------------

log = logging.getLogger(__name__)


def wait_for_loads(
    history: LoadHistory, watch: FilesWatch, *, timeout: float, interval: float
) -> dict[str, dict[str, Any]]:
    """Look at load history until every file's load has ended.

    :param history: the source
    :param watch: which files, and what is accepted
    :param timeout: seconds for all of it
    :param interval: seconds between two looks
    :return: what became of each file, by its path
    :raises FilesRejectedError: if one did not load as a whole
    :raises FilesNotLoadedError: if the time is over
    """
    deadline = time.monotonic() + timeout
    while True:
        verdict = watch.see(look_at(history, [watch.question]), time.time())
        if verdict.state is WaitState.COMPLETE:
            return dict(verdict.results)
        if verdict.state is WaitState.WAITING and time.monotonic() >= deadline:
            verdict = watch.expired(timeout)
        if verdict.state is WaitState.FAILED:
            raise load_failure(str(verdict.reason), verdict.message)
        log.info("%s", verdict)
        time.sleep(min(interval, max(0.0, deadline - time.monotonic())))


def load_failure(reason: str, message: str) -> SnowpipeError:
    """The error for a wait that ended badly.

    :param reason: a value of :class:`FilesFailure`
    :param message: what happened, in words
    """
    text = f"{reason}: {message}"
    kind = FilesFailure(reason).error_class
    return FilesRejectedError(text, files=(), rejected=0) if kind is FilesRejectedError else kind(text)
