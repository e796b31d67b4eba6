"""Load each day of a lake table once, by files and COPY; backfill it by ``airflow backfill create``."""

import datetime as dt

from airflow.sdk import dag

from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.sources import TableSource


@dag(schedule="0 2 * * *", start_date=dt.datetime(2026, 1, 1), catchup=False, default_args={"retries": 3})
def nightly_backfill() -> None:
    """The key names the day, so no run loads a day twice."""
    SnowpipeBulkLoadOperator(
        task_id="load",
        source=TableSource(query="SELECT * FROM lake.readings WHERE day = '{{ ds }}'"),
        table="READINGS",
        stage="@FLOOD",
        run_key="readings {{ ds }}",
    )


nightly_backfill()
