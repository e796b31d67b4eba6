"""Progress of a running job, one line for each channel every other second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import Event, Thread
from types import TracebackType
from typing import Self

from airflow_provider_snowpipe.spark.file_source import FileGroup
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import SnowpipeError
from airflow_provider_snowpipe.streaming.status import ChannelStatus

_INTERVAL_SECONDS = 2.0
_JOIN_SECONDS = 5.0


class ProgressLines:
    """Prints what the service has committed while the Spark job runs.

    A context manager with a thread of its own and a client of its own; the thread ends with the block, or at
    the latest when its last request has timed out.

    :param client: makes the thread's client
    :param groups: the source's groups by channel name
    :param start: the channels' statuses when the run began
    """

    def __init__(
        self,
        client: Callable[[], SnowpipeClient],
        groups: Mapping[str, FileGroup],
        start: Mapping[str, ChannelStatus],
        *,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        self._client = client
        self._groups = dict(groups)
        self._start = dict(start)
        self._interval = interval
        self._stop = Event()
        self._thread = Thread(target=self._run, name="snowpipe-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        with self._client() as client:
            while not self._stop.wait(self._interval):
                try:
                    statuses = client.channel_statuses(list(self._groups))
                except SnowpipeError as error:
                    print(f"snowpipe progress unknown: {error}", file=sys.stderr, flush=True)
                    continue
                for name, status in statuses.items():
                    print(progress_line(status, self._start[name], self._groups[name]), flush=True)


def progress_line(status: ChannelStatus, start: ChannelStatus, group: FileGroup) -> str:
    """Put one channel's progress in a line.

    :param status: the channel's status now
    :param start: its status when the run began
    :param group: the files that it loads
    """
    committed_file = (status.committed or "").rpartition(":")[0]
    behind = [file for file in group.files if file.name > committed_file]
    current = sum(file.size for file in group.files if file.name == committed_file)
    rows = status.rows_inserted - start.rows_inserted
    rejected = status.rows_error_count - start.rows_error_count
    line = (
        f"snowpipe progress channel={status.channel} committed={status.committed or 'NULL'} "
        f"rows={max(rows, 0)} "
        f"rejected={max(rejected, 0)} files_behind={len(behind)} "
        f"bytes_behind<={sum(file.size for file in behind) + current}"
    )
    latency = "" if status.latency_ms is None else f" latency_ms={status.latency_ms}"
    return line + latency
