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
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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
        certificate, key = directory / "scripted.pem", directory / "scripted.key"
        for file, content in zip((certificate, key), _certificate(), strict=True):
            file.write_bytes(content)
        self.ca_bundle = str(certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
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


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "scripted service")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=6))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return certificate.public_bytes(pem), key.private_bytes(pem, form, serialization.NoEncryption())
