"""Commands of the admin socket: clock, faults, failover, invalidate, checkpoint, requests, rotate-key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_snowpipe.local.catalog import Catalog
from airflow_provider_snowpipe.local.engine.channel import ELASTIC
from airflow_provider_snowpipe.local.engine.ingest import MUST_REOPEN
from airflow_provider_snowpipe.local.engine.pipes import PIPE_MISSING
from airflow_provider_snowpipe.local.errors import ConfigurationError, Refusal
from airflow_provider_snowpipe.local.faults import Faults, pipe_parts
from airflow_provider_snowpipe.local.identifiers import UrlName
from airflow_provider_snowpipe.local.status import snapshot

Answer = dict[str, Any]
Arguments = Mapping[str, Any]


class Commands:
    """What the admin socket can do; every command answers a JSON object.

    Threading: each connection of the socket calls :meth:`run` in a thread of its own.

    :param catalog: databases and the clock.
    :param faults: the faults of the running service.
    """

    def __init__(self, catalog: Catalog, faults: Faults) -> None:
        self._catalog = catalog
        self._faults = faults
        self._known: dict[str, Callable[[Arguments], Answer]] = {
            "clock": self._clock,
            "faults": self._set_faults,
            "failover": self._fail_over,
            "invalidate": self._invalidate,
            "checkpoint": self._checkpoint,
            "requests": self._requests,
            "rotate-key": self._rotate_key,
            "status": self._status,
        }

    def run(self, name: str, arguments: Arguments) -> Answer:
        """Run one command.

        :param name: the command.
        :param arguments: its arguments; unknown ones are refused.
        :raises ServiceError: when the command or an argument is wrong; nothing was changed then.
        """
        command = self._known.get(name)
        if command is None:
            raise ConfigurationError(f"unknown admin command '{name}'; known: {', '.join(self._known)}")
        return command(arguments)

    def _clock(self, arguments: Arguments) -> Answer:
        _only(arguments, "move")
        clock = self._catalog.clock
        if "move" in arguments:
            try:
                clock.move(float(arguments["move"]))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"clock: move is a number of seconds: {error}") from error
        now = dt.datetime.fromtimestamp(clock.now(), dt.UTC)
        return {"now": now.isoformat(timespec="milliseconds"), "moved_seconds": clock.moved_seconds}

    def _set_faults(self, arguments: Arguments) -> Answer:
        _only(arguments, "set", "clear")
        if arguments.get("clear"):
            self._faults.clear()
        if "set" in arguments:
            self._faults.add(_text(arguments, "set"))
        return {"faults": self._faults.shown()}

    def _requests(self, arguments: Arguments) -> Answer:
        _only(arguments)
        return {"requests": self._faults.requests, "held": self._faults.held}

    def _fail_over(self, arguments: Arguments) -> Answer:
        _only(arguments, "pipe", "back")
        pipe = _text(arguments, "pipe")
        self._faults.fail_over(pipe, back=bool(arguments.get("back")))
        return {"failed_over": sorted(self._faults.failed_over)}

    def _invalidate(self, arguments: Arguments) -> Answer:
        _only(arguments, "pipe", "channel")
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

    def _checkpoint(self, arguments: Arguments) -> Answer:
        _only(arguments)
        return {"databases": {each.name: each.checkpoint() for each in self._catalog.databases}}

    def _status(self, arguments: Arguments) -> Answer:
        _only(arguments)
        return snapshot(self._catalog, self._faults)

    def _rotate_key(self, arguments: Arguments) -> Answer:
        _only(arguments)
        spool = self._catalog.spool
        if spool is None:
            raise ConfigurationError("this service keeps no bodies on disk; there is no key to rotate")
        spool.rotate()
        return {"keys": len(spool.key_ids), "bodies": spool.files}


def _only(arguments: Arguments, *known: str) -> None:
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ConfigurationError(f"unknown argument '{unknown[0]}'; known: {', '.join(known) or 'none'}")


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"the argument '{name}' must be a text")
    return value
