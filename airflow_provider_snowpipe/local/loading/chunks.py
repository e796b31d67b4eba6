"""Records of one staged file on their way into DuckDB: Arrow chunks, and where each record stands."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_snowpipe.local.errors import compilation_error

# -- Text of staged files as UTF-8 blocks: encodings, byte order marks, invalid characters ---------------

_UTF8 = {"UTF8", "UTF-8"}
# Snowflake's names of character sets that Python spells otherwise.
_SPELLINGS = ((re.compile(r"ISO8859(\d+)"), r"ISO8859-\1"), (re.compile(r"WINDOWS(\d+)"), r"CP\1"))


def utf8_blocks(blocks: Iterable[bytes], options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file's text as UTF-8, which is not checked when the file says it is UTF-8 itself.

    :param options: ENCODING and SKIP_BYTE_ORDER_MARK of the file format.
    :raises SqlError: for an encoding that does not exist.
    """
    encoding = str(options.get("ENCODING", "UTF8")).upper()
    first = True
    for block in blocks if encoding in _UTF8 else _transcoded(blocks, encoding):
        if first and options.get("SKIP_BYTE_ORDER_MARK", True):
            block = block.removeprefix(codecs.BOM_UTF8)
        first = False
        if block:
            yield block


def _transcoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    spelled = encoding
    for pattern, replacement in _SPELLINGS:
        spelled = pattern.sub(replacement, spelled)
    try:
        decoder = codecs.getincrementaldecoder(spelled)(errors="replace")
    except LookupError as error:
        raise compilation_error(f"invalid value '{encoding}' for property 'ENCODING'") from error
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def invalid_bytes(block: bytes) -> list[tuple[int, int]]:
    """Return start and end offset of every sequence in a block that is not UTF-8."""
    if block.isascii():
        return []
    found: list[tuple[int, int]] = []
    view, position = memoryview(block), 0
    while True:
        try:
            codecs.decode(view[position:], "utf-8")
            return found
        except UnicodeDecodeError as error:
            found.append((position + error.start, position + error.end))
            position += error.end


def overwritten(block: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """Return the block with a question mark for every byte of the given spans."""
    changed = bytearray(block)
    for start, end in spans:
        changed[start:end] = b"?" * (end - start)
    return bytes(changed)


Positions = npt.NDArray[np.int64]
CSV, JSON, COLUMNS = "CSV", "JSON", "COLUMNS"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a value stands in its file.

    :param line: line, counting from 1; the row number in formats without lines.
    :param character: character in the line, counting from 1.
    """

    line: int
    character: int


@dataclass(frozen=True, slots=True)
class FileShape:
    """What the records of one file consist of.

    :param kind: ``CSV``, ``JSON`` or ``COLUMNS`` (Parquet and ORC).
    :param names: names of the fields in order; empty for CSV without header, and for JSON.
    :param types: Arrow types of the fields, for ``COLUMNS`` only.
    """

    kind: str
    names: tuple[str, ...] = ()
    types: tuple[pa.DataType, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive records of one file.

    :param shape: the same for all chunks of a file.
    :param table: Arrow columns: ``i`` is the record's number in the file, counting from 0; ``x`` says why a
        record cannot be read, NULL for good ones. CSV adds the number of fields ``n`` and text columns
        ``c0``, ``c1``...; JSON one text column ``l``; Parquet and ORC their own columns as ``c0``, ``c1``...
    :param locate: returns the position of a record (its ``i``), or of a field in it.
    """

    shape: FileShape
    table: pa.Table
    locate: Callable[[int, int | None], Position] = field(repr=False)


def find(block: bytes, data: npt.NDArray[np.uint8], token: bytes) -> Positions:
    """Return the offsets of a token; overlapping ones count from the left."""
    if not token:
        return np.empty(0, np.int64)
    if len(token) == 1:
        return np.flatnonzero(data == token[0]).astype(np.int64)
    return np.array([match.start() for match in re.finditer(re.escape(token), block)], dtype=np.int64)


def active_escapes(escapes: Positions) -> Positions:
    """Return the escapes that are not escaped themselves: every second one of a run."""
    if not escapes.size:
        return escapes
    order = np.arange(escapes.size)
    begins = np.concatenate(([True], np.diff(escapes) != 1))
    in_run = order - np.maximum.accumulate(np.where(begins, order, 0))
    return np.compress(in_run % 2 == 0, escapes)
