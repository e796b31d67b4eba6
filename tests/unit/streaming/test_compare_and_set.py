"""Setting a committed token: fence, read, compare, set, read again, with a stream at every point between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.admin import (
    OffsetReset,
    TokenChange,
    compare_and_set,
    direction,
    fence,
    reset_offset_token,
    watch_channels,
)
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import (
    ChannelError,
    ChannelFencedError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    OffsetTokenError,
    OffsetTokenMovedError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offset_backup import RestoreAction, RestoreStep, restore_channels
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import ChannelState, ChannelStatus
from tests.fake_snowpipe import MISSING, FakeSnowpipe, KilledError

SetToken = Callable[[str, str], None]


@pytest.fixture
def set_token(snowpipe: FakeSnowpipe) -> SetToken:
    """The system function: it sets what it is given, whatever is there."""

    def set_token(channel: str, token: str) -> None:
        snowpipe.channels[channel].committed = token

    return set_token


def stream(snowpipe: FakeSnowpipe, last: int, channel: str = "c") -> None:
    """Do what a stream does: open, go on after the committed token up to a row, wait for the commit."""
    with snowpipe.client() as client, Channel.open(client, channel, IntegerOffset) as writer:
        first = 0 if writer.progress.committed is None else int(str(writer.progress.committed)) + 1
        for number in range(first, last + 1):
            offset = IntegerOffset(number)
            writer.append(b'{"ID":%d}\n' % number, offset, offset, rows=1)
        writer.flush()
        writer.wait_for_commit(timeout=5)


def planned(snowpipe: FakeSnowpipe, token: str, channel: str = "c") -> TokenChange:
    with snowpipe.client() as client:
        return TokenChange.after(client.channel_statuses([channel])[channel], token)


def change(snowpipe: FakeSnowpipe, planned: TokenChange, set_token: SetToken, **options: Any) -> Any:
    with snowpipe.client() as client:
        return compare_and_set(client, planned, set_token=set_token, **options)


def test_token_is_set_when_nobody_has_written_since_it_was_planned(
    snowpipe: FakeSnowpipe, set_token: SetToken
) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.calls.clear()

    assert change(snowpipe, plan, set_token).committed == "9"

    assert snowpipe.channels["c"].committed == "99"
    assert snowpipe.did("open", "status") == ["open c", "status c", "open c", "status c"]


@pytest.mark.parametrize("committed", [None, "8", "10"])
def test_another_committed_token_stops_it_and_both_are_named(
    snowpipe: FakeSnowpipe, set_token: SetToken, committed: str | None
) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.channels["c"].committed = committed

    with pytest.raises(OffsetTokenMovedError) as raised:
        change(snowpipe, plan, set_token)

    assert (raised.value.expected, raised.value.committed) == ("9", committed)
    assert "'9'" in str(raised.value)
    assert (committed or "NULL") in str(raised.value)
    assert snowpipe.channels["c"].committed == committed


def test_rows_that_came_under_the_same_token_stop_it(snowpipe: FakeSnowpipe, set_token: SetToken) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    stream(snowpipe, 12)
    snowpipe.channels["c"].committed = "9"

    with pytest.raises(OffsetTokenMovedError, match="3 more"):
        change(snowpipe, plan, set_token)


def test_channel_that_was_made_anew_stops_it(snowpipe: FakeSnowpipe, set_token: SetToken) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    del snowpipe.channels["c"]
    snowpipe.channel("c", committed="2").rows_inserted = 2

    with pytest.raises(OffsetTokenMovedError, match="now is '2', in a channel made anew"):
        change(snowpipe, plan, set_token)


def test_rows_that_are_received_and_not_committed_stop_it(
    snowpipe: FakeSnowpipe, set_token: SetToken
) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.holds_commits = True
    with snowpipe.client() as client:
        writer = Channel.open(client, "c", IntegerOffset)
        writer.append(b'{"ID":10}\n', IntegerOffset(10), IntegerOffset(10), rows=1)
        writer.flush()

        with pytest.raises(WriterActiveError, match="not committed"):
            change(snowpipe, plan, set_token)

    assert snowpipe.channels["c"].committed == "9"


def test_writer_that_opened_before_is_fenced_and_cannot_commit_after_it(
    snowpipe: FakeSnowpipe, set_token: SetToken
) -> None:
    stream(snowpipe, 9)
    with snowpipe.client() as client:
        zombie = Channel.open(client, "c", IntegerOffset)
        change(snowpipe, planned(snowpipe, "99"), set_token)

        zombie.append(b'{"ID":10}\n', IntegerOffset(10), IntegerOffset(10), rows=1)
        with pytest.raises(ChannelError):
            zombie.flush()

    assert snowpipe.channels["c"].committed == "99"
    assert len(snowpipe.channels["c"].rows) == 10


def test_rows_streamed_while_the_token_is_set_are_found_when_it_is_read_back(
    snowpipe: FakeSnowpipe, set_token: SetToken
) -> None:
    stream(snowpipe, 9)

    def set_late(channel: str, token: str) -> None:
        stream(snowpipe, 12)
        set_token(channel, token)

    with pytest.raises(OffsetTokenMovedError, match=r"3 row\(s\).*overwritten") as raised:
        change(snowpipe, planned(snowpipe, "99"), set_late)

    assert (raised.value.channel, raised.value.expected, raised.value.committed) == ("c", "99", "99")


def test_fence_alone_compares_too(snowpipe: FakeSnowpipe) -> None:
    stream(snowpipe, 9)

    with snowpipe.client() as client, pytest.raises(OffsetTokenMovedError):
        fence(client, TokenChange("c", "99", "8"))


@pytest.mark.parametrize(
    ("rows", "how"), [(7, "0 more row"), (6, "1 more row"), (8, "in a channel made anew")]
)
def test_a_moved_token_is_reported_with_the_rows_that_came_since(rows: int, how: str) -> None:
    found = ChannelStatus("c", "SUCCESS", "9", rows_inserted=7)

    with pytest.raises(OffsetTokenMovedError, match=how):
        TokenChange("c", "99", "8", rows).require(found)


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_overwriting_discards_what_is_not_committed(
    snowpipe: FakeSnowpipe, set_token: SetToken, overwrite: bool
) -> None:
    stream(snowpipe, 9)

    change(snowpipe, TokenChange("c", "99", "9"), set_token, overwrite=overwrite)

    opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
    assert opens[1:] == [not overwrite] * 2


def test_writer_that_opened_with_the_old_token_before_the_new_one_was_set_is_fenced(
    snowpipe: FakeSnowpipe, set_token: SetToken
) -> None:
    stream(snowpipe, 9)
    with snowpipe.client() as client:
        late: list[Channel] = []

        def set_late(channel: str, token: str) -> None:
            late.append(Channel.open(client, channel, IntegerOffset))
            set_token(channel, token)

        change(snowpipe, planned(snowpipe, "99"), set_late)
        late[0].append(b'{"ID":10}\n', IntegerOffset(10), IntegerOffset(10), rows=1)
        with pytest.raises(ChannelError):
            late[0].flush()

    assert snowpipe.channels["c"].committed == "99"


def test_token_that_the_service_does_not_show_is_an_error_in_time(snowpipe: FakeSnowpipe) -> None:
    stream(snowpipe, 9)

    with pytest.raises(CommitTimeoutError) as raised:
        change(snowpipe, planned(snowpipe, "99"), lambda channel, token: None)

    assert (raised.value.channel, raised.value.committed, raised.value.target) == ("c", "9", "99")
    assert sum(snowpipe.clock.slept) == 30.5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["open", "status"])
def test_killed_at_a_call_has_set_nothing_and_the_next_try_sets_it(
    snowpipe: FakeSnowpipe, set_token: SetToken, when: str, operation: str
) -> None:
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.fault(**{when: operation}, error=KilledError())
    with pytest.raises(KilledError):
        change(snowpipe, plan, set_token)
    assert snowpipe.channels["c"].committed == "9"

    change(snowpipe, plan, set_token)

    assert snowpipe.channels["c"].committed == "99"


@pytest.mark.parametrize("seed", range(200))
def test_race_of_a_stream_against_a_load_of_the_rest_loses_and_doubles_nothing(
    snowpipe: FakeSnowpipe, set_token: SetToken, seed: int
) -> None:
    """The load takes rows 10 to 99 by another path once it has set the token; a stream comes at any call."""
    draw = random.Random(seed)
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    for _ in range(draw.randint(1, 2)):
        last = draw.randint(10, 40)
        snowpipe.fault(
            **{draw.choice(["before", "after"]): draw.choice(["open", "status"])},
            channel="c",
            skip=draw.randint(0, 1),
            do=lambda last=last: _stream_unless_fenced(snowpipe, last),
        )
    try:
        change(snowpipe, plan, set_token)
    except OffsetTokenMovedError as error:
        loaded: list[int] = []
        found = error.committed
    else:
        loaded = list(range(10, 100))
        found = "99"

    streamed = [row["ID"] for row in snowpipe.channels["c"].rows]
    assert sorted(streamed + loaded) == list(range(len(streamed) + len(loaded)))
    assert snowpipe.channels["c"].committed == found
    if not loaded and found != "99":
        assert found == str(streamed[-1])


def _stream_unless_fenced(snowpipe: FakeSnowpipe, last: int) -> None:
    """A stream may meet another one, or the load's intent; it ends then, and sends no row twice."""
    if int(str(snowpipe.channels["c"].committed)) < last:
        with suppress(ChannelFencedError):
            stream(snowpipe, last)


@pytest.mark.parametrize(
    ("old", "new", "known", "text"),
    [
        ("5", "9", False, "the next writer"),
        (None, "9", True, "rows up to the new token will not"),
        ("9", "9", True, "the token stays"),
        ("9", "5", True, "back: rows after the new token will be sent AGAIN"),
        ("5", "9", True, "forward: rows between the two will NOT"),
    ],
)
def test_moving_a_token_is_described_by_its_effect_on_the_rows(
    old: str | None, new: str, known: bool, text: str
) -> None:
    assert direction(old, new, IntegerOffset if known else None, "c").startswith(text)


@pytest.mark.parametrize(("old", "new"), [("5", "a:b"), ("a:b", "5")])
def test_tokens_of_another_format_are_refused_by_the_channel(old: str, new: str) -> None:
    with pytest.raises(OffsetTokenError, match="'c'"):
        direction(old, new, IntegerOffset, "c")


class TestReset:
    """A reset to row 43 of a channel that has committed row 57, and is polled every half second."""

    @pytest.fixture
    def reset(self, snowpipe: FakeSnowpipe, set_token: SetToken) -> Iterator[Callable[..., Any]]:
        stream(snowpipe, 57)
        with snowpipe.client() as client:
            before = client.channel_statuses(["c"])["c"]

            def reset(new: str = "43", observe: Any = lambda: ChannelState(before), **options: Any) -> Any:
                return reset_offset_token(client, "c", new, observe=observe, set_token=set_token, **options)

            yield reset

    def test_run_that_ends_between_the_watch_and_the_fence_stops_it(
        self, snowpipe: FakeSnowpipe, reset: Callable[..., Any]
    ) -> None:
        snowpipe.fault(before="open", do=lambda: stream(snowpipe, 58))

        with pytest.raises(OffsetTokenMovedError):
            reset(observe_seconds=0)

        assert snowpipe.channels["c"].committed == "58"

    def test_overwriting_reports_the_token_that_was_really_there(
        self, snowpipe: FakeSnowpipe, reset: Callable[..., Any]
    ) -> None:
        snowpipe.fault(before="open", do=lambda: setattr(snowpipe.channels["c"], "committed", "58"))

        done = reset(allow_active_writer=True)

        assert str(done) == "offset token of channel 'c': 58 -> 43"
        assert str(OffsetReset("c", None, "43")) == "offset token of channel 'c': NULL -> 43"
        assert snowpipe.clock.slept == []

    @pytest.mark.parametrize(("options", "seconds"), [({}, 10), ({"observe_seconds": 1.2}, 1.2)])
    def test_channel_is_watched_for_the_given_time(
        self, snowpipe: FakeSnowpipe, reset: Callable[..., Any], options: Any, seconds: float
    ) -> None:
        assert (reset(**options).old, snowpipe.channels["c"].committed) == ("57", "43")

        assert snowpipe.clock.slept[0] == 0.5
        assert sum(snowpipe.clock.slept) == pytest.approx(seconds)

    def test_signs_of_a_writer_stop_it(self, snowpipe: FakeSnowpipe, reset: Callable[..., Any]) -> None:
        seen = [ChannelState(ChannelStatus("c", "SUCCESS", str(token))) for token in (57, 57, 58)]

        with pytest.raises(WriterActiveError, match=r"'c'.*went from 57 to 58"):
            reset(observe=lambda: seen.pop(0))

        assert (seen, snowpipe.channels["c"].committed) == ([], "57")

    def test_empty_token_and_missing_channel_are_refused(
        self, snowpipe: FakeSnowpipe, reset: Callable[..., Any]
    ) -> None:
        with pytest.raises(ConfigurationError, match="empty"):
            reset("")
        with pytest.raises(ChannelInvalidError) as gone:
            reset(observe=lambda: ChannelState(ChannelStatus.missing("c")))

        assert (gone.value.channel, gone.value.http_status, gone.value.code) == ("c", 404, MISSING)
        assert snowpipe.channels["c"].committed == "57"


class TestWatch:
    def test_polls_all_channels_until_the_time_is_over(self, snowpipe: FakeSnowpipe) -> None:
        with snowpipe.client() as client:
            for name in ("a", "b"):
                stream(snowpipe, 1, name)
            snowpipe.calls.clear()
            watch_channels(client, ["a", "b"], 1.2)
            watch_channels(client, [], 1.2)

        assert snowpipe.did("status") == ["status a,b"] * 4
        assert snowpipe.clock.slept == pytest.approx([0.5, 0.5, 0.2])

    def test_names_the_one_that_is_written_to(self, snowpipe: FakeSnowpipe) -> None:
        stream(snowpipe, 1, "a")
        stream(snowpipe, 1, "b")
        snowpipe.fault(before="status", skip=2, channel="a,b", do=lambda: stream(snowpipe, 2, "b"))

        with snowpipe.client() as client, pytest.raises(WriterActiveError, match=r"'b'.*went from 1 to 2"):
            watch_channels(client, ["a", "b"], 10)


class TestRestore:
    STEPS = (
        RestoreStep("kept", RestoreAction.KEEP, "5", "5"),
        RestoreStep("a", RestoreAction.SET, None, "7"),
        RestoreStep("b", RestoreAction.SET, "49", "50", rows_inserted=50),
        RestoreStep("gone", RestoreAction.CREATE, None, "3"),
    )

    def test_channel_that_is_loaded_while_another_is_restored_keeps_its_token(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")
        snowpipe.fault(after="open", channel="a", do=lambda: stream(snowpipe, 55, "b"))

        with snowpipe.client() as client, pytest.raises(OffsetTokenMovedError, match="'55'"):
            restore_channels(client, self.STEPS, set_token=set_token)

        assert {name: one.committed for name, one in snowpipe.channels.items()} == {"a": "7", "b": "55"}

    def test_reports_what_each_channel_really_had(self, snowpipe: FakeSnowpipe, set_token: SetToken) -> None:
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")

        with snowpipe.client() as client:
            found = restore_channels(client, self.STEPS, set_token=set_token)

        assert found == {"a": None, "b": "49", "gone": None, "kept": "5"}
        assert snowpipe.channels["gone"].committed == "3"
        assert snowpipe.channels["b"].committed == "50"

    def test_rows_that_came_under_the_planned_token_stop_it_unless_overwriting(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        stream(snowpipe, 52, "b")
        snowpipe.channels["b"].committed = "49"

        with snowpipe.client() as client:
            with pytest.raises(OffsetTokenMovedError):
                restore_channels(client, self.STEPS[2:3], set_token=set_token)
            restore_channels(client, self.STEPS[2:3], set_token=set_token, overwrite=True)

        assert snowpipe.channels["b"].committed == "50"

    def test_channel_that_somebody_made_meanwhile_is_not_overwritten(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        stream(snowpipe, 6, "gone")

        with snowpipe.client() as client, pytest.raises(OffsetTokenMovedError):
            restore_channels(client, self.STEPS[3:], set_token=set_token)

        assert snowpipe.channels["gone"].committed == "6"
