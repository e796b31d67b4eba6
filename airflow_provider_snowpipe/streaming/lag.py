"""How far channels are, and how far they should be: what people need to read of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets


@dataclass(frozen=True, slots=True)
class ChannelLag:
    """How far one channel is.

    :param status: what the service reports of it
    :param target: the offset token that it should have committed, None where nobody expects one
    :param is_late: True when there is a target and the committed token is before it, or NULL
    """

    status: ChannelStatus
    target: str | None = None
    is_late: bool = False

    @classmethod
    def of(cls, status: ChannelStatus, targets: CommitTargets | None) -> Self:
        """Hold a status against its target.

        :raises OffsetTokenError: if the committed token is not of the targets' format
        """
        progress = None if targets is None else targets.progress(status)
        if progress is None:
            return cls(status)
        return cls(status, str(progress.target), not progress.is_complete())

    def row(self) -> dict[str, Any]:
        """Return the channel as one line of a table; what it should have only where that is known."""
        line: dict[str, Any] = {
            "channel": self.status.channel,
            "status": self.status.shown,
            "committed": self.status.committed,
            "rows": self.status.rows_inserted,
            "rejected": self.status.rows_error_count,
            "latency_ms": self.status.latency_ms,
        }
        return line if self.target is None else {**line, "target": self.target, "done": not self.is_late}

    def __str__(self) -> str:
        status = self.status
        owed = "" if self.target is None else f" of {self.target} ({'late' if self.is_late else 'done'})"
        latency = "" if status.latency_ms is None else f", {status.latency_ms} ms from append to commit"
        code = "" if status.is_valid else f", status {status.code}"
        return (
            f"{status.channel!r} committed {status.committed or 'NULL'}{owed}, {status.rows_inserted} rows, "
            f"{status.rows_error_count} rejected{latency}{code}"
        )


@dataclass(frozen=True, slots=True)
class LagReport:
    """How far the channels of a pipe are.

    :param pipe: the pipe's full name
    :param channels: the late ones first, each group by name
    :param error: why the service did not report it, None where it did
    """

    pipe: str
    channels: tuple[ChannelLag, ...] = ()
    error: str | None = None

    @classmethod
    def of(cls, pipe: str, statuses: Mapping[str, ChannelStatus], targets: CommitTargets | None) -> Self:
        """Hold channels against their targets.

        :raises OffsetTokenError: if a committed token is not of the targets' format
        """
        channels = [ChannelLag.of(status, targets) for status in statuses.values()]
        return cls(pipe, tuple(sorted(channels, key=lambda one: (not one.is_late, one.status.channel))))

    @property
    def is_bad(self) -> bool:
        """True when a channel is late, or nothing is known."""
        return self.error is not None or self.late > 0

    @property
    def late(self) -> int:
        """Number of channels that have not committed their target."""
        return sum(channel.is_late for channel in self.channels)

    def text(self, most: int) -> str:
        """Describe it, a line for each channel.

        :param most: how many channels are named, the late ones first
        """
        if self.error is not None:
            return f"pipe {self.pipe}: its channels are not known: {self.error}"
        expected = sum(channel.target is not None for channel in self.channels)
        judged = f", {self.late} of {expected} with a target late" if expected else ""
        lines = [f"pipe {self.pipe}: {len(self.channels)} channel(s){judged}"]
        lines += [f"  {channel}" for channel in self.channels[:most]]
        left = len(self.channels) - most
        return "\n".join([*lines, f"  … and {left} more"] if left > 0 else lines)
