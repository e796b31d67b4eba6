"""Which files are waited for, and which of them a load is of."""

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
from tests.refusals import refused


def load(path, location):
    return FileLoad(path, location, "LOADED")


def unlisted(_stage, _prefix):
    pytest.fail("listed")


class TestLoads:
    def test_location_and_path_together_name_the_file(self):
        for files, path, location, found in [
            ("a.csv", "a.csv", "DB.S.STAGE", True),
            ("in/a.csv", "a.csv", "DB.S.STAGE/in", True),
            ("X/XX.csv", "XX.csv", "DB.S.STAGE/X/", True),
            ("s3://bucket/root/in/a.csv", "/in/a.csv", "s3://bucket/root", True),
            ("in/a.csv", "a.csv", "DB.S.STAGE/out", False),
            ("in/a.csv", "a.csv", "DB.S.STAGE/begin", False),
            ("in/a.csv", "A.csv", "DB.S.STAGE/in", False),
            ("a.csv", "a.csv.gz", "DB.S.STAGE", False),
        ]:
            name = ExpectedFiles((files,)).name_of(load(path, location))
            assert (path, location, name) == (path, location, files if found else None)
            assert not found or path.lstrip("/") in possible_paths([files])
        assert possible_paths(["a/b.csv", "c/"]) == {"a/b.csv", "b.csv", "c/"}

    def test_whose_location_shows_another_stage_are_of_another_file(self):
        for stage, url, location, counts in [
            ("@DB.S.STAGE", None, "DB.S.STAGE/in/", True),
            ("@DB.S.STAGE", None, "DB.S.OTHER/in/", False),
            ("@STAGE", None, "DB.S2.STAGE/in/", True),
            ("@~", None, "DB.S.STAGE/in/", False),
            ("@DB.S.STAGE", None, "", True),
            ("@DB.S.STAGE", None, "s3://bucket/in/", False),
            ("@DB.S.STAGE", "s3://bucket/root/", "s3://bucket", True),
            ("@DB.S.STAGE", "s3://bucket/root", "s3://bucket/root2/in", False),
        ]:
            expected = ExpectedFiles(("in/a.csv",), None, 0, StageReference.parse(stage), url)
            found = expected.name_of(load("in/a.csv", location)) is not None
            assert (stage, url, location, found) == (stage, url, location, counts)

    def test_below_the_path_of_a_stage_are_of_files_there(self):
        stage = StageReference.parse("@DB.S.STAGE/in")
        expected = ExpectedFiles(("a.csv", "in/a.csv"), stage=stage)
        by_prefix = ExpectedFiles((), "in/", 1, stage)
        for path, location, found in [
            ("a.csv", "DB.S.STAGE/in/", "a.csv"),
            ("in/a.csv", "DB.S.STAGE/", "a.csv"),
            ("a.csv", "DB.S.STAGE/", None),
            ("in/a.csv", "DB.S.STAGE/in/", "in/a.csv"),
            ("a.csv", "DB.S.STAGE/in/in/", "in/a.csv"),
            ("a.csv", "stages/0a1b/", "a.csv"),
        ]:
            one = load(path, location)
            names = (expected.name_of(one), by_prefix.name_of(one))
            assert names == (found, found if found == "in/a.csv" else None)

    def test_with_a_prefix_are_those_that_begin_so(self):
        files = ExpectedFiles((), "day1/", 2)

        assert files.name_of(load("day1/a.csv", "S")) == "day1/a.csv"
        assert files.name_of(load("a.csv", "DB.S.STAGE/day1")) == "day1/a.csv"
        assert files.name_of(load("day11/a.csv", "S")) is None
        assert files.name_of(load("day1/", "S")) is None  # stands for the folder
        assert files.total == 2
        refused(ConfigurationError, lambda given: ExpectedFiles(*given), [(("a",), "b"), ((), "b", 0)])


class TestStage:
    def test_is_named_in_full(self):
        for text, location, path in [
            ("@loads", '@"D"."S".loads/p', ""),
            ("LOADS/in/", '@"D"."S".LOADS/in/p', "in"),
            ('@"my.db".x."a ""b"""/in/deep', '@"my.db".x."a ""b"""/in/deep/p', "in/deep"),
            ("@s.%t/in", '@"D".s.%t/in/p', "in"),
            ("@~", "@~/p", ""),
        ]:
            reference = StageReference.parse(text)
            assert (reference.location("p", database="D", schema="S"), reference.path) == (location, path)
        wrong = ["", "@", "@a b", "@a;drop table t", "@a.b.c.d", "s3://bucket", "@%", "@'x'"]
        refused(ConfigurationError, StageReference.parse, wrong, "stage is")

    def test_listed_names_become_paths_below_it(self):
        for stage, listed, path in [
            ("@db.s.LOADS/in", "loads/in/a.csv", "in/a.csv"),
            ("@%t/in", "in/a.csv", "in/a.csv"),
            ("@ext/in", "s3://b/x/in/a.csv", "s3://b/x/in/a.csv"),
        ]:
            assert StageReference.parse(stage).relative(listed) == path


class TestChoice:
    def test_files_are_a_list_or_its_text(self):
        for given, names in [
            (["a", "b", "a"], ["a", "b"]), (("a",), ["a"]), ('["a", "b"]', ["a", "b"]),
            ([["a"], [], ["b", "a"]], ["a", "b"]),
        ]:  # fmt: skip
            assert file_names(given) == names
        wrong = [[], "a.csv", {"a": 1}, '{"a": 1}', [1], [""], 5]
        refused(ConfigurationError, file_names, wrong, "files")
        # No instance of a mapped task has an XCom.
        assert file_names([], may_be_none=True) == file_names([[], []], may_be_none=True) == []
        refused(ConfigurationError, lambda one: file_names(one, may_be_none=True), [{}.keys()], "files is []")

    def test_arguments_that_do_not_go_together_are_refused(self):
        for options, text in [
            ({}, "one of the two"),
            ({"files": ["a"], "prefix": "b"}, "one of the two"),
            ({"files": ["a"], "count": 1}, "without prefix"),
            ({"prefix": "b"}, "stage="),
        ]:
            refused(ConfigurationError, lambda given: FileChoice(**given).check(), [options], text)

        def counted(count):
            FileChoice(prefix="a", count=count).expected(unlisted)

        refused(ConfigurationError, counted, [0, -1, "none"], "count is")

    def test_files_are_matched_without_a_listing(self):
        for options, files in [
            ({"files": ["a"]}, ExpectedFiles(("a",))),
            ({"files": ["a"], "stage": "@s/in"}, ExpectedFiles(("in/a",))),
            ({"prefix": "d", "count": "2"}, ExpectedFiles((), "d", 2)),
            ({"prefix": "d", "count": 2, "stage": "@s/in"}, ExpectedFiles((), "in/d", 2)),
        ]:
            choice = FileChoice(**options)
            choice.check()
            assert choice.expected(unlisted) == files

    def test_a_prefix_is_listed_once_and_below_the_stage_and_an_empty_listing_is_no_success(self):
        asked, choice = [], FileChoice(prefix="day1/", stage="@s/in")

        def listing(*given):
            asked.append(given)
            return ["in/day1/a", "in/day1/b"]

        assert choice.expected(listing) == ExpectedFiles(("in/day1/a", "in/day1/b"))
        assert asked == [("@s/in", "day1/")]
        with pytest.raises(NothingStagedError, match="'@s/in' begins with 'day1/'"):
            choice.expected(lambda _stage, _prefix: [])
