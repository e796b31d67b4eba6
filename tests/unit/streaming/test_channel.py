"""The writer of a channel: order, batches, pace, fencing, and waiting for the commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
    TokenWentBackError,
    UncommittedRowsError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.fake_snowpipe import MISSING, UNCOMMITTED, Call, FakeSnowpipe, error

FAST = BatchLimits(requests_per_second=10_000, bytes_per_second=None, age_seconds=30)


def open_channel(snowpipe: FakeSnowpipe, **options: object) -> Channel:
    limits = BatchLimits(**{"requests_per_second": 10_000, "age_seconds": 30, **options})  # type: ignore[arg-type]
    return Channel.open(snowpipe.client(), "c", IntegerOffset, limits=limits)


@pytest.fixture
def channel(snowpipe: FakeSnowpipe) -> Iterator[Channel]:
    opened = Channel.open(snowpipe.client(), "c", IntegerOffset, limits=FAST)
    yield opened
    opened.close(flush=False)


def put(channel: Channel, first: int, last: int) -> None:
    body = b"".join(b'{"n":%d}\n' % n for n in range(first, last + 1))
    channel.append(body, IntegerOffset(first), IntegerOffset(last), rows=last - first + 1)


def numbers(snowpipe: FakeSnowpipe) -> list[int]:
    return [row["n"] for row in snowpipe.channels["c"].rows]


def test_commit_of_an_earlier_position_and_the_end_of_its_time(
    snowpipe: FakeSnowpipe, channel: Channel
) -> None:
    put(channel, 0, 4)
    channel.flush()
    snowpipe.holds_commits = True
    put(channel, 5, 9)

    status = channel.wait_for_commit(IntegerOffset(4), timeout=0)
    assert status is not None
    assert status.committed == "4"
    slept = len(snowpipe.clock.slept)
    with pytest.raises(CommitTimeoutError):
        channel.wait_for_commit(timeout=10)
    assert 5 <= sum(snowpipe.clock.slept[slept:]) <= 10


def test_rows_arrive_in_order_with_the_token_of_the_last_one(
    snowpipe: FakeSnowpipe, channel: Channel
) -> None:
    put(channel, 0, 4)
    put(channel, 5, 5)
    status = channel.wait_for_commit(timeout=60)
    assert numbers(snowpipe) == [0, 1, 2, 3, 4, 5]
    assert snowpipe.did("append") == ["append c 0..5"]
    assert status is not None
    assert status.committed == "5"
    assert channel.progress.committed == IntegerOffset(5)
    assert (channel.counters.rows, channel.counters.requests) == (6, 1)


def test_an_append_that_returned_is_not_committed(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    snowpipe.holds_commits = True
    put(channel, 0, 4)
    channel.flush()
    assert channel.progress.sent == IntegerOffset(4)
    assert channel.progress.committed is None
    with pytest.raises(CommitTimeoutError) as caught:
        channel.wait_for_commit(timeout=10)
    assert (caught.value.channel, caught.value.committed, caught.value.target) == ("c", None, "4")
    assert sum(snowpipe.clock.slept) <= 10


@pytest.mark.parametrize(("committed", "done"), [("3", False), ("4", True), ("9", True)])
def test_commit_is_at_or_past_the_target(
    snowpipe: FakeSnowpipe, channel: Channel, committed: str, done: bool
) -> None:
    snowpipe.holds_commits = True
    put(channel, 0, 4)
    channel.flush()
    snowpipe.channels["c"].committed = committed
    if done:
        channel.wait_for_commit(timeout=10)
    else:
        with pytest.raises(CommitTimeoutError):
            channel.wait_for_commit(timeout=10)
    assert channel.progress.committed == IntegerOffset(int(committed))


def test_batches_close_by_rows(snowpipe: FakeSnowpipe) -> None:
    with open_channel(snowpipe, rows=10) as channel:
        for n in range(25):
            put(channel, n, n)
    assert [call.query["endOffsetToken"] for call in snowpipe.appends()] == ["9", "19", "24"]


def test_batches_close_by_bytes(snowpipe: FakeSnowpipe) -> None:
    with open_channel(snowpipe, raw_bytes=100) as channel:
        for n in range(30):
            put(channel, n, n)
    assert all(len(call.body) <= 100 for call in snowpipe.appends())
    assert numbers(snowpipe) == list(range(30))


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_bodies_arrive_as_they_were_appended(snowpipe: FakeSnowpipe, compression: str) -> None:
    with open_channel(snowpipe, compression=compression) as channel:
        put(channel, 0, 99)
    assert numbers(snowpipe) == list(range(100))


def test_a_batch_closes_by_age_without_another_append(snowpipe: FakeSnowpipe) -> None:
    sent = threading.Event()
    snowpipe.fault(after="append", do=sent.set)
    with open_channel(snowpipe, age_seconds=0.02) as channel:
        put(channel, 0, 0)
        snowpipe.clock.sleep(0.02)
        assert sent.wait(60)
        assert snowpipe.did("append") == ["append c 0..0"]


def test_only_one_thread_at_a_time_compresses(snowpipe: FakeSnowpipe) -> None:
    """The codec of gzip has a state: two threads in it end the process."""
    codec = SlowCodec()
    with open_channel(snowpipe, age_seconds=0.02) as channel:
        channel._compressor._codec = codec  # type: ignore[assignment]
        put(channel, 0, 0)
        snowpipe.clock.sleep(0.02)
        assert codec.began.wait(60)
        put(channel, 1, 1)
        channel.flush()

    assert codec.most == 1
    assert snowpipe.did("append") == ["append c 0..0", "append c 1..1"]


class SlowCodec:
    """A codec whose first call lasts until another one comes, or a fifth of a second."""

    def __init__(self) -> None:
        self.began, self.met = threading.Event(), threading.Event()
        self.inside = self.most = 0

    def compress(self, body: bytes, *, asbytes: bool) -> object:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.began.is_set():
            self.met.set()
        else:
            self.began.set()
            self.met.wait(0.2)
        self.inside -= 1
        return pa.Codec("zstd").compress(body, asbytes=asbytes)


def test_a_batch_waits_for_more_until_it_is_old(
    snowpipe: FakeSnowpipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits, sent = [0.0], threading.Semaphore(0), threading.Event()

    def report() -> None:
        sent.set()
        waits.release(2)  # both at once: the batch is not to be sent by then

    for module in (batch, channel_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    snowpipe.fault(after="append", do=report)
    with open_channel(snowpipe, age_seconds=0.05) as channel:
        wait = channel._changed.wait

        def counted(seconds: float | None = None) -> bool:
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


@pytest.mark.parametrize("limit", [{"rows": 2}, {"raw_bytes": 15}])
def test_a_full_batch_is_sent_without_another_append(snowpipe: FakeSnowpipe, limit: dict[str, int]) -> None:
    sent = threading.Event()
    snowpipe.fault(after="append", do=sent.set)
    with open_channel(snowpipe, **limit) as channel:
        put(channel, 0, 1)
        assert sent.wait(60)
        assert snowpipe.did("append") == ["append c 0..1"]


@pytest.mark.parametrize("limit", [{"rows": 1}, {"age_seconds": 0.01}])
def test_a_flush_ends_when_what_is_being_sent_is_answered(
    snowpipe: FakeSnowpipe, limit: dict[str, float]
) -> None:
    sending, flushed = threading.Event(), threading.Event()
    ended_early = []

    def answer_late() -> None:
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


def test_the_sender_is_named_after_the_channel_and_keeps_no_process_alive(channel: Channel) -> None:
    # Channels of other tests that were left behind have senders of the same name.
    before = set(threading.enumerate())
    put(channel, 0, 0)

    (sender,) = [one for one in set(threading.enumerate()) - before if one.name == "channel c"]
    assert sender.daemon
    channel.close()
    assert not sender.is_alive()


def test_counters_report_the_bytes_and_the_seconds_of_the_answered_appends(snowpipe: FakeSnowpipe) -> None:
    snowpipe.clock.sleep(1000.0)
    snowpipe.fault(before="append", do=lambda: snowpipe.clock.sleep(3.0))
    snowpipe.fault(before="append", do=lambda: snowpipe.clock.sleep(2.0), skip=1)
    with open_channel(snowpipe, compression="none") as channel:
        put(channel, 0, 2)
        channel.flush()
        assert channel.counters == ChannelCounters(3, 24, 1, 3.0, 3.0)
        put(channel, 3, 3)

    assert channel.counters == ChannelCounters(4, 32, 2, 5.0, 3.0)


def test_counters_report_the_bytes_before_compression(snowpipe: FakeSnowpipe) -> None:
    with open_channel(snowpipe) as channel:
        put(channel, 0, 99)

    (append,) = snowpipe.appends()
    assert channel.counters == ChannelCounters(100, len(append.body), 1)


def test_no_more_than_the_allowed_requests_a_second(snowpipe: FakeSnowpipe) -> None:
    saved_up, more, rate = 10, 3, 5
    started = time.monotonic()
    with open_channel(snowpipe, rows=1, requests_per_second=rate) as channel:
        for n in range(saved_up + more):
            put(channel, n, n)
    assert time.monotonic() - started >= (more - 1) / rate
    assert len(snowpipe.appends()) == saved_up + more


def test_rows_out_of_order_are_refused_and_nothing_is_sent(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    put(channel, 0, 4)
    for first, last in ((4, 6), (6, 7), (0, 0)):
        with pytest.raises(ContinuityError, match="channel 'c'"):
            put(channel, first, last)
    put(channel, 5, 5)
    channel.flush()
    assert numbers(snowpipe) == [0, 1, 2, 3, 4, 5]


def test_a_resumed_channel_takes_only_what_follows_the_committed_token(snowpipe: FakeSnowpipe) -> None:
    snowpipe.channel("c", committed="41")
    with open_channel(snowpipe) as channel:
        assert channel.progress.committed == IntegerOffset(41)
        with pytest.raises(ContinuityError):
            put(channel, 41, 45)
        put(channel, 42, 45)
    assert snowpipe.channels["c"].committed == "45"


def test_an_unparsable_committed_token_stops_before_the_channel_is_opened(snowpipe: FakeSnowpipe) -> None:
    snowpipe.channel("c", committed="messages_1.log:20")
    with pytest.raises(OffsetTokenError, match=r"'c'.*messages_1\.log:20.*integer"):
        open_channel(snowpipe)
    assert snowpipe.did("open") == []


def test_a_token_of_another_format_is_noticed_when_it_is_read_again_after_the_open(
    snowpipe: FakeSnowpipe,
) -> None:
    snowpipe.fault(after="status", do=lambda: snowpipe.channel("c", committed="messages_1.log:20"))
    with pytest.raises(OffsetTokenError, match=r"'c'.*messages_1\.log:20.*integer"):
        open_channel(snowpipe)
    assert snowpipe.did("open", "append") == ["open c"]


def test_a_token_of_another_format_ends_the_wait(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    snowpipe.holds_commits = True
    put(channel, 0, 0)
    channel.flush()
    snowpipe.channels["c"].committed = "messages_1.log:20"
    with pytest.raises(OffsetTokenError, match=r"'c'.*messages_1\.log:20.*integer"):
        channel.wait_for_commit(timeout=60)


def test_a_fenced_writer_stops_for_good(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    snowpipe.open_elsewhere("c")
    put(channel, 0, 0)
    with pytest.raises(ChannelFencedError):
        channel.flush()
    for attempt in (lambda: put(channel, 1, 1), channel.flush, lambda: channel.wait_for_commit(timeout=60)):
        with pytest.raises(ChannelFencedError):
            attempt()
    assert snowpipe.did("open", "append") == ["open c", "append c 0..0"]


def test_an_invalid_channel_ends_the_wait_at_once(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    snowpipe.holds_commits = True
    put(channel, 0, 0)
    channel.flush()
    snowpipe.channels["c"].code = MISSING
    with pytest.raises(ChannelInvalidError, match="dropped"):
        channel.wait_for_commit(timeout=30)
    assert snowpipe.clock.slept == []


def test_a_channel_that_has_its_target_needs_no_valid_session(
    snowpipe: FakeSnowpipe, channel: Channel
) -> None:
    put(channel, 0, 0)
    channel.wait_for_commit(timeout=30)
    snowpipe.channels["c"].code = "ERR_CHANNEL_INVALID"
    status = channel.wait_for_commit(timeout=0)
    assert status is not None
    assert status.committed == "0"


def test_a_token_that_goes_back_during_the_wait_is_noticed(snowpipe: FakeSnowpipe) -> None:
    snowpipe.channel("c", committed="9")
    snowpipe.holds_commits = True
    channel = open_channel(snowpipe)
    put(channel, 10, 11)
    snowpipe.channels["c"].committed = "3"
    with pytest.raises(TokenWentBackError):
        channel.wait_for_commit(timeout=60)
    channel.close(flush=False)


def test_uncommitted_rows_of_an_older_writer_are_waited_for(snowpipe: FakeSnowpipe) -> None:
    snowpipe.fault(before="open", error=error(409, UNCOMMITTED), times=2)
    open_channel(snowpipe).close()
    opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
    assert opens == [True] * 3


def leave_uncommitted(snowpipe: FakeSnowpipe) -> None:
    """An older writer's rows are received and do not commit."""
    snowpipe.channel("c").received = [Call("append", "c", {"endOffsetToken": "7"}, body=b'{"n":7}\n')]


def test_rows_that_never_commit_are_discarded_after_a_bounded_wait_and_the_token_read_again(
    snowpipe: FakeSnowpipe,
) -> None:
    def commit_late() -> None:
        if not snowpipe.calls[-1].body["fail_on_uncommitted_rows"]:
            snowpipe.channels["c"].committed = "7"

    leave_uncommitted(snowpipe)
    snowpipe.fault(after="open", do=commit_late, times=10_000)
    channel = Channel.open(snowpipe.client(), "c", IntegerOffset, uncommitted_timeout=20)
    assert channel.progress.committed == IntegerOffset(7)
    assert 10 < sum(snowpipe.clock.slept) <= 20
    put(channel, 8, 9)
    channel.close()
    assert snowpipe.did("append") == ["append c 8..9"]
    assert snowpipe.channels["c"].committed == "9"
    opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
    assert (set(opens[:-1]), opens[-1]) == ({True}, False)


def test_rows_of_an_older_writer_have_a_minute_to_commit(snowpipe: FakeSnowpipe) -> None:
    leave_uncommitted(snowpipe)
    Channel.open(snowpipe.client(), "c", IntegerOffset).close()
    assert 59 < sum(snowpipe.clock.slept) <= 60


def test_rows_of_others_are_not_discarded_where_that_is_not_allowed(snowpipe: FakeSnowpipe) -> None:
    leave_uncommitted(snowpipe)
    with pytest.raises(UncommittedRowsError):
        Channel.open(snowpipe.client(), "c", IntegerOffset, uncommitted_timeout=20, discard_uncommitted=False)
    opens = [call.body["fail_on_uncommitted_rows"] for call in snowpipe.calls if call.operation == "open"]
    assert all(opens)


def test_nothing_to_wait_for_is_no_wait(channel: Channel) -> None:
    assert channel.wait_for_commit(timeout=0.1) is None


def test_a_closed_channel_takes_no_rows(channel: Channel) -> None:
    channel.close()
    with pytest.raises(ConfigurationError, match="closed"):
        put(channel, 0, 0)


def test_closing_sends_what_was_appended(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    put(channel, 0, 0)
    channel.close()
    assert snowpipe.did("append") == ["append c 0..0"]


def test_closing_without_a_flush_sends_nothing_more(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    put(channel, 0, 0)
    channel.close(flush=False)
    assert snowpipe.did("append") == []


def test_a_writer_that_fails_leaves_what_is_buffered_unsent(snowpipe: FakeSnowpipe) -> None:
    def write(*firsts: int) -> None:
        with open_channel(snowpipe) as channel:
            for first in firsts:
                put(channel, first, first + 4)

    with pytest.raises(ContinuityError):
        write(0, 5, 9)
    assert snowpipe.did("append") == []


@pytest.mark.parametrize(("body", "rows"), [(b"", 1), (b"{}\n", 0)])
def test_an_append_without_rows_is_refused(channel: Channel, body: bytes, rows: int) -> None:
    with pytest.raises(ContinuityError):
        channel.append(body, IntegerOffset(0), IntegerOffset(0), rows=rows)


def test_a_missing_last_newline_is_added(snowpipe: FakeSnowpipe, channel: Channel) -> None:
    channel.append(b'{"n":0}', IntegerOffset(0), IntegerOffset(0), rows=1)
    channel.append(memoryview(b'{"n":1}'), IntegerOffset(1), IntegerOffset(1), rows=1)
    channel.append(memoryview(b'{"n":2}\n').cast("c"), IntegerOffset(2), IntegerOffset(2), rows=1)
    channel.flush()
    assert snowpipe.appends()[0].body == b'{"n":0}\n{"n":1}\n{"n":2}\n'


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=30),
    st.sampled_from(["zstd", "gzip", "none"]),
)
def test_batches_hold_every_row_once_in_order_and_fit_the_wire(
    parts: list[tuple[int, bool]], compression: str
) -> None:
    import random

    noise = random.Random(7)
    limits = BatchLimits(wire_bytes=5000, compression=compression)
    compressor = Compressor(limits)
    made = []
    for index, (size, repetitive) in enumerate(parts):
        body = (b"a" * size if repetitive else noise.randbytes(size)) + b"\n"
        made.append(Part(body, IntegerOffset(index), IntegerOffset(index), 1))
    batches = compressor.close(made)
    for one in batches:
        assert len(one.body) <= 5000
    for left, right in pairwise(batches):
        assert right.start == left.end.next()
    assert sum(b.rows for b in batches) == len(parts)
    raw = b"".join(
        b.body
        if b.encoding is None
        else bytes(pa.Codec(b.encoding).decompress(b.body, b.raw_bytes, asbytes=True))
        for b in batches
    )
    assert raw == b"".join(bytes(p.body) for p in made)


def test_a_single_row_above_the_wire_limit_is_refused_by_position() -> None:
    import random

    part = Part(random.Random(1).randbytes(9000), IntegerOffset(3), IntegerOffset(3), 1)
    with pytest.raises(ConfigurationError, match="rows 3 to 3"):
        Compressor(BatchLimits(wire_bytes=5000)).close([part])


@pytest.mark.parametrize(
    "wrong",
    [
        {"wire_bytes": 5_000_000},
        {"rows": 0},
        {"compression": "lz4"},
        {"bytes_per_second": 0},
        {"age_seconds": -1},
    ],
)
def test_unusable_limits_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        BatchLimits(**wrong)  # type: ignore[arg-type]
