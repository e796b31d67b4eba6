"""Targets carry the format of their token, the rejected rows of before, and the rows of the run."""

import itertools
import json
import logging
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.commits import FailureReason, WaitState, judge
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
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
from tests.refusals import refused

DIGESTS = st.text("0123456789abcdef", min_size=16, max_size=16)
NUMBERS = st.integers(0, 1200)
FILES = st.sampled_from(["9", "10", "a.log", "a.ndjson", "log:7", "messages_10.log", "messages_9.log"])
POSITIONS = {
    "integer": st.builds(IntegerOffset, NUMBERS),
    "file:line": st.builds(FileLineOffset, FILES, NUMBERS),
    "file:line/digest": st.builds(VerifiedFileLineOffset, FILES, NUMBERS, DIGESTS),
    "topic:partition:offset": st.builds(TopicPartitionOffset, st.just("orders"), st.just(7), NUMBERS),
    "batch:row": st.builds(BatchRowOffset, NUMBERS, NUMBERS),
    "lexicographic": st.builds(LexicographicOffset, st.sampled_from(["2013-01-01", "2013-01-02", "a", "b"])),
}


def wait(targets, committed, **fields):
    return judge({"c": ChannelStatus("c", "SUCCESS", committed, **fields)}, targets).state


def carried(*target, **options):
    return CommitTargets.parse({"c": ChannelTarget(*target).to_json()}, **options)


def test_carried_format_is_used_and_none_may_contradict_it():
    targets = carried("9", "integer")

    assert [wait(targets, token) for token in ("10", "8")] == [WaitState.COMPLETE, WaitState.WAITING]
    assert targets.offset_format == "integer"
    assert wait(carried("10:1", "file:line"), "9:5") is WaitState.COMPLETE
    refused(ConfigurationError, lambda name: carried("9", "integer", offset_format=name), ["file:line"])


def test_targets_survive_json():
    target = ChannelTarget("a.log:5", "file:line", 3, 120)

    text = json.dumps({"c": target.to_json()})

    assert ChannelTarget.read("c", json.loads(text)["c"]) == target
    assert CommitTargets.parse(text).rejected_baseline == {"c": 3}


def test_targets_of_several_loads_are_those_of_all_their_channels():
    loads = [{"a": "1", "b": "2"}, {"c": "3"}]

    assert all_targets(loads) == all_targets(json.dumps(loads)) == {"a": "1", "b": "2", "c": "3"}
    assert all_targets([{"a": "1"}, {"a": "1"}]) == {"a": "1"}
    refused(ConfigurationError, all_targets, [[{"a": "1"}, {"a": "2"}]], "channel 'a': '1' and '2'")
    refused(ConfigurationError, all_targets, [5, "text", b"bytes"], "targets")


def test_value_that_is_no_target_is_refused_and_named():
    as_number = CommitTargets.parse({"c": 120455}, "integer")  # a template made it a number
    assert wait(as_number, "120455") is WaitState.COMPLETE
    refused(ConfigurationError, lambda value: ChannelTarget.read("c", value), [True], "'c': True")
    whole = {"token": "a:1", "offset_format": "file:line"}
    wrong = [None, {}, {"token": "a:1"}, {**whole, "token": 5}, {**whole, "rows": -1}, {**whole, "more": 1}]
    wrong += [["a:1"], {**whole, "offset_format": None}]
    refused(ConfigurationError, lambda one: CommitTargets.parse({"c": one}, "file:line"), wrong, "'c'")


def test_nobody_guesses_the_format_of_a_bare_token():
    tokens = ["messages_1.log:20", "120455", "17:5000", "orders:7:9", "2013-01-01"]
    refused(ConfigurationError, lambda one: CommitTargets.parse({"c": one}), tokens, "'c'", "offset_format")


def test_order_that_another_format_contradicts_fails_the_wait():
    found = {"c": ChannelStatus("c", "SUCCESS", "9:5")}
    verdict = judge(found, CommitTargets.parse({"c": "10:1"}, "file:line"))

    assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.BAD_TOKEN)
    assert not [word for word in ("'c'", "'file:line'", "'batch:row'") if word not in verdict.message]
    for other in ("topic:partition:offset", "lexicographic"):
        targets = CommitTargets.parse({"c": "orders:10:500"}, other)
        assert wait(targets, "orders:7:900") is WaitState.FAILED


def test_format_that_the_author_names_is_compared_with_others_only_at_completion():
    targets = CommitTargets.parse({"c": "a:10"}, "lexicographic")

    assert wait(targets, "a:10") is WaitState.COMPLETE, "in every order"
    assert wait(targets, "a:09") is WaitState.WAITING
    assert wait(targets, "a:1") is WaitState.WAITING
    assert wait(targets, "a:9") is WaitState.FAILED


def test_file_line_refuses_a_digest():
    token = "a.ndjson@9f3a1200c4d5e6f7:600"
    refused(OffsetTokenError, lambda text: FileLineOffset.parse(text, channel="c"), [token], "file:line")


def test_numbers_of_unequal_length_as_texts_are_warned_of_once(caplog):
    # The warning comes once a process, this test can come twice.
    targets = carried(f"1{uuid4().int}", "lexicographic")
    with caplog.at_level(logging.WARNING):
        assert [wait(targets, "99"), wait(targets, "99")] == [WaitState.COMPLETE] * 2

    assert caplog.text.count("unequal length") == 1
    assert "channel 'c'" in caplog.text


@given(st.data())
def test_nothing_succeeds_early_whatever_format_the_wait_was_given(data):
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


def test_every_format_is_in_the_property():
    others = {"batch:row/digest", "integer/partitions", "lexicographic/partitions"}
    assert known_formats() - set(POSITIONS) == others


def test_rejected_rows_count_from_the_baseline_that_is_carried_or_that_the_author_gives():
    def state(count, baseline=2, **options):
        return wait(carried("5", "integer", baseline, **options), "5", rows_error_count=count)

    assert [state(2), state(3)] == [WaitState.COMPLETE, WaitState.FAILED]
    accepted = [
        state(9, None),
        state(9, fail_on_rejected_rows=False),
        state(9, rejected_baseline={"c": 9}),
    ]
    assert accepted == [WaitState.COMPLETE] * 3


def test_what_owes_nothing_is_complete():
    for committed in (None, "5"):
        assert wait(carried(None, "integer", 0, 0), committed) is WaitState.COMPLETE
    assert judge({}, CommitTargets.parse({})).state is WaitState.COMPLETE


def test_formats_of_several_loads_may_be_mixed():
    targets = CommitTargets.parse(
        {"a": ChannelTarget("9", "integer").to_json(), "b": ChannelTarget("a.log:5", "file:line").to_json()}
    )
    for tokens in itertools.product(["9", None], ["a.log:5", "a.log:4"]):
        found = dict(zip("ab", tokens, strict=True))
        verdict = judge({name: ChannelStatus(name, "SUCCESS", one) for name, one in found.items()}, targets)
        assert (verdict.state is WaitState.COMPLETE) == (tokens == ("9", "a.log:5"))
