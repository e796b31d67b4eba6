"""Load a range of days in bulk, each day in a task of its own, and none of them twice.

Each day's files lie in a folder of a stage. COPY loads the files of one day, once per run whatever becomes
of the worker, and the sensor passes when load history shows that every one of them is in the table. COPY
remembers what it has loaded for 64 days, so a run over days that are loaded already finds nothing to do:
clear a day, or run an overlapping range, whenever you like. The days' files are made up here; where they
are in a stage of yours already, leave ``stage_day`` out.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import Param, dag, task, task_group
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor

CREATE = [
    'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (DAY DATE, STATION VARCHAR, HOUR INTEGER, C FLOAT)',
    'CREATE STAGE IF NOT EXISTS "{{ params.stage }}"',
]
ROWS_BY_DAY = (
    'SELECT TO_VARCHAR(DAY), COUNT(*) FROM "{table}" WHERE DAY BETWEEN %s AND %s GROUP BY 1 ORDER BY 1'
)
STATIONS = ("EWR", "JFK", "LGA")
IDENTIFIER = "^[A-Z_][A-Z0-9_]*$"


@dag(
    schedule=None,
    catchup=False,
    max_active_tasks=4,  # days at a time
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "first_day": Param("2013-01-01", type="string", format="date", description="First day to load"),
        "last_day": Param("2013-01-03", type="string", format="date", description="Last day to load"),
        "table": Param("READINGS_BY_DAY", type="string", pattern=IDENTIFIER, description="Target table"),
        "stage": Param("DAYS", type="string", pattern=IDENTIFIER, description="Stage with a folder per day"),
    },
)
def backfill_days() -> None:
    """Create, then for each day stage, copy and wait; verify."""

    @task
    def days(params: dict[str, Any]) -> list[str]:
        """Every day of the range."""
        first, last = (date.fromisoformat(params[name]) for name in ("first_day", "last_day"))
        if last < first:
            raise ValueError(f"last_day {last} is before first_day {first}")
        return [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]

    @task(multiple_outputs=True)
    def stage_day(day: str, params: dict[str, Any]) -> dict[str, str]:
        """Put one file for each station into the day's folder; what is there already stays."""
        from pathlib import Path
        from tempfile import TemporaryDirectory

        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        with TemporaryDirectory() as folder:
            for station in STATIONS:
                lines = [f"{day},{station},{hour},{hour / 2}\n" for hour in range(24)]
                (Path(folder) / f"{station}.csv").write_text("".join(lines))
            SnowflakeHook().run(
                f"PUT 'file://{folder}/*.csv' @\"{params['stage']}\"/{day} AUTO_COMPRESS = FALSE"
            )
        return {"prefix": f"{day}/"}

    @task_group
    def load_day(day: str) -> None:
        """What happens to one day."""
        staged = stage_day(day)
        copy = SnowpipeCopyOperator(
            task_id="copy",
            table="{{ params.table }}",
            stage='@"{{ params.stage }}"',
            prefix=staged["prefix"],
            options={"file_format": {"type": "CSV"}},
            deferrable=True,
        )
        loaded = SnowpipeFilesLoadedSensor(
            task_id="loaded",
            prefix=staged["prefix"],
            stage="{{ params.stage }}",
            table="{{ params.table }}",
            deferrable=True,
        )
        copy >> loaded

    @task
    def verify(each_day: list[str], params: dict[str, Any]) -> dict[str, int]:
        """Every day has every hour of every station once."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        statement = ROWS_BY_DAY.format(table=params["table"])
        found = dict(SnowflakeHook().get_records(statement, parameters=(each_day[0], each_day[-1])))
        if found != dict.fromkeys(each_day, 24 * len(STATIONS)):
            raise ValueError(f"{params['table']} has {found}")
        return found

    create = SQLExecuteQueryOperator(task_id="create", conn_id="snowflake_default", sql=CREATE)
    each_day = days()
    loads = load_day.expand(day=each_day)
    create >> loads >> verify(each_day)


backfill_days()
