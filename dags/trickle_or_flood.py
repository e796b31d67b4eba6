"""Let the shape of the data choose its way: a trickle through a channel, a flood by COPY.

The task ``route`` probes the file and plans its load. A small file is streamed, row by row into a
channel. A large one, or one of the past (``history``), is staged and copied. Either way the rows arrive
once, also when a task is tried again; ``route``'s log and its XCom ``plan`` show why, and what each way
would have cost.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator

FOLDER = str(Path(gettempdir()) / "trickle_or_flood")
CREATE = [
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (STATION VARCHAR, HOUR INTEGER, CELSIUS FLOAT)',
    'CREATE STAGE IF NOT EXISTS "{{ params.table }}_STAGE"',
]


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("ROUTED", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "folder": Param(FOLDER, type="string", description="Where the file is made"),
        "rows": Param(100, type="integer", minimum=1, maximum=50_000, description="How many rows"),
        "history": Param(False, type="boolean", description="The rows are of the past"),
    },
)
def trickle_or_flood() -> None:
    """Create, make a file, route, load by one of two ways, count."""

    @task
    def make_file(params: dict[str, Any], run_id: str) -> str:
        """The same file for every try of the run."""
        import json
        import re

        file = Path(params["folder"]) / f"{re.sub('[^A-Za-z0-9]+', '_', run_id)}.ndjson"
        file.parent.mkdir(parents=True, exist_ok=True)
        readings = ({"STATION": "EWR", "HOUR": hour, "CELSIUS": hour / 10} for hour in range(params["rows"]))
        file.write_text("".join(json.dumps(reading) + "\n" for reading in readings))
        return str(file)

    @task.snowpipe_route(stream="append", copy="stage_file")
    def route(file: str, params: dict[str, Any]) -> dict[str, Any]:
        """What is known of the data."""
        import datetime as dt

        from airflow_provider_snowpipe.routing.probes import folder_shape

        return folder_shape(file, dt.datetime.now(dt.UTC), backfill=params["history"]).as_json()

    @task(trigger_rule="none_failed_min_one_success")
    def count(params: dict[str, Any]) -> int:
        """Rows in the table."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        return int(SnowflakeHook().get_first(f'SELECT COUNT(*) FROM "{params["table"]}"')[0])  # noqa: S608

    create = SQLExecuteQueryOperator(task_id="create", conn_id="snowflake_default", sql=CREATE)
    file = make_file()
    routed = route(file)
    append = SnowpipeAppendRowsOperator(task_id="append", table="{{ params.table }}", file=file)
    stage_file = SnowpipeStageFilesOperator(
        task_id="stage_file", source=file, stage='@"{{ params.table }}_STAGE"'
    )
    copy = SnowpipeCopyOperator(
        task_id="copy",
        table="{{ params.table }}",
        stage='@"{{ params.table }}_STAGE"',
        files=stage_file.output["files"],
        options={"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"},
    )
    create >> routed >> [append, stage_file]
    [append, copy] >> count()


trickle_or_flood()
