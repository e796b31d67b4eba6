"""One poll for everyone in an event loop who waits for the same thing."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

GATHER_SECONDS = 0.2
"""Pause before a first round, in which waiters that start together come together."""
CONNECT_SECONDS = 60.0
"""Longest time for looking a connection up and making a client."""
_JITTER = 0.1

Look = TypeVar("Look")
Poll = TypeVar("Poll", bound="SharedPoll[Any]")


class SharedPoll(ABC, Generic[Look]):
    """A poll that runs as long as somebody follows it, and tells all of them what each round brought.

    :param name: of its task, for who looks at a hanging event loop
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._followers: set[asyncio.Queue[Look | Exception]] = set()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def looks(self) -> AsyncGenerator[Look]:
        """Poll for ever; one value for each round."""

    async def follow(self) -> AsyncGenerator[Look]:
        """Read the looks of the one poll that all followers share; it runs while there is one."""
        queue: asyncio.Queue[Look | Exception] = asyncio.Queue()
        self._followers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._broadcast(), name=self._name)
        try:
            while True:
                look = await queue.get()
                if isinstance(look, Exception):
                    raise look
                yield look
        finally:
            self._followers.discard(queue)
            if not self._followers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.wait([task])

    async def _broadcast(self) -> None:
        try:
            async with aclosing(self.looks()) as looks:
                async for look in looks:
                    self._tell(look)
        except Exception as error:
            self._tell(error)
            raise

    def _tell(self, look: Look | Exception) -> None:
        for queue in self._followers:
            queue.put_nowait(look)


_polls: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[tuple[type[Any], Hashable], SharedPoll[Any]]
] = WeakKeyDictionary()


def poll_of_loop(kind: type[Poll], key: Hashable, make: Callable[[], Poll]) -> Poll:
    """Find the running event loop's poll of something, or make it; it lives as long as somebody holds it.

    :param kind: the poll's class
    :param key: what its polls are told apart by, such as connection and pipe
    :param make: makes the poll
    """
    polls = _polls.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    poll = polls.get((kind, key))
    if not isinstance(poll, kind):
        poll = polls[kind, key] = make()
    return poll


def early_share() -> float:
    """A share of the interval, a little below 1, after which a round comes: pollers do not march in step."""
    return 1 - _JITTER * random.random()  # noqa: S311  spreads polls, guards no secret
