"""A task around one driver of the job that writes files for COPY, and the stage's folder for such files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow_provider_snowpipe.bulk.run_files import RunManifest
from airflow_provider_snowpipe.bulk.stage import SourceFile, Staging
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.hooks.bulk import Folder
from airflow_provider_snowpipe.operators.client_job import REPORT_FILE, ClientRun, DriverMemory
from airflow_provider_snowpipe.operators.cluster_job import ClusterRun
from airflow_provider_snowpipe.operators.spark_job import SparkDriverOperator
from airflow_provider_snowpipe.operators.submission import job_error
from airflow_provider_snowpipe.spark import write_job_file
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook, StageUpload
    from airflow_provider_snowpipe.operators.spark_job import DriverRun
    from airflow_provider_snowpipe.spark.driver.plan import WritePlan, WriteReport


MakePlan = Callable[[str, str, str, str], "WritePlan"]
"""Makes the plan, given the application's name, the folder's URL, the attempt and the report's path."""
_LOCAL = ("", "file")


class BulkDriverOperator(SparkDriverOperator):
    """What every operator has that has Spark write files.

    :param work_path: a folder that all executors and this worker see, for the files until they are staged;
        None for a temporary one of this machine, which a local master sees. With ``deploy_mode="cluster"``
        the driver sees it, too, and leaves its report there
    :param kwargs: options of ``SparkSubmitOperator``
    """

    _make_plan: MakePlan

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(application=write_job_file(), **kwargs)
        self._folder: str | None = None
        self._shared_folder = True

    @contextmanager
    def writing(
        self, context: Context, make_plan: MakePlan, folder: str | None = None
    ) -> Iterator[WriteReport]:
        """Have Spark write files; those of this machine are gone after the block.

        A try whose worker died with the driver or after it is taken over, files and all.

        :param make_plan: makes the plan, if a new driver is to be started
        :param folder: URL of the folder in which each attempt makes its own, None for one that is gone
            after the block
        """
        self._name_application(context)
        self._make_plan, self._folder = make_plan, folder
        self._shared_folder = folder is not None or bool(self.work_path)
        memory = DriverMemory(context, durable=self.durable)
        with self._ending(memory):
            report: WriteReport = self._run_driver(context, memory)
            yield report
            memory.forget()

    def _prepare(self, run: DriverRun, memory: DriverMemory) -> None:
        attempt = uuid4().hex[:12]
        shared = f"{run.folder}/rows" if isinstance(run, ClusterRun) else self.work_path
        root = self._folder or shared or str(run.directory / "rows")
        root = root if "://" in root else Path(root).absolute().as_uri()
        folder, report_path = f"{root.rstrip('/')}/{attempt}", run.plan_keys()["report_path"]
        plan = self._make_plan(self.name, folder, attempt, report_path)
        self.application_args = [run.write_plan(plan.to_json())]
        self.log.info("writing %s into %s as %s", plan.address, plan.folder, plan.application)

    def _ended(self, run: DriverRun) -> WriteReport | None:
        report = _report_of(run)
        if report is None or report.error is not None:
            return None
        self.log.info(
            "Spark wrote %d rows into %d files, %.1f MB, in %.1f s",
            report.rows,
            len(report.files),
            report.bytes / 1e6,
            report.seconds,
        )
        return report

    def _failure(self, run: DriverRun, output: str) -> tuple[str, bool] | None:
        return job_error(_report_of(run), output)

    def _clean_up(self) -> None:
        """Remove what the driver has written and read in the folder of all, too, however it has ended."""
        if isinstance(self._run, ClientRun) and self.work_path and self._folder is None:
            from airflow_provider_snowpipe.spark.driver.plan import WritePlan

            plan = self._run.location.plan_path
            if plan.is_file():
                folder = WritePlan.read(plan).folder
                for one in (local_path(folder), brought_folder(folder)):
                    shutil.rmtree(one, ignore_errors=True)
        super()._clean_up()

    def _check_master(self, master: str) -> None:
        if not self._shared_folder and not master.startswith("local"):
            raise ConfigurationError(
                f"the master of the Spark connection {self.spark_conn_id!r} is {master!r}, whose executors "
                "do not see this worker's temporary folder: give work_path=…, a folder that all of them and "
                "this worker see, or name an external stage"
            )


def _report_of(run: DriverRun) -> WriteReport | None:
    from airflow_provider_snowpipe.spark.driver.plan import WriteReport

    text = run.text(REPORT_FILE)
    return None if text is None else WriteReport.from_json(text)


def local_path(url: str) -> Path:
    """The path of a folder of this machine.

    :raises ConfigurationError: if it is elsewhere
    """
    parts = urlsplit(url)
    if parts.scheme not in _LOCAL:
        raise ConfigurationError(
            f"folder {url!r} is not one that this worker sees: give work_path=…, a path of this machine that "
            "all executors see, too"
        )
    return Path(unquote(parts.path))


def brought_folder(folder: str) -> Path:
    """Where files are brought that a driver is to read: beside the folder that it writes."""
    written = local_path(folder)
    return written.with_name(f"{written.name}-source")


# -- The folder of one piece of work in a stage -----------------------------------------------------------


class RunStage:
    """A folder of a stage.

    :raises SqlError: if the stage cannot be described
    """

    def __init__(self, hook: SnowpipeBulkHook, stage: str, folder: str) -> None:
        self._hook = hook
        reference = StageReference.parse(stage)
        self.folder = folder
        self.reference = StageReference(reference.owner, reference.name, reference.below(folder))
        self.stage_url = hook.stage_url(stage)
        self._upload: StageUpload | None = None

    @property
    def url(self) -> str | None:
        """The folder's URL in an external stage, None in an internal one."""
        return None if self.stage_url is None else f"{self.stage_url.rstrip('/')}/{self.reference.path}"

    @property
    def location(self) -> str:
        """The folder as COPY and LIST take it."""
        return f"@{self.reference.owner}{self.reference.name}/{self.reference.path}"

    def put_written(self, report: WriteReport, parallel: int, source: str = "") -> RunManifest:
        """Stage the files of an attempt, under names that no other one gives, unless Spark has done so.

        :param parallel: files that are put at a time
        :param source: what the rows were read from
        :raises SqlError: if a ``PUT`` fails
        """
        names = [f"{report.attempt}/{one.name}" for one in report.files]
        written = tuple(replace(one, name=name) for one, name in zip(report.files, names, strict=True))
        if names and self.url is None:
            folder = local_path(report.folder).parent
            files = [SourceFile(one.name, one.bytes, str(folder / one.name)) for one in written]
            staging = Staging(self.reference, auto_compress=False, if_staged="skip")
            self._upload = self._hook.get_stage_upload(staging, Folder(folder), "", parallel)
            self._upload.run(files)
        return RunManifest(report.attempt, written, report.columns, report.json_columns, source)

    def stop(self) -> None:
        """Begin no other ``PUT``."""
        if self._upload is not None:
            self._upload.stop()

    def sweep(self) -> None:
        """Remove every file, also what attempts have left that died.

        :raises SqlError: if a statement fails
        """
        folder = StageReference.parse(str(self.reference), *self._hook.database_and_schema())
        self._hook.run_sql("REMOVE %s", (folder.location(),))

    def names(self) -> set[str]:
        """The files' paths below the folder."""
        listed = self._hook.list_files(self.location)
        return {f"/{row['name']}".rpartition(f"/{self.folder}/")[2] for row in listed}
