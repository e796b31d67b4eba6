"""Requests and responses of the bare ASGI routes: bodies, encodings, JSON errors."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import zstandard

from snowpipe_local.errors import NotAllowed, Refusal
from snowpipe_local.faults import Faults

# -- Content-Encoding of bodies, undone with bounded memory and in time that grows with the body only ----

MAX_DECODED_BYTES = 256 << 20
# Rows that repeat compress well; beyond these bytes so many for one on the wire are not rows any more.
_FREE_BYTES = 32 << 20
_MOST_RATIO = 250
# Four bytes of zstd can stand for 128 KiB: the input of one call bounds what it returns to 256 or 16 MiB.
_ZSTD_INPUT_BYTES = 8 << 10
_ZSTD_FEW_INPUT_BYTES = 512
# Bytes given to a new gzip member, doubled from call to call: what lies behind its end is copied back.
_GZIP_FIRST_BYTES = 512
_GZIP_MOST_BYTES = 1 << 20


def decode_body(body: bytes, encoding: str, most: int | None = None) -> bytes:
    """Undo a Content-Encoding: zstd (any number of frames), gzip (any number of members) or none.

    :param most: decoded bytes that are accepted; None for :data:`MAX_DECODED_BYTES`.
    :raises Refusal: 400 for broken content, 413 for more bytes, or for more than 250 for each one on the wire
        and 32 MiB, 415 for another encoding.
    """
    limit = min(MAX_DECODED_BYTES if most is None else most, max(_FREE_BYTES, len(body) * _MOST_RATIO))
    encoding = encoding.strip().lower()
    try:
        if encoding in ("", "identity"):
            return body
        if encoding == "zstd":
            return decode_zstd(body, limit)
        if encoding == "gzip":
            return _decode_gzip(body, limit)
    except (zstandard.ZstdError, zlib.error, EOFError) as error:
        raise Refusal(
            400, "INVALID_CONTENT_ENCODING", f"the body is not valid {encoding}: {error}"
        ) from error
    raise Refusal(
        415, "UNSUPPORTED_CONTENT_ENCODING", f"Content-Encoding {encoding[:40]}: use zstd, gzip or identity"
    )


def decode_zstd(body: bytes, most: int | None = None) -> bytes:
    """Decompress all zstd frames of a body; frames need no content size (SDK 1.9.1 writes none, observed).

    :param most: decoded bytes that are accepted; None for :data:`MAX_DECODED_BYTES`.
    :raises zstandard.ZstdError: for anything else, and for a frame that does not end.
    """
    limit = MAX_DECODED_BYTES if most is None else most
    step = _ZSTD_INPUT_BYTES if limit > _FREE_BYTES else _ZSTD_FEW_INPUT_BYTES
    new = zstandard.ZstdDecompressor().decompressobj
    return _joined(body, limit, new, step, step, zstandard.ZstdError("the last frame is incomplete"))


def _decode_gzip(body: bytes, limit: int) -> bytes:
    incomplete = EOFError("the last member is incomplete")

    def new() -> Any:
        return zlib.decompressobj(wbits=31)

    return _joined(body, limit, new, _GZIP_FIRST_BYTES, _GZIP_MOST_BYTES, incomplete, limit + 1)


def _joined(
    body: bytes, limit: int, new: Callable[[], Any], first: int, most: int, incomplete: Exception, *bound: int
) -> bytes:
    """Join what the frames or members of a body stand for.

    :param first: bytes given to a new one at first, doubled from call to call up to ``most``.
    """
    parts: list[bytes] = []
    view, position, size = memoryview(body), 0, 0
    member, step = None, first
    while position < len(view):
        if member is None:
            member, step = new(), first
        chunk = view[position : position + step]
        parts.append(member.decompress(chunk, *bound))
        size += len(parts[-1])
        if size > limit:
            raise Refusal(413, "REQUEST_TOO_LARGE", f"the decoded body has more than {limit} bytes")
        position += len(chunk)
        step = min(step * 2, most)
        if member.eof:
            position -= len(member.unused_data)
            member = None
    if member is not None:
        raise incomplete
    return b"".join(parts)


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

T = TypeVar("T")
BODY_IDLE_SECONDS = 30.0
BODY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body.

    :param method: upper case.
    :param segments: decoded path segments, split on the raw path so that an encoded slash stays inside one.
    :param query: decoded query parameters; a repeated name keeps its last value.
    :param headers: lower-case names.
    :param body: as sent, still encoded.
    :param decoded_bytes: most bytes that the body may have when it is decoded; None for the usual bound.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)
    decoded_bytes: int | None = None
    client_ip: str = ""

    def bearer(self) -> str:
        """Return the bearer token.

        :raises Refusal: 401 without one.
        """
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(401, "AUTHORIZATION_MISSING", "send the header Authorization: Bearer <token>")
        return token.strip()

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty body is an empty object.

        :raises Refusal: 400 for anything else.
        """
        content = decode_body(self.body, self.headers.get("content-encoding", ""), self.decoded_bytes)
        if not content.strip():
            return {}
        value = json_value(content)
        if not isinstance(value, dict):
            raise Refusal(400, "INVALID_REQUEST_BODY", "the body must be a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    """One response."""

    status: int
    body: bytes = field(repr=False)
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Response:
        """Return a JSON response."""
        return cls(status, json.dumps(value, separators=(",", ":")).encode())

    @classmethod
    def of_text(cls, text: str) -> Response:
        """Return a plain-text response without a newline."""
        return cls(200, text.encode(), "text/plain; charset=utf-8")

    @classmethod
    def of_refusal(cls, refusal: Refusal) -> Response:
        """Return the JSON form of a refused request."""
        made = cls.of_json({"code": refusal.code, "message": refusal.message}, refusal.status)
        if isinstance(refusal, NotAllowed):
            return replace(made, headers=((b"allow", ", ".join(refusal.methods).encode()),))
        return made


INTERNAL_ERROR = Refusal(500, "INTERNAL_ERROR", "the local service failed on this request; see its log")
# Also of the JSON inside of a token, which PyJWT 2.10.1 reads without a bound (observed).
TOO_DEEP = Refusal(400, "INVALID_REQUEST", "the request holds JSON that is nested too deeply")


def json_value(content: bytes) -> Any:
    """Read a body as JSON (RFC 8259), without the numbers and half characters that only Python knows.

    :raises Refusal: 400 for anything else.
    """
    try:
        value = json.loads(content, parse_constant=_no_number)
        if b"\\u" in content:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refusal(400, "INVALID_REQUEST_BODY", "the body holds half of a surrogate pair") from error
    except RecursionError as error:
        raise Refusal(400, "INVALID_REQUEST_BODY", "the body is nested too deeply") from error
    except ValueError as error:
        raise Refusal(400, "INVALID_REQUEST_BODY", f"the body is not JSON: {error}") from error
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def request_of(scope: Scope, body: bytes = b"", decoded_bytes: int | None = None) -> Request:
    """Build a request from an ASGI scope.

    :raises Refusal: 400 for a path or query that is not UTF-8.
    """
    try:
        raw = scope["raw_path"].decode("ascii").partition("?")[0]
        segments = tuple(unquote(part, errors="strict") for part in raw.lstrip("/").split("/"))
        query = dict(
            parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
        )
    except UnicodeDecodeError as error:
        raise Refusal(400, "INVALID_URL", "the URL is not percent-encoded UTF-8") from error
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    client_ip = str((scope.get("client") or ("",))[0])
    return Request(scope["method"], segments, query, headers, body, decoded_bytes, client_ip)


async def receive_in_time(receive: Receive) -> Message:
    """Return the next part of a body.

    :raises Refusal: 408 when it does not come for :data:`BODY_IDLE_SECONDS`.
    """
    try:
        async with asyncio.timeout(BODY_IDLE_SECONDS):
            return await receive()
    except TimeoutError as error:
        raise Refusal(
            408, "REQUEST_TIMEOUT", f"no part of the body came for {BODY_IDLE_SECONDS:g} s"
        ) from error


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read a whole body.

    :raises Refusal: 413 for a longer body, 408 for one that does not come, 400 when the client went away.
    """
    parts: list[bytes] = []
    size = 0
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    while True:
        message = await receive_in_time(receive)
        if asyncio.get_running_loop().time() > deadline:
            raise Refusal(408, "REQUEST_TIMEOUT", f"the body takes longer than {BODY_SECONDS:g} s")
        if message["type"] != "http.request":
            raise Refusal(400, "CLIENT_DISCONNECTED", "the client closed the connection")
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise Refusal(413, "REQUEST_TOO_LARGE", f"the body has {size} bytes; at most {limit} are accepted")
    return b"".join(parts)


async def respond(send: Send, response: Response) -> None:
    """Send a response."""
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in the event loop's thread pool."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


# -- Answers that a test asked for by ``--faults``, and the names of the calls that they replace ---------

_CODES = {
    "401": "AUTHORIZATION_FAILED", "403": "FORBIDDEN", "408": "REQUEST_TIMEOUT",
    "409": "ERR_CHANNEL_MUST_BE_REOPENED", "410": "PIPE_FAILED_OVER", "429": "TOO_MANY_REQUESTS",
    "500": "INTERNAL_SERVER_ERROR", "503": "SERVICE_UNAVAILABLE",
}  # fmt: skip


_PIPE_CALLS = {
    "insertFiles": "insert-files", "insertReport": "insert-report", "loadHistoryScan": "history-scan",
}  # fmt: skip


def answer(faults: Faults, request: Request) -> Response | None:
    """Return the answer that a fault puts instead of the real one, after the delay it asks for, or None."""
    call = _call(request)
    return None if call is None else answer_to(faults, call)


def answer_to(faults: Faults, call: str) -> Response | None:
    """The same for a call whose kind its front knows."""
    faults.hold(call)
    asked = faults.next_answer(call)
    if asked is None:
        return None
    status, _, retry_after = asked.partition("@")
    if status == "404html":
        return Response(404, b"<html><body>404 Not Found</body></html>", "text/html")
    refused = Response.of_refusal(Refusal(int(status), _CODES[status], f"fault answer-{call}={asked}"))
    return replace(refused, headers=((b"retry-after", retry_after.encode()),)) if retry_after else refused


def _call(request: Request) -> str | None:
    segments = request.segments
    if segments == ("v2", "streaming", "hostname"):
        return "hostname"
    if segments == ("oauth", "token"):
        return "token"
    last = segments[-1]
    if segments[:3] == ("v2", "streaming", "data") and last in ("rows", "filebuffer"):
        return "append"
    if segments[:3] == ("v1", "data", "pipes"):
        return _PIPE_CALLS.get(last)
    if segments[:2] != ("v2", "streaming"):
        return None
    if last.endswith(":pipe-info"):
        return "pipe-info"
    if last.endswith(":bulk-channel-status"):
        return "status"
    if len(segments) == 10 and segments[8] == "channels":
        return {"PUT": "open", "DELETE": "drop"}.get(request.method)
    return None
