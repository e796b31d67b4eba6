"""Formats that Arrow reads, Parquet and ORC: tables of rows as numbered blocks of NDJSON."""

from __future__ import annotations

import json
import os
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from airflow_provider_snowpipe.spark.source import part_bytes, row_ranges, varint
from airflow_provider_snowpipe.spark.sources.files.formats import (
    FilePosition,
    FileReader,
    RowBlock,
    open_listed,
    too_few_rows,
)
from airflow_provider_snowpipe.spark.sources.files.metadata import with_values
from airflow_provider_snowpipe.spark.sources.files.spec import ColumnFormat, SourceFile
from airflow_provider_snowpipe.spark.sources.files.storage import LocalStorage
from airflow_provider_snowpipe.spark.sources.logical_types import (
    Change,
    changed,
    column_types,
    logical_name,
    meaning,
    restored,
)
from airflow_provider_snowpipe.streaming.arguments import UnknownTypes
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.ndjson import NdjsonOptions, encode_ndjson

ENCODE_BYTES = 4 << 20
"""Arrow memory that is encoded at once, unless one row is larger."""
_NEWLINE = 10


def row_blocks_of(
    rows: pa.Table,
    file: SourceFile,
    *,
    after_line: int,
    limits: BatchLimits,
    ends: npt.NDArray[np.int64] | None = None,
    options: NdjsonOptions | None = None,
) -> Iterator[RowBlock]:
    """Encode rows and cut them into blocks.

    :param after_line: number of the row before the first
    :param ends: bytes of the stored text up to each row's end, None where the rows have types instead
    """
    types = column_types(rows.schema) if ends is None else {}
    step = max(1, ENCODE_BYTES * rows.num_rows // max(rows.nbytes, 1))
    for begin in range(0, rows.num_rows, step):
        count = min(step, rows.num_rows - begin)
        part = with_values(rows.slice(begin, count), file)
        try:
            body = memoryview(encode_ndjson(part, options))
        except EncodingError as error:
            first = after_line + begin + 1
            raise EncodingError(
                f"file {file.path!r}, rows {first} to {first + count - 1} (here row 0 is {first}): {error}"
            ) from None
        line_ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE) + 1
        start, number = 0, after_line + begin
        for first, last in row_ranges(line_ends, part_bytes(limits), limits.rows):
            end = int(line_ends[last - 1])
            stored_end = 0 if ends is None else int(ends[begin + last - 1])
            at = number + first + 1, number + last
            yield RowBlock(body[start:end], *at, last - first, stored_end, types)
            start = end


def refuse_missing_columns(file: SourceFile, required: Iterable[str] | None, have: Iterable[str]) -> None:
    """Make sure that a file has the columns that the source names."""
    known = list(have)
    missing = [name for name in required or () if name not in known]
    if missing:
        raise ConfigurationError(
            f"file {file.path!r} has no column {missing[0]!r}, which the source's columns name; it has "
            f"{known}: correct columns"
        )


@dataclass(frozen=True, slots=True)
class NumberedRowsReader(FileReader):
    """Reads files whose rows are numbered by the file's own structure."""

    form: ColumnFormat

    def position_after(self, file: SourceFile, line: int) -> FilePosition:
        """Make sure that the file has the committed row; where it is, its number shows."""
        have = self.row_count(file)
        if line > have:
            raise too_few_rows(file, have, line, "row")
        return FilePosition(done=line == have)

    def blocks(
        self, file: SourceFile, *, after_line: int, offset: int, keep_tail: bool, limits: BatchLimits
    ) -> Iterator[RowBlock]:
        """Read the rows in their order."""
        number, options = after_line, NdjsonOptions(non_finite=self.form.non_finite)
        for rows in self.tables(file, after_line):
            yield from row_blocks_of(rows, file, after_line=number, limits=limits, options=options)
            number += rows.num_rows

    @abstractmethod
    def row_count(self, file: SourceFile) -> int:
        """Count a file's rows, from its own metadata.

        :raises SourcePositionError: if the file is gone or has changed since it was listed
        :raises EncodingError: if it is damaged or of another format
        """

    @abstractmethod
    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the rows after a given one, in pieces that fit the memory.

        :param after_row: number of the last row skipped, 0 for none
        """


def damaged(file: SourceFile, kind: str, error: Exception) -> EncodingError:
    """Return the error of a file that cannot be read as what the source declares."""
    return EncodingError(
        f"file {file.path!r} cannot be read as {kind} ({str(error)[:300]}): it is damaged, not finished, or "
        "of another format. Rows before that may have been sent; replace it by a whole file that "
        "begins with the same rows"
    )


@contextmanager
def _opened(file: SourceFile, kind: str) -> Iterator[Any]:
    """Open a file as Arrow reads it: a local one by its path, without Python; another one by its stream."""
    with open_listed(file, exact=True) as stream:
        is_local = isinstance(file.storage, LocalStorage)
        try:
            yield file.path if is_local else pa.PythonFile(stream, "r")
        except (pa.ArrowException, OSError) as error:
            raise getattr(stream, "failure", None) or damaged(file, kind, error) from None


# -- ORC files, stripe by stripe; on resume, the stripes before are counted by their first column --------


@dataclass(frozen=True, slots=True)
class OrcReader(NumberedRowsReader):
    """Reads ORC. A stripe is in memory as a whole while it is read."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _orc_file(file) as opened:
            return int(opened.nrows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the stripes that hold rows after a given one."""
        columns = None if self.form.columns is None else list(self.form.columns)
        with _orc_file(file) as opened:
            refuse_missing_columns(file, columns, opened.schema.names)
            skip = after_row
            for index in range(opened.nstripes):
                if skip:
                    rows = _stripe(opened, index, opened.schema.names[:1]).num_rows
                    if skip >= rows:
                        skip -= rows
                        continue
                zone = cache(partial(writer_zone, file.path, index))
                yield of_orc(_stripe(opened, index, columns), opened.schema, zone).slice(skip)
                skip = 0


def _stripe(opened: orc.ORCFile, index: int, columns: list[str] | None) -> pa.Table:
    rows = opened.read_stripe(index, columns=columns)
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


@contextmanager
def _orc_file(file: SourceFile) -> Iterator[orc.ORCFile]:
    with _opened(file, "ORC") as source:
        yield orc.ORCFile(source)


# -- Parquet files, row group by row group; on resume, row groups before the committed row are not read --

_MOST_ROWS = 16_384
_FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class ParquetReader(NumberedRowsReader):
    """Reads Parquet. Timestamps stored as INT96 are read to the microsecond, which is what Spark writes."""

    def row_count(self, file: SourceFile) -> int:
        """Take the number from the footer."""
        with _parquet_file(file) as parquet:
            return int(parquet.metadata.num_rows)

    def tables(self, file: SourceFile, after_row: int) -> Iterator[pa.Table]:
        """Read the row groups that hold rows after a given one."""
        with _parquet_file(file) as parquet:
            refuse_missing_columns(file, self.form.columns, parquet.schema_arrow.names)
            meanings = _meanings(parquet, file, self.form.unknown_types)
            for batch, skip in batches_after(parquet, after_row, self.form.columns):
                rows = of_parquet(pa.Table.from_batches([batch.slice(skip)]), parquet)
                rows = _with_meanings(rows, meanings)
                # Parquet takes a name with a dot for a field of a structure as well.
                yield rows if self.form.columns is None else rows.select(list(self.form.columns))


def _meanings(parquet: pq.ParquetFile, file: SourceFile, unknown: UnknownTypes) -> dict[str, pa.DataType]:
    """What the Avro schema in a file's footer says of numbers for which Parquet itself has no type."""
    footer = parquet.metadata.metadata or {}
    schema = json.loads(footer.get(b"parquet.avro.schema") or footer.get(b"avro.schema") or b"{}")
    found = {}
    for one in schema.get("fields") or ():
        kinds = one["type"] if isinstance(one["type"], list) else [one["type"]]
        kind = next((kind for kind in kinds if isinstance(kind, dict)), {})
        if isinstance(kind.get("type"), str) and one["name"] in parquet.schema_arrow.names:
            try:
                found[one["name"]] = meaning(kind["type"], logical_name(kind), one["name"], unknown)
            except EncodingError as error:
                raise EncodingError(f"file {file.path!r}: {error}") from None
    return {name: kind for name, kind in found.items() if isinstance(kind, pa.DataType)}


def _with_meanings(rows: pa.Table, meanings: Mapping[str, pa.DataType]) -> pa.Table:
    for at, one in enumerate(rows.schema):
        kind = meanings.get(one.name)
        if kind is not None and pa.types.is_integer(one.type):
            values = restored(rows.column(at).combine_chunks(), kind)
            rows = rows.set_column(at, one.name, values)
    return rows


def batches_after(
    parquet: pq.ParquetFile, after_row: int, columns: Sequence[str] | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Read the rows after a given one in pieces, with how many to skip; earlier row groups are not read."""
    required = None if columns is None else list(columns)
    skip = after_row
    for index in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(index)
        if skip >= group.num_rows:
            skip -= group.num_rows
            continue
        # As many rows as take about the memory that is encoded at once, going by the group's average.
        average = max(group.total_byte_size // max(group.num_rows, 1), 1)
        at_once = int(min(max(ENCODE_BYTES // average, _FEWEST_ROWS), _MOST_ROWS))
        for batch in parquet.iter_batches(at_once, [index], columns=required, use_threads=False):
            if skip < batch.num_rows:
                yield batch, skip
            skip = max(skip - batch.num_rows, 0)


@contextmanager
def _parquet_file(file: SourceFile) -> Iterator[pq.ParquetFile]:
    is_local = isinstance(file.storage, LocalStorage)
    with (
        _opened(file, "Parquet") as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=not is_local) as parquet,
    ):
        yield parquet


# -- What Spark's own notes in files say of values, which the formats' readers do not ask ------------------
#
# In ORC, Spark writes TIMESTAMP_NTZ as a number of microseconds, and TIMESTAMP as the wall clock of its own
# zone, which each stripe names ("ORC Specification", stripe footer). In Parquet, Spark 2 and the mode LEGACY
# write dates before 1582-10-15 in the Julian calendar, and the footer says so.

_TYPE = b"spark.sql.catalyst.type"


def _leaves(one: pa.Field) -> Iterator[pa.Field]:
    kind = one.type
    if pa.types.is_map(kind):
        yield from _leaves(kind.item_field)
    elif kind.num_fields:
        for at in range(kind.num_fields):
            yield from _leaves(kind.field(at))
    else:
        yield one


def _changed_table(rows: pa.Table, schema: pa.Schema, noted: set[str], change: Change) -> pa.Table:
    for at, name in enumerate(rows.schema.names):
        if name in noted:
            values = changed(rows.column(at).combine_chunks(), schema.field(name), change)
            rows = rows.set_column(at, name, values)
    return rows


# -- ORC -------------------------------------------------------------------------------------------------


def of_orc(rows: pa.Table, schema: pa.Schema, zone: Callable[[], str]) -> pa.Table:
    """The rows of a stripe as Spark has written them.

    :param schema: the file's schema with the notes
    """
    noted = {
        one.name for one in schema if any(_TYPE in (leaf.metadata or {}) for leaf in _leaves(one))
    } & set(rows.schema.names)
    return _changed_table(rows, schema, noted, lambda values, one: _spark_value(values, one, zone))


def _spark_value(values: pa.Array, one: pa.Field, zone: Callable[[], str]) -> pa.Array | None:
    note = (one.metadata or {}).get(_TYPE)
    if note == b"timestamp_ntz" and pa.types.is_int64(values.type):
        return values.view(pa.timestamp("us"))
    if note == b"timestamp" and pa.types.is_timestamp(values.type) and values.type.tz is None:
        try:
            return pc.assume_timezone(values, zone(), ambiguous="earliest", nonexistent="earliest")
        except (pa.ArrowException, ValueError, LookupError, zlib.error) as error:
            raise EncodingError(
                f"column {one.name!r} has timestamps in the zone of their writer, which cannot be read "
                f"({error}): write the file with another compression or zone, or as Parquet"
            ) from None
    return None


_NONE, _ZLIB, _SNAPPY, _ZSTD = 0, 1, 2, 5


def writer_zone(path: str, stripe: int) -> str:
    """Read the zone of a stripe's writer from the stripe's footer."""
    with Path(path).open("rb") as file:

        def read(begin: int, length: int) -> bytes:
            file.seek(begin)
            return file.read(length)

        end = file.seek(0, os.SEEK_END) - 1
        size = read(end, 1)[0]
        post = _message(read(end - size, size))
        codec, length = _number(post, 2), _number(post, 1)
        footer = _message(_unpacked(read(end - size - length, length), codec))
        found = _message(_bytes(footer, 3, stripe))
        begin = _number(found, 1) + _number(found, 2) + _number(found, 3)
        return _bytes(_message(_unpacked(read(begin, _number(found, 4)), codec)), 3, 0).decode()


def _bytes(message: Mapping[int, list[int | bytes]], field: int, at: int) -> bytes:
    value = message[field][at]
    if not isinstance(value, bytes):
        raise ValueError(f"field {field} of a footer is a number")
    return value


def _number(message: Mapping[int, list[int | bytes]], field: int) -> int:
    return int(message.get(field, [0])[0])


def _message(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a Protobuf message by their numbers."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value: int | bytes
            value, at = varint(data, at)
        elif key & 7 == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            width = {1: 8, 5: 4}[key & 7]
            value, at = data[at : at + width], at + width
        found.setdefault(key >> 3, []).append(value)
    return found


def _unpacked(data: bytes, codec: int) -> bytes:
    """The text of chunks, each behind three bytes with its length and whether it is compressed."""
    if codec == _NONE:
        return data
    out, at = [], 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + len(chunk)
        out.append(chunk if head & 1 else _chunk(chunk, codec))
    return b"".join(out)


def unsnapped(packed: bytes) -> bytes:
    """Decompress a block of snappy, which begins with the size of its text."""
    return bytes(pa.Codec("snappy").decompress(packed, varint(packed, 0)[0], asbytes=True))


def _chunk(chunk: bytes, codec: int) -> bytes:
    if codec == _ZLIB:
        return zlib.decompress(chunk, -zlib.MAX_WBITS)
    if codec == _SNAPPY:
        return unsnapped(chunk)
    if codec == _ZSTD:
        return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read())
    raise ValueError(f"compression {codec} of ORC is not read")


# -- Parquet: days that were counted in the Julian calendar ----------------------------------------------

_SWITCHES = np.array(
    [
        *(-719164, -682945, -646420, -609895, -536845, -500320, -463795),
        *(-390745, -354220, -317695, -244645, -208120, -171595, -141427),
    ]
)
"""Days since 1970 from which on the calendars differ by one day more, and the first of the Gregorian one."""
_SHIFTS = np.array([2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0])
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00")


def of_parquet(rows: pa.Table, file: pq.ParquetFile) -> pa.Table:
    """The rows with dates of one calendar."""
    notes = file.metadata.metadata or {}
    schema = file.schema
    int96 = {
        schema.column(at).path.split(".")[0]
        for at in range(len(schema))
        if schema.column(at).physical_type == "INT96"
    }
    is_old = notes.get(b"org.apache.spark.version", b"3").startswith((b"1.", b"2."))
    noted = set(int96) if is_old or b"org.apache.spark.legacyINT96" in notes else set()
    if is_old or b"org.apache.spark.legacyDateTime" in notes:
        noted |= {name for name in rows.schema.names if name not in int96}
    zone = notes.get(b"org.apache.spark.timeZone", b"UTC").decode()
    return _changed_table(rows, rows.schema, noted, lambda values, one: _gregorian(values, one, zone))


def _gregorian(values: pa.Array, one: pa.Field, zone: str) -> pa.Array | None:
    kind = values.type
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return None
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    step = 1
    if pa.types.is_timestamp(kind):
        step = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    numbers = pc.fill_null(values.view(whole), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    days = numbers // step
    if not (days < _SWITCHES[-1]).any():
        return values
    if step > 1 and kind.tz is not None and zone not in _UTC:
        raise EncodingError(
            f"column {one.name!r} has timestamps before 1582-10-15 in the Julian calendar and zone {zone}: "
            "write the file again with datetimeRebaseModeInWrite=CORRECTED"
        )
    shifts = _SHIFTS[np.maximum(np.searchsorted(_SWITCHES, days, side="right") - 1, 0)]
    moved = pa.array((numbers + shifts * step).astype(whole.to_pandas_dtype()), whole)
    return pc.if_else(values.is_valid(), moved, pa.scalar(None, whole)).view(kind)
