"""Setting a channel's offset token: not while somebody writes, and proved by reading it back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_snowpipe.streaming.activity import ChannelLook, signs_of_a_writer
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    UncommittedRowsError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offsets import Offset

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_CONFIRM_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A token that was set.

    :param channel: the channel's name
    :param old: the committed offset token before, None for NULL
    :param new: the committed offset token now
    """

    channel: str
    old: str | None
    new: str

    def __str__(self) -> str:
        return f"offset token of channel {self.channel!r}: {self.old or 'NULL'} -> {self.new}"


def direction(old: str | None, new: str, offset_class: type[Offset] | None, channel: str) -> str:
    """Say what moving a channel's token means for its rows.

    :param old: the committed token, None for NULL
    :param new: the token to be set
    :param offset_class: the tokens' format, None when it is not known
    :param channel: the channel's name
    :raises OffsetTokenError: if a token does not have that format
    """
    if offset_class is None:
        return "the next writer resumes just after the new token"
    position = offset_class.parse(new, channel=channel)
    if old is None:
        return "rows up to the new token will not be read"
    committed = offset_class.parse(old, channel=channel)
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
    look: Callable[[], ChannelLook],
    set_token: Callable[[str, str], None],
    observe_seconds: float = 10.0,
    allow_active_writer: bool = False,
) -> OffsetReset:
    """Set a channel's offset token, shutting out whoever wrote to it.

    The channel is watched for a while; if anything moves, nothing is done. Then it is opened, which makes
    every older writer stale and fails while rows are uncommitted; so the token that is set is the last word.

    :param client: the pipe's client
    :param channel: the channel's name
    :param token: the new offset token
    :param look: looks at the channel once
    :param set_token: sets the token of a channel by the system function
    :param observe_seconds: how long the channel is watched
    :param allow_active_writer: True does not watch, and discards rows that are not committed
    :raises WriterActiveError: if somebody writes
    :raises ChannelInvalidError: if there is no such channel
    :raises CommitTimeoutError: if the service does not show the new token
    """
    if not token:
        raise ConfigurationError(f"channel {channel!r}: the new offset token is empty: give a token")
    first = look()
    if not first.status.exists:
        raise ChannelInvalidError(
            f"channel {channel!r} of pipe {client.pipe} does not exist, so it has no token to reset: open it "
            "with that offset token instead",
            channel=channel,
            http_status=404,
            code=first.status.code,
        )
    if not allow_active_writer:
        _refuse_while_written_to(channel, first, look, observe_seconds)
    try:
        client.open_channel(channel, fail_on_uncommitted_rows=not allow_active_writer)
    except UncommittedRowsError as error:
        raise _active(channel, "it holds rows that are received and not committed") from error
    old = client.channel_statuses([channel])[channel].committed
    set_token(channel, token)
    confirm_tokens(client, {channel: token})
    return OffsetReset(channel, old, token)


def watch_channels(client: SnowpipeClient, channels: Sequence[str], observe_seconds: float) -> None:
    """Watch many channels at the same time, through their statuses.

    :param client: the pipe's client
    :param channels: their names
    :param observe_seconds: how long
    :raises WriterActiveError: if somebody writes to one of them
    """
    if not channels:
        return
    first = client.channel_statuses(channels)
    deadline = time.monotonic() + observe_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, remaining))
        for name, status in client.channel_statuses(channels).items():
            signs = signs_of_a_writer(ChannelLook(first[name]), ChannelLook(status))
            if signs:
                raise _active(name, "; ".join(signs))


def look_at_status(client: SnowpipeClient, channel: str) -> ChannelLook:
    """Look at a channel through its status alone, where ``SHOW CHANNELS`` is not asked.

    :param client: the pipe's client
    :param channel: the channel's name
    """
    return ChannelLook(client.channel_statuses([channel])[channel])


def _refuse_while_written_to(
    channel: str, first: ChannelLook, look: Callable[[], ChannelLook], observe_seconds: float
) -> None:
    deadline = time.monotonic() + observe_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, remaining))
        signs = signs_of_a_writer(first, look())
        if signs:
            raise _active(channel, "; ".join(signs))


def _active(channel: str, why: str) -> WriterActiveError:
    return WriterActiveError(
        f"channel {channel!r} is being written to: {why}. Stop its writer and run again; nothing was "
        "changed. "
        "allow_active_writer=True resets all the same: the writer is shut out and what it has not committed "
        "is discarded"
    )


def confirm_tokens(client: SnowpipeClient, tokens: Mapping[str, str]) -> None:
    """Wait until the service shows tokens that were set.

    :param client: the pipe's client
    :param tokens: the token of each channel
    :raises CommitTimeoutError: if it does not show one of them in time
    """
    deadline = time.monotonic() + _CONFIRM_SECONDS
    while True:
        shown = {name: one.committed for name, one in client.channel_statuses(list(tokens)).items()}
        wrong = next((name for name, token in tokens.items() if shown[name] != token), None)
        if wrong is None:
            return
        if time.monotonic() > deadline:
            raise CommitTimeoutError(
                f"channel {wrong!r}: the token was set to {tokens[wrong]!r}, but after "
                f"{_CONFIRM_SECONDS:g} s the service still shows {shown[wrong] or 'NULL'}: look at the "
                "channel before you load again",
                channel=wrong,
                committed=shown[wrong],
                target=tokens[wrong],
            )
        time.sleep(_POLL_SECONDS)
