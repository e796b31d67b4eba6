"""CSV files as Arrow chunks of text columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.local.errors import SqlError, compilation_error
from airflow_provider_snowpipe.local.loading.chunks import CSV, Chunk, FileShape, Position
from airflow_provider_snowpipe.local.loading.csv_dialect import CsvDialect
from airflow_provider_snowpipe.local.loading.csv_exact import split_exactly
from airflow_provider_snowpipe.local.loading.csv_fields import Fields, split_fields
from airflow_provider_snowpipe.local.loading.text import invalid_bytes, overwritten, utf8_blocks


def read_csv(blocks: Iterable[bytes], options: Mapping[str, Any], width: int) -> Iterator[Chunk]:
    """Yield the records of a CSV file.

    :param blocks: decompressed content.
    :param options: of the file format.
    :param width: fields to keep of each record; ignored with PARSE_HEADER, where the header tells.
    :raises SqlError: for a header that names a column twice.
    """
    dialect = CsvDialect.of(options)
    reader = _Reader(dialect, bool(options.get("REPLACE_INVALID_CHARACTERS", False)))
    header_lines = int(options.get("SKIP_HEADER", 0))
    parse_header = bool(options.get("PARSE_HEADER", False))
    if parse_header and header_lines:
        raise compilation_error("PARSE_HEADER = TRUE and SKIP_HEADER cannot be combined.")
    names: tuple[str, ...] = ()
    carry = b""
    for block, final in _with_final(utf8_blocks(blocks, options)):
        text = carry + block
        if header_lines:
            text, header_lines = reader.skip_lines(text, header_lines, final)
        if final and text and not text.endswith(dialect.record):
            text += dialect.record
        fields, consumed = reader.split(text, final)
        if parse_header and len(fields.first):
            names = _header(fields, int(fields.count[0]))
            width, parse_header = len(names), False
            fields = _without_first(fields)
        if len(fields.first):
            yield reader.chunk(text, fields, FileShape(CSV, names), width)
        reader.pass_over(text[:consumed])
        carry = text[consumed:]


class _Reader:
    """Position in the file, over its blocks."""

    def __init__(self, dialect: CsvDialect, replace_invalid: bool) -> None:
        self._dialect = dialect
        self._replace_invalid = replace_invalid
        self._lines = 0
        self._records = 0

    def skip_lines(self, text: bytes, lines: int, final: bool) -> tuple[bytes, int]:
        """Skip header lines, which end at every newline, quoted or not."""
        while lines:
            end = text.find(b"\n")
            if end < 0:
                return (b"", 0) if final else (text, lines)
            text, lines = text[end + 1 :], lines - 1
            self._lines += 1
        return text, lines

    def pass_over(self, text: bytes) -> None:
        """Count the lines of text that is done."""
        self._lines += text.count(b"\n")

    def split(self, text: bytes, final: bool) -> tuple[Fields, int]:
        """Split into fields; records with invalid characters are broken ones.

        :returns: the fields, and how many bytes of the text they came from.
        """
        fields = self._split(text, final)
        spans = invalid_bytes(text[: fields.consumed])
        if not spans:
            return fields, fields.consumed
        consumed = fields.consumed
        fields = self._split(overwritten(text, spans), final)
        if not self._replace_invalid:
            records = fields.starts[fields.first]
            for start, end in spans:
                number = int(np.searchsorted(records, start, side="right")) - 1
                found = text[start:end].hex().upper()
                fields.broken.setdefault(number, f"Invalid UTF8 detected in string '0x{found}'")
        return fields, consumed

    def _split(self, text: bytes, final: bool) -> Fields:
        fields = split_fields(text, self._dialect)
        if fields is None or (final and fields.consumed < len(text)):
            fields = split_exactly(text, self._dialect, final=final)
        return fields

    def chunk(self, text: bytes, fields: Fields, shape: FileShape, width: int) -> Chunk:
        """Build the Arrow table of one block."""
        base, lines = self._records, self._lines
        size = len(fields.first)
        self._records += size
        columns = {
            "i": pa.array(np.arange(base, base + size, dtype=np.int64)),
            "x": pa.array([fields.broken.get(number) for number in range(size)], pa.string())
            if fields.broken
            else pa.nulls(size, pa.string()),
            "n": pa.array(fields.count),
        }
        for index in range(width):
            columns[f"c{index}"] = _column(fields, index)

        def locate(record: int, index: int | None) -> Position:
            number = record - base
            inside = index is not None and index < fields.count[number]
            start = int(fields.starts[fields.first[number] + (index if inside and index else 0)])
            begin = int(fields.starts[fields.first[number]])
            line_start = text.rfind(b"\n", 0, start) + 1
            line = lines + text.count(b"\n", 0, begin) + 1
            return Position(line, len(text[line_start:start].decode(errors="replace")) + 1)

        return Chunk(shape, pa.table(columns), locate)


def _column(fields: Fields, index: int) -> pa.LargeStringArray:
    if (fields.count > index).all():
        return fields.values.take(pa.array(fields.first + index))
    absent = fields.count <= index
    return fields.values.take(pa.array(np.where(absent, 0, fields.first + index), mask=absent))


def _header(fields: Fields, count: int) -> tuple[str, ...]:
    names = tuple(
        str(value or "").strip() for value in fields.values.take(pa.array(np.arange(count))).to_pylist()
    )
    if len(set(names)) != len(names):
        raise SqlError("100080", "22000", f"the header names a column twice: {', '.join(names)[:200]}")
    return names


def _without_first(fields: Fields) -> Fields:
    return Fields(
        fields.values,
        fields.first[1:],
        fields.count[1:],
        fields.starts,
        fields.consumed,
        {number - 1: reason for number, reason in fields.broken.items() if number},
    )


def _with_final(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each block, and whether it is the last one."""
    waiting: bytes | None = None
    for block in blocks:
        if waiting is not None:
            yield waiting, False
        waiting = block
    if waiting is not None:
        yield waiting, True
