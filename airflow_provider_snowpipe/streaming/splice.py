"""Puts columns into rows that are JSON text already, without reading the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

IS_BLANK = np.isin(np.arange(256), (9, 10, 13, 32))
_STEPS = 8

Positions = npt.NDArray[np.int64]


def with_columns(
    body: bytes | memoryview,
    constants: Mapping[str, Any],
    numbers: Mapping[str, Positions],
    ends: Positions | None = None,
) -> memoryview:
    """Put columns in front of the keys of each line that is a JSON object; other lines stay as they are.

    :param constants: values that all rows get, by column
    :param numbers: whole numbers from 0, one for each line that is not blank, by column
    :param ends: where the lines that are not blank end, None where nobody knows
    """
    data = np.frombuffer(body, np.uint8)
    if not len(data):
        return memoryview(body)
    if ends is None:
        ends = np.flatnonzero(data == ord("\n")) + 1
        if not len(ends) or ends[-1] != len(data):
            ends = np.append(ends, len(data))
    at = _filled(data, np.append(0, ends[:-1]))
    is_object = (at < ends) & (data[np.minimum(at, len(data) - 1)] == ord("{"))
    rows = is_object[at < ends]
    after = at[is_object] + 1
    second = _filled(data, after)
    is_empty = (data[np.minimum(second, len(data) - 1)] == ord("}")) & (second < ends[is_object])
    columns = {name: values[rows] for name, values in numbers.items()}
    # The body is cut behind each brace, and comes together again with what is inserted between.
    offsets = np.concatenate(([0], after, [len(data)]))
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    fixed = json.dumps(dict(constants), ensure_ascii=False)[1:-1]
    if not columns and not is_empty.any():
        comma = _binary(f"{fixed}," if fixed else "")
        whole = pa.LargeListArray.from_arrays(pa.array([0, len(pieces)], pa.int64()), pieces)
        return _content(pc.binary_join(whole, comma))
    inserted = _inserted(fixed, columns, is_empty)
    first = pa.array([b""], pa.large_binary())
    return _content(pc.binary_join_element_wise(pa.concat_arrays([first, inserted]), pieces, _binary("")))


def _inserted(fixed: str, columns: Mapping[str, Positions], is_empty: npt.NDArray[np.bool_]) -> Any:
    """What is put into each row: texts of one length, with blanks in front of shorter numbers."""
    parts, fields, width = [fixed], [], len(fixed.encode())
    for name, values in columns.items():
        key = f"{',' if width else ''}{json.dumps(name, ensure_ascii=False)}: "
        digits = len(str(int(values.max(initial=0))))
        parts += [key, " " * digits]
        width += len(key.encode()) + digits
        fields.append((width, digits, values))
    text = np.frombuffer("".join([*parts, ","]).encode(), np.uint8)
    rows = np.tile(text, (len(is_empty), 1))
    for end, digits, values in fields:
        left = values
        for at in range(end - 1, end - 1 - digits, -1):
            rest = left // 10
            is_there = (left > 0) if at < end - 1 else True
            rows[:, at] = np.where(is_there, left - rest * 10 + ord("0"), ord(" "))
            left = rest
    rows[is_empty, -1] = ord(" ")
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * len(text)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


def _filled(data: npt.NDArray[np.uint8], at: Positions) -> Positions:
    """The first byte from each position on that is not blank; behind the last one where there is none."""
    for _ in range(_STEPS):
        is_blank = IS_BLANK[data[np.minimum(at, len(data) - 1)]] & (at < len(data))
        if not is_blank.any():
            return at
        at = at + is_blank
    filled = np.append(np.flatnonzero(~IS_BLANK[data]), len(data))
    return filled[np.searchsorted(filled, at)]


def _binary(text: str) -> Any:
    return pa.scalar(text.encode(), pa.large_binary())


def _content(joined: Any) -> memoryview:
    """The bytes of all values of an array, one behind the other."""
    ends = np.frombuffer(joined.buffers()[1], np.int64)
    return memoryview(joined.buffers()[2])[: int(ends[len(joined)])]
