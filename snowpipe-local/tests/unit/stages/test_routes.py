import asyncio
import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from snowpipe_local.fronts import google_storage, stage_files
from snowpipe_local.fronts.stage_files import BUCKET, StageFilesFront
from snowpipe_local.stages.files import Transfer
from snowpipe_local.stages.storage import Storage
from tests.unit.service_in_process import exchanged

UPLOAD = Transfer(True, "s1", "in/", ("/tmp/x",))  # noqa: S108
DOWNLOAD = Transfer(False, "s1", "in/", ("in/a",), local_folder="/tmp")  # noqa: S108
_OPENED_BY = ("DEMO", 1, None)


@pytest.fixture
def storage(tmp_path):
    storage = Storage(tmp_path / "staged", tmp_path)
    storage.create("s1")
    return storage


@pytest.fixture
def front(storage):
    return _front(storage, b"k" * 48)


def _front(storage: Storage, secret: bytes) -> StageFilesFront:
    account: Any = SimpleNamespace(secret=secret, still_knows=lambda *opened_by: opened_by == _OPENED_BY)
    return StageFilesFront(storage, account, "127.0.0.1:1")


def _call(
    front: StageFilesFront,
    method: str,
    name: str,
    transfer: Transfer | None,
    parts: Sequence[bytes] = (b"",),
    *,
    token: str | None = None,
    described: str = "",
    breaks_off: bool = False,
) -> tuple[int, bytes]:
    headers = {"x-goog-meta-encryptiondata": described} if described else {}
    if transfer is not None:
        headers["authorization"] = f"Bearer {token or _token(front, transfer)}"
    path = f"/{BUCKET}/s1/{name}"
    sent = asyncio.run(exchanged(front.answer, method, path, headers, parts, breaks_off=breaks_off))
    return sent[0]["status"] if sent else 0, b"".join(message.get("body", b"") for message in sent[1:])


def _token(front: StageFilesFront, transfer: Transfer) -> str:
    return str(front.instruct(transfer, _OPENED_BY)["stageInfo"]["creds"]["GCS_ACCESS_TOKEN"])


def test_an_upload_arrives_whole_and_comes_back(front, storage):
    parts = [b"a" * 700_000, b"", b"b" * 700_000, b"c"]
    assert _call(front, "PUT", "in/a", UPLOAD, parts)[0] == 200
    assert storage.internal("s1").path("in/a").read_bytes() == b"".join(parts)
    assert storage.internal("s1").path("in/a").stat().st_mode & 0o077 == 0
    assert list(storage.incoming.iterdir()) == []
    assert _call(front, "GET", "in/a", DOWNLOAD) == (200, b"".join(parts))
    assert _call(front, "HEAD", "in/a", UPLOAD) == (200, b"")


def test_a_path_names_a_file_of_the_stage_or_is_refused(front, storage):
    assert _call(front, "PUT", "in%2Fa", UPLOAD, [b"x"])[0] == 200
    for name in (
        "../b", "%2e%2e/b", "..%2fb", "a/../../b", "a//b", "a/./b", "%00", "a%5c..%5cb", "a%2F..%2F..%2Fb",
        "a%2F%2Fb", "%ff", "x" * 300, ".", "a/b",
    ):  # fmt: skip
        assert _call(front, "PUT", f"in/{name}", UPLOAD, [b"y"])[0] in {400, 403, 404}, name
    assert [file.path for file in storage.internal("s1").list("")] == ["in/a"]
    assert storage.internal("s1").path("in/a").read_bytes() == b"x"
    assert _call(front, "PUT", "in/c/d", UPLOAD, [b"x"])[0] == 200
    assert _call(front, "PUT", "in/c", UPLOAD, [b"x"])[0] == 400


def _encrypted(master: bytes, content: bytes) -> tuple[bytes, str]:
    """Encrypt a file as Snowflake's drivers do: its own key, which the master key wraps."""
    key, iv = b"0123456789abcdef", b"fedcba9876543210"
    padded, body = (_padded(key), _padded(content))
    wrapping = Cipher(algorithms.AES(master), modes.ECB()).encryptor()  # noqa: S305
    cipher = Cipher(algorithms.AES(key), modes.CBC(iv)).encryptor()
    described = {
        "WrappedContentKey": {"EncryptedKey": base64.b64encode(wrapping.update(padded)).decode()},
        "ContentEncryptionIV": base64.b64encode(iv).decode(),
    }
    return cipher.update(body), json.dumps(described)


def _padded(content: bytes) -> bytes:
    left = 16 - len(content) % 16
    return content + bytes([left]) * left


def test_what_gos_driver_encrypts_is_staged_as_it_was(front, storage):
    for content in [b"", b"x" * 16, b"rows" * 600_000]:
        instructed = front.instruct(UPLOAD, _OPENED_BY, client="GO")
        token = instructed["stageInfo"]["creds"]["GCS_ACCESS_TOKEN"]
        master = base64.b64decode(instructed["encryptionMaterial"]["queryStageMasterKey"])
        body, header = _encrypted(master, content)
        parts = [body[:1_000_003], body[1_000_003:]]

        assert _call(front, "PUT", "in/a", UPLOAD, parts, token=token, described=header)[0] == 200
        assert storage.internal("s1").path("in/a").read_bytes() == content

        foreign = _encrypted(b"k" * 16, b"")[1]
        for broken, described in (
            (body[:-1], header), (body, "{}"), (body, "no JSON"), (body, foreign),
        ):  # fmt: skip
            status, answer = _call(front, "PUT", "in/b", UPLOAD, [broken], token=token, described=described)
            assert (status, json.loads(answer)["code"]) == (400, "INVALID_ENCRYPTION")
        assert [file.path for file in storage.internal("s1").list("")] == ["in/a"]
        assert list(storage.incoming.iterdir()) == []


def test_no_other_client_encrypts(front):
    for client, transfer in [("PYTHON", UPLOAD), ("JDBC", DOWNLOAD), ("GO", DOWNLOAD)]:
        assert front.instruct(transfer, _OPENED_BY, client=client)["encryptionMaterial"] is None


def _google(
    front: StageFilesFront, path: str, token: str, parts: Sequence[bytes] = (), **headers: str
) -> tuple[int, Any]:
    """Call Google's storage API, by POST where there is a body."""
    method = "POST" if parts else "GET"
    given = {"authorization": f"Bearer {token}"} | {name.replace("_", "-"): headers[name] for name in headers}
    sent = asyncio.run(exchanged(front.answer, method, path, given, parts or [b""]))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


_ONE_BODY = {"content_type": "multipart/related; boundary=__END__"}
_OBJECTS = f"/storage/v1/b/{BUCKET}/o"
_UPLOADS = f"/upload{_OBJECTS}?uploadType=multipart"


def _in_one_body(name: Any, content: bytes) -> bytes:
    head = b"--__END__\r\ncontent-type: application/json\r\n\r\n" + json.dumps({"name": name}).encode()
    return head + b"\r\n--__END__\r\ncontent-length: 1\r\n\r\n" + content + b"\r\n--__END__--\r\n"


@pytest.mark.parametrize("packed", [False, True])
def test_jdbc_sends_name_and_file_in_one_body_and_sees_what_is_there(front, storage, packed):
    token = _token(front, UPLOAD)
    packing = {"content_encoding": "gzip"} if packed else {}
    for content in [b"", b"\r\n--__END__--\r\n\r\n", b"rows" * 600_000]:
        body = _in_one_body("s1/in/a", content)
        sent = gzip.compress(body) if packed else body
        for parts in ([sent], [sent, b""], [sent[:-9], sent[-9:]], [sent[:40], sent[40:]]):
            assert _google(front, _UPLOADS, token, parts, **_ONE_BODY, **packing)[0] == 200
            assert storage.internal("s1").path("in/a").read_bytes() == content
    digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    named = {"kind": "storage#object", "bucket": BUCKET, "name": "s1/in/a"}
    there = {**named, "size": "2400000", "md5Hash": digest}
    for prefix in ("s1/in/", "s1/in/a"):
        status, listed = _google(front, f"{_OBJECTS}?prefix={prefix}", token)
        assert (status, listed["items"]) == (200, [there])
    assert _google(front, f"{_OBJECTS}/s1%2Fin%2Fa", token) == (200, there)
    assert _google(front, f"{_OBJECTS}/s1%2Fin%2F", token)[0] == 404
    assert list(storage.incoming.iterdir()) == []


def test_one_body_that_is_broken_or_of_another_place_leaves_nothing(front, storage, monkeypatch):
    token, good = _token(front, UPLOAD), _in_one_body("s1/in/a", b"x")
    for path, sent, headers, status in [
        (_UPLOADS, good, {}, 400), (_UPLOADS, good[:-9], _ONE_BODY, 400),
        (_UPLOADS, good[:60], _ONE_BODY, 400),
        (_UPLOADS, good, {**_ONE_BODY, "content_encoding": "gzip"}, 400),
        (_UPLOADS, _in_one_body(1, b"x"), _ONE_BODY, 400), (_UPLOADS, b"x" * 100_000, _ONE_BODY, 400),
        (_UPLOADS, _in_one_body("s1/other/a", b"x"), _ONE_BODY, 403),
        (_UPLOADS, _in_one_body("s2/in/a", b"x"), _ONE_BODY, 403),
        (_UPLOADS, _in_one_body("s1/in/../../a", b"x"), _ONE_BODY, 400), (_OBJECTS, good, _ONE_BODY, 405),
    ]:  # fmt: skip
        answered, answer = _google(front, path, token, [sent], **headers)
        assert (answered, bool(answer["code"])) == (status, True), (path, sent)
    assert _google(front, _UPLOADS, "none", [good], **_ONE_BODY)[0] == 401
    monkeypatch.setattr(google_storage, "INFLATED_BYTES", len(good) - 1)
    packed = {**_ONE_BODY, "content_encoding": "gzip"}
    assert "AUTO_COMPRESS" in str(_google(front, _UPLOADS, token, [gzip.compress(good)], **packed))
    for place in ("s1/other", "s2/in/", ""):
        assert _google(front, f"{_OBJECTS}?prefix={place}", token)[0] == 403
    assert storage.internal("s1").list("") == []
    assert list(storage.incoming.iterdir()) == []


def test_an_upload_that_breaks_off_leaves_nothing(front, storage):
    _call(front, "PUT", "in/a", UPLOAD, [b"x" * 2_000_000], breaks_off=True)
    assert list(storage.incoming.iterdir()) == []
    assert storage.internal("s1").list("") == []


def test_an_expired_token_or_one_of_another_service_makes_the_client_ask_again(front, storage, monkeypatch):
    foreign = _token(_front(storage, b"o" * 48), UPLOAD)
    monkeypatch.setattr(stage_files, "TOKEN_SECONDS", -1)
    for token in (foreign, _token(front, UPLOAD)):
        status, body = _call(front, "PUT", "in/a", UPLOAD, token=token)
        assert (status, json.loads(body)["code"]) == (401, "FILE_TOKEN_INVALID")


def test_what_a_token_does_not_open_is_refused(front):
    for method, name, transfer, status in [
        ("DELETE", "in/a", UPLOAD, 405), ("GET", "in/none", DOWNLOAD, 404), ("HEAD", "in/none", UPLOAD, 404),
        ("GET", "in", DOWNLOAD, 403), ("GET", "other/a", DOWNLOAD, 403), ("PUT", "in/a", DOWNLOAD, 403),
        ("PUT", "in/a", None, 401), ("PUT", "in/../a", UPLOAD, 400),
    ]:  # fmt: skip
        answered, body = _call(front, method, name, transfer)
        assert answered == status
        assert json.loads(body)["code"]


def test_a_stage_that_is_gone_is_shown_to_those_with_a_token_for_it_only(front, storage):
    (storage.internal("s1").root).rmdir()
    assert _call(front, "GET", "in/a", None)[0] == 401
    assert _call(front, "GET", "other/a", DOWNLOAD)[0] == 403
    assert _call(front, "GET", "in/a", DOWNLOAD)[0] == 404
