"""Faults on demand for tests: delayed commits, lost responses, refusals. Off unless asked for."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field

from airflow_provider_snowpipe.local.errors import ConfigurationError

CALLS = ("hostname", "token", "pipe-info", "open", "status", "drop", "append")
ANSWERS = ("401", "403", "404html", "408", "409", "410", "429", "500", "503")
KILL_POINTS = (
    "before-append-answer",
    "after-append-answer",
    "before-commit",
    "after-commit",
    "before-load-commit",
    "after-load-commit",
)


@dataclass(slots=True)
class Faults:
    """Faults that ``serve --faults`` switches on.

    :param commit_delay: seconds that a commit waits after the append was answered (``commit-delay=2.5``).
    :param drop_append_response: ordinal numbers, counting from 1, of the appends that are applied but whose
        connection is then cut (``drop-append-response=3``; repeat the setting for more).
    :param append_503: how many appends, from the first, are answered 503 and not applied (``append-503=2``).
    :param invalidate_channel: ordinal numbers of the appends that make their channel invalid instead of being
        taken (``invalidate-channel=2``).
    :param answers: statuses that the next calls of a kind are answered with, unapplied
        (``answer-append=429x3``, ``answer-open=404html``).
    :param delays: seconds that the next calls of a kind wait before they are looked at
        (``slow-append=31x1``).
    :param kill_at: the service kills itself when it reaches the point for the N-th time
        (``kill-before-commit=2``).
    """

    commit_delay: float = 0.0
    drop_append_response: frozenset[int] = frozenset()
    append_503: int = 0
    invalidate_channel: frozenset[int] = frozenset()
    answers: dict[str, list[str]] = field(default_factory=dict)
    delays: dict[str, list[float]] = field(default_factory=dict)
    kill_at: dict[str, int] = field(default_factory=dict)
    _appends: int = 0
    _applied: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
            return self._applied in self.drop_append_response

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

    def invalidates(self) -> bool:
        """Count one append; True when its channel is to become invalid."""
        if not self.invalidate_channel:
            return False
        with self._lock:
            self._appends += 1
            return self._appends in self.invalidate_channel

    def reach(self, point: str) -> None:
        """Kill this process with SIGKILL when it reaches a named point for the chosen time."""
        if point not in self.kill_at:
            return
        with self._lock:
            self.kill_at[point] -= 1
            if self.kill_at[point] == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def parse_faults(text: str | None) -> Faults:
    """Read the value of ``--faults``: ``name=value`` pairs, separated by commas.

    :param text: for example ``commit-delay=2,drop-append-response=1``; None or empty for no faults.
    :raises ConfigurationError: for an unknown name or a value that is not a number.
    """
    faults = Faults()
    for pair in filter(None, (text or "").split(",")):
        name, _, value = pair.strip().partition("=")
        try:
            _set(faults, name, value)
        except ValueError as error:
            raise ConfigurationError(f"fault {name}={value}: not a number") from error
    return faults


def _set(faults: Faults, name: str, value: str) -> None:
    verb, _, rest = name.partition("-")
    if name == "commit-delay":
        faults.commit_delay = float(value)
    elif name == "drop-append-response":
        faults.drop_append_response |= {int(value)}
    elif name == "append-503":
        faults.append_503 = int(value)
    elif name == "invalidate-channel":
        faults.invalidate_channel |= {int(value)}
    elif name.startswith("kill-") and rest in KILL_POINTS:
        faults.kill_at[rest] = int(value)
    elif verb == "answer" and rest in CALLS:
        status, _, times = value.partition("x")
        if status not in ANSWERS:
            raise ConfigurationError(f"fault {name}={value}: answers are {', '.join(ANSWERS)}")
        faults.answers.setdefault(rest, []).extend([status] * int(times or 1))
    elif verb == "slow" and rest in CALLS:
        seconds, _, times = value.partition("x")
        faults.delays.setdefault(rest, []).extend([float(seconds)] * int(times or 1))
    else:
        raise ConfigurationError(
            f"unknown fault '{name}'; known: commit-delay=SECONDS, drop-append-response=N, append-503=N, "
            f"invalidate-channel=N, kill-POINT=N, answer-CALL=STATUSxN, slow-CALL=SECONDSxN; "
            f"points: {', '.join(KILL_POINTS)}; calls: {', '.join(CALLS)}"
        )
