"""Waits under a real scheduler and triggerer: for loaded files, and for a channel that a deadline finds."""

import json

import pytest
from conftest import LAG_DEADLINE_SECONDS, Stack
from runs import DagRun, wait_for

from tests.example_dags import runs_here
from tests.local_connection import append
from tests.staged_files import put

pytestmark = pytest.mark.airflow

TABLE = "STAGED_FOR_COPY"


def awaited_files(stack: Stack) -> DagRun:
    """Begin a run that waits for two files in a stage."""
    stack.service.sql(f"CREATE TABLE {TABLE} (ID INTEGER)")
    stack.service.sql(f"CREATE STAGE {TABLE}_STAGE")
    put(stack.service, stack.folder / TABLE, f"{TABLE}_STAGE", {"a.csv": "1\n2\n", "b.csv": "3\n"})
    return DagRun(stack, "staged_files", "by_copy", {"table": TABLE, "files": ["a.csv", "b.csv"]})


@pytest.mark.spark
@pytest.mark.begins(run=awaited_files)
def test_downstream_starts_when_copy_has_loaded_the_last_file(stack: Stack, begun: DagRun) -> None:
    begun.wait_until_waiting("loaded")
    stack.service.sql(f"COPY INTO {TABLE} FROM @{TABLE}_STAGE FILES = ('a.csv')")
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS N FROM {TABLE}")
    assert int(row["N"]) == 2
    assert begun.task("loaded")["state"] == "deferred"
    stack.service.sql(f"COPY INTO {TABLE} FROM @{TABLE}_STAGE FILES = ('b.csv')")

    begun.wait()
    assert begun.xcom("downstream") == 3
    files = begun.xcom("loaded")
    found = {name: (one["status"], one["rows_loaded"]) for name, one in files.items()}
    assert found == {"a.csv": ("LOADED", 2), "b.csv": ("LOADED", 1)}
    ended, value = begun.task("without_worker"), begun.xcom("without_worker")
    assert (ended["state"], ended["hostname"]) == ("success", "")
    assert (json.loads(value) if isinstance(value, str) else value) == files
    assert begun.task("loaded")["end_date"] <= begun.task("downstream")["start_date"]


DAG_ID = "lag_deadline"
CHANNEL = "lag_deadline_readings"
EXPECTED = f"'{CHANNEL}' committed NULL of 3 (late), 0 rows, 0 rejected"


def late_run(stack: Stack) -> DagRun:
    """Begin a run whose channel is late."""
    # Before the run, so that the deadline finds a channel however long the first tasks take.
    stack.service.sql("CREATE TABLE LATE_READINGS (READING INTEGER NOT NULL, CELSIUS FLOAT)")
    with stack.service.client("LATE_READINGS") as client:
        client.open_channel(CHANNEL)
    return DagRun(stack, DAG_ID, "late", {"table": "LATE_READINGS", "until": 3})


@pytest.mark.skipif(not runs_here(DAG_ID), reason="deadlines need Airflow 3.2")
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
