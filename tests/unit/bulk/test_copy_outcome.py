"""What COPY answered, file by file."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyOutcome
from airflow_provider_snowpipe.bulk.staged_files import FileLoad, StageReference
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, FilesRejectedError

STAGE = StageReference.parse("@s/in")
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def row(file: str, status: str = "LOADED", loaded: Any = 2, errors: Any = 0, first: str | None = None) -> Any:
    return {
        "file": f"s/in/{file}", "status": status, "rows_parsed": 2, "rows_loaded": loaded,
        "errors_seen": errors, "first_error": first, "first_error_line": 3 if first else None,
        "first_error_character": None, "first_error_column_name": None,
    }  # fmt: skip


def test_files_are_named_below_the_stage() -> None:
    outcome = CopyOutcome.read([row("a.csv"), row("b.csv", loaded="7")], STAGE)

    assert [(load.path, load.rows_loaded) for load in outcome.loads] == [("in/a.csv", 2), ("in/b.csv", 7)]
    assert outcome.result()["rows_loaded"] == 9
    assert outcome.skipped(["in/a.csv", "in/c.csv"]) == ("in/c.csv",)


@pytest.mark.parametrize("url", ["s3://b/in", "s3://b/in/"])
def test_files_of_an_external_stage_are_named_by_their_addresses_and_reported_below_the_stage(
    url: str,
) -> None:
    answered = [{**row(""), "file": "s3://b/in/X/a.csv"}]

    (load,) = CopyOutcome.read(answered, StageReference.parse("@X"), url).loads

    assert (load.path, load.location) == ("X/a.csv", "X")


def test_nothing_to_do_is_no_file() -> None:
    assert CopyOutcome.read([{"status": "Copy executed with 0 files processed."}], STAGE) == CopyOutcome()


def test_files_that_failed_are_named_with_their_first_error() -> None:
    outcome = CopyOutcome.read(
        [
            row("a.csv"),
            row("b.csv", "LOAD_FAILED", 0, 2, "bad"),
            row("c.csv", "PARTIALLY_LOADED", 1, 1, "worse"),
        ],
        STAGE,
    )

    outcome.require("report", "T")
    with pytest.raises(
        FilesRejectedError,
        match=r"2 of 3 files .*'in/b.csv' LOAD_FAILED, 0 of 2 rows, first error: bad \(line 3\); "
        r"'in/c.csv' PARTIALLY_LOADED, 1 of 2 rows, first error: worse \(line 3\)\. Fix",
    ) as raised:
        outcome.require("fail", "T")
    assert (raised.value.files, raised.value.rejected) == (("in/b.csv", "in/c.csv"), 3)
    assert outcome.result()["rejected"] == 3
    with pytest.raises(ConfigurationError, match="on_rejected is 'ignore'"):
        outcome.require("ignore", "T")


@pytest.mark.parametrize(("bad", "text"), [(3, r"\(line 3\)\. Fix"), (5, "; and 2 more")])
def test_many_bad_files_are_counted(bad: int, text: str) -> None:
    outcome = CopyOutcome.read([row(f"{n}.csv", "LOAD_FAILED", 0, 1, "bad") for n in range(bad)], STAGE)

    with pytest.raises(FilesRejectedError, match=text):
        outcome.require("fail", "T")


class TestHistory:
    def history(self, path: str, hours_ago: int, status: str = "LOADED") -> FileLoad:
        return FileLoad(
            path,
            "D.S.S" if "/" in path else "D.S.S/in/",
            status,
            5,
            5,
            loaded_at=NOW - dt.timedelta(hours=hours_ago),
        )

    def test_a_skipped_file_has_the_load_of_the_history(self) -> None:
        outcome = CopyOutcome.read([row("a.csv"), row("b.csv", "LOAD_SKIPPED", 0)], STAGE)
        history = [
            self.history("in/b.csv", 9),
            self.history("b.csv", 5),
            self.history("in/b.csv", 2, "LOADING"),
        ]
        found = outcome.with_history(outcome.skipped([]), history, NOW - dt.timedelta(hours=1))

        assert [load.path for load in found.loads] == ["in/a.csv"]
        assert [(load.path, load.status, load.rows_loaded) for load in found.before] == [
            ("in/b.csv", "LOADED", 5)
        ]
        assert found.result()["rows_loaded"] == 2

    def test_a_skipped_file_without_a_load_has_the_words_of_copy(self) -> None:
        outcome = CopyOutcome.read([row("a.csv", "LOAD_SKIPPED", 0, 0, "state unknown")], STAGE)
        (load,) = outcome.with_history(outcome.skipped([]), [], NOW).before

        assert (load.path, load.status, str(load.first_error)) == (
            "in/a.csv",
            "LOAD_SKIPPED",
            "state unknown (line 3)",
        )

    def test_what_this_run_loaded_counts_as_its_own(self) -> None:
        found = CopyOutcome().with_history(["in/a.csv"], [self.history("in/a.csv", 0)], NOW)

        assert (found.result()["rows_loaded"], found.before) == (5, ())

    def test_a_file_that_history_forgot_stays_skipped(self) -> None:
        found = CopyOutcome().with_history(["in/a.csv"], [], NOW)

        assert found.before == (FileLoad("in/a.csv", "", "LOAD_SKIPPED"),)
        found.require("fail", "T")

    def test_a_file_that_was_loaded_in_part_before_is_still_bad(self) -> None:
        history = [self.history("a", 9, "PARTIALLY_LOADED")]
        found = CopyOutcome().with_history(["in/a"], history, NOW)

        with pytest.raises(FilesRejectedError, match="PARTIALLY_LOADED"):
            found.require("fail", "T")


def test_the_value_of_a_task_is_json() -> None:
    outcome = replace(CopyOutcome.read([row("a.csv")], STAGE), before=(FileLoad("b", "", "LOADED", 3),))

    assert outcome.result() == {
        "rows_loaded": 2,
        "rejected": 0,
        "files": {"in/a.csv": {"status": "LOADED", "rows_loaded": 2, "rows_parsed": 2, "errors_seen": 0,
                               "first_error": None}},
        "loaded_before": {"b": {"status": "LOADED", "rows_loaded": 3, "rows_parsed": 0, "errors_seen": 0,
                                "first_error": None}},
    }  # fmt: skip


def test_a_load_of_an_unknown_time_is_nobody_knows_whose_and_counts_as_of_before() -> None:
    load = FileLoad("a", "S/", "LOADED", 2)
    outcome = CopyOutcome().with_history(["a"], [load], dt.datetime(2026, 1, 1, tzinfo=dt.UTC))

    assert (outcome.loads, outcome.before) == ((), (load,))
