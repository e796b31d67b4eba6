"""Opening, dropping and resetting channels, and the backup of their offset tokens: what operators ask for."""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_provider_snowpipe.streaming.client import OpenedChannel, SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    OffsetTokenMovedError,
    SourcePositionError,
    UncommittedRowsError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.limits import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelState, ChannelStatus, signs_of_a_writer

log = logging.getLogger(__name__)

# -- Opening a channel for somebody else to write to, and dropping one: what to do, and what to refuse ---


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
            "starts"
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
    pause = FIRST_POLL_SECONDS
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
        pause = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)


def _has_uncommitted_rows(client: SnowpipeClient, channel: str) -> bool | None:
    try:
        client.open_channel(channel, fail_on_uncommitted_rows=True)
    except UncommittedRowsError:
        return True
    except ChannelError:
        return None
    return False


# -- Setting a channel's offset token by compare-and-set: fence, read, compare, set, read again ----------

_POLL_SECONDS = 0.5
_CONFIRM_SECONDS = 30.0


SetToken = Callable[[str, str], object]
"""Sets the committed token of a channel by the system function, whatever it is."""


@dataclass(frozen=True, slots=True)
class TokenChange:
    """A token that a channel is to get, and what the decision was made on.

    :param channel: the channel's name
    :param token: the new token
    :param expected: the committed token that it replaces, None for NULL
    :param rows_inserted: the channel's visible rows then, None where they are not known
    """

    channel: str
    token: str
    expected: str | None
    rows_inserted: int | None = None

    @classmethod
    def after(cls, status: ChannelStatus, token: str) -> Self:
        """Plan to replace the token that a status shows.

        :param status: the channel as it was seen
        :param token: the new token
        """
        return cls(status.channel, token, status.committed, status.rows_inserted)

    def require(self, found: ChannelStatus) -> None:
        """Make sure that the channel has not moved on since the change was planned.

        :param found: the channel now
        :raises OffsetTokenMovedError: if it has
        """
        rows = found.rows_inserted if self.rows_inserted is None else self.rows_inserted
        if (found.committed, found.rows_inserted) == (self.expected, rows):
            return
        raise OffsetTokenMovedError(
            f"channel {self.channel!r}: its committed token was {self.expected or 'NULL'!r} when "
            f"{self.token!r} was planned, and now is {found.committed or 'NULL'!r}, after "
            f"{found.rows_inserted - rows:,} more row(s): somebody writes to it. The token was not set; stop "
            "that writer, and run again, which goes on from what is committed then",
            channel=self.channel,
            expected=self.expected,
            committed=found.committed,
        )


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
    """Describe what moving a channel's token means for its rows.

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
    observe: Callable[[], ChannelState],
    set_token: SetToken,
    planned: ChannelStatus | None = None,
    observe_seconds: float = 10.0,
    allow_active_writer: bool = False,
) -> OffsetReset:
    """Set a channel's offset token, shutting out whoever wrote to it.

    The channel is watched for a while; if anything moves, nothing is done. Then the token is set by
    :func:`compare_and_set`, on condition that it is the one that was seen.

    :param client: the pipe's client
    :param channel: the channel's name
    :param token: the new offset token
    :param observe: polls the channel once
    :param set_token: sets the token of a channel by the system function
    :param planned: the channel as whoever wants the new token has seen it, None for as it is now
    :param observe_seconds: how long the channel is watched
    :param allow_active_writer: True does not watch, discards rows that are not committed, and replaces
        whatever token is committed when the writer has been shut out
    :raises WriterActiveError: if somebody writes
    :raises ChannelInvalidError: if there is no such channel
    :raises CommitTimeoutError: if the service does not show the new token
    """
    if not token:
        raise ConfigurationError(f"channel {channel!r}: the new offset token is empty: give a token")
    first = observe()
    if not first.status.exists:
        raise ChannelInvalidError(
            f"channel {channel!r} of pipe {client.pipe} does not exist, so it has no token to reset: open it "
            "with that offset token instead",
            channel=channel,
            http_status=404,
            code=first.status.code,
        )
    if not allow_active_writer:
        _refuse_while_written_to(channel, first, observe, observe_seconds)
    change = TokenChange.after(planned or first.status, token)
    found = compare_and_set(client, change, set_token=set_token, overwrite=allow_active_writer)
    return OffsetReset(channel, found.committed, token)


def compare_and_set(
    client: SnowpipeClient, change: TokenChange, *, set_token: SetToken, overwrite: bool = False
) -> ChannelStatus:
    """Set one channel's token if it still is what the change was planned on.

    Fence, read, compare, set, fence, read: opening the channel makes every older writer stale and fails
    while rows are uncommitted, so that the token read after it is the last token of those. A writer that
    opens the channel after that, with the old token, is fenced too, and found by its rows if it had any.

    :param client: the pipe's client
    :param change: the channel, its new token, and what it was planned on
    :param set_token: sets the token of a channel by the system function
    :param overwrite: True discards rows that are not committed, and compares nothing
    :return: the channel's status before the token was set
    :raises WriterActiveError: if rows are received and not committed; nothing was changed
    :raises OffsetTokenMovedError: if the channel has moved on; nothing was changed, except where the error
        reports that rows came in while the token was set
    :raises CommitTimeoutError: if the service does not show the new token
    """
    found = fence(client, change, overwrite=overwrite)
    set_token(change.channel, change.token)
    _confirm(client, change, rows=found.rows_inserted, overwrite=overwrite)
    return found


def fence(client: SnowpipeClient, change: TokenChange, *, overwrite: bool = False) -> ChannelStatus:
    """Shut out the writers of a channel, and make sure that it is as a change of its token expects it.

    :param client: the pipe's client
    :param change: the planned change
    :param overwrite: True discards rows that are not committed, and compares nothing
    :return: the channel's status
    :raises WriterActiveError: if rows are received and not committed
    :raises OffsetTokenMovedError: if the channel has moved on
    """
    try:
        client.open_channel(change.channel, fail_on_uncommitted_rows=not overwrite)
    except UncommittedRowsError as error:
        raise _active(change.channel, "it holds rows that are received and not committed") from error
    found = client.channel_statuses([change.channel])[change.channel]
    if not overwrite:
        change.require(found)
    return found


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
            signs = signs_of_a_writer(ChannelState(first[name]), ChannelState(status))
            if signs:
                raise _active(name, "; ".join(signs))


def _refuse_while_written_to(
    channel: str, first: ChannelState, observe: Callable[[], ChannelState], observe_seconds: float
) -> None:
    deadline = time.monotonic() + observe_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, remaining))
        signs = signs_of_a_writer(first, observe())
        if signs:
            raise _active(channel, "; ".join(signs))


def _active(channel: str, why: str) -> WriterActiveError:
    return WriterActiveError(
        f"channel {channel!r} is being written to: {why}. Stop its writer and run again; nothing was "
        "changed. allow_active_writer=True resets all the same: the writer is shut out and what it has not "
        "committed is discarded"
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
            why = f"{found.rows_inserted - rows:,} row(s) were committed"
            raise _overwritten(change, why, found.committed)
        if found.committed == change.token:
            return
        if time.monotonic() > deadline:
            raise CommitTimeoutError(
                f"channel {change.channel!r}: the token was set to {change.token!r}, but after "
                f"{_CONFIRM_SECONDS:g} s the service still shows {found.committed or 'NULL'}: look at the "
                "channel before you load again",
                channel=change.channel,
                committed=found.committed,
                target=change.token,
            )
        time.sleep(_POLL_SECONDS)


def _overwritten(change: TokenChange, why: str, committed: str | None) -> OffsetTokenMovedError:
    return OffsetTokenMovedError(
        f"channel {change.channel!r}: {why} by another writer while its token was set from "
        f"{change.expected or 'NULL'!r} to {change.token!r}, so that their own token is overwritten: stop "
        "that writer, compare the table with the source, and reset the token to the last row that is in the "
        "table",
        channel=change.channel,
        expected=change.token,
        committed=committed,
    )


# -- Offset tokens kept outside of Snowflake, where the 30-day expiry of channels does not reach them --
#
# A channel that takes no rows for 30 days is deleted with its token ("Limitations and considerations"). A
# backup holds the tokens of a pipe's channels, and since when each has not moved, so that a channel about to
# expire is announced and one that did expire is noticed instead of being loaded from the start again.

CHANNEL_LIFE = dt.timedelta(days=30)
_FORMAT = "airflow-provider-snowpipe offset backup"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeptToken:
    """The token of one channel in a backup.

    :param offset_token: the committed offset token, None for NULL
    :param unchanged_since: when a backup saw this token first, with a time zone
    :param rows_inserted: rows of the channel that were visible then
    """

    offset_token: str | None
    unchanged_since: dt.datetime
    rows_inserted: int = 0

    def expires_at(self) -> dt.datetime:
        """When the channel is deleted at the latest, unless it takes rows before."""
        return self.unchanged_since + CHANNEL_LIFE


@dataclass(frozen=True, slots=True)
class OffsetBackup:
    """The tokens of a pipe's channels at one time.

    :param pipe: the pipe
    :param taken_at: the time, with its zone
    :param channels: what was kept, by the channels' names
    :param offset_format: the tokens' format, None when the caller did not name it
    """

    pipe: PipeName
    taken_at: dt.datetime
    channels: Mapping[str, KeptToken]
    offset_format: str | None = None

    def expiring(self, within: dt.timedelta) -> dict[str, dt.datetime]:
        """Channels with a token that will be deleted soon, and when.

        :param within: how soon
        """
        limit = self.taken_at + within
        return {
            name: kept.expires_at()
            for name, kept in self.channels.items()
            if kept.offset_token is not None and kept.expires_at() <= limit
        }

    def to_json(self) -> str:
        """Write the backup as a JSON text."""
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "pipe": {
                    "database": self.pipe.database,
                    "schema": self.pipe.schema,
                    "pipe": self.pipe.pipe,
                },
                "taken_at": self.taken_at.isoformat(),
                "offset_format": self.offset_format,
                "channels": {
                    name: {
                        "offset_token": kept.offset_token,
                        "unchanged_since": kept.unchanged_since.isoformat(),
                        "rows_inserted": kept.rows_inserted,
                    }
                    for name, kept in sorted(self.channels.items())
                },
            },
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str) -> Self:
        """Read a backup.

        :param text: the JSON text
        :param origin: where it came from, for errors
        :raises ConfigurationError: if it is none, or one of a later version
        """
        try:
            body = json.loads(text)
            if body["format"] != _FORMAT:
                raise ValueError(f"its format is {body['format']!r}")
            if body["version"] != _VERSION:
                raise ConfigurationError(
                    f"{origin} is an offset backup of version {body['version']!r}, this release reads "
                    f"version {_VERSION}: use the release that wrote it, or a later one"
                )
            return cls(
                pipe=PipeName(**body["pipe"]),
                taken_at=_time(body["taken_at"]),
                offset_format=body.get("offset_format"),
                channels={name: _kept(name, entry) for name, entry in body["channels"].items()},
            )
        except ConfigurationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{origin} is no offset backup ({type(error).__name__}: {error}): name a file that the "
                "backup wrote"
            ) from None


def take_backup(
    pipe: PipeName,
    statuses: Mapping[str, ChannelStatus],
    previous: OffsetBackup | None,
    *,
    now: dt.datetime,
    offset_format: str | None = None,
    keep_lost: bool = False,
) -> OffsetBackup:
    """Put the tokens of channels into a backup that replaces the one before.

    :param pipe: the pipe
    :param statuses: the state of each channel
    :param previous: the backup that will be replaced, None for the first
    :param now: the time, with its zone
    :param offset_format: the tokens' format
    :param keep_lost: True keeps the old token of a channel that has lost it, False refuses
    :raises SourcePositionError: if a channel has lost the token that the backup before holds; replacing that
        backup would lose the position for good
    """
    if previous is not None and previous.pipe != pipe:
        raise ConfigurationError(
            f"the backup there is of pipe {previous.pipe}, not of {pipe}: give each pipe a file of its own"
        )
    before = {} if previous is None else dict(previous.channels)
    lost = {
        name: kept
        for name, kept in before.items()
        if kept.offset_token is not None and _token(statuses, name) is None
    }
    if lost and not keep_lost:
        raise SourcePositionError(_lost_text(pipe, lost))
    found = {
        name: _continued(status, before.get(name), now) for name, status in statuses.items() if status.exists
    }
    return OffsetBackup(pipe, now, {**found, **lost}, offset_format)


def _continued(status: ChannelStatus, before: KeptToken | None, now: dt.datetime) -> KeptToken:
    moved = before is None or before.offset_token != status.committed
    if before is None or moved or before.rows_inserted != status.rows_inserted:
        return KeptToken(status.committed, now, status.rows_inserted)
    return before


def _token(statuses: Mapping[str, ChannelStatus], name: str) -> str | None:
    status = statuses.get(name)
    return None if status is None or not status.exists else status.committed


def _lost_text(pipe: PipeName, lost: Mapping[str, KeptToken]) -> str:
    shown = ", ".join(
        f"{name!r} (token {kept.offset_token}, unchanged since {kept.unchanged_since.isoformat()})"
        for name, kept in list(sorted(lost.items()))[:5]
    )
    return (
        f"{len(lost)} channel(s) of pipe {pipe} have lost the token that the last backup holds: {shown}. A "
        "channel that takes no rows for 30 days is deleted, and one that is dropped is too. Restore the "
        "offsets from that backup, or, if the channels are gone for good, back up with on_lost='keep'; the "
        "backup was left as it is"
    )


def _kept(name: str, entry: Mapping[str, Any]) -> KeptToken:
    token = entry["offset_token"]
    if token is not None and not isinstance(token, str):
        raise ValueError(f"channel {name!r} has the token {token!r}, which is no text")
    return KeptToken(token, _time(entry["unchanged_since"]), int(entry.get("rows_inserted") or 0))


def _time(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the timestamp {text!r} has no time zone")
    return found


# -- Bringing channels back to the tokens of a backup: what has to be done, and what is refused ----------


class RestoreAction(StrEnum):
    """What restoring one channel comes down to."""

    CREATE = "create"
    SET = "set"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """What is done to one channel.

    :param channel: its name
    :param action: create it with the token, set the token, or leave it
    :param committed: its committed offset token when this was planned, None for NULL
    :param token: the token of the backup
    :param rows_inserted: its visible rows when this was planned
    """

    channel: str
    action: RestoreAction
    committed: str | None
    token: str
    rows_inserted: int = 0

    def __str__(self) -> str:
        return f"{self.action} channel {self.channel!r}: {self.committed or 'NULL'} -> {self.token}"


def plan_restore(
    backup: OffsetBackup,
    statuses: Mapping[str, ChannelStatus],
    offset_class: type[Offset] | None,
    *,
    allow_older_tokens: bool = False,
) -> list[RestoreStep]:
    """Decide what to do to each channel, before anything is done to any.

    A channel of the backup without a token has nothing to restore.

    :param backup: the backup
    :param statuses: the state of each channel of it that is to be restored
    :param offset_class: the tokens' format; None lets only equal tokens pass
    :param allow_older_tokens: True sets a token back, too
    :raises SourcePositionError: if a channel has committed more than the backup knows, and that is not
        allowed to be forgotten
    """
    steps = [
        _step(name, statuses[name], kept.offset_token)
        for name, kept in backup.channels.items()
        if name in statuses and kept.offset_token is not None
    ]
    ahead = [step for step in steps if step.action is RestoreAction.SET and _is_ahead(step, offset_class)]
    if ahead and not allow_older_tokens:
        shown = ", ".join(f"{s.channel!r} (committed {s.committed}, backup {s.token})" for s in ahead[:5])
        how = "" if offset_class is not None else " or cannot be compared, because no offset_format is known"
        raise SourcePositionError(
            f"{len(ahead)} channel(s) of pipe {backup.pipe} have committed more than the backup of "
            f"{backup.taken_at.isoformat()} holds{how}: {shown}. Restoring would load those rows twice; "
            "nothing was changed. allow_older_tokens=True restores all the same"
        )
    return steps


def restore_channels(
    client: SnowpipeClient,
    steps: Sequence[RestoreStep],
    *,
    set_token: SetToken,
    overwrite: bool = False,
) -> dict[str, str | None]:
    """Do what was planned, channel by channel, each on condition that it is as it was when planned.

    :param client: the pipe's client
    :param steps: the plan
    :param set_token: sets the token of a channel by the system function
    :param overwrite: True discards rows that are not committed, and sets tokens whatever they are
    :return: the committed token that each channel had just before, None for NULL
    :raises OffsetTokenMovedError: if a channel has moved on; those before it are restored, and running again
        finds them so
    :raises WriterActiveError: if a channel holds rows that are not committed
    """
    found: dict[str, str | None] = {}
    for step in steps:
        log.info("%s", step)
        if step.action is RestoreAction.KEEP:
            found[step.channel] = step.committed
            continue
        change = TokenChange(step.channel, step.token, step.committed, step.rows_inserted)
        found[step.channel] = compare_and_set(
            client, change, set_token=set_token, overwrite=overwrite
        ).committed
    return found


def chosen(backup: OffsetBackup, channels: Sequence[str] | None) -> list[str]:
    """The channels of a backup that are to be restored.

    :param backup: the backup
    :param channels: their names, None for all
    :raises ConfigurationError: if the backup does not hold one of them
    """
    if channels is None:
        return list(backup.channels)
    unknown = [name for name in channels if name not in backup.channels]
    if unknown:
        raise ConfigurationError(
            f"the backup of pipe {backup.pipe} holds no channel {unknown[0]!r}: it holds "
            f"{', '.join(sorted(backup.channels)[:10]) or 'none'}"
        )
    return list(channels)


def _step(name: str, status: ChannelStatus, token: str | None) -> RestoreStep:
    target = token or ""
    if not status.exists:
        return RestoreStep(name, RestoreAction.CREATE, None, target)
    same = status.committed == target
    action = RestoreAction.KEEP if same else RestoreAction.SET
    return RestoreStep(name, action, status.committed, target, status.rows_inserted)


def _is_ahead(step: RestoreStep, offset_class: type[Offset] | None) -> bool:
    if step.committed is None:
        return False
    if offset_class is None:
        return True
    committed = offset_class.parse(step.committed, channel=step.channel)
    return committed > offset_class.parse(step.token, channel=step.channel)
