"""Give small files of devices to a file pipe, each once, and wait until they are loaded."""

from airflow.sdk import dag

from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator


@dag(schedule="*/5 * * * *", catchup=False, max_active_runs=1, default_args={"retries": 3})
def iot_files() -> None:
    """The pipe remembers paths for 14 days, so a retry loads nothing twice."""
    pipe = SnowpipePipeOperator(
        task_id="pipe",
        action="create",
        pipe="DEVICES_PIPE",
        table="DEVICES",
        stage="@DEVICES",
        options={"file_format": {"type": "JSON"}, "match_by_column_name": "CASE_INSENSITIVE"},
    )
    stage = SnowpipeStageFilesOperator(
        task_id="stage", source="/data/devices", stage="@DEVICES", on_nothing="report"
    )
    ingest = SnowpipeIngestFilesOperator(
        task_id="ingest",
        pipe="DEVICES_PIPE",
        stage="@DEVICES",
        files=stage.output["files"],
        table="DEVICES",
        on_nothing="report",
        deferrable=True,
    )
    [pipe, stage] >> ingest


iot_files()
