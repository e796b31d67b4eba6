"""Loading files by COPY or by a file pipe, for a task that has chosen one of the two."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyOutcome, StagedChoice
from airflow_provider_snowpipe.bulk.copy_run import LeaveWorker
from airflow_provider_snowpipe.bulk.files_watch import Tolerance, load_failure
from airflow_provider_snowpipe.bulk.ledger import GivenUpError
from airflow_provider_snowpipe.bulk.load_history import COPY_MEMORY, REMEMBERED
from airflow_provider_snowpipe.bulk.pipe_load import PipeFiles, PipeLoad
from airflow_provider_snowpipe.bulk.stage import SourceFile as StagedSource
from airflow_provider_snowpipe.bulk.stage import Staging
from airflow_provider_snowpipe.bulk.staged_files import FINAL, FileLoad, StageReference
from airflow_provider_snowpipe.hooks.bulk import Folder, SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy import CopyLoad, copy_into
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.spark.submit.copy_rows import copy_arguments, why_not_copy
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    NothingStagedError,
    OffsetTokenMovedError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.bulk.file_pipe import Submission
    from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget
    from airflow_provider_snowpipe.sources import FileSource
    from airflow_provider_snowpipe.spark.submit.file_boundary import CopyShare, FileBoundary

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class FileLoading:
    """One task's loading of files.

    :param hook_of: makes the hook of a table and a file pipe of the task's account
    :param files: the source as files of this machine, None where it is something else
    :param stage: where files of this machine are staged for COPY
    :param is_pipe_forced: True where the author chose the pipe himself
    :param on_rejected: ``fail`` or ``report`` files that are not loaded as a whole
    :param announce: gets the paths of files that a pipe was given
    :param leave_copy: leaves the worker while COPY runs, None to wait here
    :param leave_pipe: leaves the worker while a pipe loads, None to wait here
    :param ledger_table: as of :class:`SnowpipeCopyOperator`
    :param begun: versions of ledger entries when the task was deferred for a COPY
    """

    hook_of: Callable[..., SnowpipeBulkHook]
    table: str | None
    source: Any
    files: FileSource | None
    stage: str
    file_pipe: str | None
    options: Mapping[str, Any]
    is_pipe_forced: bool
    on_rejected: str
    load_timeout: float
    poll_interval: float
    identity: RunIdentity
    announce: Callable[[list[str]], None]
    leave_copy: LeaveWorker | None
    leave_pipe: Callable[[PipeLoad, Submission, dict[str, Any]], NoReturn] | None
    ledger_table: str | None
    begun: Mapping[str, int] | None
    _reported: Mapping[str, FileLoad] = field(default_factory=dict, init=False)
    """What the pipe's trigger has reported of files, by their paths below the pipe's location."""
    copies: list[CopyLoad] = field(default_factory=list, init=False)
    """Its COPYs, in their order."""
    _targets: dict[str, PipeTarget] = field(default_factory=dict, init=False)

    def run(self, path: LoadPath, boundary: FileBoundary | None) -> dict[str, Any]:
        """Load the files, and move the channels' tokens behind them where there are channels.

        :param boundary: files of this machine and their channels, None for files in a stage
        :return: as of the operator of the path, and ``bytes`` and ``channels``
        :raises ConfigurationError: if the files cannot go this way
        """
        if boundary is None:
            value = self._staged_by_pipe() if path is LoadPath.PIPE else self._staged_by_copy()
            return {**value, "bytes": None, "channels": {}}
        pipe = self._pipe() if path is LoadPath.PIPE else None
        self._loader(pipe, leaves=False)  # which finds what is wrong before anything is touched
        # Another loader's load is waited for here: it is not known again when the task comes back.
        return load_files(
            boundary, lambda name: self._loader(name, leaves=name == pipe), self.on_rejected, pipe=pipe
        )

    def finish(self, boundary: FileBoundary) -> None:
        """End a load that was interrupted, and no more."""
        # What is to be streamed afterwards would be forgotten with the worker.
        load_files(boundary, lambda name: self._loader(name, leaves=False), self.on_rejected, begun_only=True)

    def after_pipe(
        self, event: Mapping[str, Any], submitted: Mapping[str, Any], boundary: FileBoundary | None
    ) -> dict[str, Any]:
        """Go on after the triggerer has waited for a pipe.

        :param boundary: files of this machine and their channels, None for files in a stage
        """
        if event["status"] != "success":
            raise load_failure(event["reason"], event["message"])
        if boundary is None:
            pipe = self._pipe()
            load = self._pipe_load(self._pipe_files(pipe, self._target(pipe), passes_over=True))
            value = ingested_value(load.checked(self.identity, submitted, event["files"]))
            return {**value, "bytes": None, "channels": {}}
        self._reported = {path: FileLoad.from_result(path, one) for path, one in event["files"].items()}
        return self.run(LoadPath.PIPE, boundary)

    def stop(self) -> None:
        """Cancel the COPY that runs; a pipe loads what it was given all the same."""
        for one in self.copies[-1:]:
            one.stop()

    def _staged_by_copy(self) -> dict[str, Any]:
        load = self._copier(str(self.source), {"options": self.options}, leaves=True)
        load.passes_over = True
        return load.run()

    def _staged_by_pipe(self) -> dict[str, Any]:
        pipe, source = self._pipe(), StageReference.parse(str(self.source))
        # An earlier try may have taken COPY, whose files the pipe is not to load beside it.
        self._copier(str(self.source), {}, leaves=False).give_up()
        target = self._target(pipe)
        prefix = target.below(source, self._full_name(pipe))
        files = self._pipe_files(pipe, target, prefix=prefix or None, passes_over=True)
        return self._ingested(files, leaves=True)

    def _loader(self, pipe: str | None, *, leaves: bool) -> FileLoader:
        if pipe is not None:
            return self._pipe_loader(pipe, leaves)
        if self.files is None:
            raise ConfigurationError(f"source is {self.source!r}: only files are copied")
        arguments = copy_arguments(self.files, self.options)

        def copier(paths: Sequence[str], work: str) -> CopyLoad:
            return self._copier(self.stage, arguments, paths, work=work, leaves=leaves)

        return FileLoader(
            self.hook_of(self.table),
            StageReference.parse(self.stage),
            lambda paths, work: copier(paths, work).run(),
            lambda paths, work: copier(paths, work).take_back(),
        )

    def _pipe_loader(self, pipe: str, leaves: bool) -> FileLoader:
        target = self._target(pipe)
        why = None if self.files is None else why_not_copy(self.files)
        if why is not None:
            raise ConfigurationError(f"path is 'pipe', and {why}: drop that, or take path='stream'")
        if target.auto_ingest:
            raise ConfigurationError(
                f"pipe {self._full_name(pipe)} has AUTO_INGEST, so that it may load a file as soon as it is "
                "staged, before the channel's token shows it: name a pipe without it in file_pipe=…"
            )

        def ingest(paths: Sequence[str], _: str) -> dict[str, Any]:
            reported = {path: self._reported[path].result() for path in paths if path in self._reported}
            loads = dict(reported)
            if rest := [path for path in paths if path not in reported]:
                value = self._ingested(self._pipe_files(pipe, target, files=rest), leaves=leaves)
                # The paths name units that nobody else loads: what was loaded before, this load has loaded.
                loads |= {**value["loaded_before"], **value["files"]}
            return ingested_value({"pipe": pipe, "loads": loads, "loaded_before": {}})

        return FileLoader(self.hook_of(self.table), target.stage, ingest, pipe=pipe)

    def _pipe(self) -> str:
        if not self.file_pipe:
            raise ConfigurationError(
                "path is 'pipe' and file_pipe is None: name the file pipe of this table in file_pipe=…, "
                "which SnowpipePipeOperator(action='create', …) makes, or set path='copy'"
            )
        if self.options and self.is_pipe_forced:
            raise ConfigurationError(
                f"path is 'pipe' and options is {self.options!r}: these are options of COPY, and a "
                "pipe has those of its own statement; leave them out"
            )
        return self.file_pipe

    def _target(self, pipe: str) -> PipeTarget:
        """What the pipe moves where, which has to be into the task's table."""
        if pipe in self._targets:
            return self._targets[pipe]
        name = self._full_name(pipe)
        target = self.hook_of(self.table).pipe_target(pipe)
        if target is None:
            raise ConfigurationError(
                f"there is no file pipe {name}, or the role may not see it: make it by "
                "SnowpipePipeOperator(action='create', …), check the names letter by letter, or set "
                "path='copy'"
            )
        table = (name.database, name.schema, self.table)
        if target.table != table:
            raise ConfigurationError(
                f"pipe {name} loads into {'.'.join(target.table)}, and the task's table is "
                f"{'.'.join(map(str, table))}: name the pipe of that table in file_pipe=…"
            )
        self._targets[pipe] = target
        return target

    def _full_name(self, pipe: str) -> PipeName:
        return PipeName(*self.hook_of(self.table).database_and_schema(), pipe)

    def _copier(
        self,
        stage: str,
        arguments: Mapping[str, Any],
        files: Sequence[str] | None = None,
        *,
        work: str | None = None,
        leaves: bool,
    ) -> CopyLoad:
        if self.table is None:
            raise ConfigurationError("table is None: name the table that the files are copied into")
        hook = self.hook_of()
        load = CopyLoad(
            hook,
            copy_into(hook, self.table, stage, **arguments),
            StagedChoice(stage, files),
            replace(self.identity, work=work),
            # Of files of this machine those count that have not changed since.
            on_rejected=self.on_rejected if work is None else "report",
            on_nothing="report",
            ledger_table=self.ledger_table,
            leave_worker=self.leave_copy if leaves else None,
            begun=self.begun,
        )
        self.copies.append(load)
        return load

    def _pipe_files(self, pipe: str, target: PipeTarget, **chosen: Any) -> PipeFiles:
        hook = self.hook_of(self.table, pipe)
        return PipeFiles(hook, self._full_name(pipe), stage=str(target.stage), **chosen)

    def _pipe_load(self, files: PipeFiles) -> PipeLoad:
        return PipeLoad(
            files,
            self.table,
            tolerance=Tolerance(self.on_rejected, self.on_rejected),
            on_nothing="report",
            load_timeout=self.load_timeout,
            poll_interval=self.poll_interval,
            ledger_table=self.ledger_table,
        )

    def _ingested(self, files: PipeFiles, *, leaves: bool) -> dict[str, Any]:
        """Have a pipe load the files; the value of a task, in the words of a COPY task."""
        load = self._pipe_load(files)
        leave = partial(self.leave_pipe, load) if leaves and self.leave_pipe is not None else None
        value, loads = load.run(self.identity, self.announce, leave)
        return ingested_value(load.checked(self.identity, value, loads or {}))


# -- What loads the files of a boundary: COPY or a file pipe, from a path in a stage that is its own -----

Load = Callable[[Sequence[str], str], dict[str, Any]]
"""Loads staged files, given by their paths below the loader's path, as a work; what a COPY task returns."""


_PARALLEL = 4
"""Files that are uploaded at a time, each with a session of its own."""


@dataclass(frozen=True, slots=True)
class FileLoader:
    """COPY or a file pipe.

    :param hook: for the stage, and for the table's load history
    :param stage: where files are staged for it, with or without a path
    :param load: has them loaded
    :param take_back: keeps what a work has not committed from being committed; the rows of each file that is,
        by its path below the stage. None for a pipe, which cannot be kept from it
    :param pipe: the pipe, None for COPY
    """

    hook: SnowpipeBulkHook
    stage: StageReference
    load: Load
    take_back: Callable[[Sequence[str], str], Mapping[str, int]] | None = None
    pipe: str | None = None

    def put(self, shares: Sequence[CopyShare]) -> None:
        """Stage the files that are not staged.

        :raises SourcePositionError: if a file changed meanwhile
        """
        chosen = [
            (file, path) for share in shares for file, path in zip(share.files, share.paths, strict=True)
        ]
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            for file, path in chosen:
                link = Path(folder, path)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.path)
            files = [StagedSource(path, file.size, file.path) for file, path in chosen]
            prefix = commonprefix([file.below for file in files])  # noqa: RUF071  LIST takes any start of a path
            # A file that is there is of this very unit, whole or cut by a worker that died.
            staging = Staging(self.stage, if_staged="skip_same")
            self.hook.get_stage_upload(staging, Folder(Path(folder)), prefix, _PARALLEL).run(files)
        for file, _ in chosen:
            now = Path(file.path).stat()
            if (now.st_size, now.st_mtime_ns) != (file.size, file.modified_ns):
                raise SourcePositionError(
                    f"file {file.path!r} was written to while it was staged, from {file.size:,} to "
                    f"{now.st_size:,} bytes: load it when nothing appends to it, or set growing=True, which "
                    "leaves the last file to the stream. Nothing was loaded"
                )

    def ended(self, share: CopyShare) -> dict[str, int]:
        """Rows of the files of a share for which a pipe is known to have ended, by their paths."""
        table, paths = str(self.hook.table), [self.stage.below(path) for path in share.paths]
        known = self.hook.loads_of(table, paths, self.pipe) if share.replaced else ()
        return {load.path: load.rows_loaded for load in known if load.status in FINAL}

    def refuse_changed(self, share: CopyShare, rows: Mapping[str, int]) -> None:
        """Refuse to go on behind a file that has changed since it was given away, unless that has failed.

        :param rows: rows of its former content that are in the table, by path below the stage
        :raises SourcePositionError: if there is one
        """
        for file, path in zip(share.files, share.paths, strict=True):
            known = rows.get(self.stage.below(path))
            if file.unit not in share.replaced or known == 0:
                continue
            loader = "COPY" if self.pipe is None else f"pipe {self.pipe!r}"
            what = f"may load its former content, staged as {path!r}"
            if known is not None:
                what = f"has loaded {known:,} rows of its former content"
            raise SourcePositionError(
                f"channel {share.position.channel!r}: file {file.name!r} has changed, and {loader} {what}. "
                "Bring that content back; or remove these rows, and set the channel's token to the row "
                "before. Nothing else was loaded"
            )

    def refuse_forgotten(self, shares: Sequence[CopyShare], value: Mapping[str, Any]) -> None:
        """Refuse to go on behind files that are staged, and that COPY has not loaded.

        :raises SourcePositionError: if there is one
        """
        left_out = {path for path, one in value["loaded_before"].items() if one["status"] == LOAD_SKIPPED}
        for share in shares:
            for file, path in zip(share.files, share.paths, strict=True):
                if self.stage.below(path) in left_out:
                    raise SourcePositionError(
                        f"channel {share.position.channel!r}: COPY has left out file {file.name!r}, staged "
                        f"as {path!r}, and nothing shows that it was loaded: after {COPY_MEMORY.days} days "
                        "COPY does not know. Where its rows are not in the table, run again with "
                        "options={'load_uncertain_files': True}; where they are, set the channel's token to "
                        f"{share.end!r}"
                    )

    def loads_of(self, paths: Iterable[str], value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """What became of files, by their paths; a pipe reports paths below its location."""
        loads = {**value["loaded_before"], **value["files"]}
        found = {path: loads.get(self.stage.below(path)) or loads.get(path) for path in paths}
        return {path: load for path, load in found.items() if load is not None}


# -- Loading what is left of a source's files, and moving the channels' tokens behind them ---------------

_NOTHING: dict[str, Any] = {
    "rows_loaded": 0,
    "rejected": 0,
    "files": {},
    "loaded_before": {},
    "bytes": 0,
    "channels": {},
}


def load_files(
    boundary: FileBoundary,
    loader_of: Callable[[str | None], FileLoader],
    on_rejected: str,
    *,
    pipe: str | None = None,
    begun_only: bool = False,
) -> dict[str, Any]:
    """Load what is left of a source's files, and move the channels' tokens behind them.

    A load that has begun is ended first and by the same loader: a pipe may still have the files in its queue.

    :param on_rejected: ``fail`` refuses files that were loaded in part
    :param pipe: the pipe that is to take the files, None for COPY
    :param begun_only: True ends loads that have begun, and no more
    :return: as of a COPY task, and ``bytes`` of the files and ``channels``
    """
    boundary.open_channels()
    value: dict[str, Any] = _NOTHING
    begun: dict[tuple[str, str | None], list[CopyShare]] = {}
    for share in boundary.begun():
        begun.setdefault((share.hold.work, share.hold.pipe), []).append(share)
    for (_, name), own in begun.items():
        value = joined_value(value, _ended(boundary, loader_of(name), own, on_rejected))
        boundary.list_again()
    shares = [] if begun_only else boundary.shares(pipe)
    if not shares:
        return value
    loader = loader_of(pipe)
    loader.put(shares)
    boundary.promise(shares)
    try:
        return joined_value(value, _loaded(boundary, loader, shares, on_rejected))
    except SnowpipeError as error:
        if not error.retryable or isinstance(error, GivenUpError):
            with suppress(OffsetTokenMovedError):  # another task has put them back
                _taken_back(boundary, loader, shares)
        raise


def _ended(
    boundary: FileBoundary, loader: FileLoader, shares: Sequence[CopyShare], on_rejected: str
) -> dict[str, Any]:
    """End a load that has begun: with its rows in the table, or with the tokens from before it."""
    channel, hold = shares[0].position.channel, shares[0].hold
    if loader.pipe is not None and hold.since < dt.datetime.now(dt.UTC).date() - REMEMBERED:
        raise SourcePositionError(
            f"channel {channel!r}: pipe {loader.pipe!r} was given files on {hold.since}, and neither pipe "
            "nor load history remembers loads of more than 14 days ago: see which of their rows are in the "
            f"table, and set the channel's token to {shares[0].end!r} if all are, or to "
            f"{shares[0].before or 'the first row'!r} if none is. Nothing was loaded"
        )
    try:
        return _loaded(boundary, loader, shares, on_rejected)
    except SnowpipeError as error:
        # These files can come into the table by another load only.
        may_pass = error.retryable and not isinstance(error, NothingStagedError | GivenUpError)
        if may_pass or not _taken_back(boundary, loader, shares):
            raise
        log.warning("a load that had begun cannot be ended, and its files are planned again: %s", error)
    return _NOTHING


def _taken_back(boundary: FileBoundary, loader: FileLoader, shares: Sequence[CopyShare]) -> bool:
    """Put the tokens back to what is loaded of a load that has failed; False where the tokens stay."""
    if loader.take_back is None:
        return False
    paths = [path for share in shares for path in share.paths]
    done = loader.take_back(paths, shares[0].hold.work)
    loaded = {path for path in paths if loader.stage.below(path) in done}
    first = {path for share in shares for path in takewhile(loaded.__contains__, share.paths)}
    has_changed = any(
        file.unit in share.replaced and path in loaded
        for share in shares
        for file, path in zip(share.files, share.paths, strict=True)
    )
    # A file that is loaded behind one that is not has no token, nor has one that is loaded and has changed.
    # Where all are loaded, the error is one of policy.
    if loaded != first or has_changed or len(loaded) == len(paths):
        return False
    boundary.settle(shares, loaded)
    return True


def _loaded(
    boundary: FileBoundary, loader: FileLoader, shares: Sequence[CopyShare], on_rejected: str
) -> dict[str, Any]:
    for share in shares if loader.pipe is not None else ():
        loader.refuse_changed(share, loader.ended(share))
    chosen = [
        (file, path)
        for share in shares
        for file, path in zip(share.files, share.paths, strict=True)
        if file.unit not in share.replaced
    ]
    work, every = shares[0].hold.work, [path for share in shares for path in share.paths]
    value = loader.load([path for _, path in chosen], work) if chosen else _NOTHING
    loads = loader.loads_of(every, value)
    if loader.take_back is not None:
        rows = {loader.stage.below(path): int(one["rows_loaded"]) for path, one in loads.items()}
        if not chosen:  # what is running still might be committed
            rows = dict(loader.take_back(every, work))
        for share in shares:
            loader.refuse_changed(share, dict.fromkeys(map(loader.stage.below, every), 0) | rows)
    if missing := [path for _, path in chosen if path not in loads]:
        raise GivenUpError(
            f"{len(missing):,} of {len(chosen):,} files were not loaded into {boundary.table}, such as "
            f"{missing[0]!r}: another task has given this load up meanwhile. Run again"
        )
    found = tuple(FileLoad.from_result(path, loads[path]) for _, path in chosen)
    # ON_ERROR = SKIP_FILE leaves rows out that the stream would load.
    leaves_out = any(one.rows_parsed > one.rows_loaded + one.errors_seen for one in found)
    CopyOutcome(found).require("fail" if leaves_out else on_rejected, boundary.table)
    loader.refuse_forgotten(shares, value)
    ends = boundary.settle(shares, frozenset(every))
    channels = {
        share.position.channel: {
            "partition": share.position.partition,
            "from": share.before,
            "to": ends[share.position.channel],
            "files": len(share.files),
            "rows": sum(int(loads[path]["rows_loaded"]) for path in share.paths if path in loads),
            "rejected": sum(int(loads[path]["errors_seen"]) for path in share.paths if path in loads),
        }
        for share in shares
    }
    return {**value, "bytes": sum(file.size for file, _ in chosen), "channels": channels}


def joined_value(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join what an interrupted load had done with what its successor did; both as a COPY task's value."""
    channels = dict(first["channels"])
    for name, one in second["channels"].items():
        before = channels.get(name, {"from": one["from"], "files": 0, "rows": 0, "rejected": 0})
        sums = {key: before[key] + one[key] for key in ("files", "rows", "rejected")}
        channels[name] = {**one, "from": before["from"], **sums}
    return {
        "rows_loaded": first["rows_loaded"] + second["rows_loaded"],
        "rejected": first["rejected"] + second["rejected"],
        "files": {**first["files"], **second["files"]},
        "loaded_before": {**first["loaded_before"], **second["loaded_before"]},
        "bytes": first["bytes"] + second["bytes"],
        "channels": channels,
    }


def ingested_value(ingested: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a task that gave files to a pipe, with what became of them in the words of a COPY task."""
    loads = ingested["loads"]
    return {
        "pipe": ingested["pipe"],
        "rows_loaded": sum(int(load["rows_loaded"]) for load in loads.values()),
        "rejected": sum(int(load["errors_seen"]) for load in loads.values()),
        "files": dict(loads),
        "loaded_before": dict(ingested["loaded_before"]),
    }
