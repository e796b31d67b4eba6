"""Operators that keep the offset tokens of a pipe's channels in a file, and bring them back."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.hooks.storage import read_text, storage_path, write_text
from airflow_provider_snowpipe.links.snowpipe import page_of_channels
from airflow_provider_snowpipe.operators.account_operator import PipeOperator, check_arguments
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import channel_names
from airflow_provider_snowpipe.streaming.offsets import offset_class

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_snowpipe.streaming.offset_backup import OffsetBackup, RestoreStep


# A task's own logger prints on the standard output of a command (Airflow 3.3), which has the answer.
log = logging.getLogger(__name__)
_MOST_WARN_DAYS = 100_000


class OffsetFileOperator(PipeOperator):
    """Base of the operators with a backup file.

    :param path: the file, any address that ``ObjectStoragePath`` takes (templated)
    :param path_conn_id: the connection for that address (templated)
    :param channels: names of channels, a list or its JSON text; None for all (templated)
    :param offset_format: the tokens' format (templated)
    """

    template_fields: Sequence[str] = (
        "path",
        "path_conn_id",
        "channels",
        "offset_format",
        *PipeOperator.template_fields,
    )

    def __init__(
        self,
        *,
        path: str,
        path_conn_id: str | None = None,
        channels: Sequence[str] | str | None = None,
        offset_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.path_conn_id = path_conn_id
        self.channels = channels
        self.offset_format = offset_format

    def _page(self, context: Context) -> str:
        return page_of_channels(self.hook, self._names() or ())

    def _names(self) -> list[str] | None:
        return None if self.channels is None or self.channels == "" else channel_names(self.channels)

    def _read(self) -> OffsetBackup | None:
        from airflow_provider_snowpipe.streaming.offset_backup import OffsetBackup

        text = read_text(storage_path(self.path, self.path_conn_id))
        pipe = self.hook.pipe_name()
        return None if text is None else OffsetBackup.from_json(text, origin=self.path, pipe=pipe)


class SnowpipeBackupOffsetsOperator(OffsetFileOperator):
    """Write the committed offset tokens of a pipe's channels to a JSON file.

    A channel that takes no rows for 30 days is deleted with its token. The file outlives it. It is replaced
    only when no channel has lost the token that the file holds, and it remembers since when each channel has
    not moved, so that the log warns before a channel expires. Keep one path for each pipe.

    :param on_lost: ``fail`` leaves the file as it is when a channel has lost its token, ``keep`` writes the
        file and keeps the old token in it
    :param warn_days: warn about channels that will be deleted within so many days
    """

    def __init__(self, *, on_lost: str = "fail", warn_days: float = 7.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_lost = on_lost
        self.warn_days = warn_days
        check_one_of("on_lost", on_lost, ("fail", "keep"))
        is_number = isinstance(warn_days, int | float) and not isinstance(warn_days, bool)
        if not (is_number and 0 <= warn_days < _MOST_WARN_DAYS):
            raise ConfigurationError(f"warn_days is {warn_days!r}: give a number of days, 0 or more")

    def perform(self, context: Context) -> dict[str, Any]:
        """Write the file.

        :return: path, pipe, the token of each channel, and the channels that will expire soon
        """
        backup = self._backup()
        write_text(storage_path(self.path, self.path_conn_id), backup.to_json())
        self._count_change("backed_up")
        expiring = backup.expiring(dt.timedelta(days=self.warn_days))
        for name, expires in sorted(expiring.items()):
            log.warning(
                "channel %r has not moved since %s: Snowflake deletes it with its token on %s, unless it "
                "takes rows before",
                name,
                backup.channels[name].unchanged_since.date(),
                expires.date(),
            )
        log.info("wrote the tokens of %d channels to %s", len(backup.channels), self.path)
        return {
            "path": self.path,
            "pipe": str(backup.pipe),
            "channels": {name: kept.offset_token for name, kept in backup.channels.items()},
            "expiring": {name: expires.isoformat() for name, expires in expiring.items()},
        }

    def preview(self) -> list[str]:
        """Report which tokens would be written."""
        backup = self._backup()
        kept = [f"{name}: {one.offset_token}" for name, one in backup.channels.items()]
        return [f"would write {len(kept)} tokens of pipe {backup.pipe} to {self.path}", *kept]

    def _backup(self) -> OffsetBackup:
        from airflow_provider_snowpipe.streaming.offset_backup import take_backup

        if self.offset_format:
            offset_class(self.offset_format)
        previous = self._read()
        names = self._names()
        if names is None:
            names = [one.name for one in self.hook.list_channels()]
        # What the file holds stays in it, whichever channels are asked for.
        names = list(dict.fromkeys([*names, *(previous.channels if previous else ())]))
        return take_backup(
            self.hook.pipe_name(),
            self.hook.channel_statuses(names) if names else {},
            previous,
            now=dt.datetime.now(dt.UTC),
            offset_format=self.offset_format or None,
            keep_lost=self.on_lost == "keep",
        )


class SnowpipeRestoreOffsetsOperator(OffsetFileOperator):
    """Bring channels back to the offset tokens of a backup.

    A channel that is gone is created with its token. A token that is behind the backup, or NULL, is set. All
    channels are checked before any is changed: if one has committed more than the backup knows, nothing is
    changed. Then channel by channel: the writers are shut out, and the token is set if it still is the one
    that was planned on; a channel that has moved on meanwhile stops the task.

    :param allow_older_tokens: True sets a token back, too; rows after it will be loaded again
    :param observe_seconds: how long the channels are watched for a writer before any token is set
    :param allow_active_writer: True sets tokens in spite of a writer
    """

    def __init__(
        self,
        *,
        allow_older_tokens: bool = False,
        observe_seconds: float = 10.0,
        allow_active_writer: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.allow_older_tokens = allow_older_tokens
        self.observe_seconds = observe_seconds
        self.allow_active_writer = allow_active_writer
        check_arguments(
            self, seconds=["observe_seconds"], switches=["allow_older_tokens", "allow_active_writer"]
        )

    def perform(self, context: Context) -> dict[str, Any]:
        """Restore the tokens.

        :return: path, pipe, when the backup was taken, and for each channel what was done and its token
        """
        from airflow_provider_snowpipe.streaming.admin import watch_channels
        from airflow_provider_snowpipe.streaming.offset_backup import RestoreAction, restore_channels

        backup, steps = self._plan()
        moved = [step.change.channel for step in steps if step.action is RestoreAction.SET]
        with self.hook.get_client() as client, self.hook.offset_tokens() as set_token:
            if not self.allow_active_writer:
                watch_channels(client, moved, self.observe_seconds)
            found = restore_channels(client, steps, set_token=set_token, overwrite=self.allow_active_writer)
        self._count_change("restored")
        return {
            "path": self.path,
            "pipe": str(backup.pipe),
            "taken_at": backup.taken_at.isoformat(),
            "channels": {
                one.channel: {"action": action.value, "old": found[one.channel], "new": one.token}
                for action, one in ((step.action, step.change) for step in steps)
            },
        }

    def preview(self) -> list[str]:
        """Report what would be done to each channel."""
        return [f"would {step}" for step in self._plan()[1]]

    def _plan(self) -> tuple[OffsetBackup, list[RestoreStep]]:
        from airflow_provider_snowpipe.streaming.offset_backup import chosen, plan_restore

        backup = self._read()
        if backup is None:
            raise ConfigurationError(f"there is no file {self.path}: name one that the backup wrote")
        names = chosen(backup, self._names())
        spelled = self.offset_format or backup.offset_format
        steps = plan_restore(
            backup,
            self.hook.channel_statuses(names) if names else {},
            offset_class(spelled) if spelled else None,
            allow_older_tokens=self.allow_older_tokens,
        )
        return backup, steps
