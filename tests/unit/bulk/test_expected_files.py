"""Which files are waited for, and one load of one file as reports, COPY_HISTORY and COPY report it."""

import datetime as dt
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOutcome
from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_HISTORY,
    COPY_RESULT,
    FINAL,
    PIPE_REPORT,
    ExpectedFiles,
    FileChoice,
    FileLoad,
    FirstError,
    StageReference,
    file_names,
    possible_paths,
)
from airflow_provider_snowpipe.streaming import errors
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
            ("@%T", None, 'DB.S."%T"/in/', True),
            ("@%T", None, "DB.S.T/in/", False),
            ("@S", None, 'DB.S."s"/in/', False),
            ('@"a""b"', None, 'DB.S.a"b/in/', True),
            ('@"a""b"', None, 'DB.S."ab"/in/', False),
            ("@S", None, "stages/0a1b/in/", True),
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
        refused(errors.ConfigurationError, lambda given: ExpectedFiles(*given), [(("a",), "b"), ((), "b", 0)])


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
        refused(errors.ConfigurationError, StageReference.parse, wrong, "stage is")

        assert StageReference.parse("@db.s.LOADS/in").relative("loads/in/a.csv") == "in/a.csv"
        assert StageReference.parse("@%t/in").relative("in/a.csv") == "in/a.csv"
        url = "s3://b/x/in/a.csv"
        assert StageReference.parse("@ext/in").relative(url) == url


class TestChoice:
    def test_files_are_a_list_or_its_text(self):
        for given, names in [
            (["a", "b", "a"], ["a", "b"]), (("a",), ["a"]), ('["a", "b"]', ["a", "b"]),
            ([["a"], [], ["b", "a"]], ["a", "b"]),
        ]:  # fmt: skip
            assert file_names(given) == names
        wrong = [[], "a.csv", {"a": 1}, '{"a": 1}', [1], [""], 5]
        refused(errors.ConfigurationError, file_names, wrong, "files")
        # No instance of a mapped task has an XCom.
        assert file_names([], may_be_none=True) == file_names([[], []], may_be_none=True) == []
        refused(
            errors.ConfigurationError,
            lambda one: file_names(one, may_be_none=True),
            [{}.keys()],
            "files is []",
        )

    def test_arguments_that_do_not_go_together_are_refused(self):
        for options, text in [
            ({}, "one of the two"),
            ({"files": ["a"], "prefix": "b"}, "one of the two"),
            ({"files": ["a"], "count": 1}, "without prefix"),
            ({"prefix": "b"}, "stage="),
        ]:
            refused(errors.ConfigurationError, lambda given: FileChoice(**given).check(), [options], text)

        def counted(count):
            FileChoice(prefix="a", count=count).expected(unlisted)

        refused(errors.ConfigurationError, counted, [0, -1, "none"], "count is")

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
        with pytest.raises(errors.NothingStagedError, match="'@s/in' begins with 'day1/'"):
            choice.expected(lambda _stage, _prefix: [])


WHEN = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
HISTORY = {"file_name": "a", "stage_location": "S/", "status": "Loaded", "row_count": 2}
REPORT = {"path": "a", "stageLocation": "S/", "status": "LOADED", "rowsInserted": 2}
STAGE = StageReference.parse("@s/in")


class TestLoad:
    def test_every_status_has_one_name(self):
        for reported, status, is_final in [
            ("Loaded", "LOADED", True),
            ("Load failed", "LOAD_FAILED", True),
            ("Load in progress", "LOAD_IN_PROGRESS", False),
            ("Load skipped", "LOAD_SKIPPED", False),
            (None, "", False),
        ]:
            load = FileLoad.read({**HISTORY, "status": reported}, COPY_HISTORY)
            assert (load.status, load.status in FINAL) == (status, is_final)
        assert FileLoad.read({**REPORT, "complete": False}, PIPE_REPORT).status == "LOAD_IN_PROGRESS"

    def test_without_the_name_of_a_pipe_is_copys_own(self):
        keys = ("pipe_catalog_name", "pipe_schema_name", "pipe_name")
        for names, pipe in {
            ("DB", "S", "P"): "DB.S.P", (None, None, "P"): "P", ("DB", "S", None): None, (None,) * 3: None
        }.items():  # fmt: skip
            row = {**HISTORY, **dict(zip(keys, names, strict=True))}
            assert FileLoad.read(row, COPY_HISTORY).pipe == pipe

    def test_a_time_without_a_zone_is_in_utc(self):
        for reported, loaded_at in [
            *((at, WHEN) for at in (WHEN, WHEN.replace(tzinfo=None), WHEN.isoformat())),
            (WHEN.astimezone(dt.timezone(dt.timedelta(hours=5))), WHEN),
            ("", None),
            (None, None),
        ]:
            load = FileLoad.read({**HISTORY, "last_load_time": reported}, COPY_HISTORY)
            assert load.loaded_at == loaded_at

    def test_history_report_and_result_describe_the_same_load_alike(self):
        column, text = '"T"["ID":1]', "no\n number"
        history = {
            **HISTORY, "status": "Partially loaded", "row_parsed": "3", "error_count": 1,
            "first_error_message": text, "first_error_line_number": "2", "first_error_character_pos": 7,
            "first_error_column_name": column, "last_load_time": WHEN,
        }  # fmt: skip
        report = {
            **REPORT, "status": "PARTIALLY_LOADED", "rowsParsed": 3, "errorsSeen": 1, "firstError": text,
            "firstErrorLineNum": 2, "firstErrorCharacterPos": 7, "firstErrorColumnName": column,
            "lastInsertTime": WHEN.isoformat(),
        }  # fmt: skip
        result = {
            "file": "a", "status": "PARTIALLY_LOADED", "rows_loaded": "2", "rows_parsed": "3",
            "errors_seen": "1", "first_error": text, "first_error_line": 2, "first_error_character": 7,
            "first_error_column_name": column,
        }  # fmt: skip
        load = FileLoad.read(history, COPY_HISTORY)

        assert load == FileLoad.read(report, PIPE_REPORT)
        assert replace(load, location="", loaded_at=None) == FileLoad.read(result, COPY_RESULT)
        assert (load.rows_loaded, load.rows_parsed, load.errors_seen) == (2, 3, 1)
        assert str(load.first_error) == 'no number (line 2, character 7, column "T"["ID":1])'
        row = {"file": "s/a", "status": "LOADED", "rows_loaded": "2", "rows_parsed": "2", "errors_seen": None}
        assert FileLoad.read(row, COPY_RESULT) == FileLoad("s/a", "", "LOADED", 2, 2, 0)

    def test_first_error_may_lack_its_position_and_the_systems_stands_for_the_files(self):
        row = {"file_name": "a", "status": "Load failed", "first_error_message": "bad"}

        assert FileLoad.read(row, COPY_HISTORY).first_error == FirstError("bad")
        assert str(FirstError("a", 1, None, "C")) == "a (line 1, column C)"
        assert str(FileLoad.read({**REPORT, "systemError": "broken"}, PIPE_REPORT).first_error) == "broken"
        load = FileLoad("a", "", "PARTIALLY_LOADED", 1, 2, 1, FirstError("no", 1, 2, "C"))
        assert FileLoad.from_result("a", load.result()) == load


def row(file, status="LOADED", loaded=2, errors=0, first=None):
    return {
        "file": f"s/in/{file}", "status": status, "rows_parsed": 2, "rows_loaded": loaded,
        "errors_seen": errors, "first_error": first, "first_error_line": 3 if first else None,
        "first_error_character": None, "first_error_column_name": None,
    }  # fmt: skip


class TestOutcome:
    def test_names_files_below_the_stage(self):
        outcome = CopyOutcome.read([row("a.csv"), row("b.csv", loaded="7")], STAGE)

        assert [(load.path, load.rows_loaded) for load in outcome.loads] == [("in/a.csv", 2), ("in/b.csv", 7)]
        assert outcome.result()["rows_loaded"] == 9
        nothing = [{"status": "Copy executed with 0 files processed."}]
        assert CopyOutcome.read(nothing, STAGE) == CopyOutcome()
        for url in ("s3://b/in", "s3://b/in/"):
            answered = [{**row(""), "file": "s3://b/in/X/a.csv"}]
            (load,) = CopyOutcome.read(answered, StageReference.parse("@X"), url).loads
            assert (load.path, load.location) == ("X/a.csv", "X")

    def test_names_files_that_failed_with_their_first_error(self):
        failed = row("b.csv", "LOAD_FAILED", 0, 2, "bad")
        outcome = CopyOutcome.read([row("a.csv"), failed, row("c.csv", "PARTIALLY_LOADED", 1, 1, "x")], STAGE)

        outcome.require("report", "T")
        words = r"2 of 3 files .*'in/b.csv' LOAD_FAILED, 0 of 2 rows, first error: bad \(line 3\); 'in/c.csv'"
        with pytest.raises(errors.FilesRejectedError, match=words) as raised:
            outcome.require("fail", "T")
        assert (raised.value.files, raised.value.rejected) == (("in/b.csv", "in/c.csv"), 3)
        with pytest.raises(errors.ConfigurationError, match="on_rejected is 'ignore'"):
            outcome.require("ignore", "T")
