"""CONNECT proxy for clients with a hard-coded Snowflake host: their connections end at the local service.

It leads nowhere else: any host but ``*.snowflakecomputing.com:443`` is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

_REQUEST = re.compile(
    rb"CONNECT ([A-Za-z0-9._-]+)\.snowflakecomputing\.com:443 HTTP/1\.[01]\r\n", re.IGNORECASE
)
_MAX_HEAD_BYTES = 16 << 10
_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_CHUNK_BYTES = 64 << 10


class ConnectProxy:
    """The proxy; runs in the event loop that starts it.

    :param listener: bound socket on loopback.
    :param host: address of the local service.
    :param port: TLS port of the local service.
    """

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self._listener = listener
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._tunnels: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=_MAX_HEAD_BYTES)

    async def stop(self) -> None:
        """Cut all tunnels and accept no more."""
        if self._server is not None:
            self._server.close()
        for tunnel in list(self._tunnels):
            tunnel.cancel()
        await asyncio.gather(*self._tunnels, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - start_server runs this in a task
        self._tunnels.add(task)
        try:
            await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The client or the service went away, or the head never ended; closing is the whole answer.
            pass
        finally:
            self._tunnels.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
        if not _REQUEST.match(head):
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n"
                b"X-Reason: only CONNECT to *.snowflakecomputing.com:443\r\n\r\n"
            )
            await writer.drain()
            return
        target_reader, target_writer = await asyncio.wait_for(
            asyncio.open_connection(self._host, self._port), _CONNECT_SECONDS
        )
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, target_writer))
                both.create_task(_pump(target_reader, writer))
        finally:
            target_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await source.read(_CHUNK_BYTES):
            target.write(part)
            await target.drain()
    # The end of one direction ends the tunnel: a TLS client that closes expects no more.
    target.close()
