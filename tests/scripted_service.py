"""A small HTTPS server that answers as a test prescribes: for faults that no real service gives on demand."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


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
    """One answer; ``hang_up`` closes the connection after the request was read, ``delay`` is in seconds."""

    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    delay: float = 0.0


def error(status: int, code: str, message: str = "scripted") -> Reply:
    """An error answer as the service gives it."""
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
        certificate, key = directory / "scripted.pem", directory / "scripted.key"
        for file, content in zip((certificate, key), _certificate(), strict=True):
            file.write_bytes(content)
        self.ca_bundle = str(certificate)
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body of each answer waits 40 ms for a confirmation

            def _answer(self) -> None:
                service._handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, *_: Any) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self.on("hostname", Reply(body="127.0.0.1"))
        self.on("token", Reply(body=scoped_token()))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def on(self, last_part: str, *replies: Reply | Callable[[Received], Reply]) -> None:
        """Prescribe the answers for paths that end in ``/<last_part>`` or ``:<last_part>``."""
        self._scripts[last_part] = deque(replies)

    def requests(self, last_part: str) -> list[Received]:
        """What arrived at such a path, in order."""
        return [r for r in self.received if _last(r.path) == last_part]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Received(handler.command, parts.path, query, dict(handler.headers), body)
        with self._lock:
            self.received.append(request)
            script = self._scripts.get(_last(parts.path))
            step = error(404, "ERR_UNSCRIPTED") if not script else script[0]
            if script and len(script) > 1:
                script.popleft()
        reply = step(request) if callable(step) else step
        time.sleep(reply.delay)
        if reply.hang_up:
            handler.close_connection = True
            return
        payload = reply.body.encode()
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1].rsplit(":", 1)[-1]


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "scripted service")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=6))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
