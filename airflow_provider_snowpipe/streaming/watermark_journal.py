"""A watermark that outlives its process, with the messages on their way written down before they go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from airflow_provider_snowpipe.streaming.offset_watch import Step, Watermark

_VERSION = 1


class StateStore(Protocol):
    """Where a journal is kept; each write is durable when it returns."""

    async def aget(self, key: str) -> Any:
        """Read a value, None if there is none."""

    async def aset(self, key: str, value: Any) -> None:
        """Write a value of JSON."""


@dataclass(slots=True)
class _Entry:
    step: Step
    look: int | None = None


class WatermarkJournal:
    """Writes each step down before its message goes, and forgets it when the message has arrived.

    A process that dies in between leaves the step in the store, and the next one sends the same message
    again: no message is lost, and one that is sent twice is the same to the letter but for ``redelivered``.

    Not thread-safe: everything happens on one event loop.

    :param store: where it is kept; None keeps it in memory only
    :param key: under which key
    """

    def __init__(self, store: StateStore | None, key: str) -> None:
        self._store = store
        self._key = key
        self._lock = asyncio.Lock()
        self._base = Watermark()
        self._entries: list[_Entry] = []
        self._last_look = -1
        self.loaded = False

    @property
    def watermark(self) -> Watermark:
        """Where to go on: after all that was ever written down."""
        return self._entries[-1].step.watermark if self._entries else self._base

    async def load(self) -> list[dict[str, Any]]:
        """Read what an earlier process left.

        :returns: its messages of which nobody knows whether they arrived, in their order, marked as
            redelivered
        """
        stored = None if self._store is None else await self._store.aget(self._key)
        if stored is not None:
            self._base = Watermark.from_json(stored["watermark"])
            self._entries = [
                _Entry(Step(Watermark.from_json(one["watermark"]), one["message"])) for one in stored["sent"]
            ]
        self.loaded = True
        messages = (entry.step.message for entry in self._entries)
        return [{**message, "redelivered": True} for message in messages if message is not None]

    async def write(self, step: Step) -> None:
        """Write a step down, before its message goes.

        :param step: the step after the one written last
        """
        async with self._lock:
            entry = _Entry(step)
            self._entries.append(entry)
            try:
                await self._save()
            except BaseException:
                self._entries.remove(entry)
                raise

    def sent_with(self, look: int) -> None:
        """Remember with which look the messages went that are written down.

        :param look: the look's number
        """
        self._last_look = look
        for entry in self._entries:
            if entry.look is None:
                entry.look = look

    async def arrived(self, look: int) -> None:
        """Forget the steps whose messages have arrived.

        :param look: all messages that went with this look or an earlier one have. A look that this journal
            never had says nothing
        """
        async with self._lock:
            if look > self._last_look:
                return
            done = [entry for entry in self._entries if entry.look is not None and entry.look <= look]
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
        value = {"version": _VERSION, "watermark": self._base.to_json(), "sent": sent}
        await self._store.aset(self._key, value)


_open: WeakKeyDictionary[object, set[WatermarkJournal]] = WeakKeyDictionary()


@contextmanager
def fed_by(stream: object, journal: WatermarkJournal) -> Iterator[None]:
    """Have a journal told, as long as the block runs, what arrived of the looks of one stream.

    :param stream: what makes the looks
    :param journal: of one that reads them
    """
    journals = _open.setdefault(stream, set())
    journals.add(journal)
    try:
        yield
    finally:
        journals.discard(journal)


def journals_fed_by(stream: object) -> list[WatermarkJournal]:
    """List the journals of those who read a stream.

    :param stream: what makes the looks
    """
    return list(_open.get(stream, ()))
