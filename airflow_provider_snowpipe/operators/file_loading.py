"""Loading files by COPY or by a file pipe, for a task that has chosen one of the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.file_load import FileLoad
from airflow_provider_snowpipe.bulk.pipe_target import written
from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.operators.file_copy import copy_arguments, load_files, why_not_copy
from airflow_provider_snowpipe.operators.file_loader import FileLoader
from airflow_provider_snowpipe.operators.load_outcome import ingested_value
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.pipe_target import PipeTarget
    from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
    from airflow_provider_snowpipe.operators.file_boundary import FileBoundary
    from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
    from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator


@dataclass(slots=True)
class FileLoading:
    """One task's loading of files.

    :param task: the task
    :param context: its context
    :param resumed: True where the task was deferred for a load
    :param told: what the pipe's trigger has told of files, by their paths below the pipe's location
    """

    task: SnowpipeLoadOperator
    context: Context
    resumed: bool = False
    told: Mapping[str, FileLoad] = field(default_factory=dict)
    _copying: SnowpipeCopyOperator | None = None
    _targets: dict[str, PipeTarget] = field(default_factory=dict)

    def run(self, path: LoadPath, boundary: FileBoundary | None) -> dict[str, Any]:
        """Load the files, and move the channels' tokens behind them where there are channels.

        :param path: COPY or the pipe
        :param boundary: files of this machine and their channels, None for files in a stage
        :return: as of the operator of the path, and ``bytes`` and ``channels``
        :raises ConfigurationError: if the files cannot go this way
        """
        if boundary is None:
            value = self._staged_by_pipe() if path is LoadPath.PIPE else self._staged_by_copy()
            return {**value, "bytes": None, "channels": {}}
        pipe = self._pipe() if path is LoadPath.PIPE else None
        self._loader(pipe, deferrable=False)  # which finds what is wrong before anything is touched
        return load_files(
            boundary,
            # Another loader's load is waited for here: it is not known again when the task comes back.
            lambda name: self._loader(name, deferrable=self.task.deferrable and name == pipe),
            self.task.on_rejected,
            pipe=pipe,
        )

    def finish(self, boundary: FileBoundary) -> None:
        """Load what an interrupted load was to take, and no more.

        :param boundary: files of this machine and their channels
        """
        # What is to be streamed afterwards would be forgotten with the worker.
        load_files(
            boundary,
            lambda name: self._loader(name, deferrable=False),
            self.task.on_rejected,
            promised_only=True,
        )

    def after_pipe(
        self, event: Mapping[str, Any], submitted: Mapping[str, Any], boundary: FileBoundary | None
    ) -> dict[str, Any]:
        """Go on after the triggerer has waited for a pipe.

        :param event: the payload of its trigger
        :param submitted: what the task had to say before
        :param boundary: files of this machine and their channels, None for files in a stage
        """
        from airflow_provider_snowpipe.bulk.files_watch import load_failure

        if event["status"] != "success":
            raise load_failure(event["reason"], event["message"])
        if boundary is None:
            value = ingested_value({**submitted, "loads": event["files"]})
            return {**value, "bytes": None, "channels": {}}
        self.told = {path: FileLoad.from_result(path, one) for path, one in event["files"].items()}
        return self.run(LoadPath.PIPE, boundary)

    def stop(self) -> None:
        """Cancel the COPY that runs; a pipe loads what it was given all the same."""
        if self._copying is not None:
            self._copying.on_kill()

    def _staged_by_copy(self) -> dict[str, Any]:
        task = self.task
        arguments = {"options": task.options, "deferrable": task.deferrable}
        return self._copier(str(task.source), arguments).perform(self.context)

    def _staged_by_pipe(self) -> dict[str, Any]:
        pipe, source = self._pipe(), StageReference.parse(str(self.task.source))
        target = self._target(pipe)
        prefix = target.below(source, self._full_name(pipe))
        ingester = self._ingester(pipe, target, deferrable=self.task.deferrable, prefix=prefix or None)
        return ingested_value(ingester.perform(self.context))

    def _loader(self, pipe: str | None, *, deferrable: bool) -> FileLoader:
        return self._copy_loader(deferrable) if pipe is None else self._pipe_loader(pipe, deferrable)

    def _copy_loader(self, deferrable: bool) -> FileLoader:
        stage = self.task.stage_of_table()
        files = self.task.source_files()
        if files is None:
            raise ConfigurationError(f"source is {self.task.source!r}: only files are copied")
        arguments = {**copy_arguments(files, self.task.options or {}), "deferrable": deferrable}

        def copy(paths: Sequence[str]) -> dict[str, Any]:
            return self._copier(stage, {**arguments, "files": paths}).perform(self.context)

        return FileLoader(self.task.bulk_hook(), StageReference.parse(stage), copy)

    def _pipe_loader(self, pipe: str, deferrable: bool) -> FileLoader:
        target = self._target(pipe)
        why = None if (files := self.task.source_files()) is None else why_not_copy(files)
        if why is not None:
            raise ConfigurationError(f"path is 'pipe', and {why}: drop that, or take path='stream'")
        if target.is_told:
            raise ConfigurationError(
                f"pipe {self._full_name(pipe)} has AUTO_INGEST, so that it may load a file as soon as it is "
                "staged, before the channel's token says so: name a pipe without it in file_pipe=…"
            )

        def ingest(paths: Sequence[str]) -> dict[str, Any]:
            ingester = self._ingester(pipe, target, deferrable=deferrable, files=list(paths))
            value = ingested_value(ingester.perform(self.context))
            # The paths name content that nobody else loads: what was loaded before, this load has loaded.
            loads = {**value["loaded_before"], **value["files"]}
            rows = sum(int(load["rows_loaded"]) for load in loads.values())
            return {**value, "rows_loaded": rows, "files": loads, "loaded_before": {}}

        return FileLoader(self.task.bulk_hook(), target.stage, ingest, pipe, self.told)

    def _pipe(self) -> str:
        pipe = self.task.file_pipe
        if not pipe:
            raise ConfigurationError(
                "path is 'pipe' and file_pipe is None: name the file pipe of this table in file_pipe=…, "
                "which SnowpipePipeOperator(action='create', …) makes, or say path='copy'"
            )
        if self.task.options and self.task.path == LoadPath.PIPE:
            raise ConfigurationError(
                f"path is 'pipe' and options is {self.task.options!r}: these are options of COPY, and a pipe "
                "has those of its own statement; leave them out"
            )
        return pipe

    def _target(self, pipe: str) -> PipeTarget:
        """What the pipe moves where, which has to be into the task's table."""
        if pipe in self._targets:
            return self._targets[pipe]
        hook, name = self.task.bulk_hook(), self._full_name(pipe)
        target = hook.pipe_target(pipe)
        if target is None:
            raise ConfigurationError(
                f"there is no file pipe {name}, or the role may not see it: make it by "
                "SnowpipePipeOperator(action='create', …), check the names letter by letter, or say "
                "path='copy'"
            )
        table = (name.database, name.schema, self.task.table)
        if target.table != table:
            raise ConfigurationError(
                f"pipe {name} loads into {'.'.join(target.table)}, and the task's table is "
                f"{'.'.join(map(str, table))}: name the pipe of that table in file_pipe=…"
            )
        self._targets[pipe] = target
        return target

    def _full_name(self, pipe: str) -> PipeName:
        return PipeName(*self.task.bulk_hook().place(), pipe)

    def _copier(self, stage: str, arguments: Mapping[str, Any]) -> SnowpipeCopyOperator:
        from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator

        task = self.task
        if task.table is None:
            raise ConfigurationError("table is None: name the table that the files are copied into")
        self._copying = SnowpipeCopyOperator(
            task_id=task.task_id,
            table=task.table,
            stage=stage,
            on_rejected=task.on_rejected,
            on_nothing="report",
            poll_interval=task.poll_interval,
            database=task.database,
            schema=task.schema,
            snowflake_conn_id=task.snowflake_conn_id,
            **arguments,
        )
        self._copying.resumed = self.resumed
        return self._copying

    def _ingester(self, pipe: str, target: PipeTarget, **arguments: Any) -> SnowpipeIngestFilesOperator:
        from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator

        task = self.task
        return SnowpipeIngestFilesOperator(
            task_id=task.task_id,
            pipe=pipe,
            stage=written(target.stage),
            table=task.table,
            on_partial=task.on_rejected,
            on_failed=task.on_rejected,
            on_nothing="report",
            load_timeout=task.load_timeout,
            poll_interval=task.poll_interval,
            database=task.database,
            schema=task.schema,
            snowflake_conn_id=task.snowflake_conn_id,
            **arguments,
        )
