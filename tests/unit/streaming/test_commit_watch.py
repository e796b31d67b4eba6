"""A wait over many polls: errors in a row, standing still, continuing in another process."""

import json

import pytest

from airflow_provider_snowpipe.streaming.commits import (
    CommitWatch,
    FailureReason,
    PolledStatuses,
    RetryBudget,
    WaitState,
)
from airflow_provider_snowpipe.streaming.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    PipeFailedOverError,
    RetriesExhaustedError,
)
from airflow_provider_snowpipe.streaming.progress import ChannelStatus, CommitTargets
from tests.refusals import refused

TARGETS = {"c1": "a:10", "c2": "a:10"}
DOWN = RetriesExhaustedError("service is away")


def watch(targets=TARGETS, format_name="file:line", **budget):
    return CommitWatch(CommitTargets.parse(targets, format_name), RetryBudget(**budget))


def seen(**tokens):
    return PolledStatuses({name: ChannelStatus(name, "SUCCESS", token) for name, token in tokens.items()})


def failed(error, *names):
    return PolledStatuses.failed(names or tuple(TARGETS), error)


def state(verdict):
    return "nothing" if verdict is None else str(verdict.state)


def test_polls_are_put_together_until_every_channel_was_seen():
    one = watch()

    polls = (seen(other="a:99"), seen(c1="a:10"), seen(c2="a:3"), seen(c2="a:11"))

    assert [state(one.see(poll, 0.0)) for poll in polls] == ["nothing", "nothing", "waiting", "complete"]
    poll = PolledStatuses(seen(c1="a:10", c2="a:10").statuses, {"other": DOWN})
    assert state(watch().see(poll, 0.0)) == "complete"


class TestErrors:
    def test_are_endured_and_reported_with_what_is_known(self):
        one = watch()
        one.see(seen(c1="a:3"), 0.0)

        verdict = one.see(failed(DOWN), 0.0)

        assert str(verdict) == "poll failed (1 in a row): service is away"
        assert (verdict.state, verdict.done, verdict.total) == (WaitState.WAITING, 0, 2)
        assert verdict.tokens == {"c1": "a:3", "c2": None}

    def test_end_the_wait_when_they_come_in_a_row(self):
        assert state(watch(max_consecutive_errors=1).see(failed(DOWN), 0.0)) == "failed"
        one = watch(max_consecutive_errors=3)

        verdicts = [one.see(failed(DOWN), float(now)) for now in range(3)]

        assert [state(verdict) for verdict in verdicts] == ["waiting", "waiting", "failed"]
        assert verdicts[-1].reason is FailureReason.TOO_MANY_ERRORS
        assert verdicts[-1].message == "3 polls in a row failed, the last: service is away"

    def test_are_counted_from_the_last_poll_that_answered(self):
        one = watch(max_consecutive_errors=2)

        for now in range(0, 20, 2):
            assert state(one.see(failed(DOWN), now)) == "waiting"
            assert state(one.see(seen(c1=None, c2=None), now + 1)) == "waiting"

    def test_are_counted_at_ones_own_pace_when_others_poll_more_often(self):
        one = watch(max_consecutive_errors=3, interval=60.0)

        states = [state(one.see(failed(DOWN), float(now))) for now in range(0, 125, 5)]

        assert states.count("waiting") == 2
        assert 5 * states.index("failed") == 100
        assert state(watch(interval=60.0).see(failed(DOWN), 0.0)) == "waiting"

    def test_that_may_pass_do_not_end_the_wait_and_others_do_at_once(self):
        for error, text in {
            DOWN: "service is away",
            PipeFailedOverError("moved", http_status=410): "moved",
            OSError("disk"): "OSError: disk",
            TimeoutError("slow"): "TimeoutError: slow",
        }.items():
            verdict = watch().see(failed(error), 0.0)
            assert (state(verdict), str(verdict).partition("row): ")[2]) == ("waiting", text)
        for error, reason in {
            AuthenticationError("no"): FailureReason.REFUSED,
            ApiError("no", http_status=400): FailureReason.REFUSED,
            ConfigurationError("no"): FailureReason.CONFIGURATION,
        }.items():
            verdict = watch().see(failed(error, "c2"), 0.0)
            assert (verdict.state, verdict.reason, verdict.message) == (WaitState.FAILED, reason, "no")


class TestStandstill:
    def test_is_no_failure_unless_asked_for_and_of_a_channel_with_its_target_is_none(self):
        one, stalls = watch(), watch(stall_seconds=10)

        assert {state(one.see(seen(c1="a:1", c2="a:1"), float(now))) for now in range(9)} == {"waiting"}
        steps = range(0, 81, 9)
        assert {state(stalls.see(seen(c1="a:10", c2=f"a:{n // 9}"), float(n))) for n in steps} == {"waiting"}

    def test_failure_names_channels_positions_time_and_distance(self):
        one = watch(stall_seconds=600)
        one.see(seen(c1="a:1", c2="a:4"), 1_000.0)
        one.see(seen(c1="a:2", c2="a:4"), 1_599.0)

        verdict = one.see(seen(c1="a:3", c2="a:4"), 1_600.0)

        assert (verdict.reason, verdict.slowest) == (FailureReason.STALLED, None)
        assert verdict.message.startswith(
            "1 of 2 channels committed nothing for 600 s: 'c2' stands at a:4 since "
            "1970-01-01T00:16:40+00:00 (600 s), 6 before its target a:10. "
        )

    def test_counts_from_the_last_commit(self):
        one = watch(stall_seconds=10)
        one.see(seen(c1="a:10", c2="a:1"), 0.0)
        one.see(seen(c1="a:10", c2="a:2"), 9.0)

        assert state(one.see(seen(c1="a:10", c2="a:2"), 18.0)) == "waiting"
        assert state(one.see(seen(c1="a:10", c2="a:2"), 19.0)) == "failed"

    def test_hides_no_other_failure(self):
        one = watch(stall_seconds=10)
        one.see(seen(c1="a:1", c2="a:1"), 0.0)

        verdict = one.see(PolledStatuses({"c1": ChannelStatus("c1", "ERR_X", "a:1")}), 20.0)

        assert (verdict.state, verdict.reason is FailureReason.STALLED) == (WaitState.FAILED, False)

    def test_of_a_channel_without_a_token_or_a_distance_counts_as_well(self):
        one, texts = (
            watch({"c1": "a:10"}, stall_seconds=10),
            watch({"c1": "b"}, "lexicographic", stall_seconds=1),
        )
        one.see(seen(c1=None), 0.0)
        texts.see(seen(c1="a"), 0.0)

        verdict = str(one.see(seen(c1=None), 10.0))

        assert "'c1' stands at NULL since" in verdict
        assert "before its target a:10" in verdict
        assert "(5 s), before its target b" in str(texts.see(seen(c1="a"), 5.0))

    @pytest.mark.parametrize(("channels", "more"), [(5, "a:10. "), (8, "; and 3 more. ")])
    def test_of_many_channels_names_a_few_and_counts_the_others(self, channels, more):
        names = [f"c{number}" for number in range(channels)]
        one = watch(dict.fromkeys(names, "a:10"), stall_seconds=1)
        one.see(seen(**dict.fromkeys(names)), 0.0)

        text = str(one.see(seen(**dict.fromkeys(names)), 5.0))

        assert text.startswith(f"{channels} of {channels} channels committed nothing")
        assert ("'c4' stands" in text, "'c5'" in text, more in text) == (True, False, True)


def test_a_wait_for_nothing_ends_at_once():
    assert watch().at_once() is None
    verdict = watch({}).at_once()
    assert (verdict.state, verdict.value, verdict.total) == (WaitState.COMPLETE, {}, 0)


def test_memory_moves_to_another_process():
    first = watch(stall_seconds=10, max_consecutive_errors=2)
    first.see(seen(c1="a:1", c2=None), 0.0)
    first.see(failed(DOWN), 1.0)

    stalls, errs = (watch(stall_seconds=10, max_consecutive_errors=2) for _ in range(2))
    for one in (stalls, errs):
        one.recall(json.loads(json.dumps(first.memory())))

    assert state(stalls.see(seen(c1="a:1", c2=None), 10.0)) == "failed"
    assert state(errs.see(failed(DOWN), 2.0)) == "failed"


def test_budget_is_checked():
    def budget(given):
        RetryBudget(**given)

    refused(ConfigurationError, budget, [{"max_consecutive_errors": 0}], "max_consecutive_errors is 0")
    for value in (0, -1.5, "600"):
        refused(ConfigurationError, budget, [{"stall_seconds": value}], f"stall_timeout is {value!r}")
