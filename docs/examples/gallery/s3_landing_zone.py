"""Load files of a landing bucket when they arrive, and archive what is committed."""

from airflow.sdk import dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import ByDirectory, Csv, FileSource


@dag(schedule="*/10 * * * *", catchup=False, max_active_runs=1, default_args={"retries": 3})
def s3_landing_zone() -> None:
    """One channel for each supplier's folder; bad rows go to a folder of their own."""
    SnowpipeStreamOperator(
        task_id="load",
        source=FileSource(
            path="s3://landing/orders",
            conn_id="aws_default",
            format=Csv(header=True),
            partitions=ByDirectory(),
            after_commit="archive",
            archive_path="s3://landing/archive/orders",
        ),
        table="ORDERS",
        on_error="dead_letter",
        dead_letter_path="s3://landing/rejected/orders",
    )


s3_landing_zone()
