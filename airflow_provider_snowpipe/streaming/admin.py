"""Opening and dropping channels, and setting their offset tokens by compare-and-set."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.checkpoint import balanced, position_of, reported
from airflow_provider_snowpipe.streaming.client import OpenedChannel, SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    OffsetTokenMovedError,
    SnowpipeError,
    UncommittedRowsError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.limits import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import (
    CHANNEL_MISSING,
    ChannelState,
    ChannelStatus,
    signs_of_a_writer,
)

log = logging.getLogger(__name__)

# -- Opening a channel for somebody else to write to, and dropping one: what to do, and what to refuse ---


class OpenAction(StrEnum):
    """What opening a channel comes down to."""

    CREATE = "create"
    FENCE = "fence"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Opening:
    """What was done to a channel."""

    channel: str
    action: OpenAction
    committed: str | None


@dataclass(frozen=True, slots=True)
class Dropping:
    """What dropping a channel did.

    :param discarded: True when rows went with it that were received and not committed; None when unknown
    """

    channel: str
    existed: bool
    committed: str | None = None
    discarded: bool | None = False


def plan_opening(status: ChannelStatus, offset_token: str | None, if_exists: str) -> OpenAction:
    """Decide how a channel is opened."""
    check_one_of("if_exists", if_exists, ("skip", "fence"))
    if not status.exists:
        return OpenAction.CREATE
    if offset_token is not None and status.committed is None:
        raise ConfigurationError(
            f"channel {status.channel!r} exists without a committed token, so it does not start at "
            f"{offset_token!r}: reset its offset token, or leave offset_token out"
        )
    return OpenAction.FENCE if if_exists == "fence" else OpenAction.SKIP


def open_channel(
    client: SnowpipeClient,
    channel: str,
    *,
    offset_token: str | None = None,
    if_exists: str = "skip",
    uncommitted_timeout: float = 60.0,
) -> Opening:
    """Make sure that a channel exists; its arguments are those of the operator."""
    status = client.channel_statuses([channel])[channel]
    action = plan_opening(status, offset_token, if_exists)
    if action is OpenAction.CREATE:
        status = client.open_channel(channel, offset_token=offset_token).status
    elif action is OpenAction.FENCE:
        status = open_when_committed(client, channel, uncommitted_timeout).status
    return Opening(channel, action, status.committed)


def drop_channel(
    client: SnowpipeClient, channel: str, *, force: bool = False, commit_timeout: float = 600.0
) -> Dropping:
    """Drop a channel, after its rows are committed.

    The channel is opened first: its writer is shut out, and it is refused while rows are uncommitted.

    :raises UncommittedRowsError: if rows are still not committed then; the channel is still there
    """
    status = client.channel_statuses([channel])[channel]
    if not status.exists:
        return Dropping(channel, existed=False)
    if force:
        discarded: bool | None = False
        try:
            client.open_channel(channel, fail_on_uncommitted_rows=True)
        except ChannelError as error:
            discarded = True if isinstance(error, UncommittedRowsError) else None
        _drop(client, channel)
        return Dropping(channel, True, status.committed, discarded)
    try:
        opened = open_when_committed(client, channel, commit_timeout)
    except ChannelInvalidError as error:
        raise ChannelInvalidError(
            f"{error}. Its rows cannot be flushed; force=True drops it as it is",
            channel=channel,
            http_status=error.http_status,
            code=error.code,
        ) from None
    _drop(client, channel)
    return Dropping(channel, True, opened.status.committed)


def _drop(client: SnowpipeClient, channel: str) -> None:
    """Drop a channel that was there; a repeated request finds it gone when only the answer was lost."""
    try:
        client.drop_channel(channel)
    except ChannelInvalidError as error:
        if error.code != CHANNEL_MISSING:
            raise


def open_when_committed(client: SnowpipeClient, channel: str, timeout: float) -> OpenedChannel:
    """Open a channel once no row is uncommitted; UncommittedRowsError, and no change, if that is too late."""
    deadline = time.monotonic() + timeout
    pause = FIRST_POLL_SECONDS
    while True:
        try:
            return client.open_channel(channel, fail_on_uncommitted_rows=True)
        except UncommittedRowsError as error:
            if time.monotonic() + pause > deadline:
                raise UncommittedRowsError(
                    f"channel {channel!r} of pipe {client.pipe} still holds uncommitted rows after "
                    f"{timeout:g} s; nothing was changed. Wait longer, or stop its writer first",
                    channel=channel,
                    http_status=error.http_status,
                    code=error.code,
                ) from None
        time.sleep(pause)
        pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)


# -- Setting a channel's offset token by compare-and-set: fence, read, compare, set, read again ----------

_POLL_SECONDS = 0.5
_CONFIRM_SECONDS = 30.0


SetToken = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class TokenChange:
    """A token that a channel is to get, and what the decision was made on."""

    channel: str
    token: str
    expected: str | None
    rows_inserted: int | None = None

    @classmethod
    def after(cls, status: ChannelStatus, token: str) -> Self:
        """Plan to replace the token that a status shows."""
        return cls(status.channel, token, status.committed, status.rows_inserted)

    def require(self, found: ChannelStatus) -> None:
        """Raise OffsetTokenMovedError if the channel has moved on since the change was planned."""
        rows = found.rows_inserted if self.rows_inserted is None else self.rows_inserted
        if (found.committed, found.rows_inserted) == (self.expected, rows):
            return
        more = found.rows_inserted - rows
        how = (
            f"after {counted(more, 'more row')}: somebody writes to it"
            if more >= 0
            else "in a recreated channel"
        )
        raise OffsetTokenMovedError(
            f"channel {self.channel!r}: its committed token was {self.expected or 'NULL'!r} when "
            f"{self.token!r} was planned, and now is {found.committed or 'NULL'!r}, {how}. The token was not "
            "set; stop that writer, and run again, which goes on from what is committed then",
            channel=self.channel,
            expected=self.expected,
            committed=found.committed,
        )


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A token that was set."""

    channel: str
    old: str | None
    new: str

    def __str__(self) -> str:
        return f"offset token of channel {self.channel!r}: {self.old or 'NULL'} -> {self.new}"


def direction(old: str | None, new: str, offset_class: type[Offset] | None, channel: str) -> str:
    """Describe what moving a channel's token means for its rows."""
    if offset_class is None:
        return "the next writer resumes just after the new token"
    position = position_of(new, offset_class, channel=channel)
    if old is None:
        return "rows up to the new token will not be read"
    committed = position_of(old, offset_class, channel=channel)
    if position == committed:
        return "the token stays as it is"
    if position < committed:
        return "back: rows after the new token will be sent AGAIN; delete them from the table first"
    return "forward: rows between the two will NOT be read"


def reset_offset_token(
    client: SnowpipeClient,
    channel: str,
    token: str,
    *,
    observe: Callable[[], ChannelState],
    set_token: SetToken,
    planned: ChannelStatus | None = None,
    observe_seconds: float = 10.0,
    allow_active_writer: bool = False,
) -> OffsetReset:
    """Set a channel's offset token, shutting out whoever wrote to it.

    The channel is watched for a while; if anything moves, nothing is done. Then the token is set by
    :func:`compare_and_set`, on condition that it is the one that was seen.

    :param token: a checkpoint or a bare position; it is set so that the channel's counters match it
    :param planned: the channel as whoever wants the new token has seen it, None for as it is now
    :param allow_active_writer: True does not watch, discards uncommitted rows, and replaces any token
    :raises WriterActiveError: if somebody writes
    """
    if not token:
        raise ConfigurationError(f"channel {channel!r}: the new offset token is empty: give a token")
    first = observe()
    if not first.status.exists:
        raise ChannelInvalidError(
            f"channel {channel!r} of pipe {client.pipe} does not exist: open it with that token instead",
            channel=channel,
            http_status=404,
            code=first.status.code,
        )
    if not allow_active_writer:
        _refuse_while_written_to({channel: first}, lambda: {channel: observe()}, observe_seconds)
    change = TokenChange.after(planned or first.status, token)
    found = compare_and_set(client, change, set_token=set_token, overwrite=allow_active_writer, balance=True)
    return OffsetReset(channel, found.committed, balanced(token, found))


def compare_and_set(
    client: SnowpipeClient,
    change: TokenChange,
    *,
    set_token: SetToken | None = None,
    overwrite: bool = False,
    balance: bool = False,
) -> ChannelStatus:
    """Set one channel's token if it still is what the change was planned on.

    Fence, read, compare, set, fence, read: opening the channel makes every older writer stale and fails
    while rows are uncommitted, so that the token read after it is the last token of those. A writer that
    opens the channel after that, with the old token, is fenced too, and found by its rows if it had any.

    :param set_token: sets a token by the system function; None opens the channel with it, as a writer may
    :param overwrite: True discards rows that are not committed, and compares nothing
    :param balance: True writes the token so that the channel's counters match it
    :return: the channel's status before the token was set
    :raises WriterActiveError: if rows are received and not committed; nothing was changed
    :raises OffsetTokenMovedError: if the channel has moved on; it says so where the token was set
    """
    found = fence(client, change, overwrite=overwrite)
    if balance:
        change = replace(change, token=balanced(change.token, found))
    if set_token is None:
        client.open_channel(change.channel, offset_token=change.token)
    else:
        set_token(change.channel, change.token)
    _confirm(client, change, rows=found.rows_inserted, overwrite=overwrite)
    return found


def renew(client: SnowpipeClient, statuses: Iterable[ChannelStatus]) -> list[str]:
    """Open channels at their own tokens, so that the service keeps them; those that were opened."""
    done: list[str] = []
    for status in statuses:
        try:
            if status.committed is not None:
                compare_and_set(client, TokenChange.after(status, status.committed))
                done.append(status.channel)
        except SnowpipeError as error:
            log.warning("channel %r could not be renewed: %s", status.channel, error)
    return done


def mark_reported(client: SnowpipeClient, statuses: Mapping[str, ChannelStatus]) -> None:
    """Record in the channels' tokens that their rejected rows are reported; no later run reports them again.

    A channel that has moved on is left alone, so that its writer is not shut out; the next run reports.
    """
    tokens = {name: token for name, one in statuses.items() if (token := reported(one)) is not None}
    try:
        now = client.channel_statuses(list(tokens)) if tokens else {}
        for name, token in tokens.items():
            change = TokenChange.after(statuses[name], token)
            try:
                change.require(now[name])
                compare_and_set(client, change)
            except WriterActiveError as error:
                log.warning("rejected rows of channel %r will be reported again: %s", name, error)
    except SnowpipeError as error:
        log.warning("rejected rows will be reported again: %s", error)


def fence(client: SnowpipeClient, change: TokenChange, *, overwrite: bool = False) -> ChannelStatus:
    """Shut out the writers of a channel, and make sure that it is as a change of its token expects it."""
    try:
        client.open_channel(change.channel, fail_on_uncommitted_rows=not overwrite)
    except UncommittedRowsError as error:
        raise _active(change.channel, "it holds rows that are received and not committed") from error
    found = client.channel_statuses([change.channel])[change.channel]
    if not overwrite:
        change.require(found)
    return found


def watch_channels(client: SnowpipeClient, channels: Sequence[str], observe_seconds: float) -> None:
    """Watch many channels by their statuses; WriterActiveError if somebody writes to one of them."""

    def observe() -> dict[str, ChannelState]:
        return {name: ChannelState(one) for name, one in client.channel_statuses(channels).items()}

    if channels:
        _refuse_while_written_to(observe(), observe, observe_seconds)


def _refuse_while_written_to(
    first: Mapping[str, ChannelState], observe: Callable[[], Mapping[str, ChannelState]], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, remaining))
        for name, state in observe().items():
            if signs := signs_of_a_writer(first[name], state):
                raise _active(name, "; ".join(signs))


def _active(channel: str, why: str) -> WriterActiveError:
    return WriterActiveError(
        f"channel {channel!r} is being written to: {why}. Stop its writer and run again; nothing was "
        "changed. allow_active_writer=True shuts the writer out and discards what it has not committed"
    )


def _confirm(client: SnowpipeClient, change: TokenChange, *, rows: int, overwrite: bool) -> None:
    """Shut out who opened the channel before the token was set, and wait until the service shows it."""
    try:
        client.open_channel(change.channel, fail_on_uncommitted_rows=not overwrite)
    except UncommittedRowsError as error:
        raise _overwritten(change, "rows were received and are not committed", None) from error
    deadline = time.monotonic() + _CONFIRM_SECONDS
    while True:
        found = client.channel_statuses([change.channel])[change.channel]
        if found.rows_inserted != rows:
            why = f"it has committed {counted(found.rows_inserted - rows, 'row')}"
            raise _overwritten(change, why, found.committed)
        if found.committed == change.token:
            return
        if time.monotonic() > deadline:
            raise CommitTimeoutError(
                f"channel {change.channel!r}: the token was set to {change.token!r}, and still is "
                f"{found.committed or 'NULL'} after {_CONFIRM_SECONDS:g} s: look at it before you load",
                channel=change.channel,
                committed=found.committed,
                target=change.token,
            )
        time.sleep(_POLL_SECONDS)


def _overwritten(change: TokenChange, why: str, committed: str | None) -> OffsetTokenMovedError:
    return OffsetTokenMovedError(
        f"channel {change.channel!r}: {why} by another writer while its token was set from "
        f"{change.expected or 'NULL'!r} to {change.token!r}, which has overwritten theirs: stop that writer, "
        "compare table and source, and reset the token to the last row that is in the table",
        channel=change.channel,
        expected=change.token,
        committed=committed,
    )
