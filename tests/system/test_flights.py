"""The example DAG under a real Airflow: undisturbed, with its driver killed, with the service killed."""

from __future__ import annotations

import psutil
import pytest
from conftest import Stack
from flights_run import CHANNELS, FLIGHTS, SLOW, FlightsRun
from observed_load import ObservedLoad

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.mark.begins(run=ObservedLoad)
def test_every_flight_is_loaded_once_and_the_driver_is_gone(begun: ObservedLoad) -> None:
    run = begun.finish()

    run.assert_every_flight_is_there_once()
    assert run.xcom("stream")["rows"] == FLIGHTS
    assert run.applications == 1
    assert run.spark_processes("") == []


@pytest.mark.nightly  # faults/test_spark_job_faults kills the driver daily
def test_every_row_arrives_once_when_the_driver_is_killed_and_airflow_retries(stack: Stack) -> None:
    run = FlightsRun(stack, "FLIGHTS_DRIVER_KILLED", SLOW)
    seen = run.wait_until_committing()
    driver = run.driver()
    driver.kill()
    psutil.wait_procs([driver], timeout=120)

    run.wait()
    run.assert_every_flight_is_there_once()
    assert run.task("stream")["try_number"] == 2
    assert run.applications == 2
    committed = sum(status.rows_inserted for status in seen.values())
    assert 0 < run.xcom("stream")["rows"] <= FLIGHTS - committed


@pytest.mark.nightly  # faults/test_spark_job_faults kills the service daily
def test_every_row_arrives_once_when_the_service_is_killed_and_restarted(stack: Stack) -> None:
    run = FlightsRun(stack, "FLIGHTS_SERVICE_KILLED", SLOW)
    seen = run.wait_until_committing()
    stack.service.kill()
    stack.service.launch()
    with stack.service.client(run.table) as client:
        kept = client.channel_statuses(CHANNELS)
    assert all(kept[name].rows_inserted >= status.rows_inserted for name, status in seen.items())

    run.wait()
    run.assert_every_flight_is_there_once()
