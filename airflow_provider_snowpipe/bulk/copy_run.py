"""The COPY of staged files, once for each piece of work: planned in the ledger, run, and read from there."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyInto, CopyOutcome, RunIdentity
from airflow_provider_snowpipe.bulk.ledger import GIVEN_UP, PLANNED, Entry, Ledger, work_key
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED
from airflow_provider_snowpipe.bulk.staged_files import (
    LOAD_FAILED,
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    is_of_stage,
    newest_loads,
)
from airflow_provider_snowpipe.bulk.statement_client import StatementClient
from airflow_provider_snowpipe.bulk.two_loaders import NOT_AUTHORIZED, stage_name
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
_MOST_NAMED = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_FIRST_POLLS = (0.2, 0.4, 0.8)
_OVERRIDES = " PURGE = FALSE RETURN_FAILED_ONLY = FALSE"
"""What a stage or table may set otherwise: files are removed after the commit, and every file is reported."""
LeaveWorker = Callable[[Mapping[str, int], str, str], None]
"""Defers the task, given the entries' versions when the try began, a statement's handle and its text."""
History = Callable[[Sequence[str]], Sequence[FileLoad]]
"""Loads of files with these paths, as far back as they are remembered, from the oldest."""


@dataclass(slots=True)
class CopyRun:
    """The COPY of some files, in as many statements as they need, one after the other.

    :param copy: the statement; its location is the stage without a path
    :param stage: the stage of the files
    :param choice: tells the author's choice of files from another one
    :param details: what entries keep of the files beside their names
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
    leave: LeaveWorker | None = None
    begun: Mapping[str, int] | None = None
    resumed: bool = False
    _fresh: set[int] = field(default_factory=set, init=False)
    """Parts whose statement was planned by this process: an error of it is this try's own."""
    _resumes: bool = field(default=False, init=False)
    """True where an earlier process has loaded some of the files."""
    _created: dt.datetime | None = field(default=None, init=False)
    """When the table of now was created."""
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

    def is_emptied(self, entries: Iterable[Entry]) -> bool:
        """True where the table is empty, and entries have loaded rows."""
        return any(map(self._rows_of, entries)) and self._count() == 0

    def files_of(self, entries: Iterable[Entry]) -> dict[str, StagedFile]:
        """The files of entries that were not given up, by their paths."""
        return {file.path: file for one in entries if one.state != GIVEN_UP for file in one.files}

    def give_up(self, entries: Iterable[Entry]) -> None:
        """Keep statements that are not committed yet from being committed."""
        self.discard(one for one in entries if one.state == PLANNED)

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
        self._resumes, self._created = any(one.is_loaded for one in entries), self.ledger.table_created()
        found = {one.part: one for one in entries}
        found |= {one.part: one for one in self._reset_emptied(entries, staged)}
        return [*found.values(), *self._new_entries(staged, found.values())]

    def load(self, entries: Sequence[Entry], staged: StagedFiles) -> CopyOutcome:
        """Load what is planned, and make sure that what was loaded is there.

        :param entries: as :meth:`plan` returned them
        :param staged: the files; of a planned entry only these are loaded
        :raises FilesRejectedError: if rows of an earlier try are gone, or COPY has left out a file
        :raises SqlError: if a statement fails
        """
        done = []
        for one in entries:
            if not one.is_loaded:
                one = self._load_entry(self._of_now(one, staged))
            elif self._is_earlier(one) and not self.copy.options.force:
                one = self._copied_again(one, staged)
            done.append(one)
        if self._resumes:
            self._require_rows(done)
        return self._outcome(done, staged)

    def stop(self) -> None:
        """Cancel the statement that runs, and begin no other."""
        self._stopped = True
        if self._running is not None:
            self.client.cancel(*self._running)

    # What earlier tries have loaded.

    def _is_earlier(self, entry: Entry) -> bool:
        """True for an entry that was loaded before this try began."""
        return entry.is_loaded and (self.begun or {}).get(str(entry.part)) == entry.version

    def _reset_emptied(self, entries: Sequence[Entry], staged: StagedFiles) -> list[Entry]:
        """Plan again what an earlier try has loaded into a table that is empty now.

        :raises FilesRejectedError: if the table is another one that is not empty, or has lost some rows
        """
        known = [one for one in entries if one.is_loaded]
        if not known:
            return []
        rows, count, created = sum(map(self._rows_of, known)), self._count(), self._created
        if count == 0:
            gone = [path for path in self.files_of(known) if path not in staged.files]
            if gone and rows:
                raise FilesRejectedError(
                    f"COPY into {self._table}: an earlier try has loaded {rows:,} rows, the table is empty "
                    f"now, and {len(gone):,} of its files are not staged any more, such as {gone[0]!r}: "
                    "stage them again, or bring the rows back by Time Travel",
                    files=tuple(gone),
                    rejected=0,
                )
            log.info("%s is empty now: %d rows of an earlier try are loaded again", self._table, rows)
            return [self._changed(one, replace(one, state=PLANNED)) for one in known]
        made = next((one.created for one in known if one.created and created != one.created), None)
        if rows and made is not None and created is not None:
            raise self._in_doubt(rows, made, created, count, self.files_of(known))
        if self.copy.options.force:
            self._require_rows(known)
        return []

    def _require_rows(self, entries: Iterable[Entry]) -> None:
        """Refuse a result of which rows are not in the table any more."""
        loaded, count = sum(self._rows_of(one) for one in entries), self._count()
        if count is None or count >= loaded:
            return
        raise FilesRejectedError(
            f"COPY into {self._table}: this run has loaded {loaded:,} rows, and the table has {count:,}: "
            "some were deleted, or a policy hides them from this role. Nothing was loaded again: rows that "
            "are there would double. Empty the table and clear this task, or begin another run with "
            "force=True",
            files=(),
            rejected=0,
        )

    def _in_doubt(
        self, rows: int, made: dt.datetime, created: dt.datetime, count: int | None, files: Iterable[str]
    ) -> FilesRejectedError:
        return FilesRejectedError(
            f"COPY into {self._table}: {rows:,} rows of these files were loaded into the table that was "
            f"created at {made:%Y-%m-%d %H:%M:%S %Z}; the one of now was created at "
            f"{created:%Y-%m-%d %H:%M:%S %Z} and has {'some' if count is None else f'{count:,}'} rows. A "
            "clone or a swapped table may have them, and COPY does not know. Nothing was loaded. Where they "
            "are missing, begin a run with force=True; where they are there, take these files from the task",
            files=tuple(files),
            rejected=0,
        )

    def _copied_again(self, entry: Entry, staged: StagedFiles) -> Entry:
        """Run a COPY again that skips what it remembers: it loads what is gone since, as after TRUNCATE."""
        kept = [one for one in entry.files if _same(staged.files.get(one.path), one)]
        return self._load_entry(replace(entry, statement=self._statement(kept))) if kept else entry

    def _rows_of(self, entry: Entry) -> int:
        return (
            sum(one.rows_loaded for one in entry.loads(self.stage, self.url).values())
            if entry.is_loaded
            else 0
        )

    def _count(self) -> int | None:
        """The table's rows, None where the role may not count them."""
        try:
            return self.ledger.table_rows()
        except SqlError as error:
            if error.errno not in NOT_AUTHORIZED:
                raise
            log.warning("whether %s still has what was loaded is not known: %s", self._table, error)
            return None

    # Planning.

    def _of_now(self, entry: Entry, staged: StagedFiles) -> Entry:
        """An entry that is not loaded, with the statement of now and those of its files that are staged."""
        files = tuple(one for one in entry.files if _same(staged.files.get(one.path), one))
        new = replace(
            entry,
            files=files,
            statement=self._statement(files),
            created=self._created,
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
            if one.state != GIVEN_UP
            for loads in (one.loads(self.stage, self.url),)
            for file in one.files
            if not one.is_loaded or file.path not in loads or loads[file.path].status != LOAD_FAILED
        }
        left = [one for one in staged.files.values() if (one.path, one.mark) not in done]
        if not self.copy.options.force:
            again = (file for one in entries if one.state == PLANNED for file in one.files)
            self._refuse_other_tables([*left, *again])
        parts, before = (
            self.copy.statements([one.path for one in left]),
            max((one.part for one in entries), default=0),
        )
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
                created=self._created,
            )
            if not self.ledger.plan(new, self.identity, self._stage_key):
                raise SqlError(
                    f"COPY into {self._table}: another process of this task has planned part {number} of the "
                    "same work meanwhile; another try reads what it has loaded"
                )
            self._fresh.add(number)
            planned.append(new)
        return planned

    def _refuse_other_tables(self, files: Sequence[StagedFile]) -> None:
        """Refuse files whose rows went into a table of this name that was replaced since by one with rows."""
        marks = {one.path: one.mark for one in files}
        for one in self.ledger.of_other_tables(list(marks), self._stage_key, self._created):
            both = [file.path for file in one.files if marks.get(file.path) == file.mark]
            loads = one.loads(self.stage, self.url)
            rows = sum(loads[path].rows_loaded for path in both if path in loads)
            if rows and one.created and self._created and (count := self._count()) != 0:
                raise self._in_doubt(rows, one.created, self._created, count, both)

    def _statement(self, files: Sequence[StagedFile]) -> str:
        return self.copy.statement([one.path for one in files]) + _OVERRIDES if files else ""

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

    def _load_entry(self, entry: Entry) -> Entry:
        """Run an entry's statement until the ledger shows that it is loaded; the entry as it is then.

        :raises SqlError: if the statement fails
        """
        for _ in range(_MOST_REPEATS):
            if entry.state == GIVEN_UP:
                return entry
            if self._stopped:
                raise SqlError("the run was stopped before its next COPY", errno=_CANCELLED)
            try:
                self._run(entry)
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
        now = self._changed(entry, replace(entry, error=str(error)))
        if isinstance(error, SqlError) and (self.resumed or entry.part in self._fresh):
            remedy = self.copy.format_remedy([one.path for one in entry.files])
            if error.errno == _DIVISION:
                raise SqlError(
                    f"COPY into {self._table}: the table was replaced while COPY ran, or another process of "
                    f"this task has changed the ledger {self._ledger}. Nothing was loaded; run again"
                ) from error
            raise SqlError(f"{error}{remedy}", errno=error.errno) from None
        if isinstance(error, SqlError):
            self._fresh.add(entry.part)
        return replace(now, statement=entry.statement)

    def _run(self, entry: Entry) -> None:
        """Submit an entry's transaction, or join it where it runs already, and wait for its end."""
        statements, tag = self.ledger.transaction(entry), self.identity.query_tag
        state = self.client.submit(statements, entry.request_id, query_tag=tag, shown=entry.statement)
        self._running = (state.handle, entry.statement)
        if state.is_running:
            self._wait(state.handle, entry.statement)
        self._running = None

    def _wait(self, handle: str, statement: str) -> None:
        if self.leave is not None:
            for pause in _FIRST_POLLS:
                if not self.client.state(handle, statement).is_running:
                    return
                time.sleep(pause)
            self.leave(self.begun or {}, handle, statement)
        pause = _FIRST_PAUSE
        while self.client.state(handle, statement).is_running:
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    # Reporting.

    def _outcome(self, entries: Iterable[Entry], staged: StagedFiles) -> CopyOutcome:
        """What became of the files of this work.

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
            stage = StageReference.parse(self.copy.location)
            history = [
                load
                for load in self.history(list(before))
                if load.pipe is None and is_of_stage(load, stage, self.url)
            ]
            known = newest_loads(ExpectedFiles(tuple(before)), history)
            before |= known
            self._require_all([path for path in before if path in left_out and path not in known], staged)
        return CopyOutcome(tuple(loads.values()), tuple(before.values()))

    def _require_all(self, left_out: Sequence[str], staged: StagedFiles) -> None:
        """Refuse to go on behind files that were planned and that COPY has not loaded."""
        since = dt.datetime.now(dt.UTC) - REMEMBERED
        files = [one for path in left_out if (one := staged.files.get(path)) is not None]
        new = tuple(one.path for one in files if one.staged_at is not None and one.staged_at > since)
        if new:
            shown = ", ".join(map(repr, new[:_MOST_NAMED])) + (" …" if len(new) > _MOST_NAMED else "")
            raise FilesRejectedError(
                f"COPY into {self._table} has left out {len(new):,} of {len(staged.files):,} files that were "
                f"planned: {shown}. The other files are loaded. An option of the stage, the table or the "
                "account limits COPY (SIZE_LIMIT of COPY_OPTIONS, PATTERN): remove it and clear this task",
                files=new,
                rejected=0,
            )

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
