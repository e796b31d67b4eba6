"""Partition values in the paths of files, as in ``day=2024-01-01/part-0.parquet``."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.files.groups import SourceFile
from airflow_provider_snowpipe.streaming.errors import EncodingError


def with_values(rows: pa.Table, file: SourceFile) -> pa.Table:
    """Add the partition's values as columns of text.

    :param rows: rows of the file
    :param file: the file; without values to add, the rows stay as they are
    :raises EncodingError: if the rows have such a column of their own
    """
    for name, value in file.values:
        if name.upper() in {column.upper() for column in rows.column_names}:
            raise EncodingError(
                f"file {file.path!r} has a column {name!r}, which the partition value {name}={value} in its "
                "path would be added as: set partition_columns=False, or leave that column out by columns=…"
            )
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.large_string()), rows.num_rows))
    return rows
