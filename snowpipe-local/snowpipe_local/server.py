"""The local service: one process, one port, TLS on loopback; and ``serve --init FILE.sql``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from snowpipe_local.access.access import Access
from snowpipe_local.accounts import Account, ensure_account
from snowpipe_local.admin import AdminSocket, Commands, snapshot
from snowpipe_local.catalog import DEFAULT_DATABASE, DEFAULT_SCHEMA, Catalog
from snowpipe_local.datadir import Clock, DataDirectory
from snowpipe_local.engine import spool
from snowpipe_local.environment import STATUS_PATH
from snowpipe_local.errors import ConfigurationError, DataDirectoryError, NotAllowed, Refusal, SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.fronts import stage_files
from snowpipe_local.fronts.connector import ConnectorFront
from snowpipe_local.fronts.file_pipes import FilePipesFront
from snowpipe_local.fronts.http import (
    INTERNAL_ERROR,
    TOO_DEEP,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    in_thread,
    read_body,
    request_of,
    respond,
)
from snowpipe_local.fronts.sql_api import SqlApiFront
from snowpipe_local.fronts.stage_files import Stage, StageFilesFront
from snowpipe_local.fronts.streaming import StreamingFront
from snowpipe_local.limits import DEFAULTS, Limits
from snowpipe_local.listener import (
    ConnectProxy,
    Server,
    TimedProtocol,
    bound_memory,
    end_in_time,
    ensure_certificates,
)
from snowpipe_local.query_history import QueryHistory, without_secrets
from snowpipe_local.sql.execution import Execution
from snowpipe_local.sql.pipe_loads import FolderWatch, PipeLoads
from snowpipe_local.sql.reader import numbered_statements, strip_comments
from snowpipe_local.sql.session import Session
from snowpipe_local.stages.storage import Outside, Storage

# -- ``serve --init FILE.sql``: statements that the service runs at every start, before clients get in ---

log = logging.getLogger(__name__)

_EXISTS = "002002"
_SHOWN_CHARACTERS = 80
# What would do more at the second start than at the first, and what needs a client.
_REFUSED = (
    (
        re.compile(r"INSERT\s+(?!OVERWRITE\b)", re.IGNORECASE),
        "INSERT would add its rows at every start; use MERGE, INSERT OVERWRITE or COPY INTO",
    ),
    (re.compile(r"(?:PUT|GET)\s", re.IGNORECASE), "PUT and GET need a client that moves the files"),
)


@dataclass(frozen=True, slots=True)
class InitFile:
    """Statements of a file.

    :param statements: line, counting from 1, and text of each.
    """

    path: Path
    statements: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, path: Path) -> InitFile:
        """Read a file of statements.

        :raises ConfigurationError: when it cannot be read, or holds what must not run at every start.
        """
        try:
            found = numbered_statements(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--init {path}: cannot be read: {error}") from error
        except SqlError as error:
            raise ConfigurationError(f"--init {path}: {_words(error)}") from error
        for line, statement in found:
            for pattern, why in _REFUSED:
                if pattern.match(strip_comments(statement)):
                    raise ConfigurationError(f"--init {path}, line {line}: {why}")
        return cls(path, tuple(found))

    def run(self, catalog: Catalog, user: str) -> None:
        """Run the statements one after the other; what exists already is left as it is.

        :param user: who runs them, in LOCAL.PUBLIC and with the user's default role.
        :raises ConfigurationError: for the first statement that fails; those before it have run.
        """
        session = Session(catalog, user, DEFAULT_DATABASE, DEFAULT_SCHEMA)
        # In a thread of their own: a signal reaches this one only between two calls of the engine.
        with ThreadPoolExecutor(1, thread_name_prefix="init") as thread:
            try:
                thread.submit(self._run_in, session).result()
            finally:
                session.end()
        log.info("ran %d statements of %s", len(self.statements), self.path)

    def _run_in(self, session: Session) -> None:
        for line, statement in self.statements:
            execution = Execution(session, statement)
            execution.run()
            error = execution.error
            if error is not None and error.code == _EXISTS:
                log.info("--init %s, line %d: %s", self.path, line, _words(error))
            elif error is not None:
                shown = " ".join(without_secrets(statement).split())[:_SHOWN_CHARACTERS]
                raise ConfigurationError(
                    f"--init {self.path}, line {line}: {error.code} {_words(error)} In: {shown}"
                )


def _words(error: SqlError) -> str:
    return " ".join(error.message.split())


# -- The local service: one process, one port, TLS on loopback -------------------------------------------

HOST = "127.0.0.1"
# Threads for requests; those that wait for statements leave the others free.
_STATEMENTS = 128
# Memory beside that of the engine and of a result on its way: requests, and the stacks of threads.
_OWN_BYTES = 2 << 30
_WORKERS = _STATEMENTS + 32
_WAIT_FOR_STATEMENTS = frozenset({"query-request", "result", "statements"})
# What a body may have that nobody vouches for, and the calls that hold their credential in it.
_OPEN_BYTES = 64 << 10
_OPEN_DECODED_BYTES = 1 << 20
_OPEN_ROUTES = (("health",), ("openapi.json",), ("oauth",), ("session",), ("telemetry",))
_TOO_LARGE = 413
# Written by tests/described_routes.py.
_DESCRIPTION = Path(__file__).with_name("openapi.json")
_ENDING = Refusal(503, "SERVICE_UNAVAILABLE", "the local service is ending; send again to the next one")


class Service:
    """ASGI application that hands every request to its front."""

    def __init__(
        self,
        account: Account,
        catalog: Catalog,
        home: DataDirectory,
        faults: Faults,
        port: int,
        proxy: ConnectProxy,
        limits: Limits = DEFAULTS,
    ) -> None:
        self._limits = limits
        self._statements = asyncio.Semaphore(_STATEMENTS)
        self._catalog = catalog
        self._account = account
        self._faults = faults
        self._proxy = proxy
        assert catalog.spool is not None  # noqa: S101 - serve() gives the catalog one
        self._stage = Stage(home.stage_dir, catalog.spool)
        self._streaming = StreamingFront(account, catalog, self._stage, faults, port, limits)
        self._file_pipes = FilePipesFront(account, catalog, faults)
        self._pipe_loads = PipeLoads(catalog)
        self._folder_watch = FolderWatch(catalog)
        self._sql_api = SqlApiFront(account, catalog, faults)
        self._files = StageFilesFront(catalog.storage, account, f"{HOST}:{port}")
        self._connector = ConnectorFront(account, catalog, self._files, faults, limits)

    def close(self) -> None:
        """Cancel the statements that still run; the engine cannot close under them."""
        self._folder_watch.close()
        self._pipe_loads.close()
        self._sql_api.close()
        self._connector.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every failure becomes a JSON error."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send, self._proxy, self.close)
            return
        if scope["type"] != "http":
            return
        if str(scope["path"]).startswith(stage_files.ROUTES):
            await self._files.answer(scope, receive, send)
            return
        is_append = scope["path"].endswith(("/rows", "/filebuffer"))
        faults = self._faults
        faults.requests += 1  # on the event loop, which is one thread
        number = faults.requests
        try:
            request = await self._read(scope, receive, is_append=is_append)
            await faults.hold_if(faults.holds("hold-request", number))
            if is_append:
                self._faults.reach("before-append")
            async with self._statements if self._runs_statements(request) else contextlib.nullcontext():
                response = await in_thread(lambda: self._answer(request))
        except Refusal as refusal:
            response = Response.of_refusal(refusal)
        except asyncio.CancelledError:
            # The server ends, and has waited for this answer as long as it does.
            response = Response.of_refusal(_ENDING)
        await faults.hold_if(faults.holds("hold-answer", number))
        if is_append and response.status == 200 and self._faults.drop_response():
            _cut_connection(receive)
            return
        answers_append = is_append and response.status == 200
        if answers_append:
            self._faults.reach("before-append-answer")
        await respond(send, response)
        if answers_append:
            self._faults.reach("after-append-answer")

    async def _read(self, scope: Scope, receive: Receive, *, is_append: bool) -> Request:
        """Read a request; one that nobody vouches for has a small body, or none."""
        head = request_of(scope)
        # Some 50 us: less than it takes to hand them to a thread.
        if not self._is_known(head):
            try:
                body = await read_body(receive, _OPEN_BYTES)
                return replace(head, body=body, decoded_bytes=_OPEN_DECODED_BYTES)
            except Refusal as refusal:
                if refusal.status != _TOO_LARGE or head.segments[:1] in _OPEN_ROUTES:
                    raise
                # The handler refuses it for its credential, which a client may be able to renew.
                return head
        # Other bodies (stage uploads, SQL) may be larger than an append.
        limit = self._limits.request_bytes if is_append else stage_files.MAX_UPLOAD_BYTES
        return replace(head, body=await read_body(receive, limit))

    def _is_known(self, head: Request) -> bool:
        """Return True when the headers of a request hold a credential that is good for something here."""
        try:
            match head.segments[0]:
                case "health" | "openapi.json" | "oauth":
                    return False
                case "session" | "queries" | "monitoring" | "telemetry":
                    return self._connector.knows(head)
                case stage_files.UPLOAD_BUCKET:
                    stage_files.check_signature(self._account, self._stage, head)
                case _:
                    self._account.verify_any(head.bearer())
        except (Refusal, RecursionError):
            return False
        return True

    @staticmethod
    def _runs_statements(request: Request) -> bool:
        """Return True for a call that may last as long as a statement."""
        return request.segments[0] in {"queries", "api"} and request.segments[-1] in _WAIT_FOR_STATEMENTS

    def _answer(self, request: Request) -> Response:
        try:
            return self._handled(request)
        except Refusal as refusal:
            return Response.of_refusal(refusal)
        except RecursionError:
            return Response.of_refusal(TOO_DEEP)
        except Exception as error:
            refused = self._until_later(error)
            if refused is None:
                log.exception(
                    "request %s /%s failed inside the service", request.method, "/".join(request.segments)
                )
            return Response.of_refusal(refused or INTERNAL_ERROR)

    def _until_later(self, error: Exception) -> Refusal | None:
        """Return the refusal of a request that failed for what a full disk did; None for other failures."""
        if spool.is_invalidated(error):
            log.warning("a request found a database that was being recovered: %s", error)
            self._catalog.revive()
            return Refusal(503, "SERVICE_UNAVAILABLE", "the database was being recovered; send again")
        if spool.is_full(error):
            log.warning("a request found no room on the disk: %s", error)
            return spool.disk_full()
        return None

    def _handled(self, request: Request) -> Response:
        match request.segments[0]:
            case "health" | "openapi.json" if request.method not in {"GET", "HEAD"}:
                raise NotAllowed(f"/{request.segments[0]}", "GET", "HEAD")
            case "health":
                return Response.of_json({"status": "ready", "instance": self._account.instance})
            case "local" if request.segments == STATUS_PATH:
                return self._status(request)
            case "openapi.json":
                return Response(200, _DESCRIPTION.read_bytes(), "application/json")
            case "api":
                return self._sql_api.handle(request)
            case "v1":
                return self._file_pipes.handle(request)
            case stage_files.UPLOAD_BUCKET:
                return stage_files.put_object(self._account, self._stage, request)
            case "session" | "queries" | "monitoring":
                return self._connector.handle(request)
            case "telemetry" if request.segments == ("telemetry", "send"):
                return self._connector.handle(request)
        return self._streaming.handle(request)

    def _status(self, request: Request) -> Response:
        user, _ = self._account.verify_original(request.bearer())
        if user != self._account.user:
            raise Refusal(403, "FORBIDDEN", f"the status is for the user {self._account.user} only")
        return Response.of_json(snapshot(self._catalog, self._faults))


def serve(
    home: DataDirectory,
    port: int,
    faults: Faults,
    limits: Limits = DEFAULTS,
    *,
    admin: bool = False,
    outside: Outside | None = None,
    init: InitFile | None = None,
) -> None:
    """Run the service until SIGTERM or SIGINT.

    :param home: data directory; created on first start.
    :param port: port on 127.0.0.1; 0 takes the port of the last start, or a free one.
    :param limits: limits that the service enforces.
    :param outside: what external stages may reach; None for nothing.
    :param init: statements to run before the first client.
    :raises DataDirectoryError: when the directory or the port is in use.
    :raises ConfigurationError: when a statement of ``init`` is wrong.
    """
    # The engine makes files of its own; they hold rows and are for the owner only.
    os.umask(0o077)
    bound_memory(limits.engine_bytes + 5 * limits.result_bytes + _OWN_BYTES)
    home.create()
    # uvicorn raises the signal again after its shutdown; the default action would skip the closing below.
    signal.signal(signal.SIGTERM, _end)
    with home.lock():
        ensure_certificates(home)
        clock = Clock.kept_in(home.clock_file)
        access = Access(home.access_file, clock)
        account = ensure_account(home, access)
        with (
            _bind(port or home.remembered_port() or 0) as listener,
            _bind(home.remembered_proxy_port() or 0) as proxy_listener,
        ):
            bound = listener.getsockname()[1]
            home.remember_ports(bound, proxy_listener.getsockname()[1])
            proxy = ConnectProxy(proxy_listener, HOST, bound)
            storage = Storage(home.staged_files_dir, home.root, outside)
            bodies = spool.Spool(home.spool_dir, home.stage_dir, home.spool_keys_file)
            queries = QueryHistory(home.query_history_file)
            catalog = Catalog(home.databases_dir, faults, limits, clock, access, storage, bodies, queries)
            service = Service(account, catalog, home, faults, bound, proxy, limits)
            socket_of_admin = AdminSocket(home.admin_socket, Commands(catalog, faults)) if admin else None
            try:
                if init is not None:
                    init.run(catalog, account.user)
                log.info("serving https://%s:%d from %s", HOST, bound, home.root)
                _run(service, home, listener)
            finally:
                if socket_of_admin is not None:
                    socket_of_admin.close()
                service.close()
                catalog.close()


def _end(*_signal: object) -> None:
    end_in_time()
    sys.exit(0)


def _run(service: Service, home: DataDirectory, listener: socket.socket) -> None:
    config = uvicorn.Config(
        service,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        # With a WebSocket library installed, a request to upgrade would end in a 500 of the server itself.
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        http=TimedProtocol,
        ssl_certfile=str(home.tls_dir / "server.pem"),
        ssl_keyfile=str(home.tls_dir / "server.key"),
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    Server(config, service.close).run(sockets=[listener])


def _bind(requested: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A killed service leaves connections in TIME_WAIT; the restart needs the same port at once.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, requested))
    except OverflowError as error:
        listener.close()
        raise DataDirectoryError(f"{requested} is not a port: give --port from 1 to 65535") from error
    except OSError as error:
        listener.close()
        raise DataDirectoryError(
            f"port {requested} on {HOST} is in use; stop its owner, or choose another with --port: {error}"
        ) from error
    return listener


async def _lifespan(receive: Receive, send: Send, proxy: ConnectProxy, cancel: Callable[[], None]) -> None:
    pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="request")
    asyncio.get_running_loop().set_default_executor(pool)
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await proxy.start()
        else:
            await proxy.stop()
            # The event loop waits for its threads, and those for the statements they run.
            await asyncio.to_thread(cancel)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _cut_connection(receive: Any) -> None:
    # Fault "drop-append-response": uvicorn offers no public way to close without a response, so its cycle
    # object, the owner of the receive method, is asked for the transport.
    receive.__self__.transport.abort()
