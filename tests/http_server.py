"""A small HTTP server in threads of the test process."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """One answer; ``hang_up`` closes the connection instead, ``cut`` in the middle of the body.

    :param delay: in seconds
    """

    status: int = 200
    body: str | bytes = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    cut: bool = False
    delay: float = 0.0


@contextmanager
def serving(answer: Callable[[Received], Reply], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer requests until the block ends; the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the body of each answer waits 40 ms for a confirmation

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = answer(Received(self.command, parts.path, query, dict(self.headers), body))
            time.sleep(reply.delay)
            if reply.hang_up or reply.cut:
                self.close_connection = True
            if reply.hang_up:
                return
            payload = reply.body.encode() if isinstance(reply.body, str) else reply.body
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(payload))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload[: len(payload) // 2] if reply.cut else payload)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
