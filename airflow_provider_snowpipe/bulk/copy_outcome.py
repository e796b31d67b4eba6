"""What a COPY did with each file: read from its result, never assumed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_snowpipe.bulk.file_load import LOAD_FAILED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError

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
        """Read the rows of a COPY's result, whose keys are the columns' names in small letters.

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

    def skipped(self) -> tuple[str, ...]:
        """Paths of files that the result says were loaded before."""
        return tuple(load.path for load in self.loads if load.status == LOAD_SKIPPED)

    def unnamed(self, files: Iterable[str]) -> tuple[str, ...]:
        """Those of some files that the result does not name: COPY leaves out what it has nothing to say of.

        :param files: paths below the stage
        """
        named = {load.path for load in self.loads}
        return tuple(path for path in files if path not in named)

    def with_history(
        self, files: Sequence[str], history: Iterable[FileLoad], since: dt.datetime
    ) -> CopyOutcome:
        """Say of files that were loaded before what load history says of that load, the newest one.

        :param files: paths of these files, below the stage
        :param history: loads from the oldest
        :param since: what was loaded from this moment on was loaded by this run
        """
        if not files:
            return self
        known = newest_loads(files, history)
        ours = [known[path] for path in files if path in known and _is_since(known[path], since)]
        others = [
            known.get(path) or FileLoad(path, "", LOAD_SKIPPED)
            for path in files
            if path not in known or not _is_since(known[path], since)
        ]
        asked = frozenset(files)
        kept = [load for load in self.loads if load.path not in asked]
        return CopyOutcome((*kept, *ours), (*self.before, *others))

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
            "Mend these files and stage them again, or say on_rejected='report'",
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
    wanted = WantedFiles(tuple(files))
    known: dict[str, FileLoad] = {}
    for load in history:
        path = wanted.name_of(load)
        if path is not None and load.is_final:
            known[path] = replace(load, path=path)
    return known


def _is_since(load: FileLoad, since: dt.datetime) -> bool:
    return load.loaded_at is not None and load.loaded_at >= since
