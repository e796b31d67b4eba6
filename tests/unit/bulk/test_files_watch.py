"""Judging load history, poll by poll."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_snowpipe.bulk.files_watch import FilesFailure, FilesWatch, Tolerance
from airflow_provider_snowpipe.bulk.load_history import PolledLoads, timestamp
from airflow_provider_snowpipe.bulk.staged_files import ExpectedFiles, FileLoad, FirstError
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.commits import RetryBudget, WaitState

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
    assert "'f10' and 2 more. See whether" in verdict.message


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
