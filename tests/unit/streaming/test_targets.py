"""Targets carry the format of their token, the rejected rows of before, and the rows of the run."""

from __future__ import annotations

import itertools
import json
import logging
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.commits import FailureReason, WaitState, judge
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    Offset,
    TopicPartitionOffset,
    VerifiedFileLineOffset,
    known_formats,
)
from airflow_provider_snowpipe.streaming.progress import (
    ChannelStatus,
    ChannelTarget,
    CommitTargets,
    all_targets,
)

DIGESTS = st.text("0123456789abcdef", min_size=16, max_size=16)
NUMBERS = st.integers(0, 1200)
FILES = st.sampled_from(["9", "10", "a.log", "a.ndjson", "log:7", "messages_10.log", "messages_9.log"])
POSITIONS: dict[str, st.SearchStrategy[Offset]] = {
    "integer": st.builds(IntegerOffset, NUMBERS),
    "file:line": st.builds(FileLineOffset, FILES, NUMBERS),
    "file:line/digest": st.builds(VerifiedFileLineOffset, FILES, NUMBERS, DIGESTS),
    "topic:partition:offset": st.builds(TopicPartitionOffset, st.just("orders"), st.just(7), NUMBERS),
    "batch:row": st.builds(BatchRowOffset, NUMBERS, NUMBERS),
    "lexicographic": st.builds(LexicographicOffset, st.sampled_from(["2013-01-01", "2013-01-02", "a", "b"])),
}


def wait(targets: CommitTargets, committed: str | None, **fields: int) -> WaitState:
    return judge({"c": ChannelStatus("c", "SUCCESS", committed, **fields)}, targets).state


def test_carried_format_is_used() -> None:
    targets = CommitTargets.parse({"c": ChannelTarget("9", "integer").to_json()})

    assert wait(targets, "10") is WaitState.COMPLETE
    assert wait(targets, "8") is WaitState.WAITING
    assert targets.offset_format == "integer"


def test_digits_that_a_template_made_a_number_are_a_token() -> None:
    assert ChannelTarget.given("c", 120455, "integer") == ChannelTarget("120455", "integer")
    with pytest.raises(ConfigurationError, match="'c': True"):
        ChannelTarget.given("c", True, "integer")


def test_targets_of_several_loads_are_those_of_all_their_channels() -> None:
    loads = [{"a": "1", "b": "2"}, {"c": "3"}]

    assert all_targets(loads) == all_targets(json.dumps(loads)) == {"a": "1", "b": "2", "c": "3"}
    assert all_targets([{"a": "1"}, {"a": "1"}]) == {"a": "1"}
    with pytest.raises(ConfigurationError, match="two entries of channel 'a': '1' and '2'"):
        all_targets([{"a": "1"}, {"a": "2"}])


@pytest.mark.parametrize("given", [5, "text", b"bytes"])
def test_what_is_no_mapping_and_no_list_of_them_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="targets"):
        all_targets(given)


def test_targets_survive_json() -> None:
    target = ChannelTarget("a.log:5", "file:line", 3, 120)

    text = json.dumps({"c": target.to_json()})

    assert ChannelTarget.read("c", json.loads(text)["c"]) == target
    assert CommitTargets.parse(text).rejected_baseline == {"c": 3}


def test_format_that_contradicts_the_carried_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'file:line'"):
        CommitTargets.parse({"c": ChannelTarget("9", "integer").to_json()}, "file:line")


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        {},
        {"token": "a:1"},
        {"token": 5, "offset_format": "file:line"},
        {"token": "a:1", "offset_format": None},
        {"token": "a:1", "offset_format": "file:line", "rows": -1},
        {"token": "a:1", "offset_format": "file:line", "more": 1},
        ["a:1"],
    ],
)
def test_value_that_is_no_target_is_refused_and_named(value: object) -> None:
    with pytest.raises(ConfigurationError, match="'c'"):
        CommitTargets.parse({"c": value}, "file:line")


class TestPlainTokens:
    def test_nobody_guesses_their_format(self) -> None:
        with pytest.raises(ConfigurationError, match="offset_format"):
            CommitTargets.parse({"c": "messages_1.log:20"})

    def test_order_that_another_format_contradicts_fails_the_wait(self) -> None:
        verdict = judge(
            {"c": ChannelStatus("c", "SUCCESS", "9:5")}, CommitTargets.parse({"c": "10:1"}, "file:line")
        )

        assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.BAD_TOKEN)
        assert "batch:row" in verdict.message

    def test_same_order_of_a_carried_format_is_trusted(self) -> None:
        targets = CommitTargets.parse({"c": ChannelTarget("10:1", "file:line").to_json()})

        assert wait(targets, "9:5") is WaitState.COMPLETE


def test_format_that_the_author_names_is_compared_with_others_only_at_completion() -> None:
    targets = CommitTargets.parse({"c": "a:10"}, "lexicographic")

    assert wait(targets, "a:10") is WaitState.COMPLETE, "in every order"
    assert wait(targets, "a:09") is WaitState.WAITING
    assert wait(targets, "a:1") is WaitState.WAITING
    assert wait(targets, "a:9") is WaitState.FAILED


def test_file_line_refuses_a_digest() -> None:
    with pytest.raises(OffsetTokenError, match="file:line"):
        FileLineOffset.parse("a.ndjson@9f3a1200c4d5e6f7:600", channel="c")


@pytest.mark.parametrize("other", ["topic:partition:offset", "lexicographic"])
def test_other_partitions_token_fails_the_wait(other: str) -> None:
    targets = CommitTargets.parse({"c": "orders:10:500"}, other)

    assert wait(targets, "orders:7:900") is WaitState.FAILED


def test_numbers_of_unequal_length_as_texts_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    target = f"1{uuid4().int}"  # The warning comes once a process, this test can come twice.
    targets = CommitTargets.parse({"c": ChannelTarget(target, "lexicographic").to_json()})
    with caplog.at_level(logging.WARNING):
        assert [wait(targets, "99"), wait(targets, "99")] == [WaitState.COMPLETE] * 2

    assert caplog.text.count("unequal length") == 1


@given(st.data())
def test_nothing_succeeds_early_whatever_format_the_wait_was_given(data: st.DataObject) -> None:
    """Tokens of one format, a wait that was given another, or got the targets of the load."""
    written = data.draw(st.sampled_from(sorted(POSITIONS)), "format of the tokens")
    committed, target = data.draw(st.tuples(POSITIONS[written], POSITIONS[written]), "positions")
    other = data.draw(st.sampled_from(["carried", *sorted(POSITIONS)]), "format given")
    value = ChannelTarget(str(target), written).to_json() if other == "carried" else str(target)
    try:
        targets = CommitTargets.parse({"c": value}, None if other == "carried" else other)
    except OffsetTokenError:
        return

    if wait(targets, str(committed)) is WaitState.COMPLETE:
        assert committed >= target


def test_every_format_is_in_the_property() -> None:
    assert known_formats() - set(POSITIONS) == {
        "batch:row/digest",
        "integer/partitions",
        "lexicographic/partitions",
    }


class TestRejectedRows:
    TARGETS = CommitTargets.parse({"c": ChannelTarget("5", "integer", rejected_baseline=2).to_json()})

    @pytest.mark.parametrize(("count", "state"), [(2, WaitState.COMPLETE), (3, WaitState.FAILED)])
    def test_fail_a_wait_by_default_where_the_target_has_a_baseline(
        self, count: int, state: WaitState
    ) -> None:
        assert wait(self.TARGETS, "5", rows_error_count=count) is state

    def test_are_accepted_where_the_load_accepted_them(self) -> None:
        targets = CommitTargets.parse({"c": ChannelTarget("5", "integer").to_json()})

        assert wait(targets, "5", rows_error_count=9) is WaitState.COMPLETE

    def test_are_accepted_on_demand(self) -> None:
        targets = CommitTargets.parse(
            {"c": ChannelTarget("5", "integer", rejected_baseline=2).to_json()}, fail_on_rejected_rows=False
        )

        assert wait(targets, "5", rows_error_count=9) is WaitState.COMPLETE

    def test_count_from_a_baseline_that_the_author_gives(self) -> None:
        targets = CommitTargets.parse(
            {"c": ChannelTarget("5", "integer", rejected_baseline=2).to_json()}, rejected_baseline={"c": 9}
        )

        assert wait(targets, "5", rows_error_count=9) is WaitState.COMPLETE


@pytest.mark.parametrize("committed", [None, "5"])
def test_channel_that_owes_nothing_is_complete(committed: str | None) -> None:
    targets = CommitTargets.parse({"c": ChannelTarget(None, "integer", 0, 0).to_json()})

    assert wait(targets, committed) is WaitState.COMPLETE


def test_without_a_channel_there_is_nothing_to_wait_for() -> None:
    assert judge({}, CommitTargets.parse({})).state is WaitState.COMPLETE


def test_formats_of_several_loads_may_be_mixed() -> None:
    targets = CommitTargets.parse(
        {"a": ChannelTarget("9", "integer").to_json(), "b": ChannelTarget("a.log:5", "file:line").to_json()}
    )
    for tokens in itertools.product(["9", None], ["a.log:5", "a.log:4"]):
        found = dict(zip("ab", tokens, strict=True))
        verdict = judge({name: ChannelStatus(name, "SUCCESS", one) for name, one in found.items()}, targets)
        assert (verdict.state is WaitState.COMPLETE) == (tokens == ("9", "a.log:5"))
