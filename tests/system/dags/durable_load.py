"""Loads and a task after each: their commit is awaited in the driver, in the triggerer or by a sensor."""

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import DAG, Param, task

from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor

DEFERRED = {"account": "LOCAL", "database": "LOCAL", "schema": "PUBLIC", "table": "DEFERRED"}
LOADS: dict[str, dict[str, Any]] = {
    "durable_load": {},
    "streamed_and_sensed": {"wait_for_commit": False},
    "deferred_load": {
        "deferrable": True,
        "poll_interval": 1.0,
        "outlets": [
            snowpipe_asset(**DEFERRED),
            snowpipe_asset(**DEFERRED, channel="deferred_load_DEFERRED_a", partitioned=True),
        ],
    },
}


@task
def downstream(params: dict[str, Any]) -> int:
    from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

    return int(SnowflakeHook().get_first(f"SELECT COUNT(*) FROM {params['table']}")[0])


def commit_of(load: Any) -> SnowpipeCommitSensor:
    return SnowpipeCommitSensor(
        task_id="wait_for_commit",
        targets=load.output["targets"],
        table="{{ params.table }}",
        deferrable=True,
        poke_interval=1,
    )


for dag_id, options in LOADS.items():
    with DAG(
        dag_id,
        schedule=None,
        catchup=False,
        render_template_as_native_obj=True,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
        params={"table": Param("EVENTS", type="string"), "data_dir": Param("/nowhere", type="string")},
    ):
        load = SnowpipeStreamOperator(
            task_id="stream",
            source={"path": "{{ params.data_dir }}"},
            source_name="{{ params.table }}",
            table="{{ params.table }}",
            driver_memory="512m",
            **{"conf": {"spark.ui.enabled": "true"}, **options},
        )
        last = load if options.get("wait_for_commit", True) else load >> commit_of(load)
        last >> downstream()

with DAG("sensed_load", schedule=None, catchup=False, params={"table": "SENSED"}):
    append = SnowpipeAppendRowsOperator(
        task_id="append",
        table="{{ params.table }}",
        channel="sensed_load",
        rows=[{"N": number} for number in (1, 2, 3)],
        token_column="N",
        wait_for_commit=False,
    )
    append >> commit_of(append) >> downstream()
