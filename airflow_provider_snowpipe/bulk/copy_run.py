"""The COPY of staged files, once for each piece of work: planned in the ledger, run, and read from there."""

from __future__ import annotations

import datetime as dt
import logging
import time
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOutcome, RunIdentity
from airflow_provider_snowpipe.bulk.copy_reports import CopyReports, GivenUpError, History, is_done
from airflow_provider_snowpipe.bulk.ledger import (
    GIVEN_UP,
    GONE,
    LOADED,
    PLANNED,
    Entry,
    Ledger,
    TableState,
    work_key,
)
from airflow_provider_snowpipe.bulk.staged_files import (
    LOAD_FAILED,
    StagedFile,
    StagedFiles,
    StageReference,
)
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.bulk.two_loaders import stage_name
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
_UNKNOWN_TABLE = TableState(None, None, None)
_MOST_REPEATS = 3
_MOST_NAMED = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_STAY = 1.0
"""A longer pause is spent in the triggerer."""
_OVERRIDES = ("PURGE", "RETURN_FAILED_ONLY", "FORCE", "LOAD_UNCERTAIN_FILES", "TRUNCATECOLUMNS")
"""What a stage may set, and counts only if the task sets it: files are removed after the commit, every file
is reported, none is loaded twice and no value is cut."""


LeaveWorker = Callable[[Mapping[str, int], str, str], None]
"""Defers the task, given the entries' versions when the try began, a statement's handle and its text."""


@dataclass(slots=True)
class CopyRun:
    """The COPY of some files, in as many statements as they need, one after the other.

    :param copy: the statement; its location is the stage without a path
    :param stage: the stage of the files
    :param choice: tells the author's choice of files from another one
    :param details: what entries keep of the files beside their names
    :param listed: what is staged now, None where that is what is loaded
    :param leave: leaves the worker while a statement runs, None to wait here
    :param begun: versions of the entries that were loaded when this try began, None for those of now
    :param resumed: True where the task was deferred for a statement: its error is this try's own
    """

    copy: CopyInto
    stage: StageReference
    client: StatementClient
    ledger: Ledger
    history: History
    identity: RunIdentity
    choice: str
    details: str = ""
    url: str | None = None
    listed: Mapping[str, StagedFile] | None = None
    leave: LeaveWorker | None = None
    begun: Mapping[str, int] | None = None
    resumed: bool = False
    done: dict[int, Entry] = field(default_factory=dict, init=False)
    """The entries as this process has left them, by part."""
    _fresh: set[int] = field(default_factory=set, init=False)
    """Parts whose statement was planned by this process: an error of it is this try's own."""
    _resumes: bool = field(default=False, init=False)
    """True where an earlier process has loaded some of the files."""
    _now: TableState = field(default=_UNKNOWN_TABLE, init=False)
    """The table when the files were planned."""
    _known: frozenset[tuple[str, str]] = field(default=frozenset(), init=False)
    """Paths and marks of the files that other work has loaded into the table, which has rows."""
    _explained: int = field(default=0, init=False)
    """Rows of the table then that the ledger shows to be loaded."""
    _running: tuple[str, str] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    @property
    def work(self) -> str:
        """The key of the work; with FORCE every choice of files is the same work."""
        return work_key(self.identity, self.copy.table, "" if self.copy.options.force else self.choice)

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
                f"the ledger {self._ledger} has a COPY with force by a run of the same id that began at "
                f"{deleted[0].run_started:%Y-%m-%d %H:%M:%S %Z}, and this run began at "
                f"{self.identity.since:%Y-%m-%d %H:%M:%S %Z} without being cleared: whether that one has "
                f"loaded the files is not known. Where it has not, delete WORK = {self.work!r} there and "
                "clear the task; where it has, mark the task as successful",
                files=(),
            )
        if deleted:
            log.info("%s: what a deleted run of the same id has loaded is not this run's work", self._table)
            self.ledger.retire(self.work, self.identity.since)
            found = [one for one in found if one not in deleted]
        other = next((one for one in found if forced and one.choice != self.choice), None)
        if other is not None:
            raise ConfigurationError(
                f"an earlier try of this run has planned a COPY with force of {len(other.files):,} files by "
                f"other values of stage, files, prefix or pattern (ledger {self._ledger}, WORK = "
                f"{self.work!r}): to load what is chosen now, begin another run; an instance of a mapped "
                "task has to get the same files at each try"
            )
        last = max((one.part for one in found), default=0)
        if forced and any(one.last > last for one in found if one.state != GIVEN_UP):
            # The try died before all was planned, so that nothing of it has run.
            self.give_up(one for one in found if one.last > last)
            found = self.ledger.entries(self.work)
        self.begin(found)
        return found

    def begin(self, entries: Iterable[Entry]) -> None:
        """Note which entries were loaded when this try began, unless it was deferred since."""
        if self.begun is None:
            self.begun = {str(one.part): one.version for one in entries if one.is_loaded}

    def refuse_given_up(self, entries: Iterable[Entry], chosen: Container[str]) -> None:
        """Refuse files that another task has given up, or all where it has done so before any was planned.

        :param chosen: paths of the files
        :raises GivenUpError: if there is one
        """
        given_up = [one for one in entries if one.state == GIVEN_UP]
        if any(not one.choice or any(file.path in chosen for file in one.files) for one in given_up):
            raise GivenUpError(
                f"COPY into {self._table}: another task has given this load of files up, and may have loaded "
                "them another way. Nothing was loaded; run again"
            )

    def files_of(self, entries: Iterable[Entry]) -> dict[str, StagedFile]:
        """The files of entries that were not given up, by their paths."""
        return {file.path: file for one in entries if one.state != GIVEN_UP for file in one.files}

    def give_up(self, entries: Iterable[Entry]) -> None:
        """Keep statements that are not committed yet from being committed."""
        self.discard(one for one in entries if one.state == PLANNED)

    def take_back(self) -> dict[str, int]:
        """Keep what is not committed of this work from being committed, by whatever process.

        :return: rows of the files that are loaded, by their paths
        """
        self.give_up(self.ledger.entries(self.work))
        found = self.ledger.entries(self.work)
        if not found:
            never = Entry(self.work, 1, 1, state=GIVEN_UP, run_started=self.identity.since)
            self.ledger.plan(never, self.identity, self._stage_key)
            found = self.ledger.entries(self.work)
        loads = [one.loads(self.stage, self.url) for one in found if one.is_loaded]
        return {
            path: load.rows_loaded
            for some in loads
            for path, load in some.items()
            if load.status != LOAD_FAILED
        }

    def discard(self, entries: Iterable[Entry]) -> None:
        """Take entries out of the work, whatever they have loaded."""
        for one in entries:
            self.ledger.change(one, replace(one, state=GIVEN_UP))

    def plan(self, staged: StagedFiles, entries: Sequence[Entry]) -> list[Entry]:
        """Plan the files that this work has not loaded, and again what is gone from the table.

        :param entries: as :meth:`entries` returned them
        :return: all entries of the work
        :raises FilesRejectedError: if some rows of an earlier load are gone, or nobody knows whether they are
        """
        self._resumes = any(one.reports for one in entries)
        entries = self._seen(entries)
        if self.copy.options.force:
            self._refuse_unforced(entries, staged)
        found = {one.part: one for one in entries}
        found |= {one.part: one for one in self._lost(entries, staged)}
        return [*found.values(), *self._new_entries(staged, found.values())]

    def gone(self, entries: Sequence[Entry]) -> list[Entry]:
        """All of the entries as they are now if rows of them are not in the table any more, otherwise none.

        :raises FilesRejectedError: if nobody knows
        """
        now = self._seen(entries)
        lost = [one for one in now if self._is_lost(one)]
        self._refuse_unexplained(lost)
        return now if lost else []

    def load(self, entries: Sequence[Entry], staged: StagedFiles) -> CopyOutcome:
        """Load what is planned, and make sure that what was loaded is there.

        :param entries: as :meth:`plan` returned them
        :param staged: the files; of a planned entry only these are loaded
        :raises FilesRejectedError: if rows of an earlier try are gone, or COPY has left out a file
        :raises SqlError: if a statement fails
        """
        for one in entries:
            self.done[one.part] = one
            if not one.is_loaded:
                one = self._of_now(one, staged)
                known = one.files and all((file.path, file.mark) in self._known for file in one.files)
                one = self._load_nothing(one, one.files) if known else self._load_entry(one)
            elif self._is_earlier(one):
                one = self._copied_again(one, staged.files if self.listed is None else self.listed)
            self.done[one.part] = one
        done = list(self.done.values())
        reports = CopyReports(self.copy, self.stage, self.url, self.ledger, self.history)
        outcome = reports.outcome(done, self.files_of(done), self._now)
        if self._resumes or outcome.before:
            self._require_rows()
        return outcome

    def stop(self) -> None:
        """Cancel the statement that runs, and begin no other."""
        self._stopped = True
        if self._running is not None:
            self.client.cancel(*self._running)

    # What earlier tries have loaded.

    def _is_earlier(self, entry: Entry) -> bool:
        """True for an entry that was loaded before this try began."""
        return entry.is_loaded and (self.begun or {}).get(str(entry.part)) == entry.version

    def _seen(self, entries: Sequence[Entry]) -> list[Entry]:
        """Read the table as it is now; what was loaded into one without rows is marked as gone."""
        self._now, loads = self.ledger.table_and_loads()
        if self._now.rows is None:
            log.warning("whether %s still has what was loaded is not known: it does not show", self._table)
        self._explained = sum(loads.values())
        if self._now.rows == 0 and loads:
            self.ledger.mark_gone(loads)
            entries = [self._read(one) for one in entries]
            self._explained = 0
        return list(entries)

    def _is_lost(self, entry: Entry) -> bool:
        """True for an entry whose rows went into a table that is empty or another one now."""
        if entry.state == GONE:
            return True
        is_other = entry.created and self._now.created and entry.created != self._now.created
        return bool(entry.is_loaded and is_other and self._rows_of(entry))

    def _lost(self, entries: Sequence[Entry], staged: StagedFiles) -> list[Entry]:
        """Plan again what an earlier try has loaded and the table has not any more.

        :raises FilesRejectedError: if some rows are gone, or nobody knows whether they are
        """
        lost = [one for one in entries if self._is_lost(one)]
        self._refuse_unexplained(lost)
        gone = [path for path in self.files_of(lost) if path not in staged.files]
        if gone:
            raise FilesRejectedError(
                f"COPY into {self._table}: rows of an earlier try are not in the table any more, and "
                f"{len(gone):,} of its files are not staged, such as {gone[0]!r}: stage them again, or bring "
                "the rows back by Time Travel",
                files=tuple(gone),
                rejected=0,
            )
        if self.copy.options.force and len(lost) < len(entries):
            self._require_rows()
        if lost:
            log.info("%s has lost what an earlier try loaded: %d parts load again", self._table, len(lost))
        return [self._changed(one, replace(one, state=PLANNED)) for one in lost]

    def _refuse_unexplained(self, lost: Sequence[Entry]) -> None:
        """Refuse to load again while the table has rows that the ledger does not know: they may be these."""
        if lost and (self._now.rows is None or self._now.rows > self._explained):
            raise self._in_doubt(lost[0].created, self.files_of(lost))

    def _require_rows(self) -> None:
        """Refuse a result of which rows are not in the table any more."""
        now, loads = self.ledger.table_and_loads()
        loaded = sum(loads.values())
        if now.rows is None or now.rows >= loaded:
            return
        raise FilesRejectedError(
            f"COPY into {self._table}: {loaded:,} rows were loaded, and the table has {now.rows:,}: some "
            "were deleted. Nothing was loaded again: rows that are there would double. TRUNCATE the table "
            "and clear this task, or begin another run with options={'force': True}",
            files=(),
            rejected=0,
        )

    def _in_doubt(self, made: dt.datetime | None, files: Iterable[str]) -> FilesRejectedError:
        then, now = (
            "at an unknown time" if one is None else f"at {one:%Y-%m-%d %H:%M:%S %Z}"
            for one in (made, self._now.created)
        )
        has = "some" if self._now.rows is None else f"{self._now.rows:,}"
        what = (
            f"the ledger has these files as loaded, and COPY would load them again, as after a TRUNCATE. The "
            f"table has {has} rows, and a restore or an INSERT may have brought theirs"
            if made is not None and made == self._now.created
            else f"these files were loaded into the table that was created {then}. The one of now was "
            f"created {now} and has {has} rows, of which the ledger knows {self._explained:,}: a clone, a "
            "swap or an INSERT may have brought theirs"
        )
        return FilesRejectedError(
            f"COPY into {self._table}: {what}. Nothing was loaded. Where they are missing, begin a run with "
            "options={'force': True}; where they are there, take these files from the task",
            files=tuple(files),
            rejected=0,
        )

    def _copied_again(self, entry: Entry, staged: Mapping[str, StagedFile]) -> Entry:
        """Run a COPY again, without FORCE, which skips what it remembers.

        :raises FilesRejectedError: if it would load files, as after a TRUNCATE, although the table has rows
        """
        loads = entry.loads(self.stage, self.url)
        kept = [
            one
            for one in entry.files
            if is_done(loads.get(one.path), forced=False) and _same(staged.get(one.path), one)
        ]
        if not kept:
            return entry
        return self._load_nothing(entry, kept)

    def _load_nothing(self, entry: Entry, files: Sequence[StagedFile]) -> Entry:
        """Run a COPY of files that COPY has to skip, because their rows are in the table.

        :param files: those of the entry
        :raises FilesRejectedError: if it would load one
        """
        entry = replace(entry, statement=self._statement(files, skips=True))
        try:
            return self._load_entry(entry, loads_nothing=True)
        except SqlError as error:
            if error.errno != _DIVISION:
                raise
            if not entry.is_loaded:
                self.give_up([self._read(entry)])
            raise self._in_doubt(entry.created, (one.path for one in files)) from error

    def _rows_of(self, entry: Entry) -> int:
        return (
            sum(one.rows_loaded for one in entry.loads(self.stage, self.url).values())
            if entry.is_loaded
            else 0
        )

    # Planning.

    def _of_now(self, entry: Entry, staged: StagedFiles) -> Entry:
        """An entry that is not loaded, with the statement of now and those of its files that are staged."""
        if entry.state == GIVEN_UP:
            return entry
        files = tuple(one for one in entry.files if _same(staged.files.get(one.path), one))
        new = replace(
            entry,
            files=files,
            statement=self._statement(files),
            created=self._now.created,
            state=PLANNED if files else GIVEN_UP,
        )
        if new == entry:
            return entry
        self._fresh.add(entry.part)
        return self._changed(entry, new)

    def _new_entries(self, staged: StagedFiles, known: Iterable[Entry]) -> list[Entry]:
        """Plan the files that no entry has, and those that COPY could not load."""
        entries = list(known)
        done = {
            (file.path, file.mark)
            for one in entries
            if one.state in (PLANNED, LOADED)
            for loads in (one.loads(self.stage, self.url),)
            for file in one.files
            if not one.is_loaded or is_done(loads.get(file.path), forced=self.copy.options.force)
        }
        left = [one for one in staged.files.values() if (one.path, one.mark) not in done]
        if not self.copy.options.force:
            again = [file for one in entries if one.state == PLANNED for file in one.files]
            self._refuse_other_tables([*left, *again])
            self._known = self._loaded_by_others([*left, *again])
        apart: tuple[list[str], list[str]] = ([], [])
        for one in left:
            apart[(one.path, one.mark) in self._known].append(one.path)
        parts = [part for some in apart for part in self.copy.statements(some)]
        before = max((one.part for one in entries), default=0)
        planned = []
        for number, (paths, _) in enumerate(parts, before + 1):
            files = tuple(staged.files[path] for path in paths)
            new = Entry(
                self.work,
                number,
                before + len(parts),
                choice=self.choice,
                details=self.details,
                statement=self._statement(files),
                files=files,
                run_started=self.identity.since,
                created=self._now.created,
            )
            if not self.ledger.plan(new, self.identity, self._stage_key):
                raise SqlError(
                    f"COPY into {self._table}: another process of this task has planned part {number} of the "
                    "same work meanwhile; another try reads what it has loaded"
                )
            self._fresh.add(number)
            planned.append(new)
        return planned

    def _loaded_by_others(self, files: Sequence[StagedFile]) -> frozenset[tuple[str, str]]:
        """The files that COPY has to skip: the ledger has them as loaded into the table, which has rows."""
        if not (files and self._explained and self._now.rows != 0):
            return frozenset()
        paths = [one.path for one in files]
        return self.ledger.loaded_files(paths, self._stage_key, self._now.created)

    def _refuse_unforced(self, entries: Sequence[Entry], staged: StagedFiles) -> None:
        """Refuse to load with FORCE what this run has loaded otherwise: without FORCE, or by a lost ledger.

        :raises FilesGivenTwiceError: if there is such a file
        """
        done = self.files_of(one for one in entries if one.is_loaded and not self._is_lost(one))
        paths = [path for path in staged.files if path not in done]
        since, twice = self.identity.first, set[str]()
        if paths and not entries and self.identity.try_number > 1 and since is not None:
            found = self._reports.remembered(paths).items()
            twice = {path for path, load in found if load.loaded_at and load.loaded_at >= since}
            condition = " AND LOADED_AT >= %s::TIMESTAMP_LTZ"
            for one in (
                self.ledger.of_state(LOADED, self._stage_key, condition, since.isoformat()) if twice else ()
            ):
                twice -= self._reports.loaded_paths(one)
        for one in self.ledger.of_task(self.identity) if paths else ():
            if one.work != self.work and not self.identity.is_anew(one.run_started or self.identity.since):
                twice |= self._reports.loaded_paths(one) if one.created == self._now.created else set()
        if twice := twice.intersection(paths):
            raise FilesGivenTwiceError(
                f"an earlier try of this run has loaded {len(twice):,} of {len(paths):,} files into "
                f"{self._table} without force, or its entry in the ledger {self._ledger} is gone, such as "
                f"{min(twice)!r}. Force would double their rows. Where they are there, mark the task as "
                "successful; to load them once more, begin another run",
                files=tuple(sorted(twice)),
            )

    def _refuse_other_tables(self, files: Sequence[StagedFile]) -> None:
        """Refuse files whose rows went into a table of this name that was replaced since by one with rows."""
        marks = {one.path: one.mark for one in files}
        for one in self.ledger.of_other_tables(list(marks), self._stage_key, self._now.created):
            both = [file.path for file in one.files if marks.get(file.path) == file.mark]
            loads = one.loads(self.stage, self.url)
            rows = sum(loads[path].rows_loaded for path in both if path in loads)
            if rows and (self._now.rows is None or self._now.rows > self._explained):
                raise self._in_doubt(one.created, both)

    def _statement(self, files: Sequence[StagedFile], *, skips: bool = False) -> str:
        """The COPY of some files.

        :param skips: True leaves the options out that load files again
        """
        if not files:
            return ""
        options = replace(self.copy.options, force=False, load_uncertain_files=False)
        options = options if skips else self.copy.options
        written = [one.partition(" ")[0] for one in options.written()]
        off = [one for one in _OVERRIDES if one not in written]
        if "ENFORCE_LENGTH" in written and "TRUNCATECOLUMNS" in off:
            off.remove("TRUNCATECOLUMNS")
        copy = replace(self.copy, options=options)
        return " ".join([copy.statement([one.path for one in files]), *(f"{name} = FALSE" for name in off)])

    def _changed(self, entry: Entry, new: Entry) -> Entry:
        """Write a change of an entry, and read what it is now, by whomever."""
        self.ledger.change(entry, new)
        return self._read(entry)

    def _read(self, entry: Entry) -> Entry:
        found = next((one for one in self.ledger.entries(entry.work) if one.part == entry.part), None)
        if found is None:
            raise SqlError(
                f"the ledger {self._ledger} has lost part {entry.part} of {entry.work!r} while its COPY ran: "
                "compare the table with the stage before this task runs again"
            )
        return found

    # Running.

    def _load_entry(self, entry: Entry, *, loads_nothing: bool = False) -> Entry:
        """Run an entry's statement until the ledger shows that it is loaded; the entry as it is then.

        :param loads_nothing: True fails where COPY loads a row
        :raises SqlError: if the statement fails
        """
        for _ in range(_MOST_REPEATS):
            if entry.state == GIVEN_UP:
                return entry
            if self._stopped:
                raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)
            try:
                self._run(entry, loads_nothing=loads_nothing)
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
        if isinstance(error, SqlError) and (self.resumed or entry.part in self._fresh):
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

    def _run(self, entry: Entry, *, loads_nothing: bool) -> None:
        """Submit an entry's transaction, or join it where it runs already, and wait for its end."""
        statements = self.ledger.transaction(entry, loads_nothing=loads_nothing)
        own = entry.request_id if not loads_nothing else str(uuid.uuid5(uuid.UUID(entry.request_id), "again"))
        tag = self.identity.query_tag
        state = self.client.submit(statements, own, query_tag=tag, shown=entry.statement)
        self._running = (state.handle, entry.statement)
        if state.is_running:
            self._wait(state.handle, entry.statement)
        self._running = None

    def _wait(self, handle: str, statement: str) -> None:
        pause = _FIRST_PAUSE
        while self.client.state(handle, statement).is_running:
            if self.leave is not None and pause > _LONGEST_STAY:
                self.leave(self.begun or {}, handle, statement)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    @property
    def _reports(self) -> CopyReports:
        return CopyReports(self.copy, self.stage, self.url, self.ledger, self.history)

    @property
    def _table(self) -> str:
        return self.copy.table[-1]

    @property
    def _ledger(self) -> str:
        return ".".join(self.ledger.name)

    @property
    def _stage_key(self) -> str:
        """The stage in one spelling, as :func:`stage_of` writes it."""
        return stage_name(self.copy.location, self.url)


def _same(found: StagedFile | None, planned: StagedFile) -> bool:
    return found is not None and found.mark == planned.mark
