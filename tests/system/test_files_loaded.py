"""The sensor of loaded files under a real scheduler and triggerer."""

import json

import pytest
from conftest import Stack
from runs import DagRun

from tests.staged_files import put

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

TABLE = "STAGED_FOR_COPY"


def awaited_files(stack: Stack) -> DagRun:
    """Begin a run that waits for two files in a stage."""
    stack.service.sql(f"CREATE TABLE {TABLE} (ID INTEGER)")
    stack.service.sql(f"CREATE STAGE {TABLE}_STAGE")
    put(stack.service, stack.folder / TABLE, f"{TABLE}_STAGE", {"a.csv": "1\n2\n", "b.csv": "3\n"})
    return DagRun(stack, "staged_files", "by_copy", {"table": TABLE, "files": ["a.csv", "b.csv"]})


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
