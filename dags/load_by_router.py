"""Load the readings of two stations, a day a run, by whichever way suits: channels, COPY or a file pipe.

``load`` plans by the shape of the files that are not in the table yet, and takes the path: its log and its
XCom ``plan`` show which and why. ``path`` forces one. Runs of one table may take different paths, be cleared,
tried again or killed: the source log in the folder gives each file to one loader. The files are made up here;
where yours come from elsewhere, set ``rows`` to 0 and name their folder: a folder in it for each partition.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator

FOLDER = str(Path(gettempdir()) / "load_by_router")
CREATE = [
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (STATION VARCHAR, DAY DATE, READING INTEGER)',
    'CREATE STAGE IF NOT EXISTS "{{ params.table }}_DROPPED"',
]


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("READINGS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "folder": Param(FOLDER, type="string", description="A folder for each station, seen by the driver"),
        "day": Param("2013-01-01", type="string", format="date", description="The files' day"),
        "rows": Param(100, type="integer", minimum=0, maximum=500_000, description="Rows of a day's file"),
        "path": Param("auto", type="string", enum=["auto", "stream", "copy", "pipe"]),
    },
)
def load_by_router() -> None:
    """Create, make files, load, count."""

    @task
    def make_files(params: dict[str, Any]) -> None:
        """A file of the day for each station, the same on every try."""
        import json

        for station in ("EWR", "JFK"):
            row = {"STATION": station, "DAY": str(params["day"])}
            lines = [json.dumps({**row, "READING": number}) + "\n" for number in range(params["rows"])]
            folder = Path(params["folder"]) / station
            folder.mkdir(parents=True, exist_ok=True)
            file, content = folder / f"{params['day']}.ndjson", "".join(lines)
            # Written again, a large file of an earlier day would count as changed, and the load would stop.
            if lines and (not file.exists() or file.read_text() != content):
                file.write_text(content)
            elif not any(folder.glob("*.ndjson")):
                file.touch()  # a station without a file would be no partition

    @task
    def count(params: dict[str, Any]) -> int:
        """Rows in the table."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        return int(SnowflakeHook().get_first(f'SELECT COUNT(*) FROM "{params["table"]}"')[0])  # noqa: S608

    create = SQLExecuteQueryOperator(task_id="create", conn_id="snowflake_default", sql=CREATE)
    pipe = SnowpipePipeOperator(
        task_id="pipe",
        action="create",
        pipe="{{ params.table }}_PIPE",
        table="{{ params.table }}",
        stage='@"{{ params.table }}_DROPPED"',
        options={"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"},
    )
    load = SnowpipeLoadOperator(
        task_id="load",
        source="{{ params.folder }}",
        source_name="{{ params.table }}",
        table="{{ params.table }}",
        path="{{ params.path }}",
        file_pipe="{{ params.table }}_PIPE",
        driver_memory="512m",
        deferrable=True,
        poll_interval=2.0,
    )
    create >> pipe >> load
    make_files() >> load >> count()


load_by_router()
