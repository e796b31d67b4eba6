import json

import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.line_format import LineReader, text_rows
from airflow_provider_snowpipe.spark.sources.files.spec import Ndjson, SourceFile, Text
from airflow_provider_snowpipe.streaming.errors import EncodingError
from airflow_provider_snowpipe.streaming.limits import BatchLimits


def _rows(body):
    encoded = bytes(
        text_rows(RowBlock(memoryview(body), 1, 9, 1), "LINE", SourceFile("a.log", "/d/a.log", 9))
    )
    assert encoded.endswith(b"\n")
    return [json.loads(line) for line in encoded.splitlines()]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r", ["one", "two"]),
        (b"one\n\n \r\n\ttwo \n", ["one", " ", "\ttwo "]),
        (b'say "hi" \\ \x01\n', ['say "hi" \\ \x01']),
        ("é — 日本\n".encode(), ["é — 日本"]),
        (b"a\rb\n", ["a\rb"]),
        (b"one\n\x00\x00\n\t \r\n\x1a", ["one", "\x00\x00", "\t ", "\x1a"]),
        (b"\x0b\n\x0c\n", ["\x0b", "\x0c"]),
    ],
)
def test_each_line_becomes_one_row_of_the_column(body, lines):
    assert _rows(body) == [{"LINE": line} for line in lines]


@pytest.mark.parametrize(
    "content", [b"one\n\x00\n", b"\x01", b"one\n\n\x02\r\n \t\n", b" \x03 \n\x0b", b"\r\r\na\n\r\n\r"]
)
def test_text_has_as_many_rows_as_are_counted(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    file = SourceFile("a.txt", str(path), len(content))

    blocks = list(
        LineReader(Text()).blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits())
    )

    sent = [json.loads(line)["LINE"] for block in blocks for line in bytes(block.body).splitlines()]
    lines = [line.decode().removesuffix("\r") for line in content.split(b"\n")]
    assert sent == [line for line in lines if line]
    assert sum(block.rows for block in blocks) == len(sent)


def test_other_encodings_are_refused_with_file_and_lines():
    with pytest.raises(EncodingError, match=r"'a\.log', lines 1 to 9: not UTF-8"):
        _rows("é\n".encode("latin-1"))


def test_partition_values_are_put_in_front_of_the_fields_of_each_object(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"a": 1}\r\n\n \t{ "b": "{\\"c\\"" }\n{}\n{ }\n[{"x": 1}]\n{"a":"day\xc3\xa9"}')
    file = SourceFile("a.ndjson", str(path), path.stat().st_size, (("day", 'a\\1"é'), ("n", None)))

    blocks = list(
        LineReader(Ndjson()).blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits())
    )

    added = {"day": 'a\\1"é', "n": None}
    assert [
        json.loads(line) for line in b"".join(block.body for block in blocks).splitlines() if line.strip()
    ] == [
        {**added, "a": 1},
        {**added, "b": '{"c"'},
        added,
        added,
        [{"x": 1}],
        {**added, "a": "dayé"},
    ]
    assert [(block.rows, block.last_line) for block in blocks] == [(5, 6), (1, 7)]


@pytest.mark.parametrize(
    "line",
    ['{"a": 1, "day": "2024-01-02"}', '{"DAY" : null}', '{"x": {"day": 1}, "d\\u0061y": 2}',
     '{"a": 1, "größe": 3}', '{"gr\\u00F6\\u00dfe": 3}'],
)  # fmt: skip
def test_a_record_with_a_partitions_column_of_its_own_is_refused(tmp_path, line):
    path = tmp_path / "a.ndjson"
    path.write_text(f'\n{{"x": {{"day": 1}}, "y": "day"}}\n{line}\n')
    file = SourceFile("a.ndjson", str(path), path.stat().st_size, (("day", "1"), ("Größe", "2")))

    with pytest.raises(EncodingError, match=r"line 3.*has a column '(day|DAY|größe)'.*as_columns"):
        list(LineReader(Ndjson()).blocks(file, after_line=0, offset=0, keep_tail=True, limits=BatchLimits()))
