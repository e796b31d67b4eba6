"""The HTTP server around the service: uvicorn with time-outs of its own, and an end within seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

log = logging.getLogger(__name__)

HEADER_SECONDS = 15.0
# A supervisor kills after ten seconds (docker stop); what is committed is safe in the write-ahead log.
STOP_SECONDS = 9.0

_Protocol: Any = AutoHTTPProtocol


class TimedProtocol(_Protocol):  # type: ignore[misc]
    """A connection that ends when the head of a request does not come in time: uvicorn has no such limit."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a head is complete, and wait for one that has begun."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Leave an idle connection to uvicorn's own keep-alive."""
        self._stop_waiting()
        super().on_response_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Server(uvicorn.Server):
    """A server that stops what runs as soon as it is told to end, and ends within ten seconds.

    :param config: as uvicorn takes it.
    :param cancel: stops the statements that run; called on a thread of its own.
    """

    def __init__(self, config: uvicorn.Config, cancel: Callable[[], None]) -> None:
        super().__init__(config)
        self._cancel = cancel

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer SIGTERM or SIGINT."""
        if not self.should_exit:
            threading.Thread(target=self._cancel, name="cancel", daemon=True).start()
            threading.Thread(target=_end_anyway, name="end", daemon=True).start()
        super().handle_exit(sig, frame)


def _end_anyway() -> None:
    """End the process when a statement that cannot be interrupted holds it up."""
    time.sleep(STOP_SECONDS)
    log.warning("a statement could not be stopped within %g s: ending without it", STOP_SECONDS)
    logging.shutdown()
    os._exit(1)
