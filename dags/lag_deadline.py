"""Wait for readings that another system streams, and report how far its channel is when they are late.

The run has a deadline. When it passes, Airflow's triggerer asks the service after the channel and reports
its committed token beside the one that was expected; the run itself goes on waiting. Needs Airflow 3.2.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference, Param, dag

from airflow_provider_snowpipe.notifications.lag import SnowpipeLagNotifier
from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor

CHANNEL = "lag_deadline_readings"
DEADLINE = timedelta(seconds=float(os.environ.get("LAG_DEADLINE_SECONDS", "600")))
CREATE_TABLE = 'CREATE TABLE IF NOT EXISTS "{{ params.table }}" (READING INTEGER NOT NULL, CELSIUS FLOAT)'


@dag(
    schedule=None,
    catchup=False,
    tags=["snowpipe", "example"],
    doc_md=__doc__,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=DEADLINE,
        callback=AsyncCallback(
            SnowpipeLagNotifier,
            # In the triggerer the context has the run, but no params.
            kwargs={
                "table": "{{ dag_run.conf.get('table', 'LATE_READINGS') }}",
                "targets": {CHANNEL: "{{ dag_run.conf.get('until', 100) }}"},
                "offset_format": "integer",
            },
        ),
    ),
    params={
        "table": Param("LATE_READINGS", type="string", pattern="^[A-Z_][A-Z0-9_]*$", description="The table"),
        "until": Param(100, type="integer", minimum=0, description="The reading that must be committed"),
    },
)
def lag_deadline() -> None:
    """Create, open, wait."""
    create_table = SQLExecuteQueryOperator(
        task_id="create_table", conn_id="snowflake_default", sql=CREATE_TABLE, split_statements=False
    )
    open_channel = SnowpipeOpenChannelOperator(
        task_id="open_channel", table="{{ params.table }}", channel=CHANNEL, if_exists="skip"
    )
    wait = SnowpipeCommitSensor(
        task_id="wait",
        table="{{ params.table }}",
        targets={CHANNEL: "{{ params.until }}"},
        offset_format="integer",
        deferrable=True,
        poke_interval=2,
        timeout=3600,
    )
    create_table >> open_channel >> wait


lag_deadline()
