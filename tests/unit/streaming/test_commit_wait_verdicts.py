"""What a verdict has beside its state, and which failure of several is reported."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.commits import CommitVerdict, FailureReason, WaitState, judge
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, ChannelTarget, CommitTargets


def _judge(targets: dict[str, str], *found: ChannelStatus, **options: Any) -> CommitVerdict:
    return judge({s.channel: s for s in found}, CommitTargets.parse(targets, "integer", **options))


def _status(name: str, committed: str | None, code: str = "SUCCESS", **fields: Any) -> ChannelStatus:
    return ChannelStatus(channel=name, code=code, committed=committed, **fields)


REOPEN = "ERR_CHANNEL_MUST_BE_REOPENED"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (_status("b", "x"), FailureReason.BAD_TOKEN),
        (ChannelStatus.missing("b"), FailureReason.CHANNEL_MISSING),
        (_status("b", None, REOPEN), FailureReason.CHANNEL_INVALID),
        (_status("b", "9", rows_error_count=1), FailureReason.ROWS_REJECTED),
    ],
)
def test_failed_verdict_has_tokens_totals_and_its_message(
    found: ChannelStatus, reason: FailureReason
) -> None:
    verdict = _judge({"a": "5", "b": "5"}, _status("a", "7"), found, fail_on_rejected_rows=True)

    assert verdict.state is WaitState.FAILED
    assert verdict.reason is reason
    assert (verdict.done, verdict.total, verdict.slowest) == (0, 2, None)
    assert verdict.tokens == {"a": "7", "b": found.committed}
    assert "'b'" in verdict.message
    assert str(verdict) == verdict.message


@pytest.mark.parametrize("order", [1, -1])
def test_slowest_is_named_among_tokens_of_the_first_ones_format(order: int) -> None:
    given = [("a", ChannelTarget("f:9", "file:line")), ("b", ChannelTarget("8", "integer"))][::order]
    targets = CommitTargets.parse({channel: target.to_json() for channel, target in given})
    found = [_status("a", "f:2"), _status("b", "3")][::order]

    verdict = judge({one.channel: one for one in found}, targets)

    assert verdict.slowest is not None
    assert verdict.slowest.status.channel == found[0].channel


def test_complete_verdict_counts_every_channel() -> None:
    verdict = _judge({"a": "5", "b": "5"}, _status("a", "7"), _status("b", "5"))

    assert verdict == CommitVerdict(WaitState.COMPLETE, {"a": "7", "b": "5"}, done=2, total=2)
    assert str(verdict) == "2 of 2 channels committed"


def test_first_failure_in_the_order_of_the_targets_is_reported() -> None:
    failing = (_status("a", "x"), ChannelStatus.missing("b"))

    assert _judge({"a": "5", "b": "5"}, *failing).reason is FailureReason.BAD_TOKEN
    assert _judge({"b": "5", "a": "5"}, *failing).reason is FailureReason.CHANNEL_MISSING


def test_baseline_of_another_channel_does_not_count() -> None:
    verdict = _judge(
        {"a": "5"},
        _status("a", "7", rows_error_count=1),
        fail_on_rejected_rows=True,
        rejected_baseline={"b": 1},
    )

    assert verdict.state is WaitState.FAILED


@pytest.mark.parametrize(("errors", "state"), [(0, WaitState.COMPLETE), (2, WaitState.FAILED)])
def test_rows_rejected_by_a_channel_that_was_made_anew_since_its_baseline_count(
    errors: int, state: WaitState
) -> None:
    """A channel counts over its life, so that a smaller number is that of another one."""
    verdict = _judge(
        {"a": "5"},
        _status("a", "7", rows_error_count=errors),
        fail_on_rejected_rows=True,
        rejected_baseline={"a": 3},
    )

    assert verdict.state is state
    assert ("skipped 2 row(s)" in verdict.message) is (errors == 2)


def test_invalid_channel_without_a_token_fails_and_reports_null() -> None:
    verdict = _judge({"a": "5"}, _status("a", None, REOPEN))

    assert verdict.reason is FailureReason.CHANNEL_INVALID
    assert "NULL" in verdict.message


def test_slowest_of_many_is_reported_with_its_target() -> None:
    verdict = _judge(
        {"a": "10", "b": "11", "c": "12"}, *(_status(n, t) for n, t in zip("abc", "978", strict=True))
    )

    assert verdict.slowest is not None
    assert str(verdict.slowest) == "'b' committed 7 of 11"
    assert (verdict.done, verdict.total) == (0, 3)


def test_rejected_rows_are_accepted_unless_a_wait_asks() -> None:
    targets = CommitTargets.parse({"a": "5"}, "integer")

    assert targets == CommitTargets({"a": IntegerOffset(5)}, {"a": "integer"}, {"a": {}}, {})
    assert CommitTargets.parse({"a": "5"}, "integer", fail_on_rejected_rows=True).rejected_baseline == {
        "a": 0
    }


def test_baseline_of_no_rows_is_a_count() -> None:
    assert CommitTargets.parse({"a": "5"}, "integer", rejected_baseline={"a": 0}).rejected_baseline == {
        "a": 0
    }


@pytest.mark.parametrize("baseline", [[], "[]", "x", 5])
def test_baseline_that_is_no_mapping_is_named(baseline: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^rejected_baseline is"):
        CommitTargets.parse({"a": "5"}, "integer", rejected_baseline=baseline)


def test_first_of_channels_that_are_equally_far_is_the_slowest() -> None:
    verdict = _judge({"a": "9", "b": "9", "c": "9"}, _status("a", "8"), _status("b", "7"), _status("c", "7"))

    assert verdict.slowest is not None
    assert verdict.slowest.status.channel == "b"
