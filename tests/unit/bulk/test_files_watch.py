"""Which files are waited for, one load of a file as each source reports it, and the wait, poll by poll."""

import datetime as dt
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOutcome
from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.ledger_entry import Entry
from airflow_provider_snowpipe.bulk.load_history import PolledLoads, timestamp
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
    number_of_files,
    possible_paths,
)
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.commits import RetryBudget, WaitState
from tests.refusals import refused

T0 = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def load(path, status="LOADED", minute=1, **changes):
    return FileLoad(path, "S", status, loaded_at=T0 + dt.timedelta(minutes=minute), **changes)


def watch(*names, since=T0, **options):
    expected = options.pop("expected", None) or ExpectedFiles(names)
    budget = options.pop("budget", RetryBudget(max_consecutive_errors=3))
    return FilesWatch(expected, since, Tolerance(**options), budget)


def test_complete_only_when_the_last_file_is_loaded():
    waiting = watch("a", "b")
    first = waiting.see(PolledLoads([load("a"), load("other")]), 0)
    second = waiting.see(PolledLoads([load("b", rows_loaded=3)]), 1)
    assert (first.state, str(first)) == (WaitState.WAITING, "1 of 2 files loaded; missing: 'b'")
    assert second.state is WaitState.COMPLETE
    assert list(second.results) == ["a", "b"]
    assert second.results["b"]["rows_loaded"] == 3


@pytest.mark.parametrize("status", ["LOAD_IN_PROGRESS", "LOAD_SKIPPED", "SOMETHING_NEW"])
def test_a_load_that_has_not_ended_reports_nothing(status):
    waiting = watch("a")
    assert waiting.see(PolledLoads([load("a", status)]), 0).state is WaitState.WAITING
    assert waiting.see(PolledLoads([load("a")]), 1).state is WaitState.COMPLETE
    assert waiting.see(PolledLoads([load("a", status, minute=5)]), 2).state is WaitState.COMPLETE


def test_the_newest_load_counts_and_none_before_the_timestamp():
    for order in (1, -1):
        loads = [load("a", "LOAD_FAILED", 1), load("a", "LOADED", 2)][::order]
        assert watch("a").see(PolledLoads(loads), 0).state is WaitState.COMPLETE
    waiting = watch("a", since=T0 + dt.timedelta(minutes=3))
    assert waiting.see(PolledLoads([load("a", "LOAD_FAILED", 2)]), 0).state is WaitState.WAITING
    assert waiting.see(PolledLoads([load("a", "LOADED", 4)]), 1).state is WaitState.COMPLETE


def test_a_failure_has_the_first_error():
    error = FirstError("Numeric value 'x'\n is not recognized.", 3, 5, '"T"["ID":1]')
    bad = load("b", "LOAD_FAILED", rows_parsed=7, first_error=error)
    verdict = watch("a", "b").see(PolledLoads([bad]), 0)
    assert (verdict.state, verdict.reason) == (WaitState.FAILED, FilesFailure.LOAD_FAILED)
    assert "1 of 2 files did not load: 'b' is LOAD_FAILED with 0 of 7 rows: Numeric value" in verdict.message
    assert '(line 3, character 5, column "T"["ID":1]). Fix the files' in verdict.message


def test_what_is_accepted_is_chosen():
    for tolerance, status, state in [
        ({}, "PARTIALLY_LOADED", WaitState.FAILED),
        ({"partial": "report"}, "PARTIALLY_LOADED", WaitState.COMPLETE),
        ({"partial": "report"}, "LOAD_FAILED", WaitState.FAILED),
        ({"failed": "report"}, "LOAD_FAILED", WaitState.COMPLETE),
        ({"failed": "report"}, "PARTIALLY_LOADED", WaitState.FAILED),
    ]:
        assert watch("a", **tolerance).see(PolledLoads([load("a", status)]), 0).state is state
    with pytest.raises(errors.ConfigurationError, match="on_partial is 'ignore'"):
        Tolerance(partial="ignore")


def test_the_end_of_the_time_names_what_is_missing():
    waiting = watch(*(f"f{number:02}" for number in range(13)))
    waiting.see(PolledLoads([load("f00")]), 0)
    verdict = waiting.expired(60)
    assert verdict.reason is FilesFailure.TIMEOUT
    assert "1 of 13 files loaded after 60 s; missing: 'f01', " in verdict.message
    assert "'f05' and 7 more. See whether" in verdict.message


def test_a_number_of_files_with_a_prefix():
    waiting = watch(expected=ExpectedFiles((), "p/", 2))
    assert waiting.see(PolledLoads([load("p/a"), load("p/a", minute=2)]), 0).state is WaitState.WAITING
    verdict = waiting.see(PolledLoads([load("p/b"), load("q/c")]), 1)
    assert (verdict.state, list(verdict.results)) == (WaitState.COMPLETE, ["p/a", "p/b"])


class TestErrors:
    OUTAGE = PolledLoads(error=errors.RetriesExhaustedError("overloaded"))

    def test_passing_ones_are_counted_in_a_row(self):
        waiting = watch("a")
        assert "poll failed (1 in a row): overloaded" in str(waiting.see(self.OUTAGE, 0))
        waiting.see(PolledLoads(), 1)
        assert [waiting.see(self.OUTAGE, at).state for at in (2, 3)] == [WaitState.WAITING] * 2
        verdict = waiting.see(PolledLoads(error=OSError("gone")), 4)
        assert verdict.reason is FilesFailure.TOO_MANY_ERRORS
        assert verdict.message == "3 polls in a row failed, the last: OSError: gone"

    def test_they_are_counted_at_the_waits_own_pace_and_by_another_process(self):
        budget = RetryBudget(max_consecutive_errors=2, interval=10)
        waiting, second = watch("a", budget=budget), watch("a", budget=budget)
        assert {waiting.see(self.OUTAGE, at).state for at in (0, 2, 4, 6)} == {WaitState.WAITING}
        second.recall(waiting.memory())
        assert second.see(self.OUTAGE, 9).reason is FilesFailure.TOO_MANY_ERRORS

    def test_others_end_the_wait_and_a_broken_network_for_sql_passes(self):
        for error, reason in {
            errors.ConfigurationError("no database"): FilesFailure.CONFIGURATION,
            errors.PipeNotFoundError("no pipe", http_status=404): FilesFailure.REFUSED,
            errors.SqlError("no network", errno=250_003): None,
        }.items():
            assert watch("a").see(PolledLoads(error=error), 0).reason is reason


def test_timestamps_are_read_as_templates_render_them():
    folded = dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    for given in (None, "", "None"):
        assert timestamp(given) is None
    for given in ("2026-03-01", "2026-03-01 01:00:00+01:00", T0.replace(tzinfo=None)):
        assert timestamp(given) == T0
    assert timestamp(folded) is folded
    with pytest.raises(errors.ConfigurationError, match="yesterday"):
        timestamp("yesterday")


def name_in(files, path, location):
    return next((name for name, _ in files.of([FileLoad(path, location, "LOADED")])), None)


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
            name = name_in(ExpectedFiles((files,)), path, location)
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
            found = name_in(expected, "in/a.csv", location) is not None
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
            assert name_in(expected, path, location) == found
            assert name_in(by_prefix, path, location) == (found if found == "in/a.csv" else None)

    def test_with_a_prefix_are_those_that_begin_so(self):
        files = ExpectedFiles((), "day1/", 2)
        for path, location in (("day1/a.csv", "S"), ("a.csv", "DB.S.STAGE/day1")):
            assert name_in(files, path, location) == "day1/a.csv"
        assert not any(name_in(files, one, "S") for one in ("day11/a.csv", "day1/"))  # the latter is a folder
        assert files.total == 2
        refused(errors.ConfigurationError, number_of_files, [0, "-1", None, "many"], "count is")


class TestStage:
    def test_is_named_in_full(self):
        for text, location, path in [
            ("@loads", '@"D"."S".loads/p', ""),
            ("LOADS/in/", '@"D"."S".LOADS/in/p', "in"),
            ('@"my.db".x."a ""b"""/in/deep', '@"my.db".x."a ""b"""/in/deep/p', "in/deep"),
            ("@s.%t/in", '@"D".s.%t/in/p', "in"),
            ("@~", "@~/p", ""),
        ]:
            reference = StageReference.parse(text, "D", "S")
            assert (reference.location("p"), reference.path) == (location, path)
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
        with pytest.raises(errors.ConfigurationError, match=r"files is \[\]"):
            file_names({}.keys(), may_be_none=True)

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


def outcome_of(*rows, stage=STAGE, url=None):
    return CopyOutcome(tuple(Entry("work", 1, 1, reports=(rows,)).loads(stage, url).values()))


class TestOutcome:
    def test_names_files_below_the_stage(self):
        outcome = outcome_of(row("a.csv"), row("b.csv", loaded="7"))
        assert [(load.path, load.rows_loaded) for load in outcome.loads] == [("in/a.csv", 2), ("in/b.csv", 7)]
        assert outcome.result()["rows_loaded"] == 9
        assert outcome_of({"status": "Copy executed with 0 files processed."}) == CopyOutcome()
        for url in ("s3://b/in", "s3://b/in/"):
            answered = {**row(""), "file": "s3://b/in/X/a.csv"}
            (load,) = outcome_of(answered, stage=StageReference.parse("@X"), url=url).loads
            assert (load.path, load.location) == ("X/a.csv", "X")

    def test_names_files_that_failed_with_their_first_error(self):
        failed = row("b.csv", "LOAD_FAILED", 0, 2, "bad")
        outcome = outcome_of(row("a.csv"), failed, row("c.csv", "PARTIALLY_LOADED", 1, 1, "x"))
        outcome.require("report", "T")
        words = r"2 of 3 files .*'in/b.csv' LOAD_FAILED, 0 of 2 rows, first error: bad \(line 3\); 'in/c.csv'"
        with pytest.raises(errors.FilesRejectedError, match=words) as raised:
            outcome.require("fail", "T")
        assert (raised.value.files, raised.value.rejected) == (("in/b.csv", "in/c.csv"), 3)
