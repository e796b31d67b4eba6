"""The HTTP server: requests that never come, and an end whatever runs."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from snowpipe_local import listener
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.errors import DataDirectoryError

from tests.waiting import wait_until

BUSY = """
import asyncio, os, signal, sys, threading, time
import uvicorn
from snowpipe_local import listener
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

CROWDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
import uvicorn
from snowpipe_local import listener
from snowpipe_local.server import _bind
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
door = _bind(0)
door.listen()
print(door.getsockname()[1], flush=True)
config = uvicorn.Config(app, lifespan="off", log_level="error", http=listener.TimedProtocol, **{tls})
listener.Server(config, lambda: None).run(sockets=[door])
"""

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Serving(asyncio.SelectorEventLoop):
    """A server on a port of its own, and its loop, whose time a test moves on.

    :param keep_alive: seconds after which uvicorn ends a connection that was answered
    """

    def __init__(self, keep_alive: int) -> None:
        super().__init__()
        self._passed = 0.0
        config = uvicorn.Config(
            _answer, port=0, log_level="error", lifespan="off", http=listener.TimedProtocol,
            timeout_keep_alive=keep_alive,
        )  # fmt: skip
        self.server = listener.Server(config, lambda: None)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        self.run_until_complete(self.server.serve(sockets=[self._door]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join()
        self._door.close()
        self.close()

    def time(self) -> float:
        return super().time() + self._passed

    def connect(self) -> socket.socket:
        """A connection that the server has taken."""
        client = socket.create_connection(self._door.getsockname(), timeout=240)
        wait_until(lambda: self.server.server_state.connections)
        return client

    def move_time(self, seconds: float) -> None:
        moved = threading.Event()

        def move() -> None:
            self._passed += seconds
            moved.set()

        self.call_soon_threadsafe(move)
        assert moved.wait(240)


def test_a_connection_without_the_head_of_a_request_is_closed_and_an_idle_one_stays_open() -> None:
    for begun in [b"", REQUEST[:-2], REQUEST, REQUEST + b"GET"]:
        with Serving(keep_alive=5) as serving, serving.connect() as client:
            client.sendall(begun)
            received = client.recv(4096) if begun.startswith(REQUEST) else b""
            serving.move_time(2 * listener.HEADER_SECONDS)
            with suppress(ConnectionResetError):
                assert client.recv(4096) == b""
        assert (b"204" in received) == begun.startswith(REQUEST)
    for begun in [b"GET /", REQUEST[:-2] + b"x: "]:  # a head that never ends
        with Serving(keep_alive=5) as serving, serving.connect() as client:
            with suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(begun + b"a" * (4 * listener.MOST_HEAD_BYTES))
            with suppress(ConnectionResetError):
                assert client.recv(4096) == b""
    with Serving(keep_alive=3600) as serving, serving.connect() as client:
        for _ in range(3):
            client.sendall(REQUEST)
            assert b"204" in client.recv(4096)
            serving.move_time(2 * listener.HEADER_SECONDS)


def test_connections_that_ask_nothing_are_closed_for_those_that_do(tmp_path: Path) -> None:
    home = DataDirectory(tmp_path / "data")
    home.create()
    listener.ensure_certificates(home)
    tls = {"ssl_certfile": str(home.tls_dir / "server.pem"), "ssl_keyfile": str(home.tls_dir / "server.key")}
    trusting = ssl.create_default_context(cafile=str(home.authority_file))
    with (
        subprocess.Popen(
            [sys.executable, "-c", CROWDED.replace("{tls}", repr(tls))], stdout=subprocess.PIPE, text=True
        ) as serving,
        ExitStack() as open_ones,
    ):
        address = ("127.0.0.1", int(serving.stdout.readline()))

        def asks() -> socket.socket:
            plain = open_ones.enter_context(socket.create_connection(address, timeout=60))
            client = open_ones.enter_context(trusting.wrap_socket(plain, server_hostname="localhost"))
            client.sendall(REQUEST)
            assert b"204" in client.recv(4096)
            return client

        try:
            owner = asks()
            for _ in range(300):
                open_ones.enter_context(socket.create_connection(address, timeout=60))
            asks()
            # One that has asked is kept.
            owner.sendall(REQUEST)
            assert b"204" in owner.recv(4096)
        finally:
            serving.kill()


def test_sigterm_ends_the_process_whatever_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "cancelled\n")


def test_a_damaged_certificate_is_reported_with_its_remedy(tmp_path: Path) -> None:
    for name in ["server.pem", "server.key"]:
        home = DataDirectory(tmp_path / "data")
        home.create()
        listener.ensure_certificates(home)
        file = home.tls_dir / name
        file.write_bytes(file.read_bytes()[:80])
        with pytest.raises(DataDirectoryError, match="damaged"):
            listener.ensure_certificates(home)
        shutil.rmtree(home.tls_dir)
        home.create()
        listener.ensure_certificates(home)
        assert file.stat().st_size > 80
