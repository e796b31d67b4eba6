"""Asset events of commits start runs under a real scheduler and triggerer."""

from __future__ import annotations

import pytest
from airflow_database import query
from conftest import Stack
from flights_run import RUN_SECONDS
from waiting import until

pytestmark = pytest.mark.airflow

WATCHER = "commit_driven_totals"


def committed_meters(stack: Stack) -> None:
    """Begin to load what another DAG watches."""
    stack.unpause("commit_driven_meters", WATCHER)
    stack.airflow.api.parse_again(WATCHER)
    stack.airflow.api.trigger("commit_driven_meters", "first", {"hours": 30})


@pytest.mark.begins(run=committed_meters)
@pytest.mark.usefixtures("begun")
def test_the_example_starts_a_run_when_its_channel_commits(stack: Stack) -> None:
    def runs() -> list[tuple[str, ...]]:
        return query(stack, "SELECT run_id, state FROM dag_run WHERE dag_id = ?", WATCHER)

    api = stack.airflow.api
    assert api.wait_for_run("commit_driven_meters", "first", RUN_SECONDS) == "success"
    until(lambda: "success" in [state for _, state in runs()], RUN_SECONDS)
    ((run, _),) = runs()
    assert api.xcom(WATCHER, run, "committed")["rows"] == 30
    assert stack.service.sql("SELECT SUM(KWH) AS KWH FROM METER_READINGS") == [{"KWH": 7.5}]
