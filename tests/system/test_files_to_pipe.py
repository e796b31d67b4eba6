"""The example DAG from files to a file pipe, under a real scheduler and triggerer."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

pytestmark = pytest.mark.airflow

DAG_ID = "files_to_pipe"


# integration/test_file_pipe_operator and test_ingest_files_operator prove the operators daily.
@pytest.mark.nightly
def test_files_are_staged_submitted_and_loaded_once_however_often_the_dag_runs(
    stack: Stack, tmp_path: Path
) -> None:
    api = stack.airflow.api
    stack.unpause(DAG_ID)
    names = ["2013-01-01/EWR.csv", "2013-01-01/JFK.csv", "2013-01-01/LGA.csv"]
    for run_id in ("first", "second"):
        api.trigger(DAG_ID, run_id, {"table": "PIPED", "folder": str(tmp_path)})
        assert api.wait_for_run(DAG_ID, run_id, RUN_SECONDS) == "success"
        assert api.xcom(DAG_ID, run_id, "count") == 72
        assert api.xcom(DAG_ID, run_id, "ingest", "files") == names
        loaded = api.xcom(DAG_ID, run_id, "loaded")
        assert {name: one["rows_loaded"] for name, one in loaded.items()} == dict.fromkeys(names, 24)

    first, second = (api.xcom(DAG_ID, run_id, "stage") for run_id in ("first", "second"))
    assert (len(first["uploaded"]), second["uploaded"], len(second["skipped"])) == (3, [], 3)
    created = [api.xcom(DAG_ID, run_id, "pipe")["changed"] for run_id in ("first", "second")]
    assert created == [True, False]
