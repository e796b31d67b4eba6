"""What a load of files leaves for assets, sensors and lineage, as a stream does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.assets.events import LoadedChannel, describe_file_load, describe_outlets
from airflow_provider_snowpipe.lineage import TaskLineage
from airflow_provider_snowpipe.operators.load_planning import is_staged
from airflow_provider_snowpipe.operators.stream import TARGETS_KEY
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset
from airflow_provider_snowpipe.streaming.targets import ChannelTarget

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator


def describe_files(task: SnowpipeLoadOperator, context: Context, value: Mapping[str, Any]) -> TaskLineage:
    """Tell the task's asset events of tokens and rows, and the next sensor of tokens; the task's lineage.

    Files of a stage come through no channel, so that there are only rows to tell of.

    :param task: the task
    :param context: its context
    :param value: its value
    """
    hook, rows, channels = task.bulk_hook(), value["rows_loaded"], value["channels"]
    files = task.source_files()
    if files is None or is_staged(task.source):
        describe_file_load(task, context, hook, str(task.table), rows, value.get("pipe", "COPY"))
        return TaskLineage.of_files(hook, str(task.source), rows)
    moved = [
        LoadedChannel(name, one["to"], True, one["rows"], one["partition"]) for name, one in channels.items()
    ]
    describe_outlets(task, context, hook, moved)
    targets = {
        name: ChannelTarget(one["to"], FileLineOffset.format_name, rows=one["rows"]).to_json()
        for name, one in channels.items()
    }
    context["ti"].xcom_push(key=TARGETS_KEY, value=targets)
    return TaskLineage.of_files(hook, files.address, rows, size=value["bytes"], channels=channels)
