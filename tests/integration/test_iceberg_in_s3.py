"""The Iceberg source on a table in S3: its store's keys reach the tasks, and nobody else."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from tests.iceberg_tables import IcebergTable
from tests.s3_service import KEY_ID, SECRET, s3_service
from tests.spark_job import SparkJob, ids_in, new_table, numbered_name

pytestmark = pytest.mark.spark


def test_table_in_s3_is_loaded_with_keys_that_no_plan_or_output_shows(local_service, tmp_path, shared_spark):
    keys = {"s3.access-key-id": KEY_ID, "s3.secret-access-key": SECRET}
    with s3_service() as s3:
        s3.client.create_bucket(Bucket="lake")
        endpoint = {"s3.endpoint": f"http://{s3.endpoint}", "s3.region": "us-east-1"}
        lake = IcebergTable(tmp_path / "lake", warehouse="s3://lake", store={**endpoint, **keys})
        lake.append(range(60))
        lake.append(range(60, 80))
        source = source_spec(lake.source(options={**lake.options, **endpoint}))
        table = new_table(local_service, numbered_name("ICEBERG"))
        job = SparkJob(
            local_service, tmp_path / "runs", table, source, secrets=SourceSecrets(keys), spark=shared_spark
        )

        finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(local_service, table) == list(range(80))
    assert job.committed("all") == {"all": "2:20"}
    shown = [finished.out, finished.err]
    shown += [path.read_text() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any("s3://lake" in text or "lake.orders" in text for text in shown)
    assert not any(SECRET in text for text in shown)
