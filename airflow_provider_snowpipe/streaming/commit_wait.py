"""Deciding whether a set of channels has committed its targets: the pure part of waiting for a commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.names import check_channel_name
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.progress import Progress
from airflow_provider_snowpipe.streaming.status import ChannelStatus


class WaitState(StrEnum):
    """Where a wait stands."""

    COMPLETE = "complete"
    WAITING = "waiting"
    FAILED = "failed"


class FailureReason(StrEnum):
    """Why a wait cannot end well; the last four come from whoever asks, not from one status."""

    CHANNEL_MISSING = "channel_missing"
    CHANNEL_INVALID = "channel_invalid"
    ROWS_REJECTED = "rows_rejected"
    BAD_TOKEN = "bad_token"  # noqa: S105  a reason, not a secret
    CONFIGURATION = "configuration"
    REFUSED = "refused"
    TOO_MANY_ERRORS = "too_many_errors"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class SlowestChannel:
    """The channel that is furthest behind: one without a token, else the one with the smallest.

    :param channel: its name
    :param committed: its committed offset token, None for NULL
    :param target: the offset token that it owes
    """

    channel: str
    committed: str | None
    target: str

    def __str__(self) -> str:
        return f"{self.channel!r} committed {self.committed or 'NULL'} of {self.target}"


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """What one look at the channels says.

    :param state: complete, waiting or failed
    :param tokens: committed offset token of every channel, None for NULL
    :param done: channels whose committed token is at or past the target
    :param total: channels waited for
    :param slowest: where it hangs; only while waiting
    :param reason: why it failed
    :param message: what happened and what to do, when failed; the error that is endured, while waiting
    """

    state: WaitState
    tokens: Mapping[str, str | None]
    done: int
    total: int
    slowest: SlowestChannel | None = None
    reason: FailureReason | None = None
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return self.message
        hangs = f"; slowest: {self.slowest}" if self.slowest is not None else ""
        return f"{self.done} of {self.total} channels committed{hangs}"


@dataclass(frozen=True, slots=True)
class CommitTargets:
    """What a wait is for: an offset token for each channel, and what counts as failure.

    :param offset_class: the tokens' format
    :param targets: the position that each channel has to commit
    :param fail_on_rejected_rows: True ends the wait when the service has skipped a row
    :param rejected_baseline: skipped rows that were there before and do not count, by channel
    """

    offset_class: type[Offset]
    targets: Mapping[str, Offset]
    fail_on_rejected_rows: bool = False
    rejected_baseline: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        targets: Mapping[str, str] | str,
        offset_class: type[Offset],
        *,
        fail_on_rejected_rows: bool = False,
        rejected_baseline: Mapping[str, int] | str | None = None,
    ) -> CommitTargets:
        """Read target tokens.

        :param targets: a target offset token for each channel; a mapping or its JSON text
        :param rejected_baseline: rows skipped before that do not count, by channel; the same
        :param offset_class: the tokens' format
        :raises OffsetTokenError: if a token does not have that format
        :raises ConfigurationError: if there is no channel, or a token or a count is of another type
        """
        targets = _mapping("targets", targets)
        if not targets:
            raise ConfigurationError(
                "targets is {}: give a mapping with the target offset token of at least one channel, for "
                "example the XCom 'targets' of the task that loads"
            )
        for channel, token in targets.items():
            if not isinstance(channel, str) or not channel or not isinstance(token, str):
                raise ConfigurationError(
                    f"targets has the entry {channel!r}: {token!r}: give a channel's name and its token, "
                    "both text"
                )
            check_channel_name(channel)
        baseline = {} if rejected_baseline is None else _mapping("rejected_baseline", rejected_baseline)
        for channel, count in baseline.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ConfigurationError(
                    f"rejected_baseline of channel {channel!r} is {count!r}: give the number of rows that "
                    "were skipped before, 0 or more"
                )
        return cls(
            offset_class=offset_class,
            targets={name: offset_class.parse(token, channel=name) for name, token in targets.items()},
            fail_on_rejected_rows=fail_on_rejected_rows,
            rejected_baseline=baseline,
        )


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or the JSON text of one, as a template renders it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigurationError(
                f"{name} is the text {value[:80]!r}, which is no JSON object: give a mapping, an XCom such "
                'as load.output["targets"], or a template that ends in "| tojson"'
            ) from None
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name} is {value!r}: give a mapping of channel names, such as the XCom 'targets' of the load"
        )
    return dict(value)


def judge(statuses: Mapping[str, ChannelStatus], wanted: CommitTargets) -> CommitVerdict:
    """Hold the channels' statuses against the targets.

    Complete means that *every* committed token is at or past its target, by the order of the token's
    format; NULL never is. A channel that has its target needs no valid session any more, so its status
    code does not matter then. The first failure in the order of the targets is reported.

    :param statuses: a status for each channel; one that is left out counts as missing
    :param wanted: the targets
    """
    total = len(wanted.targets)
    found = {name: statuses.get(name) or ChannelStatus.missing(name) for name in wanted.targets}
    tokens = {name: status.committed for name, status in found.items()}
    behind: list[tuple[Offset | None, SlowestChannel]] = []
    for name, target in wanted.targets.items():
        status = found[name]
        try:
            committed = _committed(status, wanted.offset_class)
            complete = Progress(committed, target).is_complete()
        except OffsetTokenError as error:
            return _failed(tokens, total, FailureReason.BAD_TOKEN, str(error))
        failure = _failure(status, complete, wanted)
        if failure is not None:
            return _failed(tokens, total, *failure)
        if not complete:
            behind.append((committed, SlowestChannel(name, status.committed, str(target))))
    if not behind:
        return CommitVerdict(WaitState.COMPLETE, tokens, done=total, total=total)
    return CommitVerdict(
        WaitState.WAITING, tokens, done=total - len(behind), total=total, slowest=_slowest(behind)
    )


def _committed(status: ChannelStatus, offset_class: type[Offset]) -> Offset | None:
    return None if status.committed is None else offset_class.parse(status.committed, channel=status.channel)


def _failure(
    status: ChannelStatus, complete: bool, wanted: CommitTargets
) -> tuple[FailureReason, str] | None:
    name = status.channel
    if wanted.fail_on_rejected_rows:
        rejected = status.rows_error_count - wanted.rejected_baseline.get(name, 0)
        if rejected > 0:
            return FailureReason.ROWS_REJECTED, (
                f"channel {name!r}: the service skipped {rejected} row(s), the last one at or before offset "
                f"{status.last_error_offset_upper_bound!r}: {status.last_error_message or 'no message'}. "
                "Mend those rows in the source and load them again; fail_on_rejected_rows=False accepts "
                "skipped rows"
            )
    if complete:
        return None
    if not status.exists:
        return FailureReason.CHANNEL_MISSING, (
            f"channel {name!r} does not exist, or the role may not see it ({status.code}): check pipe, "
            "channel name and role; a channel that was dropped lost its token, so run the load again"
        )
    if not status.is_valid:
        return FailureReason.CHANNEL_INVALID, (
            f"channel {name!r} has the status {status.code} and committed only {status.committed or 'NULL'}: "
            "its writer must open it again and replay from that token; run the load again"
        )
    return None


def _failed(
    tokens: Mapping[str, str | None], total: int, reason: FailureReason, message: str
) -> CommitVerdict:
    return CommitVerdict(WaitState.FAILED, tokens, done=0, total=total, reason=reason, message=message)


def _slowest(behind: list[tuple[Offset | None, SlowestChannel]]) -> SlowestChannel:
    for committed, channel in behind:
        if committed is None:
            return channel
    return min(
        ((committed.sort_key(), channel) for committed, channel in behind if committed is not None),
        key=lambda entry: entry[0],
    )[1]
