"""Asking what became of files, of whichever source knows it."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError

log = logging.getLogger(__name__)

REMEMBERED = dt.timedelta(days=14) - dt.timedelta(minutes=5)
"""How far back load history goes; a little less than the 14 days, beyond which Snowflake refuses to look."""
OVERLAP = dt.timedelta(minutes=10)
"""A poll begins so much before the last one: an entry may become visible late, and clocks may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class HistoryQuestion:
    """What one wait wants to know.

    It is the same as another one only if it is the same wait's: what an earlier wait was told, a later one
    that asks in the same words has not heard.

    :param names: paths below the stage; None for whatever was loaded
    :param since: loads before this time do not count
    """

    names: frozenset[str] | None
    since: dt.datetime


class LoadHistory(Protocol):
    """Something that knows what became of files."""

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about, from the oldest; what was told before may be left out."""

    def close(self) -> None:
        """Give the connections back."""


@dataclass(frozen=True, slots=True)
class PolledLoads:
    """What one poll brought.

    :param loads: from the oldest; they may concern only some of those who wait
    :param error: what went wrong instead
    """

    loads: Sequence[FileLoad] = ()
    error: Exception | None = None


class ReportThenSql:
    """The pipe's own report, and ``COPY_HISTORY`` where that is refused or overloaded.

    ``loadHistoryScan`` has a low limit of calls, and both calls take key pairs only; SQL has neither limit,
    but needs a warehouse.

    :param report: asked first
    :param history: asked where that fails
    """

    def __init__(self, report: LoadHistory, history: LoadHistory) -> None:
        self._report = report
        self._history = history

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about, from whichever source answers.

        :param questions: what is asked
        :param now: the time
        :raises SnowpipeError: if both fail; the error of the second, which came of the first
        """
        try:
            return self._report.loads(questions, now)
        except ConfigurationError:
            raise
        except SnowpipeError as error:
            log.warning("the pipe's report does not answer (%s); asking COPY_HISTORY", error)
            return self._history.loads(questions, now)

    def close(self) -> None:
        """Give the connections back."""
        self._report.close()
        self._history.close()


def poll_loads(history: LoadHistory, questions: Sequence[HistoryQuestion]) -> PolledLoads:
    """Ask once. What this package raises on purpose is part of the poll, for the wait to judge.

    :param history: the source
    :param questions: what is asked
    """
    try:
        return PolledLoads(loads=history.loads(questions, dt.datetime.now(dt.UTC)))
    except SnowpipeError as error:
        return PolledLoads(error=error)


def oldest_needed(question: HistoryQuestion, asked_at: dt.datetime | None) -> dt.datetime:
    """The timestamp from which on a question still needs loads.

    :param question: the question
    :param asked_at: when it was answered last, None for never
    """
    return question.since if asked_at is None else max(question.since, asked_at - OVERLAP)


def timestamp(value: object) -> dt.datetime | None:
    """Read a timestamp as a template renders it; one without a zone is in UTC.

    :param value: a timestamp, its text in ISO 8601, or nothing
    :raises ConfigurationError: if it is something else
    """
    if value is None or value in ("", "None"):
        return None
    try:
        found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigurationError(
            f"since is {str(value)[:60]!r}: give a timestamp in ISO 8601, for example "
            "'{{ dag_run.start_date }}'"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
