"""The offset tokens of a pipe's channels kept in a file, and channels brought back to them.

A channel that takes no rows for 30 days is deleted with its token ("Limitations and considerations"). A
backup holds the tokens of a pipe's channels, and since when each has not moved, so that a channel about to
expire is announced and one that did expire is noticed instead of being loaded from the start again.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import pyarrow as pa
from pyarrow import fs

from airflow_provider_snowpipe.streaming.admin import SetToken, TokenChange, compare_and_set, renew
from airflow_provider_snowpipe.streaming.checkpoint import position_of, same_position
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import CHANNEL_LIFE, quiet_channels
from airflow_provider_snowpipe.streaming.names import PipeName, counted, first_few
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from airflow_provider_snowpipe.streaming.row_gate import open_place, store_whole

log = logging.getLogger(__name__)

_FORMAT = {"format": "airflow-provider-snowpipe offset backup", "version": 1}


@dataclass(frozen=True, slots=True)
class KeptToken:
    """The token of one channel in a backup.

    :param offset_token: the committed offset token, None for NULL
    :param unchanged_since: when a backup saw this token first, with a time zone
    :param rows_inserted: rows of the channel that were visible then
    :param created_on_ms: when the channel was created, by which one that was recorded before its first row is
        told from one that was created again
    """

    offset_token: str | None
    unchanged_since: dt.datetime
    rows_inserted: int = 0
    created_on_ms: int | None = None

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
        return {
            name: kept.expires_at()
            for name, kept in self.channels.items()
            if kept.offset_token is not None and kept.expires_at() <= limit
        }

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
    committed = {name: status.committed for name, status in statuses.items()}
    gone = {name: kept for name, kept in before.items() if committed.get(name) is None}
    lost = {name: kept for name, kept in gone.items() if kept.offset_token is not None}
    if lost and not keep_lost:
        shown = first_few([f"{name!r} (token {one.offset_token})" for name, one in sorted(lost.items())])
        raise SourcePositionError(
            f"{counted(len(lost), 'channel')} of pipe {pipe} lost the token that the last backup holds: "
            f"{shown}. Restore the offsets from that backup, or, if the channels are gone for good, back up "
            "with on_lost='keep'; the backup was left as it is"
        )
    _warn_of_recreated(pipe, before, statuses)
    found = {
        name: KeptToken(status.committed, now, status.rows_inserted, status.created_on_ms)
        if name not in before or _has_moved(status, before[name])
        else before[name]
        for name, status in statuses.items()
        if status.exists
    }
    for name in sorted(statuses.keys() - found.keys() - before.keys()):
        log.warning("channel %r of pipe %s does not exist: the backup has no token of it", name, pipe)
    begun = {name: kept for name, kept in gone.items() if kept.created_on_ms is not None}
    return OffsetBackup(pipe, now, {**found, **begun, **lost}, offset_format)


def _warn_of_recreated(
    pipe: PipeName, before: Mapping[str, KeptToken], statuses: Mapping[str, ChannelStatus]
) -> None:
    """Name channels with fewer rows than before; the position that the file holds of them is lost now."""
    for name, kept in sorted(before.items()):
        status = statuses.get(name)
        if status is None or status.committed is None or status.rows_inserted >= kept.rows_inserted:
            continue
        log.warning(
            "channel %r of pipe %s was dropped and recreated: it has committed %s, which replaces %s in the "
            "backup. Unless that was on purpose, set its token to the later one",
            name,
            pipe,
            status.committed,
            kept.offset_token,
        )


def _has_moved(status: ChannelStatus, before: KeptToken) -> bool:
    return (status.committed, status.rows_inserted) != (before.offset_token, before.rows_inserted)


def _kept(name: str, entry: Mapping[str, Any]) -> KeptToken:
    token = entry["offset_token"]
    if token is not None and not isinstance(token, str):
        raise ValueError(f"channel {name!r} has the token {token!r}, which is not text")
    created = entry.get("created_on_ms")
    return KeptToken(token, _time(entry["unchanged_since"]), int(entry["rows_inserted"]), created)


def _time(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the timestamp {text!r} has no time zone")
    return found


# -- A backup that whoever loads keeps by itself ------------------------------------------------------------


def read_backup(path: str, pipe: PipeName) -> OffsetBackup | None:
    """Read the backup of a pipe, None where there is no file.

    :param path: a file, or a URL that pyarrow reads with what the environment permits
    :raises ConfigurationError: if it cannot be read, or is another pipe's
    """
    try:
        files, name = open_place(path)
        if files.get_file_info(name).type is fs.FileType.NotFound:
            return None
        with files.open_input_stream(name) as file:
            return OffsetBackup.from_json(file.read(), origin=path, pipe=pipe)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"the offset backup {path} cannot be read: {error}") from error


def keep_backup(
    client: SnowpipeClient,
    path: str,
    moved: Mapping[str, ChannelStatus],
    offset_format: str | None = None,
    unused: Iterable[str] = (),
) -> None:
    """Write what a load has committed into the pipe's backup, and renew the channels that are quiet.

    Tokens of the other channels stay in it, also those of channels that are gone.

    :param moved: the channels of the load, as they are now
    :param unused: channels that have got no row; without a token they are forgotten
    :raises ConfigurationError: if the file cannot be read or written
    """
    now = dt.datetime.now(dt.UTC)
    before = read_backup(path, client.pipe) or OffsetBackup(client.pipe, now, {})
    new = {name for name in unused if name in before.channels and not before.channels[name].offset_token}
    before = replace(before, channels={n: k for n, k in before.channels.items() if n not in new})
    at_rest = {name: kept.unchanged_since for name, kept in before.channels.items() if name not in moved}
    due = quiet_channels(at_rest, now)
    found = client.channel_statuses(due) if due else {}
    untouched = [one for name, one in found.items() if not _has_moved(one, before.channels[name])]
    renewed = renew(client, untouched)
    before = replace(before, channels={n: k for n, k in before.channels.items() if n not in renewed})
    statuses = {**moved, **found}
    after = take_backup(client.pipe, statuses, before, now=now, offset_format=offset_format, keep_lost=True)
    try:
        files, name = open_place(path)
        store_whole(files, name, pa.py_buffer(after.to_json().encode()))
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"the offset backup {path} cannot be written: {error}") from error


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

    A channel of the backup without a token has nothing to restore.

    :param offset_class: the tokens' format; None lets only equal tokens pass
    :param allow_older_tokens: True sets a token back, too
    :raises SourcePositionError: if a channel has committed more than the backup knows, and that is not
        allowed to be forgotten
    """
    steps = [
        RestoreStep.of(statuses[name], kept.offset_token)
        for name, kept in backup.channels.items()
        if name in statuses and kept.offset_token is not None
    ]
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
