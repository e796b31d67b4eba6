import random
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from snowpipe_local.engine import channel
from snowpipe_local.engine.channel import (
    INVALID_ROW_SEQUENCER,
    MISSING,
    ROW_SEQ_GAP,
    STALE,
    Append,
    Channel,
    Committed,
    advance,
)
from snowpipe_local.engine.lines import split_lines
from snowpipe_local.errors import ConfigurationError, Refusal
from snowpipe_local.limits import RATE_LIMITED, ChannelRate, Limits, parse_limits
from snowpipe_local.names import Pipe, PipeKey

PIPE = Pipe(PipeKey("PUBLIC", "T-STREAMING"), "T", "key", 0)
NEW = Committed(1, 0, 0, None, 0, 0, 0, None, None, None, None, None, 0)


class Writer:
    """A channel with a list for a queue."""

    def __init__(self, committed: Committed = NEW, limits: Limits | None = None) -> None:
        self.channel = Channel("LOCAL", PIPE, "c", committed, limits)
        self.queue: list[Append] = []

    def open(self, *, fail: bool = False) -> str:
        self.channel.begin_session(fail_on_uncommitted_rows=fail)
        return self.channel.continuation_token

    def append(self, token: str, request_id: str = "r", body: bytes = b"{}\n", end: str | None = "1") -> str:
        def make(client: int, row: int) -> Append:
            return Append(
                self.channel, client, row, request_id, split_lines(body), None, end, time.monotonic()
            )

        return self.channel.accept(token, request_id, make, self.queue.append)

    def append_elastic(self, request: str) -> Append | None:
        def make(client: int, row: int) -> Append:
            return Append(self.channel, client, row, request, split_lines(b""), None, None, 0.0)

        return self.channel.accept_unordered(request, make, self.queue.append)

    def commit(self) -> None:
        for append in self.queue:
            self.channel.committed_up_to(advance(self.channel.committed, append, 0, None, now_ms=1), 1)
        self.queue.clear()

    def refused(self, token: str, request_id: str = "new") -> str:
        return self.refusal(token, request_id).code

    def refusal(self, token: str, request_id: str = "new") -> Refusal:
        with pytest.raises(Refusal) as refusal:
            self.append(token, request_id)
        return refusal.value


def test_only_the_last_request_that_was_committed_before_a_restart_is_answered_again():
    writer = Writer()
    writer.append(writer.append(writer.open(), "r0"), "r1")
    writer.commit()
    restarted = Writer(writer.channel.committed)
    assert restarted.append("1_1", "r1") == "1_2"
    assert restarted.queue == []
    for token, request in (("1_1", "other"), ("1_0", "r1"), ("1_0", "r0")):
        assert restarted.refused(token, request) == INVALID_ROW_SEQUENCER
    assert restarted.append("1_2", "r1") == "1_3"


def test_an_append_that_is_not_the_next_one_of_its_session_is_a_conflict_and_another_spelling_malformed():
    writer = Writer()
    stale, token = writer.open(), writer.open()
    writer.append(token, "r0")
    for sent, code in ((stale, STALE), ("2_5", ROW_SEQ_GAP), (token, INVALID_ROW_SEQUENCER)):
        refusal = writer.refusal(sent)
        assert (refusal.status, refusal.code) == (409, code)
    writer.channel.invalidate("ERR_CHANNEL_MUST_BE_REOPENED")
    refusal = writer.refusal("2_1")
    status = writer.channel.status()["channel_status_code"]
    assert (refusal.status, refusal.code) == (409, status) == (409, "ERR_CHANNEL_MUST_BE_REOPENED")
    assert len(writer.queue) == 1
    writer.append(writer.open())
    assert writer.channel.status()["channel_status_code"] == "SUCCESS"
    for token in [
        "01_0", "1_00", "\u0661_0", "1_\u0660", "1_0\n", " 1_0", "1" * 5000 + "_0", "-1_0", "", "x", "1",
        "1_", "1_0_0",
    ]:  # fmt: skip
        writer = Writer(Committed(0, 0, 0, None, 0, 0, 0, None, None, None, None, None, 0))
        assert writer.open() == "1_0"
        refusal = writer.refusal(token)
        assert (refusal.status, refusal.code) == (400, "INVALID_CONTINUATION_TOKEN")
        assert not writer.queue


def test_what_a_commit_moves_and_counts(monkeypatch):
    writer = Writer()
    writer.append(writer.open(), body=b"{}\nx\n{}\n", end="9")
    append = writer.queue[0]
    monkeypatch.setattr(channel.time, "monotonic", lambda: append.received_at + 1.5)
    state = advance(NEW, append, 1, "bad row", now_ms=1)
    assert state.latency_ms == 1500
    assert (state.rows_parsed, state.rows_inserted, state.rows_error_count) == (3, 2, 1)
    assert (state.offset_token, state.last_error_offset_upper_bound) == ("9", "9")
    assert (state.last_error_message, state.last_error_timestamp_ms) == ("bad row", 1)
    writer = Writer()
    token = writer.append(writer.open(), "r0", end="5")
    writer.append(token, "r1", end=None)
    writer.commit()
    assert writer.channel.status()["last_committed_offset_token"] == "5"
    assert writer.channel.status()["rows_inserted"] == 2


def test_the_status_has_both_spellings_of_the_error_fields_and_what_is_committed():
    stored = Committed(
        1, 2, 3, "41", 70, 77, 7, "40", "bad row", 1_700_000_000_005, 12, "r", 1_600_000_000_000
    )
    assert Channel("LOCAL", PIPE, "c", stored).status() == {
        "database_name": "LOCAL", "schema_name": "PUBLIC", "pipe_name": "T-STREAMING", "channel_name": "c",
        "channel_status_code": "SUCCESS", "last_committed_offset_token": "41",
        "created_on_ms": 1_600_000_000_000, "rows_inserted": 70, "rows_parsed": 77, "rows_error_count": 7,
        "rows_errors": 7, "last_error_offset_upper_bound": "40", "last_error_message": "bad row",
        "last_error_timestamp_ms": 1_700_000_000_005, "last_error_timestamp": 1_700_000_000_005,
        "snowflake_avg_processing_latency_ms": 12,
    }  # fmt: skip


def test_an_append_above_the_rate_is_a_429_and_is_not_taken():
    for limits in [Limits(0.001, 0.0, 0), Limits(0.0, 0.001, 0)]:
        writer = Writer(limits=limits)
        token = writer.append(writer.open(), "r0")
        refusal = writer.refusal(token, "r1")
        assert (refusal.status, refusal.code) == (429, RATE_LIMITED)
        assert "channel c" in str(refusal)
        assert (writer.channel.continuation_token, len(writer.queue)) == (token, 1)
        assert writer.append("1_0", "r0") == token  # a repeated answer costs nothing


def test_the_answers_to_the_last_64_requests_are_repeated_and_what_left_the_queue_waits_no_more():
    writer = Writer()
    tokens = [writer.open()]
    for number in range(65):
        tokens.append(writer.append(tokens[-1], f"r{number}"))
    assert [writer.append(tokens[number], f"r{number}") for number in (1, 64)] == [tokens[2], tokens[65]]
    assert len(writer.queue) == 65
    assert writer.refused(tokens[0], "r0") == INVALID_ROW_SEQUENCER


def test_elastic_appends_are_numbered_the_last_64_are_taken_once_and_they_wait_for_their_commit():
    writer = Writer()
    taken = [writer.append_elastic(f"r{number}") for number in range(65)]
    assert taken == writer.queue
    client = taken[0].client_sequencer
    assert [(one.client_sequencer, one.row_sequencer) for one in taken] == [(client, n) for n in range(65)]
    assert writer.channel.continuation_token == f"{client}_65"
    assert writer.append_elastic("r1") is writer.append_elastic("r64") is None
    assert len(writer.queue) == 65
    assert writer.append_elastic("r0") is not None
    writer = Writer()
    for request in "abcb":
        writer.append_elastic(request)
    for left in (2, 1, 0):
        with pytest.raises(Refusal) if left else nullcontext():
            writer.channel.committed_up_to(writer.channel.committed, 1)
            writer.open(fail=True)


def test_a_dropped_channel_is_missing_for_everyone():
    writer = Writer()
    token = writer.open()
    writer.channel.drop()
    for call in (writer.open, lambda: writer.append_elastic("r"), lambda: writer.append(token, "new")):
        with pytest.raises(Refusal, match="channel c") as refusal:
            call()
        assert (refusal.value.status, refusal.value.code) == (404, MISSING)
    assert writer.channel.is_dropped


def test_only_a_quiet_channel_expires_and_only_once():
    def channel(active_on_ms: int) -> Writer:
        return Writer(Committed(1, 0, 0, None, 0, 0, 0, None, None, None, None, None, 0, active_on_ms))

    gone: list[int] = []
    assert not channel(1000).channel.expire(1000, gone.append)
    waiting = channel(999)
    waiting.append(waiting.open())
    assert not waiting.channel.expire(1000, gone.append)
    quiet = channel(999)
    assert quiet.channel.expire(1000, gone.append)
    assert quiet.channel.is_dropped
    assert not quiet.channel.expire(1000, gone.append)
    assert gone == [1]


def test_a_client_at_the_rate_is_never_refused_and_one_above_it_is():
    clock, jitter = SimpleNamespace(now=100.0), random.Random(1)

    def of_a_client() -> ChannelRate:
        clock.now = 100.0
        return ChannelRate(Limits(), lambda: clock.now)

    rate = of_a_client()
    for number in range(3000):
        clock.now = max(clock.now, 100 + number * 0.1 + jitter.uniform(-0.4, 0.4))
        rate.take("c", 1_900_000)
    rate = of_a_client()

    def send() -> None:
        for _ in range(200):
            clock.now += 0.05
            rate.take("c", 10)

    with pytest.raises(Refusal, match="requests/s") as refusal:
        send()
    assert refusal.value.status == 429
    rate = of_a_client()
    rate.take("c", 100_000_000)
    with pytest.raises(Refusal, match="bytes/s"):
        rate.take("c", 1)
    clock.now += 2.1
    rate.take("c", 1)


def test_limits_are_named_and_zero_or_off_means_none():
    assert parse_limits("requests-per-second=0").requests_per_second == 0
    off = ChannelRate(parse_limits("off"))
    for _ in range(1000):
        off.take("c", 1 << 30)
    for text in [
        "x=1", "requests_per_second=1", "request-bytes=0", "request-bytes=1.5", "channels-per-pipe=-1",
        "bytes-per-second=a",
    ]:  # fmt: skip
        with pytest.raises(ConfigurationError):
            parse_limits(text)
