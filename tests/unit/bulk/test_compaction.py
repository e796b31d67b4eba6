"""What files are by their names, whether to combine them, and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.run_files import CompactForm, CompactOptions, content_key
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

MB = 1_000_000


@pytest.mark.parametrize(
    ("names", "options", "form"),
    [
        (["a.ndjson", "b/c.jsonl.gz"], {}, CompactForm("ndjson", ".ndjson", False, True)),
        (["a.JSON"], {}, CompactForm("json", ".json", False, False)),
        (["a.csv", "b.csv.zst"], {"header": True}, CompactForm("csv", ".csv", True, False)),
        (["a.csv"], {"header": False, "newlines_in_values": False}, CompactForm("csv", ".csv", False, True)),
        (["a.log", "b.txt"], {}, CompactForm("text", ".text", False, True)),
        (["a.snappy.parquet"], {}, CompactForm("parquet", ".parquet", False, False)),
        (["part-0", "part-1"], {"kind": "ndjson"}, CompactForm("ndjson", ".ndjson", False, True)),
    ],
    ids=["ndjson", "json", "csv", "csv-cut", "text", "parquet", "explicit"],
)
def test_files_have_the_format_of_their_endings(names: list[str], options: Any, form: CompactForm) -> None:
    assert CompactOptions(**options).form_of(names) == form


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.ndjson", "part-0"], "ending of file 'part-0' does not show"),
        (["a.ndjson", "b.parquet"], "'a.ndjson' is ndjson and 'b.parquet' is parquet"),
        (["a.csv"], r"compact=\{'header': True\}"),
    ],
    ids=["unknown", "two-kinds", "header"],
)
def test_files_of_which_that_is_not_known_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        CompactOptions().form_of(names)


@pytest.mark.parametrize(
    "value", ["yes", 1, {"size": 5}, {"kind": "xml"}, {"target_file_bytes": 5}], ids=repr
)
def test_compaction_is_true_or_parameters(value: object) -> None:
    with pytest.raises(ConfigurationError):
        CompactOptions.of(value)
    assert CompactOptions.of(True) == CompactOptions()
    assert CompactOptions.of(False) is None


@pytest.mark.parametrize(
    ("files", "worth"),
    [
        ([("a.ndjson", 10 * MB)], False),
        ([("a.ndjson", 1 * MB), ("b.ndjson", 1 * MB)], True),
        ([("a.ndjson.gz", 300 * MB)], True),
        ([("a.ndjson", 600 * MB)] * 3, False),
        ([("a.ndjson", 4_000 * MB)], True),
    ],
    ids=["one", "two-small", "large-gzip", "right-as-they-are", "large"],
)
def test_files_that_have_the_right_size_are_left_alone(files: list[tuple[str, int]], worth: bool) -> None:
    form = CompactOptions().form_of([name for name, _ in files])

    assert form.is_worth_it(files, CompactOptions().target_file_bytes) is worth


def test_the_name_goes_by_the_content_and_by_how_it_is_combined() -> None:
    files = [("a", 1, "x"), ("b", 2, "y")]
    key = content_key(files, CompactOptions())

    assert content_key(files[::-1], CompactOptions()) == key
    assert content_key([("a", 1, "x"), ("b", 2, "z")], CompactOptions()) != key
    assert content_key(files, CompactOptions(target_file_bytes=MB)) != key
