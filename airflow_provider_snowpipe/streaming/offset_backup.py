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
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import pyarrow as pa
from pyarrow import fs

from airflow_provider_snowpipe.streaming.admin import SetToken, TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.checkpoint import position_of, same_position
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    OffsetTokenError,
    SnowpipeError,
    SourcePositionError,
)
from airflow_provider_snowpipe.streaming.limits import CHANNEL_LIFE, quiet_channels
from airflow_provider_snowpipe.streaming.names import PipeName, counted
from airflow_provider_snowpipe.streaming.offsets import Offset, offset_class
from airflow_provider_snowpipe.streaming.progress import ChannelStatus
from airflow_provider_snowpipe.streaming.row_gate import open_place, store_whole

log = logging.getLogger(__name__)

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
        values = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        values["channels"] = dict(sorted(values["channels"].items()))
        return json.dumps(values, default=dt.datetime.isoformat, indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str) -> Self:
        """Read a backup.

        :raises ConfigurationError: if it is none, or one of another version
        """
        try:
            body = json.loads(text)
            if body["format"] != _FORMAT:
                raise ValueError(f"its format is {body['format']!r}")
            if body["version"] != _VERSION:
                raise ConfigurationError(
                    f"{origin} is an offset backup of version {body['version']!r}, and version {_VERSION} is "
                    "read here: use the release that wrote it"
                )
            return cls(
                pipe=PipeName(**body["pipe"]),
                taken_at=_time(body["taken_at"]),
                offset_format=body["offset_format"],
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

    :param previous: the backup that will be replaced, None for the first
    :param now: the time, with its zone
    :param keep_lost: True keeps the old token of a channel that has lost it, False refuses
    :raises SourcePositionError: if a channel has lost the token that the backup before holds; replacing that
        backup would lose the position for good
    """
    if previous is not None and previous.pipe != pipe:
        raise _other_pipe(previous.pipe, pipe)
    before = {} if previous is None else dict(previous.channels)
    lost = {
        name: kept
        for name, kept in before.items()
        if kept.offset_token is not None and _token(statuses, name) is None
    }
    if lost and not keep_lost:
        raise SourcePositionError(_lost_text(pipe, lost))
    _warn_of_lower_tokens(pipe, before, statuses, offset_format)
    found = {
        name: _continued(status, before.get(name), now) for name, status in statuses.items() if status.exists
    }
    for name in sorted(statuses.keys() - found.keys() - before.keys()):
        log.warning("channel %r of pipe %s does not exist: the backup has no token of it", name, pipe)
    return OffsetBackup(pipe, now, {**found, **lost}, offset_format)


def _other_pipe(found: PipeName, pipe: PipeName) -> ConfigurationError:
    return ConfigurationError(
        f"the backup there is of pipe {found}, not of {pipe}: give each pipe a file of its own"
    )


def _warn_of_lower_tokens(
    pipe: PipeName,
    before: Mapping[str, KeptToken],
    statuses: Mapping[str, ChannelStatus],
    offset_format: str | None,
) -> None:
    """Name channels that were set back, or recreated, since the backup before, whose position is lost now."""
    for name, kept in sorted(before.items()):
        status = statuses.get(name)
        if status is not None and _is_lower(status, kept, offset_format):
            log.warning(
                "channel %r of pipe %s has committed %s, and the backup before holds %s, which is replaced: "
                "the channel was set back, or dropped and recreated. Unless that was on purpose, set its "
                "token to the later one",
                name,
                pipe,
                status.committed,
                kept.offset_token,
            )


def _is_lower(status: ChannelStatus, kept: KeptToken, offset_format: str | None) -> bool:
    """True where a token lies before the one kept; without a format a channel's rows alone show it."""
    if status.committed is None or kept.offset_token in (None, status.committed):
        return False
    if not offset_format:
        return status.rows_inserted < kept.rows_inserted
    positions = offset_class(offset_format)
    try:
        return position_of(status.committed, positions) < position_of(str(kept.offset_token), positions)
    except OffsetTokenError:  # of another format, or of files that are being loaded
        return False


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
        f"{counted(len(lost), 'channel')} of pipe {pipe} lost the token that the last backup holds: "
        f"{shown}. A channel that takes no rows for 30 days is deleted, and one that is dropped is too. "
        "Restore the offsets from that backup, or, if the channels are gone for good, back up with "
        "on_lost='keep'; the backup was left as it is"
    )


def _kept(name: str, entry: Mapping[str, Any]) -> KeptToken:
    token = entry["offset_token"]
    if token is not None and not isinstance(token, str):
        raise ValueError(f"channel {name!r} has the token {token!r}, which is no text")
    return KeptToken(token, _time(entry["unchanged_since"]), int(entry["rows_inserted"]))


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
            found = OffsetBackup.from_json(file.read(), origin=path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"the offset backup {path} cannot be read: {error}") from error
    if found.pipe != pipe:
        raise _other_pipe(found.pipe, pipe)
    return found


def keep_backup(
    client: SnowpipeClient, path: str, moved: Mapping[str, ChannelStatus], offset_format: str | None
) -> None:
    """Write what a load has committed into the pipe's backup, and renew the channels that are quiet.

    Tokens of the other channels stay in it, also those of channels that are gone.

    :param moved: the channels of the load, as they are now
    :raises ConfigurationError: if the file cannot be read or written
    """
    now = dt.datetime.now(dt.UTC)
    before = read_backup(path, client.pipe) or OffsetBackup(client.pipe, now, {})
    at_rest = {name: kept.unchanged_since for name, kept in before.channels.items() if name not in moved}
    renewed = _renewed(client, {name: before.channels[name] for name in quiet_channels(at_rest, now)})
    others = {name: kept for name, kept in before.channels.items() if name not in renewed}
    before = replace(before, channels=others)
    after = take_backup(
        client.pipe, {**moved, **renewed}, before, now=now, offset_format=offset_format, keep_lost=True
    )
    try:
        files, name = open_place(path)
        store_whole(files, name, pa.py_buffer(after.to_json().encode()))
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"the offset backup {path} cannot be written: {error}") from error


def _renewed(client: SnowpipeClient, channels: Mapping[str, KeptToken]) -> dict[str, ChannelStatus]:
    """Open channels at their own tokens; those that have one, and nobody has written to since it was kept."""
    done: dict[str, ChannelStatus] = {}
    for name, status in (client.channel_statuses([*channels]) if channels else {}).items():
        if status.committed is None:
            continue
        if _continued(status, channels[name], dt.datetime.max) != channels[name]:
            done[name] = status
            continue
        try:
            compare_and_set(client, TokenChange.after(status, status.committed))
        except SnowpipeError as error:
            log.warning("channel %r could not be renewed: %s", name, error)
            continue
        done[name] = status
    return done


# -- Bringing channels back to the tokens of a backup: what has to be done, and what is refused ----------


class RestoreAction(StrEnum):
    """What restoring one channel comes down to."""

    CREATE = "create"
    SET = "set"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """What is done to one channel.

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
            f"{counted(len(ahead), 'channel')} of pipe {backup.pipe} committed more than the backup of "
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
            client, change, set_token=set_token, overwrite=overwrite, balance=True
        ).committed
    return found


def chosen(backup: OffsetBackup, channels: Sequence[str] | None) -> list[str]:
    """The channels of a backup that are to be restored.

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
    same = same_position(status.committed, target)
    action = RestoreAction.KEEP if same else RestoreAction.SET
    return RestoreStep(name, action, status.committed, target, status.rows_inserted)


def _is_ahead(step: RestoreStep, offset_class: type[Offset] | None) -> bool:
    if step.committed is None:
        return False
    if offset_class is None:
        return True
    committed = position_of(step.committed, offset_class, channel=step.channel)
    return committed > position_of(step.token, offset_class, channel=step.channel)
