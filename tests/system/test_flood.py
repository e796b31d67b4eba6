"""The example DAG of the bulk path, under a real scheduler and triggerer with ``spark-submit``."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG_ID = "flood_with_spark"
ROWS = 2_400


# integration/test_bulk_load_submit submits the same operator daily.
@pytest.mark.nightly
def test_a_day_is_loaded_once_by_one_copy_however_often_the_dag_runs(stack: Stack, tmp_path: Path) -> None:
    api = stack.airflow.api
    stack.unpause(DAG_ID)
    for run_id in ("first", "second"):
        api.trigger(DAG_ID, run_id, {"table": "FLOODED", "folder": str(tmp_path)})
        assert api.wait_for_run(DAG_ID, run_id, RUN_SECONDS) == "success"
        assert api.xcom(DAG_ID, run_id, "count") == ROWS

    first, second = (api.xcom(DAG_ID, run_id, "load") for run_id in ("first", "second"))
    assert (first["rows"], first["rows_loaded"], len(first["files"])) == (ROWS, ROWS, 1)
    assert second == first
    assert api.xcom(DAG_ID, "second", "load", "files") == list(first["files"])
    (staged,) = stack.service.sql("SELECT COUNT(DISTINCT READING:hour::INT) AS HOURS FROM FLOODED")
    assert int(staged["HOURS"]) == 24
    names = [str(row["name"]).rpartition("/")[2] for row in stack.service.sql("LIST @FLOODED_FLOOD")]
    assert names == []
