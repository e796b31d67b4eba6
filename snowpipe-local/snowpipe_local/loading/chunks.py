"""Records of staged files as Arrow chunks, and where each stands: what all formats share, and JSON."""

from __future__ import annotations

import codecs
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snowpipe_local.engine.lines import split_lines
from snowpipe_local.stages.definition import codec_of

# -- Text of staged files as UTF-8 blocks: encodings, byte order marks, invalid characters ---------------


def utf8_blocks(blocks: Iterable[bytes], options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file's text as UTF-8, which is not checked when the file declares UTF-8 itself.

    :param options: ENCODING, SKIP_BYTE_ORDER_MARK and REPLACE_INVALID_CHARACTERS of the file format.
    """
    encoding = str(options.get("ENCODING", "UTF8"))
    is_replacing = options.get("REPLACE_INVALID_CHARACTERS") or options.get("IGNORE_UTF8_ERRORS")
    first = True
    for block in _transcoded(blocks, encoding) if encoding != "UTF8" or is_replacing else blocks:
        if first and options.get("SKIP_BYTE_ORDER_MARK", True):
            block = block.removeprefix(codecs.BOM_UTF8)
        first = False
        if block:
            yield block


def _transcoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec_of(encoding))(errors="replace")
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

    :param table: Arrow columns: ``i`` is the record's number in the file, counting from 0; ``x`` is why a
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


# -- JSON files as Arrow chunks of one document a record: lines, concatenated documents, or an outer array --

_SHAPE = FileShape(JSON)
_BLANKS = b" \t\r\n"
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_BLANK_LINE = re.compile(rb"(?m)^[ \t\r]+$")
"""White space between documents."""


def read_json(blocks: Iterable[bytes], options: Mapping[str, Any]) -> Iterator[Chunk]:
    """Yield the documents of a JSON file.

    A file whose first line is a whole document is read line by line, so that a broken line spoils no other;
    any other file is cut where its brackets close.

    """
    strip_array = bool(options.get("STRIP_OUTER_ARRAY", False))
    multi_line = bool(options.get("MULTI_LINE", True))
    strip_nulls = bool(options.get("STRIP_NULL_VALUES", False))
    is_rewritten = strip_nulls or bool(options.get("ALLOW_DUPLICATE", False))
    reader: _Lines | _Documents | None = None
    carry = b""
    for block in utf8_blocks(blocks, options):
        text = carry + block
        if reader is None:
            reader = _Lines() if _is_lines(text, strip_array) else _Documents(strip_array, multi_line)
        chunk, consumed = reader.read(text, final=False)
        if chunk is not None:
            yield _rewritten(chunk, strip_nulls) if is_rewritten else chunk
        carry = text[consumed:]
    if reader is not None and carry.strip(_BLANKS):
        chunk, _ = reader.read(carry, final=True)
        if chunk is not None:
            yield _rewritten(chunk, strip_nulls) if is_rewritten else chunk


def _rewritten(chunk: Chunk, strip_nulls: bool) -> Chunk:
    documents = [
        text if text is None else _rewrite(text, strip_nulls) for text in chunk.table["l"].to_pylist()
    ]
    table = chunk.table.set_column(2, "l", pa.array(documents, pa.large_string()))
    return dataclasses.replace(chunk, table=table)


def _rewrite(document: str, strip_nulls: bool) -> str:
    """Return a JSON document with the last of the fields of a name only; a broken one as it is.

    :param strip_nulls: fields of objects that are null are left out.
    """
    try:
        json.loads(document)
    except ValueError:
        return document
    opened: list[tuple[str, list[str]]] = [("", [""])]
    for part in _JSON_PART.findall(document):
        if part in {"{", "["}:
            opened.append((part, [""]))
        elif part in {"}", "]"}:
            bracket, members = opened.pop()
            if bracket == "{":
                last = {match[0]: member for member in members if (match := _JSON_PART.match(member))}
                members = [each for each in last.values() if not (strip_nulls and each.endswith(":null"))]
            opened[-1][1][-1] += bracket + ",".join(members) + part
        elif part == ",":
            opened[-1][1].append("")
        else:
            opened[-1][1][-1] += part
    return opened[0][1][0]


def _is_lines(text: bytes, strip_array: bool) -> bool:
    first, _, _ = text.lstrip(_BLANKS).partition(b"\n")
    if strip_array and first.startswith(b"["):
        return False
    try:
        json.loads(first)
    except ValueError:
        return False
    return True


class _Lines:
    """One document a line."""

    def __init__(self) -> None:
        self._records = 0
        self._lines = 0

    def read(self, text: bytes, *, final: bool) -> tuple[Chunk | None, int]:
        """Return the documents of the complete lines, and how many bytes they take."""
        consumed = len(text) if final else text.rfind(b"\n") + 1
        if not consumed:
            return None, 0
        body = _BLANK_LINE.sub(b"", text[:consumed])
        lines = split_lines(body)
        base, before = self._records, self._lines
        self._records += lines.parsed
        self._lines += body.count(b"\n")
        bad = {line.row: line.reason for line in lines.rejected}
        good = np.setdiff1d(np.arange(lines.parsed), list(bad)) if bad else np.arange(lines.parsed)
        offsets = np.concatenate(([0], lines.ends)).astype(np.int64)
        texts = pa.LargeStringArray.from_buffers(lines.rows, pa.py_buffer(offsets), pa.py_buffer(lines.body))
        table = _table(base + good, texts)
        if bad:
            broken = _table(base + np.array(list(bad)), pa.nulls(len(bad), pa.large_string()))
            reasons = pa.array([f"Error parsing JSON: {reason}" for reason in bad.values()], pa.string())
            table = pa.concat_tables([table, broken.set_column(1, "x", reasons)]).sort_by("i")

        def locate(record: int, _field: int | None) -> Position:
            # Empty lines are not records, but they count as lines.
            filled = [n for n, line in enumerate(body.split(b"\n")) if line not in (b"", b"\r")]
            return Position(before + filled[record - base] + 1, 1)

        return Chunk(_SHAPE, table, locate), consumed


class _Documents:
    """Documents one after the other, or in an outer array; they may span lines."""

    def __init__(self, strip_array: bool, multi_line: bool) -> None:
        self._strip_array = strip_array
        self._multi_line = multi_line
        self._depth = 0
        self._records = 0
        self._lines = 0

    def read(self, text: bytes, *, final: bool) -> tuple[Chunk | None, int]:
        """Return the documents that end in the text, and how many bytes they take."""
        opened = len(text) - len(text.lstrip(_BLANKS))
        if self._strip_array and self._depth == 0 and text[opened : opened + 1] == b"[":
            self._lines += text.count(b"\n", 0, opened + 1)
            chunk, consumed = self._cut(text[opened + 1 :], 1, final)
            return chunk, opened + 1 + consumed
        return self._cut(text, self._depth, final)

    def _cut(self, text: bytes, depth: int, final: bool) -> tuple[Chunk | None, int]:
        self._depth = depth
        starts, stops = _documents(text, depth)
        # Anything but blanks and commas between documents is not JSON.
        gaps = np.ones(len(text), dtype=bool)
        edges = np.zeros(len(text) + 1, dtype=np.int32)
        edges[starts] += 1
        edges[stops] -= 1
        gaps &= np.cumsum(edges[:-1]) == 0
        data = np.frombuffer(text, dtype=np.uint8)
        allowed = np.isin(data, np.frombuffer(_BLANKS + (b",]" if depth else b""), dtype=np.uint8))
        complete = len(text) if final else int(stops[-1]) if len(stops) else 0
        strange = np.flatnonzero((gaps & ~allowed)[:complete])
        documents = [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
        reasons: list[str | None] = [None] * len(documents)
        offsets = list(starts)
        for position in strange[:1]:
            # What follows the first strange character cannot be trusted to be cut rightly.
            kept = int(np.searchsorted(starts, position))
            found = text[position : position + 20].decode(errors="replace")
            documents, reasons = [*documents[:kept], b""], [*reasons[:kept], f"Error parsing JSON: {found}"]
            offsets = [*offsets[:kept], position]
            complete = len(text)
        base, before = self._records, self._lines
        self._records += len(documents)
        self._lines += text.count(b"\n", 0, complete)
        if not documents:
            return None, complete
        for number, document in enumerate(documents):
            if not self._multi_line and b"\n" in document:
                documents[number], reasons[number] = (
                    b"",
                    "Error parsing JSON: a line ends inside of the record",
                )
            elif invalid_bytes(document):
                documents[number], reasons[number] = (
                    b"",
                    "Error parsing JSON: the document is not valid UTF-8",
                )
        table = _table(
            base + np.arange(len(documents)), pa.array(documents, pa.large_binary()).cast(pa.large_string())
        ).set_column(1, "x", pa.array(reasons, pa.string()))

        def locate(record: int, _field: int | None) -> Position:
            offset = int(offsets[record - base])
            line = text.count(b"\n", 0, offset)
            return Position(before + line + 1, offset - text.rfind(b"\n", 0, offset))

        return Chunk(_SHAPE, table, locate), complete


def _documents(text: bytes, depth: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return start and end offset of every complete object or array at a depth."""
    data = np.frombuffer(text, dtype=np.uint8)
    escaped = active_escapes(find(text, data, b"\\")) + 1
    quotes = find(text, data, b'"')
    toggles = np.zeros(len(data) + 1, dtype=np.uint8)
    toggles[quotes] = 1
    toggles[escaped] = 0
    outside = np.bitwise_xor.accumulate(toggles[:-1]) == 0
    steps = np.zeros(len(data), dtype=np.int32)
    steps[outside & ((data == ord("{")) | (data == ord("[")))] = 1
    steps[outside & ((data == ord("}")) | (data == ord("]")))] = -1
    brackets = np.flatnonzero(steps)
    levels = depth + np.cumsum(steps[brackets])
    starts = brackets[(steps[brackets] == 1) & (levels == depth + 1)]
    stops = brackets[(steps[brackets] == -1) & (levels == depth)] + 1
    return starts[: len(stops)].astype(np.int64), stops.astype(np.int64)


def _table(numbers: npt.NDArray[np.int64], texts: pa.Array) -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int64()), "x": pa.nulls(len(texts), pa.string()), "l": texts})
