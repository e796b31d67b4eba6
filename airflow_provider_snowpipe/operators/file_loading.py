"""Loading files by COPY or by a file pipe, for a task that has chosen one of the two."""

from __future__ import annotations

import datetime as dt
import gzip
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_snowpipe.bulk.copy import LOAD_SKIPPED, CopyOutcome, LogEntry, StagedChoice
from airflow_provider_snowpipe.bulk.copy_run import LeaveWorker
from airflow_provider_snowpipe.bulk.files_watch import Tolerance, load_failure
from airflow_provider_snowpipe.bulk.ledger import LedgerName
from airflow_provider_snowpipe.bulk.ledger_entry import GivenUpError
from airflow_provider_snowpipe.bulk.load_history import COPY_MEMORY, REMEMBERED
from airflow_provider_snowpipe.bulk.pipe_load import PipeFiles, PipeLoad
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.bulk.stage import SourceFile as StagedSource
from airflow_provider_snowpipe.bulk.stage import Staging
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.links.snowpipe import leaving_copies
from airflow_provider_snowpipe.operators.copy import CopyLoad, copy_into
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.spark.submit.copy_rows import copy_arguments, row_options, why_rows_are_staged
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    FilesRejectedError,
    NothingStagedError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.copy import RunIdentity
    from airflow_provider_snowpipe.bulk.file_pipe import Submission
    from airflow_provider_snowpipe.bulk.file_pipe_admin import PipeTarget
    from airflow_provider_snowpipe.sources import FileSource
    from airflow_provider_snowpipe.spark.submit.file_units import FileUnits, GivenLoad, SourceFile

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
    :param keep_log: keeps which log has given files, before one of them is loaded
    :param leave_copy: leaves the worker while COPY runs, None to wait here
    :param leave_pipe: leaves the worker while a pipe loads, None to wait here
    :param ledger_table: as of :class:`SnowpipeCopyOperator`
    :param begun: versions of ledger entries when the task was deferred for a COPY
    :param is_back: True where the task has left the worker before
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
    keep_log: Callable[[FileUnits], None]
    leave_copy: LeaveWorker | None
    leave_pipe: Callable[[PipeLoad, Submission, dict[str, Any]], NoReturn] | None
    ledger_table: str | None
    begun: Mapping[str, int] | None
    is_back: bool
    _reported: Mapping[str, FileLoad] = field(default_factory=dict, init=False)
    """What the pipe's trigger has reported of files, by their paths below the pipe's location."""
    copies: list[CopyLoad] = field(default_factory=list, init=False)
    """Its COPYs, in their order."""

    def run(self, path: LoadPath, units: FileUnits | None) -> dict[str, Any]:
        """Load the files.

        :param units: files of this machine, None for files in a stage
        :return: as of the operator of the path, and ``bytes`` and ``partitions``
        :raises ConfigurationError: if the files cannot go this way
        """
        if units is None:
            value = self._staged_by_pipe() if path is LoadPath.PIPE else self._staged_by_copy()
            return {**value, "bytes": None, "partitions": {}}
        pipe, leaves = self._pipe() if path is LoadPath.PIPE else None, not units.source.given()
        new = self._loader(pipe, leaves=leaves and not self.is_back)  # what is wrong shows before it begins
        value = self.finish(units, pipe)
        given = units.give(pipe, str(new.stage))
        if given is None:
            units.source.end({}, ())
            return value
        self.keep_log(units)
        return joined_value(value, new.do(units, given, self.on_rejected, is_new=True))

    def finish(self, units: FileUnits, leaves_for: str | None = "") -> dict[str, Any]:
        """End loads that have begun, each by its own loader: a pipe may still have the files in its queue.

        :param leaves_for: the loader for which the task has left the worker once and may leave it again
        """
        value: dict[str, Any] = _NOTHING
        for given in units.source.given():
            pipe = given.loader.pipe
            try:
                leaves = self.is_back and pipe == leaves_for
                loader = self._loader(pipe, leaves=leaves, stage=given.loader.stage)
            except ConfigurationError as error:
                if pipe is None:
                    raise
                log.warning("a load that had begun cannot go on: %s", error)
                hook, here, take_back = self.hook_of(self.table), self.stage, self._takes_back(pipe)
                gone = FileLoader(hook, StageReference.parse(here), lambda *_: _NOTHING, take_back)
                gone.give_up(units, given, self.on_rejected, is_over=True)
            else:
                value = joined_value(value, loader.do(units, given, self.on_rejected))
            units.list_again()
        return value

    def after_pipe(
        self, event: Mapping[str, Any], submitted: Mapping[str, Any], units: FileUnits | None
    ) -> dict[str, Any]:
        """Go on after the triggerer has waited for a pipe.

        :param units: files of this machine, None for files in a stage
        """
        if event["status"] != "success":
            raise load_failure(event["reason"], event["message"])
        if units is None:
            pipe = self._pipe()
            load = self._pipe_load(self._pipe_files(pipe, self._target(pipe), passes_over=True))
            value = ingested_value(load.checked(self.identity, submitted, event["files"]))
            return {**value, "bytes": None, "partitions": {}}
        self._reported = {path: FileLoad.from_result(path, one) for path, one in event["files"].items()}
        return self.run(LoadPath.PIPE, units)

    def leaving_copies(self, context: Context) -> AbstractContextManager[None]:
        """Leave what the ledger has of its COPYs for the Snowpipe page."""
        return leaving_copies(context, self.hook_of(self.table), self.copies)

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

    def _loader(self, pipe: str | None, *, leaves: bool, stage: str = "") -> FileLoader:
        """The loader of files; of those that are staged already, from where they are."""
        if pipe is not None:
            return self._pipe_loader(pipe, leaves, stage)
        if self.files is None:
            raise ConfigurationError(f"source is {self.source!r}: only files are copied")
        arguments = copy_arguments(self.files, self.options)

        place = StageReference.parse(stage or self.stage)

        def copier(given: GivenLoad) -> CopyLoad:
            return self._copier(str(place), arguments, given, leaves=leaves)

        def take_back(given: GivenLoad) -> dict[str, FileLoad]:
            done, whole = copier(given).take_back(), {place.below(path): path for path in given.paths}
            return {whole[path]: load for path, load in done.items() if path in whole}

        def load(given: GivenLoad, planned: Callable[[], None]) -> dict[str, Any]:
            return copier(given).run(planned)

        return FileLoader(self.hook_of(self.table), place, load, take_back)

    def _pipe_loader(self, pipe: str, leaves: bool, stage: str) -> FileLoader:
        target = self._target(pipe)
        if stage not in ("", str(target.stage)):
            raise ConfigurationError(f"pipe {self._full_name(pipe)} loads from {target.stage}, not {stage}")
        why = None if self.files is None else why_rows_are_staged(self.files)
        if self.files is not None and why is not None:
            needed = row_options(self.files, {})
            if found := RowOptions.of_statement(target.statement).differences(needed, {"GZIP"}):
                raise ConfigurationError(
                    f"{why}, so that rows are staged as NDJSON, and pipe {self._full_name(pipe)} would read "
                    f"them otherwise: {'; '.join(map(str, found))}. Make one for NDJSON, or take path='copy'"
                )
        if target.auto_ingest:
            raise ConfigurationError(
                f"pipe {self._full_name(pipe)} has AUTO_INGEST, so that it may load a file that is "
                "staged for somebody else: name a pipe without it in file_pipe=…"
            )

        def ingest(given: GivenLoad, planned: Callable[[], None]) -> dict[str, Any]:
            reported = {path: self._reported[path].result() for path in given.paths if path in self._reported}
            loads = dict(reported)
            if rest := [path for path in given.paths if path not in reported]:
                files = self._pipe_files(pipe, target, files=rest)
                value = self._ingested(files, leaves=leaves, given=given, planned=planned)
                # The paths name units that nobody else loads: what was loaded before, this load has loaded.
                loads |= {**value["loaded_before"], **value["files"]}
            else:
                done = self._pipe_load(self._pipe_files(pipe, target, files=list(reported)), given)
                done.checked(self._identity_of(given), {"pipe": pipe, "loaded_before": {}}, reported)
            return ingested_value({"pipe": pipe, "loads": loads, "loaded_before": {}})

        return FileLoader(self.hook_of(self.table), target.stage, ingest, self._takes_back(pipe))

    def _takes_back(self, pipe: str) -> Callable[[GivenLoad], Mapping[str, FileLoad]]:
        files = PipeFiles(self.hook_of(self.table, pipe), self._full_name(pipe))
        return lambda given: self._pipe_load(files, given).take_back(self._identity_of(given), given.paths)

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
        return target

    def _full_name(self, pipe: str) -> PipeName:
        return PipeName(*self.hook_of(self.table).database_and_schema(), pipe)

    def _copier(
        self, stage: str, arguments: Mapping[str, Any], given: GivenLoad | None = None, *, leaves: bool
    ) -> CopyLoad:
        if self.table is None:
            raise ConfigurationError("table is None: name the table that the files are copied into")
        hook = self.hook_of()
        load = CopyLoad(
            hook,
            copy_into(hook, self.table, stage, **arguments),
            StagedChoice(stage, None if given is None else list(given.paths)),
            self._identity_of(given),
            # Of files of this machine those count that were not loaded before.
            on_rejected=self.on_rejected if given is None else "report",
            on_nothing="report",
            ledger_table=self._ledger_of(given),
            leave_worker=self.leave_copy if leaves else None,
            begun=self.begun if leaves else None,
        )
        if given is not None:
            below = load.choice.below
            load.details = lambda paths: given.details({below(path) for path in paths})
        self.copies.append(load)
        return load

    def _identity_of(self, given: GivenLoad | None) -> RunIdentity:
        if given is None:
            return self.identity
        entry = LogEntry(given.source, given.log_id, given.entry)
        return replace(self.identity, work=f"{entry.log}/{entry.number}", entry=entry)

    def _ledger_of(self, given: GivenLoad | None) -> LedgerName:
        """The ledger of a load: files of a source log have the one that the log names."""
        return self.ledger_table if given is None else given.loader.ledger

    def _pipe_files(self, pipe: str, target: PipeTarget, **chosen: Any) -> PipeFiles:
        hook = self.hook_of(self.table, pipe)
        return PipeFiles(hook, self._full_name(pipe), stage=str(target.stage), **chosen)

    def _pipe_load(self, files: PipeFiles, given: GivenLoad | None = None) -> PipeLoad:
        return PipeLoad(
            files,
            self.table,
            details="" if given is None else given.details(given.paths),
            tolerance=Tolerance(self.on_rejected, self.on_rejected),
            on_nothing="report",
            load_timeout=self.load_timeout,
            poll_interval=self.poll_interval,
            ledger_table=self._ledger_of(given),
        )

    def _ingested(
        self,
        files: PipeFiles,
        *,
        leaves: bool,
        given: GivenLoad | None = None,
        planned: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Have a pipe load the files; the value of a task, in the words of a COPY task."""
        load, identity = self._pipe_load(files, given), self._identity_of(given)
        leave = partial(self.leave_pipe, load) if leaves and self.leave_pipe is not None else None
        value, loads = load.run(identity, self.announce, leave, planned)
        return ingested_value(load.checked(identity, value, loads or {}))


# -- What loads the files of a source log: COPY or a file pipe, from a path in a stage that is its own ----

_PARALLEL = 4
"""Files that are uploaded at a time, each with a session of its own."""
_LEVEL = 1
"""Of gzip: rows are compressed once, and read once."""


@dataclass(frozen=True, slots=True)
class UnitFiles:
    """Files under names that PUT takes as they are, or their rows as NDJSON in their place.

    :param files: by their names in the stage
    :param read: reads the rows of a file; None stages the file
    """

    files: Mapping[str, SourceFile]
    read: Callable[[SourceFile], Iterable[bytes | memoryview]] | None

    @contextmanager
    def local(self, file: StagedSource) -> Iterator[Path]:
        """A link to the file, or a file with its rows, which end with a new line."""
        with TemporaryDirectory(prefix="snowpipe-put-") as folder:
            if self.read is None:
                link = Path(folder, file.name)
                link.symlink_to(self.files[file.below].path)
                yield link
                return
            written = Path(folder, f"{file.name}.gz")
            with written.open("wb") as out, gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) as packed:
                for block in self.read(self.files[file.below]):
                    packed.write(block)
                    if block[-1:] != b"\n":
                        packed.write(b"\n")
            yield written


@dataclass(frozen=True, slots=True)
class FileLoader:
    """COPY or a file pipe.

    :param hook: for the stage
    :param stage: where files are staged for it, with or without a path
    :param load: has staged files loaded, and calls when that is in the ledger; what a COPY task returns
    :param take_back: keeps files from being loaded that are not; the loads of the others, by path
    """

    hook: SnowpipeBulkHook
    stage: StageReference
    load: Callable[[GivenLoad, Callable[[], None]], dict[str, Any]]
    take_back: Callable[[GivenLoad], Mapping[str, FileLoad]]

    def do(
        self, units: FileUnits, given: GivenLoad, on_rejected: str, *, is_new: bool = False
    ) -> dict[str, Any]:
        """Do a new load, or end one that has begun: its rows are in the table then, or it is given up.

        Files of a load that is given up are planned again; the error of a new one comes back.

        :param on_rejected: ``fail`` refuses files that were loaded in part
        :return: as of a COPY task, and ``bytes`` of the files and ``partitions``
        """
        is_forgotten = given.loader.pipe is not None and given.since < dt.datetime.now(dt.UTC) - REMEMBERED
        if given.gone or given.changed or (is_forgotten and not is_new):
            self.give_up(units, given, on_rejected, is_over=True)
            return _NOTHING
        try:
            return self._loaded(units, given, on_rejected)
        except SnowpipeError as error:
            may_pass = error.retryable and not isinstance(error, NothingStagedError | GivenUpError)
            is_final = not (may_pass or isinstance(error, FilesRejectedError))  # whose rows may be there
            # These files can come into the table by another load only.
            if not (is_final and self.give_up(units, given, on_rejected)) or is_new:
                raise
            log.warning("a load that had begun cannot be ended, and its files are planned again: %s", error)
        return _NOTHING

    def give_up(self, units: FileUnits, given: GivenLoad, on_rejected: str, *, is_over: bool = False) -> bool:
        """Keep the files of a load that are not loaded from being loaded by it; False where all are.

        :param is_over: True ends a load with all its files in the table; its error has to come back otherwise
        :raises SourcePositionError: if one is gone, and no row of it is in the table
        :raises FilesRejectedError: if rows of one that is loaded were rejected
        """
        done = self.take_back(given)
        self.refuse_forgotten(given, {self.stage.below(path): load.status for path, load in done.items()})
        is_done = {one.number for one in given.units_of(done)}
        lost = [file.path for file in given.files if file.unit in given.gone - is_done]
        if lost and not units.may_lose:
            raise SourcePositionError(
                f"{len(lost):,} files that {given.loader} was given and has not loaded are gone, such "
                f"as {lost[0]!r}. Nothing was loaded. Bring them back, or set on_data_loss='skip' to go on "
                "without their rows"
            )
        CopyOutcome(tuple(done.values())).require(on_rejected, units.table)
        left = set(given.paths) - done.keys()
        if left or is_over:
            units.end(given, {path: load.rows_loaded for path, load in done.items()}, left)
        return bool(left)

    def _loaded(self, units: FileUnits, given: GivenLoad, on_rejected: str) -> dict[str, Any]:
        self.put(units, given)
        value = self.load(given, units.source.require_written)
        done = {**value["loaded_before"], **value["files"]}  # a pipe reports paths below its location
        loads: dict[str, Any] = {
            path: done.get(self.stage.below(path)) or done.get(path) for path in given.paths
        }
        if missing := [path for path, load in loads.items() if load is None]:
            raise GivenUpError(
                f"{len(missing):,} of {len(given.paths):,} files were not loaded into {units.table}, such as "
                f"{missing[0]!r}: another task has given this load up meanwhile. Run again"
            )
        found = tuple(FileLoad.from_result(path, loads[path]) for path in given.paths)
        # ON_ERROR = SKIP_FILE leaves rows out that the stream would load.
        leaves_out = any(one.rows_parsed > one.rows_loaded + one.errors_seen for one in found)
        CopyOutcome(found).require("fail" if leaves_out else on_rejected, units.table)
        self.refuse_forgotten(given, {path: one["status"] for path, one in value["loaded_before"].items()})
        units.end(given, {one.path: one.rows_loaded for one in found})
        rows = Counter[str]()
        for (unit, _), one in zip(given.units, found, strict=True):
            rows[unit.partition] += one.rows_loaded
        return {**value, "bytes": sum(file.size for file in given.files), "partitions": rows}

    def put(self, units: FileUnits, given: GivenLoad) -> None:
        """Stage the files that are not staged, or their rows.

        :raises SourcePositionError: if a file changed meanwhile
        :raises ConfigurationError: if the source's arguments ask for the other one of the two by now
        """
        takes_rows = given.loader.takes_rows
        if takes_rows != units.takes_rows:
            raise ConfigurationError(
                f"{given.loader} was given {'rows' if takes_rows else 'files'} of {given.source!r}, and the "
                "source's arguments were edited since: take the earlier ones"
            )
        chosen = list(zip(given.files, given.paths, strict=True))
        names = {path.removesuffix(".gz") if takes_rows else path: file for file, path in chosen}
        files = [StagedSource(name, file.size, file.path) for name, file in names.items()]
        prefix = commonprefix([*names])  # noqa: RUF071  LIST takes any start of a path
        source = UnitFiles(names, partial(units.source.rows, given) if takes_rows else None)
        # A file that is there is of this very unit, whole or cut by a worker that died.
        staging = Staging(self.stage, auto_compress=takes_rows, if_staged="skip_same")
        self.hook.get_stage_upload(staging, source, prefix, _PARALLEL).run(files)
        for file, _ in chosen:
            now = Path(file.path).stat()
            if (now.st_size, now.st_mtime_ns) != (file.size, file.modified_ns):
                raise SourcePositionError(
                    f"file {file.path!r} was written to while it was staged, from {file.size:,} to "
                    f"{now.st_size:,} bytes: load it when nothing appends to it, or set growing=True, which "
                    "leaves the last file to the stream. Nothing was loaded"
                )

    def refuse_forgotten(self, given: GivenLoad, states: Mapping[str, str]) -> None:
        """Refuse files that are staged, and that COPY has not loaded.

        :param states: of files, by their paths below the stage
        :raises SourcePositionError: if there is one
        """
        for file, path in zip(given.files, given.paths, strict=True):
            if states.get(self.stage.below(path)) == LOAD_SKIPPED:
                raise SourcePositionError(
                    f"COPY has left out file {file.path!r}, staged as {path!r}, and nothing shows that it "
                    f"was loaded: after {COPY_MEMORY.days} days COPY does not know. Run again with "
                    "options={'load_uncertain_files': True} if its rows are not in the table"
                )


_NOTHING: dict[str, Any] = {
    "rows_loaded": 0,
    "rejected": 0,
    "files": {},
    "loaded_before": {},
    "bytes": 0,
    "partitions": {},
}


def joined_value(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join what an interrupted load had done with what its successor did; both as a COPY task's value."""
    return {
        **{name: first[name] + second[name] for name in ("rows_loaded", "rejected", "bytes")},
        **{name: {**first[name], **second[name]} for name in ("files", "loaded_before")},
        "partitions": dict(Counter(first["partitions"]) + Counter(second["partitions"])),
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
