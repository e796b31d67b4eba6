"""What listens for the service: certificates, uvicorn with time-outs of its own, and the CONNECT proxy."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import os
import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import certifi
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from snowpipe_local.datadir import DataDirectory, write_file
from snowpipe_local.errors import DataDirectoryError

_MOST_CONNECTIONS = 1000


def bound_memory(size: int) -> None:
    """Let what would take more memory fail, which a statement reports, before the system ends the process."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if most < 0 else min(size, most), most))


def most_connections() -> int:
    """Return how many connections each door may have: engine and files need some of the process's limit too.

    A connection through the proxy takes three.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limit = most
    return min(_MOST_CONNECTIONS, limit // 5) if limit != resource.RLIM_INFINITY else _MOST_CONNECTIONS


# -- CONNECT proxy for clients with a hard-coded Snowflake host: their connections end at the local service --
#
# It leads nowhere else: any host but ``*.snowflakecomputing.com:443`` is refused.

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
    """

    def __init__(self, listener: socket.socket, host: str, port: int) -> None:
        self._listener = listener
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._most = most_connections()
        # With the end of the head of its request, an entry is True.
        self._tunnels: dict[asyncio.Task[None], bool] = {}

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
        if len(self._tunnels) >= self._most:
            waiting = (tunnel for tunnel, has_begun in self._tunnels.items() if not has_begun)
            next(waiting, task).cancel()
        self._tunnels[task] = False
        try:
            await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The client or the service went away, or the head never ended; closing is the whole answer.
            pass
        finally:
            del self._tunnels[task]
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
        self._tunnels[asyncio.current_task()] = True  # type: ignore[index]
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


# -- Certificate authority and server certificate of the local service -----------------------------------

_LIFETIME = dt.timedelta(days=825)
_RENEW_BEFORE = dt.timedelta(days=30)
# Hosts of clients that come through the CONNECT proxy: account, and account with the region of account
# identifiers. A wildcard stands for one label only, so each region needs its own.
_REGIONS = ("local", "us-east-1", "us-west-2", "eu-central-1", "eu-west-1")
_DNS_NAMES = (
    "localhost",
    "*.snowflakecomputing.com",
    *(f"*.{region}.snowflakecomputing.com" for region in _REGIONS),
)


def ensure_certificates(home: DataDirectory) -> None:
    """Create CA and server certificate on first start, and renew both shortly before they expire.

    :param home: data directory; writes ``tls/ca.pem``, ``tls/server.pem``, ``tls/server.key`` and the bundle.
    :raises DataDirectoryError: when the server certificate or its key cannot be read.
    """
    server = home.tls_dir / "server.pem"
    if server.exists() and home.bundle_file.exists():
        try:
            certificate = x509.load_pem_x509_certificate(server.read_bytes())
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server, home.tls_dir / "server.key")
        except (ValueError, OSError) as error:
            raise DataDirectoryError(
                f"the certificate or key in {home.tls_dir} is damaged; delete the folder, "
                "and let clients trust the authority that the next start makes"
            ) from error
        if certificate.not_valid_after_utc - dt.datetime.now(dt.UTC) > _RENEW_BEFORE:
            return
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("Snowpipe local CA")
    ca = _authority(ca_name, ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _leaf(ca_name, ca_key, key)
    write_file(
        home.tls_dir / "server.key",
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        mode=0o600,
    )
    ca_pem = ca.public_bytes(serialization.Encoding.PEM)
    write_file(home.authority_file, ca_pem, mode=0o600)
    write_file(home.bundle_file, Path(certifi.where()).read_bytes() + b"\n" + ca_pem, mode=0o600)
    # Written last: its presence shows that the other files are complete.
    write_file(server, leaf.public_bytes(serialization.Encoding.PEM) + ca_pem, mode=0o600)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _authority(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    return _signed(name, key, name, key, x509.BasicConstraints(ca=True, path_length=0), usage)


def _leaf(
    issuer: x509.Name, ca_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    names: list[x509.GeneralName] = [
        *(x509.DNSName(name) for name in _DNS_NAMES),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")),
    ]
    extensions = (
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    )
    return _signed(_name("127.0.0.1"), key, issuer, ca_key, *extensions)


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    # An hour back: clocks of containers on one machine may differ.
    now, public_key = dt.datetime.now(dt.UTC), key.public_key()
    builder = x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + _LIFETIME)
    for extension in (*extensions, x509.SubjectKeyIdentifier.from_public_key(public_key)):
        critical = isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, hashes.SHA256())


# -- The HTTP server around the service: uvicorn with time-outs of its own, and an end within seconds ----

log = logging.getLogger(__name__)

HEADER_SECONDS = 15.0
MOST_HEAD_BYTES = 256 << 10
# A supervisor kills after ten seconds (docker stop); what is committed is safe in the write-ahead log.
STOP_SECONDS = 9.0
# In which the notice that a connection ends is written.
_FAREWELL_SECONDS = 0.1
_ACCEPT_SECONDS = 1.0

_Protocol: Any = AutoHTTPProtocol


class TimedProtocol(_Protocol):  # type: ignore[misc]
    """A connection that ends when the head of a request is too large or late: uvicorn has no such limits."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    has_asked = False

    @property
    def is_idle(self) -> bool:
        """True while no request is answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a head is complete, and wait for one that has begun."""
        super().data_received(data)
        cycle = self.cycle
        if not self.is_idle:
            self.has_asked = True
            self._stop_waiting()
        else:
            self._expect_head()
            # Behind an early answer the rest of the body may still come.
            self._head_bytes += 0 if cycle is not None and cycle.more_body else len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End an idle connection at once: TLS would wait for a client that keeps it for later."""
        is_over = self.is_idle and self.transport.get_write_buffer_size() == 0
        super().shutdown()
        if is_over:
            self.loop.call_later(_FAREWELL_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        """Leave an idle connection to uvicorn's own keep-alive."""
        self._stop_waiting()
        super().on_response_complete()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self.give_up)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def give_up(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()


class Server(uvicorn.Server):
    """A server that stops what runs as soon as it is asked to end, and ends within ten seconds.

    It has so many connections at most: for another one the oldest that has asked nothing yet is closed, then
    the oldest that is idle, then the new one.

    :param cancel: stops the statements that run; called on a thread of its own.
    """

    def __init__(self, config: uvicorn.Config, cancel: Callable[[], None]) -> None:
        super().__init__(config)
        self._cancel = cancel
        self._most = most_connections()
        # All connections, in the order in which they came, with what makes them.
        self._clients: dict[Any, asyncio.Task[None]] = {}
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections: before TLS, for one that never says a word takes a file, too."""
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(door)) for door in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what is open."""
        for task in [*self._accepting, *self._clients.values()]:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, door: socket.socket) -> None:
        door.listen(self.config.backlog)
        door.setblocking(False)
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(door)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                # As asyncio's own server does: when a file is free again, the next one is accepted.
                log.warning("no connection is accepted: %s", error)
                await asyncio.sleep(_ACCEPT_SECONDS)
                continue
            made = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            if self._has_room():
                self._clients[made] = asyncio.create_task(self._open(client, made))
            else:
                client.close()

    async def _open(self, client: socket.socket, made: Any) -> None:
        seconds = HEADER_SECONDS if self.config.ssl else None
        # A handshake that fails or never ends has no answer.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: made, client, ssl=self.config.ssl, ssl_handshake_timeout=seconds
            )

    def _has_room(self) -> bool:
        is_open = self.server_state.connections
        for made in [made for made, task in self._clients.items() if task.done() and made not in is_open]:
            del self._clients[made]
        if len(self._clients) < self._most:
            return True
        idle = [made for made in self._clients if made.is_idle]
        last = min(idle, key=lambda made: made.has_asked, default=None)
        if last is None:
            return False
        # One that is made has a transport, and no task any longer.
        self._clients.pop(last).cancel()
        last.give_up()
        return True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer SIGTERM or SIGINT."""
        if not self.should_exit:
            threading.Thread(target=self._cancel, name="cancel", daemon=True).start()
            end_in_time()
        super().handle_exit(sig, frame)


def end_in_time() -> None:
    """End the process after :data:`STOP_SECONDS`, whatever runs."""
    threading.Thread(target=_end_anyway, name="end", daemon=True).start()


def _end_anyway() -> None:
    """End the process when a statement that cannot be interrupted holds it up."""
    time.sleep(STOP_SECONDS)
    log.warning("a statement could not be stopped within %g s: ending without it", STOP_SECONDS)
    logging.shutdown()
    os._exit(1)
