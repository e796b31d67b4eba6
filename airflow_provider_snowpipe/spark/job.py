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
    with SnowpipeClient(plan.account_url, credentials, plan.pipe, ca_bundle=plan.ca_bundle) as client:
        run = Run(plan, client)
        try:
            check_versions()
            run.prepare()
            write_whole(json.dumps(run.rejected_before), Path(plan.report_path).with_name(START_FILE))
            print(f"snowpipe start channels={len(run.rejected_before)}", flush=True)
            _load(plan, run)
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


def _load(plan: JobPlan, run: Run) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = start_spark(plan.application)
    try:
        _announce_ui(plan, UiAddresses.of_context(spark.sparkContext))
        run.load(spark.sparkContext)
    finally:
        spark.stop()


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
        f"dead_lettered={channel.dead_lettered} "
        f"committed={'yes' if channel.committed else 'not awaited'}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
