"""The application that ``spark-submit`` runs: ``spark-submit job.py PLAN.json``.

Loads what the plan says, each row exactly once, and leaves a run report. Exit code 0 means that every
channel has committed its target; 1 that something is wrong, said in one line on standard error; 2 that the
command line is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from airflow_provider_snowpipe.spark.credentials import read_credentials
from airflow_provider_snowpipe.spark.driver import Run, elapsed, start_spark
from airflow_provider_snowpipe.spark.failures import error_type_of
from airflow_provider_snowpipe.spark.jvm import check_versions
from airflow_provider_snowpipe.spark.plan import JobPlan, read_plan
from airflow_provider_snowpipe.spark.report import START_FILE, ChannelReport, RunReport, write_whole
from airflow_provider_snowpipe.spark.ui_address import UI_FILE, UiAddresses
from airflow_provider_snowpipe.streaming.auth import Credentials
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError


def main(argv: Sequence[str]) -> int:
    """Run the job.

    :param argv: the path of the plan, and nothing else
    :return: the exit code
    """
    if len(argv) != 1:
        print("usage: spark-submit job.py PLAN.json", file=sys.stderr)
        return 2
    try:
        plan = read_plan(argv[0])
        credentials = read_credentials(plan.credentials_path)
        _clear_report(plan)
    except SnowpipeError as error:
        return _complain(error)
    return _run(plan, credentials)


def _run(plan: JobPlan, credentials: Credentials) -> int:
    began = time.monotonic()
    with (
        SnowpipeClient(plan.account_url, credentials, plan.pipe, ca_bundle=plan.ca_bundle) as client,
        JobSession(plan) as session,
    ):
        run = Run(plan, client, session.start)
        try:
            check_versions()
            run.prepare()
            write_whole(json.dumps(run.rejected_before), Path(plan.report_path).with_name(START_FILE))
            print(f"snowpipe start channels={len(run.rejected_before)}", flush=True)
            run.load(session.start().sparkContext)
            session.stop()
            run.verify()
        except SnowpipeError as error:
            RunReport(
                plan.application,
                run.channels,
                elapsed(began),
                error=str(error),
                error_type=error_type_of(error),
            ).write(plan.report_path)
            return _complain(error)
    report = RunReport(plan.application, run.channels, elapsed(began))
    report.write(plan.report_path)
    for channel in report.channels:
        print(_summary(channel), flush=True)
    print(
        f"snowpipe done channels={len(report.channels)} rows={report.rows} bytes={report.bytes} "
        f"seconds={report.seconds:g}",
        flush=True,
    )
    return 0


class JobSession:
    """The job's Spark session: started when somebody first needs it, stopped with the block at the latest.

    :param plan: what the job is to do
    """

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Any:
        """Start Spark, or give the session that runs."""
        if self._session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            self._session = start_spark(self._plan.application)
            _announce_ui(self._plan, UiAddresses.of_context(self._session.sparkContext))
        return self._session

    def stop(self) -> None:
        """Stop Spark; what was started keeps its result."""
        if self._session is not None:
            self._session.stop()
            self._session = None


def _announce_ui(plan: JobPlan, addresses: UiAddresses) -> None:
    write_whole(addresses.to_json(), Path(plan.report_path).with_name(UI_FILE))
    print(f"snowpipe ui {addresses.running or 'is switched off'}", flush=True)


def _clear_report(plan: JobPlan) -> None:
    """Make sure that a report found afterwards is this run's."""
    path = Path(plan.report_path)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigurationError(
            f"plan report_path is {plan.report_path!r}: its directory does not exist or cannot be written"
        )
    path.unlink(missing_ok=True)


def _complain(error: SnowpipeError) -> int:
    print(f"snowpipe error: {error_type_of(error)}: {error}", file=sys.stderr, flush=True)
    return 1


def _summary(channel: ChannelReport) -> str:
    return (
        f"snowpipe loaded channel={channel.channel} from={channel.from_token or 'NULL'} "
        f"to={channel.to_token or 'NULL'} rows={channel.rows} rejected={channel.rejected} "
        f"committed={'yes' if channel.committed else 'not awaited'}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
