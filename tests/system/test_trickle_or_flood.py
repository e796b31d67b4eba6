"""The example DAG that routes by the shape of its data, under a real scheduler."""

from __future__ import annotations

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

pytestmark = pytest.mark.airflow

ROUTED = "trickle_or_flood"


def routed_run(stack: Stack, history: bool, path: str) -> None:
    """Begin a run that is to take this path."""
    stack.unpause(ROUTED)
    conf = {"table": f"ROUTED_BY_{path.upper()}", "folder": str(stack.folder / path)}
    stack.airflow.api.trigger(ROUTED, path, {**conf, "rows": 50, "history": history})


def run_of_history(stack: Stack) -> None:
    routed_run(stack, True, "copy")


def check_routed(stack: Stack, path: str, taken: str, left: str) -> None:
    api = stack.airflow.api
    assert api.wait_for_run(ROUTED, path, RUN_SECONDS) == "success"
    states = {task["task_id"]: task["state"] for task in api.tasks(ROUTED, path)}
    assert (states[taken], states[left]) == ("success", "skipped")
    assert api.xcom(ROUTED, path, "count") == 50
    plan = api.xcom(ROUTED, path, "route", "plan")
    assert (plan["path"], plan["is_forced"], len(plan["estimates"])) == (path, False, 3)
    hours = stack.service.sql(f"SELECT COUNT(DISTINCT HOUR) AS N FROM ROUTED_BY_{path.upper()}")
    assert int(hours[0]["N"]) == 50


@pytest.mark.begins(run=run_of_history)
@pytest.mark.usefixtures("begun")
def test_rows_of_the_past_take_the_tasks_of_copy(stack: Stack) -> None:
    check_routed(stack, "copy", "copy", "append")


@pytest.mark.nightly  # the other branch of the same task
def test_a_trickle_takes_the_task_of_a_channel(stack: Stack) -> None:
    routed_run(stack, False, "stream")
    check_routed(stack, "stream", "append", "copy")
