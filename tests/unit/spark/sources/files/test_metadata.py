"""Columns that show where rows are from, in every format."""

import json

import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.metadata import with_metadata
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.file_formats import numbered_rows, write_file
from tests.source_log import taken

COLUMNS = {"SRC": "filename", "ROW": "file_row_number", "AT": "file_last_modified", "U": "unit"}


def rows_of(path, **options):
    (partition,) = taken(FileSourceSpec(str(path), metadata=COLUMNS, **options), "account/pipe").values()
    for part in partition.read(partition.resume(None), BatchLimits(rows=3)):
        yield from (json.loads(line) for line in bytes(part.body).splitlines() if line.strip())


@pytest.mark.parametrize("ending", ["ndjson", "csv", "parquet", "orc", "avro"])
def test_each_row_has_its_file_and_its_number(tmp_path, ending):
    (tmp_path / "eu").mkdir()
    write_file(tmp_path / "eu" / f"a.{ending}", numbered_rows("x", range(10)))

    found = list(rows_of(tmp_path, format=ending, pattern=f"*.{ending}"))

    assert [(one["SRC"], one["ROW"], one["U"]) for one in found] == [
        (f"eu/a.{ending}", row, 1) for row in range(1, 11)
    ]
    assert [int(one["ID"]) for one in found] == list(range(10))
    assert found[0]["AT"].startswith("20")


def test_blank_lines_count_as_lines_and_get_nothing(tmp_path):
    for name, format_name, text in (
        ("t", "text", "a\n\nb\n"),
        ("n", "ndjson", '{"ID": 1}\n \n\t{"ID": 2}\n\n{ }\n[1]\n'),
    ):
        (tmp_path / name / "p").mkdir(parents=True)
        (tmp_path / name / "p" / "a.x").write_text(text)
        rows = list(rows_of(tmp_path / name, format=format_name, pattern="*.x"))
        assert [one["ROW"] for one in rows if isinstance(one, dict)] == [1, 3] + ([5] if name == "n" else [])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": 1}\n', b'{"S": "x","N": 7,"a": 1}\n'),
        (b"{}", b'{"S": "x","N": 7 }'),
        (b'  { "a": 1}\nbad\n', b'  {"S": "x","N": 6, "a": 1}\nbad\n'),
        (
            b'{"a":1}\n' * 2 + b" \n{            }\n",
            b'{"S": "x","N": 5,"a":1}\n{"S": "x","N": 6,"a":1}\n \n{"S": "x","N": 7             }\n',
        ),
        (b"\xff\n", b"\xff\n"),
        (b"", b""),
    ],
)
def test_columns_stand_in_front_of_the_keys_of_objects(body, expected):
    rows = sum(map(bool, map(bytes.strip, body.splitlines())))
    assert bytes(with_metadata(RowBlock(body, 1, 7, rows), {"S": "x"}, "N")) == expected


def test_numbers_have_all_their_digits():
    body = b"{}\n" * 1100
    found = with_metadata(RowBlock(body, 1, 10_050, 1100), {}, "N")
    assert [json.loads(one)["N"] for one in bytes(found).splitlines()] == list(range(8_951, 10_051))
    assert bytes(with_metadata(RowBlock(b'{"a":1}\n', 1, 1, 1), {}, None)) == b'{"a":1}\n'


def test_value_that_there_is_not_is_refused():
    with pytest.raises(ConfigurationError, match="filename"):
        FileSourceSpec("/in", metadata={"SRC": "name"})
