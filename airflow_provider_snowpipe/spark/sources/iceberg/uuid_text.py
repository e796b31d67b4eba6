"""UUIDs as text, the form in which they are compared and stored in Snowflake."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_BYTES, _DIGITS, _TEXT = 16, 32, 36
_DASHES = (8, 13, 18, 23)


def with_uuid_text(rows: pa.Table) -> pa.Table:
    """Write the values of UUID columns as ``8-4-4-4-12`` digits; other columns stay as they are.

    :param rows: the rows
    """
    for index, column in enumerate(rows.schema):
        if column.type == pa.uuid():
            values = rows.column(index).combine_chunks()
            rows = rows.set_column(index, pa.field(column.name, pa.large_string()), _text(values.storage))
    return rows


def _text(values: pa.FixedSizeBinaryArray) -> pa.Array:
    begin = values.offset * _BYTES
    data = memoryview(values.buffers()[1])[begin : begin + len(values) * _BYTES]
    digits = np.frombuffer(bytes(data).hex().encode(), np.uint8).reshape(len(values), _DIGITS)
    text = np.full((len(values), _TEXT), ord("-"), np.uint8)
    text[:, [place for place in range(_TEXT) if place not in _DASHES]] = digits
    ends = np.arange(len(values) + 1, dtype=np.int64) * _TEXT
    valid = values.is_valid().buffers()[1] if values.null_count else None
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(text.tobytes())]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers, values.null_count)
