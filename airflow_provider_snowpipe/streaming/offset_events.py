"""Commits of a pipe's channels as events: which channels to watch, when an event is due, what was sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from airflow_provider_snowpipe.streaming.arguments import check_one_of
from airflow_provider_snowpipe.streaming.checkpoint import same_position
from airflow_provider_snowpipe.streaming.commits import PolledStatuses
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.polling import ChannelListing, StatusPoll
from airflow_provider_snowpipe.streaming.progress import ChannelStatus

log = logging.getLogger(__name__)

# -- Turning polls of channels into steps: who gets which commits, each of them once ---------------------
#
# A *step* leads from one watermark to the next. Consecutive steps share the watermark between them, so that
# together they cover every commit since the watch began, and no commit twice.


@dataclass(frozen=True, slots=True)
class ChannelMark:
    """What a channel had committed at some time.

    :param created_on_ms: since 1970; a channel that is dropped and made again counts from zero
    """

    token: str | None = None
    rows: int = 0
    created_on_ms: int | None = None

    @classmethod
    def of(cls, status: ChannelStatus) -> Self:
        """Take the mark that a status shows; a channel that does not exist has committed nothing."""
        if not status.exists:
            return cls()
        return cls(status.committed, status.rows_inserted, status.created_on_ms)

    def rows_until(self, later: ChannelMark) -> int:
        """Rows that became visible between this mark and a later one of the same channel."""
        made_again = self.created_on_ms != later.created_on_ms or later.rows < self.rows
        return later.rows if made_again else later.rows - self.rows


@dataclass(frozen=True, slots=True)
class Watermark:
    """Up to where commits have been reported to somebody.

    :param begun: False before the watch has seen every channel that it started with
    """

    begun: bool = False
    rows: int = 0
    channels: Mapping[str, ChannelMark] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        marks = {name: [mark.token, mark.rows, mark.created_on_ms] for name, mark in self.channels.items()}
        return {"begun": self.begun, "rows": self.rows, "channels": marks}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        marks = {name: ChannelMark(*mark) for name, mark in value["channels"].items()}
        return cls(bool(value["begun"]), int(value["rows"]), marks)


@dataclass(frozen=True, slots=True)
class Step:
    """What one poll adds."""

    watermark: Watermark
    message: dict[str, Any] | None = None


class OffsetWatch:
    """The memory of one watcher between polls.

    :meth:`see` returns the step due, :meth:`accept` makes it; a step that is not accepted is due again.

    :param every_rows: report when the rows of all channels reach its next multiple; None for all commits
    """

    def __init__(self, pipe: str, every_rows: int | None, watermark: Watermark) -> None:
        self._pipe = pipe
        self._every_rows = every_rows
        self._first: frozenset[str] | None = None
        self._seen: dict[str, ChannelMark] = {}
        self._rows = watermark.rows
        self.watermark = watermark
        if watermark.begun:
            self._seen = dict(watermark.channels)

    def start_with(self, names: Collection[str]) -> None:
        """Take the channels at the beginning: what they had committed is not news; of later ones all is."""
        if self._first is None:
            self._first = frozenset(names)

    def see(self, statuses: Mapping[str, ChannelStatus]) -> Step | None:
        """Take in one poll; the step that is due, None if there is none."""
        if not self.watermark.begun:
            return self._begin(statuses)
        for name, status in statuses.items():
            if status.exists:
                mark = ChannelMark.of(status)
                self._rows += self._seen.get(name, ChannelMark()).rows_until(mark)
                self._seen[name] = mark
        return self._move() if self._every_rows is None else self._count(self._every_rows)

    def accept(self, step: Step) -> None:
        """Make a step."""
        if not self.watermark.begun:
            self._seen, self._rows = dict(step.watermark.channels), step.watermark.rows
        self.watermark = step.watermark

    def _begin(self, statuses: Mapping[str, ChannelStatus]) -> Step | None:
        if self._first is None:
            return None
        for name in self._first & statuses.keys():
            self._seen.setdefault(name, ChannelMark.of(statuses[name]))
        if self._first - self._seen.keys():
            return None
        return Step(Watermark(True, 0, {name: self._seen[name] for name in self._first}))

    def _count(self, every: int) -> Step | None:
        reported, now = self.watermark.rows // every, self._rows // every
        if now == reported:
            return None
        first, last = (reported + 1) * every, now * every
        return self._step(self._moved(), {"every_rows": every, "first": first, "last": last})

    def _move(self) -> Step | None:
        moved = self._moved()
        if moved:
            return self._step(moved, {})
        return None if self._now() == self.watermark else Step(self._now())

    def _moved(self) -> list[str]:
        return [name for name, mark in self._seen.items() if _has_moved(self._reported(name), mark)]

    def _reported(self, name: str) -> ChannelMark:
        return self.watermark.channels.get(name, ChannelMark())

    def _now(self) -> Watermark:
        return replace(self.watermark, rows=self._rows, channels=dict(self._seen))

    def _step(self, names: Collection[str], more: Mapping[str, Any]) -> Step:
        message: dict[str, Any] = {
            "pipe": self._pipe,
            "channels": {
                name: {
                    "token": self._seen[name].token,
                    "rows": self._seen[name].rows,
                    "previous_token": self._reported(name).token,
                    "previous_rows": self._reported(name).rows,
                }
                for name in sorted(names)
            },
            "rows": self._rows - self.watermark.rows,
            "total_rows": self._rows,
            **more,
        }
        # A name that is the same wherever and whenever the message is made.
        text = json.dumps(message, sort_keys=True, separators=(",", ":"))
        return Step(self._now(), {**message, "id": hashlib.sha256(text.encode()).hexdigest()[:32]})


def _has_moved(before: ChannelMark, now: ChannelMark) -> bool:
    moved = now.token is not None and not same_position(before.token, now.token)
    return moved or before.rows_until(now) > 0


# -- A watermark that outlives its process, with the messages on their way written down before they go ---


class StateStore(Protocol):
    """Where a journal is kept; each write is durable when it returns."""

    async def aget(self, key: str) -> Any:
        """Read a value, None if there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Write a value of JSON."""


@dataclass(slots=True)
class _Entry:
    step: Step
    answer: int | None = None


class WatermarkJournal:
    """Writes each step down before its message goes, and forgets it when the message has arrived.

    A process that dies in between leaves the step in the store, and the next one sends the same message
    again: no message is lost, and one that is sent twice is the same but for ``redelivered``.

    Not thread-safe: everything happens on one event loop.
    """

    def __init__(self, store: StateStore | None, key: str) -> None:
        self._store = store
        self._key = key
        self._lock = asyncio.Lock()
        self._base = Watermark()
        self._entries: list[_Entry] = []
        self._last_poll = -1

    @property
    def watermark(self) -> Watermark:
        """Where to go on: after all that was ever written down."""
        return self._entries[-1].step.watermark if self._entries else self._base

    async def load(self) -> list[dict[str, Any]]:
        """Read what an earlier process left: messages that may not have arrived, marked as redelivered."""
        stored = None if self._store is None else await self._store.aget(self._key)
        if stored is not None:
            self._base = Watermark.from_json(stored["watermark"])
            self._entries = [
                _Entry(Step(Watermark.from_json(one["watermark"]), one["message"])) for one in stored["sent"]
            ]
        messages = (entry.step.message for entry in self._entries)
        return [{**message, "redelivered": True} for message in messages if message is not None]

    async def write(self, step: Step) -> None:
        """Write a step down, before its message goes."""
        async with self._lock:
            entry = _Entry(step)
            self._entries.append(entry)
            try:
                await self._save()
            except BaseException:
                self._entries.remove(entry)
                raise

    def sent_with(self, answer: int) -> None:
        """Remember with which poll the messages went that are written down."""
        self._last_poll = answer
        for entry in self._entries:
            if entry.answer is None:
                entry.answer = answer

    async def arrived(self, answer: int) -> None:
        """Forget the steps whose messages have arrived.

        :param answer: all messages of this poll and earlier ones have; one that it never had changes nothing
        """
        async with self._lock:
            if answer > self._last_poll:
                return
            done = [entry for entry in self._entries if entry.answer is not None and entry.answer <= answer]
            if done:
                self._base = done[-1].step.watermark
                self._entries = self._entries[len(done) :]
                await self._save()

    async def _save(self) -> None:
        if self._store is None:
            return
        sent = [
            {"watermark": entry.step.watermark.to_json(), "message": entry.step.message}
            for entry in self._entries
        ]
        await self._store.aset(self._key, {"watermark": self._base.to_json(), "sent": sent})


_open: WeakKeyDictionary[object, set[WatermarkJournal]] = WeakKeyDictionary()


@contextmanager
def fed_by(stream: object, journal: WatermarkJournal) -> Iterator[None]:
    """Report to a journal, as long as the block runs, what arrived of the polls of one stream."""
    journals = _open.setdefault(stream, set())
    journals.add(journal)
    try:
        yield
    finally:
        journals.discard(journal)


def journals_fed_by(stream: object) -> list[WatermarkJournal]:
    """List the journals of those who read a stream."""
    return list(_open.get(stream, ()))


# -- Following the commits of a pipe's channels: from polls to messages, with a watermark that is kept ---

START_NOW, START_BEGINNING = "now", "beginning"


@dataclass(frozen=True, slots=True)
class FollowRules:
    """Which channels are followed, and which of their commits are reported."""

    channel: str | None
    prefix: str
    every_rows: int | None = None
    start: str = START_NOW
    interval: float = 5.0
    list_interval: float = 60.0

    def __post_init__(self) -> None:
        if self.channel is not None and self.prefix:
            raise ConfigurationError(
                f"channel {self.channel!r} and channel_prefix {self.prefix!r} are both given: drop one"
            )
        check_one_of("start", self.start, (START_NOW, START_BEGINNING))
        every: object = self.every_rows
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ConfigurationError(f"every_rows is {every!r}: give a whole number of 1 or more")
        for name, seconds in (("poll_interval", self.interval), ("list_interval", self.list_interval)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigurationError(f"{name} is {seconds!r}: give seconds above 0")


class OffsetFollower:
    """One watcher of a pipe's channels."""

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

    async def take(self, number: int, answer: PolledStatuses) -> list[dict[str, Any]]:
        """Take in one poll; the messages to send now.

        What goes wrong is logged and tried again; nothing is reported before it is written down.
        """
        messages: list[dict[str, Any]] = []
        try:
            watch = self._watch
            if watch is None:
                watch, messages = await self._begin()
                self._watch = watch
            if self._first is not None:
                watch.start_with(self._first)
            step = watch.see({name: answer.statuses[name] for name in self._known if name in answer.statuses})
            if step is not None:
                await self._journal.write(step)
                watch.accept(step)
                if step.message is not None:
                    messages.append({**step.message, "redelivered": False})
        except Exception as error:  # noqa: BLE001  the watcher outlives it
            log.warning("a poll of the channels is put off: %s: %s", type(error).__name__, error)
        self._journal.sent_with(number)
        return messages

    async def _begin(self) -> tuple[OffsetWatch, list[dict[str, Any]]]:
        pipe = await self._pipe_name()
        unsure = await self._journal.load()
        watermark = self._journal.watermark
        if not watermark.begun and self._rules.start == START_BEGINNING:
            watermark = Watermark(begun=True)
        if unsure:
            log.info("messages that are sent again: %d; nobody knows whether they arrived", len(unsure))
        return OffsetWatch(pipe, self._rules.every_rows, watermark), unsure

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
