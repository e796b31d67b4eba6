"""Loading files by COPY or by a file pipe, for a task that has chosen one of the two."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyOutcome, StagedChoice
from airflow_provider_snowpipe.bulk.files_watch import Tolerance, load_failure
from airflow_provider_snowpipe.bulk.load_history import COPY_MEMORY, OVERLAP, REMEMBERED
from airflow_provider_snowpipe.bulk.pipe_load import PipeFiles, PipeLoad
from airflow_provider_snowpipe.bulk.stage import ContentPath, Staging, loaded_contents
from airflow_provider_snowpipe.bulk.stage import SourceFile as StagedSource
from airflow_provider_snowpipe.bulk.staged_files import COPY_HISTORY, FileLoad, StageReference, staged_at
from airflow_provider_snowpipe.hooks.bulk import Folder, SnowpipeBulkHook
from airflow_provider_snowpipe.operators.copy import CopyLoad, LeaveWorker, copy_into
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.spark.submit.copy_rows import copy_arguments, why_not_copy
from airflow_provider_snowpipe.spark.submit.file_boundary import (
    CopyShare,
    loaded_since,
    refuse_loaded,
    refuse_waiting,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.bulk.file_pipe import Submission
    from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget
    from airflow_provider_snowpipe.sources import FileSource
    from airflow_provider_snowpipe.spark.submit.file_boundary import FileBoundary


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
    _copying: CopyLoad | None = field(default=None, init=False)
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
        return load_files(
            boundary,
            # Another loader's load is waited for here: it is not known again when the task comes back.
            lambda name: self._loader(name, leaves=name == pipe),
            self.on_rejected,
            pipe=pipe,
        )

    def finish(self, boundary: FileBoundary) -> None:
        """Load what an interrupted load was to take, and no more."""
        # What is to be streamed afterwards would be forgotten with the worker.
        load_files(
            boundary,
            lambda name: self._loader(name, leaves=False),
            self.on_rejected,
            promised_only=True,
        )

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
        if self._copying is not None:
            self._copying.stop()

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

        def copy(paths: Sequence[str]) -> dict[str, Any]:
            return self._copier(self.stage, arguments, paths, leaves=leaves).run()

        return FileLoader(self.hook_of(self.table), StageReference.parse(self.stage), copy)

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

        def ingest(paths: Sequence[str]) -> dict[str, Any]:
            value = self._ingested(self._pipe_files(pipe, target, files=list(paths)), leaves=leaves)
            # The paths name content that nobody else loads: what was loaded before, this load has loaded.
            loads = {**value["loaded_before"], **value["files"]}
            rows = sum(int(load["rows_loaded"]) for load in loads.values())
            return {**value, "rows_loaded": rows, "files": loads, "loaded_before": {}}

        return FileLoader(self.hook_of(self.table), target.stage, ingest, pipe, self._reported)

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
        self, stage: str, arguments: Mapping[str, Any], files: Sequence[str] | None = None, *, leaves: bool
    ) -> CopyLoad:
        if self.table is None:
            raise ConfigurationError("table is None: name the table that the files are copied into")
        hook = self.hook_of()
        self._copying = CopyLoad(
            hook,
            copy_into(hook, self.table, stage, **arguments),
            StagedChoice(stage, files),
            self.identity,
            on_rejected=self.on_rejected,
            on_nothing="report",
            ledger_table=self.ledger_table,
            leave_worker=self.leave_copy if leaves else None,
            begun=self.begun,
        )
        return self._copying

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

Load = Callable[[Sequence[str]], dict[str, Any]]
"""Loads staged files, given by their paths below the loader's path; what a COPY task returns."""


_PARALLEL = 4
"""Files that are uploaded at a time, each with a session of its own."""


@dataclass(frozen=True, slots=True)
class FileLoader:
    """COPY or a file pipe.

    :param hook: for the table's load history and for the stage
    :param stage: where files are staged for it, with or without a path
    :param load: has them loaded
    :param pipe: the pipe, None for COPY
    :param reported: loads that load history may not know yet, by the files' paths below the stage
    """

    hook: SnowpipeBulkHook
    stage: StageReference
    load: Load
    pipe: str | None = None
    reported: Mapping[str, FileLoad] = field(default_factory=dict)

    def loaded(self, shares: Sequence[CopyShare]) -> dict[str, FileLoad]:
        """The loads by an interrupted run, by path below the stage.

        :raises FilesGivenTwiceError: if files are loaded that are not to be, by the channel's token
        :raises SourcePositionError: if a file has changed after it was loaded, or may be loaded still
        """
        table = str(self.hook.table)
        fresh = [share for share in shares if share.position.intent is None]
        if fresh:
            known = self._known_loads(table, fresh)
            for share in fresh:
                refuse_loaded(share, loaded_contents(share.paths, known))
        begun = [share for share in shares if share.position.intent is not None]
        found: dict[str, FileLoad] = {}
        if begun:
            self._require_remembered(begun)
            # A pipe may have been given a former content of a file, which may have ended at any time.
            since = None if self.pipe else min(share.intent.since for share in begun) - OVERLAP
            history = [FileLoad.read(row, COPY_HISTORY) for row in self.hook.past_loads(table, since)]
            own = [load for load in history if load.pipe == self._own_name]
            for share in begun:
                found |= loaded_since(share, own)
                found |= {
                    one.path: self.reported[one.path] for one in share.paths if one.path in self.reported
                }
                if self.pipe is not None:
                    refuse_waiting(share, self._staged(share), history, self.pipe)
        return found

    def put(self, shares: Sequence[CopyShare], loaded: Mapping[str, FileLoad]) -> list[str]:
        """Stage the files that are not loaded; their paths below the loader's path.

        :raises SourcePositionError: if a file grew meanwhile
        """
        chosen = [
            (file, path)
            for share in shares
            for file, path in zip(share.files, share.paths, strict=True)
            if path.path not in loaded
        ]
        if not chosen:
            return []
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            for file, path in chosen:
                link = Path(folder, path.path)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.path)
            files = [StagedSource(path.path, file.size, file.path) for file, path in chosen]
            prefix = commonprefix([file.below for file in files])  # noqa: RUF071  LIST takes any start of a path
            # What has that path has that content.
            staging = Staging(self.stage, if_staged="skip")
            self.hook.get_stage_upload(staging, Folder(Path(folder)), prefix, _PARALLEL).run(files)
        for file, _ in chosen:
            if (size := Path(file.path).stat().st_size) != file.size:
                raise SourcePositionError(
                    f"file {file.path!r} grew from {file.size:,} to {size:,} bytes while it was staged: load "
                    "it when nothing appends to it, or set growing=True, which leaves the last file to the "
                    "stream. Nothing was loaded"
                )
        return [path.path for _, path in chosen]

    def refuse_forgotten(self, shares: Sequence[CopyShare], value: Mapping[str, Any]) -> None:
        """Refuse to go on behind files that COPY has left out because it cannot know any more of their loads.

        :raises SourcePositionError: if there is one
        """
        left_out = {path for path, one in value["loaded_before"].items() if one["status"] == LOAD_SKIPPED}
        before = dt.datetime.now(dt.UTC) - COPY_MEMORY
        for share in shares:
            left = {path.path: path.name for path in share.paths if self.below(path) in left_out}
            if not left:
                continue
            for row in self.hook.list_files(str(self.stage), f"{share.paths[0].folder}/"):
                content, since = ContentPath.read(str(row["name"])), staged_at(row.get("last_modified"))
                if content is not None and content.path in left and since is not None and since < before:
                    raise SourcePositionError(
                        f"channel {share.position.channel!r}: COPY has left out file {left[content.path]!r}, "
                        f"staged as {row['name']!r} at {since:%Y-%m-%d %H:%M %Z}: after "
                        f"{COPY_MEMORY.days} days it does not know whether it has loaded it. Where its rows "
                        "are not in the table, run again with options={'load_uncertain_files': True}; where "
                        f"they are, set the channel's token to {share.end!r}"
                    )

    def rows_of(self, share: CopyShare, value: Mapping[str, Any], counted: str = "rows_loaded") -> int:
        """Rows of a share that are in the table, or another count of the loads of its files."""
        loads = {**value["loaded_before"], **value["files"]}
        found = (loads.get(self.below(path)) or loads.get(path.path) for path in share.paths)
        return sum(int(load[counted]) for load in found if load)

    def below(self, path: ContentPath) -> str:
        """A file's path below the stage itself."""
        return self.stage.below(path.path)

    def _known_loads(self, table: str, fresh: Sequence[CopyShare]) -> list[FileLoad]:
        """Loads of files that are to be loaded for the first time; a pipe has no memory of COPY's own.

        A channel without a token may be one that was deleted after 30 idle days: then the loads may be older
        than what the information schema knows.
        """
        known = self.hook.loads_of(table, [self.below(one) for share in fresh for one in share.paths])
        untold = [
            self.below(one) for share in fresh if share.position.committed is None for one in share.paths
        ]
        if self.pipe is None or not untold:
            return known
        return [*self.hook.older_copies(table, untold), *known]

    @property
    def _own_name(self) -> str | None:
        """The loader, as load history names it."""
        return None if self.pipe is None else str(PipeName(*self.hook.database_and_schema(), self.pipe))

    def _staged(self, share: CopyShare) -> list[str]:
        """The files that are staged for the share's channel, as LIST names them."""
        folder = f"{share.paths[0].folder}/"
        return [str(row["name"]) for row in self.hook.list_files(str(self.stage), folder)]

    def _require_remembered(self, shares: Sequence[CopyShare]) -> None:
        oldest = min(shares, key=lambda share: share.intent.since)
        if self.pipe is not None and oldest.intent.since < dt.datetime.now(dt.UTC) - REMEMBERED:
            raise SourcePositionError(
                f"channel {oldest.position.channel!r}: pipe {self.pipe!r} was given files up to "
                f"{oldest.intent.last_file!r} at {oldest.intent.since:%Y-%m-%d %H:%M:%S %Z}, and neither "
                "pipe nor load history remembers loads of more than 14 days ago: see which of their rows are "
                f"in the table, and set the channel's token to {oldest.end!r} if all are, or to "
                f"{oldest.intent.after or 'the first row'!r} if none is. Nothing was loaded"
            )


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
    promised_only: bool = False,
) -> dict[str, Any]:
    """Load what is left of a source's files, and move the channels' tokens behind them.

    What an interrupted load was to take comes first and by itself, and by the same loader: so that a try of
    the same run finds the statement of the one before, which may still run, and because a pipe may still have
    the files in its queue.

    :param on_rejected: ``fail`` refuses files that an interrupted load has loaded in part
    :param pipe: the pipe that is to take the files, None for COPY
    :param promised_only: True for what an interrupted load was to take, and no more
    :return: as of a COPY task, and ``bytes`` of the files and ``channels``
    """
    boundary.open_channels()
    begun = boundary.shares(promised_only=True)
    value: dict[str, Any] = _NOTHING
    for name in dict.fromkeys(share.intent.pipe for share in begun):
        own = [share for share in begun if share.intent.pipe == name]
        value = _joined(value, _loaded(boundary, loader_of(name), own, on_rejected))
    if promised_only:
        return value
    return _joined(value, _loaded(boundary, loader_of(pipe), boundary.shares(pipe), on_rejected))


def _loaded(
    boundary: FileBoundary, loader: FileLoader, shares: Sequence[CopyShare], on_rejected: str
) -> dict[str, Any]:
    if not shares:
        return _NOTHING
    before = loader.loaded(shares)
    missing = loader.put(shares, before)
    boundary.promise(shares)
    outcome = CopyOutcome(tuple(before.values()))
    outcome.require(on_rejected, boundary.table)
    value = outcome.result()
    if missing:
        value = copied_value(value, loader.load(missing))
        loader.refuse_forgotten(shares, value)
    ends = boundary.settle(shares)
    channels = {
        share.position.channel: {
            "partition": share.position.partition,
            "from": share.intent.after,
            "to": ends[share.position.channel],
            "files": len(share.files),
            "rows": loader.rows_of(share, value),
            "rejected": loader.rows_of(share, value, "errors_seen"),
        }
        for share in shares
    }
    size = sum(file.size for share in shares for file in share.files)
    return {**value, "bytes": size, "channels": channels}


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    channels = dict(first["channels"])
    for name, one in second["channels"].items():
        before = channels.get(name, {"from": one["from"], "files": 0, "rows": 0, "rejected": 0})
        sums = {key: before[key] + one[key] for key in ("files", "rows", "rejected")}
        channels[name] = {**one, "from": before["from"], **sums}
    return {
        **copied_value(first, second),
        "bytes": first["bytes"] + second["bytes"],
        "channels": channels,
    }


def copied_value(before: Mapping[str, Any], copied: Mapping[str, Any]) -> dict[str, Any]:
    """Join what an interrupted COPY had loaded with what its successor did; both as a COPY task's value."""
    return {
        "rows_loaded": before["rows_loaded"] + copied["rows_loaded"],
        "rejected": before["rejected"] + copied["rejected"],
        "files": {**before["files"], **copied["files"]},
        "loaded_before": {**before["loaded_before"], **copied["loaded_before"]},
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
