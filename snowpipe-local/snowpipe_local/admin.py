"""Administration of a running service: what it is doing, the commands of its Unix socket, their client."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from snowpipe_local.catalog import Catalog
from snowpipe_local.engine.channel import ELASTIC, PIPE_MISSING, Channel
from snowpipe_local.engine.committer import Backlog
from snowpipe_local.engine.database import Database
from snowpipe_local.engine.ingest import MUST_REOPEN
from snowpipe_local.engine.spool import disk_full, is_full
from snowpipe_local.errors import ConfigurationError, Refusal, ServiceError
from snowpipe_local.faults import Faults, pipe_parts
from snowpipe_local.tables import UrlName

# -- What the service is doing: databases, pipes and channels with what is committed and what still waits --

Json = dict[str, Any]


def snapshot(catalog: Catalog, faults: Faults) -> Json:
    """Return the state of all databases as a JSON object.

    Times are ISO 8601 by the service's clock; sizes are bytes of rows, uncompressed.
    """
    now = dt.datetime.fromtimestamp(catalog.clock.now(), dt.UTC)
    return {
        "now": now.isoformat(timespec="milliseconds"),
        "clock_moved_seconds": catalog.clock.moved_seconds,
        "databases": [_database(database, faults) for database in catalog.databases],
    }


def _database(database: Database, faults: Faults) -> Json:
    backlog = database.committer.backlog()
    channels: dict[tuple[str, str], list[Json]] = {}
    for channel in database.channels:
        described = _channel(database, channel, backlog.get(channel))
        channels.setdefault((channel.pipe.key.schema, channel.pipe.key.name), []).append(described)
    return {
        "name": database.name,
        "recent_commits": [
            {
                "channels": record.channels,
                "appends": record.appends,
                "bytes": record.size,
                "own": record.own,
                "seconds": round(record.seconds, 4),
            }
            for record in database.committer.records
        ],
        "pipes": [
            {
                "schema": pipe.key.schema,
                "name": pipe.key.name,
                "table": pipe.table,
                "failed_over": faults.has_failed_over(database.name, pipe.key.schema, pipe.key.name),
                "channels": channels.get((pipe.key.schema, pipe.key.name), []),
            }
            for pipe in database.pipes
        ],
    }


def _channel(database: Database, channel: Channel, backlog: Backlog | None) -> Json:
    status, (rate, own) = channel.status(), database.committer.arrival(channel)
    return {
        "name": channel.name,
        "status": status["channel_status_code"],
        "committed_token": status["last_committed_offset_token"],
        "rows_inserted": status["rows_inserted"],
        "rows_error_count": status["rows_error_count"],
        "last_error_message": status["last_error_message"],
        "uncommitted_appends": backlog.appends if backlog else 0,
        "uncommitted_bytes": backlog.size if backlog else 0,
        "lag_seconds": round(time.monotonic() - backlog.received_at, 3) if backlog else 0.0,
        "bytes_per_second": round(rate),
        "own_commits": own,
    }


# -- Commands of the admin socket: clock, faults, failover, invalidate, checkpoint, requests, rotate-key --

Answer = dict[str, Any]
Arguments = Mapping[str, Any]


class Commands:
    """What the admin socket can do; every command answers a JSON object.

    Threading: each connection of the socket calls :meth:`run` in a thread of its own.

    """

    def __init__(self, catalog: Catalog, faults: Faults) -> None:
        self._catalog = catalog
        self._faults = faults
        # Each command with the arguments that it takes.
        self._known: dict[str, tuple[Callable[[Arguments], Answer], tuple[str, ...]]] = {
            "clock": (self._clock, ("move",)),
            "faults": (self._set_faults, ("set", "clear")),
            "failover": (self._fail_over, ("pipe", "back")),
            "invalidate": (self._invalidate, ("pipe", "channel")),
            "checkpoint": (lambda _: {"databases": {d.name: d.checkpoint() for d in catalog.databases}}, ()),
            "requests": (lambda _: {"requests": faults.requests, "held": faults.held}, ()),
            "rotate-key": (self._rotate_key, ()),
            "status": (lambda _: snapshot(catalog, faults), ()),
        }

    def run(self, name: str, arguments: Arguments) -> Answer:
        """Run one command.

        :param arguments: its arguments; unknown ones are refused.
        :raises ServiceError: when the command or an argument is wrong; nothing was changed then.
        """
        if name not in self._known:
            raise ConfigurationError(f"unknown admin command '{name}'; known: {', '.join(self._known)}")
        command, known = self._known[name]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise ConfigurationError(f"unknown argument '{unknown[0]}'; known: {', '.join(known) or 'none'}")
        return command(arguments)

    def _clock(self, arguments: Arguments) -> Answer:
        clock = self._catalog.clock
        if "move" in arguments:
            try:
                clock.move(float(arguments["move"]))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"clock: move is a number of seconds: {error}") from error
        now = dt.datetime.fromtimestamp(clock.now(), dt.UTC)
        return {"now": now.isoformat(timespec="milliseconds"), "moved_seconds": clock.moved_seconds}

    def _set_faults(self, arguments: Arguments) -> Answer:
        if arguments.get("clear"):
            self._faults.clear()
        if "set" in arguments:
            self._faults.add(_text(arguments, "set"))
        return {"faults": self._faults.shown()}

    def _fail_over(self, arguments: Arguments) -> Answer:
        pipe = _text(arguments, "pipe")
        self._faults.fail_over(pipe, back=bool(arguments.get("back")))
        return {"failed_over": sorted(self._faults.failed_over)}

    def _invalidate(self, arguments: Arguments) -> Answer:
        name = _text(arguments, "channel")
        database, schema, pipe = pipe_parts(_text(arguments, "pipe"))
        try:
            owner = self._catalog.database_for_url(UrlName(database))
            channel = owner.channels.find(owner.pipes.resolve(schema, pipe), name)
        except Refusal as error:
            raise ConfigurationError(f"{error.code}: {error.message}") from error
        if channel is None or name == ELASTIC:
            raise ConfigurationError(f"{PIPE_MISSING}: no named channel {name} in pipe {pipe}")
        channel.invalidate(MUST_REOPEN)
        return {"channel": name, "status": MUST_REOPEN}

    def _rotate_key(self, _: Arguments) -> Answer:
        spool = self._catalog.spool
        if spool is None:
            raise ConfigurationError("this service keeps no bodies on disk; there is no key to rotate")
        spool.rotate()
        return {"keys": len(spool.key_ids), "bodies": spool.files}


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"the argument '{name}' must be a text")
    return value


# -- The admin socket: JSON lines over a Unix socket that only the service's own user may open -----------

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


class AdminSocket(socketserver.ThreadingUnixStreamServer):
    """Listens while the service runs; the file has mode 0600 from the start.

    :param path: file of the socket; a leftover of a killed service is replaced.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, commands: Commands) -> None:
        super().__init__("", _Handler, bind_and_activate=False)
        self.commands = commands
        self._path = path
        path.unlink(missing_ok=True)
        # The mode of the socket before bind() becomes that of its file; a chmod afterwards would be late.
        os.fchmod(self.socket.fileno(), 0o600)
        with address_of(path) as address:
            self.socket.bind(address)
        self.socket.listen(16)
        self._thread = threading.Thread(target=self.serve_forever, name="admin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the file."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._path.unlink(missing_ok=True)


class _Handler(socketserver.StreamRequestHandler):
    timeout = _IDLE_SECONDS

    def handle(self) -> None:
        commands = cast("AdminSocket", self.server).commands
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
        if is_full(error):
            return json.dumps({"ok": False, "error": disk_full().message}).encode() + b"\n"
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
