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
    filled = np.flatnonzero(~IS_BLANK[data])
    ends = np.flatnonzero(data == ord("\n"))
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    begins = np.concatenate(([0], ends[:-1] + 1))
    at = np.searchsorted(filled, begins)
    is_row = at < len(filled)
    is_row[is_row] = filled[at[is_row]] < ends[is_row]
    at, ends = at[is_row], ends[is_row]
    numbers = block.numbers
    if numbers is None:
        numbers = np.arange(block.last_line - len(at) + 1, block.last_line + 1)
    second = np.append(filled, len(data))[at + 1]
    is_object = data[filled[at]] == ord("{")
    after = filled[at[is_object]] + 1
    is_empty = (second[is_object] < ends[is_object]) & (
        data[np.minimum(second, len(data) - 1)][is_object] == ord("}")
    )

    fixed = json.dumps(dict(constants), ensure_ascii=False)[1:-1]
    inserted: list[Any] = [fixed]
    if numbered is not None:
        name = json.dumps(numbered, ensure_ascii=False)
        inserted += [f"{',' if fixed else ''}{name}: ", pa.array(numbers[is_object]).cast(pa.large_string())]
    inserted.append(pa.array(np.where(is_empty, "", ","), pa.large_string()))
    # The body is cut behind each brace, and comes together again with what is inserted between.
    offsets = np.concatenate(([0], after)).astype(np.int64)
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(after), [None, pa.py_buffer(offsets), pa.py_buffer(block.body)]
    )
    joined = pc.binary_join_element_wise(pieces, *map(_as_bytes, inserted), _as_bytes(""))
    rest = memoryview(block.body)[int(offsets[-1]) :]
    return memoryview(b"".join([*_content(joined), rest]))


def _as_bytes(text: Any) -> Any:
    if isinstance(text, str):
        return pa.scalar(text.encode(), pa.large_binary())
    return text.cast(pa.large_binary())


def _content(joined: Any) -> list[memoryview]:
    """The bytes of all values of an array, one behind the other."""
    if not len(joined):
        return []
    ends = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + len(joined) + 1]
    return [memoryview(joined.buffers()[2])[int(ends[0]) : int(ends[-1])]]
