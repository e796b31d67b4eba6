"""State of one channel in the service: sequencers, what is committed, and the answers it may have to repeat.

Threading: request threads call :meth:`Channel.accept` and :meth:`Channel.status`; opening and dropping run
under :attr:`Channel.open_lock`; the committer alone calls :meth:`Channel.committed_up_to`. Every method takes
the channel's own lock; only the committer's queue is called while it is held.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from snowpipe_local.engine.lines import EMPTY, Lines, split_lines
from snowpipe_local.engine.spool import Spool, SpoolFile
from snowpipe_local.errors import Refusal
from snowpipe_local.limits import ChannelRate, Limits
from snowpipe_local.names import Pipe

# -- One accepted append, what is durable about its channel, and how the append advances that ------------


@dataclass(slots=True)
class Append:
    """One accepted append on its way to the commit.

    :param end_token: the client's token of the last row; None does not move the committed token.
    :param received_at: ``time.monotonic()`` of the request.
    :param upload: file of a file-mode append, deleted after the commit.
    :param parked: the rows while they wait on disk; ``lines`` is empty meanwhile.
    :param durable: resolved at the commit; only elastic appends wait for it.
    """

    channel: Channel
    client_sequencer: int
    row_sequencer: int
    request_id: str
    lines: Lines
    start_token: str | None
    end_token: str | None
    received_at: float
    upload: SpoolFile | None = None
    parked: SpoolFile | None = None
    durable: Future[None] = field(default_factory=Future)
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        self._size = len(self.lines.body)

    @property
    def size(self) -> int:
        """Bytes of the rows, wherever they are."""
        return self._size

    def park(self, spool: Spool) -> None:
        """Move the rows from memory to disk."""
        self.parked = spool.park(self.lines.body)
        self.lines = Lines(b"", EMPTY, self.lines.rejected)

    def restore(self) -> None:
        """Bring the rows back into memory.

        :raises SpoolError: when they cannot be read.
        """
        if self.parked is not None:
            self.lines = dataclasses.replace(split_lines(self.parked.read()), rejected=self.lines.rejected)
            self.unpark()

    def unpark(self) -> None:
        """Delete the rows on disk."""
        if self.parked is not None:
            self.parked.remove()
            self.parked = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What is durable about one channel; one row of the hidden table ``channels``.

    ``active_on_ms`` is the service's time of the last opening or commit; the channel expires by it.
    """

    channel_id: int
    client_sequencer: int
    row_sequencer: int
    offset_token: str | None
    rows_inserted: int
    rows_parsed: int
    rows_error_count: int
    last_error_offset_upper_bound: str | None
    last_error_message: str | None
    last_error_timestamp_ms: int | None
    latency_ms: int | None
    last_request_id: str | None
    created_on_ms: int
    active_on_ms: int = 0


def advance(
    committed: Committed, append: Append, rejected: int, message: str | None, *, now_ms: int
) -> Committed:
    """Return the durable state after one more append.

    :param rejected: rows of the append that were skipped.
    :param now_ms: the service's time of the commit, epoch milliseconds.
    """
    latency = int((time.monotonic() - append.received_at) * 1000)
    token = append.end_token if append.end_token else committed.offset_token
    moved = dataclasses.replace(
        committed,
        client_sequencer=append.client_sequencer,
        row_sequencer=append.row_sequencer + 1,
        offset_token=token,
        rows_parsed=committed.rows_parsed + append.lines.parsed,
        rows_inserted=committed.rows_inserted + append.lines.parsed - rejected,
        latency_ms=latency,
        last_request_id=append.request_id,
        active_on_ms=now_ms,
    )
    if rejected == 0:
        return moved
    return dataclasses.replace(
        moved,
        rows_error_count=committed.rows_error_count + rejected,
        last_error_offset_upper_bound=token,
        last_error_message=message,
        last_error_timestamp_ms=now_ms,
    )


ELASTIC = "ELASTIC"
_REMEMBERED_ANSWERS = 64
# As this service writes them: no leading zeros, no digits of other scripts.
_CONTINUATION = re.compile(r"(0|[1-9][0-9]{0,17})_(0|[1-9][0-9]{0,17})\Z")

STALE = "STALE_CONTINUATION_TOKEN_SEQUENCER"
ROW_SEQ_GAP = "ERR_CHANNEL_MUST_BE_REOPENED_DUE_TO_ROW_SEQ_GAP"
INVALID_ROW_SEQUENCER = "ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER"
MISSING = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
UNCOMMITTED = "ERR_CHANNEL_HAS_UNCOMMITTED_DATA"
TOO_MANY_CHANNELS = "ERR_TOO_MANY_CHANNELS_IN_PIPE"
TABLE_MISSING = "ERR_TABLE_DOES_NOT_EXIST_NOT_AUTHORIZED"
PIPE_MISSING = "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"


class Channel:
    """One channel of a pipe.

    :param limits: limits of the service; None for no rate limit.
    """

    def __init__(
        self, database: str, pipe: Pipe, name: str, committed: Committed, limits: Limits | None = None
    ) -> None:
        self.database = database
        self.pipe = pipe
        self.name = name
        self.committed = committed
        self.open_lock = threading.Lock()
        self._lock = threading.Lock()
        self._client_sequencer = committed.client_sequencer
        self._next_row = committed.row_sequencer
        self._answers: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._pending = 0
        self._invalid: str | None = None
        self._dropped = False
        self._rate = ChannelRate(limits) if limits is not None else None

    @property
    def continuation_token(self) -> str:
        """Token that the next append must carry."""
        with self._lock:
            return f"{self._client_sequencer}_{self._next_row}"

    def accept(
        self,
        continuation_token: str,
        request_id: str,
        make: Callable[[int, int], Append],
        enqueue: Callable[[Append], None],
    ) -> str:
        """Take one append in order, or repeat the answer it got before.

        :param request_id: one id over all attempts of a logical append.
        :param make: builds the append from its client and row sequencer.
        :param enqueue: hands it to the committer; called at most once per logical append.
        :returns: the next continuation token.
        :raises Refusal: 409 for a stale session, a gap, or an invalid channel; 400 for a malformed token;
            429 above the channel's rates.
        """
        match = _CONTINUATION.match(continuation_token)
        if match is None:
            raise Refusal(
                400,
                "INVALID_CONTINUATION_TOKEN",
                f"channel {self.name}: malformed continuation token; open it again",
            )
        client, row = int(match[1]), int(match[2])
        with self._lock:
            self._check_session(client)
            answer = self._repeated(continuation_token, request_id, row)
            if answer is not None:
                return answer
            self._check_row(row)
            append = make(client, row)
            if self._rate is not None:
                self._rate.take(self.name, append.size)
            enqueue(append)
            self._pending += 1
            self._next_row = row + 1
            answer = f"{client}_{row + 1}"
            self._remember(continuation_token, request_id, answer)
            return answer

    def accept_unordered(
        self, request_id: str, make: Callable[[int, int], Append], enqueue: Callable[[Append], None]
    ) -> Append | None:
        """Take one append of the elastic channel; None when this request was taken before."""
        with self._lock:
            if self._dropped:
                raise self._gone()
            if ("", request_id) in self._answers:
                return None
            append = make(self._client_sequencer, self._next_row)
            enqueue(append)
            self._pending += 1
            self._next_row += 1
            self._remember("", request_id, "")
            return append

    def begin_session(self, *, fail_on_uncommitted_rows: bool) -> int:
        """Fence older writers and return the new client sequencer; nothing of them is accepted from here on.

        :param fail_on_uncommitted_rows: refuse, without fencing, while rows wait for their commit.
        :raises Refusal: 409 ``ERR_CHANNEL_HAS_UNCOMMITTED_DATA``.
        """
        with self._lock:
            if self._dropped:
                raise self._gone()
            self._check_pending(fail_on_uncommitted_rows)
            self._client_sequencer += 1
            self._next_row = 0
            self._answers.clear()
            self._invalid = None
            return self._client_sequencer

    def moved(self, database: str, pipe: Pipe) -> None:
        """Note the new name of the database or of the pipe's schema; nothing else changes."""
        with self._lock:
            self.database, self.pipe = database, pipe

    def session_stored(self, committed: Committed) -> None:
        """Note that the new session is durable."""
        with self._lock:
            self.committed = committed

    def committed_up_to(self, committed: Committed, appends: int) -> None:
        """Note a commit."""
        with self._lock:
            self._pending -= appends
            self.committed = committed

    def discarded(self, appends: int) -> None:
        """Note that appends left the queue without a commit."""
        with self._lock:
            self._pending -= appends

    def invalidate(self, code: str) -> None:
        """Refuse appends with this code until the channel is opened again."""
        with self._lock:
            self._invalid = code

    def expire(self, before_ms: int, forget: Callable[[int], None]) -> bool:
        """Drop the channel when it was last active before a time and nothing of it waits for a commit.

        :param forget: removes what is stored of the channel with this id; the channel stays if it fails.
        :returns: True when the channel is gone because of this call.
        """
        with self._lock:
            if self._dropped or self._pending or self.committed.active_on_ms >= before_ms:
                return False
            forget(self.committed.channel_id)
            self._dropped = True
            return True

    @property
    def is_dropped(self) -> bool:
        """True once the channel was dropped, by itself or with its table."""
        with self._lock:
            return self._dropped

    def drop(
        self, forget: Callable[[int], None] | None = None, *, fail_on_uncommitted_rows: bool = False
    ) -> None:
        """Refuse everything from now on.

        :param forget: removes what is stored of the channel with this id; the channel stays if it fails. None
            when that was removed already.
        :raises Refusal: 409 when asked to fail on uncommitted rows.
        """
        with self._lock:
            self._check_pending(fail_on_uncommitted_rows)
            if forget is not None:
                forget(self.committed.channel_id)
            self._dropped = True

    def status(self) -> dict[str, Any]:
        """Return the status object of the streaming REST API.

        Both spellings of the error fields are present: the documentation and SDK 1.9.1 differ.
        """
        with self._lock:
            stored, code = self.committed, self._invalid or "SUCCESS"
        return {
            "database_name": self.database,
            "schema_name": self.pipe.key.schema,
            "pipe_name": self.pipe.key.name,
            "channel_name": self.name,
            "channel_status_code": code,
            "last_committed_offset_token": stored.offset_token,
            "created_on_ms": stored.created_on_ms,
            "rows_inserted": stored.rows_inserted,
            "rows_parsed": stored.rows_parsed,
            "rows_error_count": stored.rows_error_count,
            "rows_errors": stored.rows_error_count,
            "last_error_offset_upper_bound": stored.last_error_offset_upper_bound,
            "last_error_message": stored.last_error_message,
            "last_error_timestamp_ms": stored.last_error_timestamp_ms,
            "last_error_timestamp": stored.last_error_timestamp_ms,
            "snowflake_avg_processing_latency_ms": stored.latency_ms,
        }

    def _check_pending(self, fail_on_uncommitted_rows: bool) -> None:
        if fail_on_uncommitted_rows and self._pending:
            raise Refusal(
                409,
                UNCOMMITTED,
                f"channel {self.name} has uncommitted rows; wait for their commit, or ask again without "
                f"fail_on_uncommitted_rows to discard them",
            )

    def _check_session(self, client: int) -> None:
        if self._dropped:
            raise self._gone()
        if client != self._client_sequencer:
            raise Refusal(
                409,
                STALE,
                f"channel {self.name}: continuation token of session {client}, but session "
                f"{self._client_sequencer} is open; another writer opened the channel",
            )
        if self._invalid is not None:
            raise Refusal(409, self._invalid, f"channel {self.name} is invalid; open it again and send again")

    def _repeated(self, continuation_token: str, request_id: str, row: int) -> str | None:
        answer = self._answers.get((continuation_token, request_id))
        if answer is not None:
            return answer
        # After a restart only the last committed request is known.
        if row == self.committed.row_sequencer - 1 and request_id == self.committed.last_request_id:
            return f"{self._client_sequencer}_{row + 1}"
        return None

    def _check_row(self, row: int) -> None:
        if row > self._next_row:
            raise Refusal(
                409,
                ROW_SEQ_GAP,
                f"channel {self.name}: append {row} follows append {self._next_row - 1}; rows were lost "
                f"before a commit. Open the channel again and send from after its committed offset token",
            )
        if row < self._next_row:
            raise Refusal(
                409,
                INVALID_ROW_SEQUENCER,
                f"channel {self.name}: append {row} was taken before under another requestId",
            )

    def _remember(self, continuation_token: str, request_id: str, answer: str) -> None:
        self._answers[(continuation_token, request_id)] = answer
        if len(self._answers) > _REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)

    def _gone(self) -> Refusal:
        return Refusal(404, MISSING, f"channel {self.name} was dropped; open it again")
