"""A job on an Iceberg table in S3, read by Spark's tasks; unit tests have what snapshots may do."""

from dataclasses import asdict

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.spark.submit.source import first_rows
from tests.iceberg_tables import IcebergTable
from tests.local_connection import ids
from tests.s3_service import KEY_ID, SECRET, s3_service
from tests.spark_job import SparkJob, new_table, numbered_name

pytestmark = pytest.mark.spark


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

        finished = job.load()
        first = sorted(first_rows(source, secrets=secrets).lines)[0]

    assert first == b'{"ID":0,"FILE":"g0","NOTE":"x"}', "columns of a new table"
    assert ids(local_service, table) == list(range(80))
    assert job.committed("g0", "g1") == {"g0": "2:10", "g1": "2:10"}
    shown = [finished.out, finished.err]
    shown += [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert any("s3://lake" in text or "lake.orders" in text for text in shown)
    assert not any(SECRET in text for text in shown)
    assert ".parquet" not in str(asdict(job.source)), "the plan holds no file of the table"
