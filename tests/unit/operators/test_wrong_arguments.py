"""Arguments of a wrong type fail where the DAG file makes the task, with the argument and its value."""

from __future__ import annotations

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from airflow_provider_snowpipe.assets.uri import snowpipe_asset
from airflow_provider_snowpipe.notifications.lag import SnowpipeLagNotifier
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.branch import SnowpipeBranchOperator
from airflow_provider_snowpipe.operators.bulk_load import SnowpipeBulkLoadOperator
from airflow_provider_snowpipe.operators.channels import (
    SnowpipeDropChannelOperator,
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
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.progress import CommitTargets
from airflow_provider_snowpipe.triggers.offset import SnowpipeOffsetTrigger

CHANNEL = {"task_id": "t", "table": "T", "channel": "c"}
COPY = {"task_id": "t", "table": "T", "stage": "@S"}
INGEST = {"task_id": "t", "pipe": "P", "stage": "@S"}
PIPE = {"task_id": "t", "pipe": "P", "action": "create", "table": "T", "stage": "@S"}
FILE = {"task_id": "t", "table": "T", "path": "/p"}
BULK = {"task_id": "t", "source": {"table": "a.b"}, "table": "T", "stage": "@S"}
STREAM = {"task_id": "t", "source": {"path": "/d"}, "table": "T"}
APPEND = {"task_id": "t", "table": "T", "rows": [{"A": 1}]}

SWITCHES = [
    (SnowpipeCopyOperator, COPY, "force"),
    (SnowpipeIngestFilesOperator, INGEST, "force"),
    (SnowpipeIngestFilesOperator, INGEST, "wait_for_load"),
    (SnowpipePipeOperator, PIPE, "force"),
    (SnowpipePipeOperator, PIPE, "auto_ingest"),
    (SnowpipeDropChannelOperator, CHANNEL, "force"),
    (SnowpipeResetOffsetOperator, {**CHANNEL, "offset_token": "1"}, "allow_active_writer"),
    (SnowpipeRestoreOffsetsOperator, FILE, "allow_older_tokens"),
    (SnowpipeRestoreOffsetsOperator, FILE, "allow_active_writer"),
    (SnowpipeBulkLoadOperator, BULK, "keep_files"),
    (SnowpipeStreamOperator, STREAM, "wait_for_commit"),
    (SnowpipeAppendRowsOperator, APPEND, "wait_for_commit"),
    (SnowpipeStreamOperator, STREAM, "deferrable"),
    (SnowpipeBulkLoadOperator, BULK, "deferrable"),
    (SnowpipeCopyOperator, COPY, "deferrable"),
    (SnowpipeIngestFilesOperator, INGEST, "deferrable"),
    (SnowpipeLoadOperator, STREAM, "remember"),
    (SnowpipeBranchOperator, {"task_id": "t", "stream": "u"}, "remember"),
    (SnowpipeStageFilesOperator, {"task_id": "t", "source": "/d", "stage": "@S"}, "auto_compress"),
    (SnowpipeCommitSensor, {"task_id": "t", "targets": {}, "table": "T"}, "deferrable"),
    (SnowpipeCommitSensor, {"task_id": "t", "targets": {}, "deferrable": True}, "start_from_trigger"),
    (SnowpipeCommitSensor, {"task_id": "t", "targets": {}, "deferrable": True}, "end_from_trigger"),
    (SnowpipeFilesLoadedSensor, {"task_id": "t", "files": ["f"], "table": "T"}, "deferrable"),
    (snowpipe_asset, {"account": "a", "database": "D", "schema": "S", "table": "T"}, "partitioned"),
]


@pytest.mark.parametrize(
    ("kind", "given", "name"), SWITCHES, ids=[f"{kind.__name__}-{name}" for kind, _, name in SWITCHES]
)
def test_a_text_is_no_switch_that_is_on(kind, given, name):
    kind(**given, **{name: True})
    for value in ("{{ params.force }}", "false", 1, None):
        with pytest.raises(ConfigurationError, match=name):
            kind(**given, **{name: value})


def test_whether_rejected_rows_fail_the_wait_is_true_or_false_or_left_to_the_targets():
    for fine in (True, False, None):
        SnowpipeCommitSensor(task_id="t", targets={}, table="T", fail_on_rejected_rows=fine)
    for value in ("{{ params.strict }}", "no", 0):
        with pytest.raises(ConfigurationError, match="fail_on_rejected_rows"):
            SnowpipeCommitSensor(task_id="t", targets={}, table="T", fail_on_rejected_rows=value)


ASSET = {"account": "a-b", "database": "D", "schema": "S", "table": "T"}
PLAN = {
    "source": {"path": "/d"},
    "account_url": "https://a-b.snowflakecomputing.com",
    "database": "D",
    "schema": "S",
    "table": "T",
    "channel_prefix": "p",
}
TARGETS = {"task_id": "t", "targets": {"c": "1"}, "table": "T"}
WRONG = [
    (SnowpipeBackupOffsetsOperator, FILE, "warn_days", "7"),
    (SnowpipeBackupOffsetsOperator, FILE, "warn_days", float("nan")),
    (SnowpipeStreamOperator, STREAM, "poll_interval", -1),
    (SnowpipeStreamOperator, STREAM, "poll_interval", "5"),
    (SnowpipeBulkLoadOperator, BULK, "stage", 5),
    (SnowpipeCommitSensor, TARGETS, "offset_format", ["integer"]),
    (SnowpipeCommitSensor, TARGETS, "offset_format", 5),
    (SnowpipeOffsetTrigger, {"table": "T"}, "channel", 5),
    (SnowpipeOffsetTrigger, {"table": "T"}, "every_rows", "100"),
    (SnowpipeOffsetTrigger, {"table": "T"}, "every_rows", 1.5),
    (SnowpipeOffsetTrigger, {"table": "T"}, "poll_interval", "5"),
    (SnowpipeOffsetTrigger, {"table": "T"}, "list_interval", None),
    (SnowpipeLagNotifier, {"table": "T"}, "max_channels", "20"),
    (SnowpipeLagNotifier, {"table": "T"}, "offset_format", 5),
    (SnowpipePlan, PLAN, "database", 5),
    (SnowpipePlan, PLAN, "work_path", 5),
    (snowpipe_asset, ASSET, "account", 5),
    (snowpipe_asset, ASSET, "table", 5),
    (snowpipe_asset, ASSET, "channel", 5),
]


@pytest.mark.parametrize(("kind", "given", "name", "value"), WRONG)
def test_a_value_of_another_type_is_named(kind, given, name, value):
    kind(**given)

    with pytest.raises(ConfigurationError) as raised:
        kind(**{**given, name: value})

    assert name.replace("_", " ").split()[-1] in str(raised.value)
    assert repr(value) in str(raised.value)


def test_a_name_that_was_rendered_to_a_number_is_refused():
    with pytest.raises(ConfigurationError, match="table is 2026: give a text"):
        PipeName.default_for_table("D", "S", 2026)  # type: ignore[arg-type]


def test_a_target_token_that_was_rendered_to_a_number_is_its_digits():
    found = CommitTargets.parse({"connector_orders_0": 120455}, "integer")

    assert {name: one.token for name, one in found.targets.items()} == {"connector_orders_0": "120455"}
    with pytest.raises(ConfigurationError, match="targets has the entry 'c': True"):
        CommitTargets.parse({"c": True}, "integer")
