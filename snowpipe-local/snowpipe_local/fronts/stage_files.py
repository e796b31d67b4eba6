"""Files that clients move: PUT and GET of the connectors, and uploads of the streaming SDK's file mode."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import jwt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7, PaddingContext
from zstandard import ZstdError

from snowpipe_local.accounts import Account
from snowpipe_local.engine.spool import Spool, SpoolFile
from snowpipe_local.errors import NotAllowed, Refusal, SqlError
from snowpipe_local.fronts import google_storage
from snowpipe_local.fronts.http import (
    INTERNAL_ERROR,
    TOO_DEEP,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    decode_zstd,
    in_thread,
    json_value,
    receive_in_time,
    request_of,
    respond,
)
from snowpipe_local.stages.files import FolderArea, Transfer, digest, remember_digest
from snowpipe_local.stages.storage import Storage

# -- File mode of the streaming SDK: an S3-shaped upload, then fragments of the file become appends ------
#
# Batches above 1 MiB always travel this way (observed with SDK 1.9.1). A file holds ``AES-256-CTR(pipe key,
# iv, zstd(NDJSON))``.

UPLOAD_BUCKET = "snowpipe-local-stage"
MAX_UPLOAD_BYTES = 256 << 20
_KEY_BYTES = 32
_PREFIX = re.compile(r"[0-9a-f]{16}\Z")
_FILE = re.compile(r"(?!\.)[\w.-]{1,128}\Z")
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

    :param spool: encrypts them at rest, over whatever encryption the client applied.
    """

    root: Path
    spool: Spool

    def path(self, location: str) -> Path:
        """Return the file behind ``bucket/prefix/name``.

        :raises Refusal: 400 for a path outside the stage.
        """
        parts = location.split("/")
        if (
            len(parts) != 3
            or parts[0] != UPLOAD_BUCKET
            or not _PREFIX.match(parts[1])
            or not _FILE.match(parts[2])
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
    :raises Refusal: 403 without a signature by the key that pipe-info handed out for the prefix, 405 for
        another method.
    """
    if request.method != "PUT":
        raise NotAllowed("the location of uploads", "PUT")
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
    :raises Refusal: 400 when the bytes are not what the fragment declares.
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


# -- PUT and GET of the connectors: the shape in which both generations move files, and the routes behind it -
#
# Observed with connectors 4.8.1 and 5.2.0: a stage of type ``GCS`` with an ``endPoint`` makes both send
# ``PUT``, ``HEAD`` and ``GET`` to ``https://<endPoint>/<location>/<file>`` with a bearer token. Without
# ``encryptionMaterial`` neither encrypts. JDBC uses Google's own library and routes with such a token, and
# signed URLs, where it has them, for GET; before 3.22 it does not send a token to ``endPoint``, so it gets
# none, and sends ``PUT`` to a signed URL for each file. Node's snowflake-sdk 3.3.0 takes the token, and reads
# ``presignedUrls`` of GET all the same; connector 5.2.0 takes an empty one for a URL. Go's gosnowflake 1.19.1
# writes the slashes of a file's path as ``%2F``, and fails after an upload that it has not encrypted, so it
# gets a key, and what it sends is decrypted here.

log = logging.getLogger(__name__)

BUCKET = "snowpipe-local-files"
# Of Google's storage API, behind which the segment ``o`` and perhaps the name of a file come.
_OBJECTS, _UPLOADS = f"/storage/v1/b/{BUCKET}", f"/upload/storage/v1/b/{BUCKET}"
ROUTES = tuple(f"{route}/" for route in (f"/{BUCKET}", _OBJECTS, _UPLOADS))
TOKEN_SECONDS = 3600
_ISSUER = "snowpipe-local-files"
_BLOCK = 1 << 20
_SNOWFLAKE_HOST = re.compile(r"([a-z0-9._-]+\.snowflakecomputing\.com)(?::443)?\Z", re.IGNORECASE)
# Longest name of a file in a folder, on the file systems of Linux.
_NAME_BYTES = 255


class StageFilesFront:
    """Tokens and routes of file transfer.

    :param endpoint: ``host:port`` of the service.
    """

    def __init__(self, storage: Storage, account: Account, endpoint: str) -> None:
        self._storage = storage
        self._account = account
        self._endpoint = endpoint

    def instruct(
        self, transfer: Transfer, opened_by: tuple[str, int, str | None], host: str = "", client: str = ""
    ) -> dict[str, Any]:
        """Return what the connector protocol's answer to PUT or GET gives the client.

        :param opened_by: as in :class:`Session`: the token ends with that user or credential.
        :param host: the host that the client asked; one of ``*.snowflakecomputing.com`` came through the
            CONNECT proxy, which leads its files here too.
        :param client: as in :class:`Session`. For ``JDBC`` and ``OLD_JDBC`` the token is also put into URLs;
            the old one sends PUT again for each of its files, under the name that the file gets in the stage.
        """
        sign_urls = client in {"JDBC", "OLD_JDBC"}
        through_proxy = _SNOWFLAKE_HOST.match(host)
        endpoint = through_proxy[1] if through_proxy else self._endpoint
        token = self._issue(transfer, opened_by)
        location = f"{BUCKET}/{transfer.identity}/"
        # JDBC's upload of a file that it holds in memory expects a key that it does not use.
        takes_key = client in {"GO", "JDBC", "OLD_JDBC"} and transfer.is_upload
        has_none = transfer.is_upload or client == "PYTHON"

        def signed(path: str) -> str:
            return f"https://{endpoint}/{location}{quote(path)}?token={token}" if sign_urls else ""

        common: dict[str, Any] = {
            "command": "UPLOAD" if transfer.is_upload else "DOWNLOAD",
            "src_locations": list(transfer.sources),
            "parallel": transfer.parallel,
            "encryptionMaterial": _encryption_material(token) if takes_key else None,
            "presignedUrls": None if has_none else [signed(path) for path in transfer.sources],
            "clientShowEncryptionParameter": False,
            "stageInfo": {
                "locationType": "GCS",
                "location": location + (transfer.prefix if transfer.is_upload else ""),
                "path": transfer.prefix,
                "region": "LOCAL",
                "endPoint": endpoint,
                "storageAccount": None,
                "isClientSideEncrypted": False,
                "creds": {} if client == "OLD_JDBC" else {"GCS_ACCESS_TOKEN": token},
            },
        }
        if transfer.is_upload:
            if sign_urls:
                name = transfer.sources[0].rpartition("/")[2]
                common["stageInfo"]["presignedUrl"] = signed(transfer.prefix + name)
            return common | {
                "autoCompress": transfer.auto_compress,
                "overwrite": transfer.overwrite,
                "threshold": transfer.threshold,
                "sourceCompression": transfer.source_compression.lower(),
            }
        return common | {"localLocation": transfer.local_folder}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every failure becomes a JSON error."""
        try:
            await self._answer(scope, receive, send)
        except Refusal as refusal:
            await respond(send, Response.of_refusal(refusal))
        except SqlError as error:
            await respond(send, Response.of_refusal(Refusal(400, "INVALID_FILE_PATH", error.message)))
        except RecursionError:
            await respond(send, Response.of_refusal(TOO_DEEP))
        except OSError as error:
            # A full disk, for one: no 5xx, which a connector would repeat for minutes.
            log.exception("moving a staged file failed")
            why = f"the local service could not move the file: {error.strerror}; see its log"
            await respond(send, Response.of_refusal(Refusal(400, "STORAGE_FAILED", why)))
        except Exception:
            log.exception("moving a staged file failed")
            await respond(send, Response.of_refusal(INTERNAL_ERROR))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = request_of(scope)
        if request.segments[0] != BUCKET:
            await self._answer_google(request, receive, send)
            return
        # A slash that is encoded separates as well.
        area, path = self._address("/".join(request.segments[1:]))
        if request.method not in {"PUT", "GET", "HEAD"}:
            raise NotAllowed("a file of a stage", "PUT", "GET", "HEAD")
        token = request.query.get("token") or request.bearer()
        self._check(token, area.root.name, path, request.method)
        if not area.root.is_dir():
            raise Refusal(404, "STAGE_DOES_NOT_EXIST", "the stage does not exist any more")
        if request.method == "PUT":
            await self._store(lambda: (area, path), receive, _decryption(request, token))
            await respond(send, Response.of_json({"name": path}))
        else:
            await _send_file(area.path(path), send, with_body=request.method == "GET")

    async def _answer_google(self, request: Request, receive: Receive, send: Send) -> None:
        """Answer an upload, a list of files, or a look at one, in the form of Google's storage API."""
        token, method = request.bearer(), request.method
        if request.segments[0] == "upload":
            if method != "POST":
                raise NotAllowed("the location of uploads", "POST")
            self._claims(token)
            upload = google_storage.Multipart(request)

            def target() -> tuple[FolderArea, str]:
                area, path = self._address(upload.name)
                self._check(token, area.root.name, path, "PUT")
                return area, path

            await self._store(target, receive, upload)
            await respond(send, Response.of_json({"bucket": BUCKET, "name": upload.name}))
            return
        if method != "GET":
            raise NotAllowed("the objects of a bucket", "GET")
        # storage/v1/b/BUCKET/o, and perhaps the name of a file.
        named = request.segments[5:6]
        name = named[0] if named else request.query.get("prefix", "")
        identity, _, path = name.partition("/")
        self._check(token, identity, path, "HEAD")
        files = await in_thread(lambda: self._storage.internal(identity).list(path))
        objects = [google_storage.described(BUCKET, identity, file) for file in files]
        if not named:
            await respond(send, Response.of_json({"kind": "storage#objects", "items": objects}))
        elif files and files[0].path == path:
            await respond(send, Response.of_json(objects[0]))
        else:
            raise Refusal(404, "FILE_DOES_NOT_EXIST", "the stage holds no such file")

    def _address(self, name: str) -> tuple[FolderArea, str]:
        parts = name.split("/")
        is_name = all(len(part.encode()) <= _NAME_BYTES for part in parts)
        if len(parts) < 2 or not is_name or parts[0] in {"", ".", ".."} or "\0" in parts[0]:
            raise Refusal(400, "INVALID_FILE_PATH", "the URL names no file of a stage")
        area = self._storage.internal(parts[0])
        path = "/".join(parts[1:])
        area.path(path)
        return area, path

    # -- tokens ---------------------------------------------------------------------------------------------

    def _issue(self, transfer: Transfer, opened_by: tuple[str, int, str | None]) -> str:
        claims = {
            "iss": _ISSUER,
            "exp": int(time.time()) + TOKEN_SECONDS,
            "stage": transfer.identity,
            "prefix": transfer.prefix,
            "upload": transfer.is_upload,
            "for": opened_by,
        }
        return jwt.encode(claims, self._account.secret, algorithm="HS256")

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._account.secret,
                algorithms=["HS256"],
                issuer=_ISSUER,
                options={"require": ["exp", "iss"]},
            )
        except jwt.InvalidTokenError as error:
            # Connector 5.2.0 answers 401 by running its PUT or GET again; 4.8.1 fails at once.
            raise Refusal(
                401, "FILE_TOKEN_INVALID", "the token is wrong or has expired; run PUT or GET again"
            ) from error
        if not self._account.still_knows(*claims["for"]):
            raise Refusal(401, "FILE_TOKEN_INVALID", "the user of the token, or its credential, is gone")
        return claims

    def _check(self, token: str, identity: str, path: str, method: str) -> None:
        claims = self._claims(token)
        # An upload asks with HEAD whether the file is there.
        may_use = method == "HEAD" or bool(claims["upload"]) == (method == "PUT")
        if claims["stage"] != identity or not path.startswith(claims["prefix"]) or not may_use:
            raise Refusal(403, "ACCESS_DENIED", "the token belongs to another location or another direction")

    # -- uploads --------------------------------------------------------------------------------------------

    async def _store(
        self, target: Callable[[], tuple[FolderArea, str]], receive: Receive, decoder: Decoder | None
    ) -> None:
        temporary = self._storage.incoming / secrets.token_hex(16)
        try:
            known = await _receive_into(temporary, receive, decoder)
            area, path = target()
            await in_thread(lambda: _move_in(temporary, area, path, known))
        finally:
            temporary.unlink(missing_ok=True)


class Decoder(Protocol):
    """Takes the file out of the body of an upload."""

    def take(self, block: bytes, *, is_last: bool) -> bytes:
        """Return the next bytes of the file."""


@dataclass(frozen=True, slots=True)
class _Decryption:
    """What a client's encryption needs to be undone, as its upload comes in."""

    cipher: CipherContext
    padding: PaddingContext

    def take(self, block: bytes, *, is_last: bool) -> bytes:
        """Decrypt the next bytes.

        :raises Refusal: 400 if the last ones are not those of an encrypted file
        """
        plain = self.padding.update(self.cipher.update(block))
        if not is_last:
            return plain
        try:
            return plain + self.padding.update(self.cipher.finalize()) + self.padding.finalize()
        except ValueError as error:
            raise Refusal(
                400, "INVALID_ENCRYPTION", "the file is not encrypted with the key of PUT"
            ) from error


def _encryption_material(token: str) -> dict[str, Any]:
    return {"queryStageMasterKey": base64.b64encode(_master_key(token)).decode(), "queryId": "", "smkId": 1}


def _master_key(token: str) -> bytes:
    """The key that wraps those of the files of one PUT: who has its token may know it."""
    return hashlib.sha256(b"stage master key " + token.encode()).digest()[:16]


def _decryption(request: Request, token: str) -> _Decryption | None:
    """How an upload is decrypted, None where the client has not encrypted it.

    :raises Refusal: 400 if the header about it cannot be read
    """
    described = request.headers.get("x-goog-meta-encryptiondata")
    if described is None:
        return None
    try:
        data = json.loads(described)
        wrapped = base64.b64decode(data["WrappedContentKey"]["EncryptedKey"], validate=True)
        iv = base64.b64decode(data["ContentEncryptionIV"], validate=True)
        # Snowflake's clients wrap the key of a file in ECB mode.
        unwrapping = Cipher(algorithms.AES(_master_key(token)), modes.ECB()).decryptor()  # noqa: S305
        unpadding = PKCS7(128).unpadder()
        key = unpadding.update(unwrapping.update(wrapped) + unwrapping.finalize()) + unpadding.finalize()
        return _Decryption(Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor(), PKCS7(128).unpadder())
    except (ValueError, TypeError, KeyError) as error:
        raise Refusal(
            400, "INVALID_ENCRYPTION", "x-goog-meta-encryptiondata does not hold a key wrapped by that of PUT"
        ) from error


async def _receive_into(temporary: Path, receive: Receive, decoder: Decoder | None) -> str:
    """Write what a body holds to a file as it arrives, and return its MD5."""
    md5 = hashlib.md5(usedforsecurity=False)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as handle:
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive_in_time(receive)
            if message["type"] != "http.request":
                raise Refusal(400, "CLIENT_DISCONNECTED", "the client closed the connection")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size >= _BLOCK or not more:
                block = b"".join(parts)
                if decoder is not None:
                    block = decoder.take(block, is_last=not more)
                await in_thread(functools.partial(_write, handle, md5, block))
                parts, size = [], 0
    return md5.hexdigest()


def _write(handle: Any, md5: Any, block: bytes) -> None:
    md5.update(block)
    view = memoryview(block)
    while view:
        view = view[handle.write(view) :]


def _move_in(temporary: Path, area: FolderArea, path: str, known: str) -> None:
    remember_digest(temporary, known)
    try:
        area.move_in(temporary, path)
    except FileExistsError as error:
        raise Refusal(
            400, "INVALID_FILE_PATH", f"'{path}' meets a file of the stage where it needs a folder"
        ) from error


# -- downloads ----------------------------------------------------------------------------------------------


async def _send_file(path: Path, send: Send, *, with_body: bool) -> None:
    try:
        handle = await in_thread(lambda: path.open("rb"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise Refusal(404, "FILE_DOES_NOT_EXIST", "the stage holds no such file") from error
    with contextlib.closing(handle):
        size = os.fstat(handle.fileno()).st_size
        etag = await in_thread(lambda: digest(path))
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(size).encode()),
            (b"etag", f'"{etag}"'.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        left = size if with_body else 0
        while left:
            block = await in_thread(lambda: handle.read(_BLOCK))
            left = max(left - len(block), 0) if block else 0
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
