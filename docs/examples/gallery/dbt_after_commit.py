"""Run dbt only when the rows are committed, and let the triggerer wait."""

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sources import FileSource


@dag(schedule="@hourly", catchup=False, max_active_runs=1, default_args={"retries": 3})
def dbt_after_commit() -> None:
    """Spark ends when the rows are received; no worker waits for the commit."""
    load = SnowpipeStreamOperator(
        task_id="load", source=FileSource(path="/data/orders"), table="ORDERS", wait_for_commit=False
    )
    committed = SnowpipeCommitSensor(
        task_id="committed", targets=load.output["targets"], table="ORDERS", deferrable=True
    )
    build = BashOperator(task_id="build", bash_command="dbt build --select orders+", cwd="/opt/dbt")
    load >> committed >> build


dbt_after_commit()
