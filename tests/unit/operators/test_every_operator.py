"""Every operator: arguments of a wrong type fail where the DAG file makes the task; others are serialized."""

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.decorators.append import snowpipe_append_task
from airflow_provider_snowpipe.notifications.lag import SnowpipeLagNotifier
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
from airflow_provider_snowpipe.operators.plan import SnowpipePlan
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sensors.commit import SnowpipeCommitSensor
from airflow_provider_snowpipe.sensors.files_loaded import SnowpipeFilesLoadedSensor
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger
from tests.airflow_version import AIRFLOW

CHANNEL = {"task_id": "t", "table": "T", "channel": "c"}
COPY = {"task_id": "t", "table": "T", "stage": "@S"}
INGEST = {"task_id": "t", "pipe": "P", "stage": "@S"}
PIPE = {"task_id": "t", "pipe": "P", "action": "create", "table": "T", "stage": "@S"}
FILE = {"task_id": "t", "table": "T", "path": "/p"}
BULK = {"task_id": "t", "source": {"table": "a.b"}, "table": "T", "stage": "@S"}
STREAM = {"task_id": "t", "source": {"path": "/d"}, "table": "T"}
ASSET = {"account": "a-b", "database": "D", "schema": "S", "table": "T"}
TARGETS = {"task_id": "t", "targets": {"c": "1"}, "table": "T"}
APPEND = {"task_id": "t", "table": "T", "rows": [{"A": 1}]}

SWITCHES = [
    (SnowpipeCopyOperator, COPY, "force deferrable"),
    (SnowpipeIngestFilesOperator, INGEST, "force wait_for_load deferrable"),
    (SnowpipePipeOperator, PIPE, "force auto_ingest"),
    (SnowpipeDropChannelOperator, CHANNEL, "force"),
    (SnowpipeResetOffsetOperator, {**CHANNEL, "offset_token": "1"}, "allow_active_writer"),
    (SnowpipeRestoreOffsetsOperator, FILE, "allow_older_tokens allow_active_writer"),
    (SnowpipeBulkLoadOperator, BULK, "keep_files deferrable"),
    (SnowpipeStreamOperator, STREAM, "wait_for_commit deferrable"),
    (SnowpipeAppendRowsOperator, APPEND, "wait_for_commit"),
    (SnowpipeLoadOperator, STREAM, "remember"),
    (SnowpipeBranchOperator, {"task_id": "t", "stream": "u"}, "remember"),
    (SnowpipeStageFilesOperator, {"task_id": "t", "source": "/d", "stage": "@S"}, "auto_compress"),
    (SnowpipeCommitSensor, {"task_id": "t", "targets": {}, "table": "T"}, "deferrable"),
    (SnowpipeCommitSensor, {**TARGETS, "deferrable": True}, "start_from_trigger end_from_trigger"),
    (SnowpipeFilesLoadedSensor, {"task_id": "t", "files": ["f"], "table": "T"}, "deferrable"),
    (snowpipe_asset, ASSET, "partitioned"),
]


@pytest.mark.parametrize(("kind", "given", "names"), SWITCHES)
def test_a_text_is_no_switch_that_is_on(kind, given, names):
    for name in names.split():
        kind(**given, **{name: True})
        for value in ("false", 1, None):
            with pytest.raises(ConfigurationError, match=name):
                kind(**given, **{name: value})


PLAN = {
    "source": {"path": "/d"},
    "account_url": "https://a-b.snowflakecomputing.com",
    "database": "D",
    "schema": "S",
    "table": "T",
    "channel_prefix": "p",
}
WRONG = [
    (SnowpipeBackupOffsetsOperator, FILE, "warn_days", float("nan")),
    (SnowpipeBulkLoadOperator, BULK, "stage", 5),
    (SnowpipeCommitSensor, TARGETS, "offset_format", ["integer"]),
    (SnowpipeOffsetTrigger, {"table": "T"}, "channel", 5),
    (SnowpipeOffsetTrigger, {"table": "T"}, "every_rows", "100"),
    (SnowpipeLagNotifier, {"table": "T"}, "max_channels", "20"),
    (SnowpipePlan, PLAN, "work_path", 5),
    (snowpipe_asset, ASSET, "table", 5),
]


@pytest.mark.parametrize(("kind", "given", "name", "value"), WRONG)
def test_a_value_of_another_type_is_named(kind, given, name, value):
    kind(**given)
    with pytest.raises(ConfigurationError) as raised:
        kind(**{**given, name: value})
    assert name.replace("_", " ").split()[-1] in str(raised.value)
    assert repr(value) in str(raised.value)


LINK: Any = {"Snowsight": "_link_SnowsightLink", "Channel page": "_link_ChannelPageLink"}
if AIRFLOW < (3, 0):
    LINK = [{"airflow_provider_snowpipe.links.snowpipe.SnowsightLink": {}}]


def test_every_task_has_its_class_and_its_link_once_it_is_serialized():
    if AIRFLOW >= (3, 2):
        from airflow.serialization.serialized_objects import DagSerialization
    else:
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

    @snowpipe_append_task(table="T", channel="decorated")
    def decorated():
        return []

    with DAG("d", schedule=None) as dag:
        decorated()
        SnowpipeOpenChannelOperator(task_id="open", table="T", channel="c", offset_token="{{ x }}")
        SnowpipeDropChannelOperator(**{**CHANNEL, "task_id": "drop"})
        SnowpipeResetOffsetOperator(**{**CHANNEL, "task_id": "reset"}, offset_token="a:1")
        SnowpipeBackupOffsetsOperator(**{**FILE, "task_id": "backup"})
        SnowpipeRestoreOffsetsOperator(**{**FILE, "task_id": "restore"}, channels=["c"])
        SnowpipeAppendRowsOperator(**{**APPEND, "task_id": "append"})
        SnowpipeOpenChannelOperator.partial(task_id="mapped", table="T").expand(channel=["a", "b"])
        SnowpipeBranchOperator(task_id="branch", source="@S", stream="append", shape={"freshness": 5})
        SnowpipeCopyOperator(**{**COPY, "task_id": "copy"}, options={"force": True})
        SnowpipeLoadOperator(task_id="load", table="T", source="{{ folder }}", shape={"freshness": 5})
        SnowpipeBulkLoadOperator(task_id="bulk", table="T", source={"query": "SELECT 1"}, run_key="{{ ds }}")
        staged = SnowpipeStageFilesOperator(task_id="stage", source="/in", stage="@S")
        SnowpipePipeOperator(**{**PIPE, "task_id": "pipe"})
        SnowpipeIngestFilesOperator(task_id="ingest", pipe="P", files=staged.output["files"])
        stream = SnowpipeStreamOperator(task_id="stream", source=FileSource(path="/in/{{ ds }}"), table="T")
        targets = stream.output["targets"]
        SnowpipeCommitSensor(task_id="committed", table="T", targets=targets, deferrable=True)
        SnowpipeFilesLoadedSensor(task_id="loaded", table="T", files=staged.output["files"])

    written = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    assert set(DagSerialization.from_dict(written).task_dict) == set(dag.task_dict)
    tasks = {task["__var"]["task_id"]: task["__var"] for task in written["dag"]["tasks"]}
    for task in tasks.values():
        assert task["_task_module"].startswith("airflow_provider_snowpipe.")
    for task_id in ("open", "drop", "reset", "backup", "restore", "append", "decorated"):
        assert tasks[task_id]["_operator_extra_links"] == LINK
    assert tasks["mapped"]["expand_input"]["value"]["__var"]["channel"] == ["a", "b"]
    assert tasks["decorated"]["_operator_name"] == "@task.snowpipe_append"
