"""A deadline that passes under a real scheduler and triggerer: the notifier reports the channel's lag."""

import json

import pytest
from conftest import LAG_DEADLINE_SECONDS, Stack
from runs import DagRun, wait_for

from tests.example_dags import runs_here
from tests.local_connection import append

DAG_ID = "lag_deadline"
pytestmark = [
    pytest.mark.airflow,
    pytest.mark.skipif(not runs_here(DAG_ID), reason="deadlines need Airflow 3.2"),
]
CHANNEL = "lag_deadline_readings"
EXPECTED = f"'{CHANNEL}' committed NULL of 3 (late), 0 rows, 0 rejected"


def late_run(stack: Stack) -> DagRun:
    """Begin a run whose channel is late."""
    # Before the run, so that the deadline finds a channel however long the first tasks take.
    stack.service.sql("CREATE TABLE LATE_READINGS (READING INTEGER NOT NULL, CELSIUS FLOAT)")
    with stack.service.client("LATE_READINGS") as client:
        client.open_channel(CHANNEL)
    return DagRun(stack, DAG_ID, "late", {"table": "LATE_READINGS", "until": 3})


@pytest.mark.begins(run=late_run)
def test_the_triggerer_reports_a_late_channel_and_the_run_waits_on(stack: Stack, begun: DagRun) -> None:
    def logged(text: str) -> int:
        files = [path for path in stack.airflow.logs.rglob("*.log") if path.is_file()]
        return sum(path.read_text(errors="replace").count(text) for path in files)

    wait_for(lambda: logged(EXPECTED), f"no report after a deadline of {LAG_DEADLINE_SECONDS} s")

    assert logged(EXPECTED) == 1
    assert logged("LOCAL.PUBLIC.LATE_READINGS-STREAMING: 1 channel, 1 of 1 with a target late")
    assert stack.airflow.api.run_state(DAG_ID, "late") == "running"
    begun.wait_until_waiting("wait")
    rows = [json.dumps({"READING": number, "CELSIUS": 20.0}) for number in range(4)]
    append(stack.service, "LATE_READINGS", CHANNEL, ["0", "1", "2", "3"], rows=rows)
    begun.wait()
    assert begun.xcom("wait") == {CHANNEL: "3"}
