"""kill -9 of the worker after it has submitted, under a real Airflow."""

from __future__ import annotations

import psutil
import pytest
from conftest import Stack
from flights_run import DAG_ID, FLIGHTS, SLOWER, FlightsRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


def test_the_retry_finishes_with_the_application_that_the_killed_worker_started(stack: Stack) -> None:
    run = FlightsRun(stack, "FLIGHTS_WORKER_KILLED", SLOWER)
    run.wait_until_committing()
    driver = run.driver()
    worker = driver.parent()
    assert worker is not None
    worker.kill()
    psutil.wait_procs([worker], timeout=120)
    assert driver.is_running()

    run.wait()

    run.assert_every_flight_is_there_once()
    assert run.task("stream")["try_number"] == 2
    assert run.xcom("stream")["rows"] == FLIGHTS
    log = "\n".join(stack.airflow.api.task_log(DAG_ID, run.run_id, "stream", 2))
    assert f"process {driver.pid}" in log
    assert "nothing is submitted" in log
    assert "snowpipe progress total done=" in log
    assert run.applications == 1
