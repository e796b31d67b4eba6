"""The progress of a run: one line per channel, live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_snowpipe.streaming.checkpoint import position_of
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

PLAIN_SECONDS = 2.0
_STYLES = {
    "success": "green",
    "failed": "red",
    "running": "bold",
    "deferred": "magenta",
    "up_for_retry": "yellow",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one point in time.

    :param tasks: state of each task, in the order they started
    :param channels: the channel of each origin
    :param statuses: what the service reports of each channel; empty before the table exists
    :param expected: rows the source has, by origin; None before the files are written
    """

    tasks: Mapping[str, str]
    channels: Mapping[str, str]
    statuses: Mapping[str, ChannelStatus]
    expected: Mapping[str, Mapping[str, int]] | None

    def rows(self) -> list[tuple[str, str, int, int | None, int | None]]:
        """Return channel, committed position, rows committed, rows still to come, and latency in ms."""
        found = []
        for origin, channel in self.channels.items():
            status = self.statuses.get(channel)
            committed = status.rows_inserted if status and status.exists else 0
            behind = self.expected[origin]["rows"] - committed if self.expected else None
            position = committed_position(status) if status else "-"
            found.append((channel, position, committed, behind, status.latency_ms if status else None))
        return found


class LiveProgress:
    """Shows snapshots: a table that redraws itself on a terminal, a line per change elsewhere.

    :param console: where to
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._shown: dict[str, object] = {}
        self._next_line = 0.0

    def __enter__(self) -> LiveProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        if self._live:
            self._live.update(Group(_task_line(snapshot), _channel_table(snapshot)))
        else:
            self._print_changes(snapshot)

    def _print_changes(self, snapshot: Snapshot) -> None:
        for task, state in snapshot.tasks.items():
            if state != "waiting" and self._shown.get(task) != state:
                self._shown[task] = state
                self._console.print(f"         task {task}: {state}", highlight=False, soft_wrap=True)
        if time.monotonic() < self._next_line:
            return
        for channel, position, committed, behind, latency in snapshot.rows():
            if committed and self._shown.get(channel) != position:
                self._shown[channel] = position
                self._next_line = time.monotonic() + PLAIN_SECONDS
                self._console.print(
                    f"         channel {channel}: committed {position}, {committed:,} rows, "
                    f"{_number(behind)} behind, latency {_number(latency)} ms",
                    highlight=False,
                    soft_wrap=True,
                )


def committed_position(status: ChannelStatus) -> str:
    """Show where a channel stands, ``-`` where nothing is committed."""
    return "-" if status.committed is None else str(position_of(status.committed))


def _task_line(snapshot: Snapshot) -> Text:
    line = Text()
    for task, state in snapshot.tasks.items():
        line.append(f"{task} ", style="dim").append(f"{state}   ", style=_STYLES.get(state, "dim"))
    return line


def _channel_table(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("channel")
    table.add_column("committed position")
    for name in ("rows", "behind", "latency ms"):
        table.add_column(name, justify="right")
    for channel, position, committed, behind, latency in snapshot.rows():
        table.add_row(channel, position, f"{committed:,}", _number(behind), _number(latency))
    return table


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}"
