"""Load many sources at once: one mapped task and one channel for each.

Each mapped task appends the rows of one station to a channel of its own, so all of them load at the same
time and each is resumed by itself: clear one, and only what it has not committed is sent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator

CREATE_TABLE = (
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (STATION VARCHAR, HOUR INTEGER, CELSIUS FLOAT)'
)
HOURS = 24


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("STATIONS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "stations": Param(4, type="integer", minimum=1, maximum=1000, description="How many stations"),
    },
)
def many_channels() -> None:
    """Create, measure, append in parallel, count."""

    @task
    def measure(params: dict[str, Any]) -> list[dict[str, Any]]:
        """The arguments of one append for each station: its channel and its rows."""
        return [
            {
                "channel": f"many_channels_station_{number:03}",
                "rows": [
                    {"STATION": f"S{number:03}", "HOUR": hour, "CELSIUS": number + hour / 10}
                    for hour in range(HOURS)
                ],
            }
            for number in range(params["stations"])
        ]

    @task
    def count(loads: list[dict[str, Any]]) -> dict[str, int]:
        """What this run loaded, over all channels."""
        return {"channels": len(loads), "rows": sum(load["rows"] for load in loads)}

    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    append = SnowpipeAppendRowsOperator.partial(task_id="append", table="{{ params.table }}").expand_kwargs(
        measure()
    )
    create_table >> append
    count(append.output)


many_channels()
