"""Giving files to a file pipe, once per run: which ones, in which posts, and what their loads mean."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_snowpipe.bulk.copy_run import RunIdentity, newest_loads
from airflow_provider_snowpipe.bulk.file_load import LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.file_pipe import MOST_FILES, FilePipeClient, SubmittedFile
from airflow_provider_snowpipe.bulk.files_watch import Tolerance
from airflow_provider_snowpipe.streaming.errors import FilesRejectedError

_SKEW = dt.timedelta(hours=1)
"""Clocks that differ by more end the sign-in already: its tokens live for an hour."""
_INSTANT = dt.timedelta(milliseconds=1)
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Submission:
    """The files of one run.

    :param files: all of them
    :param before: those that the pipe has loaded already, and passes over: what it says of them
    :param since: loads before this time are of earlier submissions
    :param unmatched: those that the pipe's PATTERN leaves out
    :param posts: requests that were made
    """

    files: tuple[SubmittedFile, ...]
    before: Mapping[str, FileLoad] = field(default_factory=dict)
    since: dt.datetime | None = None
    unmatched: tuple[str, ...] = ()
    posts: int = 0

    @classmethod
    def planned(cls, files: Sequence[SubmittedFile], history: Iterable[FileLoad], now: dt.datetime) -> Self:
        """Say which files the pipe still has to be given.

        A pipe takes a file that it has loaded not again, also where only some of its rows fitted. One that
        failed it takes again, and then the failure of before must not count.

        :param files: the files
        :param history: the pipe's loads of them, from the oldest
        :param now: the time
        """
        known = newest_loads([one.path for one in files], history)
        before = {path: load for path, load in known.items() if load.status in (LOADED, PARTIALLY_LOADED)}
        failed = [load.loaded_at for path, load in known.items() if path not in before and load.loaded_at]
        return cls(tuple(files), before, max([now - _SKEW, *(time + _INSTANT for time in failed)]))

    def owed(self) -> tuple[SubmittedFile, ...]:
        """The files that the pipe has to be given."""
        return tuple(one for one in self.files if one.path not in self.before)

    def awaited(self) -> tuple[str, ...]:
        """Paths of the files whose load is to be waited for."""
        left_out = frozenset(self.unmatched)
        return tuple(one.path for one in self.owed() if one.path not in left_out)

    def taken(self) -> list[str]:
        """Paths of the files that the pipe loads, or has loaded."""
        left_out = frozenset(self.unmatched)
        return [one.path for one in self.files if one.path not in left_out]

    def submit(self, client: FilePipeClient, identity: RunIdentity) -> Submission:
        """Give the files to the pipe, 5,000 a post.

        :param client: a client of the pipe
        :param identity: whose work it is
        :return: the same with what the pipe has said
        """
        unmatched: list[str] = []
        posts = 0
        for part, request_id in self.requests(str(client.pipe), identity):
            unmatched += client.insert_files(part, request_id)
            posts += 1
        return replace(self, unmatched=tuple(unmatched), posts=posts)

    def requests(self, pipe: str, identity: RunIdentity) -> Iterator[tuple[tuple[SubmittedFile, ...], str]]:
        """The posts, and the request id of each, which every try derives alike.

        :param pipe: the pipe's full name
        :param identity: whose work it is
        """
        owed = self.owed()
        work = replace(identity, try_number=1)
        for start in range(0, len(owed), MOST_FILES):
            part = owed[start : start + MOST_FILES]
            (request_id,) = work.request_ids(f"insertFiles of {pipe}", [one.path for one in part])
            yield part, request_id

    def require_whole(self, pipe: str, tolerance: Tolerance) -> None:
        """Object to files of which the pipe has loaded some rows only, before this submission.

        :param pipe: the pipe's full name
        :param tolerance: whether that is accepted
        :raises FilesRejectedError: if there is one and it is not
        """
        bad = {path: load for path, load in self.before.items() if tolerance.objects_to(load)}
        if bad:
            path, load = next(iter(bad.items()))
            raise FilesRejectedError(
                f"pipe {pipe} has loaded {len(bad):,} of {len(self.files):,} files in part before, and takes "
                f"them not again: {path!r} with {load.rows_loaded:,} of {load.rows_parsed:,} rows, first "
                f"error: {load.first_error or 'no message'}. Stage what is fixed under other names, or say "
                "on_partial='report'",
                files=tuple(bad),
                rejected=sum(one.errors_seen for one in bad.values()),
            )

    def require_matched(self, pipe: str) -> None:
        """Object to files that the pipe's PATTERN leaves out.

        :param pipe: the pipe's full name
        :raises FilesRejectedError: if there are any
        """
        if self.unmatched:
            shown = ", ".join(map(repr, self.unmatched[:_NAMED])) + (
                " …" if len(self.unmatched) > _NAMED else ""
            )
            raise FilesRejectedError(
                f"pipe {pipe} does not load {len(self.unmatched):,} of {len(self.files):,} files, which its "
                f"PATTERN leaves out: {shown}. The others are submitted. Give paths that it takes, below the "
                "pipe's own location, or say on_unmatched='report'",
                files=self.unmatched,
                rejected=0,
            )

    def result(self, pipe: str) -> dict[str, Any]:
        """What was submitted, as JSON, for a task's value.

        :param pipe: the pipe's full name
        """
        return {
            "pipe": pipe,
            "files": [one.path for one in self.files],
            "submitted": list(self.awaited()),
            "posts": self.posts,
            "unmatched": list(self.unmatched),
            "loaded_before": {path: load.result() for path, load in self.before.items()},
        }
