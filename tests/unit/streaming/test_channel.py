"""The writer of a channel: order, batches, pace, fencing, and waiting for the commit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.streaming.batch import Compressor, Part
from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelFencedError,
    ChannelInvalidError,
    CommitTimeoutError,
    ConfigurationError,
    ContinuityError,
    OffsetTokenError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.progress import TokenWentBackError
from tests.scripted_service import Received, Reply, ScriptedService, error

FAST = BatchLimits(requests_per_second=10_000, bytes_per_second=None, age_seconds=30)


def body_of(request: Received) -> bytes:
    if request.headers.get("Content-Encoding") == "zstd":
        size = int(request.headers["x-snowflake-uncompressed-content-length"])
        return bytes(pa.Codec("zstd").decompress(request.body, size, asbytes=True))
    return request.body


class FakeChannelState:
    """What a service keeps of one channel, enough for these tests."""

    def __init__(self, service: ScriptedService) -> None:
        self.committed: str | None = None
        self.received: str | None = None
        self.code = "SUCCESS"
        self.commits_at_once = True
        self.sequence = 0
        service.on("c", self.open)
        service.on("rows", self.rows)
        service.on("bulk-channel-status", self.status)

    def _object(self) -> dict[str, object]:
        return {"channel_status_code": self.code, "last_committed_offset_token": self.committed}

    def open(self, _: Received) -> Reply:
        body = {"next_continuation_token": "1_0", "channel_status": {**self._object(), "channel_name": "c"}}
        return Reply(body=json.dumps(body))

    def rows(self, request: Received) -> Reply:
        assert request.query["continuationToken"] == f"1_{self.sequence}"
        self.sequence += 1
        self.received = request.query["endOffsetToken"]
        if self.commits_at_once:
            self.committed = self.received
        return Reply(body=json.dumps({"next_continuation_token": f"1_{self.sequence}"}))

    def status(self, _: Received) -> Reply:
        return Reply(body=json.dumps({"channel_statuses": {"c": self._object()}}))


@pytest.fixture
def state(service: ScriptedService) -> FakeChannelState:
    return FakeChannelState(service)


@pytest.fixture
def channel(state: FakeChannelState, client: SnowpipeClient) -> Iterator[Channel]:
    opened = Channel.open(client, "c", IntegerOffset, limits=FAST)
    yield opened
    opened.close(flush=False)


def put(channel: Channel, first: int, last: int) -> None:
    body = b"".join(b'{"n":%d}\n' % n for n in range(first, last + 1))
    channel.append(body, IntegerOffset(first), IntegerOffset(last), rows=last - first + 1)


def test_rows_arrive_in_order_with_the_token_of_the_last_one(
    service: ScriptedService, state: FakeChannelState, channel: Channel
) -> None:
    put(channel, 0, 4)
    put(channel, 5, 5)
    status = channel.wait_for_commit(timeout=60)
    (request,) = service.requests("rows")
    assert body_of(request).splitlines() == [b'{"n":%d}' % n for n in range(6)]
    assert (request.query["startOffsetToken"], request.query["endOffsetToken"]) == ("0", "5")
    assert status is not None
    assert status.committed == "5"
    assert channel.committed == IntegerOffset(5)
    assert (channel.counters.rows, channel.counters.requests) == (6, 1)


def test_an_append_that_returned_is_not_committed(state: FakeChannelState, channel: Channel) -> None:
    state.commits_at_once = False
    put(channel, 0, 4)
    channel.flush()
    assert state.received == "4"
    assert channel.sent == IntegerOffset(4)
    assert channel.committed is None
    with pytest.raises(CommitTimeoutError) as caught:
        channel.wait_for_commit(timeout=0.3)
    assert (caught.value.channel, caught.value.committed, caught.value.target) == ("c", None, "4")


def test_batches_close_by_rows(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    limits = BatchLimits(rows=10, requests_per_second=10_000, age_seconds=30)
    with Channel.open(client, "c", IntegerOffset, limits=limits) as channel:
        for n in range(25):
            put(channel, n, n)
    assert [r.query["endOffsetToken"] for r in service.requests("rows")] == ["9", "19", "24"]


def test_batches_close_by_bytes(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    limits = BatchLimits(raw_bytes=100, requests_per_second=10_000, age_seconds=30)
    with Channel.open(client, "c", IntegerOffset, limits=limits) as channel:
        for n in range(30):
            put(channel, n, n)
    sizes = [len(body_of(r)) for r in service.requests("rows")]
    assert all(size <= 100 for size in sizes)
    assert sum(sizes) == sum(len(b'{"n":%d}\n' % n) for n in range(30))


def test_a_batch_closes_by_age_without_another_append(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    limits = BatchLimits(age_seconds=0.05, requests_per_second=10_000)
    channel = Channel.open(client, "c", IntegerOffset, limits=limits)
    put(channel, 0, 0)
    deadline = time.monotonic() + 60
    while state.received is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state.received == "0"
    channel.close()


def test_no_more_than_the_allowed_requests_a_second(
    state: FakeChannelState, client: SnowpipeClient, service: ScriptedService
) -> None:
    limits = BatchLimits(rows=1, requests_per_second=20)
    started = time.monotonic()
    with Channel.open(client, "c", IntegerOffset, limits=limits) as channel:
        for n in range(8):
            put(channel, n, n)
    assert time.monotonic() - started >= 7 / 20
    assert len(service.requests("rows")) == 8


def test_rows_out_of_order_are_refused_and_nothing_is_sent(
    service: ScriptedService, state: FakeChannelState, channel: Channel
) -> None:
    put(channel, 0, 4)
    for first, last in ((4, 6), (6, 7), (0, 0)):
        with pytest.raises(ContinuityError):
            put(channel, first, last)
    put(channel, 5, 5)
    channel.flush()
    assert body_of(service.requests("rows")[0]).count(b"\n") == 6


def test_a_resumed_channel_takes_only_what_follows_the_committed_token(
    state: FakeChannelState, client: SnowpipeClient
) -> None:
    state.committed = "41"
    with Channel.open(client, "c", IntegerOffset, limits=FAST) as channel:
        assert channel.committed == IntegerOffset(41)
        with pytest.raises(ContinuityError):
            put(channel, 41, 45)
        put(channel, 42, 45)
    assert state.received == "45"


def test_an_unparsable_committed_token_stops_before_the_channel_is_opened(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    state.committed = "messages_1.log:20"
    with pytest.raises(OffsetTokenError, match=r"'c'.*messages_1\.log:20.*integer"):
        Channel.open(client, "c", IntegerOffset)
    assert not service.requests("c")


def test_a_fenced_writer_stops_for_good(
    service: ScriptedService, state: FakeChannelState, channel: Channel
) -> None:
    service.on("rows", error(409, "STALE_CONTINUATION_TOKEN_SEQUENCER"))
    put(channel, 0, 0)
    with pytest.raises(ChannelFencedError, match="another writer"):
        channel.flush()
    opens = len(service.requests("c"))
    for attempt in (lambda: put(channel, 1, 1), channel.flush, lambda: channel.wait_for_commit(timeout=60)):
        with pytest.raises(ChannelFencedError):
            attempt()
    assert len(service.requests("c")) == opens
    assert len(service.requests("rows")) == 1


def test_an_invalid_channel_ends_the_wait_at_once(state: FakeChannelState, channel: Channel) -> None:
    state.commits_at_once = False
    put(channel, 0, 0)
    channel.flush()
    state.code = "ERR_CHANNEL_DOES_NOT_EXIST_OR_NOT_AUTHORIZED"
    with pytest.raises(ChannelInvalidError, match="dropped"):
        channel.wait_for_commit(timeout=30)


def test_a_token_that_goes_back_during_the_wait_is_noticed(
    state: FakeChannelState, client: SnowpipeClient
) -> None:
    state.committed = "9"
    channel = Channel.open(client, "c", IntegerOffset, limits=FAST)
    state.commits_at_once = False
    put(channel, 10, 11)
    state.committed = "3"
    with pytest.raises(TokenWentBackError):
        channel.wait_for_commit(timeout=60)
    channel.close(flush=False)


def test_uncommitted_rows_of_an_older_writer_are_waited_for(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    busy = error(409, "ERR_CHANNEL_HAS_UNCOMMITTED_DATA")
    service.on("c", busy, busy, state.open)
    Channel.open(client, "c", IntegerOffset).close()
    assert [json.loads(r.body)["fail_on_uncommitted_rows"] for r in service.requests("c")] == [True] * 3


def test_rows_that_never_commit_are_discarded_after_a_bounded_wait_and_the_token_read_again(
    service: ScriptedService, state: FakeChannelState, client: SnowpipeClient
) -> None:
    def answer(request: Received) -> Reply:
        if json.loads(request.body)["fail_on_uncommitted_rows"]:
            return error(409, "ERR_CHANNEL_HAS_UNCOMMITTED_DATA")
        reply = state.open(request)
        state.committed = "7"
        return reply

    service.on("c", answer)
    channel = Channel.open(client, "c", IntegerOffset, uncommitted_timeout=0.3)
    assert channel.committed == IntegerOffset(7)
    channel.close()


def test_nothing_to_wait_for_is_no_wait(channel: Channel) -> None:
    assert channel.wait_for_commit(timeout=0.1) is None


def test_a_closed_channel_takes_no_rows(channel: Channel) -> None:
    channel.close()
    with pytest.raises(ConfigurationError, match="closed"):
        put(channel, 0, 0)


@pytest.mark.parametrize(("body", "rows"), [(b"", 1), (b"{}\n", 0)])
def test_an_append_without_rows_is_refused(channel: Channel, body: bytes, rows: int) -> None:
    with pytest.raises(ContinuityError):
        channel.append(body, IntegerOffset(0), IntegerOffset(0), rows=rows)


def test_a_missing_last_newline_is_added(
    service: ScriptedService, state: FakeChannelState, channel: Channel
) -> None:
    channel.append(b'{"n":0}', IntegerOffset(0), IntegerOffset(0), rows=1)
    channel.append(memoryview(b'{"n":1}'), IntegerOffset(1), IntegerOffset(1), rows=1)
    channel.flush()
    assert body_of(service.requests("rows")[0]) == b'{"n":0}\n{"n":1}\n'


@settings(max_examples=60, deadline=None)
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
    for batch in batches:
        assert len(batch.body) <= 5000
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
