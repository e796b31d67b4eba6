"""The table source when something dies: whatever is killed, every row is in the table once, and in order."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.spark_job import SparkJob, new_table, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 6000
SLOW = BatchLimits(rows=100, requests_per_second=3.0)
"""Thirty appends to a channel, three a second: a run that can be interrupted."""


@pytest.fixture
def job(service_factory, tmp_path):
    """Four files of shuffled rows, loaded through a channel for odd and one for even numbers."""
    service = service_factory()
    (tmp_path / "rows").mkdir()
    ids = [number * 7919 % ROWS for number in range(ROWS)]
    for file in range(4):
        mine = ids[file::4]
        columns = {"ID": pa.array(mine, pa.int64()), "FILE": [f"g{one % 2}" for one in mine]}
        pq.write_table(pa.table(columns), tmp_path / "rows" / f"{file}.parquet")
    source = source_spec(
        {"kind": "table", "path": str(tmp_path / "rows"), "offset_column": "ID", "partition_by": "FILE"}
    )
    return SparkJob(service, tmp_path / "runs", new_table(service, "T"), source, {"limits": SLOW})


def _under_way(job):
    """True when a channel has committed something, and not yet everything."""
    tokens = [int(token) for token in job.committed("g0", "g1").values() if token is not None]
    assert max(tokens, default=0) < ROWS - 2, "the run was over before it could be interrupted"
    return bool(tokens)


def _all_there_once_and_in_order(job):
    rows = job.service.sql(f"SELECT ID, FILE FROM LOCAL.PUBLIC.{job.table}")
    for remainder in (0, 1):
        found = [int(row["ID"]) for row in rows if row["FILE"] == f"g{remainder}"]
        assert found == list(range(remainder, ROWS, 2))
    assert job.committed("g0", "g1") == {"g0": str(ROWS - 2), "g1": str(ROWS - 1)}


def test_killed_driver_is_resumed_by_the_next_run_in_order(job):
    with job.start() as running:
        wait_until(lambda: _under_way(job), seconds=400, what="the first commit of the first run")
        running.kill_all()
        finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    assert 0 < finished.report.rows < ROWS
    _all_there_once_and_in_order(job)
