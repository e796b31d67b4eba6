"""Files of lines: NDJSON, whose lines are passed on as they are, and text, whose lines become one column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.sources.files.formats import FileReader, Place, RowBlock
from airflow_provider_snowpipe.spark.sources.files.groups import PartitionValues, SourceFile
from airflow_provider_snowpipe.spark.sources.files.lines import place_after_line, row_blocks
from airflow_provider_snowpipe.spark.sources.files.partition_values import with_values
from airflow_provider_snowpipe.spark.sources.files.stored_bytes import compression_of
from airflow_provider_snowpipe.spark.sources.source import part_bytes
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

_TEXT_GROWTH = 8
"""A line of text may grow this much as JSON: six bytes for a control character, and the column's name."""
_FILLED_OBJECT = re.compile(rb'(?m)^([ \t\r]*)\{(?=[ \t]*")')
_NEXT_DOCUMENT = re.compile(rb"\}[ \t\r]*\{")
_NEWLINE = 10
_EMPTY_OBJECT = re.compile(rb"(?m)^([ \t\r]*)\{[ \t]*\}")


@dataclass(frozen=True, slots=True)
class LineReader(FileReader):
    """Reads lines.

    :param text_column: the column that takes the lines of a text, None for NDJSON
    :param compression: how the files are compressed, ``auto`` to go by their names
    """

    text_column: str | None = None
    compression: str = "auto"

    def may_grow(self, file: SourceFile) -> bool:
        """True unless the file is compressed."""
        return compression_of(file, self.compression) == "none"

    def place_after(self, file: SourceFile, line: int) -> Place:
        """Count the lines up to the committed one."""
        return place_after_line(file, line, compression=compression_of(file, self.compression))

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the lines: of NDJSON those that are not blank, of a text those that are not empty."""
        for block in row_blocks(
            file,
            after_line=after_line,
            offset=offset,
            keep_tail=keep_tail,
            max_bytes=part_bytes(limits, 1 if self.text_column is None else _TEXT_GROWTH),
            max_rows=limits.rows,
            compression=compression_of(file, self.compression),
            blanks=self.text_column is None,
        ):
            if self.text_column is not None:
                yield replace(block, body=text_rows(block, self.text_column, file))
            elif file.values:
                yield replace(block, body=_with_fields(block.body, file.values))
            else:
                yield block


def text_rows(block: RowBlock, column: str, file: SourceFile) -> memoryview:
    """Encode each line that is not empty as ``{"<column>": "<line>"}``, without its line ending.

    :param block: the lines, in UTF-8
    :param column: the column that takes them
    :param file: the file
    :return: NDJSON
    :raises EncodingError: if the lines are not UTF-8
    """
    data = bytes(block.body).replace(b"\r\n", b"\n").removesuffix(b"\r").removesuffix(b"\n")
    lines = pc.split_pattern(pa.scalar(data, pa.large_binary()), b"\n").values
    try:
        text = lines.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise EncodingError(
            f"file {file.name!r}, lines {block.first_line} to {block.last_line}: not UTF-8 text; convert "
            "the file. Nothing of these lines was sent"
        ) from None
    filled = text.filter(pc.invert(pc.match_substring_regex(text, r"^\r?$")))
    return memoryview(encode_ndjson(with_values(pa.table({column: filled}), file)))


def line_without_a_document(block: RowBlock) -> int | None:
    """Find a line of NDJSON with more or less than one JSON document, where the next lines may go on with it.

    Lines that are no JSON at all are none: whoever reads documents finds none in them, either.

    :param block: lines as they are stored
    :return: the line's number, None if every line that begins a document ends it
    """
    data = np.frombuffer(block.body, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    starts = np.concatenate(([0], ends + 1))
    ends = np.append(ends, len(data))
    last = data[np.maximum(ends - 1, 0)]
    odd = (starts < ends) & ((last != ord("}")) | (data[np.minimum(starts, len(data) - 1)] != ord("{")))
    body = bytes(block.body)
    joined = (body.count(b"\n", 0, found.start()) for found in _NEXT_DOCUMENT.finditer(body))
    for number in sorted({*np.flatnonzero(odd).tolist(), *joined}):
        line = body[starts[number] : ends[number]].strip(b" \t\r")
        if line[:1] in (b"{", b"[") and not _is_document(line):
            return block.first_line + int(number)
    return None


def _is_document(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _with_fields(body: bytes | memoryview, values: PartitionValues) -> bytes:
    """Put the partition's values in front of each line's own fields, all lines by two substitutions."""
    fields = json.dumps(dict(values), ensure_ascii=False).encode()[1:-1].replace(b"\\", rb"\\")
    filled = _FILLED_OBJECT.sub(rb"\1{" + fields + b",", bytes(body))
    return _EMPTY_OBJECT.sub(rb"\1{" + fields + b"}", filled)
