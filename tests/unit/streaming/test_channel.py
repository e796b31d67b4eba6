"""The writer of a channel: order, batches, pace, fencing, and waiting for the commit."""

import threading
import time

import pyarrow as pa
import pytest

from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.channel import Channel, ChannelCounters
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.checkpoints import binding_of, loaded, shown, source_of, token
from tests.fake_snowpipe import MISSING, UNCOMMITTED, Call, error
from tests.refusals import refused

SOURCE = source_of(IntegerOffset)


def open_channel(snowpipe, source=SOURCE, **options):
    limits = BatchLimits(**{"requests_per_second": 10_000, "age_seconds": 30, **options})
    return Channel.open(snowpipe.client(), "c", source, limits=limits)


@pytest.fixture
def channel(snowpipe):
    opened = open_channel(snowpipe, bytes_per_second=None)
    yield opened
    opened.close(flush=False)


def put(channel, first, last):
    body = b"".join(b'{"n":%d}\n' % n for n in range(first, last + 1))
    channel.append(body, IntegerOffset(first), IntegerOffset(last), rows=last - first + 1)


def sent(channel, first, last):
    put(channel, first, last)
    channel.flush()


def numbers(snowpipe):
    return [row["n"] for row in snowpipe.channels["c"].rows]


def opens(snowpipe):
    return [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]


class TestCommit:
    def test_rows_arrive_in_order_with_the_token_of_the_last_one(self, snowpipe, channel):
        assert channel.wait_for_commit(timeout=0.1) is None, "nothing to wait for"
        put(channel, 0, 4)
        put(channel, 5, 5)
        status = channel.wait_for_commit(timeout=60)
        assert numbers(snowpipe) == [0, 1, 2, 3, 4, 5]
        assert snowpipe.did("append") == ["append c 0..5"]
        assert status.committed == token(5, rows=6)
        assert channel.progress.committed == IntegerOffset(5)
        assert (channel.counters.rows, channel.counters.requests) == (6, 1)

    def test_an_append_that_returned_is_not_committed_and_the_wait_ends_in_time(self, snowpipe, channel):
        sent(channel, 0, 4)
        snowpipe.holds_commits = True
        sent(channel, 5, 9)
        assert (channel.progress.sent, channel.progress.committed) == (IntegerOffset(9), None)

        assert shown(channel.wait_for_commit(IntegerOffset(4), timeout=0).committed) == "4"
        slept = len(snowpipe.clock.slept)
        with pytest.raises(errors.CommitTimeoutError) as caught:
            channel.wait_for_commit(timeout=10)
        found = (caught.value.channel, shown(caught.value.committed), caught.value.target)
        assert found == ("c", "4", "9")
        assert 5 <= sum(snowpipe.clock.slept[slept:]) <= 10
        snowpipe.channels["c"].committed = token(12)
        assert shown(channel.wait_for_commit(timeout=0).committed) == "12", "past the target"

    def test_an_invalid_channel_ends_the_wait_at_once_unless_it_has_its_target(self, snowpipe, channel):
        sent(channel, 0, 0)
        snowpipe.channels["c"].code = "ERR_CHANNEL_INVALID"
        assert shown(channel.wait_for_commit(timeout=0).committed) == "0"
        snowpipe.channels["c"].code = "SUCCESS"
        snowpipe.holds_commits = True
        sent(channel, 1, 1)
        snowpipe.channels["c"].code = MISSING
        slept = len(snowpipe.clock.slept)
        with pytest.raises(errors.ChannelInvalidError, match="dropped"):
            channel.wait_for_commit(timeout=30)
        assert snowpipe.clock.slept[slept:] == []

    def test_a_token_that_goes_back_during_the_wait_is_noticed(self, snowpipe):
        snowpipe.channel("c", **loaded(9))
        snowpipe.holds_commits = True
        channel = open_channel(snowpipe)
        put(channel, 10, 11)
        snowpipe.channels["c"].committed = token(3)
        with pytest.raises(errors.TokenWentBackError):
            channel.wait_for_commit(timeout=60)
        channel.close(flush=False)


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

    @pytest.mark.parametrize("limit", [{"rows": 2}, {"raw_bytes": 15}, {"age_seconds": 0.02}])
    def test_are_sent_when_they_are_full_or_old_without_another_append(self, snowpipe, limit):
        sent = threading.Event()
        snowpipe.fault(after="append", do=sent.set)
        with open_channel(snowpipe, **limit) as channel:
            put(channel, 0, 1)
            snowpipe.clock.sleep(limit.get("age_seconds", 0.0))
            assert sent.wait(60)
            assert snowpipe.did("append") == ["append c 0..1"]

    def test_are_compressed_by_one_thread_at_a_time(self, snowpipe):
        """The codec of gzip has a state: two threads in it end the process."""
        codec = SlowCodec()
        with open_channel(snowpipe, age_seconds=0.02) as channel:
            channel._compressor._codec = codec
            put(channel, 0, 0)
            snowpipe.clock.sleep(0.02)
            assert codec.began.wait(60)
            sent(channel, 1, 1)
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
            sent(channel, 0, 99)
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
    def test_rows_follow_each_other_and_a_missing_last_newline_is_added(self, snowpipe, channel):
        first = IntegerOffset(0)
        for body, rows in [(b"", 1), (b"{}\n", 0)]:
            with pytest.raises(errors.ContinuityError):
                channel.append(body, first, first, rows=rows)
        bodies = [b'{"n":0}', memoryview(b'{"n":1}'), memoryview(b'{"n":2}\n').cast("c")]
        for n, body in enumerate(bodies):
            channel.append(body, IntegerOffset(n), IntegerOffset(n), rows=1)
        wrong = [(2, 4), (4, 5), (0, 0)]
        refused(errors.ContinuityError, lambda rows: put(channel, *rows), wrong, "channel 'c'")
        sent(channel, 3, 3)
        assert snowpipe.appends()[0].body == b'{"n":0}\n{"n":1}\n{"n":2}\n{"n":3}\n'


OTHERS = {
    "another source": (token(20, binding=binding_of("q")), errors.SourceChangedError, "rebind"),
    "other positions": (token("messages_1.log:20"), errors.OffsetTokenError, "integer"),
    "a bare position": ("20", errors.OffsetTokenError, "checkpoint"),
}


class TestSource:
    @pytest.mark.parametrize(("foreign", "kind", "word"), OTHERS.values(), ids=OTHERS)
    def test_a_token_of_another_one_is_noticed_before_and_after_the_open_and_in_the_wait(
        self, snowpipe, foreign, kind, word
    ):
        snowpipe.holds_commits = True
        channel = open_channel(snowpipe)
        sent(channel, 0, 0)
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


class TestWriters:
    def test_a_fenced_one_stops_for_good(self, snowpipe, channel):
        snowpipe.open_elsewhere("c")
        put(channel, 0, 0)
        wait = channel.wait_for_commit
        for attempt in (channel.flush, lambda: put(channel, 1, 1), channel.flush, lambda: wait(timeout=60)):
            with pytest.raises(errors.ChannelFencedError):
                attempt()
        assert snowpipe.did("open", "append") == ["open c", "append c 0..0"]

    @pytest.fixture
    def uncommitted(self, snowpipe):
        """An older writer's rows are received and do not commit."""
        older = Call("append", "c", {"endOffsetToken": token(7, rows=8)}, body=b'{"n":7}\n')
        snowpipe.channel("c").received = [older]

    @pytest.mark.usefixtures("uncommitted")
    def test_rows_that_never_commit_are_discarded_after_a_bounded_wait_and_the_token_read_again(
        self, snowpipe, client
    ):
        def commit_late():
            if not snowpipe.calls[-1].body["fail_on_uncommitted_rows"]:
                snowpipe.channels["c"].committed = token(7)

        snowpipe.fault(after="open", do=commit_late, times=10_000)
        channel = Channel.open(client, "c", SOURCE, uncommitted_timeout=20)
        assert channel.progress.committed == IntegerOffset(7)
        assert 10 < sum(snowpipe.clock.slept) <= 20
        put(channel, 8, 9)
        channel.close()
        assert snowpipe.did("append") == ["append c 8..9"]
        assert snowpipe.channels["c"].position == "9"
        assert (set(opens(snowpipe)[:-1]), opens(snowpipe)[-1]) == ({True}, False)

    @pytest.mark.usefixtures("uncommitted")
    def test_rows_of_an_older_one_have_a_minute_and_are_not_discarded_where_that_is_not_allowed(
        self, snowpipe, client
    ):
        snowpipe.fault(before="open", skip=2, do=snowpipe.commit)
        open_channel(snowpipe).close()
        assert opens(snowpipe) == [True] * 3, "they are waited for"
        snowpipe.fault(before="open", error=error(409, UNCOMMITTED), times=10_000)
        with pytest.raises(errors.UncommittedRowsError):
            Channel.open(client, "c", SOURCE, discard_uncommitted=False)
        assert all(opens(snowpipe))
        assert 59 < sum(snowpipe.clock.slept) <= 61

    def test_closing_sends_what_was_appended_except_without_a_flush_or_after_an_error(
        self, snowpipe, channel
    ):
        put(channel, 0, 0)
        channel.close(flush=False)

        def write(*firsts):
            with open_channel(snowpipe) as channel:
                for first in firsts:
                    put(channel, first, first + 4)
            return channel

        with pytest.raises(errors.ContinuityError):
            write(0, 5, 9)
        assert snowpipe.did("append") == []
        closed = write(0, 5)
        assert snowpipe.did("append") == ["append c 0..9"]
        with pytest.raises(errors.ConfigurationError, match="closed"):
            put(closed, 10, 10)
