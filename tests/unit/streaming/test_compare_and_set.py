"""Setting a committed token with a stream at every point between; backups, and what a restore sets."""

import datetime as dt
import itertools
import json
import random
import re
from contextlib import suppress
from functools import partial

import pytest

from airflow_provider_snowpipe.streaming import admin, errors
from airflow_provider_snowpipe.streaming.admin import TokenChange
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offset_backup import (
    CHANNEL_LIFE,
    KeptToken,
    OffsetBackup,
    RestoreAction,
    RestoreStep,
    chosen,
    plan_restore,
    restore_channels,
    take_backup,
)
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, UnitOffset
from airflow_provider_snowpipe.streaming.progress import ChannelState, ChannelStatus
from tests.checkpoints import shown, source_of, token
from tests.fake_snowpipe import MISSING, FakeSnowpipe, KilledError
from tests.refusals import refused

SOURCE = source_of(IntegerOffset)
NINE = token(9, rows=10)
LATER = token(99, rows=100)
"""Committed when a stream has loaded ten rows, and what the channel is to be set to."""


@pytest.fixture
def set_token(snowpipe):
    """The system function: it sets what it is given, whatever is there."""
    return setter(snowpipe)


def setter(snowpipe):
    return lambda channel, token: setattr(snowpipe.channels[channel], "committed", token)


def stream(snowpipe, last, channel="c"):
    """Do what a stream does: open, go on after the committed token up to a row, wait for the commit."""
    with snowpipe.client() as client, Channel.open(client, channel, SOURCE) as writer:
        first = 0 if writer.progress.committed is None else int(str(writer.progress.committed)) + 1
        for number in range(first, last + 1):
            put(writer, number)
        writer.flush()
        writer.wait_for_commit(timeout=5)


def put(writer, number):
    writer.append(b'{"ID":%d}\n' % number, IntegerOffset(number), IntegerOffset(number), rows=1)


def planned(snowpipe):
    with snowpipe.client() as client:
        return admin.TokenChange.after(client.channel_statuses(["c"])["c"], LATER)


def change(snowpipe, planned, set_token, **options):
    with snowpipe.client() as client:
        return admin.compare_and_set(client, planned, set_token=set_token, **options)


class TestCompareAndSet:
    @pytest.fixture(autouse=True)
    def ten_rows(self, snowpipe):
        stream(snowpipe, 9)

    def test_token_is_set_when_nobody_has_written_since_it_was_planned(self, snowpipe, set_token):
        plan = planned(snowpipe)
        snowpipe.calls.clear()
        assert change(snowpipe, plan, set_token).committed == NINE
        assert snowpipe.channels["c"].position == "99"
        assert snowpipe.did("open", "status") == ["open c", "status c", "open c", "status c"]

    def test_another_committed_token_stops_it_and_both_are_named(self, snowpipe, client, set_token):
        plan = planned(snowpipe)
        for committed in (None, token(8, rows=9), token(10, rows=11)):
            snowpipe.channels["c"].committed = committed
            with pytest.raises(errors.OffsetTokenMovedError, match=re.escape(NINE)) as raised:
                change(snowpipe, plan, set_token)
            assert (raised.value.expected, raised.value.committed) == (NINE, committed)
            assert (committed or "NULL") in str(raised.value)
            assert snowpipe.channels["c"].committed == committed
        with pytest.raises(errors.OffsetTokenMovedError):
            admin.fence(client, admin.TokenChange("c", LATER, token(8)))

    def test_rows_that_came_since_stop_it_under_the_same_token_as_well(self, snowpipe, set_token):
        plan = planned(snowpipe)
        stream(snowpipe, 12)
        snowpipe.channels["c"].committed = NINE
        with pytest.raises(errors.OffsetTokenMovedError, match="3 more"):
            change(snowpipe, plan, set_token)
        found = ChannelStatus("c", "SUCCESS", "9", rows_inserted=7)
        for rows, how in {7: "0 more row", 6: "1 more row", 8: "in a recreated channel"}.items():
            with pytest.raises(errors.OffsetTokenMovedError, match=how):
                admin.TokenChange("c", "99", "8", rows).require(found)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_rows_that_are_received_and_not_committed_stop_it_unless_overwriting(
        self, snowpipe, client, set_token, overwrite
    ):
        plan = planned(snowpipe)
        snowpipe.holds_commits = True
        put(writer := Channel.open(client, "c", SOURCE), 10)
        writer.flush()
        with suppress(errors.WriterActiveError):
            change(snowpipe, plan, set_token, overwrite=overwrite)
        assert snowpipe.channels["c"].position == ("99" if overwrite else "9")
        opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
        assert opens[2:] == [not overwrite] * (2 if overwrite else 1)

    @pytest.mark.parametrize("is_late", [False, True], ids=["before it", "while the token is set"])
    def test_writer_that_opened_with_the_old_token_is_fenced(self, snowpipe, client, set_token, is_late):
        writers = [] if is_late else [Channel.open(client, "c", SOURCE)]

        def set_late(channel, token):
            if not writers:
                writers.append(Channel.open(client, channel, SOURCE))
            set_token(channel, token)

        change(snowpipe, planned(snowpipe), set_late)

        put(writers[0], 10)
        with pytest.raises(errors.ChannelError):
            writers[0].flush()
        assert (snowpipe.channels["c"].position, len(snowpipe.channels["c"].rows)) == ("99", 10)

    def test_rows_streamed_while_the_token_is_set_are_found_when_it_is_read_back(self, snowpipe, set_token):
        def set_late(channel, token):
            stream(snowpipe, 12)
            set_token(channel, token)

        with pytest.raises(errors.OffsetTokenMovedError, match=r"3 rows.*overwritten") as raised:
            change(snowpipe, planned(snowpipe), set_late)
        assert (raised.value.channel, raised.value.expected, raised.value.committed) == ("c", LATER, LATER)

    def test_token_that_the_service_does_not_show_is_an_error_in_time(self, snowpipe):
        with pytest.raises(errors.CommitTimeoutError) as late:
            change(snowpipe, planned(snowpipe), lambda channel, token: None)
        assert (late.value.channel, late.value.committed, late.value.target) == ("c", NINE, LATER)
        assert sum(snowpipe.clock.slept) == 30.5

    def test_killed_at_a_call_has_set_nothing_and_the_next_try_sets_it(self, snowpipe, set_token):
        for when, operation in itertools.product(("before", "after"), ("open", "status")):
            snowpipe.channels["c"].committed = NINE
            plan = planned(snowpipe)
            snowpipe.fault(**{when: operation}, error=KilledError())
            with pytest.raises(KilledError):
                change(snowpipe, plan, set_token)
            assert snowpipe.channels["c"].position == "9"
            change(snowpipe, plan, set_token)
            assert snowpipe.channels["c"].position == "99"


def race(clock, seed):
    """The load takes rows 10 to 99 by another path once it has set the token; a stream comes at any call."""
    draw, snowpipe = random.Random(seed), FakeSnowpipe(clock)
    stream(snowpipe, 9)
    plan = planned(snowpipe)
    for _ in range(draw.randint(1, 2)):
        last = draw.randint(10, 40)
        call = {draw.choice(["before", "after"]): draw.choice(["open", "status"])}
        come = partial(_stream_unless_fenced, snowpipe, last)
        snowpipe.fault(**call, channel="c", skip=draw.randint(0, 1), do=come)
    try:
        change(snowpipe, plan, setter(snowpipe))
    except errors.OffsetTokenMovedError as error:
        copied = []
        found = shown(error.committed)
    else:
        copied = list(range(10, 100))
        found = "99"

    streamed = [row["ID"] for row in snowpipe.channels["c"].rows]
    assert sorted(streamed + copied) == list(range(len(streamed) + len(copied)))
    assert snowpipe.channels["c"].position == found
    if not copied and found != "99":
        assert found == str(streamed[-1])


def _stream_unless_fenced(snowpipe, last):
    """A stream may meet another one, or a load's hold; it ends then, and sends no row twice."""
    if int(str(snowpipe.channels["c"].position)) < last:
        with suppress(errors.ChannelFencedError):
            stream(snowpipe, last)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.nightly)])
def test_race_of_a_stream_against_a_load_of_the_rest_loses_and_doubles_nothing(snowpipe, seeds):
    for seed in seeds:
        race(snowpipe.clock, seed)


class TestReset:
    """A reset to row 43 of a channel that has committed row 57, and is polled every half second."""

    THEN = token(57, rows=58)

    @pytest.fixture
    def reset(self, snowpipe, client, set_token):
        stream(snowpipe, 57)
        before = client.channel_statuses(["c"])["c"]

        def reset(new="43", observe=lambda: ChannelState(before), **options):
            return admin.reset_offset_token(client, "c", new, observe=observe, set_token=set_token, **options)

        return reset

    def test_overwriting_reports_the_token_that_was_really_there(self, snowpipe, reset):
        now = token(58, rows=58)
        snowpipe.fault(before="open", do=lambda: setattr(snowpipe.channels["c"], "committed", now))
        done = reset(allow_active_writer=True)
        assert str(done) == f"offset token of channel 'c': {now} -> {token(43, rows=58)}"
        assert str(admin.OffsetReset("c", None, "43")) == "offset token of channel 'c': NULL -> 43"
        assert snowpipe.clock.slept == []

    def test_signs_of_a_writer_stop_it(self, snowpipe, reset):
        seen = [ChannelState(ChannelStatus("c", "SUCCESS", str(token))) for token in (57, 57, 58)]
        with pytest.raises(errors.WriterActiveError, match=r"'c'.* 57 .* 58"):
            reset(observe=lambda: seen.pop(0))
        assert (seen, snowpipe.channels["c"].committed) == ([], self.THEN)

    def test_positions_of_another_kind_empty_tokens_and_missing_channels_are_refused(self, snowpipe, reset):
        with pytest.raises(errors.OffsetTokenError, match="'c'"):
            reset("a.log:3")
        with pytest.raises(errors.ConfigurationError, match="empty"):
            reset("")
        with pytest.raises(errors.ChannelInvalidError) as gone:
            reset(observe=lambda: ChannelState(ChannelStatus.missing("c")))
        assert (gone.value.channel, gone.value.http_status, gone.value.code) == ("c", 404, MISSING)
        assert snowpipe.channels["c"].committed == self.THEN


def test_watch_polls_all_channels_until_the_time_is_over_and_names_the_one_that_is_written_to(
    snowpipe, client
):
    for name in ("a", "b"):
        stream(snowpipe, 1, name)
    snowpipe.calls.clear()
    admin.watch_channels(client, ["a", "b"], 1.2)
    admin.watch_channels(client, [], 1.2)
    assert snowpipe.did("status") == ["status a,b"] * 4
    assert snowpipe.clock.slept == pytest.approx([0.5, 0.5, 0.2])
    snowpipe.fault(before="status", skip=2, channel="a,b", do=lambda: stream(snowpipe, 2, "b"))
    with pytest.raises(errors.WriterActiveError, match=r"'b'.* 1~.* 2~"):
        admin.watch_channels(client, ["a", "b"], 10)


class TestRestore:
    STEPS = (
        RestoreStep(RestoreAction.KEEP, TokenChange("kept", token(5), token(5), 0)),
        RestoreStep(RestoreAction.SET, TokenChange("a", token(7, rows=8, errors=1), None, 0)),
        RestoreStep(RestoreAction.SET, TokenChange("b", token(50, rows=51), token(49, rows=50), 50)),
        RestoreStep(RestoreAction.CREATE, TokenChange("gone", token(3, rows=4), None, 0)),
    )

    @pytest.fixture
    def restore(self, client, set_token):
        return lambda steps=self.STEPS: restore_channels(client, steps, set_token=set_token)

    def test_channel_that_is_loaded_or_made_meanwhile_keeps_its_token(self, snowpipe, restore):
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")
        stream(snowpipe, 6, "gone")
        snowpipe.fault(after="open", channel="a", do=lambda: stream(snowpipe, 55, "b"))

        with pytest.raises(errors.OffsetTokenMovedError, match=re.escape(token(55, rows=56))):
            restore()
        with pytest.raises(errors.OffsetTokenMovedError):
            restore(self.STEPS[3:])

        positions = {name: one.position for name, one in snowpipe.channels.items()}
        assert positions == {"a": "7", "b": "55", "gone": "6"}

    def test_reports_what_each_channel_really_had_and_sets_tokens_that_balance(
        self, snowpipe, client, restore
    ):
        snowpipe.channel("a")
        stream(snowpipe, 49, "b")
        assert restore() == {"a": None, "b": token(49, rows=50), "gone": None, "kept": token(5)}
        set_to = {"a": token(7, rows=0), "b": token(50, rows=50), "gone": token(3, rows=0)}
        assert {name: snowpipe.channels[name].committed for name in set_to} == set_to
        for name in set_to:
            assert Channel.open(client, name, SOURCE).start.excess == 0


class TestReported:
    @pytest.fixture(autouse=True)
    def rejected(self, snowpipe):
        snowpipe.rejects = lambda row: row["ID"] in (3, 12)
        stream(snowpipe, 9)

    @pytest.mark.parametrize("how", ["committed", "received"])
    def test_a_channel_that_somebody_writes_to_is_left_alone(self, snowpipe, client, caplog, how):
        before = client.channel_statuses(["c"])["c"]
        snowpipe.holds_commits = how == "received"
        with Channel.open(client, "c", SOURCE) as writer:
            put(writer, 10)
            writer.flush()
            admin.mark_reported(client, {"c": before})
            put(writer, 11)
        snowpipe.commit()
        assert snowpipe.channels["c"].committed == token(11, rows=12)
        assert len(snowpipe.channels["c"].rows) == 11
        assert "'c' will be reported again" in caplog.text


PIPE = PipeName("DB", "S", "T-STREAMING")
MONDAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
TUESDAY = MONDAY + dt.timedelta(days=1)


def _status(name, token, rows=0):
    return ChannelStatus(name, "SUCCESS", token, rows_inserted=rows)


def _backup(*statuses, previous=None, now=MONDAY, **options):
    return take_backup(PIPE, {s.channel: s for s in statuses}, previous, now=now, **options)


class TestTake:
    def test_first_backup_keeps_token_timestamp_and_rows_of_each_channel(self, caplog):
        found = (_status("a", "7", 70), _status("b", None), ChannelStatus.missing("c"))
        backup = _backup(*found, offset_format="integer")
        assert backup == OffsetBackup(PIPE, MONDAY, {"a": KeptToken("7", MONDAY, 70)}, "integer")
        assert [record.args for record in caplog.records] == [("b", PIPE), ("c", PIPE)]

    def test_life_of_a_channel_counts_from_its_last_change(self):
        before = _backup(_status("a", "7", 70))
        for now, rows, since in [("7", 70, MONDAY), ("8", 70, TUESDAY), ("7", 71, TUESDAY)]:
            backup = _backup(_status("a", now, rows), previous=before, now=TUESDAY)
            assert (backup.taken_at, backup.channels["a"]) == (TUESDAY, KeptToken(now, since, rows))
        assert dt.timedelta(days=30) == CHANNEL_LIFE
        assert before.expiring(CHANNEL_LIFE) == {"a": MONDAY + CHANNEL_LIFE}
        assert before.expiring(CHANNEL_LIFE - dt.timedelta(seconds=1)) == {}

    def test_lost_token_is_not_replaced_unless_asked(self):
        before = _backup(_status("a", "7"), _status("b", "9"))
        for now in [(), (ChannelStatus.missing("a"),), (_status("a", None),)]:
            statuses = (*now, _status("b", "9"))
            with pytest.raises(errors.SourcePositionError, match=r"'a' \(token 7") as caught:
                _backup(*statuses, previous=before, now=TUESDAY)
            assert "'b'" not in str(caught.value)
            kept = _backup(*statuses, previous=before, now=TUESDAY, keep_lost=True)
            assert kept.channels == before.channels
        assert _backup(previous=_backup(_status("a", None)), now=TUESDAY).channels == {}

    def test_channel_with_fewer_rows_than_before_is_named(self, caplog):
        before = _backup(_status("a", "10", 100))
        for given, rows in [("9", 90), ("11", 90), ("9", 100), (None, 0)]:
            caplog.clear()
            now = (_status("a", given, rows), _status("b", "1"))
            backup = _backup(*now, previous=before, keep_lost=True)
            assert backup.channels["a"].offset_token == given or given is None
            words = f"'a' of pipe {PIPE} was dropped and recreated: it has committed {given}"
            named = [words in one.message and " 10 " in one.message for one in caplog.records]
            assert named == ([True] if rows == 90 else [])


def _changed(*path, to=None):
    body = json.loads(_backup(_status("a", "7", 70)).to_json())
    within = body
    for key in path[:-1]:
        within = within[key]
    if path:
        within[path[-1]] = to
    return json.dumps(body)


class TestFile:
    def test_reads_back_as_it_was_written(self):
        backup = _backup(_status("b", "7", 70), _status("a", "1"), offset_format="integer")
        text = backup.to_json()
        for one in (text, text.encode()):
            assert OffsetBackup.from_json(one, origin="x", pipe=PIPE) == backup
        assert list(json.loads(text)["channels"]) == ["a", "b"]

    def test_text_that_is_no_backup_names_where_it_came_from(self):
        token = _changed("channels", "a", "offset_token", to=7)
        wrong = [
            *("", "[]", "{}", token),
            _changed("format", to="other"),
            _changed("pipe", to={"database": "DB"}),
            _changed("taken_at", to="2026-03-02T00:00:00"),
            _changed("channels", to=[]),
            _changed("channels", "a", "unchanged_since", to="2026-03-02T00:00:00"),
            _changed("channels", "a", to={"offset_token": "7"}),
        ]

        def read(text):
            OffsetBackup.from_json(text, origin="x.json", pipe=PIPE)

        refused(errors.ConfigurationError, read, wrong, "x.json is not")
        refused(errors.ConfigurationError, read, [token], "channel 'a' has the token 7")
        refused(errors.ConfigurationError, read, [_changed("version", to=2)], "x.json", "'version': 2")
        with pytest.raises(errors.ConfigurationError, match="OTHER"):
            OffsetBackup.from_json(_changed(), origin="x.json", pipe=PipeName("DB", "S", "OTHER"))


def _kept(**tokens):
    return OffsetBackup(PIPE, MONDAY, {name: KeptToken(token, MONDAY) for name, token in tokens.items()})


def _plan(kept, committed, offset=IntegerOffset, **options):
    statuses = {name: _status(name, token, 3) for name, token in committed.items()}
    return plan_restore(_kept(**kept), statuses, offset, **options)


class TestRestorePlan:
    def test_channel_gets_the_backups_token_unless_it_has_it(self):
        kept = {"a": "10", "c": "10"}
        for committed, action in [(None, "SET"), ("9", "SET"), ("10", "KEEP")]:
            expected = [RestoreStep(RestoreAction[action], TokenChange("a", "10", committed, 3))]
            assert _plan(kept, {"a": committed, "b": "9"}) == expected
        (step,) = plan_restore(_kept(a="10"), {"a": ChannelStatus.missing("a")}, IntegerOffset)
        assert step == RestoreStep(RestoreAction.CREATE, TokenChange("a", "10", None, 0))
        assert str(step) == "create channel 'a': NULL -> 10"
        backup = _kept(a="1", b="2")
        assert [chosen(backup, names) for names in (None, ["b"], [])] == [["a", "b"], ["b"], []]
        refused(errors.ConfigurationError, lambda names: chosen(backup, names), [["a", "x"]], "'x'", "a, b")

    def test_channel_that_is_ahead_stops_the_whole_restore_unless_that_is_allowed(self):
        with pytest.raises(errors.SourcePositionError, match="1 channel") as caught:
            _plan({"a": "10", "b": "10"}, {"a": "9", "b": "11"})
        assert "'b' (committed 11, backup 10)" in str(caught.value)
        assert "offset_format" not in str(caught.value)
        (step,) = _plan({"a": "10"}, {"a": "11"}, allow_older_tokens=True)
        assert step == RestoreStep(RestoreAction.SET, TokenChange("a", "10", "11", 3))

    def test_tokens_are_compared_in_their_format_and_without_one_may_only_be_equal(self):
        steps = _plan({"a": "10", "b": "10"}, {"a": "10", "b": None}, None)
        assert [one.action for one in steps] == [RestoreAction.KEEP, RestoreAction.SET]
        with pytest.raises(errors.SourcePositionError, match="offset_format"):
            _plan({"a": "10"}, {"a": "9"}, None)
        for committed, kept in [("x", "10"), ("10", "x")]:
            with pytest.raises(errors.OffsetTokenError, match="'a'"):
                _plan({"a": kept}, {"a": committed})
        # The same position in another spelling is not ahead.
        (step,) = _plan({"a": "1/a.log:7"}, {"a": "1/b.log:7"}, UnitOffset)
        assert (step.action, step.change.token) == (RestoreAction.SET, "1/a.log:7")
