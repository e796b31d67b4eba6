"""Complete, waiting or failed: the decision, for every kind of status."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.commits import (
    CommitState,
    CommitVerdict,
    FailureReason,
    WaitState,
    decide,
    judge,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, IntegerOffset, TopicPartitionOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets, Progress


def status(name: str, committed: str | None, code: str = "SUCCESS", **fields: Any) -> ChannelStatus:
    return ChannelStatus(channel=name, code=code, committed=committed, **fields)


def verdict_of(targets: dict[str, str], *found: ChannelStatus, **options: Any) -> CommitVerdict:
    offset_class = options.pop("offset_class", FileLineOffset)
    return judge(
        {s.channel: s for s in found}, CommitTargets.parse(targets, offset_class.format_name, **options)
    )


@pytest.mark.parametrize("committed", [None, "8", "9", "10"])
@pytest.mark.parametrize("code", ["SUCCESS", "ERR_CHANNEL_INVALID"])
@pytest.mark.parametrize("target", [None, "9"])
@pytest.mark.parametrize("rejected_baseline", [None, 4, 5])
@pytest.mark.parametrize("is_last", [False, True])
def test_decision_about_one_channel(
    committed: str | None, code: str, target: str | None, rejected_baseline: int | None, is_last: bool
) -> None:
    found = status("c", committed, code, rows_error_count=5)
    position = None if committed is None else IntegerOffset.parse(committed)
    progress = None if target is None else Progress(position, IntegerOffset.parse(target))

    one = decide(found, progress, rejected_baseline=rejected_baseline, is_last=is_last)

    has_target = target is None or committed in ("9", "10")
    if rejected_baseline == 4:
        expected = CommitState.REJECTED
    elif has_target:
        expected = CommitState.COMMITTED
    elif code != "SUCCESS":
        expected = CommitState.INVALID
    else:
        expected = CommitState.STALLED if is_last else CommitState.BEHIND
    assert (one.state, one.has_target) == (expected, has_target)
    assert one.rejected == (1 if rejected_baseline == 4 else 0)


def test_decision_accepts_skipped_rows_and_leaves_time_by_default() -> None:
    found = status("c", "8", rows_error_count=5)

    one = decide(found, Progress(IntegerOffset(8), IntegerOffset(9)))

    assert (one.state, one.rejected) == (CommitState.BEHIND, 0)


@pytest.mark.parametrize(
    ("committed", "state"),
    [
        (None, WaitState.WAITING),
        ("b.log:9", WaitState.WAITING),
        ("a.log:500", WaitState.WAITING),
        ("b.log:10", WaitState.COMPLETE),
        ("b.log:11", WaitState.COMPLETE),
        ("c.log:1", WaitState.COMPLETE),
    ],
)
def test_one_channel_is_complete_at_or_past_its_target_by_the_formats_order(
    committed: str | None, state: WaitState
) -> None:
    verdict = verdict_of({"c": "b.log:10"}, status("c", committed))

    assert verdict.state is state
    assert verdict.tokens == {"c": committed}


def test_numbers_are_not_compared_as_text() -> None:
    assert verdict_of({"c": "9"}, status("c", "10"), offset_class=IntegerOffset).state is WaitState.COMPLETE
    assert verdict_of({"c": "10"}, status("c", "9"), offset_class=IntegerOffset).state is WaitState.WAITING


def test_null_is_never_complete_even_for_the_position_before_the_first_line() -> None:
    assert verdict_of({"c": "a.log:0"}, status("c", None)).state is WaitState.WAITING


def test_every_channel_has_to_commit() -> None:
    targets = {"c1": "a:5", "c2": "a:5", "c3": "a:5"}

    verdict = verdict_of(targets, status("c1", "a:5"), status("c2", "a:4"), status("c3", "a:6"))

    assert verdict.state is WaitState.WAITING
    assert (verdict.done, verdict.total) == (2, 3)
    assert str(verdict) == "2 of 3 channels committed; slowest: 'c2' committed a:4 of a:5"


def test_the_slowest_channel_is_one_without_a_token_else_the_one_with_the_smallest() -> None:
    targets = {"c1": "a:50", "c2": "a:50", "c3": "a:50"}

    with_null = verdict_of(targets, status("c1", "a:10"), status("c2", "a:9"), status("c3", None))
    without = verdict_of(targets, status("c1", "a:10"), status("c2", "a:9"), status("c3", "a:40"))

    assert with_null.slowest is not None
    assert with_null.slowest.status.channel == "c3"
    assert "committed NULL of a:50" in str(with_null)
    assert without.slowest is not None
    assert without.slowest.status.channel == "c2"


def test_channels_that_nobody_waits_for_do_not_matter() -> None:
    verdict = verdict_of({"c1": "a:1"}, status("c1", "a:1"), status("other", "rubbish", "ERR_X"))

    assert verdict.state is WaitState.COMPLETE
    assert verdict.tokens == {"c1": "a:1"}


@pytest.mark.parametrize("found", [(), (ChannelStatus.missing("c"),)], ids=["left-out", "reported-missing"])
def test_a_missing_channel_fails_with_a_remedy(found: tuple[ChannelStatus, ...]) -> None:
    verdict = verdict_of({"c": "a:1"}, *found)

    assert verdict.state is WaitState.FAILED
    assert verdict.reason is FailureReason.CHANNEL_MISSING
    assert "'c' does not exist" in verdict.message
    assert "run the load again" in verdict.message


def test_an_invalid_channel_behind_its_target_fails() -> None:
    verdict = verdict_of({"c": "a:5"}, status("c", "a:4", "ERR_CHANNEL_MUST_BE_REOPENED"))

    assert verdict.reason is FailureReason.CHANNEL_INVALID
    assert "ERR_CHANNEL_MUST_BE_REOPENED and committed only a:4" in verdict.message


def test_an_invalid_channel_that_has_its_target_is_complete() -> None:
    assert (
        verdict_of({"c": "a:5"}, status("c", "a:5", "ERR_CHANNEL_MUST_BE_REOPENED")).state
        is WaitState.COMPLETE
    )


@pytest.mark.parametrize("token", ["12", "", "a:x", "a:-1"])
def test_a_committed_token_of_another_format_fails_and_is_named(token: str) -> None:
    verdict = verdict_of({"c": "a:1"}, status("c", token))

    assert verdict.reason is FailureReason.BAD_TOKEN
    assert "channel 'c'" in verdict.message
    assert repr(token) in verdict.message
    assert "'file:line'" in verdict.message


def test_tokens_of_different_partitions_have_no_order() -> None:
    verdict = verdict_of({"c": "orders:7:10"}, status("c", "orders:8:99"), offset_class=TopicPartitionOffset)

    assert verdict.reason is FailureReason.BAD_TOKEN


class TestRejectedRows:
    BAD: ChannelStatus = status(
        "c", "a:5", rows_error_count=3, last_error_message="bad number", last_error_offset_upper_bound="a:4"
    )

    def test_do_not_matter_unless_asked_for(self) -> None:
        assert verdict_of({"c": "a:5"}, self.BAD).state is WaitState.COMPLETE

    def test_fail_a_wait_that_asks_although_the_token_is_committed(self) -> None:
        verdict = verdict_of({"c": "a:5"}, self.BAD, fail_on_rejected_rows=True)

        assert verdict.reason is FailureReason.ROWS_REJECTED
        assert "skipped 3 row(s)" in verdict.message
        assert "'a:4': bad number" in verdict.message

    def test_fail_at_once_not_only_at_the_target(self) -> None:
        assert verdict_of({"c": "a:9"}, self.BAD, fail_on_rejected_rows=True).state is WaitState.FAILED

    @pytest.mark.parametrize(("baseline", "state"), [(2, WaitState.FAILED), (3, WaitState.COMPLETE)])
    def test_count_from_the_baseline(self, baseline: int, state: WaitState) -> None:
        verdict = verdict_of(
            {"c": "a:5"}, self.BAD, fail_on_rejected_rows=True, rejected_baseline={"c": baseline}
        )

        assert verdict.state is state

    @pytest.mark.parametrize("count", [-1, "3", True, 1.5])
    def test_need_a_baseline_that_is_a_count(self, count: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"rejected_baseline of channel 'c'"):
            verdict_of({"c": "a:5"}, self.BAD, rejected_baseline={"c": count})


@pytest.mark.parametrize(
    ("targets", "remedy"),
    [
        (None, "give a mapping"),
        ([], "give a mapping"),
        ("c", "no JSON object"),
        ("[1]", "give a mapping"),
    ],
)
def test_no_target_is_an_error(targets: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"targets is .*{remedy}"):
        CommitTargets.parse(targets, "file:line")


def test_targets_and_baseline_may_be_json_text() -> None:
    parsed = CommitTargets.parse('{"c": "a:1"}', "file:line", rejected_baseline='{"c": 3}')

    assert parsed == CommitTargets.parse({"c": "a:1"}, "file:line", rejected_baseline={"c": 3})


@pytest.mark.parametrize("name", ["elastic", "c" * 256, "c\0"])
def test_a_name_that_no_channel_can_have_is_refused_before_it_is_polled(name: str) -> None:
    with pytest.raises(ConfigurationError, match="channel name"):
        CommitTargets.parse({name: "a:1"}, "file:line")


@pytest.mark.parametrize("targets", [{"c": True}, {"c": 5.0}, {"c": None}, {"": "a:1"}, {5: "a:1"}])
def test_targets_are_text(targets: Any) -> None:
    with pytest.raises(ConfigurationError, match="targets has the entry"):
        CommitTargets.parse(targets, "file:line")


def test_a_target_of_another_format_names_channel_token_and_format() -> None:
    with pytest.raises(OffsetTokenError, match=r"'c'.*'nonsense'.*'file:line'"):
        CommitTargets.parse({"c": "nonsense"}, "file:line")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=5).filter(
            lambda name: name.strip(".")
        ),
        st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)),
        min_size=1,
    )
)
def test_complete_means_exactly_that_every_channel_is(channels: dict[str, tuple[int, int | None]]) -> None:
    found = [
        status(name, None if committed is None else str(committed))
        for name, (_, committed) in channels.items()
    ]

    verdict = verdict_of(
        {name: str(target) for name, (target, _) in channels.items()}, *found, offset_class=IntegerOffset
    )

    reached = [committed is not None and committed >= target for target, committed in channels.values()]
    assert (verdict.state is WaitState.COMPLETE) == all(reached)
    assert verdict.done == sum(reached)
    assert (verdict.slowest is None) == all(reached)
