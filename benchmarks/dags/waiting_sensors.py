"""Many sensors that wait for channels of one pipe, as ``benchmarks/deferred_sensors.py`` asks for them."""

from __future__ import annotations

import os

from airflow.providers.common.compat.sdk import DAG

from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor

# Several DAGs, because the triggerer gets the whole DAG with each sensor that starts there.
DAGS = int(os.environ.get("WAITING_DAGS", "0"))
SENSORS = int(os.environ.get("WAITING_SENSORS", "0"))
CHANNELS = SENSORS // 2
POLL_SECONDS = 5.0

for dag_number in range(DAGS):
    with DAG(f"waiting_{dag_number:02}", schedule=None, catchup=False):
        for number in range(dag_number, SENSORS, DAGS):
            SnowpipeCommitSensor(
                task_id=f"sensor_{number:04}",
                targets={f"w{number % CHANNELS:04}": str(1 + number // CHANNELS)},
                offset_format="integer",
                table="WAITING",
                snowflake_conn_id="counted",
                poke_interval=POLL_SECONDS,
                timeout=1_200,
                deferrable=True,
                start_from_trigger=True,
                end_from_trigger=True,
            )
