"""Append rows that others wait for: see the DAG ``commit_driven_totals``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

TABLE, CHANNEL = "METER_READINGS", "commit_driven_meters"


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={"hours": Param(24, type="integer", minimum=1, maximum=1000, description="How many readings")},
)
def commit_driven_meters() -> None:
    """Create the table, append to it."""
    create_table = SQLExecuteQueryOperator(
        task_id="create_table",
        conn_id="snowflake_default",
        sql=f'CREATE TABLE IF NOT EXISTS "{TABLE}" (METER VARCHAR, HOUR INTEGER, KWH FLOAT)',
        split_statements=False,
    )

    @task.snowpipe_append(table=TABLE, channel=CHANNEL)
    def read_meters(params: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"METER": "M1", "HOUR": hour, "KWH": 0.25} for hour in range(params["hours"])]

    create_table >> read_meters()


commit_driven_meters()
