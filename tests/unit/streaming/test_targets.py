"""Targets carry a checkpoint, or a bare position and its format, and the rejected rows that were reported."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.commits import WaitState, judge
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, OffsetTokenError
from airflow_provider_snowpipe.streaming.offsets import (
    BatchRowOffset,
    FileLineOffset,
    IntegerOffset,
    LexicographicOffset,
    TopicPartitionOffset,
    UnitOffset,
    known_formats,
)
from airflow_provider_snowpipe.streaming.progress import (
    ChannelStatus,
    ChannelTarget,
    CommitTargets,
    all_targets,
)
from tests.checkpoints import token
from tests.refusals import refused

NUMBERS = st.integers(0, 1200)
FILES = st.sampled_from(["9", "10", "a.log", "a.ndjson", "log:7", "messages_10.log", "messages_9.log"])
POSITIONS = {
    "integer": st.builds(IntegerOffset, NUMBERS),
    "file:line": st.builds(FileLineOffset, FILES, NUMBERS),
    "unit/file:line": st.builds(UnitOffset, st.integers(1, 1200), FILES, NUMBERS),
    "topic:partition:offset": st.builds(TopicPartitionOffset, st.just("orders"), st.just(7), NUMBERS),
    "batch:row": st.builds(BatchRowOffset, NUMBERS, NUMBERS),
    "lexicographic": st.builds(LexicographicOffset, st.sampled_from(["2013-01-01", "2013-01-02", "a", "b"])),
}


def wait(targets, committed, **fields):
    return judge({"c": ChannelStatus("c", "SUCCESS", committed, **fields)}, targets).state


def carried(*target, **options):
    return CommitTargets.parse({"c": ChannelTarget(*target).to_json()}, **options)


def test_checkpoint_names_its_positions_itself_and_a_bare_one_is_of_the_named_format():
    for targets, later, earlier in [
        (CommitTargets.parse({"c": token(9)}), token(10), token(8)),
        (CommitTargets.parse({"c": token("b:9")}), token("b:10"), token("a:10")),
        (carried("9", "integer"), "10", "8"),
        (carried("9", "integer"), token(10), token(8)),
        (CommitTargets.parse({"c": "9"}, "integer"), "10", "8"),
        (CommitTargets.parse({"c": token(9)}, "integer"), "10", "8"),
        (carried("10:1", "file:line"), "9:5", "10:0"),
    ]:
        assert [wait(targets, one) for one in (later, earlier)] == [WaitState.COMPLETE, WaitState.WAITING]
    formats = [("9", "integer"), (token("a:9"), None)]
    assert [carried(*target).offset_format for target in formats] == ["integer", "file:line"]
    both = {"a": carried("9", "integer").targets["c"].to_json(), "b": token("a:9")}
    assert CommitTargets.parse(both).offset_format is None


def test_targets_survive_json():
    target = ChannelTarget("a.log:5", "file:line", 3, 120)

    text = json.dumps({"c": target.to_json()})

    assert ChannelTarget.read("c", json.loads(text)["c"]) == target
    assert CommitTargets.parse(text).targets["c"].errors == 3


def test_targets_of_several_loads_are_those_of_all_their_channels():
    loads = [{"a": "1", "b": "2"}, {"c": "3"}]

    assert all_targets(loads) == all_targets(json.dumps(loads)) == {"a": "1", "b": "2", "c": "3"}
    assert all_targets([{"a": "1"}, {"a": "1"}]) == {"a": "1"}
    refused(ConfigurationError, all_targets, [[{"a": "1"}, {"a": "2"}]], "channel 'a': '1' and '2'")
    refused(ConfigurationError, all_targets, [5, "text", b"bytes"], "targets")


def test_value_that_is_no_target_is_refused_and_named():
    assert ChannelTarget.read("c", 120455) == ChannelTarget("120455")  # a template made it a number
    refused(ConfigurationError, lambda value: ChannelTarget.read("c", value), [True], "'c': True")
    wrong = [5, None, {}, {"token": 5}, {"token": "a:1", "rows": -1}, {"token": "a:1", "more": 1}, ["a:1"]]
    refused(ConfigurationError, lambda one: CommitTargets.parse({"c": one}, "file:line"), wrong, "'c'")


def test_format_of_a_bare_target_is_named_and_never_guessed():
    bare = ["120455", "messages_1.log:20", "17:5000", "orders:7:9", "3/a.ndjson:600"]
    refused(OffsetTokenError, lambda one: CommitTargets.parse({"c": one}), bare, "offset_format")
    refused(OffsetTokenError, lambda one: CommitTargets.parse({"c": one}, "integer"), bare[1:], "'integer'")
    of_files = [token("a:9")]
    refused(OffsetTokenError, lambda one: CommitTargets.parse({"c": one}, "integer"), of_files, "'integer'")


def test_committed_token_that_is_not_of_the_targets_positions_fails_the_wait():
    intent = f"{token('a:9')}.2-10-20260301-abcdef012345"
    for target, committed in [
        (token("a:9"), "a:9"), (token("a:9"), token(9)), (token("a:9"), "x"), (token("a:9"), intent),
    ]:  # fmt: skip
        verdict = judge({"c": ChannelStatus("c", "SUCCESS", committed)}, CommitTargets.parse({"c": target}))
        owed_now = WaitState.COMPLETE if committed == "a:9" else WaitState.FAILED
        assert verdict.state is owed_now, committed
    for target in ("2013-01-01", "a"):
        bare = CommitTargets.parse({"c": target}, "lexicographic")
        assert wait(bare, intent) is WaitState.FAILED
        assert wait(bare, token("a:1")) is WaitState.FAILED


@given(st.data())
def test_nothing_succeeds_early_whatever_format_the_wait_was_given(data):
    """Checkpoints of one kind, and a wait that was given another kind, or none, or the checkpoint."""
    written = data.draw(st.sampled_from(sorted(POSITIONS)), "format of the tokens")
    committed, target = data.draw(st.tuples(POSITIONS[written], POSITIONS[written]), "positions")
    other = data.draw(st.sampled_from([None, *sorted(POSITIONS)]), "format given")
    owed = token(target) if data.draw(st.booleans(), "target is a checkpoint") else str(target)
    try:
        targets = CommitTargets.parse({"c": owed}, other)
    except OffsetTokenError:
        return

    if wait(targets, token(committed)) is WaitState.COMPLETE:
        assert committed >= target


def test_every_format_is_in_the_property():
    assert known_formats() - set(POSITIONS) == {"batch:row/digest"}


def test_rejected_rows_count_from_those_that_were_reported():
    def state(count, errors=2, **options):
        return wait(carried("5", "integer", errors, **options), "5", rows_error_count=count)

    assert [state(2), state(3)] == [WaitState.COMPLETE, WaitState.FAILED]
    accepted = [state(9, None), state(9, fail_on_rejected_rows=False)]
    assert accepted == [WaitState.COMPLETE] * 2


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
