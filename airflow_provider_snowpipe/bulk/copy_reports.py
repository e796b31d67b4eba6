"""What came of the files of a COPY: by what it has reported, the ledger, and load history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyInto, CopyOutcome
from airflow_provider_snowpipe.bulk.ledger import GONE, LOADED, PLANNED, Entry, Ledger, TableState
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.staged_files import (
    LOAD_FAILED,
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StageReference,
    is_of_stage,
    newest_loads,
)
from airflow_provider_snowpipe.bulk.two_loaders import stage_name
from airflow_provider_snowpipe.streaming.errors import FilesRejectedError, SqlError

_MOST_NAMED = 3
History = Callable[[Sequence[str]], Sequence[FileLoad]]
"""Loads of files with these paths, as far back as they are remembered, from the oldest."""


class GivenUpError(SqlError):
    """Another task has given a load of files up, and may load them another way; another try finds how."""


@dataclass(frozen=True, slots=True)
class CopyReports:
    """What shows what became of the files of one COPY.

    :param copy: the statement; its location is the stage without a path
    :param stage: the stage of the files
    :param url: what an external stage stands for
    """

    copy: CopyInto
    stage: StageReference
    url: str | None
    ledger: Ledger
    history: History

    def outcome(
        self, entries: Sequence[Entry], files: Mapping[str, StagedFile], now: TableState
    ) -> CopyOutcome:
        """What became of the files of a work.

        :param entries: its entries in the ledger
        :param files: what is known of their files, by path
        :param now: the table when the files were planned
        :raises FilesRejectedError: if COPY has left out a file that nobody has loaded
        """
        loads: dict[str, FileLoad] = {}
        skipped: dict[str, FileLoad] = {}
        left_out = set()
        for one in entries:
            reported = one.loads(self.stage, self.url) if one.is_loaded else {}
            for path in (file.path for file in one.files if one.is_loaded):
                load = reported.get(path) or FileLoad(path, "", LOAD_SKIPPED)
                if path not in reported:
                    left_out.add(path)
                if load.status != LOAD_SKIPPED:
                    loads[path] = load
                elif path not in loads:
                    skipped[path] = load
        before = {path: load for path, load in skipped.items() if path not in loads}
        if before:
            known = self.remembered(before)
            before |= known
            unknown = [path for path in before if path in left_out and path not in known]
            if self.copy.options.size_limit is None:
                self._require_all(left_out if self.copy.options.force else unknown, files)
            if not self.copy.options.force:
                limited = left_out if self.copy.options.size_limit is not None else set()
                self._refuse_deleted({path: one for path, one in before.items() if path not in limited}, now)
        return CopyOutcome(tuple(loads.values()), tuple(before.values()))

    def _refuse_deleted(self, skipped: Mapping[str, FileLoad], now: TableState) -> None:
        """Refuse files that COPY remembers and whose rows were deleted since.

        :param skipped: the files with their loads by others
        """
        at = now.at
        old = {path for path, one in skipped.items() if not (one.loaded_at and at and one.loaded_at > at)}
        if now.rows != 0:
            # What is planned again had rows before, too.
            gone = self._loaded_in(GONE) | self._loaded_in(PLANNED)
            old &= gone - (self._loaded_in(LOADED) if gone & old else set())
        if old:
            raise FilesRejectedError(
                f"COPY into {self._table} has skipped {len(old):,} files that it remembers, such as "
                f"{min(old)!r}, and their rows were deleted. TRUNCATE the table, which clears COPY's memory, "
                "and clear this task; or set options={'force': True} in another run",
                files=tuple(sorted(old)),
                rejected=0,
            )

    def _loaded_in(self, state: str) -> set[str]:
        """The files of this stage that COPY has loaded for any work, by entries of a state."""
        found = self.ledger.of_state(state, stage_name(self.copy.location, self.url))
        return {path for one in found for path in self.loaded_paths(one)}

    def loaded_paths(self, entry: Entry) -> set[str]:
        """The files from which an entry's COPY has loaded rows."""
        return {path for path, load in entry.loads(self.stage, self.url).items() if load.rows_loaded}

    def remembered(self, paths: Iterable[str]) -> dict[str, FileLoad]:
        """The newest load of each file by COPY that load history knows."""
        names, stage = tuple(paths), StageReference.parse(self.copy.location)
        history = self.history(list(names))
        own = [one for one in history if one.pipe is None and is_of_stage(one, stage, self.url)]
        return newest_loads(ExpectedFiles(names), own)

    def _require_all(self, left_out: Iterable[str], files: Mapping[str, StagedFile]) -> None:
        """Refuse to go on behind files that were planned and that COPY has not loaded.

        Without FORCE a file that is older than load history may have been loaded before.
        """
        since = dt.datetime.now(dt.UTC) - REMEMBERED
        new = tuple(
            path
            for path in left_out
            if self.copy.options.force or (at := files[path].staged_at) is None or at > since
        )
        if new:
            shown = ", ".join(map(repr, new[:_MOST_NAMED])) + (" …" if len(new) > _MOST_NAMED else "")
            raise FilesRejectedError(
                f"COPY into {self._table} has left out {len(new):,} of {len(files):,} files that were "
                f"planned: {shown}. The other files are loaded. An option of the stage, the table or the "
                "account limits COPY (SIZE_LIMIT of COPY_OPTIONS, PATTERN): remove it and clear this task",
                files=new,
                rejected=0,
            )

    @property
    def _table(self) -> str:
        return self.copy.table[-1]


def is_done(load: FileLoad | None, *, forced: bool) -> bool:
    """True for a file that needs no other COPY; one that COPY has skipped needs it, but with FORCE."""
    return forced if load is None or load.status == LOAD_SKIPPED else load.status != LOAD_FAILED
