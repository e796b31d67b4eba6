"""What ``SnowpipeLoadOperator`` makes of its arguments; its loads are tested against the local service."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.row_options import RowOptions
from airflow_provider_snowpipe.operators.file_loading import copied_value
from airflow_provider_snowpipe.spark.sources.files.spec import FileSourceSpec
from airflow_provider_snowpipe.spark.submit.copy_rows import copy_arguments, row_options, why_not_copy
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

BY_NAME = {"match_by_column_name": "CASE_INSENSITIVE"}


def spec(**values: Any) -> FileSourceSpec:
    return FileSourceSpec.from_mapping({"path": "/data", **values})


def test_copy_reads_files_as_the_stream_does() -> None:
    form = {"type": "csv", "column_names": ["ID"], "quote": "", "escape": "\\"}
    file_format = {
        "type": "CSV", "field_delimiter": ",", "escape": "\\", "escape_unenclosed_field": "\\",
        "empty_field_as_null": True, "null_if": [], "skip_blank_lines": True, "skip_header": 1,
    }  # fmt: skip
    assert copy_arguments(spec(format=form), {}) == {
        "columns": ["ID"],
        "options": {"file_format": file_format},
    }
    for source, kind in (({}, "JSON"), ({"format": "parquet"}, "PARQUET")):
        assert copy_arguments(spec(**source), {}) == {"options": {"file_format": {"type": kind}, **BY_NAME}}


@pytest.mark.parametrize(
    "source",
    [
        {"partitions": {"type": "key", "as_columns": True, "key": "day"}},
        {"format": {"type": "parquet", "columns": ["a"]}},
        {"format": {"type": "ndjson", "compression": "xz"}},
    ],
    ids=["partition-columns", "columns", "xz"],
)
def test_what_copy_cannot_do_is_left_to_the_stream(source: dict[str, Any]) -> None:
    assert why_not_copy(spec(**source)) is not None
    with pytest.raises(ConfigurationError, match="take path='stream'"):
        copy_arguments(spec(**source), {})


CSV_PIPE = (
    "FILE_FORMAT = (TYPE = CSV ESCAPE_UNENCLOSED_FIELD = NONE NULL_IF = ('a', 'b') SKIP_BLANK_LINES = TRUE "
    "FIELD_OPTIONALLY_ENCLOSED_BY = '\\x22' PARSE_HEADER = TRUE FIELD_DELIMITER = '\\t' "
    "EMPTY_FIELD_AS_NULL = FALSE"
)
CSV_SOURCE = {"format": {"type": "csv", "delimiter": "\t", "null_values": ["b", "a"]}}
MATCHED = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"


@pytest.mark.parametrize(
    ("source", "given", "differences", "doubts"),
    [
        ({}, {}, [], []),
        ({}, {"file_format": {"TYPE": "JSON", "compression": "GZIP"}}, ["COMPRESSION"], []),
        ({}, {"file_format": {"trim_space": "TRUE"}}, ["TRIM_SPACE"], ["no TYPE"]),
        (CSV_SOURCE, f"{CSV_PIPE}) {MATCHED}", [], []),
        (CSV_SOURCE, f"/* TYPE = ( */ {CSV_PIPE} ESCAPE = '\\\\') {MATCHED} -- (", ["ESCAPE"], []),
        ({}, f"PATTERN = 'FILE_FORMAT = (' {MATCHED}", [], ["no FILE_FORMAT"]),
    ],
)
def test_other_rows_are_found(
    source: dict[str, Any], given: Any, differences: list[str], doubts: list[str]
) -> None:
    files = spec(**source)
    if isinstance(given, str):
        judged = RowOptions.of_statement(f"""copy into t from '@"S"/FILE_FORMAT = (x' {given}""")
    else:
        judged = row_options(files, given)
    found = judged.differences(row_options(files, {}), {"NONE"})

    assert sorted(one.option for one in found) == sorted(differences)
    assert all(part in doubt for part, doubt in zip(doubts, judged.doubts(), strict=True))


@pytest.mark.parametrize(
    "source",
    [
        {}, {"format": "avro"}, {"format": {"type": "text", "compression": "gzip"}},
        {"format": {"type": "csv", "delimiter": "\\", "quote": "'", "null_values": ["\\N", "it's", ""]}},
        {"format": {"type": "csv", "delimiter": "\t", "escape": "\\", "column_names": ["a", 'B"(']}},
    ],
)  # fmt: skip
def test_statement_with_the_options_of_copy_makes_the_same_rows(source: dict[str, Any]) -> None:
    arguments = copy_arguments(spec(**source), {})
    options = CopyOptions.of(arguments["options"])
    copy = CopyInto(("D", "S", "T"), "@D.S.G/a (b)", options, arguments.get("columns"))
    judged = RowOptions.of_statement(copy.statement())

    assert judged.differences(row_options(spec(**source), {})) == []
    assert judged.doubts() == []


def test_what_an_interrupted_copy_has_loaded_counts_with_the_rest() -> None:
    one = {"rows_loaded": 2, "rejected": 1, "files": {"a": 1}, "loaded_before": {}}
    two = {"rows_loaded": 3, "rejected": 1, "files": {"b": 2}, "loaded_before": {"c": 3}}
    joined = {"rows_loaded": 5, "rejected": 2, "files": {"a": 1, "b": 2}, "loaded_before": {"c": 3}}

    assert copied_value(one, two) == joined
