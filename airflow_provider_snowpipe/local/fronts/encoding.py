"""Content-Encoding of bodies, undone with bounded memory and in time that grows with the body only."""

from __future__ import annotations

import zlib

import zstandard

from airflow_provider_snowpipe.local.errors import Refusal

MAX_DECODED_BYTES = 256 << 20
# Rows that repeat compress well; beyond these bytes so many for one on the wire are no rows any more.
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
    parts: list[bytes] = []
    view, position, size = memoryview(body), 0, 0
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    step = _ZSTD_INPUT_BYTES if limit > _FREE_BYTES else _ZSTD_FEW_INPUT_BYTES
    while position < len(view):
        frame = frame or decompressor.decompressobj()
        chunk = view[position : position + step]
        part = frame.decompress(chunk)
        size = _checked(size + len(part), limit)
        parts.append(part)
        position += len(chunk)
        if frame.eof:
            position -= len(frame.unused_data)
            frame = None
    if frame is not None:
        raise zstandard.ZstdError("the last frame is incomplete")
    return b"".join(parts)


def _decode_gzip(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    view, position, size = memoryview(body), 0, 0
    member, step = None, _GZIP_FIRST_BYTES
    while position < len(view):
        if member is None:
            member, step = zlib.decompressobj(wbits=31), _GZIP_FIRST_BYTES
        chunk = view[position : position + step]
        part = member.decompress(chunk, limit + 1)
        size = _checked(size + len(part), limit)
        parts.append(part)
        position += len(chunk)
        step = min(step * 2, _GZIP_MOST_BYTES)
        if member.eof:
            position -= len(member.unused_data)
            member = None
    if member is not None:
        raise EOFError("the last member is incomplete")
    return b"".join(parts)


def _checked(size: int, limit: int) -> int:
    if size > limit:
        raise Refusal(413, "REQUEST_TOO_LARGE", f"the decoded body has more than {limit} bytes")
    return size
