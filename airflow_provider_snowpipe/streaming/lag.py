"""How far channels are, and how far they should be: what people need to read of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets


class FileBehind(NamedTuple):
    """A unit of a source log that is not committed, or several that follow each other.

    :param unit: the number of the last one
    :param written_ms: when the oldest of its files was written last, milliseconds since 1970
    """

    unit: int
    bytes: int
    written_ms: int
    files: int = 1


@dataclass(frozen=True, slots=True)
class FileBacklog:
    """The files of a source that are not committed, at most: the one that a position is in is among them.

    :param oldest_ms: when the oldest of them was written last, milliseconds since 1970; None for no file
    """

    files: int = 0
    bytes: int = 0
    oldest_ms: int | None = None

    @classmethod
    def of(cls, files: Iterable[FileBehind], unit: int = 0) -> Self:
        """Sum up the units from one on."""
        left = [one for one in files if one.unit >= unit]
        oldest = min((one.written_ms for one in left), default=None)
        return cls(sum(one.files for one in left), sum(one.bytes for one in left), oldest)

    @classmethod
    def total(cls, parts: Iterable[FileBacklog | None]) -> Self | None:
        """Sum up those that are known, None where none is."""
        known = [one for one in parts if one is not None]
        oldest = min((one.oldest_ms for one in known if one.oldest_ms is not None), default=None)
        return (
            cls(sum(one.files for one in known), sum(one.bytes for one in known), oldest) if known else None
        )

    @property
    def age_seconds(self) -> int:
        """Seconds since the oldest file was written, 0 where no file is left."""
        return 0 if self.oldest_ms is None else max(0, int(time.time() - self.oldest_ms / 1_000))

    def row(self) -> dict[str, int]:
        """Return it as columns of a table."""
        return {
            "files_behind": self.files,
            "bytes_behind": self.bytes,
            "oldest_file_seconds": self.age_seconds,
        }

    def __str__(self) -> str:
        return f"files_behind<={self.files} oldest_file_seconds<={self.age_seconds}"


@dataclass(frozen=True, slots=True)
class ChannelLag:
    """How far one channel is."""

    status: ChannelStatus
    target: str | None = None
    is_late: bool = False
    backlog: FileBacklog | None = None

    @classmethod
    def of(
        cls, status: ChannelStatus, targets: CommitTargets | None, backlog: FileBacklog | None = None
    ) -> Self:
        """Compare a status with its target."""
        progress = None if targets is None else targets.progress(status)
        if progress is None:
            return cls(status, backlog=backlog)
        return cls(status, str(progress.target), not progress.is_complete(), backlog)

    def row(self) -> dict[str, Any]:
        """Return the channel as one line of a table; what it should have only where that is known."""
        line: dict[str, Any] = {
            "channel": self.status.channel,
            "status": self.status.shown,
            "committed": self.status.committed,
            "rows": self.status.rows_inserted,
            "rejected": self.status.rows_error_count,
            "latency_ms": self.status.latency_ms,
            **({} if self.backlog is None else self.backlog.row()),
        }
        return line if self.target is None else {**line, "target": self.target, "done": not self.is_late}

    def __str__(self) -> str:
        status = self.status
        owed = "" if self.target is None else f" of {self.target} ({'late' if self.is_late else 'done'})"
        latency = "" if status.latency_ms is None else f", {status.latency_ms} ms from append to commit"
        code = "" if status.is_valid else f", status {status.code}"
        left = "" if self.backlog is None else f", {self.backlog.bytes} bytes behind ({self.backlog})"
        return (
            f"{status.channel!r} committed {status.committed or 'NULL'}{owed}, {status.rows_inserted} rows, "
            f"{status.rows_error_count} rejected{latency}{left}{code}"
        )


@dataclass(frozen=True, slots=True)
class LagReport:
    """How far the channels of a pipe are."""

    pipe: str
    channels: tuple[ChannelLag, ...] = ()
    error: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        pipe: str,
        statuses: Mapping[str, ChannelStatus],
        targets: CommitTargets | None,
        backlogs: Mapping[str, FileBacklog] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """Compare channels with their targets."""
        known = backlogs or {}
        channels = [ChannelLag.of(one, targets, known.get(name)) for name, one in statuses.items()]
        ordered = sorted(channels, key=lambda one: (not one.is_late, one.status.channel))
        return cls(pipe, tuple(ordered), notes=notes)

    @property
    def backlog(self) -> FileBacklog | None:
        """The files of all sources that are not committed, None where none is known."""
        return FileBacklog.total(one.backlog for one in self.channels)

    @property
    def is_bad(self) -> bool:
        """True when a channel is late, or nothing is known."""
        return self.error is not None or self.late > 0

    @property
    def late(self) -> int:
        """Number of channels that have not committed their target."""
        return sum(channel.is_late for channel in self.channels)

    def text(self, most: int) -> str:
        """Describe it, a line for each channel."""
        if self.error is not None:
            return f"pipe {self.pipe}: its channels are not known: {self.error}"
        expected = sum(channel.target is not None for channel in self.channels)
        judged = f", {self.late} of {expected} with a target late" if expected else ""
        total = self.backlog
        left = "" if total is None else f", {total.bytes} bytes behind ({total})"
        lines = [f"pipe {self.pipe}: {counted(len(self.channels), 'channel')}{judged}{left}"]
        lines += [f"  {channel}" for channel in self.channels[:most]]
        if len(self.channels) > most:
            lines.append(f"  … and {len(self.channels) - most} more")
        return "\n".join([*lines, *(f"  not known: {note}" for note in self.notes)])
