"""The container of Avro files: a header, then blocks of rows that can be passed over without reading them.

The layout is that of "Object Container Files" in the Apache Avro specification. Blocks are framed and
decompressed here; what is in them is fastavro's.
"""

from __future__ import annotations

import bz2
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MOST_BLOCK_BYTES = 1 << 30


class ContainerError(Exception):
    """The file does not have the layout of an Avro container."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an Avro file says of itself.

    :param schema: the rows' schema
    :param codec: how blocks are compressed
    :param sync: the bytes behind each block
    """

    schema: Any
    codec: str
    sync: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A run of rows.

    :param rows: how many
    :param data: the rows in Avro's binary form
    :param passed_over: True if the block was not read, only the rows counted
    """

    rows: int
    data: bytes = field(repr=False)
    passed_over: bool = False


def read_header(stream: BinaryIO) -> Header:
    """Read the header, up to the first block.

    :raises ContainerError: if there is none
    """
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ContainerError("it does not begin as an Avro file does")
    values: dict[str, bytes] = {}
    while count := _number(stream):
        if count < 0:
            _number(stream)
        for _ in range(abs(count)):
            key = _bytes(stream).decode()
            values[key] = _bytes(stream)
    try:
        schema = json.loads(values["avro.schema"])
    except (KeyError, ValueError):
        raise ContainerError("its header holds no schema") from None
    codec = values.get("avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise ContainerError(f"its codec {codec!r} is none of {sorted(_CODECS)}")
    return Header(schema, codec, _exactly(stream, _SYNC_BYTES))


def read_blocks(stream: BinaryIO, header: Header, *, skip_rows: int = 0) -> Iterator[Block]:
    """Read the blocks behind the header.

    :param stream: the file, just behind its header
    :param header: the header
    :param skip_rows: blocks that end at or before this row are passed over, and handed out without their data
    :raises ContainerError: if a block is cut off, or not followed by its mark
    """
    size = os.fstat(stream.fileno()).st_size
    while stream.tell() < size:
        rows, length = _number(stream), _number(stream)
        if rows < 0 or not 0 <= length <= _MOST_BLOCK_BYTES:
            raise ContainerError(f"the block before byte {stream.tell()} says {rows} rows, {length} bytes")
        passed_over = rows <= skip_rows
        if passed_over:
            skip_rows -= rows
            stream.seek(length, os.SEEK_CUR)
            data = b""
        else:
            skip_rows = 0
            data = _decompressed(_exactly(stream, length), header.codec)
        if _exactly(stream, _SYNC_BYTES) != header.sync:
            raise ContainerError(f"the block before byte {stream.tell()} is not followed by the file's mark")
        yield Block(rows, data, passed_over)


def container_of(schema: Any, rows: int, data: bytes) -> bytes:
    """Write one block of rows as a container of its own, not compressed.

    :param schema: the schema to read the rows by
    :param rows: how many they are
    :param data: the rows in Avro's binary form
    """
    sync = bytes(_SYNC_BYTES)
    entries = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    pairs = [_written(key.encode()) + _written(value) for key, value in entries.items()]
    header = _MAGIC + _written_number(len(pairs)) + b"".join(pairs) + _written_number(0) + sync
    return header + _written_number(rows) + _written(data) + sync


def _decompressed(data: bytes, codec: str) -> bytes:
    try:
        return _CODECS[codec](data)
    except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise ContainerError(f"a block cannot be decompressed as {codec} ({error})") from None


def _snappy(data: bytes) -> bytes:
    """Four bytes of checksum follow the compressed ones."""
    packed, checksum = data[:-4], int.from_bytes(data[-4:], "big")
    size = shift = 0
    for byte in packed:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    text: bytes = pa.Codec("snappy").decompress(packed, decompressed_size=size, asbytes=True)
    if zlib.crc32(text) != checksum:
        raise ValueError("the checksum differs")
    return text


def _zstandard(data: bytes) -> bytes:
    text: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return text


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, -zlib.MAX_WBITS),
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise ContainerError(f"it ends at byte {stream.tell()}, in the middle of a block or of its header")
    return data


def _bytes(stream: BinaryIO) -> bytes:
    length = _number(stream)
    if not 0 <= length <= _MOST_BLOCK_BYTES:
        raise ContainerError("its header is damaged")
    return _exactly(stream, length)


def _number(stream: BinaryIO) -> int:
    """Read a variable-length number: seven bits a byte, the sign in the lowest bit."""
    value = shift = 0
    while True:
        byte = _exactly(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        if shift > 63:
            raise ContainerError(f"a number before byte {stream.tell()} is too long")


def _written_number(value: int) -> bytes:
    bits = value << 1
    out = bytearray()
    while bits > 0x7F:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def _written(data: bytes) -> bytes:
    return _written_number(len(data)) + data
