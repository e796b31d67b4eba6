"""One poll of a pipe's channels for everyone in an event loop who waits for some of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from airflow_provider_snowpipe.streaming.errors import AuthenticationError, PipeFailedOverError
from airflow_provider_snowpipe.streaming.shared_poll import (
    CONNECT_SECONDS,
    GATHER_SECONDS,
    SharedPoll,
    early_share,
    poll_of_loop,
)
from airflow_provider_snowpipe.streaming.status_look import StatusLook, StatusSource, look_at
from airflow_provider_snowpipe.streaming.wanted_channels import WantedChannels

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[StatusSource]]
_REOPEN = (PipeFailedOverError, AuthenticationError)
"""Errors after which the client is made anew, from settings that may have changed meanwhile."""


class StatusPoll(SharedPoll[StatusLook]):
    """Asks after a pipe's channels, 100 a request, once for all who wait for them.

    A waiter announces itself with :meth:`waiting` and then reads looks: from :meth:`follow`, which drives the
    poll by itself, or from whoever else drives :meth:`looks` and hands its values on. What goes wrong is part
    of a look; :meth:`looks` itself never ends and never raises.

    :param connect: makes a client of the pipe
    """

    def __init__(self, connect: Connect) -> None:
        super().__init__("snowpipe channel status")
        self._connect = connect
        self._wanted = WantedChannels()
        self._changed = asyncio.Event()

    @contextmanager
    def waiting(self, names: Sequence[str], interval: float) -> Iterator[None]:
        """Have these channels asked after as long as the block runs.

        :param names: the channels' names
        :param interval: seconds between two looks; the fastest of all waiters sets the poll's pace
        """
        self._wanted.add(names, interval)
        self._changed.set()
        try:
            yield
        finally:
            self._wanted.remove(names, interval)

    async def looks(self) -> AsyncGenerator[StatusLook]:
        """Poll for ever; one value for each round."""
        with _Client(self._connect) as client:
            await asyncio.sleep(GATHER_SECONDS)
            while True:
                await self._next_round()
                names = self._wanted.start_round(_now())
                if names:
                    yield await client.look(names)

    async def _next_round(self) -> None:
        """Sleep until a round is due; a new waiter may bring that forward."""
        early = early_share()
        while True:
            self._changed.clear()
            seconds = self._wanted.seconds_to_next_round(_now())
            if seconds is None:
                await self._changed.wait()
                continue
            pause = seconds - (1 - early) * (self._wanted.interval or 0.0)
            if pause <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except TimeoutError:
                return


class _Client:
    """The poll's client, made when it is first needed and again after it was refused; one thread of its own.

    With its own thread a pipe whose service hangs holds up no other pipe.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._source: StatusSource | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snowpipe-status")

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def look(self, names: Sequence[str]) -> StatusLook:
        fresh = self._source is None
        look = await self._ask(names)
        if any(isinstance(error, _REOPEN) for error in look.errors.values()):
            self._drop()
            if not fresh:
                look = await self._ask(names)
        return look

    async def _ask(self, names: Sequence[str]) -> StatusLook:
        try:
            if self._source is None:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._source = await self._connect()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, look_at, self._source, names)
        except Exception as error:  # noqa: BLE001  the waiters judge it; it must not end the poll for all
            log.warning("asking after %d channels failed: %s: %s", len(names), type(error).__name__, error)
            return StatusLook.failed(names, error)

    def _drop(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()


def shared_poll(key: Hashable, connect: Connect) -> StatusPoll:
    """Find the running event loop's poll of a pipe, or make it; it lives as long as somebody holds it.

    :param key: what connection and pipe are told apart by
    :param connect: makes a client of that pipe
    """
    return poll_of_loop(StatusPoll, key, partial(StatusPoll, connect))


def _now() -> float:
    return asyncio.get_running_loop().time()
