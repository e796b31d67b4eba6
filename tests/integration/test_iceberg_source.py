"""The Iceberg source: a real table, Spark's tasks, a real local service."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.submit.source import first_rows
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.iceberg_tables import IcebergTable
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


def test_columns_of_a_new_table_are_known_before_the_job_starts(loads):
    loads.lake.append(range(4))

    assert sorted(first_rows(source_spec(loads.lake.source())).lines)[0] == b'{"ID":0,"FILE":"g0","NOTE":"x"}'


def test_job_loads_and_its_plan_holds_no_file_of_the_table(local_service, tmp_path, shared_spark):
    lake = IcebergTable(tmp_path / "lake", partitioned=True)
    lake.append(range(100))
    table = new_table(local_service, numbered_name("ICEBERG"))
    source = source_spec(lake.source(partition_by="FILE"))
    job = SparkJob(local_service, tmp_path / "runs", table, source, spark=shared_spark)

    finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(local_service, table) == list(range(100))
    assert job.committed("g0", "g1") == {"g0": "1:50", "g1": "1:50"}
    assert ".parquet" not in str(asdict(job.source))
