"""The example DAGs are read as a DAG processor reads them, and know nothing of the local service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.example_dags import DAGS_FOLDER, FILES_FOR_A_LATER_AIRFLOW, FILES_FOR_THIS_AIRFLOW
from tests.import_times import airflow_environment

READ_FOLDER = """
import json, sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow before 3.2
    from airflow.models.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors,
    "dags": {dag_id: sorted(dag.task_dict) for dag_id, dag in bag.dags.items()},
    "schedules": {
        dag_id: {
            "catchup": dag.catchup,
            "max_active_runs": dag.max_active_runs,
            "schedule": str(dag.schedule if hasattr(dag, "schedule") else dag.schedule_interval),
        }
        for dag_id, dag in bag.dags.items()
    },
}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What a DAG processor finds in the folder, in a process of its own as there."""
    env = airflow_environment(tmp_path_factory.mktemp("airflow"))
    command = [sys.executable, "-c", READ_FOLDER, str(DAGS_FOLDER)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_file_is_read_by_the_airflow_it_is_for(parsed):
    assert set(parsed["dags"]) == set(FILES_FOR_THIS_AIRFLOW)
    assert {Path(path).stem for path in parsed["errors"]} == set(FILES_FOR_A_LATER_AIRFLOW), parsed["errors"]


TASKS = {
    "flights_to_snowflake": {"create_table", "split_flights", "stream", "verify", "wait_for_commit"},
    "reset_and_replay": {"approve", "delete", "reset", "replay", "verify"},
    "commit_driven_totals": {"committed", "total"},
    "backfill_days": {"load_day.copy", "load_day.loaded"},
    "trickle_or_flood": {"route", "append", "stage_file", "copy"},
    "load_by_router": {"count", "create", "load", "make_files", "pipe"},
    "files_to_pipe": {"count", "create", "ingest", "loaded", "make_files", "pipe", "stage"},
    "flood_with_spark": {"count", "create", "load", "make_files"},
}


@pytest.mark.parametrize("dag", [dag for dag in TASKS if dag not in FILES_FOR_A_LATER_AIRFLOW])
def test_each_dag_has_its_tasks(parsed, dag):
    assert TASKS[dag] <= set(parsed["dags"][dag])


@pytest.mark.skipif("catch_up" in FILES_FOR_A_LATER_AIRFLOW, reason="Airflow 2 requires a start_date")
def test_the_catch_up_runs_often_and_one_at_a_time(parsed):
    assert parsed["schedules"]["catch_up"] == {
        "catchup": False,
        "max_active_runs": 1,
        "schedule": "*/5 * * * *",
    }


def test_no_file_names_the_local_service():
    texts = {path.name: path.read_text() for path in DAGS_FOLDER.rglob("*.py")}
    assert [name for name, text in texts.items() if "snowpipe_local" in text] == []


def test_a_shipped_file_is_written_once_and_never_half(tmp_path):
    sys.path.insert(0, str(DAGS_FOLDER))
    try:
        from flights_to_snowflake import _write_once
    finally:
        sys.path.remove(str(DAGS_FOLDER))
    file = tmp_path / "flights-2013-01.ndjson"
    _write_once(file, b"one\n")
    first = file.stat()
    _write_once(file, b"one\n")
    assert file.stat().st_mtime_ns == first.st_mtime_ns
    _write_once(file, b"two\n")
    assert file.read_bytes() == b"two\n"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
