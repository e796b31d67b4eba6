"""A wait for commits over many looks: errors in a row, and channels that stand still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_snowpipe.streaming.commit_wait import (
    CommitTargets,
    CommitVerdict,
    FailureReason,
    WaitState,
    judge,
)
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SnowpipeError,
)
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.status import ChannelStatus
from airflow_provider_snowpipe.streaming.status_look import StatusLook

_PACE = 0.8
"""Share of a wait's own interval after which its next failed look counts; a round may come a little early."""
_NAMED_IN_TEXT = 5
"""How many standing channels a message names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What a wait puts up with.

    :param max_consecutive_errors: looks in a row that failed for a passing reason and end the wait
    :param stall_seconds: a channel short of its target that commits nothing for this long ends the wait; None
        for never
    :param interval: seconds between two looks of this wait. Where others have the same channels asked after
        more often, errors are still counted at this pace
    """

    max_consecutive_errors: int = 10
    stall_seconds: float | None = None
    interval: float = 0.0

    def __post_init__(self) -> None:
        if self.max_consecutive_errors < 1:
            raise ConfigurationError(
                f"max_consecutive_errors is {self.max_consecutive_errors}: give 1 or more"
            )
        if self.stall_seconds is not None and not self.stall_seconds > 0:
            raise ConfigurationError(
                f"stall_timeout is {self.stall_seconds}: give seconds above 0, or None to wait without it"
            )


class CommitWatch:
    """One wait's memory between looks.

    Times are seconds since 1970, so that the memory can move to another process (:meth:`memory`,
    :meth:`recall`).

    :param wanted: the targets
    :param patience: what to put up with
    """

    def __init__(self, wanted: CommitTargets, patience: Patience) -> None:
        self.wanted = wanted
        self.channels = list(wanted.targets)
        self._patience = patience
        self._known: dict[str, ChannelStatus] = {}
        self._errors = 0
        self._counted_at = float("-inf")
        self._still: dict[str, tuple[str | None, float]] = {}

    def see(self, look: StatusLook, now: float) -> CommitVerdict | None:
        """Take in one look.

        :param look: it may hold other channels as well, or only some of this wait's
        :param now: when it was made
        :returns: what it says of this wait, None when it says nothing
        """
        fresh = {name: look.statuses[name] for name in self.channels if name in look.statuses}
        self._known.update(fresh)
        error = next((look.errors[name] for name in self.channels if name in look.errors), None)
        if error is not None:
            return self._endure(error, now)
        if not fresh:
            return None
        self._errors = 0
        if len(self._known) < len(self.channels):
            return None
        verdict = judge(self._known, self.wanted)
        if verdict.state is WaitState.WAITING and self._patience.stall_seconds is not None:
            return self._standstill(verdict, now)
        return verdict

    def memory(self) -> dict[str, Any]:
        """What a wait that goes on in another process has to know; JSON."""
        return {"errors": self._errors, "still": {name: list(entry) for name, entry in self._still.items()}}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from another process's memory.

        :param memory: what :meth:`memory` gave there
        """
        self._errors = int(memory["errors"])
        self._still = {name: (token, float(since)) for name, (token, since) in memory["still"].items()}

    def _endure(self, error: Exception, now: float) -> CommitVerdict | None:
        tokens = {name: None if status is None else status.committed for name, status in self._found()}
        waiting = CommitVerdict(WaitState.WAITING, tokens, done=0, total=len(self.channels))
        if isinstance(error, SnowpipeError) and not is_passing(error):
            return _failed(waiting, refusal_reason(error), str(error))
        if now - self._counted_at < self._patience.interval * _PACE:
            return None
        self._errors += 1
        self._counted_at = now
        if self._errors >= self._patience.max_consecutive_errors:
            text = f"{self._errors} looks in a row failed, the last: {_text(error)}"
            return _failed(waiting, FailureReason.TOO_MANY_ERRORS, text)
        return replace(waiting, message=f"look failed ({self._errors} in a row): {_text(error)}")

    def _found(self) -> list[tuple[str, ChannelStatus | None]]:
        return [(name, self._known.get(name)) for name in self.channels]

    def _standstill(self, verdict: CommitVerdict, now: float) -> CommitVerdict:
        longest = self._patience.stall_seconds
        behind: dict[str, tuple[str | None, float]] = {}
        standing: list[str] = []
        for name, target in self.wanted.targets.items():
            token = verdict.tokens[name]
            progress = self.wanted.progress(self._known[name])
            if progress is None or target is None or progress.is_complete():
                continue
            seen, since = self._still.get(name, (token, now))
            behind[name] = (token, since if seen == token else now)
            since = behind[name][1]
            if longest is not None and now - since >= longest:
                standing.append(_standing(name, progress.committed, target, since, now))
        self._still = behind
        if not standing:
            return verdict
        named = "; ".join(standing[:_NAMED_IN_TEXT])
        more = f"; and {len(standing) - _NAMED_IN_TEXT} more" if len(standing) > _NAMED_IN_TEXT else ""
        return _failed(
            verdict,
            FailureReason.STALLED,
            f"{len(standing)} of {verdict.total} channels committed nothing for {longest:g} s: "
            f"{named}{more}. "
            "See whether their writer still runs and what it reports; run the load again if it ended, or "
            "raise stall_timeout if the source pauses for longer",
        )


def is_passing(error: Exception) -> bool:
    """True for an error that the next look may not meet; whatever nobody foresaw counts as such.

    :param error: what a look met
    """
    return not isinstance(error, SnowpipeError) or error.retryable


def refusal_reason(error: SnowpipeError) -> FailureReason:
    """Tell a wrong setting from a refusal.

    :param error: one that is not passing
    """
    wrong = isinstance(error, ConfigurationError)
    return FailureReason.CONFIGURATION if wrong else FailureReason.REFUSED


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, SnowpipeError) else f"{type(error).__name__}: {error}"


def _failed(verdict: CommitVerdict, reason: FailureReason, message: str) -> CommitVerdict:
    return replace(verdict, state=WaitState.FAILED, slowest=None, reason=reason, message=message)


def _standing(name: str, committed: Offset | None, target: Offset, since: float, now: float) -> str:
    steps = None if committed is None else committed.steps_to(target)
    distance = "before" if steps is None else f"{steps} before"
    at = "NULL" if committed is None else str(committed)
    moment = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
    return f"{name!r} stands at {at} since {moment} ({now - since:.0f} s), {distance} its target {target}"
