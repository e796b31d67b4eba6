"""The REST API of one file pipe: giving it files, and what it has loaded (page "Snowpipe REST API")."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.load_history import OVERLAP, REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.streaming.auth import KeyPair, Signed, base_url
from airflow_provider_snowpipe.streaming.errors import ApiError, ConfigurationError, PipeNotFoundError
from airflow_provider_snowpipe.streaming.http import Answer, HttpSession, Transports
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, full_name, quote_url_segment

MOST_FILES = 5_000
"""Files that one post names."""
_LONGEST_PATH = 1_024
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")


@dataclass(frozen=True, slots=True)
class PipeReport:
    """What one call reported.

    :param loads: the loads, from the oldest
    :param is_complete: False when there were more than the call could say
    :param next_mark: continues an insertReport; None where the answer has none
    :param next_start: continues a loadHistoryScan; None where the answer has none
    """

    loads: list[FileLoad]
    is_complete: bool
    next_mark: str | None = None
    next_start: str | None = None


@dataclass(frozen=True, slots=True)
class SubmittedFile:
    """A file for a pipe.

    :param path: below the pipe's location
    :param size: bytes, None where nobody knows; it helps the pipe to plan
    """

    path: str
    size: int | None = None

    def __post_init__(self) -> None:
        if not self.path or len(self.path.encode()) > _LONGEST_PATH:
            raise ConfigurationError(
                f"the path {self.path[:60]!r} has {len(self.path.encode()):,} bytes: a pipe takes paths of 1 "
                f"to {_LONGEST_PATH:,} bytes below its location"
            )


class FilePipeClient:
    """A client of one file pipe's REST API, which takes key pairs only. The constructor does no I/O.

    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param credentials: the key pair
    :param pipe: the pipe
    :param ca_bundle: a PEM file of trusted roots, None for the environment's or the public ones
    :param retry: pauses and budget of every request
    :raises ConfigurationError: if the URL or the bundle is not usable
    """

    def __init__(
        self,
        account_url: str,
        credentials: KeyPair,
        pipe: PipeName,
        *,
        ca_bundle: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.pipe = pipe
        self._url = f"{base_url(account_url)}/v1/data/pipes/{quote_url_segment(_written(pipe))}"
        self._transports = Transports(ca_bundle)
        self._session = HttpSession(self._transports, retry, Signed(credentials))

    def __repr__(self) -> str:
        return f"FilePipeClient({self._url!r})"

    def close(self) -> None:
        """Give the connections back."""
        self._transports.close()

    def insert_files(self, files: Sequence[SubmittedFile], request_id: str) -> tuple[str, ...]:
        """Give files to the pipe, which loads them soon, and not again within 14 days.

        Repeating it is safe: the pipe passes over files that wait or that it has loaded.

        :param files: at most 5,000
        :param request_id: names the request in Snowflake's logs; the same for every repetition
        :return: the paths that the pipe's PATTERN leaves out, so that they are not loaded
        :raises ConfigurationError: if there are more
        :raises PipeNotFoundError: if there is no such pipe, or the role may not use it
        :raises RetriesExhaustedError: if the pipe stays overloaded for the policy's budget
        """
        if len(files) > MOST_FILES:
            raise ConfigurationError(
                f"one post names {MOST_FILES:,} files at most, not {len(files):,}: split them"
            )
        named = [{"path": one.path} | ({} if one.size is None else {"size": one.size}) for one in files]
        answer = self._send("POST", "insertFiles", {"requestId": request_id}, {"files": named})
        body = answer.json
        if not isinstance(body, Mapping) or str(body.get("status", "")).lower() != "success":
            raise ApiError(
                f"insertFiles of pipe {self.pipe}: the answer (HTTP {answer.status}) is no success; check "
                "that the account URL leads to Snowflake",
                http_status=answer.status,
            )
        return tuple(str(path) for path in body.get("unmatchedPatternFiles") or ())

    def insert_report(self, begin_mark: str | None = None) -> PipeReport:
        """Ask for the loads of the last 10 minutes, the newest 10,000.

        :param begin_mark: only what came after the report that gave this mark
        :raises PipeNotFoundError: if there is no such pipe, or the role may not see it
        """
        return self._reported("insertReport", {} if begin_mark is None else {"beginMark": begin_mark})

    def history_page(self, since: str, until: str) -> PipeReport:
        """Ask for loads of a while, at most 14 days back, 10,000 at most. Snowflake limits how often.

        :param since: the first timestamp, in ISO 8601
        :param until: the timestamp after the last one
        :raises PipeNotFoundError: if there is no such pipe, or the role may not see it
        """
        return self._reported("loadHistoryScan", {"startTimeInclusive": since, "endTimeExclusive": until})

    def history(self, since: dt.datetime, until: dt.datetime) -> list[FileLoad]:
        """Ask for all loads of a while, page by page.

        :param since: the first timestamp
        :param until: the timestamp after the last one
        """
        start, end = since.isoformat(timespec="milliseconds"), until.isoformat(timespec="milliseconds")
        found: list[FileLoad] = []
        while True:
            page = self.history_page(start, end)
            found += page.loads
            if page.is_complete or page.next_start is None or page.next_start == start:
                return found
            start = page.next_start

    def _reported(self, call: str, query: Mapping[str, str]) -> PipeReport:
        answer = self._send("GET", call, query)
        body = answer.json
        if not isinstance(body, Mapping) or not isinstance(body.get("files"), list):
            raise ApiError(
                f"{call} of pipe {self.pipe}: the answer (HTTP {answer.status}) has no list of files; check "
                "that the account URL leads to Snowflake",
                http_status=answer.status,
            )
        return PipeReport(
            [FileLoad.from_report(entry) for entry in body["files"]],
            bool(body.get("completeResult", True)),
            _text(body.get("nextBeginMark")),
            _text(body.get("rangeEndTime")),
        )

    def _send(self, method: str, call: str, query: Mapping[str, str], body: Any = None) -> Answer:
        request = {"requestId": str(uuid.uuid4()), **query}
        try:
            return self._session.request(
                f"{call} of pipe {self.pipe}", method, f"{self._url}/{call}", query=request, json_body=body
            )
        except ApiError as error:
            if error.http_status != 404:
                raise
            raise PipeNotFoundError(
                f"{error}. Check database, schema and pipe, letter by letter, and that the role has "
                f"{'OPERATE' if method == 'POST' else 'MONITOR or OPERATE'} on the pipe",
                http_status=error.http_status,
                code=error.code,
            ) from None


def _written(pipe: PipeName) -> str:
    """The full name as the API takes it; quoted where a part is not written in plain capitals."""
    parts = (pipe.database, pipe.schema, pipe.pipe)
    return ".".join(parts) if all(map(_PLAIN.fullmatch, parts)) else full_name(*parts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# -- The loads of one file pipe over many polls: its report, and its history where the report has forgotten --

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
