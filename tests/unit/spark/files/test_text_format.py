import json

import pytest

from airflow_provider_snowpipe.spark.files.lines import RowBlock
from airflow_provider_snowpipe.spark.files.text_format import text_rows
from airflow_provider_snowpipe.streaming.errors import EncodingError


def _rows(body):
    encoded = bytes(text_rows(RowBlock(memoryview(body), 1, 9, 1), "LINE", "a.log"))
    assert encoded.endswith(b"\n")
    return [json.loads(line) for line in encoded.splitlines()]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r", ["one", "two"]),
        (b"one\n\n \r\n\ttwo \n", ["one", "\ttwo "]),
        (b'say "hi" \\ \x01\n', ['say "hi" \\ \x01']),
        ("é — 日本\n".encode(), ["é — 日本"]),
        (b"a\rb\n", ["a\rb"]),
    ],
)
def test_each_line_becomes_one_row_of_the_column(body, lines):
    assert _rows(body) == [{"LINE": line} for line in lines]


def test_other_encodings_are_refused_with_file_and_lines():
    with pytest.raises(EncodingError, match=r"'a\.log', lines 1 to 9: not UTF-8"):
        _rows("é\n".encode("latin-1"))
