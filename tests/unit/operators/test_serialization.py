"""A DAG with every operator survives Airflow's serialization, the way the scheduler and the UI see it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

from airflow_provider_snowpipe.decorators.append import snowpipe_append_task
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.channels import (
    SnowpipeDropChannelOperator,
    SnowpipeOpenChannelOperator,
    SnowpipeResetOffsetOperator,
)
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.file_pipe import SnowpipePipeOperator
from airflow_provider_snowpipe.operators.ingest_files import SnowpipeIngestFilesOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.offsets import (
    SnowpipeBackupOffsetsOperator,
    SnowpipeRestoreOffsetsOperator,
)
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.sources import FileSource
from tests.airflow_version import AIRFLOW

LINK: Any = {"Snowsight": "_link_SnowsightLink", "Channel page": "_link_ChannelPageLink"}
if AIRFLOW < (3, 0):
    LINK = [{"airflow_provider_snowpipe.links.snowpipe.SnowsightLink": {}}]


@pytest.fixture
def tasks():
    """The serialized tasks, by their ids."""
    if AIRFLOW >= (3, 2):
        from airflow.serialization.serialized_objects import DagSerialization
    else:
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

    @snowpipe_append_task(table="T", channel="decorated")
    def decorated() -> list[dict[str, Any]]:
        return []

    with DAG("d", schedule=None) as dag:
        SnowpipeOpenChannelOperator(task_id="open", table="T", channel="c", offset_token="{{ x }}")
        SnowpipeDropChannelOperator(task_id="drop", table="T", channel="c")
        SnowpipeResetOffsetOperator(task_id="reset", table="T", channel="c", offset_token="a:1")
        SnowpipeBackupOffsetsOperator(task_id="backup", table="T", path="/p")
        SnowpipeRestoreOffsetsOperator(task_id="restore", table="T", path="/p", channels=["c"])
        SnowpipeAppendRowsOperator(task_id="append", table="T", rows=[{"ID": 1}])
        SnowpipeOpenChannelOperator.partial(task_id="mapped", table="T").expand(channel=["a", "b"])
        decorated()
        SnowpipeBranchOperator(task_id="branch", source="@S", stream="append", shape={"freshness": 5})
        SnowpipeCopyOperator(task_id="copy", table="T", stage="@S", options={"force": True})
        SnowpipeLoadOperator(task_id="load", table="T", source="{{ folder }}", shape={"freshness": 5})
        SnowpipeBulkLoadOperator(task_id="bulk", table="T", source={"query": "SELECT 1"}, run_key="{{ ds }}")
        staged = SnowpipeStageFilesOperator(task_id="stage", source="/in", stage="@S")
        SnowpipePipeOperator(task_id="pipe", pipe="P", action="create", table="T", stage="@S")
        SnowpipeIngestFilesOperator(task_id="ingest", pipe="P", files=staged.output["files"])
        stream = SnowpipeStreamOperator(task_id="stream", source=FileSource(path="/in/{{ ds }}"), table="T")
        SnowpipeCommitSensor(
            task_id="committed", table="T", targets=stream.output["targets"], deferrable=True
        )
        SnowpipeFilesLoadedSensor(task_id="loaded", table="T", files=staged.output["files"])

    written = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    read = DagSerialization.from_dict(written)
    assert set(read.task_dict) == {
        "open", "drop", "reset", "backup", "restore", "append", "mapped", "decorated", "branch", "copy",
        "stage", "pipe", "ingest", "load", "bulk", "stream", "committed", "loaded",
    }  # fmt: skip
    return {task["__var"]["task_id"]: task["__var"] for task in written["dag"]["tasks"]}


def test_every_task_has_its_class_and_its_link(tasks):
    for task_id, task in tasks.items():
        assert task["_task_module"].startswith("airflow_provider_snowpipe.")
        # Those are on no channels; that of loads has Spark's link, too.
        if task_id in ("open", "drop", "reset", "backup", "restore", "append", "decorated"):
            assert task["_operator_extra_links"] == LINK


def test_a_mapped_task_keeps_what_it_is_mapped_over(tasks):
    assert tasks["mapped"]["expand_input"]["value"]["__var"]["channel"] == ["a", "b"]


def test_a_decorated_task_shows_its_decorator(tasks):
    assert tasks["decorated"]["_operator_name"] == "@task.snowpipe_append"
