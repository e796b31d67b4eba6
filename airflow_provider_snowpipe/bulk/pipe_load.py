"""Files given to a file pipe: which ones, what is known of their loads, and the wait for them."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NoReturn, Protocol

from airflow_provider_snowpipe.bulk.copy import RunIdentity, StagedChoice
from airflow_provider_snowpipe.bulk.file_pipe import FilePipeClient, Submission, SubmittedFile
from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget
from airflow_provider_snowpipe.bulk.files_watch import FilesWatch, Tolerance, wait_for_loads
from airflow_provider_snowpipe.bulk.ledger import LedgerName, table_state
from airflow_provider_snowpipe.bulk.ledger_entry import (
    GIVEN_UP,
    LOADED,
    SUBMITTED,
    Entry,
    GivenUpError,
    work_key,
)
from airflow_provider_snowpipe.bulk.load_history import REMEMBERED, HistoryQuestion, LoadHistory
from airflow_provider_snowpipe.bulk.other_loaders import (
    NOT_AUTHORIZED,
    Account,
    asked,
    not_loaded_by,
    pipes_beside,
    refuse_files_for_pipe,
    refuse_files_of_others,
)
from airflow_provider_snowpipe.bulk.source_loads import loads_by_pipe
from airflow_provider_snowpipe.bulk.staged_files import (
    ExpectedFiles,
    FileLoad,
    StagedFile,
    StagedFiles,
    StageReference,
    file_names,
)
from airflow_provider_snowpipe.streaming.commits import RetryBudget
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesGivenTwiceError,
    FilesRejectedError,
    NothingStagedError,
    SnowpipeError,
    SqlError,
)
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName

_BUDGET_SECONDS = 20.0
log = logging.getLogger(__name__)
LeaveWorker = Callable[[Submission, dict[str, Any]], NoReturn]
"""Defers the task, given the files and the value so far."""


class PipeAccount(Account, Protocol):
    """As much of the hook of a pipe's account as loading by it needs."""

    def of_table(self, database: str, schema: str, table: str) -> PipeAccount:
        """The same account, for another table."""

    def pipe_target(self, pipe: str) -> PipeTarget | None:
        """From where a pipe loads into which table."""

    def get_load_history(self, *, retry: RetryPolicy | None = None) -> LoadHistory:
        """What became of files."""

    def get_file_pipe_client(self, *, retry: RetryPolicy | None = None) -> FilePipeClient:
        """The pipe's REST API."""


@dataclass(frozen=True, slots=True)
class PipeLoad:
    """Staged files that a file pipe is given, and the wait until it has loaded them.

    :param table: as of :class:`SnowpipeIngestFilesOperator`, like all that are not described here
    :param tolerance: its ``on_partial`` and ``on_failed``
    :param details: what the ledger keeps of the files beside their names
    """

    files: PipeFiles
    table: str | None
    _: KW_ONLY
    tolerance: Tolerance
    force: bool = False
    on_unmatched: str = "fail"
    on_nothing: str = "fail"
    wait_for_load: bool = True
    load_timeout: float = 3600.0
    retry_seconds: float = 600.0
    poll_interval: float = 15.0
    max_consecutive_errors: int = 10
    ledger_table: LedgerName = None
    details: str = ""

    def run(
        self,
        identity: RunIdentity,
        announce: Callable[[list[str]], None],
        leave: LeaveWorker | None,
        planned: Callable[[], None] = lambda: None,
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Submit the files, and wait.

        :param announce: called with the paths of the files that the pipe takes
        :param leave: leaves the worker while the pipe loads, None to wait here
        :param planned: called when the ledger has the load, before the pipe gets a file
        :return: the value of a task, and the loads, which :meth:`checked` adds to it; None without a wait
        :raises SnowpipeError: as :meth:`SnowpipeIngestFilesOperator.execute`
        """
        submission, pipe = self._submitted(identity, planned), str(self.files.pipe)
        value = submission.result(pipe)
        log.info(
            "pipe %s: %d files submitted in %d posts, %d were loaded before",
            pipe,
            len(value["submitted"]),
            submission.posts,
            len(submission.before),
        )
        announce(submission.taken())
        if self.on_unmatched == "fail":
            submission.require_matched(pipe)
        if not self.wait_for_load:
            return value, None
        if not submission.awaited():
            return value, {}
        if leave is not None:
            leave(submission, value)
        return value, self._waited(submission)

    def planned(self, begin: Begin | None = None) -> Submission:
        """The files, and which of them the pipe is owed.

        :raises SnowpipeError: as :meth:`run`
        """
        choice, pipe = self.files, self.files.pipe
        files = choice.chosen()
        if not files and self.on_nothing == "fail":
            raise NothingStagedError(
                f"{StagedChoice(str(choice.stage), None, choice.prefix, choice.pattern)} has no file for "
                f"pipe {pipe.pipe!r}: stage the files before this task runs, or set on_nothing='report'"
            )
        if not files:
            return Submission(())
        history, where = choice.known_loads(files, self.table, force=self.force, begin=begin)
        if history is None and self.wait_for_load:
            history = choice.reported_loads([one.path for one in files])
        if history is None:
            return Submission(tuple(files))
        # A pipe that was recreated has forgotten what the table's history knows.
        submission = Submission.planned(files, history, dt.datetime.now(dt.UTC), where)
        if again := submission.staged_again():
            log.warning(
                "pipe %s has loaded %d files before they were staged again, such as %r, and takes a path "
                "once in 14 days: what has changed in them is not in the table; stage it under other names",
                pipe.pipe,
                len(again),
                again[0],
            )
        if self.wait_for_load:
            submission.require_whole(str(pipe), self.tolerance)
        return submission

    def checked(
        self, identity: RunIdentity, value: Mapping[str, Any], loads: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add the loads to a task's value and to the ledger, after a last search for loads by others.

        :raises FilesGivenTwiceError: if somebody else has loaded one
        :raises FilesRejectedError: if the table lacks rows: the pipe also reports loads into an earlier table
        """
        rows = sum(int(load["rows_loaded"]) for load in loads.values())
        log.info("pipe %s: %d files loaded, %d rows", value["pipe"], len(loads), rows)
        # Files of a source log are in no other load.
        before = value["loaded_before"] if identity.entry is not None else {}
        if loads:
            loaded = [SubmittedFile(path) for path in loads]
            self.files.known_loads(loaded, self.table, force=self.force)
        if (loads or before) and (target := self.files.target(self.table)) is not None:
            if loads and not self.force:
                _require_rows(*target, loads, rows)
            plan = PipePlan(identity, str(self.files.pipe), self.ledger_table)
            plan.loaded(*target, [*before.values(), *loads.values()])
        return {**value, "loads": dict(loads), "rows_loaded": rows}

    def take_back(self, identity: RunIdentity, paths: Sequence[str]) -> dict[str, FileLoad]:
        """Keep files of a source log from being given to the pipe; the loads of those that it has loaded.

        :raises FilesGivenTwiceError: if the pipe may have one and is not known to have ended it
        """
        hook, table, pipe = self.files.hook, str(self.table), self.files.pipe
        with hook.load_ledger(table, self.ledger_table) as ledger:
            work = work_key(identity, ledger.target)
            never = Entry(work, 1, 1, state=GIVEN_UP, loader=str(pipe))
            found = ledger.entries(work)
            if not found:
                found = [never] if ledger.plan(never, identity, "") else ledger.entries(work)
            loads = loads_by_pipe(hook, table, ledger, found[0], paths)
        return {path: one for path, one in loads.items() if one.rows_loaded or found[0].state == LOADED}

    def _submitted(self, identity: RunIdentity, planned: Callable[[], None]) -> Submission:
        plan = PipePlan(identity, str(self.files.pipe), self.ledger_table, self.details)
        retry = RetryPolicy(self.retry_seconds, cap_seconds=60.0)
        try:
            submission = self.planned(plan.write)
            planned()
            client = self.files.hook.get_file_pipe_client(retry=retry)
        except SnowpipeError:
            plan.end(GIVEN_UP)
            raise
        try:
            submission = submission.submit(client, identity)
        except SnowpipeError as error:
            if not error.retryable:  # otherwise the pipe may have them
                plan.end(GIVEN_UP)
            raise
        finally:
            client.close()
        plan.end(SUBMITTED)
        return submission

    def _waited(self, submission: Submission) -> dict[str, Any]:
        budget = RetryBudget(self.max_consecutive_errors)
        watch = FilesWatch(submission.expected(), submission.since, self.tolerance, budget)
        history = self.files.hook.get_load_history(retry=RetryPolicy(budget_seconds=_BUDGET_SECONDS))
        try:
            return wait_for_loads(history, watch, timeout=self.load_timeout, interval=self.poll_interval)
        finally:
            history.close()


# -- Which staged files a file pipe is to be given, and what is known of their loads ---------------------

GivenFiles = Container[tuple[str, str, str | None]]
Begin = Callable[[PipeAccount, str, StagedFiles], GivenFiles]
"""Called before files are loaded into a table, whose database and schema the hook knows; what loaders were
given of them before."""


@dataclass(frozen=True, slots=True)
class PipeFiles:
    """Files by their paths below a pipe's location, or those that a stage has there.

    :param files: the paths, a list or its JSON text; None for all that ``stage`` has
    :param stage: the pipe's location, where the files are listed; None to take them as they are named
    :param prefix: instead of files: the start of their paths below it
    :param pattern: instead of files: a regular expression that the whole path matches
    :param passes_over: True where files are skipped that others have loaded since they were staged
    """

    hook: PipeAccount
    pipe: PipeName
    files: Any = None
    stage: str | None = None
    prefix: str | None = None
    pattern: str | None = None
    passes_over: bool = False

    def chosen(self) -> list[SubmittedFile]:
        """The files by their paths below the pipe's location.

        :raises NothingStagedError: if a file that is named is not in the stage
        """
        if self.stage is None:
            return [SubmittedFile(name) for name in file_names(self.files)]
        reference = StageReference.parse(self.stage)
        staged = StagedChoice(self.stage, self.files, self.prefix, self.pattern).find(self.hook)
        below = f"{reference.path}/" if reference.path else ""
        return [
            SubmittedFile(path.removeprefix(below), file.size, file.staged_at, file.mark)
            for path, file in staged.files.items()
        ]

    def known_loads(
        self, files: Sequence[SubmittedFile], table: str | None, *, force: bool, begin: Begin | None = None
    ) -> tuple[list[FileLoad] | None, ExpectedFiles]:
        """The pipe's loads of these files, as its table's history has them, and from where it loads.

        Those of files that are skipped come last. A pipe that was recreated may have loaded other files
        of these paths under its name, from another stage.

        :param table: the pipe's table, None to take it from the pipe's own statement
        :param force: True accepts files that somebody else has put into the table
        :param begin: called with the files before other pipes and history are asked, where table and location
            are known; not with ``force``. None asks history only, of files that were submitted
        :return: None where the table is not known, or may not be asked; the log then has a warning. The
            location has no stage where nobody knows it
        :raises FilesGivenTwiceError: if COPY or another pipe has put rows of one into the table, or another
            pipe has files in its queue that may be these
        :raises ConfigurationError: if the pipe loads from elsewhere, or into another table
        """
        is_needed = not force and not (table and self.stage)
        is_compared = begin is not None and (table or self.stage)
        target = self._target(is_needed=is_needed) if is_needed or is_compared else None
        if is_compared and target is not None:
            self._require(target, table)
        paths = [one.path for one in files]
        location = self._location(target)
        if table and (force or location is None):
            return self.hook.loads_of(table, paths, self.pipe.pipe), self._seen(location)
        if location is None or force or not (table or target):
            return None, self._seen(location)
        hook, name = self.hook, table or ""
        if not table and target is not None:
            database, schema, name = target.table
            hook = self.hook.of_table(database, schema, name)
        try:
            where = ExpectedFiles(stage=location, url=self._url(location))
            return self._loads_into(hook, name, where, files, begin), where
        except SqlError as error:
            if table or error.errno not in NOT_AUTHORIZED:
                raise
            _warn(f"{error}; grant the role a privilege on the pipe's table and a warehouse")
            return None, self._seen(location)

    def target(self, table: str | None) -> tuple[PipeAccount, str] | None:
        """The account's hook for the pipe's table, and the table's name; None where nobody knows it.

        :param table: as of :meth:`known_loads`
        """
        if table:
            return self.hook, table
        target = self._target(is_needed=False)
        return None if target is None else (self.hook.of_table(*target.table), target.table[-1])

    def reported_loads(self, paths: Sequence[str]) -> list[FileLoad]:
        """The pipe's loads of these files as it reports them itself; it knows nothing of other loaders.

        :param paths: paths below the pipe's location
        """
        history = self.hook.get_load_history()
        now = dt.datetime.now(dt.UTC)
        try:
            return history.loads([HistoryQuestion(frozenset(paths), now - REMEMBERED)], now)
        finally:
            history.close()

    def _loads_into(
        self,
        hook: PipeAccount,
        table: str,
        where: ExpectedFiles,
        files: Sequence[SubmittedFile],
        begin: Begin | None,
    ) -> list[FileLoad]:
        location = where.stage or StageReference.parse(str(self.stage))
        whole = {location.below(one.path): one for one in files}
        staged = StagedFiles(
            {path: StagedFile(path, one.mark, one.size, one.staged_at) for path, one in whole.items()},
            location,
            where.url,
        )
        loader = str(self.pipe)
        given: GivenFiles = ()
        if begin is not None:
            given = begin(hook, table, staged)
            for one in pipes_beside(hook, table, staged):
                if self.stage is None:
                    # Without the time at which the files were staged nobody knows which ones events announce.
                    one = replace(one, announced=())
                refuse_files_for_pipe(one, table=table, loader=loader)
        loads = hook.loads_of(table, list(whole))
        # What this pipe has loaded it does not load again, so a retry need not search far back.
        new = not_loaded_by(staged, loads, loader)
        older = hook.older_copies(table, new, by_pipes=self.passes_over) if new else []
        passed = refuse_files_of_others(
            staged,
            loads,
            table=table,
            now=dt.datetime.now(dt.UTC),
            loader=loader,
            older=older,
            passes_over=self.passes_over,
            given=given,
        )
        own = [load for load in loads if load.pipe == loader]
        if begin is not None:
            known = {load.path: load.rows_loaded for load in (*own, *passed.values())}
            _require_rows(hook, table, known, sum(known.values()))
        here = str(location).removeprefix("@")
        return [*own, *(replace(load, path=whole[path].path, location=here) for path, load in passed.items())]

    def _location(self, target: PipeTarget | None) -> StageReference | None:
        """From where the pipe loads, with database and schema; None where nobody knows."""
        if target is not None or self.stage is None:
            return None if target is None else target.stage
        return StageReference.parse(self.stage, *self.hook.database_and_schema())

    def _seen(self, location: StageReference | None) -> ExpectedFiles:
        """Files of a location; of any that has their paths where the role may not see its stage."""
        if location is None:
            return ExpectedFiles()
        what = "from which stage the loads of these paths are"
        known = asked(what, lambda: ExpectedFiles(stage=location, url=self._url(location)))
        return known or ExpectedFiles()

    def _target(self, *, is_needed: bool) -> PipeTarget | None:
        """From where the pipe loads into which table, None where that is not known."""
        why = "DESCRIBE PIPE shows no such pipe to this role"
        try:
            target = self.hook.pipe_target(self.pipe.pipe)
        except ConfigurationError as error:
            target, why = None, str(error)
        except SqlError as error:
            if is_needed or error.errno not in NOT_AUTHORIZED:
                raise
            target = None
        if target is None and is_needed:
            _warn(f"{why}; table=… and stage=… would show it")
        return target

    def _require(self, target: PipeTarget, table: str | None) -> None:
        """Refuse another location than the pipe's, below which it has other files of these paths."""
        database, schema = self.hook.database_and_schema()
        if table and target.table != (database, schema, table):
            raise ConfigurationError(
                f"pipe {self.pipe} loads into {'.'.join(target.table)}, and table is {table!r} in "
                f"{database}.{schema}: name the pipe's own table, or leave table out"
            )
        if self.stage is None:
            return
        given, own = StageReference.parse(self.stage, database, schema), target.stage
        if given.key() == own.key():
            is_own = given.path == own.path
        else:  # two external stages may stand for one address
            urls = [(self._url(one), one.path) for one in (given, own)]
            one, other = (f"{(url or '').rstrip('/')}/{path}".rstrip("/") for url, path in urls)
            is_own = one == other and all(url for url, _ in urls)
        if not is_own:
            raise ConfigurationError(
                f"pipe {self.pipe} loads from {own}, and stage is {self.stage!r}: it takes paths "
                f"below its own location, where other files may have them. Give stage={str(own)!r}, and "
                "the rest of the path as prefix, or name the pipe of that stage"
            )

    def _url(self, location: StageReference) -> str | None:
        return self.hook.stage_url(f"@{location.owner}{location.name}")


def _require_rows(hook: PipeAccount, table: str, files: Iterable[str], loaded: int) -> None:
    """Refuse files that a pipe has loaded and does not load again, where the table has lost rows of them.

    :param loaded: their rows, by the newest load of each file
    :raises FilesRejectedError: if the table has fewer rows than that
    """
    files = tuple(files)
    if not loaded:
        return
    now = table_state(hook.run_sql, (*hook.database_and_schema(), table)).rows
    if now is None or now >= loaded:
        return
    raise FilesRejectedError(
        f"{loaded:,} rows of {len(files):,} files were loaded into {table}, and it has {now:,} "
        "rows: some were deleted, or the table was replaced. After TRUNCATE set force=True. Otherwise the "
        "pipe takes a path once in 14 days: stage what is missing under other names",
        files=files,
        rejected=0,
    )


def _warn(why: str) -> None:
    log.warning("whether COPY has loaded these files is not known (%s)", why)


def check_choice(files: Any, stage: str | None, prefix: str | None, pattern: str | None) -> None:
    """Find what no rendering of templates can fix in what names files for a pipe.

    :raises ConfigurationError: if these do not go together
    """
    if stage is not None:
        StagedChoice(stage, files, prefix, pattern).check()
    elif files is None:
        raise ConfigurationError(
            "no files and no stage: give files=[…], or stage=…, the location of the pipe, which is listed"
        )
    elif prefix is not None or pattern is not None:
        raise ConfigurationError(
            f"prefix is {prefix!r} and pattern is {pattern!r} without stage=…, where files are listed: give "
            "it as well"
        )


# -- Loads that have begun: planned in the ledger before files are given to a pipe -------------------------


@dataclass(slots=True)
class PipePlan:
    """Files that a pipe is about to be given, in the ledger, so that a COPY of the same files sees them.

    A role that may not use the ledger is reported in a warning: a pipe needs no warehouse and no such table.

    :param loader: full name of the pipe
    :param ledger_table: the ledger's name, None for the default
    """

    identity: RunIdentity
    loader: str
    ledger_table: LedgerName = None
    details: str = ""
    _planned: tuple[Account, str, Entry] | None = None
    _before: str = GIVEN_UP
    """The state of an earlier try's entry, which the pipe may have been given."""

    def write(self, account: Account, table: str, files: StagedFiles) -> GivenFiles:
        """Plan the files, and refuse those that another task is about to copy.

        :return: what loaders were given of them before
        :raises FilesGivenTwiceError: if there are such files; nothing is planned then
        """
        try:
            with account.load_ledger(table, self.ledger_table) as ledger:
                work = work_key(self.identity, ledger.target, self.loader)
                new = Entry(
                    work, 1, 1, files=tuple(files.files.values()), loader=self.loader, details=self.details
                )
                stage, before = files.stage.key(files.url), ledger.entries(work)
                if before and before[0].state == GIVEN_UP and self.identity.entry is not None:
                    raise GivenUpError(
                        f"pipe {self.loader}: another task has given this load of files up. Nothing was "
                        "loaded; run again"
                    )
                if before:
                    self._before = before[0].state
                    ledger.change(before[0], new)
                else:
                    ledger.plan(new, self.identity, stage)
                self._planned = account, table, ledger.entries(work)[0]
                ledger.refuse_planned_by_others(work, self.loader, files.files, stage)
                return ledger.given_files(list(files.files), stage)
        except FilesGivenTwiceError:
            self.end(GIVEN_UP)
            raise
        except SqlError as error:
            if error.errno not in NOT_AUTHORIZED:
                raise
            log.warning("whether another task copies these files is not known: %s", error)
            return ()

    def end(self, state: str) -> None:
        """Write whether the pipe was given the files.

        :param state: ``SUBMITTED`` or ``GIVEN_UP``
        """
        if self._planned is None:
            return
        account, table, entry = self._planned
        state = self._before if state == GIVEN_UP else state
        with account.load_ledger(table, self.ledger_table) as ledger:
            ledger.change(entry, replace(entry, state=state))

    def loaded(self, account: Account, table: str, loads: Collection[Mapping[str, Any]]) -> None:
        """Write what the pipe has loaded.

        :param loads: of its files, ``rows_loaded`` and ``errors_seen`` of each
        """
        good, bad = (sum(int(one[name]) for one in loads) for name in ("rows_loaded", "errors_seen"))

        def write() -> None:
            with account.load_ledger(table, self.ledger_table) as ledger:
                for one in ledger.entries(work_key(self.identity, ledger.target, self.loader)):
                    ledger.settle(one, good, bad)

        asked(f"in the ledger, what pipe {self.loader} has loaded", write)
