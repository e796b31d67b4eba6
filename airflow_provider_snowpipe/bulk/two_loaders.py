"""The same files given to COPY and to a pipe: found in load history or at the pipe, and refused.

COPY remembers for each table for 64 days what it has loaded, a pipe for itself for 14 days, and the two
memories are apart (pages "COPY INTO <table>" and "Introduction to Snowpipe"). So the rows of a file that both
are given are in the table twice.

A load counts as long as its own loader remembers the file, and no longer, though its rows may be there still.
After that the loader itself takes a file of the same path for another one, as it must where names are used
anew. Load history tells paths and no contents, so a longer look would refuse such files, and would need the
view of the account, with a right of its own, before every COPY.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_snowpipe.bulk.expected_files import ExpectedFiles
from airflow_provider_snowpipe.bulk.file_load import LOADED, PARTIALLY_LOADED, FileLoad
from airflow_provider_snowpipe.bulk.pipe_state import ListedPipe, PipeStatus, written
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.streaming.errors import FilesGivenTwiceError

COPY_MEMORY = dt.timedelta(days=64)
PIPE_MEMORY = dt.timedelta(days=14)
NOT_AUTHORIZED = (606, 2003, 2043, 3001)
"""Numbers of SQL errors: no warehouse to ask with, no such object for this role, no privilege."""
_CLOCKS = dt.timedelta(minutes=1)
"""By so much the clocks of stage and account may differ."""
_MOST_NAMED = 3
_PART = r'("(?:[^"]|"")+"|%?[^".]+)'
_FULL_NAME = re.compile(rf"@?{_PART}\.{_PART}\.{_PART}")


@dataclass(frozen=True, slots=True)
class StagedPaths:
    """Files of one stage.

    :param paths: their paths below the stage
    :param stage: the stage
    :param url: what an external stage stands for, None for an internal one
    """

    paths: tuple[str, ...]
    stage: StageReference
    url: str | None = None


def remembered_loads(files: StagedPaths, history: Iterable[FileLoad], now: dt.datetime) -> list[FileLoad]:
    """The loads of some files that their loaders remember, from the oldest, with the paths asked for.

    A load that is older than its loader's memory does not count, nor one that put no row into the table.

    :param files: the files
    :param history: loads into the table, from the oldest
    :param now: the time
    """
    expected = ExpectedFiles(files.paths)
    found = []
    for load in history:
        path = expected.name_of(load)
        if path is None or load.status not in (LOADED, PARTIALLY_LOADED):
            continue
        memory = COPY_MEMORY if load.pipe is None else PIPE_MEMORY
        is_forgotten = load.loaded_at is not None and load.loaded_at < now - memory
        if not is_forgotten and not _is_elsewhere(load, path, files):
            found.append(replace(load, path=path))
    return found


def not_loaded_by(paths: Sequence[str], loads: Iterable[FileLoad], loader: str) -> list[str]:
    """The files that a pipe would load now: those without a load of its own.

    :param paths: their paths below the stage
    :param loads: loads into the table
    :param loader: full name of the pipe
    """
    expected = ExpectedFiles(tuple(paths))
    done = {
        expected.name_of(load)
        for load in loads
        if load.pipe == loader and load.status in (LOADED, PARTIALLY_LOADED)
    }
    return [path for path in paths if path not in done]


def refuse_files_of_others(
    files: StagedPaths,
    history: Iterable[FileLoad],
    *,
    table: str,
    now: dt.datetime,
    loader: str | None = None,
) -> None:
    """Refuse files of which somebody else has put rows into the table, and say who and when.

    :param files: the files that are to be loaded, or were
    :param history: loads into the table, from the oldest
    :param table: the table, for the error's text
    :param now: the time
    :param loader: full name of the pipe that is to load them, as load history spells it; None for COPY
    :raises FilesGivenTwiceError: if there is such a load
    """
    known = remembered_loads(files, history, now)
    others = [load for load in known if load.pipe != loader]
    if not others:
        return
    own = [load for load in known if load.pipe == loader]
    both = {load.path for load in own}.intersection(load.path for load in others)
    twice = [load for load in (*own, *others) if load.path in both]
    if twice:
        paths = tuple(dict.fromkeys(load.path for load in twice))
        raise FilesGivenTwiceError(
            f"{len(paths):,} of {len(files.paths):,} files for {table} were loaded twice: {_evidence(twice)}."
            " Delete the rows of one of these loads, or bring the table back to before it by Time Travel; "
            "then take these files from one of the two. force=True goes on with the table as it is",
            files=paths,
        )
    paths = tuple(dict.fromkeys(load.path for load in others))
    raise FilesGivenTwiceError(
        f"{len(paths):,} of {len(files.paths):,} files for {table} were loaded another way: "
        f"{_evidence(others)}. {'COPY' if loader is None else f'pipe {loader}'} has no memory of that and "
        "would load their rows a second time: take these files from one of the two, or say force=True",
        files=paths,
    )


@dataclass(frozen=True, slots=True)
class PipeBeside:
    """A file pipe over the table of another load, which loads from where the files are.

    :param pipe: the pipe
    :param status: its state, None where the role may not ask for it
    :param files: the files that it loads, as far as it is given them
    :param announced: those of which events have told it, or will
    """

    pipe: ListedPipe
    status: PipeStatus | None
    files: tuple[str, ...]
    announced: tuple[str, ...] = ()


def announced_to(pipe: ListedPipe, files: Mapping[str, dt.datetime | None]) -> tuple[str, ...]:
    """The files of which events tell a pipe: those that came when it was there.

    :param pipe: the pipe
    :param files: paths of files that the pipe takes, and since when they are staged, None for unknown
    """
    if not pipe.target.auto_ingest:
        return ()
    since = None if pipe.created is None else pipe.created - _CLOCKS
    return tuple(path for path, staged in files.items() if since is None or staged is None or staged >= since)


def refuse_files_for_pipes(
    pipes: Iterable[PipeBeside], *, table: str, loader: str | None = None, has_copied: bool = False
) -> None:
    """Refuse to load files that a pipe is about to load, and say which pipe, how it is, and what to do.

    :param pipes: the pipes that load from where the files are
    :param table: the table, for the error's text
    :param loader: full name of the pipe that is to load them, which is not asked; None for COPY
    :param has_copied: True where COPY has loaded the files
    :raises FilesGivenTwiceError: if a pipe has files in its queue, or is told of these by events
    """
    for one in pipes:
        if str(one.pipe.name) == loader:
            continue
        pending = one.status.pending_files if one.status is not None else 0
        files = one.files if pending else one.announced
        if not files:
            continue
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
                f"is told of {shown} by events (AUTO_INGEST): leave them to the pipe, or stage them elsewhere"
            )
        raise FilesGivenTwiceError(
            f"pipe {one.pipe.name} ({one.status or 'its state does not show to this role'}) loads from "
            f"{written(one.pipe.target.stage)} into {table} as well and {what}, or say force=True. "
            f"{loader or 'COPY'} {'has' if has_copied else 'would'} put the same rows into the table",
            files=files,
            may_pass=pending > 0,
        )


def _evidence(loads: Sequence[FileLoad]) -> str:
    shown = "; ".join(
        f"{load.path!r} by {'COPY' if load.pipe is None else f'pipe {load.pipe}'}"
        f"{f' at {load.loaded_at:%Y-%m-%d %H:%M:%S %Z}' if load.loaded_at else ''}, "
        f"{load.rows_loaded:,} rows"
        for load in loads[:_MOST_NAMED]
    )
    return shown + (f"; and {len(loads) - _MOST_NAMED:,} more" if len(loads) > _MOST_NAMED else "")


def _is_elsewhere(load: FileLoad, path: str, files: StagedPaths) -> bool:
    """True when a load is surely of another stage's file; one that does not tell counts as the same."""
    if "://" in load.location:
        name = f"{load.location.rstrip('/')}/{load.path}"
        return files.url is None or name != f"{files.url.rstrip('/')}/{path}"
    named = _FULL_NAME.fullmatch(load.location.partition("/")[0])
    return named is not None and _spelled(named[3]) != _spelled(files.stage.name)


def _spelled(name: str) -> str:
    """A name as Snowflake keeps it: in capitals unless it is quoted; a location may leave the quotes out."""
    own, mark = name.removeprefix("%"), "%" if name.startswith("%") else ""
    return (mark + (own[1:-1].replace('""', '"') if own.startswith('"') else own)).upper()
