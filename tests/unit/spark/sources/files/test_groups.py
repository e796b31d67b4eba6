import os

import pytest

from airflow_provider_snowpipe.spark.sources.files.spec import ByKey, ByName, FileSourceSpec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.source_log import taken


def _make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")


def freeze(spec):
    return tuple(one.group for one in taken(spec, "account/pipe").values())


def _names(groups):
    return {group.partition: [file.name for file in group.files] for group in groups}


def test_each_directory_is_a_partition_with_its_files_in_name_order(tmp_path):
    _make(tmp_path, "b/2.ndjson", "b/1.ndjson", "a/1.ndjson", "a/readme.txt", "empty/readme.txt")

    groups = freeze(FileSourceSpec(str(tmp_path)))

    assert _names(groups) == {"a": ["1.ndjson"], "b": ["1.ndjson", "2.ndjson"]}
    assert [group.partition for group in groups] == ["a", "b"]


def test_names_can_determine_the_partition(tmp_path):
    _make(tmp_path, "ewr_01.log", "ewr_02.log", "jfk_01.log")

    spec = FileSourceSpec(
        str(tmp_path), pattern="*.log", partitions=ByName(regex=r"(?P<partition>[a-z]+)_\d+\.log")
    )

    assert _names(freeze(spec)) == {"ewr": ["ewr_01.log", "ewr_02.log"], "jfk": ["jfk_01.log"]}


def test_name_without_a_partition_is_refused(tmp_path):
    _make(tmp_path, "ewr_01.log", "stray.log")
    spec = FileSourceSpec(
        str(tmp_path), pattern="*.log", partitions=ByName(regex=r"(?P<partition>[a-z]+)_\d+\.log")
    )

    with pytest.raises(ConfigurationError, match=r"'stray\.log'"):
        freeze(spec)


def test_size_is_that_of_the_listing(tmp_path):
    _make(tmp_path, "a/1.ndjson")
    (group,) = freeze(FileSourceSpec(str(tmp_path)))
    with (tmp_path / "a/1.ndjson").open("a") as file:
        file.write("{}\n")

    assert group.files[0].size == 3


@pytest.mark.parametrize("files", [["a/1.txt"], []], ids=["others", "none"])
def test_directory_without_a_matching_file_is_nothing_to_load_and_named_in_the_log(tmp_path, caplog, files):
    _make(tmp_path, *files)
    assert freeze(FileSourceSpec(str(tmp_path))) == ()
    assert f"{str(tmp_path)!r}" in caplog.text
    assert "'*.ndjson'" in caplog.text


def test_files_beside_the_group_directories_are_not_left_out_silently(tmp_path):
    _make(tmp_path, "a/1.ndjson", "stray.ndjson")
    with pytest.raises(ConfigurationError, match=r"'stray\.ndjson' lie outside"):
        freeze(FileSourceSpec(str(tmp_path)))


def test_numbers_in_names_are_ordered_as_numbers(tmp_path):
    _make(tmp_path, "a/log_9.ndjson", "a/log_10.ndjson", "a/log_1.ndjson")

    assert _names(freeze(FileSourceSpec(str(tmp_path)))) == {
        "a": ["log_1.ndjson", "log_9.ndjson", "log_10.ndjson"]
    }


@pytest.mark.parametrize("name", ["line\nbreak", "tab\t"])
def test_name_that_no_token_can_carry_is_refused(tmp_path, name):
    _make(tmp_path, f"a/{name}.ndjson")

    with pytest.raises(ConfigurationError, match="cannot be part of an offset token"):
        freeze(FileSourceSpec(str(tmp_path)))


def test_directory_whose_name_no_channel_can_have_is_refused(tmp_path):
    _make(tmp_path, os.fsdecode(b"\xff/1.ndjson"))

    with pytest.raises(ConfigurationError, match=r"partition '\\udcff'.*no UTF-8 text"):
        freeze(FileSourceSpec(str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {"a": ["1.ndjson", "_2.ndjson"]}),
        ({"pattern": "**/*.ndjson"}, {"a": ["1.ndjson", "_2.ndjson"]}),
        ({"pattern": ".*.ndjson"}, {"a": [".1.ndjson"]}),
        ({"partitions": "all", "pattern": "a/*"}, {"all": ["a/1.ndjson", "a/_2.ndjson"]}),
    ],
)
def test_hidden_files_and_directories_match_only_patterns_that_name_them(tmp_path, options, left):
    _make(
        tmp_path, "a/1.ndjson", "a/_2.ndjson", "a/.1.ndjson", "a/.snapshot/1.ndjson", ".checkpoints/1.ndjson"
    )

    assert _names(freeze(FileSourceSpec(str(tmp_path), **options))) == left


BY_DAY = {"format": "parquet", "partitions": {"type": "key", "key": "day"}}


def test_partition_values_in_paths_can_determine_the_partition(tmp_path):
    _make(
        tmp_path,
        "region=eu/day=2024-01-01/a.parquet",
        "region=us/day=2024-01-01/a.parquet",
        "region=eu/day=2024-01-02/x/a.parquet",
        "_temporary/day=2024-01-03/a.parquet",
        "region=eu/day=2024-01-03/.a.parquet",
        "region=eu/day=__HIVE_DEFAULT_PARTITION__/a.parquet",
    )

    groups = freeze(FileSourceSpec(str(tmp_path), **BY_DAY))

    assert _names(groups) == {
        "2024-01-01": ["region=eu/day=2024-01-01/a.parquet", "region=us/day=2024-01-01/a.parquet"],
        "2024-01-02": ["region=eu/day=2024-01-02/x/a.parquet"],
        "__HIVE_DEFAULT_PARTITION__": ["region=eu/day=__HIVE_DEFAULT_PARTITION__/a.parquet"],
    }
    assert {file.values for group in groups for file in group.files} == {()}


def test_partition_values_are_decoded_for_columns(tmp_path):
    _make(tmp_path, "at=10%3A30/day=__HIVE_DEFAULT_PARTITION__/a.parquet")

    by_day = ByKey("day", as_columns=True)
    (group,) = freeze(FileSourceSpec(str(tmp_path), format="parquet", partitions=by_day))

    assert group.files[0].values == (("at", "10:30"), ("day", None))


def test_file_without_the_partition_key_is_refused(tmp_path):
    _make(tmp_path, "day=1/a.parquet", "hour=1/a.parquet")

    with pytest.raises(ConfigurationError, match=r"'hour=1/a\.parquet'.*in no directory day=<value>"):
        freeze(FileSourceSpec(str(tmp_path), **BY_DAY))


def test_files_of_one_directory_can_be_one_partition(tmp_path):
    _make(tmp_path, "b.ndjson", "a.ndjson", "x/c.ndjson")

    assert _names(freeze(FileSourceSpec(str(tmp_path), partitions="all"))) == {
        "all": ["a.ndjson", "b.ndjson"]
    }
    assert freeze(FileSourceSpec(str(tmp_path), partitions="all", format="csv")) == ()
