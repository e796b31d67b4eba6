"""Faults on demand for tests: delayed commits, lost responses, refusals. Off unless asked for."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from dataclasses import dataclass, field

from airflow_provider_snowpipe.local.errors import ConfigurationError, Refusal

CALLS = (
    "hostname", "token", "pipe-info", "open", "status", "drop", "append", "insert-files", "insert-report",
    "history-scan", "statement", "put",
)  # fmt: skip
ANSWERS = ("401", "403", "404html", "408", "409", "410", "429", "500", "503")
KILL_POINTS = (
    "before-append", "before-append-answer", "after-append-answer", "before-commit", "after-commit",
    "during-checkpoint", "before-load-commit", "after-load-commit", "before-rename-commit",
    "after-rename-commit",
)  # fmt: skip
PIPE_FAILED_OVER = "PIPE_FAILED_OVER"
_HOLD = "hold-commits"
_NUMBERS = ("append-503", "hold-request", "hold-answer")
_ORDINALS = ("drop-append-response", "invalidate-channel")


@dataclass(slots=True)
class Faults:
    """Faults that ``serve --faults`` switches on.

    :param commit_delay: seconds that a commit waits after the append was answered (``commit-delay=2.5``);
        without end for ``hold-commits``, until the faults are cleared.
    :param drop_append_response: ordinal numbers, counting from 1, of the appends that are applied but whose
        connection is then cut (``drop-append-response=3``; repeat the setting for more).
    :param append_503: how many appends, from the first, are answered 503 and not applied (``append-503=2``).
    :param invalidate_channel: ordinal numbers of the appends that make their channel invalid instead of being
        taken (``invalidate-channel=2``).
    :param answers: statuses that the next calls of a kind are answered with, unapplied
        (``answer-append=429x3``, ``answer-open=404html``); ``429@2`` asks to wait for two seconds, by the
        header ``Retry-After``.
    :param delays: seconds that the next calls of a kind wait before they are read
        (``slow-append=31x1``).
    :param kill_at: the service kills itself when it reaches the point for the N-th time
        (``kill-before-commit=2``).
    :param hold_request: ordinal number, counting from 1, of the request that waits before it is read,
        until the faults are cleared (``hold-request=3``).
    :param hold_answer: the same for a request that has had its effect and waits before it is answered
        (``hold-answer=3``).
    :param failed_over: pipes, as ``DATABASE.SCHEMA.PIPE``, whose calls are all answered 410
        (``failover-pipe=LOCAL.PUBLIC.T-STREAMING``).
    """

    commit_delay: float = 0.0
    drop_append_response: frozenset[int] = frozenset()
    append_503: int = 0
    invalidate_channel: frozenset[int] = frozenset()
    answers: dict[str, list[str]] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)
    kill_at: dict[str, int] = field(default_factory=dict)
    failed_over: frozenset[str] = frozenset()
    hold_request: int = 0
    hold_answer: int = 0
    requests: int = 0
    held: int = 0
    _appends: int = 0
    _applied: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _released: threading.Event = field(default_factory=threading.Event, repr=False)

    def refuse_append(self) -> bool:
        """Return True when this append is to be answered 503."""
        if self.append_503 == 0:
            return False
        with self._lock:
            if self.append_503 > 0:
                self.append_503 -= 1
                return True
        return False

    def drop_response(self) -> bool:
        """Count one applied append; True when its response is to be lost."""
        if not self.drop_append_response:
            return False
        with self._lock:
            self._applied += 1
            due = self._applied in self.drop_append_response
            self.drop_append_response -= {self._applied}
            return due

    def next_answer(self, call: str) -> str | None:
        """Return the status that this call is to be answered with, or None."""
        with self._lock:
            waiting = self.answers.get(call)
            return waiting.pop(0) if waiting else None

    def next_delay(self, call: str) -> float:
        """Return the seconds that this call is to wait."""
        with self._lock:
            waiting = self.delays.get(call)
            return waiting.pop(0) if waiting else 0.0

    def hold(self, call: str) -> None:
        """Let a call wait as long as it is to; :meth:`clear` lets it go on."""
        released = self._released
        delay = self.next_delay(call)
        if delay:
            released.wait(delay)

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

    def invalidates(self) -> bool:
        """Count one append; True when its channel is to become invalid."""
        if not self.invalidate_channel:
            return False
        with self._lock:
            self._appends += 1
            due = self._appends in self.invalidate_channel
            self.invalidate_channel -= {self._appends}
            return due

    def reach(self, point: str) -> None:
        """Kill this process with SIGKILL when it reaches a named point for the chosen time."""
        if self.is_due(point):
            die()

    def is_due(self, point: str) -> bool:
        """Count one passage of a named point; True when the process is to die there."""
        if point not in self.kill_at:
            return False
        with self._lock:
            left = self.kill_at.pop(point, 0)
            if left > 1:
                self.kill_at[point] = left - 1
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

        :param text: as for ``--faults``.
        :raises ConfigurationError: for a text that :func:`parse_faults` refuses; nothing is added then.
        """
        more = parse_faults(text)
        with self._lock:
            self.commit_delay = more.commit_delay or self.commit_delay
            self.append_503 += more.append_503
            self.drop_append_response |= {self._applied + n for n in more.drop_append_response}
            self.invalidate_channel |= {self._appends + n for n in more.invalidate_channel}
            for call, answers in more.answers.items():
                self.answers.setdefault(call, []).extend(answers)
            for call, delays in more.delays.items():
                self.delays.setdefault(call, []).extend(delays)
            self.kill_at.update(more.kill_at)
            self.failed_over |= more.failed_over
            self.hold_request = self.requests + more.hold_request if more.hold_request else self.hold_request
            self.hold_answer = self.requests + more.hold_answer if more.hold_answer else self.hold_answer

    def clear(self) -> None:
        """Forget all faults that wait, and let the calls go on that one holds up."""
        with self._lock:
            self._released.set()
            self._released = threading.Event()
            self.commit_delay, self.append_503 = 0.0, 0
            self.drop_append_response = self.invalidate_channel = frozenset()
            self.failed_over = frozenset()
            self.hold_request = self.hold_answer = 0
            self.answers.clear()
            self.delays.clear()
            self.kill_at.clear()

    def shown(self) -> list[str]:
        """Return the faults that wait, in the form of ``--faults``; ordinal numbers count from now."""
        with self._lock:
            counted = [("append-503", str(self.append_503))] if self.append_503 else []
            if 0 < self.commit_delay < math.inf:
                counted.append(("commit-delay", f"{self.commit_delay:g}"))
            dropped, invalid = sorted(self.drop_append_response), sorted(self.invalidate_channel)
            counted += [("drop-append-response", str(n - self._applied)) for n in dropped]
            counted += [("invalidate-channel", str(n - self._appends)) for n in invalid]
            counted += [(f"answer-{call}", each) for call, some in self.answers.items() for each in some]
            counted += [(f"slow-{call}", f"{each:g}") for call, some in self.delays.items() for each in some]
            counted += [(f"kill-{point}", str(left)) for point, left in self.kill_at.items()]
            counted += [("failover-pipe", pipe) for pipe in sorted(self.failed_over)]
            for name, number in (("hold-request", self.hold_request), ("hold-answer", self.hold_answer)):
                counted += [(name, str(number - self.requests))] if number > self.requests else []
            held = [_HOLD] if self.commit_delay == math.inf else []
        return [*held, *(f"{name}={value}" for name, value in counted)]


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def pipe_parts(name: str) -> tuple[str, str, str]:
    """Return database, schema and pipe of ``DATABASE.SCHEMA.PIPE``; quotes around a part are dropped.

    :raises ConfigurationError: for another form.
    """
    parts = [part.strip('"') for part in name.split(".", 2)]
    if len(parts) != 3 or not all(parts):
        raise ConfigurationError(f"'{name}' is no pipe; write DATABASE.SCHEMA.PIPE")
    return parts[0], parts[1], parts[2]


def parse_faults(text: str | None) -> Faults:
    """Read the value of ``--faults``: ``name=value`` pairs, separated by commas.

    :param text: for example ``commit-delay=2,drop-append-response=1``; None or empty for no faults.
    :raises ConfigurationError: for an unknown name or a value that is not a number.
    """
    faults = Faults()
    for pair in filter(None, (text or "").split(",")):
        name, _, value = pair.strip().partition("=")
        if pair.strip() == _HOLD:
            faults.commit_delay = math.inf
            continue
        try:
            _set(faults, name, value)
        except ValueError as error:
            raise ConfigurationError(f"fault {name}={value}: not a number of at least 0") from error
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


def _set(faults: Faults, name: str, value: str) -> None:
    verb, _, rest = name.partition("-")
    if name == "commit-delay":
        faults.commit_delay = _seconds(value)
    elif name in _NUMBERS:
        setattr(faults, name.replace("-", "_"), _count(value))
    elif name in _ORDINALS:
        field_name = name.replace("-", "_")
        setattr(faults, field_name, getattr(faults, field_name) | {_count(value)})
    elif name == "failover-pipe":
        faults.fail_over(value)
    elif name.startswith("kill-") and rest in KILL_POINTS:
        faults.kill_at[rest] = _count(value)
    elif verb == "answer" and rest in CALLS:
        status, _, times = value.partition("x")
        known, _, retry_after = status.partition("@")
        if known not in ANSWERS or not (retry_after or "0").isdecimal():
            raise ConfigurationError(
                f"fault {name}={value}: answers are {', '.join(ANSWERS)}, with @SECONDS to ask for a pause"
            )
        faults.answers.setdefault(rest, []).extend([status] * _count(times or "1"))
    elif verb == "slow" and rest in CALLS:
        seconds, _, times = value.partition("x")
        faults.delays.setdefault(rest, []).extend([_seconds(seconds)] * _count(times or "1"))
    else:
        raise ConfigurationError(
            f"unknown fault '{name}'; known: hold-commits, commit-delay=SECONDS, drop-append-response=N, "
            f"append-503=N, invalidate-channel=N, hold-request=N, hold-answer=N, kill-POINT=N, "
            f"answer-CALL=STATUS[@SECONDS]xN, slow-CALL=SECONDSxN, failover-pipe=DATABASE.SCHEMA.PIPE; "
            f"points: {', '.join(KILL_POINTS)}; calls: {', '.join(CALLS)}"
        )
