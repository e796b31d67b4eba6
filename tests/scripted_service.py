"""A small HTTPS server that answers as a test prescribes: for faults that no real service gives on demand."""

import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.listener import ensure_certificates

from tests.http_server import Received, Reply, serving

__all__ = ["Received", "Reply", "ScriptedService", "error", "scoped_token"]


def error(status: int, code: str, message: str = "scripted") -> Reply:
    return Reply(status, json.dumps({"code": code, "message": message}))


def scoped_token(seconds: float = 3600.0) -> str:
    """A token whose payload has its end, as the service issues it."""
    return jwt.encode({"exp": int(time.time() + seconds)}, "x" * 32, algorithm="HS256")


class ScriptedService:
    """Answers by the path's last part; a script's last answer is repeated."""

    def __init__(self, directory: Path) -> None:
        self.received: list[Received] = []
        self._scripts: dict[str, deque[Reply | Callable[[Received], Reply]]] = {}
        self._lock = threading.Lock()
        home = DataDirectory(directory / "scripted")
        home.create()
        ensure_certificates(home)
        self.ca_bundle = str(home.authority_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(home.tls_dir / "server.pem", home.tls_dir / "server.key")
        self._running = ExitStack()
        self.url = f"https://127.0.0.1:{self._running.enter_context(serving(self._answer, context))}"
        self.on("hostname", Reply(body="127.0.0.1"))
        self.on("token", Reply(body=scoped_token()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def on(self, last_part: str, *replies: Reply | Callable[[Received], Reply]) -> None:
        """Prescribe the answers for paths that end in ``/<last_part>`` or ``:<last_part>``."""
        self._scripts[last_part] = deque(replies)

    def requests(self, last_part: str) -> list[Received]:
        return [one for one in self.received if _last(one.path) == last_part]

    def _answer(self, request: Received) -> Reply:
        with self._lock:
            self.received.append(request)
            script = self._scripts.get(_last(request.path))
            step = error(404, "ERR_UNSCRIPTED") if not script else script[0]
            if script and len(script) > 1:
                script.popleft()
        return step(request) if callable(step) else step


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1].rsplit(":", 1)[-1]
