"""File mode of the streaming SDK: an S3-shaped upload, then fragments of the file become appends.

Batches above 1 MiB always travel this way (observed with SDK 1.9.1). A file holds
``AES-256-CTR(pipe key, iv, zstd(NDJSON))``.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from zstandard import ZstdError

from airflow_provider_snowpipe.local.accounts import Account
from airflow_provider_snowpipe.local.engine.spool import Spool, SpoolFile
from airflow_provider_snowpipe.local.errors import Refusal
from airflow_provider_snowpipe.local.fronts.http import Request, Response, decode_zstd, json_value

UPLOAD_BUCKET = "snowpipe-local-stage"
MAX_UPLOAD_BYTES = 256 << 20
_KEY_BYTES = 32
_PREFIX = re.compile(r"[0-9a-f]{16}\Z")
_FILE = re.compile(r"[\w.-]{1,128}\Z")
_SIGNATURE = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<key>[^/,\s]+)/"
    r"(?P<scope>(?P<day>\d{8})/(?P<region>[\w-]+)/s3/aws4_request),"
    r"\s*SignedHeaders=(?P<headers>[\w;-]+),\s*Signature=(?P<signature>[0-9a-f]{64})\s*\Z"
)
_CLOCK_SKEW_SECONDS = 15 * 60
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Stage:
    """Files that clients uploaded and that are not committed yet.

    :param root: folder of the files.
    :param spool: encrypts them at rest, over whatever encryption the client applied.
    """

    root: Path
    spool: Spool
    bucket: str = UPLOAD_BUCKET

    def path(self, location: str) -> Path:
        """Return the file behind ``bucket/prefix/name``.

        :raises Refusal: 400 for a path outside the stage.
        """
        parts = location.split("/")
        if (
            len(parts) != 3
            or parts[0] != self.bucket
            or not _PREFIX.match(parts[1])
            or not _is_file_name(parts[2])
        ):
            raise Refusal(400, "INVALID_FILE_PATH", f"{location} is not a path of the streaming stage")
        return self.root / parts[1] / parts[2]

    def file(self, location: str) -> SpoolFile:
        """Return an upload by its location, whether it exists or not.

        :raises Refusal: 400 for a path outside the stage.
        """
        return SpoolFile(self.spool, self.path(location))


@dataclass(frozen=True, slots=True)
class Fragment:
    """The part of an uploaded file that one append names."""

    file_path: str
    start_byte: int
    length: int
    iv: bytes = field(repr=False)
    start_offset_token: str | None
    end_offset_token: str | None

    @classmethod
    def from_request(cls, request: Request) -> Fragment:
        """Read the body of a ``filebuffer`` call: a JSON array with one fragment.

        :raises Refusal: 400 for anything else.
        """
        try:
            (entry,) = json_value(request.body)
            return cls(
                file_path=str(entry["file_path"]),
                start_byte=int(entry.get("fragment_start_byte_offset") or 0),
                length=int(entry["fragment_length_bytes"]),
                iv=base64.b64decode(entry["iv_base64"], validate=True),
                start_offset_token=_token(entry.get("fragment_start_offset_token")),
                end_offset_token=_token(entry.get("fragment_end_offset_token")),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise Refusal(
                400, "INVALID_REQUEST_BODY", "filebuffer needs a JSON array with one fragment of a file"
            ) from error


def put_object(account: Account, stage: Stage, request: Request) -> Response:
    """Answer an S3 PutObject of the streaming SDK.

    :param request: path-style request ``PUT /<bucket>/<prefix>/<name>``, body possibly ``aws-chunked``.
    :raises Refusal: 403 without a signature by the key that pipe-info handed out for the prefix.
    """
    path = check_signature(account, stage, request)
    body = request.body
    declared = request.headers.get("x-amz-content-sha256", "")
    if _HEX_DIGEST.match(declared) and hashlib.sha256(body).hexdigest() != declared:
        raise Refusal(400, "XAmzContentSHA256Mismatch", "the body is not the one that was signed")
    if "aws-chunked" in request.headers.get("content-encoding", ""):
        body = decode_aws_chunked(body)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    stage.spool.write(path, body)
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    return Response(200, b"", "application/xml", ((b"etag", f'"{etag}"'.encode()),))


def check_signature(account: Account, stage: Stage, request: Request) -> Path:
    """Check the headers of an upload against the key of its path, and return the file.

    The scheme is that of the AWS page "Create a signed AWS API request" (Signature Version 4).

    :raises Refusal: 403 for another key, a wrong signature or an old one.
    """
    path = stage.path("/".join(request.segments))
    found = _SIGNATURE.match(request.headers.get("authorization", ""))
    prefix = path.parent.name
    if found is None or found["key"] != account.upload_key_id(prefix):
        raise Refusal(403, "AccessDenied", "the access key does not belong to this path; ask pipe-info again")
    date = request.headers.get("x-amz-date", "")
    names = found["headers"].split(";")
    query = sorted(request.query.items())
    canonical = "\n".join(
        (
            request.method,
            quote("/" + "/".join(request.segments), safe="/~"),
            "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in query),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
            "",
            found["headers"],
            request.headers.get("x-amz-content-sha256", ""),
        )
    )
    key = f"AWS4{account.upload_secret(prefix)}".encode()
    for part in (found["day"], found["region"], "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{date}\n{found['scope']}\n{digest}"
    expected = hmac.new(key, signed.encode(), "sha256").hexdigest()
    if not {"host", "x-amz-date"} <= set(names) or not hmac.compare_digest(expected, found["signature"]):
        raise Refusal(403, "SignatureDoesNotMatch", "the upload is not signed with the key of pipe-info")
    try:
        signed_at = dt.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()
    except ValueError as error:
        raise Refusal(403, "AccessDenied", "x-amz-date is not a time") from error
    if abs(time.time() - signed_at) > _CLOCK_SKEW_SECONDS:
        raise Refusal(403, "RequestTimeTooSkewed", "the signature is older than 15 minutes, or of the future")
    return path


def decode_aws_chunked(body: bytes) -> bytes:
    """Join the chunks of an ``aws-chunked`` body; trailers and chunk extensions are ignored.

    :raises Refusal: 400 for a broken chunk.
    """
    parts: list[bytes] = []
    position = 0
    while True:
        end = body.find(b"\r\n", position)
        try:
            size = int(body[position:end].split(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0 or end + 2 + size > len(body):
            raise Refusal(400, "IncompleteBody", "the aws-chunked body is broken")
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2


def read_fragment(upload: bytes, fragment: Fragment, key: bytes) -> bytes:
    """Decrypt and decompress one fragment of an upload.

    :param key: AES key of the pipe; its first 32 bytes count.
    :raises Refusal: 400 when the bytes are not what the fragment says.
    """
    content = upload[fragment.start_byte : fragment.start_byte + fragment.length]
    if len(content) != fragment.length or len(fragment.iv) != algorithms.AES.block_size // 8:
        raise Refusal(400, "INVALID_FILE_FRAGMENT", f"{fragment.file_path} does not hold this fragment")
    decryptor = Cipher(algorithms.AES(key[:_KEY_BYTES]), modes.CTR(fragment.iv)).decryptor()
    try:
        return decode_zstd(decryptor.update(content) + decryptor.finalize())
    except ZstdError as error:
        raise Refusal(400, "INVALID_FILE_FRAGMENT", f"{fragment.file_path} cannot be decompressed") from error


def _token(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("an offset token must be a string")
    return value or None


def _is_file_name(name: str) -> bool:
    return _FILE.match(name) is not None and not name.startswith(".")
