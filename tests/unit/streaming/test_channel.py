"""The writer of a channel: order, batches, pace, fencing, and waiting for the commit."""

import random
import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming import batch
from airflow_provider_snowpipe.streaming import channel as channel_module
from airflow_provider_snowpipe.streaming.batch import Compressor, Part
from airflow_provider_snowpipe.streaming.channel import Channel, ChannelCounters
from airflow_provider_snowpipe.streaming.errors import (
    ChannelFencedError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    ContinuityError,
    OffsetTokenError,
    SourceChangedError,
    TokenWentBackError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.checkpoints import binding_of, loaded, shown, source_of, token
from tests.fake_snowpipe import MISSING, UNCOMMITTED, Call, error
from tests.refusals import refused

FAST = BatchLimits(requests_per_second=10_000, bytes_per_second=None, age_seconds=30)
SOURCE = source_of(IntegerOffset)


def open_channel(snowpipe, source=SOURCE, **options):
    limits = BatchLimits(**{"requests_per_second": 10_000, "age_seconds": 30, **options})
    return Channel.open(snowpipe.client(), "c", source, limits=limits)


@pytest.fixture
def channel(snowpipe):
    opened = Channel.open(snowpipe.client(), "c", SOURCE, limits=FAST)
    yield opened
    opened.close(flush=False)


def put(channel, first, last):
    body = b"".join(b'{"n":%d}\n' % n for n in range(first, last + 1))
    channel.append(body, IntegerOffset(first), IntegerOffset(last), rows=last - first + 1)


def numbers(snowpipe):
    return [row["n"] for row in snowpipe.channels["c"].rows]


def opens(snowpipe):
    return [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]


class TestCommit:
    def test_rows_arrive_in_order_with_the_token_of_the_last_one(self, snowpipe, channel):
        put(channel, 0, 4)
        put(channel, 5, 5)
        status = channel.wait_for_commit(timeout=60)
        assert numbers(snowpipe) == [0, 1, 2, 3, 4, 5]
        assert snowpipe.did("append") == ["append c 0..5"]
        assert status.committed == token(5, rows=6)
        assert channel.progress.committed == IntegerOffset(5)
        assert (channel.counters.rows, channel.counters.requests) == (6, 1)

    def test_an_append_that_returned_is_not_committed_and_the_wait_ends_in_time(self, snowpipe, channel):
        put(channel, 0, 4)
        channel.flush()
        snowpipe.holds_commits = True
        put(channel, 5, 9)
        channel.flush()
        assert (channel.progress.sent, channel.progress.committed) == (IntegerOffset(9), None)

        assert shown(channel.wait_for_commit(IntegerOffset(4), timeout=0).committed) == "4"
        slept = len(snowpipe.clock.slept)
        with pytest.raises(CommitTimeoutError) as caught:
            channel.wait_for_commit(timeout=10)
        found = (caught.value.channel, shown(caught.value.committed), caught.value.target)
        assert found == ("c", "4", "9")
        assert 5 <= sum(snowpipe.clock.slept[slept:]) <= 10

    @pytest.mark.parametrize(("committed", "done"), [(3, False), (4, True), (9, True)])
    def test_is_at_or_past_the_target(self, snowpipe, channel, committed, done):
        snowpipe.holds_commits = True
        put(channel, 0, 4)
        channel.flush()
        snowpipe.channels["c"].committed = token(committed)
        if done:
            channel.wait_for_commit(timeout=10)
        else:
            with pytest.raises(CommitTimeoutError):
                channel.wait_for_commit(timeout=10)
        assert channel.progress.committed == IntegerOffset(committed)

    def test_an_invalid_channel_ends_the_wait_at_once_unless_it_has_its_target(self, snowpipe, channel):
        put(channel, 0, 0)
        channel.wait_for_commit(timeout=30)
        snowpipe.channels["c"].code = "ERR_CHANNEL_INVALID"
        assert shown(channel.wait_for_commit(timeout=0).committed) == "0"
        snowpipe.channels["c"].code = "SUCCESS"
        snowpipe.holds_commits = True
        put(channel, 1, 1)
        channel.flush()
        snowpipe.channels["c"].code = MISSING
        slept = len(snowpipe.clock.slept)
        with pytest.raises(ChannelInvalidError, match="dropped"):
            channel.wait_for_commit(timeout=30)
        assert snowpipe.clock.slept[slept:] == []

    def test_a_token_that_goes_back_during_the_wait_is_noticed(self, snowpipe):
        snowpipe.channel("c", **loaded(9))
        snowpipe.holds_commits = True
        channel = open_channel(snowpipe)
        put(channel, 10, 11)
        snowpipe.channels["c"].committed = token(3)
        with pytest.raises(TokenWentBackError):
            channel.wait_for_commit(timeout=60)
        channel.close(flush=False)

    def test_nothing_to_wait_for_is_no_wait(self, channel):
        assert channel.wait_for_commit(timeout=0.1) is None


class TestBatches:
    @pytest.mark.parametrize(
        ("limit", "ends"), [({"rows": 12}, ["11", "23", "29"]), ({"raw_bytes": 100}, ["11", "22", "29"])]
    )
    def test_close_by_rows_and_by_bytes(self, snowpipe, limit, ends):
        with open_channel(snowpipe, **limit) as channel:
            for n in range(30):
                put(channel, n, n)
        assert [call.positions[1] for call in snowpipe.appends()] == ends
        assert numbers(snowpipe) == list(range(30))

    @pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
    def test_arrive_as_they_were_appended(self, snowpipe, compression):
        with open_channel(snowpipe, compression=compression) as channel:
            put(channel, 0, 99)
        assert numbers(snowpipe) == list(range(100))

    @pytest.mark.parametrize("limit", [{"rows": 2}, {"raw_bytes": 15}, {"age_seconds": 0.02}])
    def test_are_sent_when_they_are_full_or_old_without_another_append(self, snowpipe, limit):
        sent = threading.Event()
        snowpipe.fault(after="append", do=sent.set)
        with open_channel(snowpipe, **limit) as channel:
            put(channel, 0, 1)
            snowpipe.clock.sleep(limit.get("age_seconds", 0.0))
            assert sent.wait(60)
            assert snowpipe.did("append") == ["append c 0..1"]

    def test_wait_for_more_until_they_are_old(self, snowpipe, monkeypatch):
        now, waits, sent = [0.0], threading.Semaphore(0), threading.Event()

        def report():
            sent.set()
            waits.release(2)  # both at once: the batch is not to be sent by then

        for module in (batch, channel_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        snowpipe.fault(after="append", do=report)
        with open_channel(snowpipe, age_seconds=0.05) as channel:
            wait = channel._changed.wait

            def counted(seconds=None):
                if seconds is not None:
                    waits.release()
                return wait(seconds)

            monkeypatch.setattr(channel._changed, "wait", counted)
            put(channel, 0, 0)
            for _ in range(2):  # the sender waits for the batch's age, and once more
                assert waits.acquire(timeout=60)
            assert not sent.is_set()
            now[0] = 0.05
            assert sent.wait(60)

    def test_are_compressed_by_one_thread_at_a_time(self, snowpipe):
        """The codec of gzip has a state: two threads in it end the process."""
        codec = SlowCodec()
        with open_channel(snowpipe, age_seconds=0.02) as channel:
            channel._compressor._codec = codec
            put(channel, 0, 0)
            snowpipe.clock.sleep(0.02)
            assert codec.began.wait(60)
            put(channel, 1, 1)
            channel.flush()

        assert codec.most == 1
        assert snowpipe.did("append") == ["append c 0..0", "append c 1..1"]

    @pytest.mark.parametrize("limit", [{"rows": 1}, {"age_seconds": 0.01}])
    def test_a_flush_ends_when_what_is_being_sent_is_answered(self, snowpipe, limit):
        sending, flushed = threading.Event(), threading.Event()
        ended_early = []

        def answer_late():
            sending.set()
            ended_early.append(flushed.wait(0.1))

        snowpipe.fault(before="append", do=answer_late)
        with open_channel(snowpipe, **limit) as channel:
            put(channel, 0, 0)
            snowpipe.clock.sleep(limit.get("age_seconds", 0.0))
            assert sending.wait(60)
            channel.flush()
            flushed.set()
        assert ended_early == [False]

    def test_go_at_no_more_than_the_allowed_requests_a_second(self, snowpipe):
        saved_up, more, rate = 10, 3, 5
        started = time.monotonic()
        with open_channel(snowpipe, rows=1, requests_per_second=rate) as channel:
            for n in range(saved_up + more):
                put(channel, n, n)
        assert time.monotonic() - started >= (more - 1) / rate
        assert len(snowpipe.appends()) == saved_up + more

    def test_counters_report_the_bytes_and_the_seconds_of_the_answered_appends(self, snowpipe):
        snowpipe.clock.sleep(1000.0)
        snowpipe.fault(before="append", do=lambda: snowpipe.clock.sleep(3.0))
        snowpipe.fault(before="append", do=lambda: snowpipe.clock.sleep(2.0), skip=1)
        with open_channel(snowpipe) as channel:
            put(channel, 0, 99)
            channel.flush()
            size = len(snowpipe.appends()[0].body)  # before compression
            assert channel.counters == ChannelCounters(100, size, 1, 3.0, 3.0)
            put(channel, 100, 100)

        assert channel.counters == ChannelCounters(101, size + 10, 2, 5.0, 3.0)

    def test_the_sender_is_named_after_the_channel_and_keeps_no_process_alive(self, channel):
        # Channels of other tests that were left behind have senders of the same name.
        before = set(threading.enumerate())
        put(channel, 0, 0)

        (sender,) = [one for one in set(threading.enumerate()) - before if one.name == "channel c"]
        assert sender.daemon
        channel.close()
        assert not sender.is_alive()


class SlowCodec:
    """A codec whose first call lasts until another one comes, or a fifth of a second."""

    def __init__(self):
        self.began, self.met = threading.Event(), threading.Event()
        self.inside = self.most = 0

    def compress(self, body, *, asbytes):
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.began.is_set():
            self.met.set()
        else:
            self.began.set()
            self.met.wait(0.2)
        self.inside -= 1
        return pa.Codec("zstd").compress(body, asbytes=asbytes)


class TestOrder:
    def test_rows_out_of_order_are_refused_and_nothing_is_sent(self, snowpipe, channel):
        put(channel, 0, 4)
        refused(ContinuityError, lambda rows: put(channel, *rows), [(4, 6), (6, 7), (0, 0)], "channel 'c'")
        put(channel, 5, 5)
        channel.flush()
        assert numbers(snowpipe) == [0, 1, 2, 3, 4, 5]

    def test_a_resumed_channel_takes_only_what_follows_the_committed_token(self, snowpipe):
        snowpipe.channel("c", **loaded(41))
        with open_channel(snowpipe) as channel:
            assert channel.progress.committed == IntegerOffset(41)
            refused(ContinuityError, lambda rows: put(channel, *rows), [(41, 45)])
            put(channel, 42, 45)
        assert snowpipe.channels["c"].position == "45"

    def test_an_append_has_rows_and_a_missing_last_newline_is_added(self, snowpipe, channel):
        first = IntegerOffset(0)
        for body, rows in [(b"", 1), (b"{}\n", 0)]:
            with pytest.raises(ContinuityError):
                channel.append(body, first, first, rows=rows)
        for n, body in enumerate(
            [b'{"n":0}', memoryview(b'{"n":1}'), memoryview(b'{"n":2}\n').cast("c")]
        ):  # fmt: skip
            channel.append(body, IntegerOffset(n), IntegerOffset(n), rows=1)
        channel.flush()
        assert snowpipe.appends()[0].body == b'{"n":0}\n{"n":1}\n{"n":2}\n'


OTHERS = {
    "another source": (token(20, binding=binding_of("q")), SourceChangedError, "rebind"),
    "another reading": (token(20, binding=binding_of(reading="csv")), SourceChangedError, "rebind"),
    "other positions": (token("messages_1.log:20"), OffsetTokenError, "integer"),
    "a bare position": ("20", OffsetTokenError, "checkpoint"),
}


class TestSource:
    """Whose rows a channel has committed, and how many, is in its token."""

    @pytest.mark.parametrize(("foreign", "kind", "word"), OTHERS.values(), ids=OTHERS)
    def test_a_token_of_another_one_is_noticed_before_and_after_the_open_and_in_the_wait(
        self, snowpipe, foreign, kind, word
    ):
        snowpipe.holds_commits = True
        channel = open_channel(snowpipe)
        put(channel, 0, 0)
        channel.flush()
        snowpipe.channel("c").committed = foreign
        with pytest.raises(kind, match=f"'c'.*{word}"):
            channel.wait_for_commit(timeout=60)
        channel.close(flush=False)
        snowpipe.calls.clear()
        with pytest.raises(kind, match=f"'c'.*{word}"):
            open_channel(snowpipe)
        assert snowpipe.did("open") == []
        snowpipe.channels.clear()
        snowpipe.fault(after="status", do=lambda: snowpipe.channel("c", committed=foreign))
        with pytest.raises(kind, match=f"'c'.*{word}"):
            open_channel(snowpipe)
        assert snowpipe.did("open", "append") == ["open c"]

    @pytest.mark.parametrize(("rebind", "first"), [("continue", 21), ("restart", 0)])
    def test_an_author_who_knows_what_the_positions_mean_goes_on_or_begins_again(
        self, snowpipe, rebind, first
    ):
        snowpipe.channel("c", **loaded(20, 21, 2, 2, binding=binding_of("q")))
        again = replace(SOURCE, rebind=rebind)
        with open_channel(snowpipe, again) as channel:
            put(channel, first, first + 1)
            channel.wait_for_commit(timeout=60)
            assert channel.progress.committed == IntegerOffset(first + 1)

        assert snowpipe.channels["c"].committed == token(first + 1, rows=23, errors=2)
        with open_channel(snowpipe, again) as channel:
            assert channel.progress.committed == IntegerOffset(first + 1), "the next run finds its own token"

    def test_rows_are_counted_over_all_batches_and_sessions(self, snowpipe):
        with open_channel(snowpipe, rows=2) as channel:
            put(channel, 0, 1)
            put(channel, 2, 4)
            assert channel.start.excess == 0
        snowpipe.rejects = lambda row: row["n"] == 5
        with open_channel(snowpipe, rows=2) as channel:
            put(channel, 5, 6)
            put(channel, 7, 7)

        tokens = [
            (call.query["startOffsetToken"], call.query["endOffsetToken"]) for call in snowpipe.appends()
        ]
        assert tokens == [
            (token(0, 1), token(1, 2)), (token(2, 3), token(4, 5)),
            (token(5, 6), token(6, 7)), (token(7, 8), token(7, 8)),
        ]  # fmt: skip
        with open_channel(snowpipe) as channel:
            start = channel.start
        assert (start.rows, start.errors, start.run, start.excess) == (8, 0, "r1", 0)

    def test_rows_that_were_discarded_are_not_counted(self, snowpipe):
        snowpipe.holds_commits = True
        with open_channel(snowpipe) as channel:
            put(channel, 0, 4)
        snowpipe.holds_commits = False
        with open_channel(snowpipe) as channel:
            put(channel, 0, 1)

        assert snowpipe.channels["c"].committed == token(1, rows=2)

    def test_a_channel_of_a_connector_has_bare_positions(self, snowpipe):
        snowpipe.channel("c", committed="41", rows_inserted=40)
        with open_channel(snowpipe, replace(SOURCE, is_bare=True)) as channel:
            put(channel, 42, 43)

        assert snowpipe.channels["c"].committed == "43"


class TestWriters:
    def test_a_fenced_one_stops_for_good(self, snowpipe, channel):
        snowpipe.open_elsewhere("c")
        put(channel, 0, 0)
        wait = channel.wait_for_commit
        for attempt in (channel.flush, lambda: put(channel, 1, 1), channel.flush, lambda: wait(timeout=60)):
            with pytest.raises(ChannelFencedError):
                attempt()
        assert snowpipe.did("open", "append") == ["open c", "append c 0..0"]

    def test_uncommitted_rows_of_an_older_one_are_waited_for(self, snowpipe):
        snowpipe.fault(before="open", error=error(409, UNCOMMITTED), times=2)
        open_channel(snowpipe).close()
        assert opens(snowpipe) == [True] * 3

    @pytest.fixture
    def uncommitted(self, snowpipe):
        """An older writer's rows are received and do not commit."""
        snowpipe.channel("c").received = [
            Call("append", "c", {"endOffsetToken": token(7, rows=8)}, body=b'{"n":7}\n')
        ]

    @pytest.mark.usefixtures("uncommitted")
    def test_rows_that_never_commit_are_discarded_after_a_bounded_wait_and_the_token_read_again(
        self, snowpipe
    ):
        def commit_late():
            if not snowpipe.calls[-1].body["fail_on_uncommitted_rows"]:
                snowpipe.channels["c"].committed = token(7)

        snowpipe.fault(after="open", do=commit_late, times=10_000)
        channel = Channel.open(snowpipe.client(), "c", SOURCE, uncommitted_timeout=20)
        assert channel.progress.committed == IntegerOffset(7)
        assert 10 < sum(snowpipe.clock.slept) <= 20
        put(channel, 8, 9)
        channel.close()
        assert snowpipe.did("append") == ["append c 8..9"]
        assert snowpipe.channels["c"].position == "9"
        assert (set(opens(snowpipe)[:-1]), opens(snowpipe)[-1]) == ({True}, False)

    @pytest.mark.usefixtures("uncommitted")
    def test_rows_of_an_older_one_have_a_minute_and_are_not_discarded_where_that_is_not_allowed(
        self, snowpipe
    ):
        with pytest.raises(UncommittedRowsError):
            Channel.open(snowpipe.client(), "c", SOURCE, uncommitted_timeout=20, discard_uncommitted=False)
        assert all(opens(snowpipe))
        slept = sum(snowpipe.clock.slept)
        Channel.open(snowpipe.client(), "c", SOURCE).close()
        assert 59 < sum(snowpipe.clock.slept) - slept <= 60

    def test_closing_sends_what_was_appended_and_a_closed_one_takes_no_rows(self, snowpipe, channel):
        put(channel, 0, 0)
        channel.close()
        assert snowpipe.did("append") == ["append c 0..0"]
        with pytest.raises(ConfigurationError, match="closed"):
            put(channel, 1, 1)

    def test_closing_without_a_flush_and_after_an_error_sends_nothing_more(self, snowpipe, channel):
        put(channel, 0, 0)
        channel.close(flush=False)

        def write(*firsts):
            with open_channel(snowpipe) as channel:
                for first in firsts:
                    put(channel, first, first + 4)

        with pytest.raises(ContinuityError):
            write(0, 5, 9)
        assert snowpipe.did("append") == []


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=30),
    st.sampled_from(["zstd", "gzip", "none"]),
)
def test_batches_hold_every_row_once_in_order_and_fit_the_wire(parts, compression):
    noise = random.Random(7)
    compressor = Compressor(BatchLimits(wire_bytes=5000, compression=compression))
    made = []
    for index, (size, repetitive) in enumerate(parts):
        body = (b"a" * size if repetitive else noise.randbytes(size)) + b"\n"
        made.append(Part(body, IntegerOffset(index), IntegerOffset(index), 1))
    batches = compressor.close(made)
    assert all(len(one.body) <= 5000 for one in batches)
    assert all(right.start == left.end.next() for left, right in pairwise(batches))
    assert sum(b.rows for b in batches) == len(parts)
    raw = b"".join(
        b.body
        if b.encoding is None
        else bytes(pa.Codec(b.encoding).decompress(b.body, b.raw_bytes, asbytes=True))
        for b in batches
    )
    assert raw == b"".join(bytes(p.body) for p in made)


def test_a_single_row_above_the_wire_limit_is_refused_by_position():
    part = Part(random.Random(1).randbytes(9000), IntegerOffset(3), IntegerOffset(3), 1)
    with pytest.raises(ConfigurationError, match="rows 3 to 3"):
        Compressor(BatchLimits(wire_bytes=5000)).close([part])


def test_unusable_limits_are_refused():
    wrong = [("wire_bytes", 5_000_000), ("rows", 0), ("compression", "lz4")]
    wrong += [("bytes_per_second", 0), ("age_seconds", -1)]
    refused(ConfigurationError, lambda limit: BatchLimits(**dict([limit])), wrong)
