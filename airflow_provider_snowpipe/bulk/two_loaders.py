"""The same files given to COPY and to a pipe: found in load history or at the pipe, and refused.

COPY remembers for each table for 64 days what it has loaded, a pipe for itself for 14 days, and the two
memories are apart (pages "COPY INTO <table>" and "Introduction to Snowpipe"). So the rows of a file that both
are given are in the table twice.

A load counts as long as its own loader remembers the file, and no longer, though its rows may be there still.
After that the loader itself takes a file of the same path for another one, as it must where names are used
again. Load history has paths and no contents, so a longer query would refuse such files, and would need the
view of the account, with a right of its own, before every COPY.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_snowpipe.bulk.copy import RunIdentity, StageAccount
from airflow_provider_snowpipe.bulk.file_pipe_admin import (
    PIPE_STATUS,
    ListedPipe,
    PipeStatus,
)
from airflow_provider_snowpipe.bulk.ledger import GIVEN_UP, Entry, Ledger, work_key
from airflow_provider_snowpipe.bulk.load_history import COPY_MEMORY, REMEMBERED
from airflow_provider_snowpipe.bulk.staged_files import (
    LOADED,
    PARTIALLY_LOADED,
    ExpectedFiles,
    FileLoad,
    StagedFiles,
    StageReference,
    stage_key,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError, SqlError
from airflow_provider_snowpipe.streaming.names import quote_identifier

log = logging.getLogger(__name__)

PIPE_MEMORY = dt.timedelta(days=14)
NOT_AUTHORIZED = (606, 2003, 2043, 3001)
"""Numbers of SQL errors: no warehouse to ask with, no such object for this role, no privilege."""
_FORCED = "load them by SnowpipeCopyOperator or SnowpipeIngestFilesOperator with force=True"
"""Other operators have no such argument."""
_CLOCKS = dt.timedelta(minutes=1)
"""By so much the clocks of stage and account may differ."""
_MOST_NAMED = 3
_MOST_SHOWN = 10_000
"""Rows of a SHOW command at most (page "SHOW <objects>")."""
RunSql = Callable[..., list[dict[str, Any]]]


class Account(StageAccount, Protocol):
    """As much of the account's hook as the two loaders need."""

    def database_and_schema(self) -> tuple[str, str]:
        """Database and schema of the table."""

    def run_sql(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement."""

    def sql_session(self, purpose: str) -> AbstractContextManager[RunSql]:
        """Sign in once for several statements."""

    def load_ledger(self, table: str, name: str | None = None) -> AbstractContextManager[Ledger]:
        """Sign in to the ledger of loads into a table."""

    def loads_of(self, table: str, paths: Sequence[str], pipe: str | None = None) -> list[FileLoad]:
        """What ``COPY_HISTORY`` reports of some files."""

    def older_copies(self, table: str, paths: Sequence[str], *, by_pipes: bool = False) -> list[FileLoad]:
        """What the account's usage history reports of earlier loads."""


def remembered_loads(
    files: StagedFiles, history: Iterable[FileLoad], now: dt.datetime | None
) -> list[FileLoad]:
    """The loads of some files that their loaders remember, from the oldest, with the paths asked for.

    A load that is older than its loader's memory does not count, nor one that put no row into the table.

    :param history: loads into the table, from the oldest
    :param now: the time; None counts what the loaders have forgotten as well
    """
    # A stage may be named with database and schema here, and without them there.
    stage = replace(files.stage, owner="", path="")
    expected = ExpectedFiles(tuple(files.files), stage=stage, url=files.url)
    found = []
    for load in history:
        path = expected.name_of(load)
        if path is None or load.status not in (LOADED, PARTIALLY_LOADED):
            continue
        memory = COPY_MEMORY if load.pipe is None else PIPE_MEMORY
        if now is not None and load.loaded_at is not None and load.loaded_at < now - memory:
            continue
        whole = f"{str(files.url).rstrip('/')}/{path}"
        if "://" not in load.location or f"{load.location.rstrip('/')}/{load.path}" == whole:
            found.append(replace(load, path=path))
    return found


def loads_since_staged(files: StagedFiles, history: Iterable[FileLoad]) -> dict[str, FileLoad]:
    """The newest load of each file's content, by path.

    One from before the file was staged may have been of another content: it does not count.
    """
    found = {}
    for load in remembered_loads(files, history, None):
        staged = files.files[load.path].staged_at
        if staged is None or load.loaded_at is None or staged <= load.loaded_at:
            found[load.path] = load
    return found


def unknown_since(files: StagedFiles, history: Iterable[FileLoad]) -> list[str]:
    """The files that may have been loaded before load history begins: staged before, with no load in it."""
    begin = dt.datetime.now(dt.UTC) - REMEMBERED
    known = {load.path for load in remembered_loads(files, history, None)}
    return [
        path
        for path, file in files.files.items()
        if path not in known and (file.staged_at is None or file.staged_at < begin)
    ]


def not_loaded_by(files: StagedFiles, loads: Iterable[FileLoad], loader: str) -> list[str]:
    """Paths of the files that a pipe would load now: those without a load of its own.

    :param loader: full name of the pipe
    """
    stage = replace(files.stage, path="")
    expected = ExpectedFiles(tuple(files.files), stage=stage, url=files.url)
    done = {
        expected.name_of(load)
        for load in loads
        if load.pipe == loader and load.status in (LOADED, PARTIALLY_LOADED)
    }
    return [path for path in files.files if path not in done]


def refuse_files_of_others(
    files: StagedFiles,
    history: Sequence[FileLoad],
    *,
    table: str,
    now: dt.datetime,
    loader: str | None = None,
    older: Sequence[FileLoad] = (),
    passes_over: bool = False,
) -> dict[str, FileLoad]:
    """Refuse files of which somebody else has put rows into the table, and report who and when.

    :param history: loads into the table, from the oldest
    :param loader: full name of the pipe that is to load them, as load history spells it; None for COPY
    :param older: loads of before the history, which the loader itself may have forgotten
    :param passes_over: True accepts a file that others have loaded since it was staged, or the loader itself
        before the history
    :return: such files' loads, by their paths; they need no other
    :raises FilesGivenTwiceError: if there is another such load
    """
    every = list(dict.fromkeys([*older, *history]))
    known = remembered_loads(files, every, now)
    own = [load for load in known if load.pipe == loader]
    others = [load for load in known if load.pipe != loader]
    passed: dict[str, FileLoad] = {}
    if passes_over:
        by_loader = {load.path for load in remembered_loads(files, history, now) if load.pipe == loader}
        passed = {
            path: load for path, load in loads_since_staged(files, every).items() if path not in by_loader
        }
        others = [load for load in others if load.path not in passed]
    if not others:
        return passed
    both = {load.path for load in own}.intersection(load.path for load in others)
    twice = [load for load in (*own, *others) if load.path in both]
    if twice:
        paths = tuple(dict.fromkeys(load.path for load in twice))
        raise FilesGivenTwiceError(
            f"{len(paths):,} of {len(files.files):,} files for {table} were loaded twice: {_evidence(twice)}."
            " Delete the rows of one of these loads, or bring the table back to before it by Time Travel; "
            "then take these files from one of the two, or out of the stage. SnowpipeCopyOperator and "
            "SnowpipeIngestFilesOperator go on with the table as it is with force=True",
            files=paths,
        )
    paths = tuple(dict.fromkeys(load.path for load in others))
    raise FilesGivenTwiceError(
        f"{len(paths):,} of {len(files.files):,} files for {table} were loaded another way: "
        f"{_evidence(others)}. {'COPY' if loader is None else f'pipe {loader}'} has no memory of that and "
        "would load their rows a second time: take these files from one of the two, stage what has changed "
        f"in them under other names, or {_FORCED}",
        files=paths,
    )


@dataclass(frozen=True, slots=True)
class PipeBeside:
    """A file pipe over the table of another load, which loads from where the files are.

    :param status: its state, None where the role may not ask for it
    :param files: the files that it loads, as far as it is given them
    :param announced: those that events have announced to it, or will
    """

    pipe: ListedPipe
    status: PipeStatus | None
    files: tuple[str, ...]
    announced: tuple[str, ...] = ()

    def without(self, loaded: Mapping[str, FileLoad]) -> PipeBeside:
        """The same without files that nobody is to load any more."""
        files, announced = (
            tuple(path for path in paths if path not in loaded) for paths in (self.files, self.announced)
        )
        return replace(self, files=files, announced=announced)


def announced_to(pipe: ListedPipe, files: Mapping[str, dt.datetime | None]) -> tuple[str, ...]:
    """The files that events announce to a pipe: those that came when it was there.

    :param files: paths of files that the pipe takes, and since when they are staged, None for unknown
    """
    if not pipe.target.auto_ingest:
        return ()
    since = None if pipe.created is None else pipe.created - _CLOCKS
    return tuple(path for path, staged in files.items() if since is None or staged is None or staged >= since)


def refuse_files_for_pipe(
    one: PipeBeside, *, table: str, loader: str | None = None, has_copied: bool = False
) -> None:
    """Refuse to load files that a pipe is about to load, and report which pipe, its state, and what to do.

    :param one: a pipe that loads from where the files are
    :param loader: full name of the pipe that is to load them, which is not asked; None for COPY
    :raises FilesGivenTwiceError: if the pipe has files in its queue, or events announce these to it
    """
    if str(one.pipe.name) == loader:
        return
    pending = one.status.pending_files if one.status is not None else 0
    files = one.files if pending else one.announced
    if not files:
        return
    shown = ", ".join(map(repr, files[:_MOST_NAMED])) + (" …" if len(files) > _MOST_NAMED else "")
    if pending and has_copied:
        what = (
            f"has {pending:,} files in its queue, of which {shown} may be some: a later try finds in "
            "load history what it has made of them"
        )
    elif pending:
        what = (
            f"has {pending:,} files in its queue, of which {shown} may be some: wait until it has loaded "
            "them (SnowpipePipeOperator, action='resume' where it is paused, then action='status')"
        )
    else:
        what = (
            f"is notified of {shown} by events (AUTO_INGEST): leave them to the pipe, or stage them elsewhere"
        )
    raise FilesGivenTwiceError(
        f"pipe {one.pipe.name} ({one.status or 'its state does not show to this role'}) loads from "
        f"{one.pipe.target.stage} into {table} as well and {what}, or {_FORCED}. "
        f"{loader or 'COPY'} {'has' if has_copied else 'would'} put the same rows into the table",
        files=files,
        may_pass=pending > 0,
    )


def _evidence(loads: Sequence[FileLoad]) -> str:
    shown = "; ".join(
        f"{load.path!r} by {'COPY' if load.pipe is None else f'pipe {load.pipe}'}"
        f"{f' at {load.loaded_at:%Y-%m-%d %H:%M:%S %Z}' if load.loaded_at else ''}, {load.rows_loaded:,} rows"
        for load in loads[:_MOST_NAMED]
    )
    return shown + (f"; and {len(loads) - _MOST_NAMED:,} more" if len(loads) > _MOST_NAMED else "")


# pragma: no mutate start (tested with the operators, against the fake account)


@dataclass(frozen=True, slots=True)
class OtherLoaders:
    """Pipes that load the files of a COPY as well: refused before it, and found after it.

    A pipe that is given the files by an operator of this package is excluded: each of the two plans its load
    in the ledger, then reads the other's plan, and asks queues and load history last. Of a pipe that another
    one feeds while COPY runs, load history shows it when it has run.

    :param work: the key of the COPY's work
    :param passes_over: True where files are skipped that others have loaded since they were staged
    """

    account: Account
    ledger: Ledger
    table: str
    work: str
    passes_over: bool = False

    def refuse(self, staged: StagedFiles, *, has_copied: bool = False) -> dict[str, FileLoad]:
        """Refuse the files of others: before COPY, when it is planned; and after it.

        :param has_copied: True when COPY has ended
        :return: the loads of files that are skipped, by their paths
        :raises FilesGivenTwiceError: if somebody else loads or has loaded one of the others
        """
        if not staged.files:
            return {}
        if not has_copied:
            refuse_planned_by_others(self.ledger, self.work, None, staged, stage_of(self.account, staged))
        # The queues first: what is loaded between the two questions is in history then.
        pipes = pipes_beside(self.account, self.table, staged)
        history = self.account.loads_of(self.table, list(staged.files))
        older: list[FileLoad] = []
        if self.passes_over and (forgotten := unknown_since(staged, history)):
            older = self.account.older_copies(self.table, forgotten, by_pipes=True)
        passed = refuse_files_of_others(
            staged,
            history,
            table=self.table,
            now=dt.datetime.now(dt.UTC),
            older=older,
            passes_over=self.passes_over,
        )
        for one in pipes:
            refuse_files_for_pipe(one.without(passed), table=self.table, has_copied=has_copied)
        return passed


def pipes_beside(account: Account, table: str, staged: StagedFiles) -> list[PipeBeside]:
    """The pipes over the table that load from where the files are, and how they are.

    Asked are the pipes of all databases, and those that reach the same files through another external stage.
    """
    database, schema = account.database_and_schema()
    root = staged.stage.location("", database=database, schema=schema)
    stage = replace(StageReference.parse(root), path="")
    with account.sql_session("ask the pipes over a table") as run:
        beside = []
        for pipe in _pipes_over((database, schema, table), run):
            url = None if pipe.loads_from(stage) or staged.url is None else _url_of(pipe, account)
            files = {
                one.path: one.staged_at
                for one in staged.files.values()
                if pipe.takes(one.path, stage)
                or (url is not None and pipe.takes_url(f"{str(staged.url).rstrip('/')}/{one.path}", url))
            }
            if files:
                status = _status_of(pipe, run)
                beside.append(PipeBeside(pipe, status, tuple(files), announced_to(pipe, files)))
    return beside


def _pipes_over(table: tuple[str, str, str], run: RunSql) -> list[ListedPipe]:
    found = []
    try:
        rows = run("SHOW PIPES IN ACCOUNT", None)
        if len(rows) >= _MOST_SHOWN:
            rows = [*rows, *run(f"SHOW PIPES IN DATABASE {quote_identifier(table[0])}", None)]
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("whether a pipe is about to load these files is not known: %s", error)
        return []
    for row in rows:
        try:
            pipe = ListedPipe.read(row)
        except ConfigurationError as error:
            log.warning("whether this pipe is about to load these files is not known: %s", error)
            continue
        if pipe is not None and pipe.target.table == table:
            found.append(pipe)
    log.info("%d file pipes over %s show to this role; of others nothing is known", len(found), table[2])
    return found


def _url_of(pipe: ListedPipe, account: Account) -> str | None:
    """What the external stage of a pipe stands for; None for another kind, or one that does not show."""
    try:
        return account.stage_url(str(pipe.target.stage))
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("where pipe %s loads from is not known: %s", pipe.name, error)
        return None


def _status_of(pipe: ListedPipe, run: RunSql) -> PipeStatus | None:
    name = pipe.name
    try:
        (row,) = run(PIPE_STATUS, (name.quoted,))
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("whether files wait in pipe %s is not known: %s", name, error)
        return None
    return PipeStatus.read(next(iter(row.values())))


# -- Loads that have begun: planned in the ledger before files are given to a loader ---------------------
#
# COPY and pipes do not share their memory of files, and asking what the other has done does not show what
# it is about to do. So each of the two operators first plans its load in the ledger, then reads what others
# have planned, and only then asks pipes and load history: of two that begin at once, one at least finds the
# other.

_COUNTS_FOR = dt.timedelta(days=7)
"""No statement runs for longer (page "Parameters", STATEMENT_TIMEOUT_IN_SECONDS)."""


def refuse_planned_by_others(
    ledger: Ledger, work: str, loader: str | None, files: StagedFiles, stage: str
) -> None:
    """Refuse files that another task is about to give to another loader.

    Loads by the same loader need no check: the loader itself skips files.

    :param work: the key of the task's own work
    :param loader: full name of the pipe, None for COPY
    :param stage: the stage as :func:`stage_of` writes it
    :raises FilesGivenTwiceError: if there is such a load; a retry finds what has become of it
    """
    since = dt.datetime.now(dt.UTC) - _COUNTS_FOR
    for other in ledger.planned_by_others(work, loader, stage, since):
        both = tuple(sorted(set(files.files).intersection(one.path for one in other.files)))
        if not both:
            continue
        shown = ", ".join(map(repr, both[:_MOST_NAMED])) + (" …" if len(both) > _MOST_NAMED else "")
        by, own = ("COPY" if one is None else f"pipe {one}" for one in (other.loader, loader))
        raise FilesGivenTwiceError(
            f"task {other.task} (DAG, run, task, map index) has begun to load {len(both):,} of "
            f"{len(files.files):,} files by {by}: {shown}. {own} would put the same rows into the table: "
            "take the files from one of the two. If that task has died, clear it, so that it ends its load; "
            f"or delete WORK = {other.work!r} of the ledger {'.'.join(ledger.name)} when no statement of it "
            f"runs; or {_FORCED}",
            files=both,
            may_pass=True,
        )


@dataclass(slots=True)
class PipePlan:
    """Files that a pipe is about to be given, in the ledger, so that a COPY of the same files sees them.

    A role that may not use the ledger is reported in a warning: a pipe needs no warehouse and no such table.

    :param loader: full name of the pipe
    :param ledger_table: the ledger's name, None for the default
    """

    identity: RunIdentity
    loader: str
    ledger_table: str | None = None
    _planned: tuple[Account, str, Entry] | None = None

    def write(self, account: Account, table: str, files: StagedFiles) -> None:
        """Plan the files, and refuse those that another task is about to copy.

        :raises FilesGivenTwiceError: if there are such files; nothing is planned then
        """
        try:
            with account.load_ledger(table, self.ledger_table) as ledger:
                work = work_key(self.identity, ledger.target, self.loader)
                new = Entry(work, 1, 1, files=tuple(files.files.values()), loader=self.loader)
                stage, before = stage_of(account, files), ledger.entries(work)
                if before:
                    ledger.change(before[0], new)
                else:
                    ledger.plan(new, self.identity, stage)
                self._planned = account, table, ledger.entries(work)[0]
                refuse_planned_by_others(ledger, work, self.loader, files, stage)
        except FilesGivenTwiceError:
            self.end(GIVEN_UP)
            raise
        except (ConfigurationError, SqlError) as error:
            if isinstance(error, SqlError) and error.errno not in NOT_AUTHORIZED:
                raise
            log.warning("whether another task copies these files is not known: %s", error)

    def end(self, state: str) -> None:
        """Write whether the pipe was given the files.

        :param state: ``SUBMITTED`` or ``GIVEN_UP``
        """
        if self._planned is None:
            return
        account, table, entry = self._planned
        with account.load_ledger(table, self.ledger_table) as ledger:
            ledger.change(entry, replace(entry, state=state))

    def loaded(self, account: Account, table: str, loads: Collection[Mapping[str, Any]]) -> None:
        """Write what the pipe has loaded.

        :param loads: of its files, ``rows_loaded`` and ``errors_seen`` of each
        """
        good, bad = (sum(int(one[name]) for one in loads) for name in ("rows_loaded", "errors_seen"))
        try:
            with account.load_ledger(table, self.ledger_table) as ledger:
                for one in ledger.entries(work_key(self.identity, ledger.target, self.loader)):
                    ledger.settle(one, good, bad)
        except (ConfigurationError, SqlError) as error:
            if isinstance(error, SqlError) and error.errno not in NOT_AUTHORIZED:
                raise
            log.warning("the ledger does not show what pipe %s has loaded: %s", self.loader, error)


def stage_of(account: Account, files: StagedFiles) -> str:
    """The stage of files in one spelling, or where an external one points."""
    database, schema = account.database_and_schema()
    return stage_name(files.stage.location("", database=database, schema=schema), files.url)


def stage_name(location: str, url: str | None) -> str:
    """A stage in one spelling, without a path, or where an external one points.

    :param location: the stage with database and schema
    """
    return url.rstrip("/") if url is not None else ".".join(stage_key(StageReference.parse(location)))


# pragma: no mutate end
