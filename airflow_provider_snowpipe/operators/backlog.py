"""The files that sources hold and their channels have not committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowException, BaseHook

from airflow_provider_snowpipe.operators.source_record import known_records
from airflow_provider_snowpipe.streaming.errors import SnowpipeError

if TYPE_CHECKING:
    from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
    from airflow_provider_snowpipe.streaming.lag import FileBacklog
    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


def file_backlogs(
    hook: SnowpipeHook, statuses: Mapping[str, ChannelStatus]
) -> tuple[dict[str, FileBacklog], tuple[str, ...]]:
    """List the sources of files that this Airflow has loaded through a pipe, and compare them with commits.

    :param statuses: of the pipe's channels
    :return: the files of each channel, also of one that does not exist yet; and what could not be listed
    """
    from airflow_provider_snowpipe.spark.submit.source import channel_backlogs, connected_source

    found: dict[str, FileBacklog] = {}
    notes: list[str] = []
    committed = {name: one.committed for name, one in statuses.items() if one.committed is not None}
    pipe = hook.pipe_name()
    try:
        records = known_records()
    except SnowpipeError as error:
        return found, (str(error),)
    for record in records:
        loaded = record.loaded
        if loaded is None or loaded.pipe != (pipe.database, pipe.schema, pipe.pipe):
            continue
        if loaded.source.get("kind", "files") != "files":
            continue
        try:
            source = connected_source(loaded.source, BaseHook.get_connection)
            found |= channel_backlogs(*source, pipe.address(hook.account_url()), loaded.channels, committed)
        except (SnowpipeError, AirflowException, OSError, ImportError) as error:
            notes.append(f"files of {record.address}: {error}")
    return found, tuple(notes)
