"""Records of one staged file on their way into DuckDB: Arrow chunks, and where each record stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

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
