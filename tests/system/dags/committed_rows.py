"""A load that does not wait for its commit, so that only the sensor stands between it and what follows."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor


@dag(
    schedule=None,
    catchup=False,
    render_template_as_native_obj=True,
    params={"table": Param("EVENTS", type="string"), "data_dir": Param("/nowhere", type="string")},
)
def committed_rows() -> None:
    @task
    def downstream(params: dict[str, Any]) -> int:
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        return int(SnowflakeHook().get_first(f"SELECT COUNT(*) FROM {params['table']}")[0])

    stream = SnowpipeStreamOperator(
        task_id="stream",
        source={"path": "{{ params.data_dir }}"},
        source_name="events",
        table="{{ params.table }}",
        wait_for_commit=False,
    )
    wait_for_commit = SnowpipeCommitSensor(
        task_id="wait_for_commit",
        targets=stream.output["targets"],
        table="{{ params.table }}",
        deferrable=True,
        poke_interval=0.5,
    )
    stream >> wait_for_commit >> downstream()


committed_rows()
