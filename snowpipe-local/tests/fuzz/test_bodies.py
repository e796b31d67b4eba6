"""Bodies of appends, broken in all ways: what is answered 200 is committed and counted, row by row."""

import gzip
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from tests.fuzz.conftest import cases, wait_for_token
from tests.fuzz.rows import TABLE, encoded
from tests.fuzz.wire import Wire

_REOPEN = ("ERR_CHANNEL_MUST_BE_REOPENED", "ERR_CHANNEL_MUST_BE_REOPENED_DUE_TO_ROW_SEQ_GAP")


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


@cases(0.1)
@given(sent=encoded())
def test_any_body_is_taken_whole_or_refused_whole(writer: Writer, sent: tuple[bytes, str]) -> None:
    writer.append(*sent)


@pytest.mark.parametrize(
    ("encoding", "part", "count"),
    [
        # Hundreds of thousands of empty frames are read in no time.
        ("zstd", zstandard.compress(b""), 400_000),
        ("gzip", gzip.compress(b"", mtime=0), 200_000),
    ],
)
def test_what_is_only_strange_is_taken(wire: Wire, encoding: str, part: bytes, count: int) -> None:
    wire.rows("CREATE TABLE IF NOT EXISTS strange (id INT, v VARIANT)")
    opened = wire.open("STRANGE", "c")
    query = {"continuationToken": opened["next_continuation_token"], "endOffsetToken": "2"}
    assert wire.append("STRANGE", "c", part * count, query, {"Content-Encoding": encoding}).status == 200
    wait_for_token(wire, "STRANGE", "c", "2")
