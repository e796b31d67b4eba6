"""Opening a channel for somebody else to write to, and dropping one: what to do, and what to refuse."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_snowpipe.streaming.client import OpenedChannel, SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelError,
    ChannelInvalidError,
    ConfigurationError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.status import ChannelStatus

_FIRST_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS = 2.0


class OpenAction(StrEnum):
    """What opening a channel comes down to."""

    CREATE = "create"
    FENCE = "fence"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Opening:
    """What was done to a channel.

    :param channel: its name
    :param action: created, fenced, or left as it was
    :param committed: its committed offset token afterwards, None for NULL
    """

    channel: str
    action: OpenAction
    committed: str | None


@dataclass(frozen=True, slots=True)
class Dropping:
    """What dropping a channel did.

    :param channel: its name
    :param existed: False when there was nothing to drop
    :param committed: the offset token that went with it, None for NULL
    :param discarded: True when rows went with it that were received and not committed; None when unknown
    """

    channel: str
    existed: bool
    committed: str | None = None
    discarded: bool | None = False


def plan_opening(status: ChannelStatus, offset_token: str | None, if_exists: str) -> OpenAction:
    """Decide how a channel is opened.

    :param status: the channel's state now
    :param offset_token: the token that a new channel starts with
    :param if_exists: ``skip`` leaves an existing channel alone, ``fence`` shuts its writers out
    :raises ConfigurationError: if an existing channel would need its token changed, which is a reset
    """
    if if_exists not in ("skip", "fence"):
        raise ConfigurationError(f"if_exists is {if_exists!r}: it must be 'skip' or 'fence'")
    if not status.exists:
        return OpenAction.CREATE
    if offset_token is not None and status.committed is None:
        raise ConfigurationError(
            f"channel {status.channel!r} exists without a committed token, so it does not start at "
            f"{offset_token!r}: reset its offset token, or leave offset_token out to start where its writer "
            "says"
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
    """Make sure that a channel exists.

    :param client: the pipe's client
    :param channel: the channel's name
    :param offset_token: the token that a new channel starts with; an existing one keeps its own
    :param if_exists: ``skip`` leaves an existing channel alone, ``fence`` shuts its writers out
    :param uncommitted_timeout: seconds to wait for rows of a fenced writer to be committed
    :raises UncommittedRowsError: if such rows are still not committed then
    """
    status = client.channel_statuses([channel])[channel]
    action = plan_opening(status, offset_token, if_exists)
    if action is OpenAction.CREATE:
        opened = client.open_channel(channel, offset_token=offset_token)
        return Opening(channel, action, opened.status.committed)
    if action is OpenAction.FENCE:
        opened = open_when_committed(client, channel, uncommitted_timeout)
        return Opening(channel, action, opened.status.committed)
    return Opening(channel, action, status.committed)


def drop_channel(
    client: SnowpipeClient, channel: str, *, force: bool = False, commit_timeout: float = 600.0
) -> Dropping:
    """Drop a channel, after its rows are committed.

    The channel is opened first. That shuts its writer out, so that no row can arrive between the last
    commit and the drop, and it is refused while there are uncommitted rows.

    :param client: the pipe's client
    :param channel: the channel's name
    :param force: True drops at once, with whatever is not committed
    :param commit_timeout: seconds to wait for the commit
    :raises UncommittedRowsError: if rows are still not committed then; the channel is still there
    """
    status = client.channel_statuses([channel])[channel]
    if not status.exists:
        return Dropping(channel, existed=False)
    if force:
        discarded = _has_uncommitted_rows(client, channel)
        client.drop_channel(channel)
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
    client.drop_channel(channel)
    return Dropping(channel, True, opened.status.committed)


def open_when_committed(client: SnowpipeClient, channel: str, timeout: float) -> OpenedChannel:
    """Open a channel as soon as none of its rows is uncommitted.

    :param client: the pipe's client
    :param channel: the channel's name
    :param timeout: seconds
    :raises UncommittedRowsError: if there still are some when the time is over; nothing has changed
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_POLL_SECONDS
    while True:
        try:
            return client.open_channel(channel, fail_on_uncommitted_rows=True)
        except UncommittedRowsError as error:
            if time.monotonic() + pause > deadline:
                raise UncommittedRowsError(
                    f"channel {channel!r} of pipe {client.pipe} still holds rows after {timeout:g} s that "
                    "are received but not committed; nothing was changed. Wait longer, or stop its writer "
                    "first",
                    channel=channel,
                    http_status=error.http_status,
                    code=error.code,
                ) from None
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_POLL_SECONDS)


def _has_uncommitted_rows(client: SnowpipeClient, channel: str) -> bool | None:
    try:
        client.open_channel(channel, fail_on_uncommitted_rows=True)
    except UncommittedRowsError:
        return True
    except ChannelError:
        return None
    return False
