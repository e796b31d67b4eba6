"""The application that ``spark-submit`` runs: ``spark-submit job.py PLAN.json``, or the plan's text itself.

Python alone runs it where the plan names a local master, or the environment a Spark Connect server.
Loads what the plan specifies, each row exactly once, and leaves a run report. Exit code 0 means that every
channel has committed its target; 1 an error, reported in one line on standard error; 2 that the
command line is.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.spark.driver.credentials import (
    driver_credentials,
    read_credentials_variable,
    read_driver_secrets,
)
from airflow_provider_snowpipe.spark.driver.plan import JobPlan, read_plan
from airflow_provider_snowpipe.spark.driver.report import START_FILE, ChannelStart, start_text
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.driver.session import (
    JobSession,
    LocalTasks,
    check_versions,
    clear_report,
    report_error,
    write_beside_report,
)
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import Credentials
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.lag import FileBacklog
from airflow_provider_snowpipe.streaming.progress import ListedChannel, show_channels


def main(argv: Sequence[str]) -> int:
    """Run the job of a plan, which is given as a path or as JSON text."""
    if len(argv) != 1:
        print("usage: spark-submit job.py PLAN.json (a file, or the JSON itself)", file=sys.stderr)
        return 2
    try:
        plan = read_plan(argv[0])
        credentials, secrets = _credentials(plan)
        clear_report(plan)
    except SnowpipeError as error:
        return report_error(error)
    return _run(plan, credentials, secrets)


def _run(plan: JobPlan, credentials: Credentials, secrets: SourceSecrets) -> int:
    began = time.monotonic()
    if plan.local_master and type(plan.source).__module__.startswith("airflow_provider_snowpipe."):
        _NoPandas().hide()
    with (
        SnowpipeClient(plan.account_url, credentials, plan.pipe, ca_bundle=plan.ca_bundle) as client,
        JobSession(plan) as session,
    ):
        run = Run(plan, client, session.start, secrets, partial(_channels, plan, credentials))
        try:
            if not plan.local_master:
                check_versions()
            run.prepare()
            tasks = LocalTasks(plan.local_master) if plan.local_master else session.executors()
            if run.load(tasks, partial(_begins, plan)):
                session.stop()
                run.verify()
                run.finish()
        except SnowpipeError as error:
            failed = run.report(began, error)
            write_beside_report(plan, Path(plan.report_path).name, failed.to_json())
            code = report_error(error)
            run.mark_reported()
            return code
        report = run.report(began)
        write_beside_report(plan, Path(plan.report_path).name, report.to_json())
        run.mark_reported()
    for channel in report.channels if not report.begun else ():
        print(
            f"snowpipe loaded channel={channel.channel} from={channel.from_token or 'NULL'} "
            f"to={channel.to_token or 'NULL'} rows={channel.rows} rejected={channel.rejected_words} "
            f"dead_lettered={channel.dead_lettered} undecoded={channel.undecoded} "
            f"committed={'yes' if channel.owes_nothing else 'not awaited'}",
            flush=True,
        )
    print(
        f"snowpipe done channels={len(report.channels)} rows={report.rows} bytes={report.bytes} "
        f"seconds={report.seconds:g}",
        flush=True,
    )
    return 0


class _NoPandas(MetaPathFinder):
    """Does not find pandas, for which PyArrow looks once, with the first value that it converts.

    To import it takes as long as a small load, and no source of this package has a use for it.
    """

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)

    def hide(self) -> None:
        """Let PyArrow look for it now; who else imports pandas gets it."""
        import pyarrow as pa

        sys.meta_path.insert(0, self)
        pa.array([""])
        sys.meta_path.remove(self)


def _channels(plan: JobPlan, credentials: Credentials) -> list[ListedChannel]:
    # It brings what COPY needs, and few runs ask.
    from airflow_provider_snowpipe.bulk.statement_client import statement_rows

    rows = statement_rows(plan.account_url, credentials, show_channels(plan.pipe), ca_bundle=plan.ca_bundle)
    return [ListedChannel.from_row(row) for row in rows]


def _begins(plan: JobPlan, channels: Mapping[str, ChannelStart]) -> None:
    write_beside_report(plan, START_FILE, start_text(channels))
    found = FileBacklog.total(one.backlog(None) for one in channels.values())
    left = "" if found is None else f" bytes_behind<={found.bytes} {found}"
    print(f"snowpipe start channels={len(channels)}{left}", flush=True)


def _credentials(plan: JobPlan) -> tuple[Credentials, SourceSecrets]:
    if plan.credentials_variable:
        return read_credentials_variable(plan.credentials_variable)
    if plan.credentials_from:
        return driver_credentials(plan.credentials_from)
    return read_driver_secrets(plan.credentials_path)


if __name__ == "__main__":
    # What a driver imports lives as long as it does. Looking for garbage in it, while PySpark is imported and
    # when Python ends, took more than a tenth of a small load over Spark Connect.
    gc.set_threshold(50_000)
    exit_code = main(sys.argv[1:])
    gc.freeze()
    sys.exit(exit_code)
