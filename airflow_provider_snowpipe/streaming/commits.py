"""Deciding whether rows are committed: of one channel, of all channels of a wait, and poll by poll.

:func:`decide` alone finds a channel committed, behind, stalled, rejected or invalid, for all who ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, Self

from airflow_provider_snowpipe.streaming.checkpoint import check_balance, excess_of
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    ImbalanceError,
    OffsetTokenError,
    PipeFailedOverError,
    PipeNotFoundError,
    RetriesExhaustedError,
    RowsRejectedError,
    SnowpipeError,
    SourceChangedError,
    WaitRefusedError,
)
from airflow_provider_snowpipe.streaming.names import counted, first_few
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import (
    STATUS_NAMES_PER_REQUEST,
    ChannelStatus,
    CommitTargets,
    Progress,
)

_OUTAGES = (RetriesExhaustedError, PipeFailedOverError, PipeNotFoundError, AuthenticationError)
"""Errors that the next request would meet as well."""
_PACE = 0.8
"""Share of a wait's own interval after which its next failed poll counts; a round may come a little early."""


class CommitState(StrEnum):
    """What a channel's status shows of the commit that it owes."""

    COMMITTED = "committed"
    BEHIND = "behind"
    STALLED = "stalled"
    REJECTED = "rejected"
    INVALID = "invalid"


class WaitState(StrEnum):
    """Where a wait stands."""

    COMPLETE = "complete"
    WAITING = "waiting"
    FAILED = "failed"


class Failure(StrEnum):
    """Why a wait cannot end well: each value with the error of a load that waits itself."""

    _value_: str
    error_class: type[SnowpipeError]

    def __new__(cls, value: str, error_class: type[SnowpipeError] = SnowpipeError) -> Self:
        """Make the member of a value; its error records whether another try of the load can help."""
        member = str.__new__(cls, value)
        member._value_, member.error_class = value, error_class
        return member

    @property
    def retryable_by_wait(self) -> bool:
        """True when another try of a task that only waits can help: it opens no channel, as a load does."""
        return self.error_class.retryable and self.error_class is not ChannelInvalidError


class FailureReason(Failure):
    """Why a wait for commits cannot end well; the last four come from whoever asks, not from one status."""

    CHANNEL_MISSING = "channel_missing", ChannelInvalidError
    CHANNEL_INVALID = "channel_invalid", ChannelInvalidError
    ROWS_REJECTED = "rows_rejected", RowsRejectedError
    BAD_TOKEN = "bad_token", OffsetTokenError
    SOURCE_CHANGED = "source_changed", SourceChangedError
    IMBALANCE = "imbalance", ImbalanceError
    CONFIGURATION = "configuration", ConfigurationError
    REFUSED = "refused", WaitRefusedError
    TOO_MANY_ERRORS = "too_many_errors", RetriesExhaustedError
    STALLED = "stalled", CommitTimeoutError


@dataclass(frozen=True, slots=True)
class ChannelCommit:
    """What is decided of one channel."""

    state: CommitState
    status: ChannelStatus
    progress: Progress | None
    rejected: int = 0

    @property
    def has_target(self) -> bool:
        """True when the committed token is at or past the target, whatever was rejected on the way."""
        return self.progress is None or self.progress.is_complete()

    @property
    def committed(self) -> Offset | None:
        """The committed position, None for NULL and where the channel owes nothing."""
        return None if self.progress is None else self.progress.committed

    @property
    def target(self) -> Offset | None:
        """The position that the channel has to commit, None where it owes nothing."""
        return None if self.progress is None else self.progress.target

    def __str__(self) -> str:
        return f"{self.status.channel!r} committed {self.status.committed or 'NULL'} of {self.target}"


def decide(
    status: ChannelStatus,
    progress: Progress | None,
    *,
    rejected_baseline: int | None = None,
    is_last: bool = False,
) -> ChannelCommit:
    """Decide what a channel's status means for the commit that it owes.

    Committed means that the committed token is at or past the target, by the order of its format; NULL never
    is. A channel that has its target needs no valid session any more, whatever its status code.

    :param progress: the committed position and the target, None for a channel that owes nothing
    :param rejected_baseline: rows that the service had skipped before; one more rejects the commit, and so
        does one where it counts fewer, as on a channel that was recreated. None accepts skipped rows
    :param is_last: True where there is no time left, so that a channel that is behind has stalled
    """
    rejected = 0 if rejected_baseline is None else status.rows_error_count - rejected_baseline
    if rejected < 0:  # the channel was recreated since, so that all it has skipped is of since then
        rejected = status.rows_error_count
    if rejected:
        state = CommitState.REJECTED
    elif progress is None or progress.is_complete():
        state = CommitState.COMMITTED
    elif not status.is_valid:
        state = CommitState.INVALID
    else:
        state = CommitState.STALLED if is_last else CommitState.BEHIND
    return ChannelCommit(state, status, progress, rejected)


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """What one poll of the channels means for a wait.

    :param behind: the channels that are not, only while waiting
    :param message: what happened and what to do, when failed; the error that is endured, while waiting
    """

    state: WaitState
    tokens: Mapping[str, str | None]
    done: int
    total: int
    behind: tuple[ChannelCommit, ...] = ()
    reason: FailureReason | None = None
    message: str = ""

    @property
    def slowest(self) -> ChannelCommit | None:
        """The channel that is furthest behind: one without a token, else the one with the smallest."""
        positions: list[tuple[Any, ChannelCommit]] = [(one.committed, one) for one in self.behind]
        for position, one in positions:
            if position is None:
                return one
        alike = [entry for entry in positions if type(entry[0]) is type(positions[0][0])]
        return min(alike, key=lambda entry: entry[0].sort_key(), default=(None, None))[1]

    @property
    def value(self) -> dict[str, str | None]:
        """The value of a task whose wait is complete: the committed token of each channel."""
        return dict(self.tokens)

    def failed(self, reason: FailureReason, message: str) -> CommitVerdict:
        """The same, as the end of the wait."""
        return replace(self, state=WaitState.FAILED, behind=(), reason=reason, message=message)

    def __str__(self) -> str:
        if self.message:
            return self.message
        hangs = f"; slowest: {self.slowest}" if self.slowest is not None else ""
        return f"{self.done} of {self.total} channels committed{hangs}"


def judge(
    statuses: Mapping[str, ChannelStatus],
    expected: CommitTargets,
    standing: Mapping[str, float] | None = None,
) -> CommitVerdict:
    """Hold statuses against targets: complete with *every* channel, else the first failure in their order.

    :param statuses: by channel; one that is left out counts as missing, unless it owes nothing
    :param standing: channels that are stalled if they are behind
    """
    found = {name: statuses.get(name) or ChannelStatus.missing(name) for name in expected.targets}
    tokens = {name: status.committed for name, status in found.items()}
    unknown = CommitVerdict(WaitState.WAITING, tokens, done=0, total=len(found))
    behind: list[ChannelCommit] = []
    for name, status in found.items():
        try:
            one = decide(
                status,
                expected.progress(status),
                rejected_baseline=expected.targets[name].errors,
                is_last=standing is not None and name in standing,
            )
        except SourceChangedError as error:
            return unknown.failed(FailureReason.SOURCE_CHANGED, str(error))
        except OffsetTokenError as error:
            return unknown.failed(FailureReason.BAD_TOKEN, str(error))
        if one.state in (CommitState.REJECTED, CommitState.INVALID):
            return unknown.failed(*_failure(one))
        if one.state is not CommitState.COMMITTED:
            behind.append(one)
    if not behind:
        try:
            for name, status in found.items():
                check_balance(name, excess_of(status), expected.on_imbalance)
        except ImbalanceError as error:
            return unknown.failed(FailureReason.IMBALANCE, str(error))
        return replace(unknown, state=WaitState.COMPLETE, done=len(found))
    return replace(unknown, done=len(found) - len(behind), behind=tuple(behind))


def _failure(one: ChannelCommit) -> tuple[FailureReason, str]:
    status = one.status
    if one.state is CommitState.REJECTED:
        return FailureReason.ROWS_REJECTED, (
            f"channel {status.channel!r}: the service skipped {counted(one.rejected, 'row')}, the last "
            f"one at or before offset {status.last_error_offset_upper_bound!r}: "
            f"{status.last_error_message or 'no message'}. Fix those rows in the source and load them again; "
            "fail_on_rejected_rows=False accepts skipped rows"
        )
    if not status.exists:
        return FailureReason.CHANNEL_MISSING, (
            f"channel {status.channel!r} does not exist, or the role may not see it ({status.code}): check "
            "pipe, channel name and role; a channel that was dropped lost its token, so run the load again"
        )
    return FailureReason.CHANNEL_INVALID, (
        f"channel {status.channel!r} has the status {status.code} and committed only "
        f"{status.committed or 'NULL'}: run the load again, which replays from that token"
    )


class StatusSource(Protocol):
    """As much of a client as a poll needs."""

    def channel_statuses(self, names: Sequence[str]) -> dict[str, ChannelStatus]:
        """Ask after channels; a status for every name."""

    def close(self) -> None:
        """Give the connections back."""


@dataclass(frozen=True, slots=True)
class PolledStatuses:
    """What one round of status requests returned; each channel asked after is in one of the two."""

    statuses: Mapping[str, ChannelStatus] = field(default_factory=dict)
    errors: Mapping[str, Exception] = field(default_factory=dict)

    @classmethod
    def failed(cls, names: Sequence[str], error: Exception) -> PolledStatuses:
        """Build the poll that brought nothing but one error."""
        return cls(errors=dict.fromkeys(names, error))


def poll_statuses(source: StatusSource, names: Sequence[str]) -> PolledStatuses:
    """Ask after channels, 100 a request, such that one request's failure harms no other's channels.

    A request that is refused for what it asks is repeated in halves, until the refusal concerns one channel
    only. An outage (unreachable, credentials refused, no such pipe) ends the round instead of being met once
    for each hundred: the channels not asked after yet get the same error.
    """
    statuses: dict[str, ChannelStatus] = {}
    errors: dict[str, Exception] = {}
    waiting = [
        list(names[start : start + STATUS_NAMES_PER_REQUEST])
        for start in range(0, len(names), STATUS_NAMES_PER_REQUEST)
    ]
    while waiting:
        some = waiting.pop(0)
        try:
            statuses.update(source.channel_statuses(some))
        except _OUTAGES as error:
            for unasked in (some, *waiting):
                errors.update(dict.fromkeys(unasked, error))
            break
        except SnowpipeError as error:
            if len(some) > 1 and isinstance(error, ApiError) and 400 <= error.http_status < 500:
                middle = len(some) // 2
                waiting[:0] = [some[:middle], some[middle:]]
            else:
                errors.update(dict.fromkeys(some, error))
    return PolledStatuses(statuses, errors)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """What a wait puts up with.

    :param stall_seconds: a channel that commits nothing for so long ends the wait; None for never
    :param interval: seconds between two polls, at which pace errors count, whatever others have asked
    """

    max_consecutive_errors: int = 10
    stall_seconds: float | None = None
    interval: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.max_consecutive_errors, int) or self.max_consecutive_errors < 1:
            raise ConfigurationError(
                f"max_consecutive_errors is {self.max_consecutive_errors!r}: give 1 or more"
            )
        stall = self.stall_seconds
        if stall is not None and not (isinstance(stall, int | float) and stall > 0):
            raise ConfigurationError(
                f"stall_timeout is {stall!r}: give seconds above 0, or None to wait without it"
            )


class FailedPolls:
    """The polls in a row that failed, of a wait for commits or for files."""

    def __init__(self, budget: RetryBudget) -> None:
        self._budget = budget
        self.count = 0
        self._counted_at = float("-inf")

    def take(self, error: Exception, now: float) -> tuple[FailureReason | None, str]:
        """Count one; why it ends the wait, and what happened, empty where it does not count."""
        if isinstance(error, SnowpipeError) and not error.retryable:
            wrong = isinstance(error, ConfigurationError)
            return FailureReason.CONFIGURATION if wrong else FailureReason.REFUSED, str(error)
        if now - self._counted_at < self._budget.interval * _PACE:
            return None, ""
        self.count += 1
        self._counted_at = now
        text = str(error) if isinstance(error, SnowpipeError) else f"{type(error).__name__}: {error}"
        if self.count >= self._budget.max_consecutive_errors:
            return FailureReason.TOO_MANY_ERRORS, f"{self.count} polls in a row failed, the last: {text}"
        return None, f"poll failed ({self.count} in a row): {text}"


class CommitWatch:
    """One wait's memory between polls; its times are since 1970, so that it can move to another process."""

    def __init__(self, expected: CommitTargets, budget: RetryBudget) -> None:
        self.expected = expected
        self.question = list(expected.targets)
        self._longest = budget.stall_seconds
        self._failed = FailedPolls(budget)
        self._known: dict[str, ChannelStatus] = {}
        self._still: dict[str, tuple[str | None, float]] = {}

    def at_once(self) -> CommitVerdict | None:
        """The end of a wait without a channel, None where there is something to wait for."""
        return None if self.question else judge({}, self.expected)

    def see(self, answer: PolledStatuses, now: float) -> CommitVerdict | None:
        """Take in one poll: what it means for this wait, None when it has nothing of it."""
        fresh = {name: answer.statuses[name] for name in self.question if name in answer.statuses}
        self._known.update(fresh)
        error = next((answer.errors[name] for name in self.question if name in answer.errors), None)
        if error is not None:
            return self._endure(error, now)
        if not fresh:
            return None
        self._failed.count = 0
        if len(self._known) < len(self.question):
            return None
        standing = {} if self._longest is None else self._standing(self._longest, now)
        verdict = judge(self._known, self.expected, standing)
        stalled = [one for one in verdict.behind if one.state is CommitState.STALLED]
        if not stalled:
            return verdict
        named = [_stalled(one, standing[one.status.channel], now) for one in stalled]
        return verdict.failed(
            FailureReason.STALLED,
            f"{len(stalled)} of {verdict.total} channels committed nothing for {self._longest:g} s: "
            f"{first_few(named, '; ')}. See whether their writer still runs and what it reports; run "
            "the load again if it ended, or raise stall_timeout if the source pauses for longer",
        )

    def observed(self) -> dict[str, dict[str, Any]]:
        """What the last polls have shown of channels: committed token, target, rows not reported before."""
        targets = self.expected.targets
        return {
            name: {
                "committed": status.committed,
                "target": targets[name].token,
                "rejected": one.rejected,
                "latency_ms": status.latency_ms,
                "last_error": status.last_error if one.rejected else None,
            }
            for name, status in self._known.items()
            for one in (decide(status, None, rejected_baseline=targets[name].errors),)
        }

    def memory(self) -> dict[str, Any]:
        """What a wait that goes on in another process has to know; JSON."""
        still = {name: list(entry) for name, entry in self._still.items()}
        return {"errors": self._failed.count, "still": still}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from another process's memory."""
        self._failed.count = int(memory["errors"])
        self._still = {name: (token, float(since)) for name, (token, since) in memory["still"].items()}

    def _endure(self, error: Exception, now: float) -> CommitVerdict | None:
        found = {name: self._known.get(name) for name in self.question}
        tokens = {name: None if status is None else status.committed for name, status in found.items()}
        waiting = CommitVerdict(WaitState.WAITING, tokens, done=0, total=len(found))
        reason, message = self._failed.take(error, now)
        if reason is not None:
            return waiting.failed(reason, message)
        return replace(waiting, message=message) if message else None

    def _standing(self, longest: float, now: float) -> dict[str, float]:
        """The channels whose token has not moved for too long, and since when."""
        for name, status in self._known.items():
            token, since = self._still.get(name, (status.committed, now))
            self._still[name] = (status.committed, since if token == status.committed else now)
        return {name: since for name, (_, since) in self._still.items() if now - since >= longest}


def _stalled(one: ChannelCommit, since: float, now: float) -> str:
    committed, target = one.committed, one.target
    steps = None if committed is None or target is None else committed.steps_to(target)
    distance = "before" if steps is None else f"{steps} before"
    at = "NULL" if committed is None else str(committed)
    stood = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
    standing = f"{one.status.channel!r} stands at {at} since {stood} ({now - since:.0f} s)"
    return f"{standing}, {distance} its target {target}"
