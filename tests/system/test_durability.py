"""A person who fails or clears a task while its driver runs, under a real Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for
from load_run import ROWS, SLOW, STOP_SECONDS, LoadRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


# Daily, unit/operators/test_driver_run proves the stop, and test_when_processes_die the resumption.
@pytest.mark.nightly
def test_a_load_that_is_marked_failed_stops_and_the_next_one_resumes(stack: Stack, tmp_path: Path) -> None:
    run = LoadRun(stack, "durable_load", "MARKED_FAILED", tmp_path, SLOW)
    run.wait_until_committing()
    driver = run.driver()
    with stack.held_appends():
        run.api.set_task_state(run.dag_id, run.run_id, "stream", "failed")

        run.wait_until_stopped(driver)
        assert run.api.wait_for_run(run.dag_id, run.run_id, RUN_SECONDS) == "failed"
        committed = run.rows()
        assert 0 < committed < ROWS
        assert run.applications == 1

    run.api.clear(run.dag_id, run.run_id, "stream")

    run.wait()
    run.assert_every_row_is_there_once()
    assert run.applications == 2
    assert run.xcom("stream")["rows"] <= ROWS - committed


@pytest.mark.nightly  # the same stop and resume by another button, with three submissions
def test_a_load_that_is_cleared_stops_and_starts_again(stack: Stack, tmp_path: Path) -> None:
    run = LoadRun(stack, "durable_load", "CLEARED", tmp_path, SLOW)
    run.wait_until_committing()
    driver = run.driver()

    run.api.clear(run.dag_id, run.run_id, "stream")

    wait_for(lambda: not driver.is_running(), "the driver of the cleared task lives", STOP_SECONDS)
    run.wait()
    run.assert_every_row_is_there_once()
    assert run.applications == 2

    run.api.clear(run.dag_id, run.run_id, "stream")

    wait_for(lambda: run.task("stream")["try_number"] == 3, "the cleared success was not tried again")
    run.wait()
    run.assert_every_row_is_there_once()
    assert (run.xcom("stream")["rows"], run.applications) == (0, 2)
