"""Files that Spark combines before they are put into a stage, once for the same content."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.compaction import CompactForm, CompactOptions, content_key
from airflow_provider_snowpipe.bulk.run_manifest import ManifestFile, RunManifest, run_folder
from airflow_provider_snowpipe.operators.run_stage import RunStage
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.bulk.stage_upload import SourceFile
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.operators.bulk_driver import BulkDriverOperator
    from airflow_provider_snowpipe.operators.source_files import SourceFiles
    from airflow_provider_snowpipe.spark.bulk.write_plan import WritePlan

_WORK = "compact"
_MOST_AT_ONCE = 500
_SHARES = 8
"""At least so many for each thread, so that none is left with the largest files alone."""
_UNREADABLE = re.compile(r"[*?\[\]{}\\:]|/[._][^/]*$")
"""Spark takes these letters for a pattern, and passes files over whose names begin so."""


@dataclass(slots=True)
class CompactedStage:
    """Files of one source on their way into a stage.

    What is staged goes by the files' content and not by the run: a run that finds the same files again finds
    what the one before has staged, so that COPY does not take it for new files.

    :param hook: the account
    :param stage: the stage, with or without a path
    :param source: where the files are
    :param options: how they are combined
    :param parallel: files at a time
    """

    hook: SnowpipeBulkHook
    stage: str
    source: SourceFiles
    options: CompactOptions
    parallel: int
    _folder: RunStage | None = field(default=None, init=False)

    def form(self, files: Sequence[SourceFile]) -> CompactForm | None:
        """Say what the files are; None where they are as they should be.

        :param files: the files
        :raises ConfigurationError: if they cannot be combined
        """
        form = self.options.form_of([file.below for file in files])
        sizes = [(file.below, file.size) for file in files]
        return form if form.is_worth_it(sizes, self.options.target_file_bytes) else None

    def staged(self, files: Sequence[SourceFile]) -> RunManifest | None:
        """What is staged of this content, None if nothing is.

        :param files: the files
        """
        marks = self._of_each(files, lambda _, file: self.source.mark(file), "snowpipe-digest")
        facts = [(file.below, file.size, mark) for file, mark in zip(files, marks, strict=True)]
        folder = run_folder((_WORK,), content_key(facts, self.options))
        self._folder = RunStage(self.hook, self.stage, folder)
        if self._folder.url is not None:
            raise ConfigurationError(
                f"stage {self.stage!r} is external, where PUT writes nothing: name an internal stage, or "
                "have SnowpipeBulkLoadOperator write into it"
            )
        return self._folder.manifest()

    def made(
        self, context: Context, writer: BulkDriverOperator, files: Sequence[SourceFile], form: CompactForm
    ) -> RunManifest:
        """Have Spark combine the files, and stage what it makes; :meth:`staged` has been asked.

        :param context: the task's context
        :param writer: runs Spark
        :param files: the files
        :param form: what they are
        :raises ConfigurationError: if Spark cannot read a file of that name
        """
        from airflow_provider_snowpipe.operators.bulk_driver import brought_folder, local_path

        folder = self._folder
        if folder is None:
            raise ConfigurationError("nothing was asked of the stage: ask staged() first")

        def plan(application: str, target: str, attempt: str, report_path: str) -> WritePlan:
            folder_here = brought_folder(target)
            try:
                paths = self._here(files, folder_here, form)
            except BaseException:  # there is no plan yet that says what the driver leaves
                shutil.rmtree(folder_here, ignore_errors=True)
                raise
            return self._plan((application, target, attempt, report_path), paths, form)

        with writer.writing(context, plan) as report:
            names = tuple(
                ManifestFile(f"{report.attempt}/{one.name}", one.bytes, one.rows) for one in report.files
            )
            manifest = RunManifest(f"{len(files):,} files", report.attempt, names)
            folder.put(local_path(report.folder).parent, manifest.names, self.parallel)
            return folder.keep_manifest(manifest)

    def names(self, manifest: RunManifest) -> list[str]:
        """Paths of the new files below the stage's.

        :param manifest: the manifest
        """
        folder = "" if self._folder is None else self._folder.folder
        return [f"{folder}/{name}" for name in manifest.names]

    def stop(self) -> None:
        """Begin no other ``PUT``."""
        if self._folder is not None:
            self._folder.stop()

    def _plan(self, place: tuple[str, str, str, str], paths: Sequence[str], form: CompactForm) -> WritePlan:
        from airflow_provider_snowpipe.spark.bulk.write_plan import LinesToCombine, RowsToWrite, WritePlan

        given: dict[str, Any] = {"target_file_bytes": self.options.target_file_bytes}
        if form.has_rows:
            merged: Mapping[str, str] = {} if form.kind == "avro" else {"mergeSchema": "true"}
            uris = tuple(Path(path).as_uri() for path in paths)
            given["rows"] = RowsToWrite(paths=uris, format=form.kind, options=merged)
            given["form"] = form.kind
        else:
            given["lines"] = LinesToCombine(tuple(paths), form.ending, form.header, form.splits)
        return WritePlan(*place, **given)

    def _here(self, files: Sequence[SourceFile], folder: Path, form: CompactForm) -> list[str]:
        """Paths of the files on this machine; those of an object store are brought here."""

        def bring(number: int, file: SourceFile) -> str:
            with self.source.local(file) as path:
                if self.source.is_local(file):
                    _refuse_unreadable(path, form)
                    return str(path)
                target = folder / f"{number:07}-{re.sub(r'[^A-Za-z0-9.=-]', '-', file.name)}"
                return str(shutil.move(path, target))

        folder.mkdir(parents=True, exist_ok=True)
        return self._of_each(files, bring, "snowpipe-bring")

    def _of_each(
        self, files: Sequence[SourceFile], work: Callable[[int, SourceFile], str], name: str
    ) -> list[str]:
        """Do some work on each file, several at a time; a future holds many, since a hundred thousand weigh.

        :param work: takes the file's number and the file
        :param name: of the threads
        """
        share = max(1, min(_MOST_AT_ONCE, len(files) // (self.parallel * _SHARES)))

        def some(first: int) -> list[str]:
            return [work(first + number, file) for number, file in enumerate(files[first : first + share])]

        with ThreadPoolExecutor(self.parallel, thread_name_prefix=name) as pool:
            return [one for found in pool.map(some, range(0, len(files), share)) for one in found]


def _refuse_unreadable(path: Path, form: CompactForm) -> None:
    if form.has_rows and _UNREADABLE.search(str(path)):
        raise ConfigurationError(
            f"compact: Spark does not read file {str(path)!r} by its name: rename it, since its name begins "
            "with '.' or '_', or the path has one of * ? [ ] { } \\ :"
        )
