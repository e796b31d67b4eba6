"""A task around one driver of the job that sends rows through channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.operators.sent_load import SentLoad
from airflow_provider_snowpipe.operators.spark_driver import SparkDriverOperator
from airflow_provider_snowpipe.operators.submission import job_error, report_lines, report_or_none
from airflow_provider_snowpipe.spark import job_file

if TYPE_CHECKING:
    from airflow_provider_snowpipe.operators.driver_place import DriverMemory, DriverPlace
    from airflow_provider_snowpipe.spark.plan import JobPlan
    from airflow_provider_snowpipe.spark.report import RunReport


class ChannelDriverOperator(SparkDriverOperator):
    """What every operator has that runs the job of channels.

    :param kwargs: options of ``SparkSubmitOperator``
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(application=job_file(), **kwargs)
        self._if_it_runs = "shuts that one out of its channels if it still runs"

    @abstractmethod
    def _plan_for(
        self, directory: Path, rejected_before: Mapping[str, int], rejected_since_ms: int | None = None
    ) -> JobPlan:
        """Write plan and credentials, and make the plan the application's argument.

        :param directory: the driver's place
        :param rejected_before: rows skipped before the first try that has not reported, by channel
        :param rejected_since_ms: where a retry does not know them, since when skipped rows are its own
        """

    @abstractmethod
    def _reported(self, report: RunReport, offset_format: str) -> None:
        """Hear what a driver says that has ended, well or not.

        :param report: its report
        :param offset_format: the tokens' format
        """

    def _prepare(self, place: DriverPlace, memory: DriverMemory) -> None:
        self._plan_for(Path(place.directory), memory.rejected_before(), memory.rejected_since_ms())

    def _ended(self, place: DriverPlace) -> SentLoad | None:
        report = report_or_none(str(place.report_path))
        if report is None or report.error is not None:
            return None
        return self._sent(report, _offset_format(place))

    def _sent(self, report: RunReport, offset_format: str) -> SentLoad:
        for line in report_lines(report):
            self.log.info("%s", line)
        self._reported(report, offset_format)
        return SentLoad(report, offset_format)

    def _failure(self, place: DriverPlace, output: str) -> tuple[str, bool] | None:
        report = report_or_none(str(place.report_path))
        if report is not None:
            self._reported(report, _offset_format(place))
        return job_error(report, output)


def _offset_format(place: DriverPlace) -> str:
    from airflow_provider_snowpipe.spark.plan import read_plan

    return read_plan(place.plan_path).offset_format
