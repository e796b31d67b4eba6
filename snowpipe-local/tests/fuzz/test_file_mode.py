"""File mode of the streaming SDK: uploads and the messages about them, garbled."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.budget import cases
from tests.fuzz.conftest import wait_for_token
from tests.fuzz.rows import BODIES, VALUES
from tests.fuzz.wire import Wire, bearer
from tests.streaming_rest import signed_upload

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
        self.key = base64.b64decode(info["encryption_info"]["pipe_key"])[:32]
        self._number = 0

    def put(self, body: bytes, headers: dict[str, str | bytes] | None = None) -> tuple[int, str]:
        """Upload bytes and return the status and the path."""
        path = f"{self.location['location']}{self._number}.ndjson"
        self._number += 1
        url = f"https://127.0.0.1:{self.wire.service.port}/{path}?x-id=PutObject"
        signed = signed_upload(url, body, self.location["creds"])
        del signed["host"]
        return self.wire.send(
            "PUT", f"/{path}?x-id=PutObject", {**signed, **(headers or {})}, body
        ).status, path

    def fragment(self, path: str, length: int, **more: Any) -> dict[str, Any]:
        """Return the right message about a file."""
        token = str(self.taken)
        right = {
            "file_path": path,
            "fragment_length_bytes": length,
            "fragment_start_byte_offset": 0,
            "fragment_start_offset_token": token,
            "fragment_end_offset_token": token,
            "iv_base64": base64.b64encode(_IV).decode(),
        }
        return {**right, **more}

    def send(self, message: bytes) -> int:
        """Send a message and return its status."""
        query = {"continuationToken": self.next}
        answer = self.wire.append("FILED", "files", message, query, kind="filebuffer")
        assert answer.status in (200, 400, 413), answer
        if answer.status == 200:
            self.next, self.taken = answer.json["next_continuation_token"], self.taken + 1
        return answer.status

    def encrypted(self, body: bytes) -> bytes:
        cipher = Cipher(algorithms.AES(self.key), modes.CTR(_IV)).encryptor()
        return cipher.update(zstandard.compress(body)) + cipher.finalize()


@pytest.fixture(scope="module")
def uploads(wire: Wire) -> Uploads:
    return Uploads(wire)


@pytest.mark.parametrize("share", [0.04])
def test_any_file_is_taken_whole_or_refused_whole(uploads: Uploads, share: float) -> None:
    @cases(share)
    @given(body=BODIES, damage=st.sampled_from(["none", "none", "cut", "raw"]), cut=st.integers(1, 30))
    def run(body: bytes, damage: str, cut: int) -> None:
        content = body if damage == "raw" else uploads.encrypted(body)
        content = content[:-cut] if damage == "cut" else content
        status, path = uploads.put(content)
        assert status == 200
        taken = uploads.send(json.dumps([uploads.fragment(path, len(content))]).encode())
        assert taken == 200 or damage != "none"

    run()


_FIELDS = [
    "file_path", "fragment_length_bytes", "fragment_start_byte_offset", "fragment_start_offset_token",
    "fragment_end_offset_token", "iv_base64",
]  # fmt: skip
_PATHS = st.sampled_from(
    [
        "../../account.json",
        "snowpipe-local-stage/../account.json",
        "/etc/passwd",
        "snowpipe-local-stage/0/..",
        "",
        "\x00",
    ]
)


@pytest.mark.parametrize("share", [0.05])
def test_any_message_about_a_file_is_answered(uploads: Uploads, share: float) -> None:
    status, path = uploads.put(uploads.encrypted(b'{"id":1}\n'))
    assert status == 200
    length = len(uploads.encrypted(b'{"id":1}\n'))

    @cases(share)
    @given(
        changed=st.dictionaries(st.sampled_from(_FIELDS), VALUES | _PATHS, min_size=1, max_size=3),
        missing=st.sets(st.sampled_from(_FIELDS), max_size=2),
        form=st.sampled_from(["one", "one", "two", "object", "none"]),
    )
    def run(changed: dict[str, Any], missing: set[str], form: str) -> None:
        entry = {k: v for k, v in uploads.fragment(path, length, **changed).items() if k not in missing}
        message = {"one": [entry], "two": [entry, entry], "object": entry, "none": []}[form]
        uploads.send(json.dumps(message).encode())

    run()


@pytest.mark.parametrize("share", [0.03])
def test_garbage_instead_of_a_message_is_refused(uploads: Uploads, share: float) -> None:
    @cases(share)
    @given(
        message=st.binary(max_size=200)
        | st.sampled_from([b"[" * 100_000, b"[1e999]", b"[{}]", b'["\\ud800"]'])
    )
    def run(message: bytes) -> None:
        assert uploads.send(message) == 400

    run()


@pytest.mark.parametrize("share", [0.03])
def test_any_chunked_upload_is_answered(uploads: Uploads, share: float) -> None:
    sizes = st.sampled_from(
        [b"0", b"5", b"ffffffffffffffffffff", b"-1", b"5;chunk-signature=x", b"_5", b"0x5", b""]
    )
    parts = st.lists(
        st.tuples(sizes, st.binary(max_size=8), st.sampled_from([b"\r\n", b"\n", b""])), max_size=5
    )

    @cases(share)
    @given(chunks=parts, tail=st.binary(max_size=10))
    def run(chunks: list[tuple[bytes, bytes, bytes]], tail: bytes) -> None:
        body = b"".join(size + end + content + end for size, content, end in chunks) + tail
        status, _ = uploads.put(body, {"Content-Encoding": "aws-chunked"})
        assert status in (200, 400)

    run()


def test_after_all_that_a_right_file_is_committed(uploads: Uploads) -> None:
    content = uploads.encrypted(b'{"id":7777}\n')
    _, path = uploads.put(content)
    token = str(uploads.taken)
    assert uploads.send(json.dumps([uploads.fragment(path, len(content))]).encode()) == 200
    wait_for_token(uploads.wire, "FILED", "files", token)
    assert uploads.wire.rows("SELECT count(*) FROM filed WHERE id = 7777") == [["1"]]
    counted = uploads.wire.status("FILED", "files")["rows_inserted"]
    assert uploads.wire.rows("SELECT count(*) FROM filed") == [[str(counted)]]
