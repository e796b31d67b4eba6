"""The offset tokens of a pipe's channels kept in a file, and channels brought back to them.

A channel that takes no rows for 30 days is deleted with its token ("Limitations and considerations"). A
backup holds the tokens of a pipe's channels, and since when each has not moved, so that a channel about to
expire is announced and one that did expire is noticed instead of being loaded from the start again.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_provider_snowpipe.streaming.admin import SetToken, TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.checkpoint import position_of, same_position
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import CHANNEL_LIFE
from airflow_provider_snowpipe.streaming.names import PipeName, counted, first_few
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

_FORMAT = {"format": "airflow-provider-snowpipe offset backup", "version": 1}


@dataclass(frozen=True, slots=True)
class KeptToken:
    """The token of one channel in a backup.

    :param offset_token: the committed offset token
    :param unchanged_since: when a backup saw this token first, with a time zone
    :param rows_inserted: rows of the channel that were visible then
    """

    offset_token: str
    unchanged_since: dt.datetime
    rows_inserted: int = 0

    def expires_at(self) -> dt.datetime:
        """When the channel is deleted at the latest, unless it takes rows before."""
        return self.unchanged_since + CHANNEL_LIFE


@dataclass(frozen=True, slots=True)
class OffsetBackup:
    """The tokens of a pipe's channels at one time.

    :param taken_at: the time, with its zone
    :param channels: what was kept, by the channels' names
    :param offset_format: the tokens' format, None when the caller did not name it
    """

    pipe: PipeName
    taken_at: dt.datetime
    channels: Mapping[str, KeptToken]
    offset_format: str | None = None

    def expiring(self, within: dt.timedelta) -> dict[str, dt.datetime]:
        """Channels with a token that will be deleted soon, and when."""
        limit = self.taken_at + within
        expiry = {name: kept.expires_at() for name, kept in self.channels.items()}
        return {name: expires for name, expires in expiry.items() if expires <= limit}

    def to_json(self) -> str:
        """Write the backup as a JSON text."""
        values = {**_FORMAT, **asdict(self)}
        values["channels"] = dict(sorted(values["channels"].items()))
        return json.dumps(values, default=dt.datetime.isoformat, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str, pipe: PipeName) -> Self:
        """Read a backup.

        :param pipe: the pipe that it has to be of
        :raises ConfigurationError: if it is none, or another pipe's
        """
        try:
            body = json.loads(text)
            if (found := {key: body[key] for key in _FORMAT}) != _FORMAT:
                raise ValueError(f"it is {found}, and {_FORMAT} is read")
            channels = {name: _kept(name, entry) for name, entry in body["channels"].items()}
            of = PipeName(**body["pipe"])
            backup = cls(of, _time(body["taken_at"]), channels, body["offset_format"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{origin} is not an offset backup ({type(error).__name__}: {error}): name a file that the "
                "backup wrote"
            ) from None
        if of != pipe:
            raise ConfigurationError(
                f"{origin} is the offset backup of pipe {of}, not of {pipe}: give each pipe a file of its own"
            )
        return backup


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

    :param previous: the backup that will be replaced, None for the first
    :param now: the time, with its zone
    :param keep_lost: True keeps the old token of a channel that has lost it, False refuses
    :raises SourcePositionError: if a channel has lost the token that the backup before holds; replacing that
        backup would lose the position for good
    """
    before = {} if previous is None else dict(previous.channels)
    committed = {name: status for name, status in statuses.items() if status.committed is not None}
    lost = {name: kept for name, kept in before.items() if name not in committed}
    if lost and not keep_lost:
        shown = first_few([f"{name!r} (token {one.offset_token})" for name, one in sorted(lost.items())])
        raise SourcePositionError(
            f"{counted(len(lost), 'channel')} of pipe {pipe} lost the token that the last backup holds: "
            f"{shown}. Restore the offsets from that backup, or, if the channels are gone for good, back up "
            "with on_lost='keep'; the backup was left as it is"
        )
    for name in sorted(before.keys() & committed.keys()):
        if committed[name].rows_inserted < before[name].rows_inserted:
            log.warning(
                "channel %r of pipe %s was dropped and recreated: it has committed %s, which replaces %s in "
                "the backup. Unless that was on purpose, set its token to the later one",
                *(name, pipe, committed[name].committed, before[name].offset_token),
            )
    found = {
        name: KeptToken(str(status.committed), now, status.rows_inserted)
        if name not in before or has_moved(status, before[name])
        else before[name]
        for name, status in committed.items()
    }
    for name in sorted(statuses.keys() - found.keys() - before.keys()):
        log.warning("channel %r of pipe %s has no token: the backup has none of it", name, pipe)
    return OffsetBackup(pipe, now, {**found, **lost}, offset_format)


def has_moved(status: ChannelStatus, before: KeptToken) -> bool:
    """Return whether a channel has committed anything since a backup saw it."""
    return (status.committed, status.rows_inserted) != (before.offset_token, before.rows_inserted)


def _kept(name: str, entry: Mapping[str, Any]) -> KeptToken:
    token = entry["offset_token"]
    if not isinstance(token, str):
        raise ValueError(f"channel {name!r} has the token {token!r}, which is not text")
    return KeptToken(token, _time(entry["unchanged_since"]), int(entry["rows_inserted"]))


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
    """What is done to one channel: it is created with the token of the backup, gets it, or is left."""

    action: RestoreAction
    change: TokenChange

    @classmethod
    def of(cls, status: ChannelStatus, token: str) -> Self:
        """Decide what gives a channel a token."""
        same = same_position(status.committed, token)
        action = RestoreAction.KEEP if same else RestoreAction.SET
        return cls(action if status.exists else RestoreAction.CREATE, TokenChange.after(status, token))

    def __str__(self) -> str:
        change = self.change
        return f"{self.action} channel {change.channel!r}: {change.expected or 'NULL'} -> {change.token}"


def plan_restore(
    backup: OffsetBackup,
    statuses: Mapping[str, ChannelStatus],
    offset_class: type[Offset] | None,
    *,
    allow_older_tokens: bool = False,
) -> list[RestoreStep]:
    """Decide what to do to each channel, before anything is done to any.

    :param offset_class: the tokens' format; None lets only equal tokens pass
    :param allow_older_tokens: True sets a token back, too
    :raises SourcePositionError: if a channel has committed more than the backup knows, and that is not
        allowed to be forgotten
    """
    kept = {name: one.offset_token for name, one in backup.channels.items() if name in statuses}
    steps = [RestoreStep.of(statuses[name], token) for name, token in kept.items()]
    to_set = [one.change for one in steps if one.action is RestoreAction.SET]
    ahead = [one for one in to_set if _is_ahead(one, offset_class)]
    if ahead and not allow_older_tokens:
        tokens = [f"{one.channel!r} (committed {one.expected}, backup {one.token})" for one in ahead]
        how = "" if offset_class is not None else " or cannot be compared, because no offset_format is known"
        raise SourcePositionError(
            f"{counted(len(ahead), 'channel')} of pipe {backup.pipe} committed more than the backup of "
            f"{backup.taken_at.isoformat()} holds{how}: {first_few(tokens)}. Restoring would load those rows "
            "twice; nothing was changed. allow_older_tokens=True restores all the same"
        )
    return steps


def restore_channels(
    client: SnowpipeClient, steps: Sequence[RestoreStep], *, set_token: SetToken, overwrite: bool = False
) -> dict[str, str | None]:
    """Do what was planned, channel by channel, each on condition that it is as it was when planned.

    :param overwrite: True discards rows that are not committed, and sets tokens whatever they are
    :return: the committed token that each channel had just before, None for NULL
    :raises OffsetTokenMovedError: if a channel has moved on; those before it are restored, and running again
        finds them so
    :raises WriterActiveError: if a channel holds rows that are not committed
    """
    found: dict[str, str | None] = {}
    for step in steps:
        log.info("%s", step)
        change = step.change
        found[change.channel] = change.expected
        if step.action is not RestoreAction.KEEP:
            before = compare_and_set(client, change, set_token=set_token, overwrite=overwrite, balance=True)
            found[change.channel] = before.committed
    return found


def chosen(backup: OffsetBackup, channels: Sequence[str] | None) -> list[str]:
    """The channels of a backup that are to be restored, None for all.

    :raises ConfigurationError: if the backup does not hold one of them
    """
    names = list(backup.channels if channels is None else channels)
    if unknown := [name for name in names if name not in backup.channels]:
        raise ConfigurationError(
            f"the backup of pipe {backup.pipe} holds no channel {unknown[0]!r}: it holds "
            f"{first_few(sorted(backup.channels)) or 'none'}"
        )
    return names


def _is_ahead(change: TokenChange, offset_class: type[Offset] | None) -> bool:
    if change.expected is None or offset_class is None:
        return change.expected is not None
    committed = position_of(change.expected, offset_class, channel=change.channel)
    return committed > position_of(change.token, offset_class, channel=change.channel)
