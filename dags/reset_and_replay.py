"""Load readings, find some of them wrong, and load those again, once a person has agreed.

The readings are numbered, and their numbers are the offset tokens of one channel. To load the later ones
again, their rows are deleted and the channel's token is set back to the last good reading; the channel then
takes the corrected rows from there. Both destroy something, so a person is asked before. The tokens are
backed up first. Needs Airflow 3.1 (approval) and 3.3 (retry policy).
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag, task

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.channels import SnowpipeResetOffsetOperator
from airflow_provider_snowpipe.operators.offsets import SnowpipeBackupOffsetsOperator
from airflow_provider_snowpipe.policies.retry import SnowpipeRetryPolicy

CHANNEL = "reset_and_replay_readings"
READINGS = 50
BACKUP = str(Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "offsets")
CREATE_TABLE = 'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (READING INTEGER NOT NULL, CELSIUS FLOAT)'
DELETE = 'DELETE FROM "{{ params.table }}" WHERE READING > {{ params.last_good }}'
COUNTS = 'SELECT COUNT(*), COUNT(DISTINCT READING), SUM(CELSIUS) FROM "{table}"'


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,  # a channel has one writer
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=5),
        "retry_policy": SnowpipeRetryPolicy(),
    },
    params={
        "table": Param("READINGS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="Target table"),
        "last_good": Param(30, type="integer", minimum=0, maximum=READINGS, description="Last good reading"),
        "backup_dir": Param(BACKUP, type="string", description="Where the offset tokens are kept"),
    },
)
def reset_and_replay() -> None:
    """Create, load, back up, ask, delete, reset, replay, verify."""

    @task
    def read(corrected: bool) -> list[dict[str, Any]]:
        """All readings; those after the last good one were in Fahrenheit, and are corrected on demand."""
        return [
            {"READING": n, "CELSIUS": 20.0 if corrected or n <= 30 else 68.0} for n in range(1, READINGS + 1)
        ]

    @task
    def verify(params: dict[str, Any]) -> list[float]:
        """Every reading is there once, and in Celsius."""
        from airflow.providers.snowflake.hooks.snowflake import SnowflakeHook

        rows, readings, total = SnowflakeHook().get_first(COUNTS.format(table=params["table"]))
        if (rows, readings, total) != (READINGS, READINGS, READINGS * 20.0):
            raise ValueError(f"{rows} rows of {readings} readings, sum {total}")
        return [rows, readings, total]

    channel = {"table": "{{ params.table }}", "channel": CHANNEL}
    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    # Two tasks load the channel, and a reading's number means the same to both.
    both: dict[str, Any] = {"token_column": "READING", "rebind": "continue", **channel}
    load = SnowpipeAppendRowsOperator(task_id="load", rows=read.override(task_id="read")(False), **both)
    back_up = SnowpipeBackupOffsetsOperator(
        task_id="back_up",
        table="{{ params.table }}",
        path="{{ params.backup_dir }}/{{ params.table }}.json",
        offset_format="integer",
    )
    approve = ApprovalOperator(
        task_id="approve",
        subject="Load the readings after {{ params.last_good }} again?",
        body="The rows after reading {{ params.last_good }} of {{ params.table }} will be deleted, and the "
        "channel set back from {{ ti.xcom_pull('load')['to'].partition('~')[0] }} to {{ params.last_good }}.",
    )
    delete = SQLExecuteQueryOperator(
        task_id="delete", conn_id="snowflake_default", sql=DELETE, split_statements=False
    )
    reset = SnowpipeResetOffsetOperator(
        task_id="reset",
        offset_token="{{ params.last_good }}",
        offset_format="integer",
        observe_seconds=3,
        **channel,
    )
    replay = SnowpipeAppendRowsOperator(
        task_id="replay",
        rows=read.override(task_id="read_corrected")(True),
        **both,
    )
    create_table >> load >> back_up >> approve >> delete >> reset >> replay >> verify()


reset_and_replay()
