"""Operators on single channels: open, drop, reset the offset token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.links.snowpipe import channel_page
from airflow_provider_snowpipe.operators.account_operator import PipeOperator, check_arguments, require_name
from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import Offset, offset_class
from airflow_provider_snowpipe.streaming.progress import ChannelState, ChannelStatus

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class ChannelOperator(PipeOperator):
    """Base of the operators on one channel.

    :param channel: the channel's name (templated)
    """

    template_fields: Sequence[str] = ("channel", *PipeOperator.template_fields)

    def __init__(self, *, channel: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.channel = channel

    def _page(self, context: Context) -> str:
        return channel_page(self.hook, require_name("channel", self.channel))

    def _status(self) -> ChannelStatus:
        name = require_name("channel", self.channel)
        return self.hook.channel_statuses([name])[name]


class SnowpipeOpenChannelOperator(ChannelOperator):
    """Make sure that a channel exists, ready for a writer outside of this task.

    Running it again changes nothing (``if_exists="skip"``) or shuts older writers out (``"fence"``). The
    token of a channel that exists is never changed; that is what :class:`SnowpipeResetOffsetOperator` does.

    :param offset_token: the committed token that a new channel starts with, None for NULL (templated)
    :param if_exists: ``skip`` or ``fence``
    :param uncommitted_timeout: seconds that ``fence`` waits for rows of the older writer to be committed
    """

    template_fields: Sequence[str] = ("offset_token", *ChannelOperator.template_fields)

    def __init__(
        self,
        *,
        offset_token: str | None = None,
        if_exists: str = "skip",
        uncommitted_timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.offset_token = offset_token
        self.if_exists = if_exists
        self.uncommitted_timeout = uncommitted_timeout
        check_one_of("if_exists", if_exists, ("skip", "fence"))
        check_arguments(self, seconds=["uncommitted_timeout"])

    def perform(self, context: Context) -> dict[str, Any]:
        """Open the channel where that is needed.

        :return: channel, pipe, what was done (``create``, ``fence`` or ``skip``) and the committed token
        """
        from airflow_provider_snowpipe.streaming.admin import open_channel

        with self.hook.get_client() as client:
            done = open_channel(
                client,
                require_name("channel", self.channel),
                offset_token=_token(self.offset_token),
                if_exists=self.if_exists,
                uncommitted_timeout=self.uncommitted_timeout,
            )
        self._count_change("opened")
        self.log.info(
            "%s channel %r, committed token %s", done.action, done.channel, done.committed or "NULL"
        )
        return {**asdict(done), "pipe": str(self.hook.pipe_name()), "action": done.action.value}

    def preview(self) -> list[str]:
        """Report whether the channel would be created, fenced or left."""
        from airflow_provider_snowpipe.streaming.admin import OpenAction, plan_opening

        status, new = self._status(), _token(self.offset_token)
        action = plan_opening(status, new, self.if_exists)
        token = new if action is OpenAction.CREATE else status.committed
        return [
            f"would {action} channel {self.channel!r} of pipe {self.hook.pipe_name()}, token "
            f"{token or 'NULL'}"
        ]


class SnowpipeDropChannelOperator(ChannelOperator):
    """Drop a channel and its offset token, after every row it received is committed.

    The writer is shut out first. A channel that does not exist is success.

    :param force: True drops at once; the log reports what is lost
    :param commit_timeout: seconds to wait for the commit
    """

    def __init__(self, *, force: bool = False, commit_timeout: float = 600.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force = force
        self.commit_timeout = commit_timeout
        check_arguments(self, seconds=["commit_timeout"], switches=["force"])

    def perform(self, context: Context) -> dict[str, Any]:
        """Flush and drop the channel.

        :return: channel, pipe, whether it existed, the token that went with it, and whether rows did
        """
        from airflow_provider_snowpipe.streaming.admin import drop_channel

        with self.hook.get_client() as client:
            done = drop_channel(
                client,
                require_name("channel", self.channel),
                force=self.force,
                commit_timeout=self.commit_timeout,
            )
        if not done.existed:
            self.log.info("there is no channel %r; nothing to drop", done.channel)
        else:
            self._count_change("dropped")
            (self.log.warning if done.discarded is not False else self.log.info)(
                "dropped channel %r with its offset token %s; uncommitted rows discarded: %s",
                done.channel,
                done.committed or "NULL",
                {True: "yes", False: "none", None: "unknown, its session was broken"}[done.discarded],
            )
        return {**asdict(done), "pipe": str(self.hook.pipe_name())}

    def preview(self) -> list[str]:
        """Report what would go with the channel."""
        status = self._status()
        if not status.exists:
            return [f"channel {self.channel!r} does not exist; nothing would be dropped"]
        how = "at once, with any uncommitted rows" if self.force else "once its rows are committed"
        return [
            f"would drop channel {self.channel!r} of pipe {self.hook.pipe_name()} {how}; its offset token "
            f"{status.committed or 'NULL'} would be lost ({status.rows_inserted} rows stay in the table)"
        ]


class SnowpipeResetOffsetOperator(ChannelOperator):
    """Set a channel's committed offset token, so that its next writer resumes from there.

    Rows in the table stay: going back loads those after the token again, unless they are deleted first.

    :param offset_token: the new token (templated)
    :param offset_format: the tokens' format, to check and explain the move; None takes any text (templated)
    :param observe_seconds: how long the channel is watched for a writer before anything is changed
    :param allow_active_writer: True shuts a writer out, and discards what it has not committed
    """

    template_fields: Sequence[str] = ("offset_token", "offset_format", *ChannelOperator.template_fields)

    def __init__(
        self,
        *,
        offset_token: str,
        offset_format: str | None = None,
        observe_seconds: float = 10.0,
        allow_active_writer: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.offset_token = offset_token
        self.offset_format = offset_format
        self.observe_seconds = observe_seconds
        self.allow_active_writer = allow_active_writer
        check_arguments(self, seconds=["observe_seconds"], switches=["allow_active_writer"])

    def perform(self, context: Context) -> dict[str, Any]:
        """Set the token.

        :return: channel, pipe, and the old and the new token
        """
        from airflow_provider_snowpipe.streaming.admin import direction, reset_offset_token

        token, status = self._new_token(), self._status()
        if status.exists:
            self.log.info("%s", direction(status.committed, token, self._format(), self.channel))
        with self.hook.get_client() as client, self.hook.offset_tokens() as set_token:
            done = reset_offset_token(
                client,
                self.channel,
                token,
                observe=self._observe,
                set_token=set_token,
                planned=status,
                observe_seconds=self.observe_seconds,
                allow_active_writer=self.allow_active_writer,
            )
        self._count_change("reset")
        self.log.info("%s", done)
        return {**asdict(done), "pipe": str(self.hook.pipe_name())}

    def preview(self) -> list[str]:
        """Show the token now and the one that would be set, and what that means for the rows."""
        from airflow_provider_snowpipe.streaming.admin import direction

        status = self._status()
        if not status.exists:
            return [f"channel {self.channel!r} does not exist: this would fail"]
        token = self._new_token()
        meaning = direction(status.committed, token, self._format(), self.channel)
        return [
            f"would set the offset token of channel {self.channel!r} of pipe {self.hook.pipe_name()}: "
            f"{status.committed or 'NULL'} -> {token} ({meaning})"
        ]

    def _new_token(self) -> str:
        token = _token(self.offset_token)
        if token is None:
            raise ConfigurationError(
                f"offset_token is {self.offset_token!r}: give the token that the channel is to get"
            )
        return token

    def _format(self) -> type[Offset] | None:
        return offset_class(self.offset_format) if self.offset_format else None

    def _observe(self) -> ChannelState:
        listed = {one.name: one for one in self.hook.list_channels()}
        return ChannelState(self._status(), listed.get(self.channel))


def _token(value: Any) -> str | None:
    """A token, None for none; templates that are rendered as native objects make numbers of digits."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigurationError(f"offset_token is {value!r}: give a text")
    return str(value)
