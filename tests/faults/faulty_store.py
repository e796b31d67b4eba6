"""An S3 store in a process of its own, behind a wire on which requests fail and listings are stale.

A run of the campaign forks its tries: threads of a server in the same process would not survive that.
"""

import multiprocessing
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from tests.disturbed_store import wire_to
from tests.s3_service import S3Service, s3_service

FAULTS = ("503", "cut", "closed", "lost", "stale")
"""A refusal; an answer that ends in its middle; no answer; none until the client gives up; an old listing."""
_CUT_AFTER = 700
"""Bytes: S3 sends about 500 as the headers of an object."""
_SECONDS = 3
"""How long a client waits for an answer."""


@dataclass(frozen=True)
class FaultyStore:
    """The store, as the process of the test sees it."""

    port: int
    _commands: Connection

    @property
    def options(self) -> SourceSecrets:
        """A connection over the wire."""
        waits = {"read_timeout": _SECONDS, "connect_timeout": _SECONDS}
        return S3Service(self.port, None).options(config_kwargs=waits)

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        """Write objects; nothing disturbs that."""
        self._tell("put", bucket, files)

    def disturb(self, faults: Sequence[str]) -> None:
        """Let the next requests meet faults, one each, and some of them none."""
        self._tell("disturb", faults)

    def _tell(self, *command: Any) -> None:
        self._commands.send(command)
        self._commands.recv()


def drawn_store_faults(draw: random.Random) -> list[str]:
    """Faults for some of the next requests, empty texts for the others."""
    return [draw.choice(FAULTS) if draw.random() < 0.3 else "" for _ in range(draw.randrange(40))]


class _StaleListings:
    """Answers some requests for a list of objects with the answer before."""

    def __init__(self, app: Any) -> None:
        self._app, self._before, self.due = app, dict[str, tuple[Any, list[bytes]]](), 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if "list-type=2" not in environ["QUERY_STRING"]:
            return self._app(environ, start_response)
        asked = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        if asked in self._before and self.due:
            self.due -= 1
            started, body = self._before[asked]
        else:
            found: list[Any] = []
            body = list(self._app(environ, lambda *given: found.append(given)))
            started = found[0]
            self._before[asked] = (started, body)
        start_response(*started)
        return body


def _serve(commands: Connection) -> None:
    stale: list[_StaleListings] = []

    def between(app: Any) -> Any:
        stale.append(_StaleListings(app))
        return stale[0]

    with s3_service(between) as s3, wire_to(s3.port) as wire:
        wire.cut_after = _CUT_AFTER
        commands.send(wire.port)
        while command := commands.recv():
            match command:
                case "put", bucket, files:
                    s3.put(bucket, files)
                case "disturb", faults:
                    stale[0].due = faults.count("stale")
                    wire.faults = deque("" if one == "stale" else one for one in faults)
            commands.send(None)


@contextmanager
def faulty_store() -> Iterator[FaultyStore]:
    commands, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield FaultyStore(commands.recv(), commands)
    finally:
        commands.send(None)
        process.join()
