"""The REST API of one file pipe: giving it files, once per run, and what it has loaded.

The calls are those of the page "Snowpipe REST API".
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_snowpipe.bulk.copy import RunIdentity
from airflow_provider_snowpipe.bulk.files_watch import Tolerance
from airflow_provider_snowpipe.bulk.load_history import OVERLAP, REMEMBERED, HistoryQuestion
from airflow_provider_snowpipe.bulk.staged_files import (
    FINAL,
    LOADED,
    PARTIALLY_LOADED,
    PIPE_REPORT,
    ExpectedFiles,
    FileLoad,
)
from airflow_provider_snowpipe.streaming.auth import KeyPair, Signed, base_url
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    ConfigurationError,
    FilesRejectedError,
    PipeNotFoundError,
)
from airflow_provider_snowpipe.streaming.http import Answer, HttpSession, Transports
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, first_few, plain_or_quoted, quote_url_segment

# pragma: no mutate start (requests are tested against the service)

MOST_FILES = 5_000
"""Files that one post names."""
_LONGEST_PATH = 1_024
_NAMESPACE = uuid.UUID("5c0c4a0e-4df5-4f0c-9a53-0c1f0c1f5a11")


@dataclass(frozen=True, slots=True)
class PipeReport:
    """What one call reported.

    :param loads: the loads, from the oldest
    :param is_complete: False when there were more than the call could report
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
    :param staged_at: since when it is there, None where nobody knows
    :param mark: distinguishes its content from an earlier one of that name, empty where nobody knows
    """

    path: str
    size: int | None = None
    staged_at: dt.datetime | None = None
    mark: str = ""

    def __post_init__(self) -> None:
        if not self.path or len(self.path.encode()) > _LONGEST_PATH:
            raise ConfigurationError(
                f"the path {self.path[:60]!r} has {len(self.path.encode()):,} bytes: a pipe takes paths of 1 "
                f"to {_LONGEST_PATH:,} bytes below its location"
            )


class FilePipeClient:
    """A client of one file pipe's REST API, which takes key pairs only. The constructor does no I/O.

    :param account_url: the account's address, ``https://<host>[:<port>]``
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

        Repeating it is safe: the pipe skips files that wait or that it has loaded.

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
                f"insertFiles of pipe {self.pipe}: the answer (HTTP {answer.status}) is not a success; check "
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

    def history(self, since: dt.datetime, until: dt.datetime) -> list[FileLoad]:
        """Ask for all loads of a while, page by page of 10,000. Snowflake limits how often.

        :param since: the first timestamp, at most 14 days back
        :param until: the timestamp after the last one
        :raises PipeNotFoundError: if there is no such pipe, or the role may not see it
        """
        start, end = since.isoformat(timespec="milliseconds"), until.isoformat(timespec="milliseconds")
        found: list[FileLoad] = []
        while True:
            page = self._reported("loadHistoryScan", {"startTimeInclusive": start, "endTimeExclusive": end})
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
            [FileLoad.read(entry, PIPE_REPORT) for entry in body["files"]],
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
    return str(pipe) if all(one == plain_or_quoted(one) for one in parts) else pipe.quoted


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# -- The loads of one file pipe over many polls: its report, and its history where the report has forgotten --

_REPORTED = dt.timedelta(minutes=8)
"""How far back the report is trusted; it keeps ten minutes, and 10,000 loads, whichever is less."""


class PipeHistory:
    """The loads by one pipe, with as few calls of ``loadHistoryScan`` as will do.

    Each poll asks for the report since the one before. What the report cannot know is asked for once: what
    came before the first poll of a question, and what was missed between two polls.
    """

    def __init__(self, pipe: FilePipeClient) -> None:
        self._pipe = pipe
        self._mark: str | None = None
        self._asked_at: dt.datetime | None = None
        self._answered: frozenset[HistoryQuestion] = frozenset()

    def loads(self, questions: Sequence[HistoryQuestion], now: dt.datetime) -> list[FileLoad]:
        """The loads that the questions are about; what was reported before may be left out.

        :raises SnowpipeError: if the pipe cannot be asked
        """
        new = [question for question in questions if question not in self._answered]
        # The history may know the newest loads later than the report, so a new question gets both in full.
        report = self._pipe.insert_report(None if new else self._mark)
        needed = [question.since for question in new]
        if self._asked_at is not None:
            needed.append(self._asked_at)
        untold = [since for since in needed if not report.is_complete or now - since > _REPORTED]
        found = report.loads
        if untold:
            found = self._pipe.history(max(min(untold) - OVERLAP, now - REMEMBERED), now) + found
        self._mark, self._asked_at = report.next_mark, now
        self._answered = frozenset(questions)
        return found

    def close(self) -> None:
        """Give the connections back."""
        self._pipe.close()


# pragma: no mutate end


# -- Giving files to a file pipe, once per run: which ones, in which posts, and what their loads mean ------

_SKEW = dt.timedelta(hours=1)
"""Clocks that differ by more end the sign-in already: its tokens live for an hour."""
_INSTANT = dt.timedelta(milliseconds=1)
_CLOCKS = dt.timedelta(minutes=1)
"""By so much the clocks of stage and account may differ."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The files of one run.

    :param before: those that the pipe has loaded already, and skips: what it reports of them
    :param since: loads before this time are of earlier submissions
    :param unmatched: those that the pipe's PATTERN leaves out
    :param where: from where the pipe loads them, without their names
    """

    files: tuple[SubmittedFile, ...]
    before: Mapping[str, FileLoad] = field(default_factory=dict)
    since: dt.datetime | None = None
    unmatched: tuple[str, ...] = ()
    posts: int = 0
    where: ExpectedFiles = field(default_factory=ExpectedFiles)

    @classmethod
    def planned(
        cls,
        files: Sequence[SubmittedFile],
        history: Iterable[FileLoad],
        now: dt.datetime,
        where: ExpectedFiles | None = None,
    ) -> Self:
        """Return the files that the pipe still has to be given.

        A pipe takes a file that it has loaded not again, also where only some of its rows fitted. One that
        failed it takes again, and then the failure of before must not count.

        :param history: the pipe's loads of them, from the oldest
        :param where: from where the pipe loads them, None where that is not known
        """
        where = where or ExpectedFiles()
        found = replace(where, names=tuple(one.path for one in files)).of(history)
        known = {path: replace(load, path=path) for path, load in found if load.status in FINAL}
        before = {path: load for path, load in known.items() if load.status in (LOADED, PARTIALLY_LOADED)}
        failed = [load.loaded_at for path, load in known.items() if path not in before and load.loaded_at]
        since = max([now - _SKEW, *(time + _INSTANT for time in failed)])
        return cls(tuple(files), before, since, where=where)

    def owed(self) -> tuple[SubmittedFile, ...]:
        """The files that the pipe has to be given."""
        return tuple(one for one in self.files if one.path not in self.before)

    def staged_again(self) -> tuple[str, ...]:
        """Paths of the files that were staged after the pipe has loaded them, so that it skips them."""
        return tuple(
            one.path
            for one in self.files
            if (load := self.before.get(one.path)) is not None
            and one.staged_at is not None
            and load.loaded_at is not None
            and one.staged_at > load.loaded_at + _CLOCKS
        )

    def awaited(self) -> tuple[str, ...]:
        """Paths of the files whose load is to be waited for."""
        left_out = frozenset(self.unmatched)
        return tuple(one.path for one in self.owed() if one.path not in left_out)

    def expected(self) -> ExpectedFiles:
        """The files whose load is to be waited for, as a wait takes them."""
        return replace(self.where, names=self.awaited())

    def taken(self) -> list[str]:
        """Paths of the files that the pipe loads, or has loaded."""
        left_out = frozenset(self.unmatched)
        return [one.path for one in self.files if one.path not in left_out]

    def submit(self, client: FilePipeClient, identity: RunIdentity) -> Submission:
        """Give the files to the pipe, 5,000 a post.

        :return: the same with what the pipe has reported
        """
        unmatched: list[str] = []
        posts = 0
        for part, request_id in self.requests(str(client.pipe), identity):
            unmatched += client.insert_files(part, request_id)
            posts += 1
        return replace(self, unmatched=tuple(unmatched), posts=posts)

    def requests(self, pipe: str, identity: RunIdentity) -> Iterator[tuple[tuple[SubmittedFile, ...], str]]:
        """The posts, and the request id of each, which every try derives alike."""
        owed = self.owed()
        for start in range(0, len(owed), MOST_FILES):
            part = owed[start : start + MOST_FILES]
            named = json.dumps([identity.names, pipe, [one.path for one in part]])
            yield part, str(uuid.uuid5(_NAMESPACE, named))

    def require_whole(self, pipe: str, tolerance: Tolerance) -> None:
        """Object to files that the pipe has loaded in part before this submission.

        :raises FilesRejectedError: if there is one and it is not
        """
        bad = {path: load for path, load in self.before.items() if tolerance.objects_to(load)}
        if bad:
            path, load = next(iter(bad.items()))
            raise FilesRejectedError(
                f"{len(bad):,} of {len(self.files):,} files for pipe {pipe} were loaded in part before, and "
                f"are not loaded again: {path!r} with {load.rows_loaded:,} of {load.rows_parsed:,} rows, "
                f"first error: {load.first_error or 'no message'}. Stage what is fixed under other names, "
                "or set on_partial='report'",
                files=tuple(bad),
                rejected=sum(one.errors_seen for one in bad.values()),
            )

    def require_matched(self, pipe: str) -> None:
        """Object to files that the pipe's PATTERN leaves out.

        :raises FilesRejectedError: if there are any
        """
        if self.unmatched:
            shown = first_few([repr(one) for one in self.unmatched])
            raise FilesRejectedError(
                f"pipe {pipe} does not load {len(self.unmatched):,} of {len(self.files):,} files, which its "
                f"PATTERN leaves out: {shown}. The others are submitted. Give paths that it takes, below the "
                "pipe's own location, or set on_unmatched='report'",
                files=self.unmatched,
                rejected=0,
            )

    def result(self, pipe: str) -> dict[str, Any]:
        """What was submitted, as JSON, for a task's value."""
        return {
            "pipe": pipe,
            "files": [one.path for one in self.files],
            "submitted": list(self.awaited()),
            "posts": self.posts,
            "unmatched": list(self.unmatched),
            "loaded_before": {path: load.result() for path, load in self.before.items()},
        }
