"""One poll of the service for everyone in an event loop who waits for the same thing."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from airflow_provider_snowpipe.streaming.commits import PolledStatuses, StatusSource, poll_statuses
from airflow_provider_snowpipe.streaming.errors import AuthenticationError, PipeFailedOverError

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.2
"""Pause before a first round, in which waiters that start together come together."""
CONNECT_SECONDS = 60.0
_JITTER = 0.1
"""The share of the interval by which a round may come early, so that pollers do not march in step."""
_REOPEN = (PipeFailedOverError, AuthenticationError)
"""Errors after which the client is recreated, from settings that may have changed meanwhile."""


class Closes(Protocol):
    """What a poll asks: a client with connections."""

    def close(self) -> None:
        """Give the connections back."""


Source = TypeVar("Source", bound=Closes)
Question = TypeVar("Question")
Answer = TypeVar("Answer")
Shared = TypeVar("Shared")


class SharedPoll(ABC, Generic[Source, Question, Answer]):
    """A poll that runs as long as somebody follows it, once for all who wait, at the pace of the fastest.

    A waiter announces itself with :meth:`waiting` and then reads answers: from :meth:`follow`, which drives
    the poll by itself, or from whoever else drives :meth:`answers` and hands its values on. What goes wrong
    is part of an answer; :meth:`answers` itself never ends and never raises.
    """

    def __init__(self, name: str, connect: Callable[[], Awaitable[Source]]) -> None:
        self._name = name
        self._connect = connect
        self._questions: Counter[Question] = Counter()
        self._intervals: Counter[float] = Counter()
        self._changed = asyncio.Event()
        self._followers: set[asyncio.Queue[Answer | Exception]] = set()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def answers(self) -> AsyncGenerator[Answer]:
        """Poll for ever; one value for each round."""

    @contextmanager
    def waiting(self, questions: Sequence[Question], interval: float) -> Iterator[None]:
        """Have these asked as long as the block runs.

        :param interval: seconds between two polls; the fastest of all waiters sets the poll's pace
        """
        self._questions.update(questions)
        self._intervals[interval] += 1
        self._changed.set()
        try:
            yield
        finally:
            _take(self._intervals, interval)
            for question in questions:
                _take(self._questions, question)

    async def _pause(self, began: float) -> None:
        """Wait for the interval, which a faster waiter may shorten; a new one starts no round."""
        early, is_due = 1 - _JITTER * random.random(), False  # noqa: S311  spreads polls, guards no secret
        while self._intervals and not is_due:
            is_due = not await self._is_changed(began + min(self._intervals) * early - loop_time())

    async def _is_changed(self, seconds: float | None) -> bool:
        """Wait for another waiter; False where the time is over first."""
        if seconds is not None and seconds <= 0:
            return False
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def follow(self) -> AsyncGenerator[Answer]:
        """Read the polls of the one poll that all followers share; it runs while there is one."""
        queue: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        self._followers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._broadcast(), name=self._name)
        try:
            while True:
                answer = await queue.get()
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            self._followers.discard(queue)
            if not self._followers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.wait([task])

    async def _broadcast(self) -> None:
        try:
            async with aclosing(self.answers()) as answers:
                async for answer in answers:
                    self._publish(answer)
        except Exception as error:
            self._publish(error)
            raise

    def _publish(self, answer: Answer | Exception) -> None:
        for queue in self._followers:
            queue.put_nowait(answer)


_shared: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[tuple[type[Any], Hashable], Any]
] = WeakKeyDictionary()


def shared_in_loop(kind: type[Shared], key: Hashable, make: Callable[[], Shared]) -> Shared:
    """Find or make what all of the running event loop share, such as a poll, while somebody holds it."""
    known = _shared.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    found = known.get((kind, key))
    if not isinstance(found, kind):
        found = known[kind, key] = make()
    return found


class PollClient(Generic[Source, Question, Answer]):
    """A poll's client, made when it is first needed and again after it was dropped; one thread of its own.

    With its own thread a pipe whose service hangs holds up no other pipe. What goes wrong is part of a poll.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[Source]],
        answer: Callable[[Source, Question], Answer],
        failed: Callable[[Question, Exception], Answer],
    ) -> None:
        self._connect = connect
        self._ask = answer
        self._failed = failed
        self._source: Source | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def is_new(self) -> bool:
        """True when the next poll makes a client."""
        return self._source is None

    async def poll(self, question: Question) -> Answer:
        """Poll once."""
        try:
            if self._source is None:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._source = await self._connect()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._ask, self._source, question)
        except Exception as error:  # noqa: BLE001  the waiters judge it; it must not end the poll for all
            log.warning("a shared poll failed: %s: %s", type(error).__name__, error)
            return self._failed(question, error)

    def drop(self) -> None:
        """Close the client; the next poll makes another one."""
        source, self._source = self._source, None
        if source is not None:
            source.close()


def _take(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class StatusPoll(SharedPoll[StatusSource, str, PolledStatuses]):
    """Asks after a pipe's channels, 100 a request."""

    def __init__(self, connect: Callable[[], Awaitable[StatusSource]]) -> None:
        super().__init__("snowpipe channel status", connect)

    async def answers(self) -> AsyncGenerator[PolledStatuses]:
        """Poll for ever; one value for each round."""
        with PollClient("snowpipe-status", self._connect, poll_statuses, PolledStatuses.failed) as client:
            await asyncio.sleep(GATHER_SECONDS)
            while True:
                while not self._questions:
                    await self._is_changed(None)
                began, names, is_new = loop_time(), list(self._questions), client.is_new
                answer = await client.poll(names)
                if any(isinstance(error, _REOPEN) for error in answer.errors.values()):
                    client.drop()
                    if not is_new:
                        answer = await client.poll(names)
                yield answer
                await self._pause(began)


def shared_poll(key: Hashable, connect: Callable[[], Awaitable[StatusSource]]) -> StatusPoll:
    """Find the running event loop's poll of a pipe, or make it; it lives as long as somebody holds it."""
    return shared_in_loop(StatusPoll, key, partial(StatusPoll, connect))


def loop_time() -> float:
    """Seconds of the running event loop's clock."""
    return asyncio.get_running_loop().time()


# -- One listing of a pipe's channels for everyone in an event loop who needs to know of new ones --------

LIST_SECONDS = 60.0

ListNames = Callable[[], Awaitable[Sequence[str]]]


class ChannelListing:
    """The names of a pipe's channels, asked for no more often than somebody needs them again."""

    def __init__(self, list_names: ListNames) -> None:
        self._list_names = list_names
        self._lock = asyncio.Lock()
        self._names: tuple[str, ...] = ()
        self._listed_at = float("-inf")

    async def names(self, oldest: float) -> tuple[str, ...]:
        """The channels' names."""
        async with self._lock:
            now = asyncio.get_running_loop().time
            if now() - self._listed_at > oldest:
                async with asyncio.timeout(LIST_SECONDS):
                    self._names = tuple(await self._list_names())
                self._listed_at = now()
            return self._names
