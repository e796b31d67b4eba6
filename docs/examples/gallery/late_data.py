"""Load files of any day when they arrive, and compute the days again that got rows."""

from typing import Any

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import dag, task

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import ByKey, FileSource, Parquet

TOTALS = """
    DELETE FROM TOTALS WHERE DAY = %(day)s;
    INSERT INTO TOTALS SELECT DAY, SUM(N) FROM CLICKS WHERE DAY = %(day)s GROUP BY DAY;
"""


@dag(schedule="@hourly", catchup=False, max_active_runs=1, default_args={"retries": 3})
def late_data() -> None:
    """One channel for each day: a late file goes to its own day's channel."""
    load = SnowpipeStreamOperator(
        task_id="load",
        source=FileSource(path="/data/clicks", format=Parquet(), partitions=ByKey("day")),
        table="CLICKS",
    )

    @task
    def days(value: dict[str, Any]) -> list[dict[str, str]]:
        """Name the days that got rows in this run."""
        return [{"day": name[-10:]} for name, one in value["channels"].items() if one["rows"]]

    SQLExecuteQueryOperator.partial(
        task_id="totals", conn_id="snowflake_default", sql=TOTALS, split_statements=True
    ).expand(parameters=days(load.output))


late_data()
