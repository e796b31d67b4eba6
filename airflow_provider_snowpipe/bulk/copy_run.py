"""The COPY of staged files, once for each piece of work: planned in the ledger, run, and read from there."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import NoReturn

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyInto, CopyOutcome, RunIdentity, query_tag
from airflow_provider_snowpipe.bulk.ledger import Ledger
from airflow_provider_snowpipe.bulk.ledger_entry import (
    GIVEN_UP,
    GONE,
    LOADED,
    PLANNED,
    Entry,
    GivenUpError,
    TableState,
    files_of,
    is_done,
)
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.staged_files import (
    FINAL,
    LOAD_FAILED,
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StageReference,
)
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    ConfigurationError,
    FilesGivenTwiceError,
    FilesRejectedError,
    SqlError,
)

log = logging.getLogger(__name__)
_CANCELLED, _DIVISION = 604, 100051
_UNKNOWN = 404
_MOST_REPEATS = 3
LeaveWorker = Callable[[Mapping[str, int], str, str], NoReturn]
"""Defers the task, given the entries' versions when the try began, a statement's handle and its text."""
History = Callable[[Sequence[str]], Sequence[FileLoad]]
"""Loads of files with these paths, as far back as they are remembered, from the oldest."""


@dataclass(slots=True)
class CopyRun:
    """The COPY of some files, in as many statements as they need, one after the other.

    :param copy: the statement; its location is the stage without a path
    :param stage: that stage
    :param work: the key of the work, as of :func:`work_key`
    :param choice: tells the author's choice of files from another one
    :param details: what an entry keeps of files beside their names, from their paths
    :param listed: what is staged now, None where that is what is loaded
    :param leave: leaves the worker while a statement runs, None to wait here
    :param begun: versions of the entries that were loaded when this try began, where the task was deferred
        for a statement since, so that its error is this try's own; None for a try that begins
    """

    copy: CopyInto
    stage: StageReference
    client: StatementClient
    ledger: Ledger
    history: History
    identity: RunIdentity
    work: str
    choice: str = ""
    _: KW_ONLY
    details: Callable[[Sequence[str]], str] = lambda _: ""
    url: str | None = None
    listed: Mapping[str, StagedFile] | None = None
    leave: LeaveWorker | None = None
    begun: Mapping[str, int] | None = None
    done: dict[int, Entry] = field(default_factory=dict, init=False)
    """The entries as this process has left them, by their parts."""
    _earlier: Mapping[str, int] = field(default_factory=dict, init=False)
    """Versions of the entries that were loaded when this try began, by their parts."""
    _fresh: set[int] = field(default_factory=set, init=False)
    """Parts whose statement was planned by this process: an error of it is this try's own."""
    _resumed: frozenset[int] = field(default=frozenset(), init=False)
    """Parts that an earlier process has loaded."""
    _now: TableState = field(default=TableState(None, None, dt.datetime.min), init=False)
    """The table when the files were planned."""
    _known: frozenset[tuple[str, str]] = field(default=frozenset(), init=False)
    """Paths and marks of the files that other work has loaded into the table, which has rows."""
    _explained: int = field(default=0, init=False)
    """Rows of the table then that the ledger shows to be loaded."""
    _running: tuple[str, str] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def entries(self) -> list[Entry]:
        """Read what earlier tries have planned and loaded.

        :raises FilesGivenTwiceError: if a COPY with FORCE may be that of a deleted run of the same id
        :raises ConfigurationError: if one with FORCE was planned for another choice of files
        """
        found = self.ledger.entries(self.work)
        deleted = [one for one in found if one.run_started and self.identity.is_anew(one.run_started)]
        forced = self.copy.options.force
        if deleted and forced and self.identity.try_number > 1:
            raise FilesGivenTwiceError(
                f"the ledger {self._ledger} has a COPY with force by a deleted run of this id, of "
                f"{deleted[0].run_started}: whether it has loaded the files is not known. Where it has not, "
                f"delete WORK = {self.work!r} there and clear the task; otherwise mark it as successful",
                files=(),
            )
        if deleted:
            self.ledger.retire(self.work, self.identity.since)
            found = [one for one in found if one not in deleted]
        other = next((one for one in found if forced and one.choice != self.choice), None)
        if other is not None:
            raise ConfigurationError(
                f"an earlier try of this run has planned a COPY with force of {len(other.files):,} files by "
                f"other values of stage, files, prefix or pattern (ledger {self._ledger}, WORK = "
                f"{self.work!r}): begin another run to load what is chosen now"
            )
        last = max((one.part for one in found), default=0)
        if forced and any(one.last > last for one in found if one.state != GIVEN_UP):
            # The try died before all was planned, so that nothing of it has run.
            self.give_up(one for one in found if one.last > last)
            found = self.ledger.entries(self.work)
        return found

    def give_up(self, entries: Iterable[Entry]) -> None:
        """Keep statements that are not committed yet from being committed."""
        for one in entries:
            if one.state == PLANNED:
                self.ledger.change(one, replace(one, state=GIVEN_UP))

    def take_back(self) -> dict[str, FileLoad]:
        """Keep what is not committed of this work from being committed; the loads of the others, by path.

        :raises FilesRejectedError: if nobody knows whether rows of an earlier load are there
        """
        if not self.ledger.entries(self.work):
            never = Entry(self.work, 1, 1, state=GIVEN_UP, run_started=self.identity.since)
            self.ledger.plan(never, self.identity, self.stage.key(self.url))
        self.ledger.give_up("WORK = %s", self.work)
        found, lost = self.seen(self.ledger.entries(self.work))
        return {
            path: load
            for one in found
            if one.is_loaded and one not in lost
            for path, load in one.loads(self.stage, self.url).items()
            if load.status != LOAD_FAILED
        }

    def plan(self, staged: Mapping[str, StagedFile], entries: Sequence[Entry]) -> list[Entry]:
        """Plan the files that this work has not loaded, and again what is gone from the table.

        :param staged: the files by their paths below the stage
        :param entries: as :meth:`entries` returned them
        :return: all entries of the work
        :raises FilesRejectedError: if some rows of an earlier load are gone, or nobody knows whether they are
        """
        loaded = {str(one.part): one.version for one in entries if one.is_loaded}
        self._earlier = loaded if self.begun is None else self.begun
        entries, lost = self.seen(entries)
        self._resumed = frozenset(one.part for one in entries if one.reports)
        if self.copy.options.force:
            self._refuse_unforced([one for one in entries if one not in lost], staged, is_first=not entries)
        if gone := [path for path in files_of(lost) if path not in staged]:
            raise FilesRejectedError(
                f"COPY into {self._table}: rows of an earlier try are not in the table any more, and "
                f"{len(gone):,} of its files are not staged, such as {gone[0]!r}: stage them again",
                files=tuple(gone),
                rejected=0,
            )
        if self.copy.options.force and len(lost) < len(entries):
            self._require_rows()
        if lost:
            log.info("%s has lost what an earlier try loaded: %d parts load again", self._table, len(lost))
            again = partial(replace, state=PLANNED, target_rows=self._now.rows)
            entries = [self._changed(one, again(one)) if one in lost else one for one in entries]
        return [*entries, *self._new_entries(staged, entries)]

    def seen(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Read the table as it is now; the entries, and those that have lost their rows.

        :raises FilesRejectedError: if the table has rows that the ledger does not know: they may be these
        """
        self._now, loads = self.ledger.table_and_loads()
        now = self._now
        if now.rows is None:
            log.warning("whether %s still has what was loaded is not known: it does not show", self._table)
        self._explained = sum(one.rows for one in loads)
        known = {one.query_id for one in loads}
        rows_of = [one for one in entries if one.is_loaded and one.rows_loaded and one.created == now.created]
        # Another try may have found them gone since they were read.
        is_stale = any(one.query_id not in known for one in rows_of)
        if now.rows == 0 and loads:
            self.ledger.mark_gone(loads)
            self._explained, is_stale = 0, True
        if is_stale:
            entries = [self._read(one) for one in entries]
        lost = []
        for one in entries:
            is_other = one.is_loaded and one.created and now.created and one.created != now.created
            loaded = one.loads(self.stage, self.url).values() if is_other else ()
            if one.state == GONE or any(load.rows_loaded for load in loaded):
                lost.append(one)
        if lost and (now.rows is None or now.rows > self._explained):
            raise self._in_doubt(lost[0].created, files_of(lost))
        return list(entries), lost

    def load(self, entries: Sequence[Entry], staged: Mapping[str, StagedFile]) -> list[Entry]:
        """Load what is planned, and make sure that what an earlier try has loaded is there.

        COPY has to skip what was loaded before; it loads such a file after a TRUNCATE, which clears its
        memory.

        :param entries: as :meth:`plan` returned them
        :param staged: the files; of a planned entry only these are loaded
        :return: the entries as they are then, for :meth:`judged`
        :raises FilesRejectedError: if COPY would load what was loaded before, although the table has rows
        :raises SqlError: if a statement fails, or another process gives the files up
        """
        for one in entries:
            self.done[one.part] = one
            entry, skips = self._due(one, staged)
            try:
                is_over = one.state == GIVEN_UP or not entry.files or (entry.is_loaded and not skips)
                self.done[one.part] = entry if is_over else self._load_entry(entry, loads_nothing=skips)
            except SqlError as error:
                if not skips or error.errno != _DIVISION:
                    raise
                self.give_up([self._read(entry)])
                raise self._in_doubt(entry.created, (file.path for file in entry.files)) from error
        return [self.done[one.part] for one in entries]

    def stop(self) -> None:
        """Cancel the statement that runs, and begin no other."""
        self._stopped = True
        if self._running is not None:
            self.client.cancel(*self._running)

    def _require_rows(self, entries: Iterable[Entry] = ()) -> None:
        """Refuse a result if rows of it are not in the table any more.

        :param entries: loads whose rows have to be there; what had been deleted before the first of them was
            planned does not count. None for all that the ledger knows
        """
        now, loads = self.ledger.table_and_loads()
        planned = ((one.planned_at, one.target_rows) for one in entries if one.planned_at is not None)
        since, before = min(planned, key=itemgetter(0), default=(None, 0))
        loaded = (before or 0) + sum(one.rows for one in loads if since is None or one.at >= since)
        if now.rows is None or before is None or now.rows >= loaded:
            return
        raise FilesRejectedError(
            f"COPY into {self._table}: with what was loaded it had {loaded:,} rows, and it has {now.rows:,}: "
            "some were deleted. Nothing was loaded again: rows that are there would double. TRUNCATE the "
            "table and clear this task, or begin another run with options={'force': True}",
            files=(),
            rejected=0,
        )

    def _in_doubt(self, made: dt.datetime | None, files: Iterable[str]) -> FilesRejectedError:
        has = "some" if self._now.rows is None else f"{self._now.rows:,}"
        what = f"these files were loaded into the table of {made}, and that of now is of {self._now.created}"
        if made is not None and made == self._now.created:
            what = "the ledger has these files as loaded, and COPY would load them again, as after a TRUNCATE"
        remedy = (
            "Where they are missing, begin a run with options={'force': True}; where they are there, take "
            "these files from the task"
        )
        if self.identity.work is not None:
            remedy = (
                f"Set STATE to '{LOADED}' if they are there, or to '{GIVEN_UP}' if they are missing, where "
                f"WORK is {self.work!r} in the ledger {self._ledger}"
            )
        return FilesRejectedError(
            f"COPY into {self._table}: {what}. The table has {has} rows, and the ledger knows "
            f"{self._explained:,}: a restore, a clone, a swap or an INSERT may have brought those of these "
            f"files. Nothing was loaded. {remedy}",
            files=tuple(files),
            rejected=0,
        )

    # Planning.

    def _new_entries(self, staged: Mapping[str, StagedFile], entries: Sequence[Entry]) -> list[Entry]:
        """Plan the files that no entry has, and those that COPY could not load in an earlier try."""
        done = {
            (file.path, file.mark)
            for one in entries
            if one.state in (PLANNED, LOADED)
            for loads in (one.loads(self.stage, self.url),)
            for file in one.files
            if self._earlier.get(str(one.part)) != one.version  # planned, or loaded by this very try
            or is_done(loads.get(file.path), forced=self.copy.options.force)
        }
        left = [one for one in staged.values() if (one.path, one.mark) not in done]
        if not self.copy.options.force:
            again = [file for one in entries if one.state == PLANNED for file in one.files]
            self._known = self._loaded_by_others([*left, *again], self.stage.key(self.url))
        apart: tuple[list[str], list[str]] = ([], [])
        for one in left:
            apart[(one.path, one.mark) in self._known].append(one.path)
        parts = [part for some in apart for part in self.copy.parts(some)]
        before = max((one.part for one in entries), default=0)
        planned = []
        for number, paths in enumerate(parts, before + 1):
            files = tuple(staged[path] for path in paths)
            new = Entry(
                self.work,
                number,
                before + len(parts),
                choice=self.choice,
                details=self.details(paths),
                statement=self.copy.statement(paths, is_own=True),
                files=files,
                run_started=self.identity.since,
                created=self._now.created,
                target_rows=self._now.rows,
                names=self.identity.names[:4],
            )
            if self.ledger.plan(new, self.identity, self.stage.key(self.url)):
                self._fresh.add(number)
            elif (found := self._read(new)).files == files and found.state != GIVEN_UP:
                new = found  # its statement is joined
            else:
                what = f"COPY into {self._table}: another process has planned part {number}, or given it up"
                raise SqlError(f"{what}; another try reads what it has loaded")
            planned.append(new)
        return planned

    def _loaded_by_others(self, files: Sequence[StagedFile], stage: str) -> frozenset[tuple[str, str]]:
        """The files that COPY has to skip: the ledger has them as loaded into the table, which has rows.

        :raises FilesRejectedError: if rows of a file went into a table of this name that was replaced since
            by one with rows that the ledger does not know
        """
        marks, now = {one.path: one.mark for one in files}, self._now
        found = self.ledger.loaded_files(list(marks), stage) if files and now.created else ()
        own = [(path, created) for path, mark, created in found if marks.get(path) == mark]
        other = [(path, created) for path, created in own if created and created != now.created]
        if other and (now.rows is None or now.rows > self._explained):
            raise self._in_doubt(other[0][1], sorted({path for path, _ in other}))
        has_rows = self._explained and now.rows != 0
        return frozenset((path, marks[path]) for path, created in own if has_rows and created == now.created)

    def _refuse_unforced(self, loaded: Sequence[Entry], staged: Iterable[str], *, is_first: bool) -> None:
        """Refuse to load with FORCE what this run has loaded otherwise: without FORCE, or by a lost ledger.

        :param loaded: the work's entries whose rows are in the table
        :param is_first: True where the ledger has no entry
        :raises FilesGivenTwiceError: if there is such a file
        """
        done = files_of(one for one in loaded if one.is_loaded)
        paths = [path for path in staged if path not in done]
        since, twice = self.identity.first, set[str]()
        if paths and is_first and self.identity.try_number > 1 and since is not None:
            found = self._remembered(paths).items()
            twice = {path for path, load in found if load.loaded_at and load.loaded_at >= since}
            if twice:  # but what other runs have loaded since
                known = self.ledger.loaded_files(list(twice), self.stage.key(self.url), since=since)
                twice -= {path for path, _, _ in known}
        for one in self.ledger.of_task(self.identity) if paths else ():
            is_of_run = not self.identity.is_anew(one.run_started or self.identity.since)
            if one.work != self.work and is_of_run and one.created == self._now.created:
                loads = one.loads(self.stage, self.url).items()
                twice |= {path for path, load in loads if load.rows_loaded}
        if twice := twice.intersection(paths):
            raise FilesGivenTwiceError(
                f"an earlier try of this run has loaded {len(twice):,} of {len(paths):,} files into "
                f"{self._table} without force, or its entry in the ledger {self._ledger} is gone, such as "
                f"{min(twice)!r}. Force would double their rows. Where they are there, mark the task as "
                "successful; to load them once more, begin another run",
                files=tuple(sorted(twice)),
            )

    def _changed(self, entry: Entry, new: Entry) -> Entry:
        """Write a change of an entry, and read what it is now, by whomever."""
        self.ledger.change(entry, new)
        return self._read(entry)

    def _read(self, entry: Entry) -> Entry:
        found = next((one for one in self.ledger.entries(entry.work) if one.part == entry.part), None)
        if found is None:
            raise SqlError(
                f"the ledger {self._ledger} has lost part {entry.part} of {entry.work!r}: compare the table "
                "with the stage before this task runs again"
            )
        return found

    # Running.

    def _due(self, entry: Entry, staged: Mapping[str, StagedFile]) -> tuple[Entry, bool]:
        """The entry with the statement for its files that are staged; True if COPY has to skip all of them.

        An entry that is loaded is done, if COPY has nothing to skip.
        """
        # Of files of a source log, as of a stream, rows may be deleted at any time.
        is_earlier = entry.is_loaded and self._earlier.get(str(entry.part)) == entry.version
        is_earlier = is_earlier and self.identity.work is None
        if entry.state == GIVEN_UP or (entry.is_loaded and not is_earlier):
            return entry, False
        there = staged if not is_earlier or self.listed is None else self.listed
        files = tuple(one for one in entry.files if one.path in there and there[one.path].mark == one.mark)
        if is_earlier:
            loads = entry.loads(self.stage, self.url)
            files = tuple(one for one in files if is_done(loads.get(one.path), forced=False))
        else:
            new = replace(
                entry,
                files=files,
                statement=self.copy.statement([one.path for one in files], is_own=True),
                created=self._now.created,
                state=PLANNED if files else GIVEN_UP,
            )
            if new != entry:
                self._fresh.add(entry.part)
                entry = self._changed(entry, replace(new, target_rows=self._now.rows))
        skips = bool(files) and (is_earlier or all((one.path, one.mark) in self._known for one in files))
        if skips:
            statement = self.copy.statement([one.path for one in files], is_own=True, skips=True)
            entry = replace(entry, statement=statement)
        return entry, skips

    def _load_entry(self, entry: Entry, *, loads_nothing: bool = False) -> Entry:
        """Run an entry's transaction until the ledger shows that it is loaded; the entry as it is then.

        A transaction that runs already, by whomever it was submitted, is joined.

        :param loads_nothing: True fails where COPY loads a row
        :raises SqlError: if the statement fails
        """
        for _ in range(_MOST_REPEATS):
            # Of files of a source log the log decides whether they are loaded again.
            if entry.state == GIVEN_UP or (entry.state == GONE and self.identity.work is not None):
                raise GivenUpError(
                    f"COPY into {self._table}: another process has given part {entry.part} of this load up, "
                    "or has found its rows gone. Run again"
                )
            if self._stopped:
                raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)
            try:
                state = self.client.submit(
                    self.ledger.transaction(entry, loads_nothing=loads_nothing),
                    entry.request_id(loads_nothing=loads_nothing),
                    query_tag=query_tag(entry.names),
                    shown=entry.statement,
                )
                self._running = (state.handle, entry.statement)
                if state.rows is None:
                    leave = None if self.leave is None else partial(self.leave, self._earlier)
                    self.client.wait(state, entry.statement, leave)
                self._running = None
            except (SqlError, ApiError) as error:
                if isinstance(error, ApiError) and error.http_status != _UNKNOWN:
                    raise
                now = self._read(entry)
                if now.version == entry.version:
                    entry = self._failed(entry, error)
                    continue
            else:
                now = self._read(entry)
            if now.is_loaded:
                return now
            # Somebody else has planned it again; or it was another entry's statement that has ended.
            entry = now if now.version != entry.version else self._changed(entry, entry)
        raise SqlError(
            f"COPY into {self._table}: part {entry.part} of {entry.work!r} is not marked as loaded after "
            f"{_MOST_REPEATS} statements: see the ledger {self._ledger} for who works on it"
        )

    def _failed(self, entry: Entry, error: SqlError | ApiError) -> Entry:
        """Give an entry a new request id after its statement has failed, or was lost by the service.

        :raises SqlError: the error, where it is this try's own and no earlier one's
        """
        now = self.done[entry.part] = self._changed(entry, replace(entry, error=str(error)))
        if isinstance(error, SqlError) and (self.begun is not None or entry.part in self._fresh):
            remedy = self.copy.format_remedy([one.path for one in entry.files])
            if error.errno == _DIVISION:
                raise SqlError(
                    f"COPY into {self._table}: the table was replaced while COPY ran, or another process of "
                    f"this task has changed the ledger {self._ledger}. Nothing was loaded; run again",
                    errno=error.errno,
                ) from error
            raise SqlError(f"{error}{remedy}", errno=error.errno) from None
        if isinstance(error, SqlError):
            self._fresh.add(entry.part)
        return replace(now, statement=entry.statement)

    # What came of the files.

    def judged(self, entries: Sequence[Entry]) -> CopyOutcome:
        """Compare what COPY reports, or load history, with what was planned.

        :param entries: as :meth:`load` returned them
        :raises FilesRejectedError: if COPY has left out a file that nobody has loaded, or rows of an earlier
            try are gone
        """
        loads: dict[str, FileLoad] = {}
        skipped: dict[str, FileLoad] = {}
        left_out = set[str]()
        for one in entries:
            if not one.is_loaded:
                continue
            reported = one.loads(self.stage, self.url)
            left_out |= {file.path for file in one.files} - set(reported)
            for path in (file.path for file in one.files):
                load = reported.get(path) or FileLoad(path, "", LOAD_SKIPPED)
                (skipped if load.status == LOAD_SKIPPED else loads)[path] = load
        before = {path: load for path, load in skipped.items() if path not in loads}
        if before:
            known, options = self._remembered(before), self.copy.options
            before |= known
            if options.size_limit is None:
                unknown = (path for path in before if path in left_out and path not in known)
                self._require_all(left_out if options.force else unknown, files_of(entries))
            if not options.force:
                limited = left_out if options.size_limit is not None else set()
                self._refuse_deleted({path: one for path, one in before.items() if path not in limited})
        if self.identity.work is None and (before or self._resumed):
            own = (one for one in entries if one.part in self._resumed and one.is_loaded)
            self._require_rows(() if before else own)
        return CopyOutcome(tuple(loads.values()), tuple(before.values()))

    def _refuse_deleted(self, skipped: Mapping[str, FileLoad]) -> None:
        """Refuse files that COPY remembers and whose rows were deleted since.

        :param skipped: the files with their loads by others
        """
        now, stage = self._now, self.stage.key(self.url)
        old = {path for path, one in skipped.items() if not (one.loaded_at and one.loaded_at > now.at)}
        if old and now.rows != 0:
            loads = [self.ledger.loaded_files(sorted(old), stage, one) for one in (GONE, PLANNED, LOADED)]
            gone, again = ({path for path, _, _ in some} for some in loads[:2])  # and had rows before
            there = {path for path, _, made in loads[2] if now.created in (None, made)}
            old &= (gone | again) - there
        if old:
            raise FilesRejectedError(
                f"COPY into {self._table} has skipped {len(old):,} files that it remembers, such as "
                f"{min(old)!r}, and their rows were deleted. TRUNCATE the table, which clears COPY's memory, "
                "and clear this task; or set options={'force': True} in another run",
                files=tuple(sorted(old)),
                rejected=0,
            )

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
            raise FilesRejectedError(
                f"COPY into {self._table} has left out {len(new):,} of {len(files):,} files that were "
                f"planned, such as {new[0]!r}. An option of the stage, the table or the "
                "account limits COPY (SIZE_LIMIT of COPY_OPTIONS, PATTERN): remove it and clear this task",
                files=new,
                rejected=0,
            )

    def _remembered(self, paths: Iterable[str]) -> dict[str, FileLoad]:
        """The newest load of each file by COPY that load history knows."""
        names = tuple(paths)
        ended = (one for one in self.history(names) if one.pipe is None and one.status in FINAL)
        found = ExpectedFiles(names, stage=self.stage, url=self.url).of(ended)
        return {path: replace(load, path=path) for path, load in found}

    @property
    def _table(self) -> str:
        return self.copy.table[-1]

    @property
    def _ledger(self) -> str:
        return ".".join(self.ledger.name)
