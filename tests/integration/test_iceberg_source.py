"""The Iceberg source: a real table, Spark's tasks, a real local service."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.submit.source import first_rows
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.iceberg_tables import IcebergTable
from tests.s3_service import KEY_ID, SECRET, s3_service
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name
from tests.table_loads import TableLoads

pytestmark = pytest.mark.spark

SMALL = BatchLimits(rows=7, requests_per_second=200.0)


class IcebergLoads(TableLoads):
    """Loads of an Iceberg table into a table of the service."""

    def __init__(self, service: Any, spark: Any, folder: Path, table: str) -> None:
        super().__init__(service, spark, folder, table)
        self.lake = IcebergTable(folder / "lake", partitioned=True)

    def load_snapshots(self, **source: Any) -> list[tuple[str, str | None, int]]:
        reports = self.load(source_spec(self.lake.source(**source)), limits=SMALL)
        return [(report.partition, report.to_token, report.rows) for report in reports]


@pytest.fixture
def loads(local_service, spark, tmp_path):
    return IcebergLoads(local_service, spark, tmp_path, new_table(local_service, numbered_name("ICEBERG")))


def test_snapshots_load_once_in_order_and_a_second_run_only_the_new_ones(loads):
    loads.lake.append(range(50, 100, 2))
    loads.lake.append(range(0, 20, 2))

    assert loads.load_snapshots() == [("all", "2:10", 35)]
    assert loads.ids_as_stored == [*range(50, 100, 2), *range(0, 20, 2)]
    assert loads.load_snapshots() == [("all", "2:10", 0)]

    loads.lake.compact()
    loads.lake.append([1, 3])
    assert loads.load_snapshots() == [("all", "4:2", 2)]
    assert loads.ids_as_stored[35:] == [1, 3]


def test_what_is_refused_leaves_channel_and_table_as_they_were(loads):
    loads.lake.append(range(10))
    assert loads.load_snapshots() == [("all", "1:10", 10)]
    loads.lake.append(range(10, 20))
    loads.lake.delete("ID = 3")

    with pytest.raises(SourcePositionError, match="deleted-records"):
        loads.load_snapshots()
    assert loads.ids == list(range(10))

    loads.lake.expire()
    with pytest.raises(SourcePositionError, match="expired"):
        loads.load_snapshots()
    assert loads.ids == list(range(10))


def test_job_loads_from_s3_with_keys_that_no_plan_or_output_shows(local_service, tmp_path, shared_spark):
    keys = {"s3.access-key-id": KEY_ID, "s3.secret-access-key": SECRET}
    with s3_service() as s3:
        s3.client.create_bucket(Bucket="lake")
        endpoint = {"s3.endpoint": f"http://{s3.endpoint}", "s3.region": "us-east-1"}
        lake = IcebergTable(
            tmp_path / "lake", warehouse="s3://lake", store={**endpoint, **keys}, partitioned=True
        )
        lake.append(range(60))
        lake.append(range(60, 80))
        source = source_spec(lake.source(partition_by="FILE", options={**lake.options, **endpoint}))
        secrets = SourceSecrets(keys)
        table = new_table(local_service, numbered_name("ICEBERG"))
        folder = tmp_path / "runs"
        job = SparkJob(local_service, folder, table, source, secrets=secrets, spark=shared_spark)

        finished = job.run()
        first = sorted(first_rows(source, secrets=secrets).lines)[0]

    assert finished.code == 0, finished.err[-3000:]
    assert first == b'{"ID":0,"FILE":"g0","NOTE":"x"}', "columns of a new table"
    assert ids_in(local_service, table) == list(range(80))
    assert job.committed("g0", "g1") == {"g0": "2:10", "g1": "2:10"}
    shown = [finished.out, finished.err]
    shown += [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert any("s3://lake" in text or "lake.orders" in text for text in shown)
    assert not any(SECRET in text for text in shown)
    assert ".parquet" not in str(asdict(job.source)), "the plan holds no file of the table"
