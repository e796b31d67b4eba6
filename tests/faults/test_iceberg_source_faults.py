"""The Iceberg source when its driver dies: the next run goes on in the middle of the snapshot."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset
from tests.iceberg_tables import IcebergTable
from tests.spark_job import SparkJob, new_table, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 3000
LAST = BatchRowOffset(2, ROWS // 2)


def test_killed_driver_is_resumed_in_order_though_the_table_was_compacted_meanwhile(
    service_factory, tmp_path
):
    service = service_factory()
    lake = IcebergTable(tmp_path / "lake", partitioned=True)
    lake.append(range(ROWS, 2 * ROWS))
    lake.append(range(ROWS))
    slow = BatchLimits(rows=100, requests_per_second=3.0)
    source = source_spec(lake.source(partition_by="FILE"))
    job = SparkJob(service, tmp_path / "runs", new_table(service, "T"), source, {"limits": slow})

    def under_way() -> bool:
        found = [BatchRowOffset.parse(token) for token in job.committed("g0", "g1").values() if token]
        assert max(found, default=BatchRowOffset(0, 0)) < LAST, "the run was over before it could be killed"
        return bool(found)

    with job.start() as running:
        wait_until(under_way, seconds=600, what="the first commit of the first run")
        running.kill_all()
    lake.compact()
    lake.append([2 * ROWS])
    finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    assert 0 < finished.report.rows <= 2 * ROWS
    rows = job.service.sql(f"SELECT ID, FILE FROM LOCAL.PUBLIC.{job.table}")
    for remainder, last in ((0, [2 * ROWS]), (1, [])):
        found = [int(row["ID"]) for row in rows if row["FILE"] == f"g{remainder}"]
        assert found == [*range(ROWS + remainder, 2 * ROWS, 2), *range(remainder, ROWS, 2), *last]
    assert job.committed("g0", "g1") == {"g0": "4:1", "g1": str(LAST)}
