"""Columns that show where a row is from, put into rows of NDJSON whatever the format of the file is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.spec import FILE_NAME, ROW_NUMBER, SourceFile
from airflow_provider_snowpipe.streaming.splice import with_columns


def constants_of(file: SourceFile, columns: Mapping[str, str], run: str, at: dt.datetime) -> dict[str, Any]:
    """The values that all rows of a file have, by column.

    :param columns: what each column gets, as ``FileSource.metadata`` names it
    :param run: the run, as checkpoints name it
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

    :param constants: the same for all rows
    :param numbered: the column that gets the number of the row, None for none
    """
    numbers = block.numbers
    if numbers is None:
        numbers = np.arange(block.last_line - block.rows + 1, block.last_line + 1)
    columns = {} if numbered is None else {numbered: numbers}
    return with_columns(block.body, constants, columns, block.row_ends)
