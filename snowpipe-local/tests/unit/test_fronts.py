import gzip
import json
import re
from pathlib import Path

import jsonschema
import pytest
import snowpipe_local
import zstandard
from snowpipe_local.engine.spool import Spool
from snowpipe_local.errors import Refusal
from snowpipe_local.fronts import http
from snowpipe_local.fronts.stage_files import UPLOAD_BUCKET, Stage, decode_aws_chunked

OPENAPI_FILE = Path(snowpipe_local.__file__).with_name("openapi.json")


def _unsized(content: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(content) + compressor.flush()


def test_bodies_are_decoded_frame_after_frame():
    for encoding, body in [
        ("", b"abcabc"), ("identity", b"abcabc"), ("zstd", zstandard.compress(b"abcabc")),
        ("ZSTD", _unsized(b"abc") + _unsized(b"abc")),
        ("gzip", gzip.compress(b"abc", mtime=0) + gzip.compress(b"abc", mtime=0)),
    ]:  # fmt: skip
        assert http.decode_body(body, encoding) == b"abcabc"
    content = bytes(range(256)) * 20_000
    assert http.decode_body(_unsized(content) + _unsized(content), "zstd") == content * 2


def test_broken_bodies_are_refused():
    for encoding, body, status in [
        ("zstd", b"nonsense", 400), ("zstd", _unsized(b"x" * 1000)[:-3], 400), ("gzip", b"nonsense", 400),
        ("gzip", gzip.compress(b"x" * 1000, mtime=0)[:-9], 400), ("br", b"x", 415),
    ]:  # fmt: skip
        with pytest.raises(Refusal) as refusal:
            http.decode_body(body, encoding)
        assert refusal.value.status == status


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(http, "MAX_DECODED_BYTES", 1 << 20)
    content = bytes(2 << 20)
    for encoding, body in (("zstd", _unsized(content)), ("gzip", gzip.compress(content))):
        with pytest.raises(Refusal) as refusal:
            http.decode_body(body, encoding)
        assert refusal.value.status == 413


def test_path_segments_are_split_before_they_are_decoded():
    scope = {
        "method": "GET", "raw_path": b"/v2/a%2Fb/c%20d%2541",
        "query_string": b"endOffsetToken=a%26b%2B1&startOffsetToken=",
        "headers": [(b"authorization", b"Bearer t")],
    }  # fmt: skip
    request = http.request_of(scope, b"")
    assert request.segments == ("v2", "a/b", "c d%41")
    assert request.query == {"endOffsetToken": "a&b+1", "startOffsetToken": ""}
    assert request.bearer() == "t"


def test_aws_chunks_are_joined_and_trailers_ignored_and_broken_ones_refused():
    body = b"3\r\nabc\r\n2;chunk-signature=x\r\nde\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"
    assert decode_aws_chunked(body) == b"abcde"
    for body in [b"", b"zz\r\n", b"5\r\nabc", b"-1\r\n"]:
        with pytest.raises(Refusal):
            decode_aws_chunked(body)


def test_paths_outside_the_stage_are_refused(tmp_path):
    for location in ["x/y", "../etc/passwd", f"{UPLOAD_BUCKET}/../0", f"{UPLOAD_BUCKET}/0123456789abcdef/.."]:
        with pytest.raises(Refusal):
            Stage(tmp_path, Spool(tmp_path, tmp_path, tmp_path.parent / f"{tmp_path.name}.keys")).path(
                location
            )


def test_the_service_serves_what_is_described_with_one_operation_for_each_route():
    document = json.loads(OPENAPI_FILE.read_text())
    schemas = document["components"]["schemas"]
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations))
    assert set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document["paths"]))) == set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
