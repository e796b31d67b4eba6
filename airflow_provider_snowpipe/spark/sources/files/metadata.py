"""Columns that rows get beside their own: where a row is from, and partition values in its file's path."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.spec import FILE_NAME, ROW_NUMBER, SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.splice import with_columns


def constants_of(file: SourceFile, columns: Mapping[str, str], run: str, at: dt.datetime) -> dict[str, Any]:
    """The values that all rows of a file have, by column.

    :param columns: what each column gets, as ``FileSource.metadata`` names it
    :param at: when the source was listed
    """
    written = dt.datetime.fromtimestamp(file.modified_ns / 1e9, dt.UTC)
    known: dict[str, Any] = {
        FILE_NAME: file.name_below,
        "file_last_modified": f"{written:%Y-%m-%d %H:%M:%S}.{written.microsecond // 1000:03}",
        "file_content_key": file.version or None,
        "start_scan_time": f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}",
        "run_id": run,
        "unit": file.unit,
    }
    return {name: known[value] for name, value in columns.items() if value != ROW_NUMBER}


def with_metadata(block: RowBlock, constants: Mapping[str, Any], numbered: str | None) -> memoryview:
    """Put the columns in front of the keys of each row that is a JSON object.

    :param numbered: the column that gets the number of the row, None for none
    """
    numbers = block.numbers
    if numbers is None:
        numbers = np.arange(block.last_line - block.rows + 1, block.last_line + 1)
    columns = {} if numbered is None else {numbered: numbers}
    return with_columns(block.body, constants, columns, block.row_ends)


# -- Partition values in the paths of files, as in ``day=2024-01-01/part-0.parquet`` ---------------------


def with_values(rows: pa.Table, file: SourceFile) -> pa.Table:
    """Add the partition's values as columns of text.

    :param file: the file; without values to add, the rows stay as they are
    """
    _refuse_values_of_its_own(file, rows.column_names, "", ", or leave that column out by columns=…")
    for name, value in file.values:
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.large_string()), rows.num_rows))
    return rows


def _refuse_values_of_its_own(file: SourceFile, columns: Iterable[str], row: str, remedy: str = "") -> None:
    own = {column.upper(): column for column in columns}
    for name, value in file.values:
        if name.upper() in own:
            raise EncodingError(
                f"file {file.path!r}{row} has a column {own[name.upper()]!r}, which the partition value "
                f"{name}={value} in its path would be added as: leave out as_columns of ByKey{remedy}"
            )


def refuse_objects_with_values(block: RowBlock, file: SourceFile) -> None:
    """Refuse NDJSON with a key under which a partition value would be added.

    Only lines that may have one are read as JSON.
    """
    body = bytes(block.body)
    names = "|".join("".join(map(_in_json, name)) for name, _ in file.values)
    for found in re.finditer(rf'"(?:{names})"[ \t\r]*:'.encode(), body):
        begin = body.rfind(b"\n", 0, found.start()) + 1
        try:
            row = json.loads(body[begin:].partition(b"\n")[0])
        except ValueError:
            continue  # for the service to skip and to count
        if isinstance(row, dict):
            line = block.first_line + body.count(b"\n", 0, begin)
            _refuse_values_of_its_own(file, row, f", line {line},")


def _in_json(letter: str) -> str:
    """An expression for what may stand for a letter of a key, in its two cases."""
    forms = set()
    for one in (letter.lower(), letter.upper()):
        escaped = "".join(f"\\u{ord(unit):04x}" for unit in one)
        forms |= {re.escape(one), f"(?i:{re.escape(escaped)})"}
    return f"(?:{'|'.join(sorted(forms))})"
