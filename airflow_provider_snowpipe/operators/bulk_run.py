"""The work of one run of a bulk load: files that Spark writes, their manifest, and one COPY of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.bulk.copy_outcome import CopyOutcome
from airflow_provider_snowpipe.bulk.run_manifest import (
    ManifestFile,
    RunManifest,
    loaded_files,
    refuse_loaded_folder,
    refuse_other_files,
)
from airflow_provider_snowpipe.operators.bulk_copy import copied_value
from airflow_provider_snowpipe.operators.bulk_driver import local_path
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
    from airflow_provider_snowpipe.operators.run_stage import RunStage
    from airflow_provider_snowpipe.spark.bulk.write_plan import WriteReport

Write = Callable[[], AbstractContextManager["WriteReport"]]
"""Has Spark write the rows; the files are there as long as the block runs."""
Copy = Callable[[RunManifest], Mapping[str, Mapping[str, Any]]]
"""Copies a manifest's files that are not in the table; what became of each, by its path below the stage."""


@dataclass(frozen=True, slots=True)
class BulkRun:
    """What is to be done once, however many tries it takes.

    :param hook: the account, with the table
    :param stage: the run's folder
    :param work: whose work it is, in words
    :param table: the table
    :param on_rejected: ``fail`` or ``report`` files that were not loaded, or only in part
    :param parallel: files that are put at a time
    :param say: writes a line to the task's log
    """

    hook: SnowpipeBulkHook
    stage: RunStage
    work: str
    table: str
    on_rejected: str
    parallel: int
    say: Callable[..., None]

    def load(self, write: Write, copy: Copy) -> dict[str, Any]:
        """Do what an earlier try has left to do, which may be all or nothing; the task's value.

        :param write: has Spark write the rows
        :param copy: copies files
        :raises FilesGivenTwiceError: if files are in the table that no manifest, or another one, has
        """
        done = self.stage.outcome()
        if done is not None:
            self.say("%s says that this work is done; nothing is loaded", self.stage.location)
            return done
        manifest, attempt = self.stage.manifest(), ""
        if manifest is None:
            manifest, attempt = self._staged(write)
        if manifest.attempt != attempt:
            self.say("another try has staged %d files, which are the ones", len(manifest.files))
        done = self.stage.outcome() or self._loaded_before(manifest)
        return self._settled(manifest, done, copy)

    def resume(self, copy: Copy) -> dict[str, Any]:
        """Go on after COPY was submitted; the task's value.

        :param copy: copies files, or takes over the statement that was submitted
        :raises ConfigurationError: if the manifest is gone
        :raises FilesGivenTwiceError: if files are in the table that the manifest does not have
        """
        done = self.stage.outcome()
        if done is not None:
            return done
        manifest = self.stage.manifest()
        if manifest is None:
            raise ConfigurationError(
                f"{self.stage.location} has lost its manifest while COPY was running: compare the table with "
                "the source before you load again, under another run_key"
            )
        folder = self.stage.folder
        refuse_other_files(manifest, folder, self.hook.loads_in_folder(self.table, folder))
        return self._settled(manifest, None, copy)

    def _staged(self, write: Write) -> tuple[RunManifest, str]:
        """Write the rows and stage them; from its end on, this run has the manifest's files and no others.

        :return: the manifest, and the attempt that was made here; another one may have been faster
        """
        history = self.hook.loads_in_folder(self.table, self.stage.folder)
        refuse_loaded_folder(self.stage.folder, self.work, history)
        with write() as report:
            manifest = _manifest(self.work, report)
            if self.stage.url is None:
                self.stage.put(local_path(report.folder).parent, manifest.names, self.parallel)
            return self.stage.keep_manifest(manifest), manifest.attempt

    def _settled(self, manifest: RunManifest, done: dict[str, Any] | None, copy: Copy) -> dict[str, Any]:
        """Copy what is not in the table, and say so in the stage."""
        if done is None:
            files = copy(manifest) if manifest.files else {}
            done = copied_value(manifest, self.stage, files, self.on_rejected, self.table)
        self.stage.keep_outcome(done)
        return done

    def _loaded_before(self, manifest: RunManifest) -> dict[str, Any] | None:
        """The value where load history says that every file is in the table."""
        folder = self.stage.folder
        history = self.hook.loads_in_folder(self.table, folder)
        refuse_other_files(manifest, folder, history)
        loads = loaded_files(manifest, folder, history)
        if not manifest.files or len(loads) < len(manifest.files):
            return None
        self.say("load history says that all %d files are in the table", len(loads))
        CopyOutcome(tuple(loads.values())).require(self.on_rejected, self.table)
        files = {f"{self.stage.reference.path}/{name}": load.result() for name, load in loads.items()}
        return copied_value(manifest, self.stage, files, self.on_rejected, self.table)


def _manifest(work: str, report: WriteReport) -> RunManifest:
    files = tuple(ManifestFile(f"{report.attempt}/{one.name}", one.bytes, one.rows) for one in report.files)
    return RunManifest(work, report.attempt, files, report.columns, report.json_columns)
