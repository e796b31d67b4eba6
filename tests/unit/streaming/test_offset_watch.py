"""Steps between watermarks: every commit is in one of them, and in one only."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offset_events import (
    ChannelMark,
    OffsetRule,
    OffsetWatch,
    Watermark,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import SUCCESS, ChannelStatus

PIPE = "DB.S.T-STREAMING"
BEGUN = Watermark(begun=True)
Seen = tuple[str | None, int]


def polled(made: int = 1, **channels: Seen | None) -> dict[str, ChannelStatus]:
    """A token and a number of rows for each channel; None for one that does not exist."""
    return {
        name: ChannelStatus.missing(name)
        if value is None
        else ChannelStatus(name, SUCCESS, value[0], rows_inserted=value[1], created_on_ms=made)
        for name, value in channels.items()
    }


def watch(rule: OffsetRule | None = None, watermark: Watermark = BEGUN) -> OffsetWatch:
    return OffsetWatch(PIPE, rule or OffsetRule(), watermark)


def reported(one: OffsetWatch, statuses: dict[str, ChannelStatus]) -> dict[str, Any] | None:
    """See a poll and make the step that is due; its message."""
    step = one.see(statuses)
    if step is None:
        return None
    one.accept(step)
    return step.message


class TestBeginning:
    def test_what_is_committed_before_is_no_news(self) -> None:
        one = watch(watermark=Watermark())
        one.start_with(["c1", "c2"])

        assert reported(one, polled(c1=("5", 5))) is None
        assert not one.watermark.begun
        assert reported(one, polled(c2=("7", 7))) is None
        assert one.watermark.begun

        message = reported(one, polled(c1=("6", 6), c2=("7", 7)))
        assert message is not None
        assert message["channels"] == {
            "c1": {"token": "6", "rows": 6, "previous_token": "5", "previous_rows": 5}
        }
        assert message["rows"] == 1

    def test_a_channel_that_turns_up_later_is_news_from_its_first_row(self) -> None:
        one = watch(watermark=Watermark())
        one.start_with([])
        reported(one, polled(c1=("9", 9)))

        message = reported(one, polled(c1=("9", 9)))

        assert message is not None
        assert (message["rows"], message["channels"]["c1"]["previous_token"]) == (9, None)

    def test_a_channel_that_does_not_exist_yet_is_one_without_rows(self) -> None:
        one = watch(watermark=Watermark())
        one.start_with(["c1"])
        reported(one, polled(c1=None))

        message = reported(one, polled(c1=("1", 1)))

        assert message is not None
        assert message["rows"] == 1

    def test_waits_for_the_channels_to_be_known(self) -> None:
        assert watch(watermark=Watermark()).see(polled(c1=("1", 1))) is None


class TestEveryMove:
    def test_is_reported_once(self) -> None:
        one = watch()

        messages = [reported(one, polled(c1=seen)) for seen in (("1", 1), ("1", 1), ("3", 3))]

        assert [None if m is None else m["rows"] for m in messages] == [1, None, 2]

    def test_of_several_channels_is_one_message(self) -> None:
        message = reported(watch(), polled(c2=("1", 1), c1=("b", 4), c3=(None, 0)))

        assert message == {
            "pipe": PIPE,
            "channels": {
                "c1": {"token": "b", "rows": 4, "previous_token": None, "previous_rows": 0},
                "c2": {"token": "1", "rows": 1, "previous_token": None, "previous_rows": 0},
            },
            "rows": 5,
            "total_rows": 5,
            "id": message["id"] if message else "",
        }

    def test_rows_without_a_token_are_a_commit_too(self) -> None:
        one = watch()
        reported(one, polled(c1=("1", 1)))

        assert reported(one, polled(c1=("1", 2))) is not None

    def test_a_channel_that_vanishes_is_no_commit(self) -> None:
        one = watch()
        reported(one, polled(c1=("1", 1)))

        assert reported(one, polled(c1=None)) is None

    def test_a_channel_made_again_counts_from_zero(self) -> None:
        one = watch()
        reported(one, polled(c1=("8", 8)))
        assert reported(one, polled(made=2, c1=(None, 0))) is None

        message = reported(one, polled(made=2, c1=("8", 8)))

        assert message is not None
        assert (message["rows"], message["total_rows"]) == (8, 16)


class TestEveryRows:
    RULE = OffsetRule(every_rows=10)

    def test_is_reported_when_all_channels_together_reach_the_next_multiple(self) -> None:
        one = watch(self.RULE)

        assert reported(one, polled(c1=("4", 4), c2=("5", 5))) is None
        message = reported(one, polled(c1=("4", 4), c2=("8", 8)))

        assert message is not None
        assert (message["first"], message["last"], message["total_rows"]) == (10, 10, 12)
        assert set(message["channels"]) == {"c1", "c2"}

    def test_several_at_once_are_one_message_that_names_the_first_and_the_last(self) -> None:
        message = reported(watch(self.RULE), polled(c1=("57", 57)))

        assert message is not None
        assert (message["every_rows"], message["first"], message["last"]) == (10, 10, 50)

    def test_rows_beyond_count_for_the_next(self) -> None:
        one = watch(self.RULE)
        reported(one, polled(c1=("19", 19)))

        message = reported(one, polled(c1=("20", 20)))

        assert message is not None
        assert (message["first"], message["last"], message["rows"]) == (20, 20, 1)

    def test_rows_of_a_channel_made_again_are_added(self) -> None:
        one = watch(self.RULE)
        reported(one, polled(c1=("8", 8)))

        message = reported(one, polled(made=2, c1=("3", 3)))

        assert message is not None
        assert message["total_rows"] == 11


class TestPassing:
    RULE = OffsetRule(passes=IntegerOffset(100))

    def test_is_reported_once_per_channel(self) -> None:
        one = watch(self.RULE)

        assert reported(one, polled(c1=("99", 1), c2=(None, 0))) is None
        first = reported(one, polled(c1=("100", 2), c2=("7", 1)))
        assert reported(one, polled(c1=("150", 3), c2=("99", 2))) is None
        second = reported(one, polled(c1=("150", 3), c2=("180", 3)))

        assert first is not None
        assert second is not None
        assert (set(first["channels"]), set(second["channels"])) == ({"c1"}, {"c2"})
        assert second["passes"] == "100"

    def test_a_channel_that_was_reset_may_pass_again(self) -> None:
        one = watch(self.RULE)
        reported(one, polled(c1=("100", 1)))
        reported(one, polled(c1=("10", 1)))

        assert reported(one, polled(c1=("101", 2))) is not None

    def test_a_token_of_another_format_is_a_problem_and_no_end(self) -> None:
        one = watch(self.RULE)

        assert reported(one, polled(c1=("file:7", 1), c2=("100", 1))) is not None
        assert "offset token 'file:7' is not of the format 'integer'" in one.problems["c1"]


class TestAcceptance:
    @pytest.mark.parametrize("rule", [OffsetRule(), OffsetRule(every_rows=2)], ids=["moves", "rows"])
    def test_a_step_that_is_not_made_is_due_again(self, rule: OffsetRule) -> None:
        one = watch(rule)
        lost = one.see(polled(c1=("3", 3)))

        message = reported(one, polled(c1=("5", 5)))

        assert lost is not None
        assert message is not None
        assert message["channels"]["c1"]["previous_rows"] == 0
        assert message["rows"] == 5

    def test_the_same_step_has_the_same_id(self) -> None:
        first, second = (reported(watch(), polled(c1=("3", 3))) for _ in range(2))
        other = reported(watch(), polled(c1=("4", 4)))

        assert first == second
        assert first is not None
        assert other is not None
        assert first["id"] != other["id"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("every", [None, 1, 7], ids=["moves", "every-1", "every-7"])
def test_steps_tile_the_commits_whenever_the_watch_dies(seed: int, every: int | None) -> None:
    """Commits, polls and deaths in any order: the steps made have no gap and no overlap."""
    chance = random.Random(seed)
    rule = OffsetRule(every_rows=every)
    rows = {"a": 0, "b": 0, "c": 0}
    kept, messages = BEGUN, list[dict[str, Any]]()
    one = watch(rule, kept)
    for _ in range(200):
        rows[chance.choice("abc")] += chance.randrange(5)
        if chance.random() < 0.1:
            one = watch(rule, Watermark.from_json(json.loads(json.dumps(kept.to_json()))))
        asked = chance.sample("abc", chance.randrange(4))
        step = one.see(polled(**{name: (str(rows[name]), rows[name]) for name in asked}))
        if step is not None and chance.random() < 0.9:
            one.accept(step)
            kept = step.watermark
            messages += [step.message] if step.message is not None else []
    last = one.see(polled(**{name: (str(count), count) for name, count in rows.items()}))
    messages += [last.message] if last is not None and last.message is not None else []

    for name, count in rows.items():
        steps = [message["channels"][name] for message in messages if name in message["channels"]]
        starts = [step["previous_rows"] for step in steps]
        ends = [step["rows"] for step in steps]
        assert starts == [0, *ends[:-1]][: len(steps)]
        if every is None:
            assert (ends or [0])[-1] == count
    if every is not None:
        reached = [n for m in messages for n in range(m["first"], m["last"] + every, every)]
        assert reached == list(range(every, sum(rows.values()) + 1, every))


def test_a_watermark_survives_json() -> None:
    mark = Watermark(True, 12, {"c": ChannelMark("a:1", 4, 1_700_000_000_000), "n": ChannelMark()})

    assert Watermark.from_json(json.loads(json.dumps(mark.to_json()))) == mark


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"passes": "1", "every_rows": 5}, "are both given"),
        ({"every_rows": 0}, "every_rows is 0"),
        ({"every_rows": True}, "every_rows is True"),
        ({"passes": "x"}, "not of the format 'integer'"),
    ],
)
def test_a_wrong_rule_is_refused(options: dict[str, Any], text: str) -> None:
    given = {"passes": None, "every_rows": None, "offset_format": "integer", **options}
    with pytest.raises(ConfigurationError, match=text):
        OffsetRule.of(**given)
