"""What ``SnowpipeLoadOperator`` makes of its arguments; its loads are tested against the local service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.file_copy import copy_arguments, why_not_copy
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.load_outcome import copied_value, outcome_of
from airflow_provider_snowpipe.spark.files.spec import FileSourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "load-by-router.md"
BY_NAME = {"match_by_column_name": "CASE_INSENSITIVE"}


def spec(**values: Any) -> FileSourceSpec:
    return FileSourceSpec.from_mapping({"path": "/data", **values})


def test_the_task_of_the_how_to_page_can_be_made() -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102  a page of this repository

    assert isinstance(names["load"], SnowpipeLoadOperator)
    assert names["load"].source_files() == spec(path="/data/events")


def test_a_topic_whose_brokers_a_connection_names_is_no_file() -> None:
    source = {"kind": "kafka", "topics": ["t"]}

    assert SnowpipeLoadOperator(task_id="load", source=source, table="T").source_files() is None


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ({}, {"options": {"file_format": {"type": "JSON"}, **BY_NAME}}),
        ({"format": "parquet"}, {"options": {"file_format": {"type": "PARQUET"}, **BY_NAME}}),
        (
            {"format": "csv", "delimiter": ";", "null_values": ["NA"]},
            {
                "options": {
                    "file_format": {
                        "type": "CSV",
                        "field_delimiter": ";",
                        "field_optionally_enclosed_by": '"',
                        "escape_unenclosed_field": None,
                        "empty_field_as_null": False,
                        "null_if": ["NA"],
                        "skip_blank_lines": True,
                        "parse_header": True,
                    },
                    **BY_NAME,
                }
            },
        ),
        (
            {"format": "csv", "column_names": ["ID"], "quote": "", "escape": "\\"},
            {
                "columns": ["ID"],
                "options": {
                    "file_format": {
                        "type": "CSV", "field_delimiter": ",", "escape": "\\",
                        "escape_unenclosed_field": "\\", "empty_field_as_null": True, "null_if": [],
                        "skip_blank_lines": True, "skip_header": 1,
                    },
                },
            },
        ),
    ],
    ids=["ndjson", "parquet", "csv-header", "csv-names"],
)  # fmt: skip
def test_copy_reads_files_as_the_stream_does(source: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert copy_arguments(spec(**source), {}) == arguments


def test_the_authors_options_go_before() -> None:
    found = copy_arguments(spec(), {"file_format": "F", "on_error": "CONTINUE"})

    assert found == {"options": {"file_format": "F", **BY_NAME, "on_error": "CONTINUE"}}


@pytest.mark.parametrize("option", ["force", "purge", "size_limit", "return_failed_only", "pattern"])
def test_options_that_would_break_the_order_of_files_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"options has {option}="):
        copy_arguments(spec(), {option: 1})


@pytest.mark.parametrize(
    "source",
    [
        {"partition_columns": True, "group_by": "partition", "partition_key": "day"},
        {"format": "parquet", "columns": ["a"]},
        {"compression": "xz"},
    ],
    ids=["partition-columns", "columns", "xz"],
)
def test_what_copy_cannot_do_is_left_to_the_stream(source: dict[str, Any]) -> None:
    assert why_not_copy(spec(**source)) is not None
    with pytest.raises(ConfigurationError, match="take path='stream'"):
        copy_arguments(spec(**source), {})


def test_the_outcome_has_the_estimate_of_the_path_that_was_taken() -> None:
    plan = {
        "path": "copy",
        "expected": {"rows": 10, "bytes": 1640},
        "estimates": [
            {"path": "copy", "seconds": 3, "credits": 1},
            {"path": "stream", "seconds": 9, "credits": 2},
        ],
    }
    actual = {"rows": 11, "bytes": 1500, "seconds": 8.5}

    assert outcome_of(plan, "stream", actual) == {
        "path": "stream",
        "planned": "copy",
        "estimated": {"rows": 10, "bytes": 1640, "seconds": 9, "credits": 2},
        "actual": actual,
        "loads": [],
    }
    assert outcome_of(None, "stream", actual)["estimated"] == {}


def test_what_an_interrupted_copy_has_loaded_counts_with_the_rest() -> None:
    one = {"rows_loaded": 2, "rejected": 1, "files": {"a": {}}, "loaded_before": {}}
    two = {"rows_loaded": 3, "rejected": 0, "files": {"b": {}}, "loaded_before": {"c": {}}}

    assert copied_value(one, two) == {
        "rows_loaded": 5,
        "rejected": 1,
        "files": {"a": {}, "b": {}},
        "loaded_before": {"c": {}},
    }
