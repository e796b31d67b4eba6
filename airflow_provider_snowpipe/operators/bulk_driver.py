"""A task around one driver of the job that writes files for COPY."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow_provider_snowpipe.operators.driver_place import DriverMemory, DriverPlace
from airflow_provider_snowpipe.operators.spark_driver import SparkDriverOperator
from airflow_provider_snowpipe.operators.submission import application_name, job_error_of
from airflow_provider_snowpipe.spark import write_job_file
from airflow_provider_snowpipe.spark.report import write_whole
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.spark.bulk.write_plan import WritePlan, WriteReport

MakePlan = Callable[[str, str, str, str], "WritePlan"]
"""Makes the plan, given the application's name, the folder's URL, the attempt and the report's path."""
_LOCAL = ("", "file")


class BulkDriverOperator(SparkDriverOperator):
    """What every operator has that has Spark write files.

    :param spark_conn_id: the Spark connection; client deploy mode only
    :param work_path: a folder that all executors and this worker see, for the files until they are staged;
        None for a temporary one of this machine, which a local master sees
    :param kwargs: options of ``SparkSubmitOperator``
    """

    def __init__(
        self, *, spark_conn_id: str = "spark_default", work_path: str | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("name", "")
        super().__init__(application=write_job_file(), conn_id=spark_conn_id, **kwargs)
        self.work_path = work_path
        self._make_plan: MakePlan | None = None
        self._folder: str | None = None
        self._shared_folder = True

    @contextmanager
    def writing(
        self, context: Context, make_plan: MakePlan, folder: str | None = None
    ) -> Iterator[WriteReport]:
        """Have Spark write files; those of this machine are gone after the block.

        A try whose worker died with the driver or after it is taken over, files and all.

        :param context: the task's context
        :param make_plan: makes the plan, if a new driver is to be started
        :param folder: URL of the folder in which each attempt makes its own, None for one that is gone
            after the block
        """
        ti = context["ti"]
        self.name = self.name or application_name(ti.dag_id, ti.task_id, ti.run_id, ti.map_index)
        self._make_plan, self._folder = make_plan, folder
        self._shared_folder = folder is not None or bool(self.work_path)
        memory = DriverMemory(context, durable=self.durable)
        with self._ending(memory):
            report: WriteReport = self._run_driver(context, memory)
            yield report
            memory.forget()

    def _prepare(self, place: DriverPlace, memory: DriverMemory) -> None:
        attempt = uuid4().hex[:12]
        root = self._folder or _as_url(self.work_path or str(Path(place.directory, "rows")))
        if self._make_plan is None:
            raise ConfigurationError("nothing is planned: a plan is made before a driver is started")
        plan = self._make_plan(self.name, f"{root.rstrip('/')}/{attempt}", attempt, str(place.report_path))
        write_whole(plan.to_json(), place.plan_path)
        self.application_args = [str(place.plan_path)]
        self._hook = None
        self.log.info("writing %s into %s as %s", plan.address, plan.folder, plan.application)

    def _ended(self, place: DriverPlace) -> WriteReport | None:
        from airflow_provider_snowpipe.spark.bulk.write_plan import WriteReport

        report = WriteReport.read(place.report_path)
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

    def _failure(self, place: DriverPlace, output: str) -> tuple[str, bool] | None:
        from airflow_provider_snowpipe.spark.bulk.write_plan import WriteReport

        report = WriteReport.read(place.report_path)
        if report is None:
            return job_error_of(None, None, output)
        return job_error_of(report.error, report.error_type, output)

    def _clean_up(self) -> None:
        """Remove what the driver has written and read in the folder of all, too, however it has ended."""
        if self._directory is not None and self.work_path and self._folder is None:
            from airflow_provider_snowpipe.spark.bulk.write_plan import WritePlan

            place = DriverPlace.here(self._directory)
            if place.plan_path.is_file():
                folder = WritePlan.read(place.plan_path).folder
                for one in (local_path(folder), brought_folder(folder)):
                    shutil.rmtree(one, ignore_errors=True)
        super()._clean_up()

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        master = str(hook._connection["master"])
        if self._directory is not None and not self._shared_folder and not master.startswith("local"):
            raise ConfigurationError(
                f"the master of the Spark connection {self._conn_id!r} is {master!r}, whose executors do not "
                "see this worker's temporary folder: give work_path=…, a folder that all of them and this "
                "worker see, or name an external stage"
            )
        return hook


def local_path(url: str) -> Path:
    """The path of a folder of this machine.

    :param url: its URL
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
    """Where files are brought that a driver is to read: beside the folder that it writes.

    :param folder: the latter's URL
    """
    written = local_path(folder)
    return written.with_name(f"{written.name}-source")


def _as_url(path: str) -> str:
    return path if "://" in path else Path(path).absolute().as_uri()
