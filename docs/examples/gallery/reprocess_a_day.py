"""Delete a day's rows and copy its files again; choose the day in the *Trigger* form."""

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import Param, dag

from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator


@dag(schedule=None, max_active_runs=1, params={"day": Param("2026-01-01", type="string", format="date")})
def reprocess_a_day() -> None:
    """COPY remembers files for 64 days, so it needs ``force``; a retry still loads no file twice."""
    delete = SQLExecuteQueryOperator(
        task_id="delete",
        conn_id="snowflake_default",
        sql="DELETE FROM READINGS WHERE DAY = '{{ params.day }}'",
    )
    copy = SnowpipeCopyOperator(
        task_id="copy",
        table="READINGS",
        stage="@DAYS/{{ params.day }}",
        options={"file_format": {"type": "CSV", "skip_header": 1}, "force": True},
        retries=3,
    )
    delete >> copy


reprocess_a_day()
