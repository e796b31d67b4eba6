"""Faults on demand for tests: delayed commits, lost responses, refusals. Off unless asked for."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from snowpipe_local.errors import ConfigurationError, Refusal

CALLS = (
    "hostname", "token", "pipe-info", "open", "status", "drop", "append", "insert-files", "insert-report",
    "history-scan", "statement", "put",
)  # fmt: skip
ANSWERS = ("401", "403", "404html", "408", "409", "410", "429", "500", "503")
KILL_POINTS = (
    "before-append", "before-append-answer", "after-append-answer", "before-commit", "after-commit",
    "during-checkpoint", "before-load-commit", "after-load-commit", "before-rename-commit",
    "after-rename-commit",
    "before-table-commit", "after-table-commit", "before-intent-end",
)  # fmt: skip
PIPE_FAILED_OVER = "PIPE_FAILED_OVER"
_HOLD = "hold-commits"
# Faults with an ordinal number, and the counter that it belongs to.
_ORDINALS = {
    "drop-append-response": "_applied", "invalidate-channel": "_appends", "hold-request": "requests",
    "hold-answer": "requests",
}  # fmt: skip


@dataclass(slots=True)
class Faults:
    """Faults that ``serve --faults`` switches on; ordinal numbers count from 1.

    ``commit-delay=2.5`` lets a commit wait so many seconds after the append was answered, ``hold-commits``
    without end. ``drop-append-response=3`` applies the third append and cuts its connection;
    ``invalidate-channel=2`` makes the channel invalid instead of taking the second; ``append-503=2`` answers
    the first two 503, unapplied. ``answer-append=429x3`` answers the next calls of a kind, unapplied;
    ``429@2`` asks to wait for two seconds, by the header ``Retry-After``. ``slow-append=31x1`` lets the next
    call wait before it is read. ``kill-before-commit=2`` kills the service when it reaches the point for the
    second time. ``hold-request=3`` lets the third request wait before it is read, ``hold-answer=3`` after it
    had its effect, until the faults are cleared. ``failover-pipe=LOCAL.PUBLIC.T-STREAMING`` answers all calls
    to the pipe 410.

    :param failed_over: pipes, as ``DATABASE.SCHEMA.PIPE``.
    :param held: requests that wait now.
    """

    commit_delay: float = 0.0
    failed_over: frozenset[str] = frozenset()
    requests: int = 0
    held: int = 0
    _ordinals: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in _ORDINALS})
    _next: dict[str, list[Any]] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)
    _appends: int = 0
    _applied: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _released: threading.Event = field(default_factory=threading.Event, repr=False)

    def refuse_append(self) -> bool:
        """Return True when this append is to be answered 503."""
        with self._lock:
            left = self._left.get("append-503", 0)
            if left:
                self._left["append-503"] = left - 1
            return left > 0

    def drop_response(self) -> bool:
        """Count one applied append; True when its response is to be lost."""
        return self._is_nth("drop-append-response")

    def invalidates(self) -> bool:
        """Count one append; True when its channel is to become invalid."""
        return self._is_nth("invalidate-channel")

    def _is_nth(self, name: str) -> bool:
        waiting, counter = self._ordinals[name], _ORDINALS[name]
        if not waiting:
            return False
        with self._lock:
            number = getattr(self, counter) + 1
            setattr(self, counter, number)
            is_due = number in waiting
            waiting.discard(number)
            return is_due

    def next_answer(self, call: str) -> str | None:
        """Return the status that this call is to be answered with, or None."""
        taken: str | None = self._taken(f"answer-{call}")
        return taken

    def next_delay(self, call: str) -> float:
        """Return the seconds that this call is to wait."""
        return self._taken(f"slow-{call}") or 0.0

    def _taken(self, name: str) -> Any:
        with self._lock:
            waiting = self._next.get(name)
            return waiting.pop(0) if waiting else None

    def hold(self, call: str) -> None:
        """Let a call wait as long as it is to; :meth:`clear` lets it go on."""
        released = self._released
        delay = self.next_delay(call)
        if delay:
            released.wait(delay)

    def holds(self, name: str, number: int) -> bool:
        """Return True when ``hold-request`` or ``hold-answer`` holds up the request of this number."""
        return number in self._ordinals[name]

    async def hold_if(self, due: bool) -> None:
        """Hold a request up, or its answer, if it is due, until the faults are cleared."""
        if due:
            await asyncio.to_thread(self._wait_until_cleared)

    def _wait_until_cleared(self) -> None:
        with self._lock:
            released = self._released
            self.held += 1
        released.wait()
        with self._lock:
            self.held -= 1

    def reach(self, point: str) -> None:
        """Kill this process with SIGKILL when it reaches a named point for the chosen time."""
        if self.is_due(point):
            die()

    def is_due(self, point: str) -> bool:
        """Count one passage of a named point; True when the process is to die there."""
        name = f"kill-{point}"
        if name not in self._left:
            return False
        with self._lock:
            left = self._left.pop(name, 0)
            if left > 1:
                self._left[name] = left - 1
            return left == 1

    def check_pipe(self, database: str, schema: str, pipe: str) -> None:
        """Refuse a call to a pipe that failed over.

        :raises Refusal: 410.
        """
        if self.failed_over and self.has_failed_over(database, schema, pipe):
            name = f"{database}.{schema}.{pipe}"
            raise Refusal(410, PIPE_FAILED_OVER, f"pipe {name} failed over; make a new client")

    def has_failed_over(self, database: str, schema: str, pipe: str) -> bool:
        """True while calls to the pipe are answered 410."""
        return f"{database}.{schema}.{pipe}".upper() in self.failed_over

    def fail_over(self, pipe: str, *, back: bool = False) -> None:
        """Let a pipe fail over, or answer again.

        :param pipe: ``DATABASE.SCHEMA.PIPE``, ignoring case.
        :raises ConfigurationError: for another form of a name.
        """
        name = ".".join(pipe_parts(pipe)).upper()
        with self._lock:
            self.failed_over = self.failed_over - {name} if back else self.failed_over | {name}

    def add(self, text: str) -> None:
        """Add faults to those that wait; ordinal numbers count from now.

        :raises ConfigurationError: for an unknown name or a wrong value; nothing is added then.
        """
        for name, value in [_read(pair.strip()) for pair in text.split(",") if pair]:
            if name == "failover-pipe":
                self.fail_over(value)
                continue
            with self._lock:
                if name == "commit-delay":
                    self.commit_delay = value or self.commit_delay
                elif name in _ORDINALS:
                    self._ordinals[name].add(getattr(self, _ORDINALS[name]) + value)
                elif isinstance(value, list):
                    self._next.setdefault(name, []).extend(value)
                else:
                    self._left[name] = value

    def clear(self) -> None:
        """Forget all faults that wait, and let the calls go on that one holds up."""
        with self._lock:
            self._released.set()
            self._released = threading.Event()
            self.commit_delay, self.failed_over = 0.0, frozenset()
            self._next, self._left = {}, {}
            for numbers in self._ordinals.values():
                numbers.clear()

    def shown(self) -> list[str]:
        """Return the faults that wait, in the form of ``--faults``; ordinal numbers count from now."""
        with self._lock:
            delay = self.commit_delay
            waiting: list[tuple[str, object]] = (
                [] if math.isinf(delay) or not delay else [("commit-delay", f"{delay:g}")]
            )
            for name, numbers in self._ordinals.items():
                seen = getattr(self, _ORDINALS[name])
                waiting += [(name, number - seen) for number in sorted(numbers) if number > seen]
            for name, values in self._next.items():
                waiting += [(name, f"{each:g}" if name.startswith("slow") else each) for each in values]
            waiting += [(name, left) for name, left in self._left.items() if left]
            waiting += [("failover-pipe", pipe) for pipe in sorted(self.failed_over)]
        return [*([_HOLD] if math.isinf(delay) else []), *(f"{name}={value}" for name, value in waiting)]


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def pipe_parts(name: str) -> tuple[str, str, str]:
    """Return database, schema and pipe of ``DATABASE.SCHEMA.PIPE``; quotes around a part are dropped.

    :raises ConfigurationError: for another form.
    """
    parts = [part.strip('"') for part in name.split(".", 2)]
    if len(parts) != 3 or not all(parts):
        raise ConfigurationError(f"'{name}' is not a pipe; write DATABASE.SCHEMA.PIPE")
    return parts[0], parts[1], parts[2]


def parse_faults(text: str | None) -> Faults:
    """Read the value of ``--faults``: as for :meth:`Faults.add`, None or empty for no faults."""
    faults = Faults()
    faults.add(text or "")
    return faults


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise ValueError(text)
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _read(pair: str) -> tuple[str, Any]:
    """Return name and value of one fault."""
    name, _, value = pair.partition("=")
    if pair == _HOLD:
        return "commit-delay", math.inf
    try:
        return name, _value(name, value)
    except ValueError as error:
        raise ConfigurationError(f"fault {name}={value}: not a number of at least 0") from error


def _value(name: str, text: str) -> Any:
    verb, _, rest = name.partition("-")
    if name == "commit-delay":
        return _seconds(text)
    if name == "append-503" or name in _ORDINALS or (verb == "kill" and rest in KILL_POINTS):
        return _count(text)
    if name == "failover-pipe":
        return ".".join(pipe_parts(text))
    each, _, times = text.partition("x")
    if verb == "slow" and rest in CALLS:
        return [_seconds(each)] * _count(times or "1")
    if verb == "answer" and rest in CALLS:
        status, _, retry_after = each.partition("@")
        if status not in ANSWERS or not (retry_after or "0").isdecimal():
            raise ConfigurationError(
                f"fault {name}={text}: answers are {', '.join(ANSWERS)}, with @SECONDS to ask for a pause"
            )
        return [each] * _count(times or "1")
    raise ConfigurationError(
        f"unknown fault '{name}'; known: hold-commits, commit-delay=SECONDS, drop-append-response=N, "
        f"append-503=N, invalidate-channel=N, hold-request=N, hold-answer=N, kill-POINT=N, "
        f"answer-CALL=STATUS[@SECONDS]xN, slow-CALL=SECONDSxN, failover-pipe=DATABASE.SCHEMA.PIPE; "
        f"points: {', '.join(KILL_POINTS)}; calls: {', '.join(CALLS)}"
    )
