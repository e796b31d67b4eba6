"""Files copied by mapped tasks under a real Airflow, with a worker that dies."""

from __future__ import annotations

import json

import pytest
from conftest import Stack
from runs import DagRun

from tests.staged_files import put

pytestmark = pytest.mark.airflow

TABLE, DAYS, ROWS = "FLIGHT_DAYS", ("2013-02-06", "2013-02-07"), 500


def days_with_a_dead_worker(stack: Stack) -> DagRun:
    """Begin to copy two files for each day, one of which loses its worker.

    With FORCE nothing but the request id keeps the next try from loading the files again.
    """
    stack.service.sql(f"CREATE TABLE {TABLE} (FLIGHT_ID INTEGER, DAY DATE)")
    stack.service.sql(f"CREATE STAGE {TABLE}_STAGE")
    files = {}
    for number, name in enumerate(f"{day}/{half}.ndjson" for day in DAYS for half in ("am", "pm")):
        rows = [{"FLIGHT_ID": number * ROWS + row, "DAY": name[:10]} for row in range(ROWS)]
        files[name] = "".join(json.dumps(row) + "\n" for row in rows)
    put(stack.service, stack.folder / TABLE, f"{TABLE}_STAGE", files)
    params = {"table": TABLE, "days": list(DAYS), "killed": DAYS[1], "force": True}
    return DagRun(stack, "flight_days", "first", params)


@pytest.mark.begins(run=days_with_a_dead_worker)
def test_files_are_loaded_once_after_a_dead_worker(stack: Stack, begun: DagRun) -> None:
    begun.wait()
    found = stack.service.sql(
        f"SELECT TO_VARCHAR(DAY) AS D, COUNT(*) AS N, COUNT(DISTINCT FLIGHT_ID) AS U FROM {TABLE} GROUP BY 1"
    )
    expected = {day: (2 * ROWS, 2 * ROWS) for day in DAYS}
    assert {row["D"]: (int(row["N"]), int(row["U"])) for row in found} == expected
    loads = stack.service.sql(
        "SELECT FILE_NAME, COUNT(*) AS N FROM INFORMATION_SCHEMA.LOAD_HISTORY "
        f"WHERE TABLE_NAME = '{TABLE}' GROUP BY 1"
    )
    assert [int(row["N"]) for row in loads] == [1] * 4
    tasks = stack.airflow.api.tasks(begun.dag_id, begun.run_id)
    assert sorted(one["try_number"] for one in tasks if one["task_id"] == "copy") == [1, 2]
