"""Formats whose rows are found by number: a killed run is resumed in the middle of a file."""

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.file_formats import numbered_rows, write_file
from tests.spark_job import SparkJob, ids_in, new_table, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 4000
SLOW = BatchLimits(rows=50, requests_per_second=4.0)
"""Forty appends to a channel, four a second: a run that can be interrupted."""


@pytest.mark.parametrize("ending", ["parquet", "ndjson.gz"])
def test_killed_run_is_resumed_in_the_middle_of_a_file(service_factory, tmp_path, ending):
    for index, group in enumerate(("a", "b")):
        path = tmp_path / "source" / group / f"0.{ending}"
        write_file(path, numbered_rows(path.name, range(index * 2000, index * 2000 + 2000)))
    service = service_factory()
    source = FileSourceSpec(path=str(tmp_path / "source"), format=ending.split(".")[0], pattern=f"*.{ending}")
    job = SparkJob(service, tmp_path / "runs", new_table(service, "T"), source, {"limits": SLOW})
    last = f"0.{ending}:2000"
    with job.start() as running:
        wait_until(
            lambda: any(token is not None for token in job.committed("a", "b").values()),
            seconds=300,
            what="the first commit of the first run",
        )
        running.kill_all()
    found = job.committed("a", "b")
    assert last not in found.values(), "the run was over before it could be interrupted"

    finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(service, job.table) == list(range(ROWS))
    assert job.committed("a", "b") == {"a": last, "b": last}
    assert 0 < finished.report.rows < ROWS
