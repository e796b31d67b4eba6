"""One writer's session on a channel, whatever carries the rows: its position, and the wait for the commit."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.commits import CommitState, decide
from airflow_provider_snowpipe.streaming.errors import (
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    ContinuityError,
)
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelProgress, Progress
from airflow_provider_snowpipe.streaming.status import ChannelStatus

FIRST_POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 1.0
POLL_GROWTH = 1.4


@dataclass(slots=True)
class ChannelCounters:
    """What this session sent.

    :param rows: rows that the service received
    :param raw_bytes: their NDJSON bytes
    :param wire_bytes: their bytes as sent, 0 where that is not known
    :param requests: appends that were answered
    :param seconds: time that these took, with all their attempts, 0 where that is not known
    :param longest_seconds: the longest of them
    """

    rows: int = 0
    raw_bytes: int = 0
    wire_bytes: int = 0
    requests: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    def answered(self, rows: int, raw_bytes: int, wire_bytes: int, seconds: float) -> None:
        """Count an append that was answered."""
        self.rows += rows
        self.raw_bytes += raw_bytes
        self.wire_bytes += wire_bytes
        self.requests += 1
        self.seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


class ChannelSession(ABC):
    """The only writer of one channel, until it is closed or another one opens the channel.

    :param client: the pipe's client, which is asked what is committed
    :param name: the channel's name
    :param offset_class: the format of its offset tokens
    :param opened: the channel's state when it was opened
    :param gaps_legal: True when the source may skip positions
    """

    def __init__(
        self,
        client: SnowpipeClient,
        name: str,
        offset_class: type[Offset],
        opened: ChannelStatus,
        *,
        gaps_legal: bool,
    ) -> None:
        self.name = name
        self.status_at_open = opened
        self.counters = ChannelCounters()
        self._client = client
        self._offset_class = offset_class
        self._progress = ChannelProgress(name, self._parse(opened.committed), gaps_legal=gaps_legal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    @abstractmethod
    def append(self, body: bytes | memoryview, start: Offset, end: Offset, *, rows: int) -> None:
        """Append rows. They are buffered or received when this returns, not committed."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until the service has received everything appended so far."""

    @abstractmethod
    def close(self, *, flush: bool = True) -> None:
        """End the session. The channel and its token stay on the service."""

    @property
    def committed(self) -> Offset | None:
        """The committed position last read, None for NULL."""
        return self._progress.committed

    @property
    def sent(self) -> Offset | None:
        """The position of the last row appended in this session, None before the first."""
        return self._progress.sent

    @property
    def gaps(self) -> int:
        """How often the source skipped positions in this session."""
        return self._progress.gaps

    def wait_for_commit(
        self, target: Offset | None = None, *, timeout: float = 600.0
    ) -> ChannelStatus | None:
        """Wait until the committed token is at or past a position.

        :param target: the position, None for that of the last row appended
        :param timeout: seconds
        :return: the status that proved it; None when nothing was appended and no target given
        :raises CommitTimeoutError: if the time is over
        :raises ChannelInvalidError: if the channel cannot commit any more
        """
        self.flush()
        target = target if target is not None else self._progress.sent
        if target is None:
            return None
        deadline = time.monotonic() + timeout
        pause = FIRST_POLL_SECONDS
        while True:
            status = self._client.channel_statuses([self.name])[self.name]
            committed = self._parse(status.committed)
            is_last = time.monotonic() + pause > deadline
            state = decide(status, Progress(committed, target), is_last=is_last).state
            if state is CommitState.INVALID:
                self._refuse_invalid(status)
            self._progress.observe(committed)
            if state is CommitState.COMMITTED:
                return status
            if state is CommitState.STALLED:
                raise CommitTimeoutError(
                    f"channel {self.name!r}: the committed token is {status.committed or 'NULL'} after "
                    f"{timeout:g} s, {target} was waited for. The rows are received and may still be "
                    "committed; run again, which resumes from the token found then",
                    channel=self.name,
                    committed=status.committed,
                    target=str(target),
                )
            time.sleep(pause)
            pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)

    def _refuse_nothing(self, body: bytes | memoryview, rows: int) -> None:
        if not len(body) or rows <= 0:
            raise ContinuityError(
                f"channel {self.name!r}: an append needs rows; it has {rows} rows in {len(body)} bytes"
            )

    def _refuse_closed(self, closed: bool) -> None:
        if closed:
            raise ConfigurationError(f"channel {self.name!r} is closed: open it again to append")

    def _parse(self, token: str | None) -> Offset | None:
        return None if token is None else self._offset_class.parse(token, channel=self.name)

    def _refuse_invalid(self, status: ChannelStatus) -> NoReturn:
        raise ChannelInvalidError(
            f"channel {self.name!r} of pipe {self._client.pipe} has status {status.code}: open it again "
            "and replay from its committed token; if it is gone, see who dropped it or its table",
            channel=self.name,
            http_status=200,
            code=status.code,
        )
