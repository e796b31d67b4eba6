"""Faults on demand for tests: delayed commits, lost responses, refusals. Off unless asked for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from airflow_provider_snowpipe.local.errors import ConfigurationError


@dataclass(slots=True)
class Faults:
    """Faults that ``serve --faults`` switches on.

    :param commit_delay: seconds that a commit waits after the append was answered (``commit-delay=2.5``).
    :param drop_append_response: ordinal numbers, counting from 1, of the appends that are applied but whose
        connection is then cut (``drop-append-response=3``; repeat the setting for more).
    :param append_503: how many appends, from the first, are answered 503 and not applied (``append-503=2``).
    """

    commit_delay: float = 0.0
    drop_append_response: frozenset[int] = frozenset()
    append_503: int = 0
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


def parse_faults(text: str | None) -> Faults:
    """Read the value of ``--faults``: ``name=value`` pairs, separated by commas.

    :param text: for example ``commit-delay=2,drop-append-response=1``; None or empty for no faults.
    :raises ConfigurationError: for an unknown name or a value that is not a number.
    """
    faults = Faults()
    for pair in filter(None, (text or "").split(",")):
        name, _, value = pair.strip().partition("=")
        try:
            if name == "commit-delay":
                faults.commit_delay = float(value)
            elif name == "drop-append-response":
                faults.drop_append_response |= {int(value)}
            elif name == "append-503":
                faults.append_503 = int(value)
            else:
                raise ConfigurationError(
                    f"unknown fault '{name}'; "
                    f"known: commit-delay=SECONDS, drop-append-response=N, append-503=N"
                )
        except ValueError as error:
            raise ConfigurationError(f"fault {name}={value}: not a number") from error
    return faults
