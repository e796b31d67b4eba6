"""Judging load history, poll by poll."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import PolledLoads, timestamp
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileLoad, FirstError
from airflow_provider_snowpipe.streaming.commits import RetryBudget, WaitState
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    PipeNotFoundError,
    RetriesExhaustedError,
    SqlError,
)

T0 = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
OUTAGE = RetriesExhaustedError("overloaded")


def load(path: str, status: str = "LOADED", minute: int = 1, **changes: Any) -> FileLoad:
    return FileLoad(path, "S", status, loaded_at=T0 + dt.timedelta(minutes=minute), **changes)


def watch(*names: str, since: dt.datetime | None = T0, **options: Any) -> FilesWatch:
    expected = options.pop("expected", None) or ExpectedFiles(names)
    budget = options.pop("budget", RetryBudget(max_consecutive_errors=3))
    return FilesWatch(expected, since, Tolerance(**options), budget)


def test_complete_only_when_the_last_file_is_loaded() -> None:
    waiting = watch("a", "b")

    first = waiting.see(PolledLoads([load("a"), load("other")]), 0)
    second = waiting.see(PolledLoads([load("b", rows_loaded=3)]), 1)

    assert (first.state, str(first)) == (WaitState.WAITING, "1 of 2 files loaded; missing: 'b'")
    assert second.state is WaitState.COMPLETE
    assert list(second.results) == ["a", "b"]
    assert second.results["b"]["rows_loaded"] == 3


@pytest.mark.parametrize("status", ["LOAD_IN_PROGRESS", "LOAD_SKIPPED", "SOMETHING_NEW"])
def test_a_load_that_has_not_ended_reports_nothing(status: str) -> None:
    waiting = watch("a")

    assert waiting.see(PolledLoads([load("a", status)]), 0).state is WaitState.WAITING
    assert waiting.see(PolledLoads([load("a")]), 1).state is WaitState.COMPLETE
    assert waiting.see(PolledLoads([load("a", status, minute=5)]), 2).state is WaitState.COMPLETE


@pytest.mark.parametrize("order", [1, -1], ids=["in-order", "out-of-order"])
def test_of_several_loads_the_newest_counts(order: int) -> None:
    loads = [load("a", "LOAD_FAILED", 1), load("a", "LOADED", 2)][::order]

    assert watch("a").see(PolledLoads(loads), 0).state is WaitState.COMPLETE


def test_loads_before_the_timestamp_do_not_count() -> None:
    waiting = watch("a", since=T0 + dt.timedelta(minutes=3))

    assert waiting.see(PolledLoads([load("a", "LOAD_FAILED", 2)]), 0).state is WaitState.WAITING
    assert waiting.see(PolledLoads([load("a", "LOADED", 4)]), 1).state is WaitState.COMPLETE


def test_a_failure_has_the_first_error_and_the_remedy() -> None:
    error = FirstError("Numeric value 'x'\n is not recognized", 3, 5, '"T"["ID":1]')
    bad = load("b", "LOAD_FAILED", rows_parsed=7, first_error=error)

    verdict = watch("a", "b").see(PolledLoads([bad]), 0)

    assert (verdict.state, verdict.reason) == (WaitState.FAILED, FilesFailure.LOAD_FAILED)
    assert verdict.message == (
        "1 of 2 files did not load: 'b' is LOAD_FAILED with 0 of 7 rows: Numeric value 'x' is not recognized "
        '(line 3, character 5, column "T"["ID":1]). Fix the files and load them again; a pipe takes a file '
        "that failed again under its name"
    )


def test_the_full_stop_of_a_first_error_is_not_doubled() -> None:
    bad = load("b", "LOAD_FAILED", first_error=FirstError("Remote file 's/b' was not found."))

    verdict = watch("b").see(PolledLoads([bad]), 0)

    assert "Remote file 's/b' was not found. Fix the files" in (verdict.message or "")


def test_many_failures_are_named_up_to_ten() -> None:
    names = [f"f{number:02}" for number in range(14)]

    verdict = watch(*names).see(PolledLoads([load(name, "LOAD_FAILED") for name in names]), 0)

    assert "'f09'" in verdict.message
    assert "'f10'" not in verdict.message
    assert "; and 4 more." in verdict.message


@pytest.mark.parametrize(
    ("tolerance", "status", "state"),
    [
        ({}, "PARTIALLY_LOADED", WaitState.FAILED),
        ({"partial": "report"}, "PARTIALLY_LOADED", WaitState.COMPLETE),
        ({"partial": "report"}, "LOAD_FAILED", WaitState.FAILED),
        ({"failed": "report"}, "LOAD_FAILED", WaitState.COMPLETE),
        ({"failed": "report"}, "PARTIALLY_LOADED", WaitState.FAILED),
    ],
)
def test_what_is_accepted_is_chosen(tolerance: dict[str, str], status: str, state: WaitState) -> None:
    assert watch("a", **tolerance).see(PolledLoads([load("a", status)]), 0).state is state


def test_a_tolerance_is_one_of_two_words() -> None:
    with pytest.raises(ConfigurationError, match="on_partial is 'ignore': it must be one of"):
        Tolerance(partial="ignore")


def test_the_end_of_the_time_names_what_is_missing() -> None:
    waiting = watch(*(f"f{number:02}" for number in range(13)))
    waiting.see(PolledLoads([load("f00")]), 0)

    verdict = waiting.expired(60)

    assert verdict.reason is FilesFailure.TIMEOUT
    assert "1 of 13 files loaded after 60 s; missing: 'f01', " in verdict.message
    assert "'f10' and 2 more. See whether" in verdict.message


def test_a_number_of_files_with_a_prefix() -> None:
    waiting = watch(expected=ExpectedFiles((), "p/", 2))

    assert waiting.see(PolledLoads([load("p/a"), load("p/a", minute=2)]), 0).state is WaitState.WAITING
    verdict = waiting.see(PolledLoads([load("p/b"), load("q/c")]), 1)
    assert (verdict.state, list(verdict.results)) == (WaitState.COMPLETE, ["p/a", "p/b"])


class TestErrors:
    def test_passing_ones_are_counted_in_a_row(self) -> None:
        waiting = watch("a")
        outage = PolledLoads(error=OUTAGE)

        assert "poll failed (1 in a row): overloaded" in str(waiting.see(outage, 0))
        waiting.see(PolledLoads(), 1)
        assert [waiting.see(outage, at).state for at in (2, 3)] == [WaitState.WAITING] * 2
        verdict = waiting.see(PolledLoads(error=OSError("gone")), 4)

        assert verdict.reason is FilesFailure.TOO_MANY_ERRORS
        assert verdict.message == "3 polls in a row failed, the last: OSError: gone"

    def test_they_are_counted_at_the_waits_own_pace(self) -> None:
        waiting = watch("a", budget=RetryBudget(max_consecutive_errors=2, interval=10))
        outage = PolledLoads(error=OUTAGE)

        states = [waiting.see(outage, at).state for at in (0, 2, 4, 6)]
        assert states == [WaitState.WAITING] * 4
        assert waiting.see(outage, 9).reason is FilesFailure.TOO_MANY_ERRORS

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (ConfigurationError("no database"), FilesFailure.CONFIGURATION),
            (PipeNotFoundError("no pipe", http_status=404), FilesFailure.REFUSED),
            (SqlError("no table", errno=2003), FilesFailure.REFUSED),
        ],
        ids=["configuration", "pipe", "sql"],
    )
    def test_others_end_the_wait(self, error: Exception, reason: FilesFailure) -> None:
        assert watch("a").see(PolledLoads(error=error), 0).reason is reason

    def test_a_broken_network_for_sql_is_a_passing_one(self) -> None:
        error = SqlError("no network", errno=250_003)

        assert watch("a").see(PolledLoads(error=error), 0).state is WaitState.WAITING

    def test_memory_goes_to_another_process(self) -> None:
        first, second = watch("a"), watch("a")
        for at in (0, 1):
            first.see(PolledLoads(error=OUTAGE), at)

        second.recall(first.memory())

        assert second.see(PolledLoads(error=OUTAGE), 2).reason is FilesFailure.TOO_MANY_ERRORS


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("", None),
        ("None", None),
        ("2026-03-01", T0),
        ("2026-03-01 01:00:00+01:00", T0),
        (T0.replace(tzinfo=None), T0),
    ],
    ids=["none", "blank", "rendered-none", "day", "zone", "naive"],
)
def test_timestamps_are_read_as_templates_render_them(given: object, found: dt.datetime | None) -> None:
    assert timestamp(given) == found


def test_timestamp_with_a_zone_is_taken_as_it_is() -> None:
    given = dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))

    assert timestamp(given) is given


def test_what_is_no_timestamp_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="since is 'yesterday'"):
        timestamp("yesterday")
