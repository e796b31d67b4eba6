"""Results as Arrow, in the form that the Python connectors read for SELECT.

Field metadata and physical types were observed with connectors 4.8.1 and 5.2.0: a timestamp is a struct of
``epoch`` (seconds) and ``fraction`` (nanoseconds), plus ``timezone`` (minutes + 1440) for TIMESTAMP_TZ; a
NUMBER is a 64-bit integer without its decimal point where that fits. A ``byteLength`` that disagrees with the
number of fields crashes connector 5.2.0.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.local.sql.results import Result, json_text, offset_minutes
from airflow_provider_snowpipe.local.types import ColumnType

_BATCH_ROWS = 65_536
_LOGICAL_TYPES = {"NUMBER": "FIXED", "FLOAT": "REAL", "VARCHAR": "TEXT"}
_INT64_DIGITS = 18
_MICROS = 1_000_000
_UTC_MINUTES = 1440


def encode_stream(result: Result) -> str:
    """Encode a result as a base64 Arrow IPC stream.

    :param result: rows as Python values from DuckDB.
    :returns: the value of ``rowsetBase64``; empty for a result without rows.
    :raises pyarrow.ArrowException: when a value does not fit, for example an integer of 39 digits.
    """
    if not result.rows:
        # Connector 4.8.1 builds no pandas frame from a stream without a batch, and dies of an empty batch.
        return ""
    [stream] = encode_streams(result, [len(result.rows)])
    return base64.b64encode(stream).decode("ascii")


def encode_streams(result: Result, counts: Sequence[int]) -> list[bytes]:
    """Encode a result as several Arrow IPC streams of one schema.

    :param counts: rows of each stream.
    :raises pyarrow.ArrowException: as :func:`encode_stream`.
    """
    arrays, fields = [], []
    for position, column in enumerate(result.columns):
        values = [row[position] for row in result.rows]
        array = _ENCODERS[column.type.kind](values, column.type)
        arrays.append(array)
        metadata = _metadata(column.type, array.type)
        # Always nullable: connector 5.2.0 refuses a mask on a field that says it has none.
        fields.append(pa.field(column.name, array.type, nullable=True, metadata=metadata))
    schema = pa.schema(fields)
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    streams, start = [], 0
    for count in counts:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for at in range(start, start + count, _BATCH_ROWS):
                writer.write_batch(rows.slice(at, min(_BATCH_ROWS, start + count - at)))
        streams.append(sink.getvalue().to_pybytes())
        start += count
    return streams


def _metadata(kind: ColumnType, arrow: pa.DataType) -> dict[str, str]:
    scale, precision = kind.scale or 0, kind.precision or 0
    if kind.kind.startswith("TIME"):
        scale, precision = 9, 0
    elif kind.kind == "NUMBER":
        precision = kind.precision or 38
    length = kind.length or 0
    width = length
    if pa.types.is_struct(arrow):
        width = 16 if arrow.num_fields == 3 else 8
    return {
        "logicalType": _LOGICAL_TYPES.get(kind.kind, kind.kind),
        "precision": str(precision),
        "scale": str(scale),
        "charLength": str(length),
        "byteLength": str(width),
        "finalType": "T",
    }


def _number(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    scale = kind.scale or 0
    if scale == 0 and all(value is None or _is_small(value) for value in values):
        return pa.array(values, pa.int64())
    decimals = pa.array(values, pa.decimal128(38, scale))
    # The same 128-bit integers without the decimal point; the scale travels in the metadata.
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(decimals), decimals.buffers())
    limits = pc.min_max(pc.abs(unscaled)).as_py()
    if limits["max"] is None or limits["max"] < 10**_INT64_DIGITS:
        return unscaled.cast(pa.int64())
    return decimals


def _is_small(value: Any) -> bool:
    return type(value) is int and -(10**_INT64_DIGITS) < value < 10**_INT64_DIGITS


def _timestamp(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    zone = None if kind.kind == "TIMESTAMP_NTZ" else "UTC"
    micros = pa.array(values, pa.timestamp("us", tz=zone)).cast(pa.int64())
    missing = micros.is_null()
    filled = micros.fill_null(0)
    whole = pc.divide(filled, _MICROS)
    rest = pc.subtract(filled, pc.multiply(whole, _MICROS))
    # Integer division rounds toward zero; the fraction must not be negative.
    borrow = pc.less(rest, 0).cast(pa.int64())
    epoch = pc.subtract(whole, borrow)
    fraction = pc.multiply(pc.add(rest, pc.multiply(borrow, _MICROS)), 1000).cast(pa.int32())
    children, names = [epoch, fraction], ["epoch", "fraction"]
    if kind.kind == "TIMESTAMP_TZ":
        minutes = [_UTC_MINUTES if value is None else offset_minutes(value) for value in values]
        children.append(pa.array(minutes, pa.int32()))
        names.append("timezone")
    return pa.StructArray.from_arrays(children, names=names, mask=missing)


def _time(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    # TIME_NS and TIME both arrive as datetime.time.
    return pc.multiply(pa.array(values, pa.time64("us")).cast(pa.int64()), 1000)


def _text(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    return pa.array([None if value is None else json_text(value) for value in values], pa.string())


def _plain(arrow: pa.DataType) -> Callable[[Sequence[Any], ColumnType], pa.Array]:
    return lambda values, _kind: pa.array(values, arrow)


def _date(values: Sequence[Any], _kind: ColumnType) -> pa.Array:
    return pa.array([v.date() if isinstance(v, dt.datetime) else v for v in values], pa.date32())


_ENCODERS: dict[str, Callable[[Sequence[Any], ColumnType], pa.Array]] = {
    "NUMBER": _number,
    "FLOAT": _plain(pa.float64()),
    "BOOLEAN": _plain(pa.bool_()),
    "BINARY": _plain(pa.binary()),
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP_NTZ": _timestamp,
    "TIMESTAMP_LTZ": _timestamp,
    "TIMESTAMP_TZ": _timestamp,
    "VARCHAR": _text,
    "VARIANT": _text,
    "OBJECT": _text,
    "ARRAY": _text,
}
