from __future__ import annotations

import time
from contextlib import nullcontext

import pytest
from snowpipe_local.engine import channel
from snowpipe_local.engine.channel import (
    INVALID_ROW_SEQUENCER,
    MISSING,
    ROW_SEQ_GAP,
    STALE,
    UNCOMMITTED,
    Append,
    Channel,
    Committed,
    advance,
)
from snowpipe_local.engine.lines import split_lines
from snowpipe_local.errors import Refusal
from snowpipe_local.limits import RATE_LIMITED, Limits
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


def test_elastic_appends_are_numbered_taken_once_and_wait_for_their_commit():
    writer = Writer()
    numbers = []

    def make(client, row):
        numbers.append((client, row))
        return Append(writer.channel, client, row, "r", split_lines(b""), None, None, 0.0)

    taken = [writer.channel.accept_unordered(request, make, writer.queue.append) for request in "abcb"]

    assert taken == [*writer.queue, None]
    client = numbers[0][0]
    assert numbers == [(client, 0), (client, 1), (client, 2)]
    assert writer.channel.continuation_token == f"{client}_3"
    for left in (2, 1, 0):
        with pytest.raises(Refusal) if left else nullcontext():
            writer.channel.committed_up_to(writer.channel.committed, 1)
            writer.open(fail=True)


def test_a_repeated_request_gets_its_answer_again_and_is_queued_once():
    writer = Writer()
    token = writer.open()
    assert writer.append(token, "r0") == writer.append(token, "r0")
    assert len(writer.queue) == 1


def test_a_token_used_under_another_request_is_refused():
    writer = Writer()
    token = writer.open()
    writer.append(token, "r0")
    assert writer.refused(token) == INVALID_ROW_SEQUENCER


def test_an_older_session_is_fenced_by_opening_again():
    writer = Writer()
    old = writer.open()
    new = writer.open()
    assert writer.refused(old) == STALE
    writer.append(new)


def test_a_gap_after_lost_rows_asks_for_reopening():
    writer = Writer(NEW)
    assert writer.open() == "1_0"
    assert writer.refused("1_2") == ROW_SEQ_GAP


def test_a_request_that_was_committed_before_a_restart_is_answered_again():
    writer = Writer()
    token = writer.append(writer.open(), "r0")
    writer.append(token, "r1")
    writer.commit()
    restarted = Writer(writer.channel.committed)
    assert restarted.append("1_1", "r1") == "1_2"
    assert restarted.queue == []
    assert restarted.refused("1_1", "other") == INVALID_ROW_SEQUENCER
    assert restarted.append("1_2", "r2") == "1_3"


def test_opening_is_refused_while_rows_are_uncommitted_and_fences_nobody():
    writer = Writer()
    token = writer.append(writer.open())
    with pytest.raises(Refusal) as refusal:
        writer.open(fail=True)
    assert (refusal.value.status, refusal.value.code) == (409, UNCOMMITTED)
    writer.append(token, "r1")
    writer.commit()
    writer.open(fail=True)


def test_an_append_without_token_does_not_move_the_committed_token():
    writer = Writer()
    token = writer.append(writer.open(), "r0", end="5")
    writer.append(token, "r1", end=None)
    writer.commit()
    assert writer.channel.status()["last_committed_offset_token"] == "5"
    assert writer.channel.status()["rows_inserted"] == 2


def test_an_invalid_channel_refuses_until_it_is_opened_again():
    writer = Writer()
    token = writer.open()
    writer.channel.invalidate("ERR_CHANNEL_MUST_BE_REOPENED")
    assert writer.refused(token) == "ERR_CHANNEL_MUST_BE_REOPENED"
    assert writer.channel.status()["channel_status_code"] == "ERR_CHANNEL_MUST_BE_REOPENED"
    writer.append(writer.open())
    assert writer.channel.status()["channel_status_code"] == "SUCCESS"


def test_rejected_rows_are_counted_and_the_token_still_advances():
    writer = Writer()
    writer.append(writer.open(), body=b"{}\nx\n{}\n", end="9")
    state = advance(NEW, writer.queue[0], 1, "bad row", now_ms=1)
    assert (state.rows_parsed, state.rows_inserted, state.rows_error_count) == (3, 2, 1)
    assert (state.offset_token, state.last_error_offset_upper_bound) == ("9", "9")
    assert (state.last_error_message, state.last_error_timestamp_ms) == ("bad row", 1)


def test_the_latency_of_an_append_is_from_its_receipt_to_its_commit(monkeypatch):
    writer = Writer()
    writer.append(writer.open())
    append = writer.queue[0]
    monkeypatch.setattr(channel.time, "monotonic", lambda: append.received_at + 1.5)
    assert advance(NEW, append, 0, None, now_ms=1).latency_ms == 1500


def test_a_continuation_token_in_another_spelling_is_malformed():
    for token in [
        "01_0", "1_00", "\u0661_0", "1_\u0660", "1_0\n", " 1_0", "1" * 5000 + "_0", "-1_0", "", "x", "1",
        "1_", "1_0_0",
    ]:  # fmt: skip
        writer = Writer(Committed(0, 0, 0, None, 0, 0, 0, None, None, None, None, None, 0))
        assert writer.open() == "1_0"
        refusal = writer.refusal(token)
        assert (refusal.status, refusal.code) == (400, "INVALID_CONTINUATION_TOKEN")
        assert not writer.queue


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


def test_refusals_of_appends_are_conflicts():
    writer = Writer()
    stale, token = writer.open(), writer.open()
    writer.append(token)
    statuses = [writer.refusal(sent).status for sent in (stale, "2_5", token)]
    writer.channel.invalidate("ERR_CHANNEL_MUST_BE_REOPENED")

    assert [*statuses, writer.refusal("2_1").status] == [409] * 4


def test_the_answers_to_the_last_64_requests_are_repeated():
    writer = Writer()
    tokens = [writer.open()]
    for number in range(65):
        tokens.append(writer.append(tokens[-1], f"r{number}"))

    assert [writer.append(tokens[number], f"r{number}") for number in (1, 64)] == [tokens[2], tokens[65]]
    assert writer.refused(tokens[0], "r0") == INVALID_ROW_SEQUENCER


def test_the_last_64_requests_of_the_elastic_channel_are_taken_once():
    writer = Writer()

    def sent(request: str) -> Append | None:
        return writer.channel.accept_unordered(
            request,
            lambda client, row: Append(
                writer.channel, client, row, request, split_lines(b""), None, None, 0.0
            ),
            writer.queue.append,
        )

    for number in range(65):
        sent(f"r{number}")

    assert sent("r1") is sent("r64") is None
    assert len(writer.queue) == 65
    assert sent("r0") is not None


def test_a_request_that_was_not_the_last_one_before_a_restart_is_not_answered_again():
    writer = Writer()
    writer.append(writer.append(writer.open(), "r0"), "r1")
    writer.commit()
    restarted = Writer(writer.channel.committed)

    assert restarted.refused("1_0", "r1") == INVALID_ROW_SEQUENCER
    assert restarted.refused("1_0", "r0") == INVALID_ROW_SEQUENCER
    assert restarted.append("1_2", "r1") == "1_3"


def test_a_dropped_channel_is_missing_for_everyone():
    writer = Writer()
    token = writer.open()
    writer.channel.drop()
    refusals = [writer.refusal(token)]
    for call in (
        lambda: writer.open(),
        lambda: writer.channel.accept_unordered("r", lambda *_: pytest.fail("taken"), writer.queue.append),
    ):
        with pytest.raises(Refusal) as refusal:
            call()
        refusals.append(refusal.value)

    assert [(one.status, one.code) for one in refusals] == [(404, MISSING)] * 3
    assert all("channel c" in str(one) for one in refusals)
    assert writer.channel.is_dropped


def test_rows_that_left_the_queue_without_a_commit_wait_no_more():
    writer = Writer()
    token = writer.open()
    for number in range(3):
        token = writer.append(token, f"r{number}")
    for gone in (1, 2):
        with pytest.raises(Refusal):
            writer.open(fail=True)
        writer.channel.discarded(gone)
    writer.open(fail=True)


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
