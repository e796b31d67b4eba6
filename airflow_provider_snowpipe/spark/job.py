"""The application that ``spark-submit`` runs: ``spark-submit job.py PLAN.json``, or the plan's text itself.

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

from airflow_provider_snowpipe.spark.connect import is_connect
from airflow_provider_snowpipe.spark.credentials import read_credentials_variable, read_driver_secrets
from airflow_provider_snowpipe.spark.driver import Run, elapsed, start_spark
from airflow_provider_snowpipe.spark.failures import error_type_of
from airflow_provider_snowpipe.spark.jvm import check_versions
from airflow_provider_snowpipe.spark.plan import JobPlan, read_plan
from airflow_provider_snowpipe.spark.report import START_FILE, ChannelReport, RunReport, write_whole
from airflow_provider_snowpipe.spark.source_secrets import SourceSecrets
from airflow_provider_snowpipe.spark.ui_address import UI_FILE, UiAddresses
from airflow_provider_snowpipe.spark.versions import require_same_spark
from airflow_provider_snowpipe.streaming.auth import Credentials
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SnowpipeError


def main(argv: Sequence[str]) -> int:
    """Run the job.

    :param argv: the path of the plan or its JSON text, and nothing else
    :return: the exit code
    """
    if len(argv) != 1:
        print("usage: spark-submit job.py PLAN.json (a file, or the JSON itself)", file=sys.stderr)
        return 2
    try:
        plan = read_plan(argv[0])
        credentials, secrets = _credentials(plan)
        _clear_report(plan)
    except SnowpipeError as error:
        return _complain(error)
    return _run(plan, credentials, secrets)


def _run(plan: JobPlan, credentials: Credentials, secrets: SourceSecrets) -> int:
    began = time.monotonic()
    with (
        SnowpipeClient(plan.account_url, credentials, plan.pipe, ca_bundle=plan.ca_bundle) as client,
        JobSession(plan) as session,
    ):
        run = Run(plan, client, session.start, secrets)
        try:
            check_versions()
            run.prepare()
            _leave(plan, START_FILE, json.dumps(run.rejected_before))
            print(f"snowpipe start channels={len(run.rejected_before)}", flush=True)
            run.load(session.executors())
            session.stop()
            run.verify()
            run.finish()
        except SnowpipeError as error:
            failed = RunReport(
                plan.application,
                run.channels,
                elapsed(began),
                error=str(error),
                error_type=error_type_of(error),
            )
            _leave(plan, Path(plan.report_path).name, failed.to_json())
            return _complain(error)
    report = RunReport(plan.application, run.channels, elapsed(began))
    _leave(plan, Path(plan.report_path).name, report.to_json())
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
        self._ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Any:
        """Start Spark, or give the session that runs."""
        if self._session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            self._ours = not _has_session()
            self._session = start_spark(self._plan.application)
            if not is_connect(self._session):
                require_same_spark(self._session)
                _announce_ui(self._plan, UiAddresses.of_context(self._session.sparkContext))
        return self._session

    def executors(self) -> Any:
        """What runs tasks: the session's context, or the session itself over Spark Connect."""
        session = self.start()
        return session if is_connect(session) else session.sparkContext

    def stop(self) -> None:
        """Stop Spark if it was started here; what was started keeps its result."""
        session, self._session = self._session, None
        if session is not None and self._ours:
            session.stop()


def _has_session() -> bool:
    """True where the platform has started Spark for us, and stops it, too."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _credentials(plan: JobPlan) -> tuple[Credentials, SourceSecrets]:
    if plan.credentials_variable:
        return read_credentials_variable(plan.credentials_variable)
    return read_driver_secrets(plan.credentials_path)


def _leave(plan: JobPlan, name: str, text: str) -> None:
    """Write a file where the report goes, if it goes anywhere."""
    if plan.report_path:
        write_whole(text, Path(plan.report_path).with_name(name))


def _announce_ui(plan: JobPlan, addresses: UiAddresses) -> None:
    _leave(plan, UI_FILE, addresses.to_json())
    print(f"snowpipe ui {addresses.running or 'is switched off'}", flush=True)


def _clear_report(plan: JobPlan) -> None:
    """Make sure that a report found afterwards is this run's."""
    if not plan.report_path:
        return
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
