"""kill -9 of scheduler and triggerer, and a person who fails or clears tasks, under a real Airflow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from airflow_database import events_of, partitions_of
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left
from load_run import ROWS, ROWS_EACH, SLOWER, STOP_SECONDS, LoadRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.fixture
def scheduler_restarted(stack: Stack) -> Iterator[None]:
    yield
    stack.airflow.wait_until_healthy()


@pytest.mark.usefixtures("scheduler_restarted")
def test_a_load_survives_the_schedulers_death(stack: Stack, tmp_path: Path) -> None:
    run = LoadRun(stack, "durable_load", "SCHEDULER_KILLED", tmp_path, SLOWER)
    run.wait_until_committing()
    driver = run.driver()
    page = run.xcom("stream", "spark_ui")
    assert run.application in requests.get(f"{page}/environment/", timeout=30).text
    assert run.links("stream")["Spark UI"] == page

    stack.airflow.kill_process("scheduler")
    assert run.rows() < ROWS
    wait_for(lambda: run.rows() == ROWS, "the load did not go on without a scheduler")
    assert run.task("downstream")["start_date"] is None
    stack.airflow.start_process("scheduler")

    run.wait()
    run.assert_every_row_is_there_once()
    assert run.applications == 1
    assert run.task("stream")["try_number"] == 1
    assert not driver.is_running()
    assert not run.links("stream")["Spark UI"]


@pytest.fixture
def no_commits(stack: Stack) -> Iterator[None]:
    stack.service.restart("commit-delay=3600")
    yield
    stack.service.restart()


@pytest.mark.usefixtures("no_commits")
def test_deferred_waits_survive_the_triggerers_death(stack: Stack, tmp_path: Path) -> None:
    sensed = LoadRun(stack, "sensed_load", "SENSED", tmp_path)
    deferred = LoadRun(stack, "deferred_load", "DEFERRED", tmp_path)
    waits = ((sensed, "wait_for_commit"), (deferred, "stream"))
    for run, task_id in waits:
        run.wait_for_state(task_id, "deferred")
        wait_until_left(stack.airflow, run.dag_id, run.run_id, task_id)
    wait_for(lambda: all(run.triggerer(task_id) for run, task_id in waits), "nobody took the triggers")
    first = {run.triggerer(task_id) for run, task_id in waits}

    stack.airflow.kill_process("triggerer")
    stack.airflow.start_process("triggerer")

    wait_for(
        lambda: all(run.triggerer(task_id) not in {None, *first} for run, task_id in waits),
        "the new triggerer did not take the triggers over",
    )
    assert deferred.spark_processes() == []
    committed = time.time()
    assert [run.rows() for run, _ in waits] == [0, 0]
    assert [run.task(task_id)["state"] for run, task_id in waits] == ["deferred", "deferred"]
    stack.service.restart()

    for run, _ in waits:
        run.wait()
        run.assert_every_row_is_there_once()
        assert run.applications == 1
        assert committed < run.started("downstream") < time.time()
    value = deferred.xcom("stream")
    assert value["rows"] == ROWS
    assert {channel["to"] for channel in value["channels"].values()} == {f"1.ndjson:{ROWS_EACH}"}
    tokens = dict.fromkeys(deferred.channels, f"1.ndjson:{ROWS_EACH}")
    facts = {"pipe": "LOCAL.PUBLIC.DEFERRED-STREAMING", "committed": True}
    assert events_of(stack, "deferred_rows") == [{**facts, "tokens": tokens, "rows": ROWS}]
    one = {deferred.channels[0]: tokens[deferred.channels[0]]}
    assert events_of(stack, "deferred_channel") == [{**facts, "tokens": one, "rows": ROWS_EACH}]
    assert partitions_of(stack, "deferred_channel") == ["a"]


def test_a_load_that_is_marked_failed_stops_and_the_next_one_resumes(stack: Stack, tmp_path: Path) -> None:
    run = LoadRun(stack, "durable_load", "MARKED_FAILED", tmp_path, SLOWER)
    run.wait_until_committing()
    driver = run.driver()

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


def test_a_load_that_is_cleared_stops_and_starts_again(stack: Stack, tmp_path: Path) -> None:
    run = LoadRun(stack, "durable_load", "CLEARED", tmp_path, SLOWER)
    run.wait_until_committing()
    driver = run.driver()

    run.api.clear(run.dag_id, run.run_id, "stream")

    wait_for(lambda: not driver.is_running(), "the driver of the cleared task lives", STOP_SECONDS)
    run.wait()
    run.assert_every_row_is_there_once()
    assert run.applications == 2

    run.api.clear(run.dag_id, run.run_id, "stream")

    wait_for(lambda: run.applications == 3, "nothing was submitted after the success was cleared")
    run.wait()
    run.assert_every_row_is_there_once()
    assert run.xcom("stream")["rows"] == 0
