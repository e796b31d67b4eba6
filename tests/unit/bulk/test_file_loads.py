"""One load of one file, as reports, COPY_HISTORY and COPY itself report it, and what COPY answered."""

import datetime as dt
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOutcome
from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_HISTORY,
    COPY_RESULT,
    FINAL,
    PIPE_REPORT,
    FileLoad,
    FirstError,
    StageReference,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError

WHEN = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
HISTORY = {"file_name": "a", "stage_location": "S/", "status": "Loaded", "row_count": 2}
REPORT = {"path": "a", "stageLocation": "S/", "status": "LOADED", "rowsInserted": 2}
STAGE = StageReference.parse("@s/in")
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


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
        for complete, status in [(True, "LOADED"), (False, "LOAD_IN_PROGRESS")]:
            assert FileLoad.read({**REPORT, "complete": complete}, PIPE_REPORT).status == status

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
        with pytest.raises(FilesRejectedError, match=words) as raised:
            outcome.require("fail", "T")
        assert (raised.value.files, raised.value.rejected) == (("in/b.csv", "in/c.csv"), 3)
        with pytest.raises(ConfigurationError, match="on_rejected is 'ignore'"):
            outcome.require("ignore", "T")
        many = [row(f"{n}.csv", "LOAD_FAILED", 0, 1, "bad") for n in range(5)]
        with pytest.raises(FilesRejectedError, match="; and 2 more"):
            CopyOutcome.read(many, STAGE).require("fail", "T")
