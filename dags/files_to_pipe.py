"""Stage files, give them to a file pipe, and go on only when it has loaded them.

``stage`` puts what the stage lacks there, several files at a time. ``ingest`` gives the files to the pipe,
which ``pipe`` makes where it is missing, and ``loaded`` passes when the pipe's own report, or load history
after that, reports that every file is in the table. Each of them may be tried again, or cleared: a file that
is staged stays as it is, and a pipe loads a file of one name once within 14 days. The files are made up
here; where yours come from elsewhere, leave ``make_files`` out and name their folder or bucket.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor

FOLDER = str(Path(gettempdir()) / "files_to_pipe")
CREATE = [
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (DAY DATE, STATION VARCHAR, HOUR INTEGER, C FLOAT)',
    'CREATE STAGE IF NOT EXISTS "{{ params.table }}_FILES"',
]
STATIONS = ("EWR", "JFK", "LGA")


@dag(
    schedule=None,
    catchup=False,
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("PIPED", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "folder": Param(FOLDER, type="string", description="Where the files are made"),
        "day": Param("2013-01-01", type="string", format="date", description="The files' day"),
    },
)
def files_to_pipe() -> None:
    """Create, make files, stage, submit, wait, count."""

    @task
    def make_files(params: dict[str, Any]) -> str:
        """One file for each station, the same on every try."""
        day = str(params["day"])
        folder = Path(params["folder"]) / day
        folder.mkdir(parents=True, exist_ok=True)
        for station in STATIONS:
            lines = [f"{day},{station},{hour},{hour / 2}\n" for hour in range(24)]
            (folder / f"{station}.csv").write_text("".join(lines))
        return str(folder)

    @task
    def count(params: dict[str, Any]) -> int:
        """Rows of the day."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        statement = f'SELECT COUNT(*) FROM "{params["table"]}" WHERE DAY = %s'  # noqa: S608
        return int(SnowflakeHook().get_first(statement, parameters=(params["day"],))[0])

    create = SQLExecuteQueryOperator(task_id="create", conn_id="snowflake_default", sql=CREATE)
    folder = make_files()
    stage = SnowpipeStageFilesOperator(
        task_id="stage", source=folder, stage='@"{{ params.table }}_FILES"/{{ params.day }}'
    )
    pipe = SnowpipePipeOperator(
        task_id="pipe",
        action="create",
        pipe="{{ params.table }}_PIPE",
        table="{{ params.table }}",
        stage='@"{{ params.table }}_FILES"',
        options={"file_format": {"type": "CSV"}},
    )
    ingest = SnowpipeIngestFilesOperator(
        task_id="ingest",
        pipe="{{ params.table }}_PIPE",
        stage='@"{{ params.table }}_FILES"',
        prefix="{{ params.day }}/",
        wait_for_load=False,
    )
    loaded = SnowpipeFilesLoadedSensor(
        task_id="loaded",
        files=ingest.output["files"],
        pipe="{{ params.table }}_PIPE",
        table="{{ params.table }}",
        deferrable=True,
        poke_interval=5,
    )
    create >> [stage, pipe]
    [stage, pipe] >> ingest >> loaded >> count()


files_to_pipe()
