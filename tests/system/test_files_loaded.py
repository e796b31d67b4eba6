"""The sensor of loaded files under a real scheduler and triggerer, and the example DAGs about files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from conftest import CATCH_UP_ON_DEMAND, Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

from tests.staged_files import put, submit

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


def moment(stack: Stack, run_id: str, task_id: str, key: str) -> datetime:
    return datetime.fromisoformat(stack.airflow.api.task(WAITING, run_id, task_id)[key])


def log_of(stack: Stack, run_id: str) -> str:
    return "\n".join(stack.airflow.api.task_log(WAITING, run_id, "loaded", 1))


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
    assert moment(stack, "by_copy", "loaded", "end_date") <= moment(
        stack, "by_copy", "downstream", "start_date"
    )


@pytest.mark.nightly  # integration/test_files_loaded proves it without Airflow's processes
def test_a_file_that_the_pipe_could_not_load_fails_the_run(stack: Stack) -> None:
    table = "STAGED_FOR_PIPE"
    staged(stack, table)
    conf = {"table": table, "pipe": f"{table}_PIPE", "files": ["a.csv", "bad.csv"]}
    stack.airflow.api.trigger(WAITING, "by_pipe", conf)
    wait_until_deferred(stack, "by_pipe")
    submit(stack.service, f"LOCAL.PUBLIC.{table}_PIPE", "a.csv", "bad.csv")

    assert stack.airflow.api.wait_for_run(WAITING, "by_pipe", RUN_SECONDS) == "failed"
    assert stack.airflow.api.task(WAITING, "by_pipe", "loaded")["state"] == "failed"
    text = log_of(stack, "by_pipe")
    assert "load_failed: 1 of 2 files did not load: 'bad.csv' is LOAD_FAILED" in text
    assert "'five'" in text
    assert "(line 2, character 1" in text


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


@pytest.mark.nightly  # unit/spark/sources/files proves growing files; two submissions
def test_each_run_loads_what_came_since_the_run_before(stack: Stack, tmp_path: Path) -> None:
    api = stack.airflow.api
    stack.unpause(CATCH_UP_ON_DEMAND)
    names = {"table": "CAUGHT_UP", "data_dir": str(tmp_path), "ship_lines": 0}

    def ship(file: str, text: str) -> None:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.read_text() + text if path.exists() else text)

    def lines(host: str, first: int, count: int) -> str:
        return "".join(json.dumps({"HOST": host, "LINE": first + n}) + "\n" for n in range(count))

    ship("web1/01.ndjson", lines("web1", 0, 100) + '{"HOST": "web1", ')
    ship("web2/01.ndjson", lines("web2", 0, 50))
    api.trigger(CATCH_UP_ON_DEMAND, "one", names)
    assert api.wait_for_run(CATCH_UP_ON_DEMAND, "one", RUN_SECONDS) == "success"
    assert api.xcom(CATCH_UP_ON_DEMAND, "one", "stream")["rows"] == 150

    ship("web1/01.ndjson", '"LINE": 100}\n')
    ship("web2/02.ndjson", lines("web2", 50, 25))
    api.trigger(CATCH_UP_ON_DEMAND, "two", names)
    assert api.wait_for_run(CATCH_UP_ON_DEMAND, "two", RUN_SECONDS) == "success"
    assert api.xcom(CATCH_UP_ON_DEMAND, "two", "stream")["rows"] == 26

    rows = stack.service.sql(
        "SELECT HOST, COUNT(*) AS N, COUNT(DISTINCT LINE) AS D FROM CAUGHT_UP GROUP BY 1"
    )
    assert {row["HOST"]: (int(row["N"]), int(row["D"])) for row in rows} == {
        "web1": (101, 101),
        "web2": (75, 75),
    }
