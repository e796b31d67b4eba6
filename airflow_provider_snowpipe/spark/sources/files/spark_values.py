"""What Spark's own notes in ORC and Parquet files say of values, which the formats' readers do not ask.

In ORC, Spark writes TIMESTAMP_NTZ as a number of microseconds, and TIMESTAMP as the wall clock of its own
zone, which each stripe names ("ORC Specification", stripe footer). In Parquet, Spark 2 and the mode LEGACY
write dates before 1582-10-15 in the Julian calendar, and the footer says so.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_snowpipe.spark.sources.logical_types import Change, changed
from airflow_provider_snowpipe.streaming.errors import EncodingError

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


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, as Protobuf and Avro write it; return it and what is behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


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
