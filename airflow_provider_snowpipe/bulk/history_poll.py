"""One poll of a table's or pipe's load history for everyone in an event loop who waits for files of it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from airflow_provider_snowpipe.bulk.load_history import HistoryLook, HistoryQuestion, LoadHistory, look_at

log = logging.getLogger(__name__)

_Key = TypeVar("_Key", bound=Hashable)
Connect = Callable[[], Awaitable[LoadHistory]]
GATHER_SECONDS = 0.2
"""Pause before the first round, in which waiters that start together come together."""
JITTER = 0.1
"""Share of the interval by which a round may come early, so that pollers do not march in step."""
CONNECT_SECONDS = 60.0
"""Longest time for looking the connection up."""


class HistoryPoll:
    """Asks what became of files, once for all who wait for some of them, at the most impatient one's pace.

    A waiter announces itself with :meth:`waiting` and then reads looks: from :meth:`follow`, which drives the
    poll by itself, or from whoever else drives :meth:`looks` and hands its values on. What goes wrong is part
    of a look; :meth:`looks` itself never ends and never raises.

    :param connect: makes the source of the history
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._questions: Counter[HistoryQuestion] = Counter()
        self._intervals: Counter[float] = Counter()
        self._new = asyncio.Event()
        self._followers: set[asyncio.Queue[HistoryLook | Exception]] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, question: HistoryQuestion, interval: float) -> Iterator[None]:
        """Have this asked as long as the block runs.

        :param question: what the waiter wants to know
        :param interval: seconds between two looks
        """
        self._questions[question] += 1
        self._intervals[interval] += 1
        self._new.set()
        try:
            yield
        finally:
            _take(self._questions, question)
            _take(self._intervals, interval)

    async def looks(self) -> AsyncGenerator[HistoryLook]:
        """Poll for ever; one value for each round in which somebody waits."""
        source: LoadHistory | None = None
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snowpipe-history")
        try:
            await asyncio.sleep(GATHER_SECONDS)
            while True:
                while not self._questions:
                    self._new.clear()
                    await self._new.wait()
                source, look = await self._ask(source, thread)
                yield look
                await self._pause()
        finally:
            if source is not None:
                source.close()
            thread.shutdown(wait=False, cancel_futures=True)

    async def follow(self) -> AsyncGenerator[HistoryLook]:
        """Read the looks of the one poll that all followers share; it runs while there is one."""
        queue: asyncio.Queue[HistoryLook | Exception] = asyncio.Queue()
        self._followers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._broadcast(), name="snowpipe load history")
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

    def _tell(self, look: HistoryLook | Exception) -> None:
        for queue in self._followers:
            queue.put_nowait(look)

    async def _ask(
        self, source: LoadHistory | None, thread: ThreadPoolExecutor
    ) -> tuple[LoadHistory | None, HistoryLook]:
        """Look once; after an error the source is made anew, from settings that may have changed."""
        questions = list(self._questions)
        try:
            if source is None:
                async with asyncio.timeout(CONNECT_SECONDS):
                    source = await self._connect()
            loop = asyncio.get_running_loop()
            look = await loop.run_in_executor(thread, look_at, source, questions)
        except Exception as error:  # noqa: BLE001  the waiters judge it; it must not end the poll for all
            look = HistoryLook(error=error)
        if look.error is None:
            return source, look
        log.warning("a look at load history failed: %s: %s", type(look.error).__name__, look.error)
        if source is not None:
            source.close()
        return None, look

    async def _pause(self) -> None:
        """Wait for the interval; whoever is new is asked for soon, together with those who come with it."""
        interval = min(self._intervals, default=0.0)
        early = 1 - JITTER * random.random()  # noqa: S311  spreads polls, guards no secret
        self._new.clear()
        try:
            await asyncio.wait_for(self._new.wait(), interval * early)
        except TimeoutError:
            return
        await asyncio.sleep(min(GATHER_SECONDS, interval))


_polls: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, HistoryPoll]] = (
    WeakKeyDictionary()
)


def shared_poll(key: Hashable, connect: Connect) -> HistoryPoll:
    """Find the running event loop's poll of a history, or make it; it lives as long as somebody holds it.

    :param key: what connection, table and pipe are told apart by
    :param connect: makes the source of the history
    """
    polls = _polls.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    poll = polls.get(key)
    if poll is None:
        poll = polls[key] = HistoryPoll(connect)
    return poll


def _take(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
