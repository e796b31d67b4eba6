"""Files that somebody else loads, and a task that may run only when they are."""

from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task

from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor


@dag(
    schedule=None,
    catchup=False,
    render_template_as_native_obj=True,
    params={"table": Param("", type="string"), "files": Param([], type="array")},
)
def staged_files() -> None:
    @task
    def downstream(params: dict[str, Any]) -> int:
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        return int(SnowflakeHook().get_first(f"SELECT COUNT(*) FROM {params['table']}")[0])

    loaded = SnowpipeFilesLoadedSensor(
        task_id="loaded",
        files="{{ params.files | tojson }}",
        table="{{ params.table }}",
        deferrable=True,
        poke_interval=2,
    )
    loaded >> downstream()
    SnowpipeFilesLoadedSensor(
        task_id="without_worker",
        files="{{ params.files | tojson }}",
        table="{{ params.table }}",
        deferrable=True,
        start_from_trigger=True,
        end_from_trigger=True,
        poke_interval=2,
    )


staged_files()
