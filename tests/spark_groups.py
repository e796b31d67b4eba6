"""A job on three groups of numbered rows in a Spark context of the test, and the proof that it is exact."""

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.local_service import LocalService
from tests.spark_job import SparkJob, new_table, write_rows

GROUPS = ("a", "b", "c")
ROWS = 600
"""Rows of a group, in three files."""
LIMITS = BatchLimits(rows=50, requests_per_second=50.0)
"""Twelve appends to a channel, so that there is something between the first row and the last."""
_numbers = itertools.count(1)


def grouped_job(service: LocalService, folder: Path, name: str = "GROUPED", **options: Any) -> SparkJob:
    """Write the groups, make a table of its own and plan its load."""
    for index, group in enumerate(GROUPS):
        for file in range(3):
            begin = index * 10_000 + file * ROWS // 3
            write_rows(folder / "source" / group / f"{file}.ndjson", range(begin, begin + ROWS // 3))
    return SparkJob(
        service,
        folder / "runs",
        new_table(service, re.sub(r"\W", "_", f"{name[:100]}_{next(_numbers)}").upper()),
        FileSource(path=str(folder / "source")),
        {"limits": LIMITS, **options},
    )


def load(job: SparkJob, spark: Any, session: Callable[[], Any] | None = None, **changes: Any) -> Run:
    """Load in a Spark context of this process; the session is for sources that are queries."""
    plan = job.plan(**changes)
    key = job.service.credentials
    with SnowpipeClient(plan.account_url, key, plan.pipe, ca_bundle=plan.ca_bundle) as client:
        run = Run(plan, client, session, job.secrets)
        run.prepare()
        run.load(spark)
        run.verify()
        run.finish()
    return run


def load_until_it_succeeds(job: SparkJob, spark: Any) -> Run:
    """Run as a scheduler does, which starts a failed run again."""
    for _ in range(3):
        with suppress(SnowpipeError, Py4JJavaError):
            return load(job, spark)
    return load(job, spark)


def assert_exact(job: SparkJob) -> None:
    """Each row once, and each channel's in the order of its source: the table keeps the order of commits."""
    found = [int(row["ID"]) for row in job.service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{job.table}")]
    for index, group in enumerate(GROUPS):
        begin = index * 10_000
        of_group = [row for row in found if begin <= row < begin + 10_000]
        assert of_group == list(range(begin, begin + ROWS)), group
    assert len(found) == ROWS * len(GROUPS)
    assert job.committed(*GROUPS) == dict.fromkeys(GROUPS, f"2.ndjson:{ROWS // 3}")
