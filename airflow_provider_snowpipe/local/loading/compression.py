"""Decompression of staged files, by the COMPRESSION of their file format or by their name."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from airflow_provider_snowpipe.local.errors import SqlError, unsupported

BLOCK_BYTES = 8 << 20
_SUFFIXES = {
    ".gz": "GZIP",
    ".bz2": "BZ2",
    ".br": "BROTLI",
    ".zst": "ZSTD",
    ".deflate": "DEFLATE",
    ".raw_deflate": "RAW_DEFLATE",
}
_MAGIC = ((b"\x1f\x8b", "GZIP"), (b"\x28\xb5\x2f\xfd", "ZSTD"), (b"BZh", "BZ2"))
_INFLATE_BITS = {"DEFLATE": zlib.MAX_WBITS, "RAW_DEFLATE": -zlib.MAX_WBITS}


def detect(name: str, start: bytes) -> str:
    """Return the compression of a file whose format says AUTO.

    :param name: file name; its ending decides. Brotli and deflate are found by it only.
    :param start: first bytes, which decide for a name without a known ending.
    """
    for suffix, kind in _SUFFIXES.items():
        if name.lower().endswith(suffix):
            return kind
    return next((kind for magic, kind in _MAGIC if start.startswith(magic)), "NONE")


def read_blocks(path: Path, name: str, compression: str) -> Iterator[bytes]:
    """Yield a file's decompressed content in blocks of about 8 MB at most.

    :param path: readable local path.
    :param name: name of the staged file.
    :param compression: AUTO, NONE or a method, upper case.
    :raises SqlError: 100085 for content that is not of that compression; 000002 for a method unknown here.
    """
    with path.open("rb") as raw:
        kind = detect(name, raw.read(4)) if compression == "AUTO" else compression
        raw.seek(0)
        try:
            yield from _blocks(raw, kind)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException) as error:
            raise SqlError(
                "100085", "22000", f"Error decompressing file '{name}' with compression {kind}: {error}"
            ) from error


def _blocks(raw: Any, kind: str) -> Iterator[bytes]:
    if kind in _INFLATE_BITS:
        yield from _inflated(raw, _INFLATE_BITS[kind])
        return
    if kind not in _OPENERS:
        raise unsupported(f"COMPRESSION = {kind}")
    with contextlib.closing(_OPENERS[kind](raw)) as stream:
        while block := stream.read(BLOCK_BYTES):
            yield bytes(block)


def _inflated(raw: Any, bits: int) -> Iterator[bytes]:
    inflater = zlib.decompressobj(bits)
    rest = raw.read(1 << 20)
    while rest and not inflater.eof:
        block = inflater.decompress(rest, BLOCK_BYTES)
        rest = inflater.unconsumed_tail or raw.read(1 << 20)
        if block:
            yield block
    if not inflater.eof:
        raise EOFError("the compressed stream is incomplete")


_OPENERS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda raw: raw,
    "GZIP": lambda raw: gzip.GzipFile(fileobj=raw),
    "BZ2": bz2.BZ2File,
    "ZSTD": lambda raw: zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True),
    "BROTLI": lambda raw: pa.CompressedInputStream(raw, "brotli"),
}
