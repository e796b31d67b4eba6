"""The example DAG that routes by the shape of its data, under a real scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

pytestmark = pytest.mark.airflow

ROUTED = "trickle_or_flood"


@pytest.mark.parametrize(
    ("history", "path", "taken", "left"),
    [(False, "stream", "append", "copy"), (True, "copy", "copy", "append")],
    ids=["trickle", "history"],
)
def test_the_shape_of_the_data_chooses_the_tasks(
    stack: Stack, tmp_path: Path, history: bool, path: str, taken: str, left: str
) -> None:
    api = stack.airflow.api
    api.wait_for_dag(ROUTED)
    api.unpause(ROUTED)
    table = f"ROUTED_BY_{path.upper()}"
    api.trigger(ROUTED, path, {"table": table, "folder": str(tmp_path), "rows": 50, "history": history})

    assert api.wait_for_run(ROUTED, path, RUN_SECONDS) == "success"
    states = {task["task_id"]: task["state"] for task in api.tasks(ROUTED, path)}
    assert (states[taken], states[left]) == ("success", "skipped")
    assert api.xcom(ROUTED, path, "count") == 50
    plan = api.xcom(ROUTED, path, "route", "plan")
    assert (plan["path"], plan["is_forced"], len(plan["estimates"])) == (path, False, 3)
    hours = stack.service.sql(f"SELECT COUNT(DISTINCT HOUR) AS N FROM {table}")
    assert int(hours[0]["N"]) == 50
