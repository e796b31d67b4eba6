"""Setting a committed token: fence, read, compare, set, read again, with a stream at every point between."""

import random
from contextlib import suppress

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


@pytest.fixture
def set_token(snowpipe):
    """The system function: it sets what it is given, whatever is there."""
    return setter(snowpipe)


def setter(snowpipe):
    return lambda channel, token: setattr(snowpipe.channels[channel], "committed", token)


def stream(snowpipe, last, channel="c"):
    """Do what a stream does: open, go on after the committed token up to a row, wait for the commit."""
    with snowpipe.client() as client, Channel.open(client, channel, IntegerOffset) as writer:
        first = 0 if writer.progress.committed is None else int(str(writer.progress.committed)) + 1
        for number in range(first, last + 1):
            put(writer, number)
        writer.flush()
        writer.wait_for_commit(timeout=5)


def put(writer, number):
    writer.append(b'{"ID":%d}\n' % number, IntegerOffset(number), IntegerOffset(number), rows=1)


def planned(snowpipe, token, channel="c"):
    with snowpipe.client() as client:
        return TokenChange.after(client.channel_statuses([channel])[channel], token)


def change(snowpipe, planned, set_token, **options):
    with snowpipe.client() as client:
        return compare_and_set(client, planned, set_token=set_token, **options)


def test_token_is_set_when_nobody_has_written_since_it_was_planned(snowpipe, set_token):
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.calls.clear()

    assert change(snowpipe, plan, set_token).committed == "9"

    assert snowpipe.channels["c"].committed == "99"
    assert snowpipe.did("open", "status") == ["open c", "status c", "open c", "status c"]


def test_another_committed_token_stops_it_and_both_are_named(snowpipe, set_token):
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    for committed in (None, "8", "10"):
        snowpipe.channels["c"].committed = committed

        with pytest.raises(OffsetTokenMovedError, match="'9'") as raised:
            change(snowpipe, plan, set_token)

        assert (raised.value.expected, raised.value.committed) == ("9", committed)
        assert (committed or "NULL") in str(raised.value)
        assert snowpipe.channels["c"].committed == committed
    with snowpipe.client() as client, pytest.raises(OffsetTokenMovedError):
        fence(client, TokenChange("c", "99", "8"))


def test_rows_that_came_under_the_same_token_stop_it(snowpipe, set_token):
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    stream(snowpipe, 12)
    snowpipe.channels["c"].committed = "9"

    with pytest.raises(OffsetTokenMovedError, match="3 more"):
        change(snowpipe, plan, set_token)


def test_a_moved_token_is_reported_with_the_rows_that_came_since():
    found = ChannelStatus("c", "SUCCESS", "9", rows_inserted=7)
    for rows, how in {7: "0 more row", 6: "1 more row", 8: "in a recreated channel"}.items():
        with pytest.raises(OffsetTokenMovedError, match=how):
            TokenChange("c", "99", "8", rows).require(found)


def test_rows_that_are_received_and_not_committed_stop_it(snowpipe, set_token):
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.holds_commits = True
    with snowpipe.client() as client:
        writer = Channel.open(client, "c", IntegerOffset)
        put(writer, 10)
        writer.flush()

        with pytest.raises(WriterActiveError):
            change(snowpipe, plan, set_token)

    assert snowpipe.channels["c"].committed == "9"


@pytest.mark.parametrize("when", ["before it", "while the token is set"])
def test_writer_that_opened_with_the_old_token_is_fenced_and_cannot_commit(snowpipe, set_token, when):
    stream(snowpipe, 9)
    writers = []

    def set_late(channel, token):
        if not writers:
            writers.append(Channel.open(client, channel, IntegerOffset))
        set_token(channel, token)

    with snowpipe.client() as client:
        if when == "before it":
            writers.append(Channel.open(client, "c", IntegerOffset))
        change(snowpipe, planned(snowpipe, "99"), set_late)

        put(writers[0], 10)
        with pytest.raises(ChannelError):
            writers[0].flush()

    assert snowpipe.channels["c"].committed == "99"
    assert len(snowpipe.channels["c"].rows) == 10


def test_rows_streamed_while_the_token_is_set_are_found_when_it_is_read_back(snowpipe, set_token):
    stream(snowpipe, 9)

    def set_late(channel, token):
        stream(snowpipe, 12)
        set_token(channel, token)

    with pytest.raises(OffsetTokenMovedError, match=r"3 row\(s\).*overwritten") as raised:
        change(snowpipe, planned(snowpipe, "99"), set_late)

    assert (raised.value.channel, raised.value.expected, raised.value.committed) == ("c", "99", "99")


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_overwriting_discards_what_is_not_committed(snowpipe, set_token, overwrite):
    stream(snowpipe, 9)

    change(snowpipe, TokenChange("c", "99", "9"), set_token, overwrite=overwrite)

    opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
    assert opens[1:] == [not overwrite] * 2


def test_token_that_the_service_does_not_show_is_an_error_in_time(snowpipe):
    stream(snowpipe, 9)

    with pytest.raises(CommitTimeoutError) as raised:
        change(snowpipe, planned(snowpipe, "99"), lambda channel, token: None)

    assert (raised.value.channel, raised.value.committed, raised.value.target) == ("c", "9", "99")
    assert sum(snowpipe.clock.slept) == 30.5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["open", "status"])
def test_killed_at_a_call_has_set_nothing_and_the_next_try_sets_it(snowpipe, set_token, when, operation):
    stream(snowpipe, 9)
    plan = planned(snowpipe, "99")
    snowpipe.fault(**{when: operation}, error=KilledError())
    with pytest.raises(KilledError):
        change(snowpipe, plan, set_token)
    assert snowpipe.channels["c"].committed == "9"

    change(snowpipe, plan, set_token)

    assert snowpipe.channels["c"].committed == "99"


def race(clock, seed):
    """The load takes rows 10 to 99 by another path once it has set the token; a stream comes at any call."""
    draw, snowpipe = random.Random(seed), FakeSnowpipe(clock)
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
        change(snowpipe, plan, setter(snowpipe))
    except OffsetTokenMovedError as error:
        loaded = []
        found = error.committed
    else:
        loaded = list(range(10, 100))
        found = "99"

    streamed = [row["ID"] for row in snowpipe.channels["c"].rows]
    assert sorted(streamed + loaded) == list(range(len(streamed) + len(loaded)))
    assert snowpipe.channels["c"].committed == found
    if not loaded and found != "99":
        assert found == str(streamed[-1])


def _stream_unless_fenced(snowpipe, last):
    """A stream may meet another one, or the load's intent; it ends then, and sends no row twice."""
    if int(str(snowpipe.channels["c"].committed)) < last:
        with suppress(ChannelFencedError):
            stream(snowpipe, last)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.nightly)])
def test_race_of_a_stream_against_a_load_of_the_rest_loses_and_doubles_nothing(snowpipe, seeds):
    for seed in seeds:
        race(snowpipe.clock, seed)


def test_moving_a_token_is_described_by_its_effect_on_the_rows():
    for old, new, known, text in [
        ("5", "9", False, "the next writer"),
        (None, "9", True, "rows up to the new token will not"),
        ("9", "9", True, "the token stays"),
        ("9", "5", True, "back: rows after the new token will be sent AGAIN"),
        ("5", "9", True, "forward: rows between the two will NOT"),
    ]:
        assert direction(old, new, IntegerOffset if known else None, "c").startswith(text)
    for old, new in [("5", "a:b"), ("a:b", "5")]:
        with pytest.raises(OffsetTokenError, match="'c'"):
            direction(old, new, IntegerOffset, "c")


class TestReset:
    """A reset to row 43 of a channel that has committed row 57, and is polled every half second."""

    @pytest.fixture
    def reset(self, snowpipe, set_token):
        stream(snowpipe, 57)
        with snowpipe.client() as client:
            before = client.channel_statuses(["c"])["c"]

            def reset(new="43", observe=lambda: ChannelState(before), **options):
                return reset_offset_token(client, "c", new, observe=observe, set_token=set_token, **options)

            yield reset

    def test_run_that_ends_between_the_watch_and_the_fence_stops_it(self, snowpipe, reset):
        snowpipe.fault(before="open", do=lambda: stream(snowpipe, 58))

        with pytest.raises(OffsetTokenMovedError):
            reset(observe_seconds=0)

        assert snowpipe.channels["c"].committed == "58"

    def test_overwriting_reports_the_token_that_was_really_there(self, snowpipe, reset):
        snowpipe.fault(before="open", do=lambda: setattr(snowpipe.channels["c"], "committed", "58"))

        done = reset(allow_active_writer=True)

        assert str(done) == "offset token of channel 'c': 58 -> 43"
        assert str(OffsetReset("c", None, "43")) == "offset token of channel 'c': NULL -> 43"
        assert snowpipe.clock.slept == []

    @pytest.mark.parametrize(("options", "seconds"), [({}, 10), ({"observe_seconds": 1.2}, 1.2)])
    def test_channel_is_watched_for_the_given_time(self, snowpipe, reset, options, seconds):
        assert (reset(**options).old, snowpipe.channels["c"].committed) == ("57", "43")

        assert snowpipe.clock.slept[0] == 0.5
        assert sum(snowpipe.clock.slept) == pytest.approx(seconds)

    def test_signs_of_a_writer_stop_it(self, snowpipe, reset):
        seen = [ChannelState(ChannelStatus("c", "SUCCESS", str(token))) for token in (57, 57, 58)]

        with pytest.raises(WriterActiveError, match=r"'c'.*went from 57 to 58"):
            reset(observe=lambda: seen.pop(0))

        assert (seen, snowpipe.channels["c"].committed) == ([], "57")

    def test_empty_token_and_missing_channel_are_refused(self, snowpipe, reset):
        with pytest.raises(ConfigurationError, match="empty"):
            reset("")
        with pytest.raises(ChannelInvalidError) as gone:
            reset(observe=lambda: ChannelState(ChannelStatus.missing("c")))

        assert (gone.value.channel, gone.value.http_status, gone.value.code) == ("c", 404, MISSING)
        assert snowpipe.channels["c"].committed == "57"


def test_watch_polls_all_channels_until_the_time_is_over_and_names_the_one_that_is_written_to(snowpipe):
    with snowpipe.client() as client:
        for name in ("a", "b"):
            stream(snowpipe, 1, name)
        snowpipe.calls.clear()
        watch_channels(client, ["a", "b"], 1.2)
        watch_channels(client, [], 1.2)
        assert snowpipe.did("status") == ["status a,b"] * 4
        assert snowpipe.clock.slept == pytest.approx([0.5, 0.5, 0.2])

        snowpipe.fault(before="status", skip=2, channel="a,b", do=lambda: stream(snowpipe, 2, "b"))
        with pytest.raises(WriterActiveError, match=r"'b'.*went from 1 to 2"):
            watch_channels(client, ["a", "b"], 10)


class TestRestore:
    STEPS = (
        RestoreStep("kept", RestoreAction.KEEP, "5", "5"),
        RestoreStep("a", RestoreAction.SET, None, "7"),
        RestoreStep("b", RestoreAction.SET, "49", "50", rows_inserted=50),
        RestoreStep("gone", RestoreAction.CREATE, None, "3"),
    )

    @pytest.fixture
    def restore(self, snowpipe, set_token):
        def restore(steps=self.STEPS, **options):
            with snowpipe.client() as client:
                return restore_channels(client, steps, set_token=set_token, **options)

        return restore

    def test_channel_that_is_loaded_while_another_is_restored_keeps_its_token(self, snowpipe, restore):
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")
        snowpipe.fault(after="open", channel="a", do=lambda: stream(snowpipe, 55, "b"))

        with pytest.raises(OffsetTokenMovedError, match="'55'"):
            restore()

        assert {name: one.committed for name, one in snowpipe.channels.items()} == {"a": "7", "b": "55"}

    def test_reports_what_each_channel_really_had(self, snowpipe, restore):
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")

        assert restore() == {"a": None, "b": "49", "gone": None, "kept": "5"}
        assert [snowpipe.channels[name].committed for name in ("gone", "b")] == ["3", "50"]

    def test_rows_that_came_under_the_planned_token_stop_it_unless_overwriting(self, snowpipe, restore):
        stream(snowpipe, 52, "b")
        snowpipe.channels["b"].committed = "49"

        with pytest.raises(OffsetTokenMovedError):
            restore(self.STEPS[2:3])
        restore(self.STEPS[2:3], overwrite=True)

        assert snowpipe.channels["b"].committed == "50"

    def test_channel_that_somebody_made_meanwhile_is_not_overwritten(self, snowpipe, restore):
        stream(snowpipe, 6, "gone")

        with pytest.raises(OffsetTokenMovedError):
            restore(self.STEPS[3:])

        assert snowpipe.channels["gone"].committed == "6"
