"""The DAG that ``test_openlineage.py`` runs in a process of its own, with the OpenLineage provider."""

import os

from airflow.sdk import DAG

from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor

with DAG("lineage", schedule=None) as dag:
    append = SnowpipeAppendRowsOperator(
        task_id="append", table="T", channel="small", batch=1, file=os.environ["ROWS_FILE"]
    )
    wait = SnowpipeCommitSensor(task_id="wait", table="T", targets=append.output["targets"], deferrable=True)
    load = SnowpipeStreamOperator(
        task_id="load",
        table="T",
        source={"path": os.environ["SOURCE"]},
        channel_prefix="load",
        openlineage_inject_parent_job_info=True,
    )
    # A row that the table cannot hold: the run aborts, with what it sent before.
    spoiled = SnowpipeStreamOperator(
        task_id="spoiled", table="T", source={"path": os.environ["SPOILED"]}, channel_prefix="spoiled"
    )
    copied = SnowpipeLoadOperator(
        task_id="copied", table="T", source=os.environ["COPIED"], channel_prefix="copied", path="copy"
    )
    staged = SnowpipeCopyOperator(
        task_id="staged", table="T", stage="@LINEAGE_FILES/day", options={"file_format": {"type": "CSV"}}
    )
    append >> wait >> copied >> staged >> load >> spoiled

if __name__ == "__main__":
    dag.test()
