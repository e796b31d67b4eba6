"""Setting a committed token: fence, read, compare, set, read again, with a stream at every point between."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_snowpipe.streaming.activity import ChannelLook
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.errors import (
    ChannelError,
    ChannelFencedError,
    CommitTimeoutError,
    OffsetTokenMovedError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.reset import TokenChange, compare_and_set, reset_offset_token
from airflow_provider_snowpipe.streaming.restore import RestoreAction, RestoreStep, restore_channels
from tests.fake_snowpipe import FakeSnowpipe, KilledError

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
        first = 0 if writer.committed is None else int(str(writer.committed)) + 1
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

    with pytest.raises(OffsetTokenMovedError, match="overwritten"):
        change(snowpipe, planned(snowpipe, "99"), set_late)


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

    assert (raised.value.committed, raised.value.target) == ("9", "99")


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


class TestReset:
    def test_run_that_ends_between_the_watch_and_the_fence_stops_it(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        stream(snowpipe, 57)
        with snowpipe.client() as client:
            status = client.channel_statuses(["c"])["c"]
            snowpipe.fault(before="open", do=lambda: stream(snowpipe, 58))

            with pytest.raises(OffsetTokenMovedError):
                reset_offset_token(
                    client,
                    "c",
                    "43",
                    look=lambda: ChannelLook(status),
                    set_token=set_token,
                    observe_seconds=0,
                )

        assert snowpipe.channels["c"].committed == "58"

    def test_overwriting_reports_the_token_that_was_really_there(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        stream(snowpipe, 57)
        with snowpipe.client() as client:
            status = client.channel_statuses(["c"])["c"]
            snowpipe.fault(before="open", channel="c", do=lambda: stream(snowpipe, 58))
            done = reset_offset_token(
                client,
                "c",
                "43",
                look=lambda: ChannelLook(status),
                set_token=set_token,
                allow_active_writer=True,
            )

        assert (done.old, done.new) == ("58", "43")


class TestRestore:
    STEPS = (
        RestoreStep("a", RestoreAction.SET, None, "7"),
        RestoreStep("b", RestoreAction.SET, "49", "50", rows_inserted=50),
        RestoreStep("gone", RestoreAction.CREATE, None, "3"),
        RestoreStep("kept", RestoreAction.KEEP, "5", "5"),
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

    def test_channel_that_somebody_made_meanwhile_is_not_overwritten(
        self, snowpipe: FakeSnowpipe, set_token: SetToken
    ) -> None:
        stream(snowpipe, 6, "gone")

        with snowpipe.client() as client, pytest.raises(OffsetTokenMovedError):
            restore_channels(client, self.STEPS[2:3], set_token=set_token)

        assert snowpipe.channels["gone"].committed == "6"
