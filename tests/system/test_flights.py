"""The example DAG under a real Airflow."""

from __future__ import annotations

import pytest
from flights_run import FLIGHTS
from observed_load import ObservedLoad

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@pytest.mark.begins(run=ObservedLoad)
def test_every_flight_is_loaded_once_and_the_driver_is_gone(begun: ObservedLoad) -> None:
    run = begun.finish()

    run.assert_every_flight_is_there_once()
    assert run.xcom("stream")["rows"] == FLIGHTS
    assert run.applications == 1
    assert run.spark_processes("") == []
