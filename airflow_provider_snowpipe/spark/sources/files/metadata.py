"""Columns that show where a row is from, put into rows of NDJSON whatever the format of the file is."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.sources.files.formats import IS_BLANK, RowBlock
from airflow_provider_snowpipe.spark.sources.files.spec import ROW_NUMBER, SourceFile


def constants_of(file: SourceFile, columns: Mapping[str, str], run: str, at: dt.datetime) -> dict[str, Any]:
    """The values that all rows of a file have, by column.

    :param columns: what each column gets, as ``FileSource.metadata`` names it
    :param run: the run, as checkpoints name it
    :param at: when the source was listed
    """
    written = dt.datetime.fromtimestamp(file.modified_ns / 1e9, dt.UTC)
    known: dict[str, Any] = {
        "filename": file.path.removeprefix(file.storage.path("")).lstrip("/"),
        "file_last_modified": f"{written:%Y-%m-%d %H:%M:%S}.{written.microsecond // 1000:03}",
        "file_content_key": file.version or None,
        "start_scan_time": f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}",
        "run_id": run,
        "unit": file.unit,
    }
    return {name: known[value] for name, value in columns.items() if value != ROW_NUMBER}


def with_metadata(block: RowBlock, constants: Mapping[str, Any], numbered: str | None) -> memoryview:
    """Put the columns in front of the keys of each row that is a JSON object; other lines stay as they are.

    :param constants: the same for all rows
    :param numbered: the column that gets the number of the row, None for none
    """
    data = np.frombuffer(block.body, np.uint8)
    if not len(data):
        return memoryview(block.body)
    ends = np.flatnonzero(data == ord("\n"))
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    at = _filled(data, np.append(0, ends[:-1] + 1))
    is_row = at < ends
    if not is_row.all():
        at, ends = at[is_row], ends[is_row]
    numbers = block.numbers
    if numbers is None:
        numbers = np.arange(block.last_line - len(at) + 1, block.last_line + 1)
    is_object = data[at] == ord("{")
    second = _filled(data, at[is_object] + 1)
    is_empty = (data[np.minimum(second, len(data) - 1)] == ord("}")) & (second < ends[is_object])
    columns = {} if numbered is None else {numbered: numbers[is_object]}
    return spliced(block.body, at[is_object] + 1, constants, columns, is_empty)


def spliced(
    body: bytes | memoryview,
    after: Any,
    constants: Mapping[str, Any],
    columns: Mapping[str, Any],
    is_empty: Any = None,
) -> memoryview:
    """Put columns in front of the keys of JSON objects.

    :param after: the position behind the opening brace of each object, a numpy array
    :param constants: values that all rows get, by column
    :param columns: whole numbers, a numpy array for each column
    :param is_empty: the objects without a key, None for none of them
    """
    # The body is cut behind each brace, and comes together again with what is inserted between.
    offsets = np.concatenate(([0], after, [len(body)])).astype(np.int64)
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(after) + 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    )
    texts: list[Any] = [json.dumps(dict(constants), ensure_ascii=False)[1:-1]]
    for name, values in columns.items():
        key = f"{',' if texts[-1] else ''}{json.dumps(name, ensure_ascii=False)}: "
        texts += [key, pa.array(values).cast(pa.large_string())]
    empties = is_empty is not None and is_empty.any()
    texts.append(pa.array(np.where(is_empty, "", ","), pa.large_string()) if empties else ",")
    inserted = pc.binary_join_element_wise(*map(_as_bytes, texts), _as_bytes(""))
    if not columns and not empties:
        inserted = pa.repeat(inserted, len(after))
    joined = pc.binary_join_element_wise(
        pa.concat_arrays([pa.array([b""], pa.large_binary()), inserted]), pieces, _as_bytes("")
    )
    return memoryview(joined.buffers()[2])[: np.frombuffer(joined.buffers()[1], np.int64)[len(joined)]]


_STEPS = 8


def _filled(data: Any, at: Any) -> Any:
    """The first byte from each position on that is not blank; behind the last one where there is none."""
    for _ in range(_STEPS):
        is_blank = IS_BLANK[data[np.minimum(at, len(data) - 1)]] & (at < len(data))
        if not is_blank.any():
            return at
        at = at + is_blank
    filled = np.append(np.flatnonzero(~IS_BLANK[data]), len(data))
    return filled[np.searchsorted(filled, at)]


def _as_bytes(text: Any) -> Any:
    if isinstance(text, str):
        return pa.scalar(text.encode(), pa.large_binary())
    return text.cast(pa.large_binary())
