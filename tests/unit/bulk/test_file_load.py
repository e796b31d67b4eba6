"""One load of one file, as reports, COPY_HISTORY and COPY itself report it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.staged_files import (
    COPY_HISTORY,
    COPY_RESULT,
    FINAL,
    PIPE_REPORT,
    FileLoad,
    FirstError,
)

WHEN = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
HISTORY: dict[str, Any] = {"file_name": "a", "stage_location": "S/", "status": "Loaded", "row_count": 2}
REPORT: dict[str, Any] = {"path": "a", "stageLocation": "S/", "status": "LOADED", "rowsInserted": 2}


@pytest.mark.parametrize(
    ("reported", "status", "is_final"),
    [
        ("Loaded", "LOADED", True),
        ("Partially loaded", "PARTIALLY_LOADED", True),
        ("Load failed", "LOAD_FAILED", True),
        ("Load in progress", "LOAD_IN_PROGRESS", False),
        ("Load skipped", "LOAD_SKIPPED", False),
        (None, "", False),
    ],
)
def test_every_status_of_history_has_one_name(reported: str | None, status: str, is_final: bool) -> None:
    load = FileLoad.read({**HISTORY, "status": reported}, COPY_HISTORY)
    assert (load.status, load.status in FINAL) == (status, is_final)


@pytest.mark.parametrize(("complete", "status"), [(True, "LOADED"), (False, "LOAD_IN_PROGRESS")])
def test_a_load_that_a_report_calls_incomplete_has_not_ended(complete: bool, status: str) -> None:
    assert FileLoad.read({**REPORT, "complete": complete}, PIPE_REPORT).status == status


@pytest.mark.parametrize(
    ("names", "pipe"),
    [(("DB", "S", "P"), "DB.S.P"), ((None, None, "P"), "P"), (("DB", "S", None), None), ((None,) * 3, None)],
)
def test_a_load_without_the_name_of_a_pipe_is_copys_own(
    names: tuple[str | None, str | None, str | None], pipe: str | None
) -> None:
    keys = ("pipe_catalog_name", "pipe_schema_name", "pipe_name")
    assert FileLoad.read({**HISTORY, **dict(zip(keys, names, strict=True))}, COPY_HISTORY).pipe == pipe


@pytest.mark.parametrize(
    ("reported", "loaded_at"),
    [
        (WHEN, WHEN),
        (WHEN.replace(tzinfo=None), WHEN),
        (WHEN.isoformat(), WHEN),
        (WHEN.astimezone(dt.timezone(dt.timedelta(hours=5))), WHEN),
        ("2026-01-02T03:04:00", WHEN),
        ("", None),
        (None, None),
    ],
    ids=["aware", "naive", "text", "elsewhere", "naive-text", "empty", "none"],
)
def test_a_time_without_a_zone_is_in_utc(reported: object, loaded_at: dt.datetime | None) -> None:
    assert FileLoad.read({**HISTORY, "last_load_time": reported}, COPY_HISTORY).loaded_at == loaded_at


def test_history_without_location_and_position_of_an_error_leaves_them_out() -> None:
    load = FileLoad.read(
        {"file_name": "a", "status": "Load failed", "first_error_message": "bad"}, COPY_HISTORY
    )

    assert (load.location, load.first_error) == ("", FirstError("bad"))


def test_history_and_report_describe_the_same_load_alike() -> None:
    history = {
        **HISTORY,
        "status": "Partially loaded",
        "row_parsed": "3",
        "error_count": 1,
        "first_error_message": "no\n number",
        "first_error_line_number": "2",
        "first_error_character_pos": 7,
        "first_error_column_name": '"T"["ID":1]',
        "last_load_time": WHEN,
    }
    report = {
        **REPORT,
        "status": "PARTIALLY_LOADED",
        "rowsParsed": 3,
        "errorsSeen": 1,
        "firstError": "no\n number",
        "firstErrorLineNum": 2,
        "firstErrorCharacterPos": 7,
        "firstErrorColumnName": '"T"["ID":1]',
        "lastInsertTime": WHEN.isoformat(),
    }
    load = FileLoad.read(history, COPY_HISTORY)

    assert load == FileLoad.read(report, PIPE_REPORT)
    assert (load.rows_loaded, load.rows_parsed, load.errors_seen) == (2, 3, 1)
    assert str(load.first_error) == 'no number (line 2, character 7, column "T"["ID":1])'


def test_a_result_of_copy_reports_counts_as_text() -> None:
    row = {"file": "s/a", "status": "LOADED", "rows_loaded": "2", "rows_parsed": "2", "errors_seen": None}
    assert FileLoad.read(row, COPY_RESULT) == FileLoad("s/a", "", "LOADED", 2, 2, 0)


def test_first_error_is_reported_on_one_line_with_its_position() -> None:
    assert str(FirstError("a\n  b")) == "a b"
    assert str(FirstError("a", 1, None, "C")) == "a (line 1, column C)"


def test_first_error_of_a_copy_has_its_position() -> None:
    position = {"first_error_line": 3, "first_error_character": 4, "first_error_column_name": "C"}
    reported = {"file": "a", "status": "LOAD_FAILED", "first_error": "bad", **position}

    assert FileLoad.read(reported, COPY_RESULT).first_error == FirstError("bad", 3, 4, "C")


def test_error_of_the_system_stands_for_one_of_the_file() -> None:
    load = FileLoad.read({**REPORT, "systemError": "broken"}, PIPE_REPORT)

    assert str(load.first_error) == "broken"


@pytest.mark.parametrize("error", [None, FirstError("no", 1, 2, "C")], ids=repr)
def test_a_tasks_value_brings_a_load_back(error: FirstError | None) -> None:
    load = FileLoad("a", "", "PARTIALLY_LOADED", 1, 2, 1, error)
    assert FileLoad.from_result("a", load.result()) == load
