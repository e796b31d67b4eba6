"""Load the history of a day from many small files: Spark combines them, and one COPY loads the rows.

``load`` has Spark read the folder and write its rows as files of the size that COPY likes, puts them into a
stage, and copies. It may be tried again or cleared at any time: the load ledger records which files are this
day's, and which of them are in the table. Its ``run_key`` names the day, so that
another run for the same day loads nothing. The files are made up here; where yours come from elsewhere, leave
``make_files`` out and name their folder, a table of Spark's catalog or a query.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator

FOLDER = str(Path(gettempdir()) / "flood_with_spark")
CREATE = [
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (DAY DATE, SENSOR INTEGER, READING VARIANT)',
    'CREATE STAGE IF NOT EXISTS "{{ params.table }}_FLOOD"',
]
SENSORS, READINGS = 100, 24


@dag(
    schedule=None,
    catchup=False,
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "table": Param("FLOODED", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "folder": Param(FOLDER, type="string", description="Where the files are made"),
        "day": Param("2013-01-01", type="string", format="date", description="The files' day"),
    },
)
def flood_with_spark() -> None:
    """Create, make files, load, count."""

    @task
    def make_files(params: dict[str, Any]) -> dict[str, Any]:
        """One small file for each sensor, the same on every try; what Spark is to read."""
        day = str(params["day"])
        folder = Path(params["folder"]) / day
        folder.mkdir(parents=True, exist_ok=True)
        for sensor in range(SENSORS):
            rows = [
                {"day": day, "sensor": sensor, "reading": {"hour": hour, "celsius": hour / 2}}
                for hour in range(READINGS)
            ]
            (folder / f"{sensor:03}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(folder), "format": "json"}

    @task
    def count(params: dict[str, Any]) -> int:
        """Rows of the day."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        statement = f'SELECT COUNT(*) FROM "{params["table"]}" WHERE DAY = %s'  # noqa: S608
        return int(SnowflakeHook().get_first(statement, parameters=(params["day"],))[0])

    create = SQLExecuteQueryOperator(task_id="create", conn_id="snowflake_default", sql=CREATE)
    load = SnowpipeBulkLoadOperator(
        task_id="load",
        source=make_files(),
        table="{{ params.table }}",
        stage='@"{{ params.table }}_FLOOD"',
        run_key="{{ params.table }} {{ params.day }}",
        driver_memory="1g",
    )
    create >> load >> count()


flood_with_spark()
