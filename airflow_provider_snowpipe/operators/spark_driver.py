"""A task around one driver of the job: it starts it, outlives its own worker with it, and stops it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_snowpipe.links.spark_ui import leave_address
from airflow_provider_snowpipe.operators.driver_place import (
    DIRECTORY_PREFIX,
    DriverMemory,
    DriverPlace,
)
from airflow_provider_snowpipe.operators.driver_run import DriverRun
from airflow_provider_snowpipe.operators.sent_load import SentLoad
from airflow_provider_snowpipe.operators.submission import (
    job_error,
    launch_environment,
    report_lines,
    report_or_none,
    require_client_mode,
)
from airflow_provider_snowpipe.spark import job_file
from airflow_provider_snowpipe.spark.package_archive import write_package_archive
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, ConfigurationError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.spark.plan import JobPlan
    from airflow_provider_snowpipe.spark.report import RunReport


class SparkDriverOperator(SparkSubmitOperator):
    """What every operator has that runs the job: one driver in client mode, found again after a death.

    :param kwargs: options of ``SparkSubmitOperator``
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(application=str(job_file()), **kwargs)
        self._directory: Path | None = None
        self._run: DriverRun | None = None
        self._killed = False

    def _prepare(self, directory: Path, rejected_before: Mapping[str, int]) -> JobPlan:
        """Write plan and credentials, and make the plan the application's argument.

        :param directory: the driver's place
        :param rejected_before: rows skipped before the first try that has not reported, by channel
        """
        raise NotImplementedError

    def _reported(self, report: RunReport, offset_format: str) -> None:
        """Hear what a driver says that has ended, well or not.

        :param report: its report
        :param offset_format: the tokens' format
        """
        raise NotImplementedError

    def _run_driver(self, context: Context, memory: DriverMemory) -> SentLoad:
        """Wait for the driver of an earlier try, or start one; what it has sent."""
        self._killed = False
        return self._rejoin(context, memory) or self._start(context, memory)

    def on_kill(self) -> None:
        """Stop Spark, driver and all, and remove what the run left on the disk; the channels resume."""
        self._killed = True
        try:
            if self._run is not None:
                self._run.stop()
            if self._hook is not None:
                super().on_kill()
        finally:
            self._clean_up()

    @contextmanager
    def _ending(self, memory: DriverMemory) -> Iterator[None]:
        """Say what ends the task in the words of ours, and leave the next try what it has to know."""
        try:
            yield
        except (ConfigurationError, AuthenticationError) as error:
            raise AirflowFailException(f"snowpipe error: {type(error).__name__}: {error}") from error
        except AirflowFailException:
            memory.forget()
            raise
        except AirflowException:
            memory.forget_driver()
            raise
        finally:
            if self._run is not None and not self._killed:
                self._run.hide_ui()
            self._clean_up()

    def _get_hook(self) -> SparkSubmitHook:
        """Make the Spark hook, whose driver runs here and whose executors may have none of our code."""
        try:
            hook = super()._get_hook()
        except NameError as error:  # of the Spark provider 6.3.4, where the Kubernetes provider is missing
            if error.name != "kube_client":
                raise
            raise ConfigurationError(
                f"the Spark connection {self._conn_id!r} names a Kubernetes master: install "
                "apache-airflow-providers-cncf-kubernetes on the worker"
            ) from None
        require_client_mode(hook._connection["deploy_mode"], hook._conf)
        if self._directory is None or self._run is None:
            return hook
        if not hook._connection["master"].startswith("local"):
            archive = str(write_package_archive(self._directory))
            hook._py_files = ",".join([*filter(None, [hook._py_files]), archive])
        elsewhere = hook._is_yarn or hook._is_kubernetes
        environment = {
            **launch_environment(
                self._directory / "java", executor_python="python3" if elsewhere else sys.executable
            ),
            **{name: str(value) for name, value in (self.env_vars or {}).items()},
        }
        hook.submit = partial(self._run.submit, hook, environment)  # type: ignore[method-assign]
        return hook

    def _rejoin(self, context: Context, memory: DriverMemory) -> SentLoad | None:
        """Wait for the driver of an earlier try, whose worker died; its load if it has sent everything."""
        from airflow_provider_snowpipe.spark.plan import read_plan

        place = memory.place()
        if place is None:
            return None
        if not place.is_here():
            self.log.warning(
                "an earlier try ran its driver on %s, of which nothing is to be seen here; a new driver is "
                "submitted, and shuts that one out of its channels if it still runs",
                place.host,
            )
            return None
        if not place.is_ours():
            return None
        self._directory = Path(place.directory)
        self._run = self._new_run(context, place, memory)
        self._run.rejoin()
        report = report_or_none(str(place.report_path))
        if report is not None and report.error is None:
            return self._sent(report, read_plan(place.plan_path))
        text, permanent = job_error(report, "") or ("it left no report", False)
        if permanent:
            raise AirflowFailException(text)
        self.log.warning("the driver of an earlier try did not finish (%s); a new one resumes", text)
        self._clean_up()
        return None

    def _start(self, context: Context, memory: DriverMemory) -> SentLoad:
        """Submit a new driver and wait for it.

        Its place is remembered before anything is in it: a worker that dies on the way leaves a place where
        nothing runs, never a driver that nobody knows of.
        """
        from airflow_provider_snowpipe.spark.report import RunReport

        if self._killed:
            raise AirflowException("the task was killed; no new application is submitted")
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        place = DriverPlace.here(self._directory)
        memory.keep_place(place)
        self._run = self._new_run(context, place, memory)
        plan = self._prepare(self._directory, memory.rejected_before())
        self._submit(context, plan)
        return self._sent(RunReport.read(plan.report_path), plan)

    def _new_run(self, context: Context, place: DriverPlace, memory: DriverMemory) -> DriverRun:
        return DriverRun(place, memory, self.log.info, partial(leave_address, context["ti"]))

    def _sent(self, report: RunReport, plan: JobPlan) -> SentLoad:
        """Take over what a driver says that has ended well."""
        for line in report_lines(report):
            self.log.info("%s", line)
        self._reported(report, plan.offset_format)
        return SentLoad(report, plan.offset_format)

    def _submit(self, context: Context, plan: JobPlan) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            report = report_or_none(plan.report_path)
            if report is not None:
                self._reported(report, plan.offset_format)
            found = job_error(report, str(error))
            if found is None:
                raise
            text, permanent = found
            raise (AirflowFailException if permanent else AirflowException)(text) from None

    def _clean_up(self) -> None:
        directory, self._directory, self._run = self._directory, None, None
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
