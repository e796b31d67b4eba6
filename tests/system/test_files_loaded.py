"""The sensor of loaded files under a real scheduler and triggerer, and the example DAGs about files."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

from tests.staged_files import put

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

WAITING, BACKFILL = "staged_files", "backfill_days"


def staged(stack: Stack, table: str) -> None:
    """Make a table with a stage and a pipe of its own, and two good files and a bad one in the stage."""
    stack.unpause(WAITING)
    stack.service.sql(f"CREATE TABLE {table} (ID INTEGER)")
    stack.service.sql(f"CREATE STAGE {table}_STAGE")
    stack.service.sql(f"CREATE PIPE {table}_PIPE AS COPY INTO {table} FROM @{table}_STAGE")
    files = {"a.csv": "1\n2\n", "b.csv": "3\n", "bad.csv": "4\nfive\n"}
    put(stack.service, stack.folder / table, f"{table}_STAGE", files)


def awaited_files(stack: Stack) -> str:
    """Begin a run that waits for two files of a table, which is returned."""
    table = "STAGED_FOR_COPY"
    staged(stack, table)
    stack.airflow.api.trigger(WAITING, "by_copy", {"table": table, "files": ["a.csv", "b.csv"]})
    return table


def wait_until_deferred(stack: Stack, run_id: str) -> None:
    api = stack.airflow.api
    wait_for(
        lambda: api.task(WAITING, run_id, "loaded")["state"] == "deferred",
        "the sensor did not defer",
        RUN_SECONDS,
    )
    wait_until_left(stack.airflow, WAITING, run_id, "loaded")


def time_of(stack: Stack, run_id: str, task_id: str, key: str) -> datetime:
    return datetime.fromisoformat(stack.airflow.api.task(WAITING, run_id, task_id)[key])


@pytest.mark.begins(run=awaited_files)
def test_downstream_starts_when_copy_has_loaded_the_last_file(stack: Stack, begun: str) -> None:
    table = begun
    wait_until_deferred(stack, "by_copy")
    stack.service.sql(f"COPY INTO {table} FROM @{table}_STAGE FILES = ('a.csv')")
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS N FROM {table}")
    assert int(row["N"]) == 2
    assert stack.airflow.api.task(WAITING, "by_copy", "loaded")["state"] == "deferred"
    stack.service.sql(f"COPY INTO {table} FROM @{table}_STAGE FILES = ('b.csv')")

    assert stack.airflow.api.wait_for_run(WAITING, "by_copy", RUN_SECONDS) == "success"
    assert stack.airflow.api.xcom(WAITING, "by_copy", "downstream") == 3
    files = stack.airflow.api.xcom(WAITING, "by_copy", "loaded")
    assert {name: (one["status"], one["rows_loaded"]) for name, one in files.items()} == {
        "a.csv": ("LOADED", 2),
        "b.csv": ("LOADED", 1),
    }
    ended = stack.airflow.api.task(WAITING, "by_copy", "without_worker")
    value = stack.airflow.api.xcom(WAITING, "by_copy", "without_worker")
    assert (ended["state"], ended["hostname"]) == ("success", "")
    assert (json.loads(value) if isinstance(value, str) else value) == files
    assert time_of(stack, "by_copy", "loaded", "end_date") <= time_of(
        stack, "by_copy", "downstream", "start_date"
    )


@pytest.mark.nightly  # COPY by mapped tasks is proved daily in test_flight_days
def test_days_are_backfilled_once_however_often_they_are_asked_for(stack: Stack) -> None:
    api = stack.airflow.api
    stack.unpause(BACKFILL)
    names = {"table": "BACKFILLED", "stage": "BACKFILLED_DAYS"}
    api.trigger(BACKFILL, "first", {**names, "first_day": "2013-02-27", "last_day": "2013-02-28"})
    assert api.wait_for_run(BACKFILL, "first", RUN_SECONDS) == "success"
    assert api.xcom(BACKFILL, "first", "verify") == {"2013-02-27": 72, "2013-02-28": 72}

    api.trigger(BACKFILL, "second", {**names, "first_day": "2013-02-27", "last_day": "2013-03-01"})
    assert api.wait_for_run(BACKFILL, "second", RUN_SECONDS) == "success"

    assert api.xcom(BACKFILL, "second", "verify") == {"2013-02-27": 72, "2013-02-28": 72, "2013-03-01": 72}
    loads = stack.service.sql(
        "SELECT FILE_NAME, COUNT(*) AS N FROM INFORMATION_SCHEMA.LOAD_HISTORY "
        "WHERE TABLE_NAME = 'BACKFILLED' GROUP BY 1"
    )
    assert {int(row["N"]) for row in loads} == {1}
    assert len(loads) == 9
