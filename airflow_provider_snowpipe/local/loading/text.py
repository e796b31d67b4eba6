"""Text of staged files as UTF-8 blocks: encodings, byte order marks, invalid characters."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_snowpipe.local.errors import compilation_error

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
