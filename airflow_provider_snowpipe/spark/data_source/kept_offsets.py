"""The offset backup that a write keeps by itself, and channels recorded beside it before their first row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from airflow_provider_snowpipe.streaming.admin import renew
from airflow_provider_snowpipe.streaming.checkpoint import begun_token
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import quiet_channels
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import OffsetBackup, has_moved, take_backup
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from airflow_provider_snowpipe.streaming.row_gate import open_place, store_whole


@contextmanager
def _opened(path: str, what: str) -> Iterator[tuple[fs.FileSystem, str]]:
    """The file system of a backup and its path there, while something is done with it."""
    try:
        yield open_place(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"the offset backup {path} cannot {what}: {error}") from error


def read_backup(path: str, pipe: PipeName) -> OffsetBackup | None:
    """Read the backup of a pipe, None where there is no file.

    :param path: a file, or a URL that pyarrow reads with what the environment permits
    :raises ConfigurationError: if it cannot be read, or is another pipe's
    """
    with _opened(path, "be read") as (files, name):
        if files.get_file_info(name).type is fs.FileType.NotFound:
            return None
        with files.open_input_stream(name) as file:
            return OffsetBackup.from_json(file.read(), origin=path, pipe=pipe)


def last_tokens(client: SnowpipeClient, path: str | None) -> dict[str, str]:
    """The last checkpoints in the offset backup, by channel; it is made where there is none."""
    found = None if path is None else read_backup(path, client.pipe)
    if found is None and path is not None:
        keep_backup(client, path, {})
    return {} if found is None else {name: kept.offset_token for name, kept in found.channels.items()}


def keep_backup(
    client: SnowpipeClient, path: str, moved: Mapping[str, ChannelStatus], offset_format: str | None = None
) -> None:
    """Write what a load has committed into the pipe's backup, and renew the channels that are quiet.

    Tokens of the other channels stay in it, also those of channels that are gone.

    :param moved: the channels of the load, as they are now
    :raises ConfigurationError: if the file cannot be read or written
    """
    now = dt.datetime.now(dt.UTC)
    before = read_backup(path, client.pipe) or OffsetBackup(client.pipe, now, {})
    at_rest = {name: kept.unchanged_since for name, kept in before.channels.items() if name not in moved}
    due = quiet_channels(at_rest, now)
    found = client.channel_statuses(due) if due else {}
    renewed = renew(client, [one for name, one in found.items() if not has_moved(one, before.channels[name])])
    before = replace(before, channels={n: k for n, k in before.channels.items() if n not in renewed})
    statuses = {**moved, **found}
    after = take_backup(client.pipe, statuses, before, now=now, offset_format=offset_format, keep_lost=True)
    with _opened(path, "be written") as (files, name):
        store_whole(files, name, pa.py_buffer(after.to_json().encode()))


def begin(client: SnowpipeClient, path: str, status: ChannelStatus) -> tuple[str, ChannelStatus]:
    """Record a channel without a token in a file beside the offset backup, before its first row is sent.

    :return: what the first task has recorded of the channel, and the channel, which is there now
    :raises ConfigurationError: if the executor does not find the backup, or cannot read or write beside it
    """
    channel = status.channel
    with _opened(path, f"record channel {channel!r}") as (files, name):
        entry = f"{name}.{quote(channel, safe='')}"
        backup, begun = files.get_file_info([name, entry])
        if not backup.is_file:
            raise ConfigurationError(
                f"the offset backup {path} is not on this executor: give a place that all executors reach"
            )
        if begun.is_file:
            with files.open_input_stream(entry) as file:
                return file.read().decode(), status
        if not status.exists:
            client.open_channel(channel)
            status = client.channel_statuses([channel])[channel]
        created = begun_token(status.created_on_ms)
        store_whole(files, entry, memoryview(created.encode()))
        return created, status
