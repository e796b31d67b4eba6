"""File mode of the streaming SDK: uploads and the messages about them, garbled."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import cases, wait_for_token
from tests.fuzz.rows import BODIES
from tests.fuzz.wire import Wire, bearer
from tests.streaming_rest import encrypted, signed_upload

_IV = bytes(range(16))


class Uploads:
    """The writer of one channel that sends its rows in files."""

    def __init__(self, wire: Wire) -> None:
        wire.rows("CREATE TABLE filed (id INT, need INT, v VARIANT)")
        self.wire = wire
        self.next = wire.open("FILED", "files")["next_continuation_token"]
        self.taken = 0
        self.token: str | None = None
        path = "/v2/streaming/databases/LOCAL/schemas/PUBLIC/pipes/FILED-STREAMING:pipe-info"
        info = wire.send("POST", path, bearer(wire.scoped), b"{}").json
        self.location = info["rowset_stage_location"]
        self.key = info["encryption_info"]["pipe_key"]
        self._number = 0

    def put(self, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Upload bytes and return the status and the path."""
        path = f"{self.location['location']}{self._number}.ndjson"
        self._number += 1
        url = f"https://127.0.0.1:{self.wire.service.port}/{path}?x-id=PutObject"
        signed = {**signed_upload(url, body, self.location["creds"]), **(headers or {})}
        del signed["host"]
        return self.wire.send("PUT", f"/{path}?x-id=PutObject", signed, body).status, path

    def fragment(self, path: str, length: int) -> dict[str, Any]:
        """Return the right message about a file."""
        token = str(self.taken)
        return {
            "file_path": path, "fragment_length_bytes": length, "fragment_start_byte_offset": 0,
            "fragment_start_offset_token": token, "fragment_end_offset_token": token,
            "iv_base64": base64.b64encode(_IV).decode(),
        }  # fmt: skip

    def send(self, message: bytes) -> int:
        """Send a message and return its status."""
        query = {"continuationToken": self.next}
        answer = self.wire.append("FILED", "files", message, query, kind="filebuffer")
        assert answer.status in (200, 400, 413), answer
        if answer.status == 200:
            self.next, self.taken = answer.json["next_continuation_token"], self.taken + 1
        return answer.status


@pytest.fixture(scope="module")
def uploads(wire: Wire) -> Uploads:
    return Uploads(wire)


@cases(0.04)
@given(body=BODIES, damage=st.sampled_from(["none", "none", "cut", "raw"]), cut=st.integers(1, 30))
def test_any_file_is_taken_whole_or_refused_whole(
    uploads: Uploads, body: bytes, damage: str, cut: int
) -> None:
    content = body if damage == "raw" else encrypted(body, uploads.key, _IV)
    content = content[:-cut] if damage == "cut" else content
    status, path = uploads.put(content)
    assert status == 200
    taken = uploads.send(json.dumps([uploads.fragment(path, len(content))]).encode())
    assert taken == 200 or damage != "none"


def test_after_all_that_a_right_file_is_committed(uploads: Uploads) -> None:
    content = encrypted(b'{"id":7777}\n', uploads.key, _IV)
    _, path = uploads.put(content)
    token = str(uploads.taken)
    assert uploads.send(json.dumps([uploads.fragment(path, len(content))]).encode()) == 200
    wait_for_token(uploads.wire, "FILED", "files", token)
    assert uploads.wire.rows("SELECT count(*) FROM filed WHERE id = 7777") == [["1"]]
    counted = uploads.wire.status("FILED", "files")["rows_inserted"]
    assert uploads.wire.rows("SELECT count(*) FROM filed") == [[str(counted)]]
