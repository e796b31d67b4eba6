"""The writer of one channel: batches, compresses, sends in order, and waits for the commit.

An append that returned is buffered or received. Only :meth:`Channel.wait_for_commit` proves a commit.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Self

from airflow_provider_snowpipe.streaming.admin import open_when_committed
from airflow_provider_snowpipe.streaming.batch import Batch, Compressor, OpenBatch, Pace, Part
from airflow_provider_snowpipe.streaming.checkpoint import ChannelSource
from airflow_provider_snowpipe.streaming.client import OpenedChannel, SnowpipeClient
from airflow_provider_snowpipe.streaming.commits import CommitState, decide
from airflow_provider_snowpipe.streaming.errors import (
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    ContinuityError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.limits import (
    FIRST_POLL_SECONDS,
    LONGEST_POLL_SECONDS,
    POLL_GROWTH,
    BatchLimits,
)
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelProgress, ChannelStatus, Progress

log = logging.getLogger(__name__)

# -- One writer's session on a channel, whatever carries the rows: its position, and the wait for the commit -


@dataclass(slots=True)
class ChannelCounters:
    """What this session sent, by the names of ``SentRows``."""

    rows: int = 0
    bytes: int = 0
    requests: int = 0
    request_seconds: float = 0.0
    longest_request: float = 0.0


class ChannelSession(ABC):
    """The only writer of one channel, until it is closed or another one opens the channel.

    ``progress`` shows what is committed and sent, ``counters`` what that took, ``start`` where it began.

    :param source: whose rows the channel gets; reads and writes its tokens
    :param gaps_legal: True when the source may skip positions
    """

    def __init__(
        self,
        client: SnowpipeClient,
        name: str,
        source: ChannelSource,
        opened: ChannelStatus,
        *,
        gaps_legal: bool,
    ) -> None:
        self.name = name
        self.status_at_open = opened
        self.counters = ChannelCounters()
        self._client = client
        self._source = source
        self.start = source.start(opened)
        self._rows = self.start.rows
        self.progress = ChannelProgress(name, self.start.position, gaps_legal=gaps_legal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
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

    def wait_for_commit(
        self, target: Offset | None = None, *, timeout: float = 600.0
    ) -> ChannelStatus | None:
        """Wait until the committed token is at or past a position.

        :param target: the position, None for that of the last row appended
        :return: the status that proved it; None when nothing was appended and no target given
        :raises CommitTimeoutError: if the time is over
        :raises ChannelInvalidError: if the channel cannot commit any more
        """
        self.flush()
        target = target if target is not None else self.progress.sent
        if target is None:
            return None
        deadline = time.monotonic() + timeout
        pause = FIRST_POLL_SECONDS
        while True:
            status = self._client.channel_statuses([self.name])[self.name]
            known = status.committed
            committed = None if known is None else self._source.read(known, channel=self.name)
            is_last = time.monotonic() + pause > deadline
            state = decide(status, Progress(committed, target), is_last=is_last).state
            if state is CommitState.INVALID:
                raise ChannelInvalidError(
                    f"channel {self.name!r} of pipe {self._client.pipe} has status {status.code}: open it "
                    "again and replay from its committed token; if it is gone, see who dropped it",
                    channel=self.name,
                    http_status=200,
                    code=status.code,
                )
            self.progress.observe(committed)
            if state is CommitState.COMMITTED:
                return status
            if state is CommitState.STALLED:
                raise CommitTimeoutError(
                    f"channel {self.name!r}: the committed position is {committed or 'NULL'} after "
                    f"{timeout:g} s, {target} was waited for. The rows are received and may still be "
                    "committed; run again, which resumes from the token found then",
                    channel=self.name,
                    committed=known,
                    target=str(target),
                )
            time.sleep(pause)
            pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)

    def _tokens(self, start: Offset, end: Offset, rows: int) -> tuple[str, str]:
        """Write the tokens of an append's first and last row, and count its rows."""
        before, self._rows = self._rows, self._rows + rows
        errors = self.start.errors
        return self._source.token(start, before + 1, errors), self._source.token(end, self._rows, errors)

    def token(self, position: Offset) -> str:
        """Write the token of the last row appended, or of a position at which nothing was appended."""
        return self._source.token(position, self._rows, self.start.errors)

    def _refuse(self, body: bytes | memoryview, rows: int, *, closed: bool) -> None:
        """Refuse an append without rows, or to a channel that this session has closed."""
        if not len(body) or rows <= 0:
            raise ContinuityError(
                f"channel {self.name!r}: an append needs rows; it has {rows} rows in {len(body)} bytes"
            )
        if closed:
            raise ConfigurationError(f"channel {self.name!r} is closed: open it again to append")


def take_over(
    client: SnowpipeClient, name: str, timeout: float = 60.0, *, discard_uncommitted: bool = True
) -> OpenedChannel:
    """Open a channel once its rows are committed, and shut out every older writer."""
    try:
        return open_when_committed(client, name, timeout)
    except UncommittedRowsError:
        if not discard_uncommitted:
            raise
    log.warning(
        "channel %r: rows of an older writer are not committed after %g s; they are discarded and sent again",
        name,
        timeout,
    )
    forced = client.open_channel(name, fail_on_uncommitted_rows=False)
    return OpenedChannel(forced.continuation_token, client.channel_statuses([name])[name])


_OUTBOX = 1


class Channel(ChannelSession):
    """The only writer of one channel, from :meth:`open` to :meth:`close`.

    Used by one thread. A second one, its own, sends batch *n* while the caller's compresses batch *n + 1*;
    one request at a time, since each continuation token comes from the answer before.

    After an error the channel is dead: its owner opens it again and replays, or gives up.
    """

    def __init__(
        self,
        client: SnowpipeClient,
        name: str,
        source: ChannelSource,
        opened: OpenedChannel,
        *,
        limits: BatchLimits,
        gaps_legal: bool,
    ) -> None:
        super().__init__(client, name, source, opened.status, gaps_legal=gaps_legal)
        self._continuation = opened.continuation_token
        self._compressor = Compressor(limits)
        self._open_batch = OpenBatch(limits)
        self._outbox: deque[Batch] = deque()
        self._sending = False
        self._closing = False
        self._failure: BaseException | None = None
        self._pace = Pace(limits)
        self._changed = threading.Condition()
        self._sender: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        client: SnowpipeClient,
        name: str,
        source: ChannelSource,
        *,
        limits: BatchLimits | None = None,
        gaps_legal: bool = False,
        uncommitted_timeout: float = 60.0,
        discard_uncommitted: bool = True,
    ) -> Self:
        """Open a channel for writing and shut out every older writer.

        Rows that an older writer left uncommitted are waited for, and discarded after
        ``uncommitted_timeout``. This loses nothing where this writer has all rows after the committed token,
        just after which it starts; a writer that has only its own rows must not discard those of others.

        :param discard_uncommitted: False raises when the time is over, and changes nothing
        :raises UncommittedRowsError: if rows are still not committed then and are not to be discarded
        :raises SourceChangedError: if the channel has committed rows of another source; nothing was changed
        :raises OffsetTokenError: if the committed token is not a checkpoint; nothing was changed
        """
        source.start(client.channel_statuses([name])[name])
        opened = take_over(client, name, uncommitted_timeout, discard_uncommitted=discard_uncommitted)
        return cls(client, name, source, opened, limits=limits or BatchLimits(), gaps_legal=gaps_legal)

    def append(self, body: bytes | memoryview, start: Offset, end: Offset, *, rows: int) -> None:
        """Append rows. They are buffered; a batch is sent when it is full or old.

        :param body: NDJSON, whole lines; a missing last newline is added
        :raises ContinuityError: if the rows do not follow the last ones; the channel stays usable
        :raises SnowpipeError: if an earlier batch failed; the channel is dead
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._refuse(body, rows, closed=self._closing)
            self.progress.accept(start, end)
            if self._sender is None:
                name = f"channel {self.name}"
                self._sender = threading.Thread(target=self._send_all, name=name, daemon=True)
                self._sender.start()
            parts = self._open_batch.take(self._compressor.ratio, following=len(body))
        if parts:
            self._hand_over(parts)
        ended = body if body[-1] in (b"\n", 10) else bytes(body) + b"\n"
        with self._changed:
            self._open_batch.add(Part(ended, start, end, rows))
            parts = self._open_batch.take(self._compressor.ratio)
            self._changed.notify_all()
        if parts:
            self._hand_over(parts)

    def flush(self) -> None:
        """Send everything appended so far and wait until the service has received it."""
        with self._changed:
            parts = self._open_batch.take()
        if parts:
            self._hand_over(parts)
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not (self._outbox or self._sending))
            if self._failure is not None:
                raise self._failure

    def close(self, *, flush: bool = True) -> None:
        """End the session. The channel and its token stay on the service.

        :param flush: False leaves what is buffered unsent (it lies after the committed token)
        """
        try:
            if flush and not self._closing:
                self.flush()
        finally:
            with self._changed:
                self._closing = True
                self._outbox.clear()
                self._open_batch.take()
                self._changed.notify_all()
            if self._sender is not None:
                self._sender.join()

    def _hand_over(self, parts: list[Part]) -> None:
        for batch in self._compressor.close(parts):
            with self._changed:
                self._changed.wait_for(lambda: self._failure or len(self._outbox) < _OUTBOX)
                if self._failure is not None:
                    raise self._failure
                self._outbox.append(batch)
                self._changed.notify_all()

    def _send_all(self) -> None:
        try:
            while (batches := self._next_batches()) is not None:
                for batch in batches:
                    self._send(batch)
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  kept for the caller's thread, which raises it
            with self._changed:
                self._failure = error
                self._sending = False
                self._changed.notify_all()

    def _next_batches(self) -> list[Batch] | None:
        """The next thing to send: a closed batch, or the open one once it is old. None ends the thread."""
        with self._changed:
            while True:
                if self._closing:
                    return None
                if self._outbox:
                    self._sending = True
                    batch = self._outbox.popleft()
                    self._changed.notify_all()
                    return [batch]
                closes_at = self._open_batch.closes_at
                wait = None if closes_at is None else closes_at - time.monotonic()
                if wait is not None and wait <= 0:
                    self._sending = True
                    parts = self._open_batch.take()
                    break
                self._changed.wait(wait)
        return self._compressor.close(parts)

    def _send(self, batch: Batch) -> None:
        with self._changed:
            while not self._closing and (wait := self._pace.take(batch.raw_bytes)) > 0:
                self._changed.wait(wait)
            if self._closing:
                return
        start, end = self._tokens(batch.start, batch.end, batch.rows)
        began = time.monotonic()
        self._continuation = self._client.append_rows(
            self.name,
            batch.body,
            continuation_token=self._continuation,
            start_token=start,
            end_token=end,
            content_encoding=batch.encoding,
            raw_length=batch.raw_bytes,
        )
        seconds = time.monotonic() - began
        self.counters.rows += batch.rows
        self.counters.bytes += batch.raw_bytes
        self.counters.requests += 1
        self.counters.request_seconds += seconds
        self.counters.longest_request = max(self.counters.longest_request, seconds)
