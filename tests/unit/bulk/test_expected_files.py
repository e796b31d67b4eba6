"""Which files are waited for, and which of them a load is of."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.staged_files import (
    ExpectedFiles,
    FileChoice,
    FileLoad,
    StageReference,
    file_names,
    possible_paths,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError


def load(path: str, location: str) -> FileLoad:
    return FileLoad(path, location, "LOADED")


@pytest.mark.parametrize(
    ("files", "path", "location", "found"),
    [
        ("a.csv", "a.csv", "DB.S.STAGE", True),
        ("in/a.csv", "in/a.csv", "DB.S.STAGE/", True),
        ("in/a.csv", "a.csv", "DB.S.STAGE/in", True),
        ("X/XX.csv", "XX.csv", "DB.S.STAGE/X/", True),
        ("x/in/a.csv", "a.csv", "DB.S.STAGE/x/in/", True),
        ("s3://bucket/root/in/a.csv", "in/a.csv", "s3://bucket/root/", True),
        ("s3://bucket/root/in/a.csv", "/in/a.csv", "s3://bucket/root", True),
        ("a.csv", "in/a.csv", "DB.S.STAGE", False),
        ("in/a.csv", "a.csv", "DB.S.STAGE/out", False),
        ("in/a.csv", "a.csv", "DB.S.STAGE/begin", False),
        ("in/a.csv", "A.csv", "DB.S.STAGE/in", False),
        ("a.csv", "a.csv.gz", "DB.S.STAGE", False),
    ],
    ids=lambda value: str(value).replace("/", "_"),
)
def test_location_and_path_together_name_the_file(files: str, path: str, location: str, found: bool) -> None:
    name = ExpectedFiles((files,)).name_of(load(path, location))

    assert name == (files if found else None)
    if found:
        assert path.lstrip("/") in possible_paths([files])


@pytest.mark.parametrize(
    ("stage", "url", "location", "counts"),
    [
        ("@DB.S.STAGE", None, "DB.S.STAGE/in/", True),
        ("@DB.S.STAGE", None, "DB.S.OTHER/in/", False),
        ("@DB.S.STAGE", None, "DB.S2.STAGE/in/", False),
        ("@DB.S.STAGE", None, "DB2.S.STAGE/in/", False),
        ("@STAGE", None, "DB.S2.STAGE/in/", True),
        ("@S.STAGE", None, "DB.S2.STAGE/in/", True),
        ('@db."S"."stage"', None, "DB.S.stage/in/", True),
        ('@DB.S.%"a b"', None, "DB.S.%a b/in/", True),
        ("@~", None, "DB.S.STAGE/in/", False),
        ("@DB.S.STAGE", None, "stages/0a1b/in/", True),
        ("@DB.S.STAGE", None, "", True),
        ("@DB.S.STAGE", None, "s3://bucket/in/", False),
        ("@DB.S.STAGE", "s3://bucket/", "s3://bucket/in/", True),
        ("@DB.S.STAGE", "s3://bucket/root/", "s3://bucket", True),
        ("@DB.S.STAGE", "s3://bucket/root", "s3://bucket/root2/in", False),
        ("@DB.S.STAGE", "s3://bucket/", "s3://other/in/", False),
    ],
)
def test_a_load_whose_location_shows_another_stage_is_of_another_file(
    stage: str, url: str | None, location: str, counts: bool
) -> None:
    expected = ExpectedFiles(("in/a.csv",), None, 0, StageReference.parse(stage), url)

    assert (expected.name_of(load("in/a.csv", location)) is not None) is counts


@pytest.mark.parametrize(
    ("path", "location", "found"),
    [
        ("a.csv", "DB.S.STAGE/in/", "a.csv"),
        ("in/a.csv", "DB.S.STAGE/", "a.csv"),
        ("a.csv", "DB.S.STAGE/", None),
        ("in/a.csv", "DB.S.STAGE/in/", "in/a.csv"),
        ("a.csv", "DB.S.STAGE/in/in/", "in/a.csv"),
        ("a.csv", "DB.S.STAGE/other/in/", None),
        ("a.csv", "stages/0a1b/", "a.csv"),
    ],
)
def test_names_below_the_path_of_a_stage_are_those_of_files_there(
    path: str, location: str, found: str | None
) -> None:
    stage = StageReference.parse("@DB.S.STAGE/in")
    expected = ExpectedFiles(("a.csv", "in/a.csv"), stage=stage)

    assert expected.name_of(load(path, location)) == found
    by_prefix = ExpectedFiles(prefix="in/", count=1, stage=stage).name_of(load(path, location))
    assert by_prefix == (found if found == "in/a.csv" else None)


def test_file_may_be_known_by_each_end_of_its_path_that_is_one() -> None:
    assert possible_paths(["a/b.csv", "c/"]) == {"a/b.csv", "b.csv", "c/"}


def test_a_prefix_takes_whatever_begins_so() -> None:
    files = ExpectedFiles((), "day1/", 2)

    assert files.name_of(load("day1/a.csv", "S")) == "day1/a.csv"
    assert files.name_of(load("a.csv", "DB.S.STAGE/day1")) == "day1/a.csv"
    assert files.name_of(load("day11/a.csv", "S")) is None
    assert files.name_of(load("day1/", "S")) is None  # stands for the folder
    assert files.total == 2


@pytest.mark.parametrize(
    ("text", "location", "path"),
    [
        ("@loads", '@"D"."S".loads/p', ""),
        ("LOADS/in/", '@"D"."S".LOADS/in/p', "in"),
        ("@x.loads", '@"D".x.loads/p', ""),
        ('@"my.db".x."a ""b"""/in/deep', '@"my.db".x."a ""b"""/in/deep/p', "in/deep"),
        ("@%t", '@"D"."S".%t/p', ""),
        ("@s.%t/in", '@"D".s.%t/in/p', "in"),
        ("@~", "@~/p", ""),
        ("@~/in it", "@~/in it/p", "in it"),
    ],
)
def test_a_stage_is_named_in_full(text: str, location: str, path: str) -> None:
    reference = StageReference.parse(text)

    assert reference.location("p", database="D", schema="S") == location
    assert reference.path == path


@pytest.mark.parametrize(
    "text", ["", "@", "@a b", "@a;drop table t", "@a.b.c.d", "s3://bucket", "@%", "@'x'"]
)
def test_what_is_no_stage_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="stage is"):
        StageReference.parse(text)


def test_listed_names_become_paths_below_the_stage() -> None:
    assert StageReference.parse("@db.s.LOADS/in").relative("loads/in/a.csv") == "in/a.csv"
    assert StageReference.parse("@%t/in").relative("in/a.csv") == "in/a.csv"
    assert StageReference.parse("@~").relative("in/a.csv") == "in/a.csv"
    assert StageReference.parse("@ext/in").relative("s3://b/x/in/a.csv") == "s3://b/x/in/a.csv"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["a", "b", "a"], ["a", "b"]),
        (("a",), ["a"]),
        ('["a", "b"]', ["a", "b"]),
        ([["a"], [], ["b", "a"]], ["a", "b"]),
    ],
    ids=["list", "tuple", "json", "mapped"],
)
def test_files_are_a_list_or_its_text(given: Any, names: list[str]) -> None:
    assert file_names(given) == names


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "files is \\[\\]"),
        ("a.csv", "no JSON list"),
        ({"a": 1}, "give a list of paths"),
        ('{"a": 1}', "give a list of paths"),
        ([1], "has the entry 1"),
        ([""], "has the entry ''"),
        (5, "files is 5"),
    ],
    ids=["empty", "path", "mapping", "object", "number", "blank", "scalar"],
)
def test_other_files_are_refused(given: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        file_names(given)


def test_no_file_is_an_empty_list_and_no_xcom_that_no_instance_of_a_mapped_task_has() -> None:
    assert file_names([], may_be_none=True) == file_names([[], []], may_be_none=True) == []
    with pytest.raises(ConfigurationError, match=r"files is \[\]"):
        file_names({}.keys(), may_be_none=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give one of the two"),
        ({"files": ["a"], "prefix": "b"}, "give one of the two"),
        ({"files": ["a"], "count": 1}, "without prefix"),
        ({"prefix": "b"}, "give stage=… , |give stage=…, where"),
    ],
    ids=["nothing", "both", "count-of-files", "prefix-alone"],
)
def test_arguments_that_do_not_go_together_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        FileChoice(**options).check()


@pytest.mark.parametrize("arguments", [(("a",), "b"), ((), "b", 0)])
def test_expected_are_names_or_some_number_with_a_prefix(arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        ExpectedFiles(*arguments)
    assert ExpectedFiles((), "b", 1).count == 1


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"files": ["a"]}, ExpectedFiles(("a",))),
        ({"files": []}, ExpectedFiles(())),
        ({"files": ["a"], "stage": "@s/in"}, ExpectedFiles(("in/a",))),
        ({"prefix": "d", "count": "2"}, ExpectedFiles((), "d", 2)),
        ({"prefix": "", "count": 2}, ExpectedFiles((), "", 2)),
        ({"prefix": "d", "count": 2, "stage": "@s/in"}, ExpectedFiles((), "in/d", 2)),
    ],
)
def test_files_are_matched_without_a_listing(options: dict[str, Any], files: ExpectedFiles) -> None:
    choice = FileChoice(**options)

    choice.check()
    assert choice.expected(lambda _stage, _prefix: pytest.fail("listed")) == files


@pytest.mark.parametrize("count", [0, -1, "none"])
def test_a_count_is_a_number_of_files(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="count is"):
        FileChoice(prefix="a", count=count).expected(lambda _stage, _prefix: [])


def test_a_prefix_is_listed_once_and_below_the_stage() -> None:
    asked: list[tuple[str, str]] = []

    def listing(stage: str, prefix: str) -> list[str]:
        asked.append((stage, prefix))
        return ["in/day1/a", "in/day1/b"]

    files = FileChoice(prefix="day1/", stage="@s/in").expected(listing)

    assert files == ExpectedFiles(("in/day1/a", "in/day1/b"))
    assert asked == [("@s/in", "day1/")]


def test_an_empty_listing_is_no_success() -> None:
    with pytest.raises(NothingStagedError, match=r"no file of stage '@s' begins with 'day1/'"):
        FileChoice(prefix="day1/", stage="@s").expected(lambda _stage, _prefix: [])
