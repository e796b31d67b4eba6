"""One poll of a table's or pipe's load history for everyone in an event loop who waits for files of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from airflow_provider_snowpipe.bulk.load_history import HistoryLook, HistoryQuestion, LoadHistory, look_at
from airflow_provider_snowpipe.streaming.shared_poll import (
    CONNECT_SECONDS,
    GATHER_SECONDS,
    SharedPoll,
    early_share,
    poll_of_loop,
)

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[LoadHistory]]


class HistoryPoll(SharedPoll[HistoryLook]):
    """Asks what became of files, once for all who wait for some of them, at the most impatient one's pace.

    A waiter announces itself with :meth:`waiting` and then reads looks: from :meth:`follow`, which drives the
    poll by itself, or from whoever else drives :meth:`looks` and hands its values on. What goes wrong is part
    of a look; :meth:`looks` itself never ends and never raises.

    :param connect: makes the source of the history
    """

    def __init__(self, connect: Connect) -> None:
        super().__init__("snowpipe load history")
        self._connect = connect
        self._questions: set[HistoryQuestion] = set()
        self._intervals: Counter[float] = Counter()
        self._new = asyncio.Event()

    @contextmanager
    def waiting(self, question: HistoryQuestion, interval: float) -> Iterator[None]:
        """Have this asked as long as the block runs.

        :param question: what the waiter wants to know
        :param interval: seconds between two looks
        """
        self._questions.add(question)
        self._intervals[interval] += 1
        self._new.set()
        try:
            yield
        finally:
            self._questions.discard(question)
            self._intervals[interval] -= 1
            self._intervals += Counter()  # leaves out what is 0

    async def looks(self) -> AsyncGenerator[HistoryLook]:
        """Poll for ever; one value for each round in which somebody waits."""
        source: LoadHistory | None = None
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snowpipe-history")
        try:
            while True:
                while not self._questions:
                    self._new.clear()
                    await self._new.wait()
                    await asyncio.sleep(GATHER_SECONDS)
                began = _now()
                source, look = await self._ask(source, thread)
                yield look
                await self._pause(began)
        finally:
            if source is not None:
                source.close()
            thread.shutdown(wait=False, cancel_futures=True)

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

    async def _pause(self, began: float) -> None:
        """Wait for the interval, which a more impatient waiter may shorten; a new one starts no round."""
        early = early_share()
        while self._intervals:
            self._new.clear()
            left = began + min(self._intervals) * early - _now()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._new.wait(), left)
            except TimeoutError:
                return


def shared_poll(key: Hashable, connect: Connect) -> HistoryPoll:
    """Find the running event loop's poll of a history, or make it; it lives as long as somebody holds it.

    :param key: what connection, table and pipe are told apart by
    :param connect: makes the source of the history
    """
    return poll_of_loop(HistoryPoll, key, partial(HistoryPoll, connect))


def _now() -> float:
    return asyncio.get_running_loop().time()
