"""The loads of one file pipe over many polls: its report, and its history where the report has forgotten."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Protocol

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.file_pipe import PipeReport
from airflow_provider_snowpipe.bulk.load_history import OVERLAP, REMEMBERED, HistoryQuestion

_REPORTED = dt.timedelta(minutes=8)
"""How far back the report is trusted; it keeps ten minutes, and 10,000 loads, whichever is less."""


class ReportingPipe(Protocol):
    """As much of a file pipe's client as its history needs."""

    def insert_report(self, begin_mark: str | None = None) -> PipeReport:
        """The loads of the last minutes."""

    def history(self, since: dt.datetime, until: dt.datetime) -> list[FileLoad]:
        """The loads of a while."""

    def close(self) -> None:
        """Give the connections back."""


class PipeHistory:
    """The loads by one pipe, with as few calls of ``loadHistoryScan`` as will do.

    Each poll asks for the report since the one before. What the report cannot know is asked for once: what
    came before the first poll of a question, and what was missed between two polls.

    :param pipe: a client of the pipe
    """

    def __init__(self, pipe: ReportingPipe) -> None:
        self._pipe = pipe
        self._mark: str | None = None
        self._asked_at: dt.datetime | None = None
        self._answered: frozenset[HistoryQuestion] = frozenset()

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about; what was told before may be left out.

        :param questions: what is asked, by all who still wait
        :param now: the time
        :raises SnowpipeError: if the pipe cannot be asked
        """
        new = [question for question in questions if question not in self._answered]
        # The history may know the newest loads later than the report, so a new question gets both in full.
        report = self._pipe.insert_report(None if new else self._mark)
        missed = self._unknown_since(new, report, now)
        found = report.loads
        if missed is not None:
            found = self._pipe.history(max(missed, now - REMEMBERED), now) + found
        self._mark, self._asked_at = report.next_mark, now
        self._answered = frozenset(questions)
        return found

    def close(self) -> None:
        """Give the connections back."""
        self._pipe.close()

    def _unknown_since(
        self, new: Sequence[HistoryQuestion], report: PipeReport, now: dt.datetime
    ) -> dt.datetime | None:
        """The timestamp from which on the report does not say everything, None where it does."""
        needed = [question.since for question in new]
        if self._asked_at is not None:
            needed.append(self._asked_at)
        untold = [since for since in needed if not report.is_complete or now - since > _REPORTED]
        return min(untold) - OVERLAP if untold else None
