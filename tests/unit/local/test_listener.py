"""The HTTP server: requests that never come, and an end whatever runs."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from airflow_provider_snowpipe.local import listener

BUSY = """
import asyncio, os, signal, sys, threading, time
import uvicorn
from airflow_provider_snowpipe.local import listener
listener.STOP_SECONDS = 1.0
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
        os.kill(os.getpid(), signal.SIGTERM)
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
config = uvicorn.Config(app, port=0, lifespan="on", log_level="error", http=listener.TimedProtocol)
listener.Server(config, lambda: print("cancelled", flush=True)).run()
"""


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(listener, "HEADER_SECONDS", 0.2)
    config = uvicorn.Config(_answer, port=0, log_level="error", lifespan="off", http=listener.TimedProtocol)
    server = listener.Server(config, lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[door])))
        thread.start()
        yield door.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"]
)
def test_a_connection_without_the_head_of_a_request_is_closed(port: int, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(begun)
        received = b""
        try:
            while part := client.recv(4096):
                received += part
        except ConnectionResetError:
            pass
    assert (b"204" in received) == begun.endswith(b"\r\n\r\nGET")


def test_an_idle_connection_stays_open_between_requests(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        for _ in range(2):
            client.sendall(REQUEST)
            assert b"204" in client.recv(4096)
            time.sleep(2 * listener.HEADER_SECONDS)


def test_sigterm_ends_the_process_whatever_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "cancelled\n")
