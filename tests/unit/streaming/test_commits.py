"""Complete, waiting or failed: of one channel, of many, and over many polls."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming import errors, offsets
from airflow_provider_snowpipe.streaming.commits import (
    CommitState,
    CommitVerdict,
    CommitWatch,
    FailureReason,
    PolledStatuses,
    RetryBudget,
    WaitState,
    decide,
    judge,
    poll_statuses,
)
from airflow_provider_snowpipe.streaming.names import counted
from airflow_provider_snowpipe.streaming.progress import (
    ChannelStatus,
    ChannelTarget,
    CommitTargets,
    Progress,
    all_targets,
)
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
        position = None if committed is None else offsets.IntegerOffset.parse(committed)
        progress = None if target is None else Progress(position, offsets.IntegerOffset.parse(target))

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
    default = decide(
        status("c", "8", rows_error_count=5), Progress(offsets.IntegerOffset(8), offsets.IntegerOffset(9))
    )
    assert (default.state, default.rejected) == (CommitState.BEHIND, 0)


class TestVerdict:
    def test_every_channel_has_to_commit_and_others_do_not_matter(self):
        others = (status("b", "5"), status("x", "!", "ERR_X"))
        complete = integers({"a": "5", "b": "5"}, status("a", "7"), *others)
        three = {"c1": "a:5", "c2": "a:5", "c3": "a:5"}
        behind = verdict_of(three, status("c1", "a:5"), status("c2", "a:4"), status("c3", "a:6"))
        assert complete == CommitVerdict(WaitState.COMPLETE, {"a": "7", "b": "5"}, done=2, total=2)
        assert str(complete) == "2 of 2 channels committed"
        assert (behind.state, behind.done, behind.total) == (WaitState.WAITING, 2, 3)
        assert str(behind) == "2 of 3 channels committed; slowest: 'c2' committed a:4 of a:5"
        assert verdict_of({"c": "a:0"}, status("c", None)).state is WaitState.WAITING
        assert verdict_of({"c": "a:5"}, status("c", "a:5", REOPEN)).state is WaitState.COMPLETE
        assert judge({}, CommitTargets.parse({})).state is WaitState.COMPLETE

    def test_slowest_is_the_one_with_the_lowest_token_of_the_first_format(self):
        targets = {"a": "10", "b": "11", "c": "12"}
        verdict = integers(targets, status("a", "9"), status("b", "7"), status("c", "8"))
        assert (str(verdict.slowest), verdict.done, verdict.total) == ("'b' committed 7 of 11", 0, 3)
        verdict = integers(targets, status("a", "9"), status("b", None), status("c", "8"))
        assert str(verdict.slowest) == "'b' committed NULL of 11"
        for order in (1, -1):  # formats have no order among each other
            mixed = CommitTargets.parse(dict([("a", token("f:9")), ("b", token(8))][::order]))
            found = [status("a", token("f:2")), status("b", token(3))][::order]
            verdict = judge({one.channel: one for one in found}, mixed)
            assert verdict.slowest.status.channel == found[0].channel

    def test_that_failed_has_tokens_totals_and_its_message(self):
        skipped = {"rows_error_count": 3, "last_error_message": "bad", "last_error_offset_upper_bound": "4"}
        for found, reason, words in [
            (status("b", "x"), FailureReason.BAD_TOKEN, ["'x'", "'integer'"]),
            (status("b", ""), FailureReason.BAD_TOKEN, ["''", "'integer'"]),
            (ChannelStatus.missing("b"), FailureReason.CHANNEL_MISSING, ["does not exist", "run the load"]),
            (status("b", "4", REOPEN), FailureReason.CHANNEL_INVALID, [f"{REOPEN} and committed only 4"]),
            (status("b", None, REOPEN), FailureReason.CHANNEL_INVALID, ["NULL"]),
            (status("b", "9", **skipped), FailureReason.ROWS_REJECTED, ["skipped 3 rows", "'4': bad"]),
        ]:
            verdict = integers({"a": "5", "b": "5"}, status("a", "7"), found, fail_on_rejected_rows=True)

            assert (verdict.state, verdict.reason) == (WaitState.FAILED, reason)
            assert (verdict.done, verdict.total, verdict.slowest) == (0, 2, None)
            assert verdict.tokens == {"a": "7", "b": found.committed}
            assert str(verdict) == verdict.message
            assert not [word for word in ["'b'", *words] if word not in verdict.message]
        failing = (status("a", "x"), ChannelStatus.missing("b"))
        assert integers({"a": "5", "b": "5"}, *failing).reason is FailureReason.BAD_TOKEN
        assert integers({"b": "5", "a": "5"}, *failing).reason is FailureReason.CHANNEL_MISSING
        assert verdict_of({"c": "a:1"}).reason is FailureReason.CHANNEL_MISSING

    def test_counts_rejected_rows_that_were_not_reported_and_fails_at_once_if_it_is_to(self):
        for known, fails, counts, rejected in [
            (None, None, 3, 0),
            (None, True, 3, 3),
            (2, None, 3, 1),
            (3, None, 3, 0),
            (0, None, 3, 3),
            (0, False, 3, 0),
            # A channel counts over its life, so that a smaller number is that of another one.
            (3, True, 0, 0),
            (3, True, 2, 2),
        ]:
            for target in ("5", "9"):
                owed = {"c": {"token": target, "errors": known}}
                verdict = integers(
                    owed, status("c", "5", rows_error_count=counts), fail_on_rejected_rows=fails
                )
                assert verdict.reason is (FailureReason.ROWS_REJECTED if rejected else None)
                assert not rejected or f"skipped {counted(rejected, 'row')}" in verdict.message
        targets = CommitTargets.parse({"c": token("a:5", errors=2)}, fail_on_rejected_rows=True)
        for skipped, found in {2: WaitState.COMPLETE, 3: WaitState.FAILED}.items():
            assert wait(targets, token("a:5", errors=2), rows_error_count=skipped) is found
        assert CommitTargets.parse({"c": token("a:5", errors=2)}).targets["c"].errors is None

    @pytest.mark.parametrize("other", [binding_of("q"), binding_of(reading="csv")], ids=str)
    def test_of_another_source_than_the_target_is_an_error_and_no_wait(self, other):
        for position in ("a:4", "a:5", "b:1"):
            found = status("c", token(position, binding=other))
            verdict = verdict_of({"c": token("a:5")}, found, format_name=None)
            assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.SOURCE_CHANGED)
            assert "'c'" in verdict.message

    @pytest.mark.parametrize("rows", [3, 5])
    def test_of_a_channel_that_counts_other_rows_than_its_checkpoint_fails_if_it_is_to(self, rows, caplog):
        found = status("c", token("a:5", rows=4), rows_inserted=rows - 1, rows_error_count=1)
        targets = {"c": token("a:5")}
        verdict = verdict_of(targets, found, format_name=None, on_imbalance="fail")
        assert (verdict.state, verdict.reason) == (WaitState.FAILED, FailureReason.IMBALANCE)
        assert "'c'" in verdict.message
        behind = verdict_of({"c": token("a:6")}, found, format_name=None, on_imbalance="fail")
        assert behind.state is WaitState.WAITING
        assert "'c'" not in caplog.text
        assert verdict_of(targets, found, format_name=None).state is WaitState.COMPLETE
        assert "'c'" in caplog.text


NUMBERS = st.integers(0, 1200)
FILES = st.sampled_from(["9", "10", "a.log", "a.ndjson", "log:7", "messages_10.log", "messages_9.log"])
POSITIONS = {
    "integer": st.builds(offsets.IntegerOffset, NUMBERS),
    "file:line": st.builds(offsets.FileLineOffset, FILES, NUMBERS),
    "unit/file:line": st.builds(offsets.UnitOffset, st.integers(1, 1200), FILES, NUMBERS),
    "topic:partition:offset": st.builds(offsets.TopicPartitionOffset, st.just("orders"), st.just(7), NUMBERS),
    "batch:row": st.builds(offsets.BatchRowOffset, NUMBERS, NUMBERS),
    "lexicographic": st.builds(
        offsets.LexicographicOffset, st.sampled_from(["2013-01-01", "2013-01-02", "a", "b"])
    ),
}


def wait(targets, committed, **fields):
    return judge({"c": status("c", committed, **fields)}, targets).state


def carried(*target, **options):
    return CommitTargets.parse({"c": ChannelTarget(*target).to_json()}, **options)


class TestTargets:
    def test_checkpoint_names_its_positions_itself_and_a_bare_one_is_of_the_named_format(self):
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
        assert wait(carried(None, "integer", 0, 0), None) is WaitState.COMPLETE

    def test_survive_json_and_those_of_several_loads_are_those_of_all_their_channels(self):
        target = ChannelTarget("a.log:5", "file:line", 3, 120)
        text = json.dumps({"c": target.to_json()})
        loads = [{"a": "1", "b": "2"}, {"c": "3"}]
        assert CommitTargets.parse(text).targets["c"] == target
        assert all_targets(loads) == all_targets(json.dumps(loads)) == {"a": "1", "b": "2", "c": "3"}
        assert all_targets([{"a": "1"}, {"a": "1"}]) == {"a": "1"}
        two = [{"a": "1"}, {"a": "2"}]
        refused(errors.ConfigurationError, all_targets, [two], "channel 'a': '1' and '2'")
        refused(errors.ConfigurationError, all_targets, [5, "text", b"bytes"], "targets")

    def test_are_a_mapping_of_channel_names_to_targets_or_its_json(self):
        def parse(targets):
            return CommitTargets.parse(targets, "file:line")

        assert parse('{"c": "a:1"}') == parse({"c": "a:1"}) == parse([{"c": "a:1"}])
        assert ChannelTarget.read("c", 120455) == ChannelTarget("120455")  # a template made it a number
        wrong = errors.ConfigurationError
        refused(wrong, lambda value: ChannelTarget.read("c", value), [True], "'c': True")
        refused(wrong, parse, [None, [], "[1]"], "targets is", "give a mapping")
        refused(wrong, parse, ["c"], "targets is", "a JSON object")
        refused(wrong, parse, [{n: "a:1"} for n in ("elastic", "c" * 256, "c\0")], "channel name")
        values = [True, 5.0, None, {}, {"token": 5}, {"token": "a:1", "rows": -1}, {"token": "a:1", "x": 1}]
        refused(wrong, parse, [{"c": value} for value in [*values, ["a:1"], 5]], "'c'")
        refused(wrong, parse, [{"": "a:1"}, {5: "a:1"}], "targets has the entry")
        refused(errors.OffsetTokenError, parse, [{"c": "nonsense"}], "'c'", "'nonsense'", "'file:line'")

    def test_have_a_format_that_is_named_and_never_guessed(self):
        def parse(target, *format_name):
            return CommitTargets.parse({"c": target}, *format_name)

        bare = ["120455", "messages_1.log:20", "17:5000", "orders:7:9", "3/a.ndjson:600"]
        wrong = errors.OffsetTokenError
        refused(wrong, parse, bare, "offset_format")
        refused(wrong, lambda one: parse(one, "integer"), [*bare[1:], token("a:9")], "'integer'")

    def test_fail_the_wait_where_the_committed_token_is_not_of_their_positions(self):
        for target, committed in [
            (token("a:9"), "a:9"), (token("a:9"), token(9)), (token("a:9"), "x"),
        ]:  # fmt: skip
            owed_now = WaitState.COMPLETE if committed == "a:9" else WaitState.FAILED
            assert wait(CommitTargets.parse({"c": target}), committed) is owed_now, committed
        for target in ("2013-01-01", "a"):
            bare = CommitTargets.parse({"c": target}, "lexicographic")
            assert wait(bare, token("a:1")) is WaitState.FAILED
        partition = CommitTargets.parse({"c": "orders:7:10"}, "topic:partition:offset")
        assert wait(partition, "orders:8:99") is WaitState.FAILED

    @given(st.data())
    def test_are_never_reached_early_whatever_format_the_wait_was_given(self, data):
        """Checkpoints of one kind, and a wait that was given another kind, or none, or the checkpoint."""
        written = data.draw(st.sampled_from(sorted(POSITIONS)), "format of the tokens")
        committed, target = data.draw(st.tuples(POSITIONS[written], POSITIONS[written]), "positions")
        other = data.draw(st.sampled_from([None, *sorted(POSITIONS)]), "format given")
        owed = token(target) if data.draw(st.booleans(), "target is a checkpoint") else str(target)
        assert offsets.known_formats() - set(POSITIONS) == {"batch:row/digest"}
        try:
            targets = CommitTargets.parse({"c": owed}, other)
        except errors.OffsetTokenError:
            return

        if wait(targets, token(committed)) is WaitState.COMPLETE:
            assert committed >= target


TARGETS = {"c1": "a:10", "c2": "a:10"}
DOWN = errors.RetriesExhaustedError("service is away")


def watch(targets=TARGETS, format_name="file:line", **budget):
    return CommitWatch(CommitTargets.parse(targets, format_name), RetryBudget(**budget))


def seen(**tokens):
    return PolledStatuses({name: status(name, token) for name, token in tokens.items()})


def failed(error, *names):
    return PolledStatuses.failed(names or tuple(TARGETS), error)


def state(verdict):
    return "nothing" if verdict is None else str(verdict.state)


class TestWatch:
    def test_puts_polls_together_until_every_channel_was_seen(self):
        one = watch()
        polls = (seen(other="a:99"), seen(c1="a:10"), seen(c2="a:3"), seen(c2="a:11"))
        assert [state(one.see(poll, 0.0)) for poll in polls] == ["nothing", "nothing", "waiting", "complete"]
        poll = PolledStatuses(seen(c1="a:10", c2="a:10").statuses, {"other": DOWN})
        assert state(watch().see(poll, 0.0)) == "complete"
        assert watch().at_once() is None
        nothing = watch({}).at_once()
        assert (nothing.state, nothing.value, nothing.total) == (WaitState.COMPLETE, {}, 0)

    def test_keeps_what_the_last_polls_have_shown_of_each_channel(self):
        one = watch({"c1": ChannelTarget("a:10", "file:line", errors=2).to_json(), "c2": "a:10"})
        for committed in ("a:1", "a:3"):
            found = status("c1", committed, rows_error_count=5, latency_ms=7)
            one.see(PolledStatuses({"c1": found}), 0.0)
        seen_of_c1 = {"committed": "a:3", "target": "a:10", "rejected": 3, "latency_ms": 7}
        assert one.observed() == {"c1": {**seen_of_c1, "last_error": None}}

    def test_endures_errors_and_ends_after_some_in_a_row_since_the_last_poll_that_answered(self):
        assert state(watch(max_consecutive_errors=1).see(failed(DOWN), 0.0)) == "failed"
        one = watch(max_consecutive_errors=3)
        for now in range(0, 9, 3):
            one.see(seen(c1="a:3", c2=None), now)
            verdict = one.see(failed(DOWN), now + 1)
            assert str(verdict) == "poll failed (1 in a row): service is away"
            assert (verdict.state, verdict.done, verdict.total) == (WaitState.WAITING, 0, 2)
            assert verdict.tokens == {"c1": "a:3", "c2": None}

        verdicts = [one.see(failed(DOWN), float(now)) for now in (20, 21)]

        assert [state(verdict) for verdict in verdicts] == ["waiting", "failed"]
        assert verdicts[-1].reason is FailureReason.TOO_MANY_ERRORS
        assert verdicts[-1].message == "3 polls in a row failed, the last: service is away"

    def test_counts_errors_at_its_own_pace_when_others_poll_more_often(self):
        one = watch(max_consecutive_errors=3, interval=60.0)
        states = [state(one.see(failed(DOWN), float(now))) for now in range(0, 125, 5)]
        assert states.count("waiting") == 2
        assert 5 * states.index("failed") == 100

    def test_ends_at_once_after_errors_that_do_not_pass(self):
        for error, text in {
            DOWN: "service is away",
            errors.PipeFailedOverError("moved", http_status=410): "moved",
            OSError("disk"): "OSError: disk",
            TimeoutError("slow"): "TimeoutError: slow",
        }.items():
            verdict = watch().see(failed(error), 0.0)
            assert (state(verdict), str(verdict).partition("row): ")[2]) == ("waiting", text)
        for error, reason in {
            errors.AuthenticationError("no"): FailureReason.REFUSED,
            errors.ApiError("no", http_status=400): FailureReason.REFUSED,
            errors.ConfigurationError("no"): FailureReason.CONFIGURATION,
        }.items():
            verdict = watch().see(failed(error, "c2"), 0.0)
            assert (verdict.state, verdict.reason, verdict.message) == (WaitState.FAILED, reason, "no")

    def test_moves_to_another_process(self):
        first = watch(stall_seconds=10, max_consecutive_errors=2)
        first.see(seen(c1="a:1", c2=None), 0.0)
        first.see(failed(DOWN), 1.0)
        stalls, errs = (watch(stall_seconds=10, max_consecutive_errors=2) for _ in range(2))
        for one in (stalls, errs):
            one.recall(json.loads(json.dumps(first.memory())))
        assert state(stalls.see(seen(c1="a:1", c2=None), 10.0)) == "failed"
        assert state(errs.see(failed(DOWN), 2.0)) == "failed"

    def test_has_a_budget_that_is_checked(self):
        wrong, budget = errors.ConfigurationError, lambda given: RetryBudget(**given)
        refused(wrong, budget, [{"max_consecutive_errors": 0}], "max_consecutive_errors is 0")
        for value in (0, -1.5, "600"):
            refused(wrong, budget, [{"stall_seconds": value}], f"stall_timeout is {value!r}")


class TestStandstill:
    def test_is_no_failure_unless_asked_for_and_of_a_channel_with_its_target_is_none(self):
        one, stalls = watch(), watch(stall_seconds=10)
        assert {state(one.see(seen(c1="a:1", c2="a:1"), float(now))) for now in range(9)} == {"waiting"}
        steps = range(0, 81, 9)
        assert {state(stalls.see(seen(c1="a:10", c2=f"a:{n // 9}"), float(n))) for n in steps} == {"waiting"}
        assert state(stalls.see(seen(c1="a:10", c2="a:8"), 81.0)) == "waiting", "9 s after the last commit"
        assert state(stalls.see(seen(c1="a:10", c2="a:8"), 82.0)) == "failed"

    def test_names_channels_positions_time_and_distance(self):
        one = watch(stall_seconds=600)
        one.see(seen(c1="a:1", c2="a:4"), 1_000.0)
        one.see(seen(c1="a:2", c2="a:4"), 1_599.0)
        verdict = one.see(seen(c1="a:3", c2="a:4"), 1_600.0)
        assert (verdict.reason, verdict.slowest) == (FailureReason.STALLED, None)
        assert verdict.message.startswith(
            "1 of 2 channels committed nothing for 600 s: 'c2' stands at a:4 since "
            "1970-01-01T00:16:40+00:00 (600 s), 6 before its target a:10. "
        )

    def test_hides_no_other_failure(self):
        one = watch(stall_seconds=10)
        one.see(seen(c1="a:1", c2="a:1"), 0.0)
        verdict = one.see(PolledStatuses({"c1": status("c1", "a:1", "ERR_X")}), 20.0)
        assert (verdict.state, verdict.reason is FailureReason.STALLED) == (WaitState.FAILED, False)


NAMES = [f"c{number:03}" for number in range(250)]


class Source:
    """A client that refuses every request that names one channel."""

    def __init__(self, error, bad):
        self.asked = []
        self._error, self._bad = error, bad

    def channel_statuses(self, names):
        self.asked.append(list(names))
        if self._bad in names:
            raise self._error
        return {name: status(name, "a:1") for name in names}


class TestRound:
    def test_only_a_refusal_of_the_request_is_asked_again_in_halves(self):
        names = ["bad", "b", "c", "d"]
        for http_status, again in {200: False, 399: False, 400: True, 499: True, 500: False}.items():
            source = Source(errors.ApiError("no", http_status=http_status), "bad")
            polled = poll_statuses(source, names)
            halves = [["bad", "b"], ["bad"], ["b"], ["c", "d"]] if again else []
            assert source.asked == [names, *halves]
            assert polled.errors == dict.fromkeys(["bad"] if again else names, source._error)
            assert list(polled.statuses) == (["b", "c", "d"] if again else [])
        assert failed(DOWN, "a", "b") == PolledStatuses({}, {"a": DOWN, "b": DOWN})

    def test_an_outage_is_met_once_and_not_for_every_hundred(self):
        for error in (
            DOWN,
            errors.AuthenticationError("refused"),
            errors.PipeFailedOverError("moved", http_status=410),
            errors.PipeNotFoundError("no pipe", http_status=404),
        ):
            source = Source(error, "c100")
            polled = poll_statuses(source, NAMES)
            assert len(source.asked) == 2
            assert sorted(polled.statuses) == NAMES[:100]
            assert polled.errors == dict.fromkeys(NAMES[100:], error)
