"""Bodies of appends, broken in all ways: what is answered 200 is committed and counted, row by row."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from tests.fuzz.budget import cases
from tests.fuzz.conftest import wait_for_token
from tests.fuzz.rows import TABLE, encoded
from tests.fuzz.wire import Wire

_REOPEN = ("ERR_CHANNEL_MUST_BE_REOPENED", "ERR_CHANNEL_MUST_BE_REOPENED_DUE_TO_ROW_SEQ_GAP")
_BOMB = 300 << 20


class Writer:
    """One channel's only writer; it knows what the channel must have committed."""

    def __init__(self, wire: Wire, table: str) -> None:
        self.wire = wire
        self.table = table
        self.token: str | None = None
        self.taken = 0
        self._next = wire.open(table, "bodies")["next_continuation_token"]

    def append(self, body: bytes, encoding: str) -> int:
        """Append a body and return the status; a refused one must change nothing."""
        token = str(self.taken)
        query = {"continuationToken": self._next, "endOffsetToken": token}
        answer = self.wire.append(self.table, "bodies", body, query, {"Content-Encoding": encoding})
        if answer.status == 409 and self.table == "EVOLVING":
            # A key that no column can be named after invalidates the channel, as documented.
            assert answer.code in _REOPEN, answer
            opened = self.wire.open(self.table, "bodies")
            self._next = opened["next_continuation_token"]
            self.token = opened["channel_status"]["last_committed_offset_token"]
            return answer.status
        assert answer.status in (200, 400, 413, 415), answer
        if answer.status == 200:
            self._next, self.token, self.taken = answer.json["next_continuation_token"], token, self.taken + 1
        return answer.status


@pytest.fixture(scope="module", params=["plain", "evolving"])
def writer(wire: Wire, request: pytest.FixtureRequest) -> Iterator[Writer]:
    """A writer to a table of many types; in the end, rows and counters must agree."""
    table = str(request.param).upper()
    more = "ERROR_LOGGING = TRUE" if table == "PLAIN" else "ENABLE_SCHEMA_EVOLUTION = TRUE"
    wire.rows(f"CREATE TABLE {table} ({TABLE}) {more}")
    writer = Writer(wire, table)
    yield writer
    if table == "EVOLVING":
        writer.token = wire.open(table, "bodies")["channel_status"]["last_committed_offset_token"]
    wait_for_token(wire, table, "bodies", writer.token)
    status = wire.status(table, "bodies")
    assert status["channel_status_code"] == "SUCCESS"
    assert wire.rows(f"SELECT count(*) FROM {table}") == [[str(status["rows_inserted"])]]
    assert status["rows_parsed"] == status["rows_inserted"] + status["rows_error_count"]
    if table == "PLAIN":
        kept = wire.rows("SELECT count(*) FROM ERROR_TABLE(plain)")
        assert kept == [[str(status["rows_error_count"])]]


@pytest.mark.parametrize("share", [0.1])
def test_any_body_is_taken_whole_or_refused_whole(writer: Writer, share: float) -> None:
    @cases(share)
    @given(sent=encoded())
    def run(sent: tuple[bytes, str]) -> None:
        writer.append(*sent)

    run()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("zstd", zstandard.ZstdCompressor(level=3).compress(bytes(_BOMB))),
        ("zstd", zstandard.compress(bytes(64 << 20)) * 5),
        ("gzip", gzip.compress(bytes(_BOMB), mtime=0)),
        ("gzip", gzip.compress(bytes(64 << 20), mtime=0) * 5),
    ],
    ids=["zstd", "zstd-frames", "gzip", "gzip-members"],
)
def test_a_decompression_bomb_is_refused(wire: Wire, encoding: str, body: bytes) -> None:
    wire.rows("CREATE TABLE IF NOT EXISTS bombed (id INT)")
    opened = wire.open("BOMBED", "bomb")
    query = {"continuationToken": opened["next_continuation_token"], "endOffsetToken": "1"}
    assert wire.append("BOMBED", "bomb", body, query, {"Content-Encoding": encoding}).status == 413


@pytest.mark.parametrize(
    ("encoding", "frame"), [("zstd", zstandard.compress(b"")), ("gzip", gzip.compress(b"", mtime=0))]
)
def test_hundreds_of_thousands_of_empty_frames_are_read_in_no_time(
    wire: Wire, encoding: str, frame: bytes
) -> None:
    wire.rows("CREATE TABLE IF NOT EXISTS framed (id INT)")
    opened = wire.open("FRAMED", "frames")
    body = frame * ((4 << 20) // len(frame))
    query = {"continuationToken": opened["next_continuation_token"], "endOffsetToken": "1"}
    assert wire.append("FRAMED", "frames", body, query, {"Content-Encoding": encoding}).status == 200


def test_a_first_row_nested_too_deeply_for_python_is_committed(wire: Wire) -> None:
    wire.rows("CREATE TABLE deep (id INT, v VARIANT)")
    opened = wire.open("DEEP", "deep")
    body = b'{"id":1,"v":' + b"[" * 5000 + b"]" * 5000 + b'}\n{"id":2}\n'
    query = {"continuationToken": opened["next_continuation_token"], "endOffsetToken": "2"}
    assert wire.append("DEEP", "deep", body, query).status == 200
    wait_for_token(wire, "DEEP", "deep", "2")
    assert wire.rows("SELECT count(*) FROM deep") == [["2"]]
