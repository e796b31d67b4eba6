"""Other loaders of the files of a load, into the same table: what they have loaded or will load is refused.

A pipe that is given the files by an operator of this package is excluded: each of two loads is planned in
the ledger, then reads the other's plan, and asks queues and load history last. Of a pipe that somebody else
feeds, only its queue, its events and load history show what it is about to do.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from airflow_provider_snowpipe.bulk.copy import StageAccount
from airflow_provider_snowpipe.bulk.file_pipe_admin import PIPE_STATUS, ListedPipe, PipeStatus
from airflow_provider_snowpipe.bulk.ledger import FORCED, Ledger, LedgerName
from airflow_provider_snowpipe.bulk.load_history import COPY_MEMORY, REMEMBERED
from airflow_provider_snowpipe.bulk.staged_files import (
    LOADED,
    PARTIALLY_LOADED,
    ExpectedFiles,
    FileLoad,
    StagedFiles,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesGivenTwiceError, SqlError
from airflow_provider_snowpipe.streaming.names import first_few, quote_identifier

log = logging.getLogger(__name__)

NOT_AUTHORIZED = (606, 2003, 2043, 3001)
"""Numbers of SQL errors: no warehouse to ask with, no such object for this role, no privilege."""
_CLOCKS = dt.timedelta(minutes=1)
"""By so much the clocks of stage and account may differ."""
_MOST_SHOWN = 10_000
"""Rows of a SHOW command at most (page "SHOW <objects>")."""
Answer = TypeVar("Answer")


class Account(StageAccount, Protocol):
    """As much of the account's hook as the two loaders need."""

    def run_sql(self, statement: str, values: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Run one statement."""

    def load_ledger(self, table: str, name: LedgerName = None) -> AbstractContextManager[Ledger]:
        """Sign in to the ledger of loads into a table."""

    def loads_of(self, table: str, paths: Sequence[str], pipe: str | None = None) -> list[FileLoad]:
        """What ``COPY_HISTORY`` reports of some files."""

    def older_copies(self, table: str, paths: Sequence[str], *, by_pipes: bool = False) -> list[FileLoad]:
        """What the account's usage history reports of earlier loads."""


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
    shown = first_few([repr(one) for one in files])
    if pending and has_copied:
        what = (
            f"has {pending:,} files in its queue, and {shown} may be among them: a later try finds in "
            "load history what it has made of them"
        )
    elif pending:
        what = (
            f"has {pending:,} files in its queue, and {shown} may be among them: wait until it has loaded "
            "them (SnowpipePipeOperator, action='resume' where it is paused, then action='status')"
        )
    else:
        what = (
            f"is notified of {shown} by events (AUTO_INGEST): leave them to the pipe, or stage them elsewhere"
        )
    raise FilesGivenTwiceError(
        f"pipe {one.pipe.name} ({one.status or 'its state does not show to this role'}) loads from "
        f"{one.pipe.target.stage} into {table} as well and {what}, or {FORCED}. "
        f"{loader or 'COPY'} {'has' if has_copied else 'would'} put the same rows into the table",
        files=files,
        may_pass=pending > 0,
    )


# pragma: no mutate start (tested with the operators, against the fake account)


def pipes_beside(account: Account, table: str, staged: StagedFiles) -> list[PipeBeside]:
    """The pipes over the table that load from where the files are, and how they are.

    Asked are the pipes of all databases, and those that reach the same files through another external stage.
    """
    database, schema = account.database_and_schema()
    stage = replace(staged.stage, path="")
    what = "whether a pipe is about to load these files"
    rows = asked(what, partial(account.run_sql, "SHOW PIPES IN ACCOUNT")) or []
    if len(rows) >= _MOST_SHOWN:
        shown = partial(account.run_sql, f"SHOW PIPES IN DATABASE {quote_identifier(database)}")
        rows += asked(what, shown) or []
    beside = []
    for pipe in _pipes_over((database, schema, table), rows):
        url = None
        if staged.url is not None and not pipe.loads_from(stage):
            where = f"where pipe {pipe.name} loads from"
            url = asked(where, partial(account.stage_url, str(pipe.target.stage)))
        files = {
            one.path: one.staged_at
            for one in staged.files.values()
            if pipe.takes(one.path, stage)
            or (url is not None and pipe.takes_url(f"{str(staged.url).rstrip('/')}/{one.path}", url))
        }
        if files:
            what = f"whether files wait in pipe {pipe.name}"
            state = asked(what, partial(account.run_sql, PIPE_STATUS, (pipe.name.quoted,)))
            status = PipeStatus.read(next(iter(state[0].values()))) if state else None
            beside.append(PipeBeside(pipe, status, tuple(files), announced_to(pipe, files)))
    return beside


def _pipes_over(table: tuple[str, str, str], rows: Iterable[Mapping[str, Any]]) -> list[ListedPipe]:
    found = []
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


def asked(what: str, ask: Callable[[], Answer]) -> Answer | None:
    """Ask the account; None where the role may not, and the log then has a warning.

    :param what: what the answer would show
    :raises SqlError: if it fails otherwise
    """
    try:
        return ask()
    except SqlError as error:
        if error.errno not in NOT_AUTHORIZED:
            raise
        log.warning("%s is not known: %s", what, error)
        return None


# pragma: no mutate end


# -- Files that another loader has loaded: COPY and pipes do not share their memory ----------------------
#
# COPY remembers for each table for 64 days what it has loaded, a pipe for itself for 14 days, and the two
# memories are apart (pages "COPY INTO <table>" and "Introduction to Snowpipe"). So the rows of a file that
# both are given are in the table twice.
#
# A load counts as long as its own loader remembers the file, and no longer, though its rows may be there
# still. After that the loader itself takes a file of the same path for another one, as it must where names
# are used again. Load history has paths and no contents, so a longer query would refuse such files, and would
# need the view of the account, with a right of its own, before every COPY.

PIPE_MEMORY = dt.timedelta(days=14)
_OF_LIST = dt.timedelta(seconds=1)
"""LIST has whole seconds."""


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
    for path, load in expected.of(history):
        if load.status not in (LOADED, PARTIALLY_LOADED):
            continue
        memory = COPY_MEMORY if load.pipe is None else PIPE_MEMORY
        if now is not None and load.loaded_at is not None and load.loaded_at < now - memory:
            continue
        whole = f"{str(files.url).rstrip('/')}/{path}"
        if "://" not in load.location or f"{load.location.rstrip('/')}/{load.path}" == whole:
            found.append(replace(load, path=path))
    return found


def loads_since_staged(
    files: StagedFiles, history: Iterable[FileLoad], given: Container[tuple[str, str, str | None]] = ()
) -> dict[str, FileLoad]:
    """The newest load of each file's content, by path.

    One from before the file was staged may have been of another content: it does not count. Nor does one
    within the second that LIST shows, unless the ledger shows that its loader was given this very content.

    :param given: as :meth:`Ledger.given_files` returns it
    """
    found = {}
    for load in remembered_loads(files, history, None):
        file = files.files[load.path]
        if (
            file.staged_at is None
            or load.loaded_at is None
            or file.staged_at + _OF_LIST <= load.loaded_at
            or (file.staged_at <= load.loaded_at and (file.path, file.mark, load.pipe) in given)
        ):
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
    own = (one for one in loads if one.pipe == loader and one.status in (LOADED, PARTIALLY_LOADED))
    done = {path for path, _ in expected.of(own)}
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
    given: Container[tuple[str, str, str | None]] = (),
) -> dict[str, FileLoad]:
    """Refuse files that somebody else has loaded into the table, and report who and when.

    :param history: loads into the table, from the oldest
    :param loader: full name of the pipe that is to load them, as load history spells it; None for COPY
    :param older: loads of before the history, which the loader itself may have forgotten
    :param passes_over: True accepts a file that others have loaded since it was staged, or the loader itself
        before the history
    :param given: contents of files that loaders were given
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
            path: load
            for path, load in loads_since_staged(files, every, given).items()
            if path not in by_loader
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
        f"in them under other names, or {FORCED}",
        files=paths,
    )


def _evidence(loads: Sequence[FileLoad]) -> str:
    texts = [
        f"{load.path!r} by {'COPY' if load.pipe is None else f'pipe {load.pipe}'}"
        f"{f' at {load.loaded_at:%Y-%m-%d %H:%M:%S %Z}' if load.loaded_at else ''}, {load.rows_loaded:,} rows"
        for load in loads
    ]
    return first_few(texts, "; ")
