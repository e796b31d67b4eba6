"""The counting receiver as a process of its own, and the handle by which a benchmark starts and asks it."""

from __future__ import annotations

import argparse
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.fronts.http import Request
from snowpipe_local.listener import ensure_certificates

from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.names import PipeName
from benchmarks.counting_receiver import Counted, ReceiverState


class _Connection:
    """One kept-alive HTTP/1.1 connection."""

    def __init__(self, stream: ssl.SSLSocket) -> None:
        self._stream = stream
        self._ahead = bytearray()

    def serve(self, state: ReceiverState) -> None:
        """Answer request after request until the client hangs up."""
        with self._stream:
            try:
                self._stream.do_handshake()
                while (call := self._next()) is not None:
                    body, etag = state.answer(call)
                    tag = f'ETag: "{etag}"\r\n' if etag else ""
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{tag}\r\n"
                    self._stream.sendall(head.encode() + body)
            except (ConnectionError, ssl.SSLError, TimeoutError) as error:
                print(f"a connection ended: {error!r}", file=sys.stderr, flush=True)

    def _next(self) -> Request | None:
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            more = self._stream.recv(1 << 16)
            if not more:
                return None
            self._ahead += more
        first, *lines = bytes(self._ahead[:end]).decode("latin-1").split("\r\n")
        del self._ahead[: end + 4]
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" not in headers and method in ("PUT", "POST"):
            raise ConnectionError(f"{first}: no Content-Length")
        body = self._body(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = tuple(unquote(part) for part in parts.path.strip("/").split("/"))
        return Request(method, path, query, headers, body)

    def _body(self, length: int) -> bytearray:
        body = bytearray(length)
        have = min(length, len(self._ahead))
        body[:have] = self._ahead[:have]
        del self._ahead[:have]
        view = memoryview(body)
        while have < length:
            read = self._stream.recv_into(view[have:])
            if not read:
                raise ConnectionError(f"a body of {length} bytes ended after {have}")
            have += read
        return body


def serve(folder: Path) -> None:
    """Listen on a free port, print it, and answer until terminated."""
    home = DataDirectory(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home.tls_dir / "server.pem", home.tls_dir / "server.key")
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    state = ReceiverState(listener.getsockname()[1])
    print(listener.getsockname()[1], flush=True)
    while True:
        plain, _ = listener.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        Thread(target=_Connection(stream).serve, args=(state,), daemon=True).start()


class Receiver:
    """The receiver's process, as a benchmark starts it.

    :param folder: an empty folder of its own
    """

    account, user = "BENCHMARK", "BENCHMARK"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        home = DataDirectory(folder)
        home.tls_dir.mkdir(parents=True)
        ensure_certificates(home)
        self.ca_file = home.bundle_file
        self.key_file = folder / "key.pem"
        self.key_file.write_bytes(
            rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--folder", str(folder)],
            stdout=subprocess.PIPE,
            stderr=(folder / "receiver.log").open("wb"),
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"https://127.0.0.1:{int(self._process.stdout.readline())}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def client(self, table: str) -> SnowpipeClient:
        """Our client on a table's default pipe."""
        key = KeyPair(self.account, self.user, self.key_file.read_bytes())
        pipe = PipeName.default_for_table("LOCAL", "PUBLIC", table)
        return SnowpipeClient(self.url, key, pipe, ca_bundle=str(self.ca_file))

    def sdk_properties(self) -> dict[str, str]:
        """What the official SDK needs to sign in."""
        key = self.key_file.read_text()
        return {"url": self.url, "account": self.account, "user": self.user, "private_key": key}

    def delays(self, *, append: float = 0.0, commit: float = 0.0) -> None:
        """Seconds before an append is answered, and from then until it is committed."""
        self._ask("delays", {"append": append, "commit": commit})

    def count(self) -> Counted:
        """Decode and count what arrived since the last time, and forget it."""
        return Counted(**self._ask("count", {}))

    def require(self, rows: int) -> Counted:
        """Count, and make sure that the rows are there once and in order.

        :raises SystemExit: if they are not: then there is no result
        """
        found = self.count()
        if (found.rows, found.distinct, found.ordered) != (rows, rows, True):
            raise SystemExit(f"{rows} rows were sent, {found} arrived: no result")
        return found

    def requests(self) -> dict[str, int]:
        """How many requests came since the last time, by the last part of their path or its verb."""
        found: dict[str, int] = self._ask("requests", {})
        return found

    def forget(self) -> None:
        """Throw away what arrived."""
        self._ask("forget", {})

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(30)

    def _ask(self, verb: str, values: Mapping[str, float]) -> Any:
        url = f"{self.url}/benchmark/{verb}"
        answer = requests.post(url, json=values, verify=str(self.ca_file), timeout=600)
        answer.raise_for_status()
        return answer.json()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    serve(parser.parse_args().folder)
