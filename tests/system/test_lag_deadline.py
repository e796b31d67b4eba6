"""A deadline that passes under a real scheduler and triggerer: the notifier reports the channel's lag."""

from __future__ import annotations

import json

import pytest
from conftest import LAG_DEADLINE_SECONDS, Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

from tests.example_dags import runs_here
from tests.local_connection import append

DAG_ID = "lag_deadline"
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not runs_here(DAG_ID), reason="deadlines need Airflow 3.2"),
]
CHANNEL = "lag_deadline_readings"
EXPECTED = f"'{CHANNEL}' committed NULL of 3 (late), 0 rows, 0 rejected"


def _logged(stack: Stack, text: str) -> list[str]:
    """The lines of Airflow's logs with a text."""
    files = [path for path in stack.airflow.logs.rglob("*.log") if path.is_file()]
    return [line for path in files for line in path.read_text(errors="replace").splitlines() if text in line]


def late_run(stack: Stack) -> None:
    """Begin a run whose channel is late."""
    # Before the run, so that the deadline finds a channel however long the first tasks take.
    stack.service.sql("CREATE TABLE LATE_READINGS (READING INTEGER NOT NULL, CELSIUS FLOAT)")
    with stack.service.client("LATE_READINGS") as client:
        client.open_channel(CHANNEL)
    stack.unpause(DAG_ID)
    stack.airflow.api.trigger(DAG_ID, "late", {"table": "LATE_READINGS", "until": 3})


@pytest.mark.begins(run=late_run)
@pytest.mark.usefixtures("begun")
def test_the_triggerer_reports_a_late_channel_and_the_run_goes_on_waiting(stack: Stack) -> None:
    api = stack.airflow.api
    wait_for(
        lambda: bool(_logged(stack, EXPECTED)),
        f"no report of the channel after a deadline of {LAG_DEADLINE_SECONDS} s",
        RUN_SECONDS,
    )

    assert len(_logged(stack, EXPECTED)) == 1
    assert _logged(stack, "LOCAL.PUBLIC.LATE_READINGS-STREAMING: 1 channel, 1 of 1 with a target late")
    assert api.run_state(DAG_ID, "late") == "running"
    wait_for(lambda: api.task(DAG_ID, "late", "wait")["state"] == "deferred", "nobody waits", RUN_SECONDS)
    wait_until_left(stack.airflow, DAG_ID, "late", "wait")
    rows = [json.dumps({"READING": number, "CELSIUS": 20.0}) for number in range(4)]
    append(stack.service, "LATE_READINGS", CHANNEL, ["0", "1", "2", "3"], rows=rows)
    assert api.wait_for_run(DAG_ID, "late", RUN_SECONDS) == "success"
    assert api.xcom(DAG_ID, "late", "wait") == {CHANNEL: "3"}
