"""Lines of text as rows of one column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.files.lines import RowBlock
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson


def text_rows(block: RowBlock, column: str, file: str) -> memoryview:
    """Encode each line that is not blank as ``{"<column>": "<line>"}``, without its line ending.

    :param block: the lines, in UTF-8
    :param column: the column that takes them
    :param file: the file's name, for the error
    :return: NDJSON
    :raises EncodingError: if the lines are not UTF-8
    """
    data = bytes(block.body).replace(b"\r\n", b"\n").removesuffix(b"\r").removesuffix(b"\n")
    lines = pc.split_pattern(pa.scalar(data, pa.large_binary()), b"\n").values
    try:
        text = lines.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise EncodingError(
            f"file {file!r}, lines {block.first_line} to {block.last_line}: not UTF-8 text; convert "
            f"the file. "
            "Nothing of these lines was sent"
        ) from None
    filled = text.filter(pc.invert(pc.match_substring_regex(text, r"^[\x00-\x20]*$")))
    return memoryview(encode_ndjson(pa.table({column: filled})))
