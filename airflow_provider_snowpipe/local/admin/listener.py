"""The admin socket: JSON lines over a Unix socket that only the service's own user may open."""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from airflow_provider_snowpipe.local.admin.commands import Commands
from airflow_provider_snowpipe.local.errors import ConfigurationError, ServiceError

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20
_IDLE_SECONDS = 60.0
# Longest path of a Unix socket, without the closing zero (Linux manual, unix(7)).
_LONGEST_ADDRESS = 107


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield an address for a socket file, however long its path is.

    :param path: the file; its folder must exist.
    """
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class AdminSocket:
    """Listens while the service runs; the file has mode 0600 from the start.

    :param path: file of the socket; a leftover of a killed service is replaced.
    :param commands: what it can do.
    """

    def __init__(self, path: Path, commands: Commands) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._server = _Server(commands)
        with address_of(path) as address:
            self._server.listen_at(address)
        self._thread = threading.Thread(target=self._server.serve_forever, name="admin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the file."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, commands: Commands) -> None:
        super().__init__("", _Handler, bind_and_activate=False)
        self.commands = commands

    def listen_at(self, address: str) -> None:
        # The mode of the socket before bind() becomes that of its file; a chmod afterwards would be late.
        os.fchmod(self.socket.fileno(), 0o600)
        self.socket.bind(address)
        self.socket.listen(16)


class _Handler(socketserver.StreamRequestHandler):
    timeout = _IDLE_SECONDS

    def handle(self) -> None:
        commands = cast("_Server", self.server).commands
        try:
            while line := self.rfile.readline(MAX_LINE_BYTES):
                self.wfile.write(_answer(commands, line))
        except (TimeoutError, ConnectionError):
            return


def _answer(commands: Commands, line: bytes) -> bytes:
    try:
        name, arguments = _read(line)
        answer: dict[str, Any] = {"ok": True, **commands.run(name, arguments)}
    except ServiceError as error:
        answer = {"ok": False, "error": str(error)}
    except Exception as error:
        log.exception("an admin command failed inside the service")
        answer = {"ok": False, "error": f"the service failed on it, see its log: {type(error).__name__}"}
    return json.dumps(answer).encode() + b"\n"


def _read(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"a line of the admin socket must be a JSON object: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("command"), str):
        raise ConfigurationError('a line of the admin socket must be {"command": "..", ..}')
    return request.pop("command"), request


def ask(path: Path, command: str, arguments: dict[str, Any], timeout: float = 120.0) -> dict[str, Any]:
    """Send one command to a running service and return its answer.

    :param path: file of its admin socket.
    :raises ServiceError: when nobody listens, or the command is refused.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection, address_of(path) as address:
            connection.settimeout(timeout)
            connection.connect(address)
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise ConfigurationError(
            f"no service listens on {path}; start it with: snowpipe-local serve --admin --data-dir "
            f"{path.parent} ({error})"
        ) from error
    if not line:
        raise ServiceError(f"the service ended while it worked on '{command}'; see its log")
    answer: dict[str, Any] = json.loads(line)
    if not answer.pop("ok"):
        raise ServiceError(answer["error"])
    return answer
