"""Following the commits of a pipe's channels: from looks to messages, with a watermark that is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.streaming.channel_listing import ChannelListing
from airflow_provider_snowpipe.streaming.commits import StatusLook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offset_watch import OffsetRule, OffsetWatch, Watermark
from airflow_provider_snowpipe.streaming.polling import StatusPoll
from airflow_provider_snowpipe.streaming.watermark_journal import WatermarkJournal, fed_by

log = logging.getLogger(__name__)

START_NOW, START_BEGINNING = "now", "beginning"


@dataclass(frozen=True, slots=True)
class FollowRules:
    """Which channels are followed, and which of their commits are told.

    :param channel: the one channel; None for all whose names begin with ``prefix``
    :param prefix: beginning of the channels' names; empty for all channels of the pipe
    :param rule: which commits are worth a message
    :param start: ``now`` tells what is committed after the first look, ``beginning`` what was committed
        before it as well
    :param interval: seconds between two looks
    :param list_interval: seconds between two searches for new channels
    """

    channel: str | None
    prefix: str
    rule: OffsetRule
    start: str = START_NOW
    interval: float = 5.0
    list_interval: float = 60.0

    def __post_init__(self) -> None:
        if self.channel is not None and self.prefix:
            raise ConfigurationError(
                f"channel {self.channel!r} and channel_prefix {self.prefix!r} are both given: drop one of "
                "them"
            )
        if self.start not in (START_NOW, START_BEGINNING):
            raise ConfigurationError(
                f"start is {self.start!r}: it must be {START_NOW!r} or {START_BEGINNING!r}"
            )
        for name, seconds in (("poll_interval", self.interval), ("list_interval", self.list_interval)):
            if not seconds > 0:
                raise ConfigurationError(f"{name} is {seconds}: give seconds above 0")

    @property
    def tells_the_past(self) -> bool:
        """True when what was committed before the first look is news too."""
        return self.start == START_BEGINNING or self.rule.passes is not None


class OffsetFollower:
    """One watcher of a pipe's channels.

    :param rules: what to follow and what to tell
    :param poll: asks after the channels; its looks go to :meth:`take`
    :param listing: finds the channels whose names begin with a prefix
    :param journal: keeps the watermark
    :param pipe_name: finds the pipe's full name
    """

    def __init__(
        self,
        rules: FollowRules,
        *,
        poll: StatusPoll,
        listing: ChannelListing,
        journal: WatermarkJournal,
        pipe_name: Callable[[], Awaitable[str]],
    ) -> None:
        self._rules = rules
        self._poll = poll
        self._listing = listing
        self._journal = journal
        self._pipe_name = pipe_name
        self._watch: OffsetWatch | None = None
        self._first: tuple[str, ...] | None = None
        self._known: set[str] = set()
        self._told_problems: dict[str, str] = {}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Have the channels asked after, new ones too, as long as the block runs."""
        with ExitStack() as stack:
            stack.enter_context(fed_by(self._poll, self._journal))
            if self._rules.channel is not None:
                self._add([self._rules.channel], stack)
                yield
                return
            search = asyncio.create_task(self._search(stack), name="snowpipe channel listing")
            try:
                yield
            finally:
                search.cancel()
                with suppress(asyncio.CancelledError):
                    await search

    async def take(self, number: int, look: StatusLook) -> list[dict[str, Any]]:
        """Take in one look.

        Whatever goes wrong is logged and tried again with the next look; nothing is told before it is
        written down.

        :param number: the look's number, growing
        :param look: the look
        :returns: the messages to send now
        """
        messages: list[dict[str, Any]] = []
        try:
            watch = self._watch
            if watch is None:
                watch, messages = await self._begin()
                self._watch = watch
            if self._first is not None:
                watch.start_with(self._first)
            step = watch.see({name: look.statuses[name] for name in self._known if name in look.statuses})
            self._report(watch)
            if step is not None:
                await self._journal.write(step)
                watch.accept(step)
                if step.message is not None:
                    messages.append({**step.message, "redelivered": False})
        except Exception as error:  # noqa: BLE001  the watcher outlives it
            log.warning("a look at the channels is put off: %s: %s", type(error).__name__, error)
        self._journal.sent_with(number)
        return messages

    async def settled(self, number: int) -> None:
        """Take the messages that went with a look for arrived, where nobody says so.

        :param number: the look's number
        """
        await self._journal.arrived(number)

    async def _begin(self) -> tuple[OffsetWatch, list[dict[str, Any]]]:
        pipe = await self._pipe_name()
        unsure = await self._journal.load()
        watermark = self._journal.watermark
        if not watermark.begun and self._rules.tells_the_past:
            watermark = Watermark(begun=True)
        if unsure:
            log.info("%d message(s) are sent again: nobody knows whether they arrived", len(unsure))
        return OffsetWatch(pipe, self._rules.rule, watermark), unsure

    async def _search(self, stack: ExitStack) -> None:
        while True:
            try:
                names = await self._listing.names(self._rules.list_interval / 2)
            except Exception as error:  # noqa: BLE001  the next search may go well
                log.warning("listing the channels failed: %s: %s", type(error).__name__, error)
            else:
                self._add([name for name in names if name.startswith(self._rules.prefix)], stack)
            await asyncio.sleep(self._rules.list_interval)

    def _add(self, names: list[str], stack: ExitStack) -> None:
        new = [name for name in names if name not in self._known]
        if self._first is None:
            self._first = tuple(new)
        if new:
            self._known.update(new)
            stack.enter_context(self._poll.waiting(new, self._rules.interval))

    def _report(self, watch: OffsetWatch) -> None:
        for name, text in watch.problems.items():
            if self._told_problems.get(name) != text:
                log.warning("%s", text)
        self._told_problems = dict(watch.problems)
