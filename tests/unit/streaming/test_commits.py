"""Complete, waiting or failed: the decision, for every kind of status, and the verdict over many channels."""

import itertools

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
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets, Progress
from tests.checkpoints import binding_of, token
from tests.refusals import refused

REOPEN = "ERR_CHANNEL_MUST_BE_REOPENED"


def status(name, committed, code="SUCCESS", **fields):
    return ChannelStatus(channel=name, code=code, committed=committed, **fields)


def verdict_of(targets, *found, format_name="file:line", **options):
    return judge({s.channel: s for s in found}, CommitTargets.parse(targets, format_name, **options))


def integers(targets, *found, **options):
    return verdict_of(targets, *found, format_name="integer", **options)


def test_decision_about_one_channel():
    for committed, code, target, baseline, is_last in itertools.product(
        [None, "8", "9", "10"], ["SUCCESS", "ERR_CHANNEL_INVALID"], [None, "9"], [None, 4, 5], [False, True]
    ):
        found = status("c", committed, code, rows_error_count=5)
        position = None if committed is None else IntegerOffset.parse(committed)
        progress = None if target is None else Progress(position, IntegerOffset.parse(target))

        one = decide(found, progress, rejected_baseline=baseline, is_last=is_last)

        has_target = target is None or committed in ("9", "10")
        if baseline == 4:
            expected = CommitState.REJECTED
        elif has_target:
            expected = CommitState.COMMITTED
        elif code != "SUCCESS":
            expected = CommitState.INVALID
        else:
            expected = CommitState.STALLED if is_last else CommitState.BEHIND
        assert (one.state, one.has_target) == (expected, has_target)
        assert one.rejected == (1 if baseline == 4 else 0)


def test_decision_accepts_skipped_rows_and_leaves_time_by_default():
    found = status("c", "8", rows_error_count=5)

    one = decide(found, Progress(IntegerOffset(8), IntegerOffset(9)))

    assert (one.state, one.rejected) == (CommitState.BEHIND, 0)


def test_one_channel_is_complete_at_or_past_its_target_by_the_formats_order():
    for committed, state in [
        (None, WaitState.WAITING),
        ("b.log:9", WaitState.WAITING),
        ("a.log:500", WaitState.WAITING),
        ("b.log:10", WaitState.COMPLETE),
        ("b.log:11", WaitState.COMPLETE),
        ("c.log:1", WaitState.COMPLETE),
    ]:
        verdict = verdict_of({"c": "b.log:10"}, status("c", committed))
        assert (verdict.state, verdict.tokens) == (state, {"c": committed})
    assert verdict_of({"c": "a.log:0"}, status("c", None)).state is WaitState.WAITING
    assert integers({"c": "9"}, status("c", "10")).state is WaitState.COMPLETE
    assert integers({"c": "10"}, status("c", "9")).state is WaitState.WAITING


def test_every_channel_has_to_commit_and_others_do_not_matter():
    complete = integers({"a": "5", "b": "5"}, status("a", "7"), status("b", "5"), status("x", "!", "ERR_X"))
    behind = verdict_of(
        {"c1": "a:5", "c2": "a:5", "c3": "a:5"}, status("c1", "a:5"), status("c2", "a:4"), status("c3", "a:6")
    )

    assert complete == CommitVerdict(WaitState.COMPLETE, {"a": "7", "b": "5"}, done=2, total=2)
    assert str(complete) == "2 of 2 channels committed"
    assert (behind.state, behind.done, behind.total) == (WaitState.WAITING, 2, 3)
    assert str(behind) == "2 of 3 channels committed; slowest: 'c2' committed a:4 of a:5"


def test_the_slowest_channel_is_the_first_without_a_token_else_with_the_smallest():
    def slowest(*tokens, target="a:50", format_name="file:line"):
        found = [status(name, token) for name, token in zip("abc", tokens, strict=False)]
        verdict = verdict_of({one.channel: target for one in found}, *found, format_name=format_name)
        return str(verdict.slowest)

    assert slowest("a:10", "a:9", None) == "'c' committed NULL of a:50"
    assert slowest("a:10", "a:9", "a:40") == "'b' committed a:9 of a:50"
    assert slowest("8", "7", "7", target="9", format_name="integer") == "'b' committed 7 of 9"
    targets = {"a": "10", "b": "11", "c": "12"}
    verdict = integers(targets, status("a", "9"), status("b", "7"), status("c", "8"))
    assert (str(verdict.slowest), verdict.done, verdict.total) == ("'b' committed 7 of 11", 0, 3)
    for order in (1, -1):  # formats have no order among each other: the first one's counts
        mixed = CommitTargets.parse(dict([("a", token("f:9")), ("b", token(8))][::order]))
        found = [status("a", token("f:2")), status("b", token(3))][::order]
        verdict = judge({one.channel: one for one in found}, mixed)
        assert verdict.slowest.status.channel == found[0].channel


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (status("b", "x"), FailureReason.BAD_TOKEN, ["'x'", "'integer'"]),
        (status("b", ""), FailureReason.BAD_TOKEN, ["''", "'integer'"]),
        (ChannelStatus.missing("b"), FailureReason.CHANNEL_MISSING, ["does not exist", "run the load again"]),
        (status("b", "4", REOPEN), FailureReason.CHANNEL_INVALID, [f"{REOPEN} and committed only 4"]),
        (status("b", None, REOPEN), FailureReason.CHANNEL_INVALID, ["NULL"]),
        (
            status("b", "9", rows_error_count=3, last_error_message="bad", last_error_offset_upper_bound="4"),
            FailureReason.ROWS_REJECTED,
            ["skipped 3 rows", "'4': bad"],
        ),
    ],
)
def test_failed_verdict_has_tokens_totals_and_its_message(found, reason, words):
    verdict = integers({"a": "5", "b": "5"}, status("a", "7"), found, fail_on_rejected_rows=True)

    assert (verdict.state, verdict.reason) == (WaitState.FAILED, reason)
    assert (verdict.done, verdict.total, verdict.slowest) == (0, 2, None)
    assert verdict.tokens == {"a": "7", "b": found.committed}
    assert str(verdict) == verdict.message
    assert not [word for word in ["'b'", *words] if word not in verdict.message]


def test_a_channel_that_no_answer_has_is_missing_and_an_invalid_one_with_its_target_is_complete():
    assert verdict_of({"c": "a:1"}).reason is FailureReason.CHANNEL_MISSING
    assert verdict_of({"c": "a:5"}, status("c", "a:5", REOPEN)).state is WaitState.COMPLETE


def test_first_failure_in_the_order_of_the_targets_is_reported():
    failing = (status("a", "x"), ChannelStatus.missing("b"))

    assert integers({"a": "5", "b": "5"}, *failing).reason is FailureReason.BAD_TOKEN
    assert integers({"b": "5", "a": "5"}, *failing).reason is FailureReason.CHANNEL_MISSING


def test_tokens_of_different_partitions_have_no_order():
    verdict = verdict_of(
        {"c": "orders:7:10"}, status("c", "orders:8:99"), format_name="topic:partition:offset"
    )

    assert verdict.reason is FailureReason.BAD_TOKEN


@pytest.mark.parametrize(
    ("known", "fails", "errors", "rejected"),
    [
        (None, None, 3, 0),
        (None, True, 3, 3),
        (2, None, 3, 1),
        (3, None, 3, 0),
        (0, None, 3, 3),
        (0, False, 3, 0),
        (2, True, 3, 1),
        # A channel counts over its life, so that a smaller number is that of another one.
        (3, True, 0, 0),
        (3, True, 2, 2),
    ],
)
def test_rejected_rows_that_were_not_reported_fail_a_wait_that_asks_at_once(known, fails, errors, rejected):
    for target in ("5", "9"):
        owed = {"c": {"token": target, "errors": known}}
        verdict = integers(owed, status("c", "5", rows_error_count=errors), fail_on_rejected_rows=fails)
        assert verdict.reason is (FailureReason.ROWS_REJECTED if rejected else None)
        assert not rejected or f"skipped {counted(rejected, 'row')}" in verdict.message


def test_a_checkpoint_shows_how_many_rejected_rows_were_reported():
    targets = CommitTargets.parse({"c": token("a:5", errors=2)}, fail_on_rejected_rows=True)

    for errors, state in {2: WaitState.COMPLETE, 3: WaitState.FAILED}.items():
        found = status("c", token("a:5", errors=2), rows_error_count=errors)
        assert judge({"c": found}, targets).state is state
    assert CommitTargets.parse({"c": token("a:5", errors=2)}).targets["c"].errors is None


@pytest.mark.parametrize("other", [binding_of("q"), binding_of(reading="csv")], ids=str)
def test_a_channel_of_another_source_than_its_target_is_an_error_and_no_wait(other):
    targets = {"c": token("a:5")}

    for position in ("a:4", "a:5", "b:1"):
        verdict = verdict_of(targets, status("c", token(position, binding=other)), format_name=None)
        assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.SOURCE_CHANGED)
        assert "'c'" in verdict.message
    assert verdict_of(targets, status("c", None), format_name=None).state is WaitState.WAITING
    assert verdict_of(targets, status("c", token("a:5")), format_name=None).state is WaitState.COMPLETE


@pytest.mark.parametrize("counted", [3, 5])
def test_a_channel_that_counts_other_rows_than_its_checkpoint_fails_a_wait_that_is_to(counted, caplog):
    found = status("c", token("a:5", rows=4), rows_inserted=counted - 1, rows_error_count=1)
    targets = {"c": token("a:5")}

    verdict = verdict_of(targets, found, format_name=None, on_imbalance="fail")
    assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.IMBALANCE)
    assert "'c'" in verdict.message
    behind = verdict_of({"c": token("a:6")}, found, format_name=None, on_imbalance="fail")
    assert behind.state is WaitState.WAITING
    assert "'c'" not in caplog.text
    assert verdict_of(targets, found, format_name=None).state is WaitState.COMPLETE
    assert "'c'" in caplog.text


def test_targets_are_a_mapping_of_channel_names_to_texts_or_its_json():
    def parse(targets):
        return CommitTargets.parse(targets, "file:line")

    assert parse('{"c": "a:1"}') == parse({"c": "a:1"}) == parse([{"c": "a:1"}])
    refused(ConfigurationError, parse, [None, [], "[1]"], "targets is", "give a mapping")
    refused(ConfigurationError, parse, ["c"], "targets is", "no JSON object")
    refused(ConfigurationError, parse, [{n: "a:1"} for n in ("elastic", "c" * 256, "c\0")], "channel name")
    wrong = [{"c": True}, {"c": 5.0}, {"c": None}, {"": "a:1"}, {5: "a:1"}]
    refused(ConfigurationError, parse, wrong, "targets has the entry")
    refused(OffsetTokenError, parse, [{"c": "nonsense"}], "'c'", "'nonsense'", "'file:line'")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=5).filter(
            lambda name: name.strip(".")
        ),
        st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)),
        min_size=1,
    )
)
def test_complete_means_exactly_that_every_channel_is(channels):
    found = [
        status(name, None if committed is None else str(committed))
        for name, (_, committed) in channels.items()
    ]

    verdict = integers({name: str(target) for name, (target, _) in channels.items()}, *found)

    reached = [committed is not None and committed >= target for target, committed in channels.values()]
    assert (verdict.state is WaitState.COMPLETE) == all(reached)
    assert verdict.done == sum(reached)
    assert (verdict.slowest is None) == all(reached)
