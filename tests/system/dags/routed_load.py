"""A load that takes the path that suits, or the one that a run asks for."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.compat.sdk import DAG, Param

from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator

with DAG(
    "routed_load",
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    params={
        "table": Param("ROUTED_LOAD", type="string"),
        "folder": Param("/nowhere", type="string"),
        "path": Param("auto", type="string"),
    },
):
    SnowpipeLoadOperator(
        task_id="load",
        source="{{ params.folder }}",
        source_name="{{ params.table }}",
        table="{{ params.table }}",
        path="{{ params.path }}",
        driver_memory="512m",
        deferrable=True,
        poll_interval=1.0,
    )
