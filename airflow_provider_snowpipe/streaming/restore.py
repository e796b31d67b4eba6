"""Bringing channels back to the tokens of a backup: what has to be done, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_snowpipe.streaming.backup import OffsetBackup
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.reset import SetToken, TokenChange, compare_and_set
from airflow_provider_snowpipe.streaming.status import ChannelStatus

log = logging.getLogger(__name__)


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
