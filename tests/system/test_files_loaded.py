"""The sensor of loaded files under a real scheduler and triggerer, and the example DAGs about files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left

from tests.staged_files import put, submit

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

WAITING, BACKFILL, CATCH_UP = "staged_files", "backfill_days", "catch_up_on_demand"


@pytest.fixture(scope="module", autouse=True)
def _dags(stack: Stack) -> None:
    _write_catch_up_on_demand(stack.airflow.home.parent / "dags")
    api = stack.airflow.api
    for dag_id in (WAITING, BACKFILL, CATCH_UP):
        api.wait_for_dag(dag_id)
        api.unpause(dag_id)


def _write_catch_up_on_demand(folder: Path) -> None:
    """Write the example without its schedule, whose runs would come between those of a test."""
    text = (REPOSITORY / "dags" / "catch_up.py").read_text()
    for old, new in (
        ('schedule="*/5 * * * *"', "schedule=None"),
        ("def catch_up()", f"def {CATCH_UP}()"),
        ("\ncatch_up()", f"\n{CATCH_UP}()"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / f"{CATCH_UP}.py").write_text(text)


@pytest.fixture(autouse=True)
def _trusted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(stack.service.ca_file))


@pytest.fixture
def staged(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A table with a stage and a pipe of its own, and two good files and a bad one in the stage; its name."""
    table = f"STAGED_{request.node.name.upper()[-20:]}"
    stack.service.sql(f"CREATE TABLE {table} (ID INTEGER)")
    stack.service.sql(f"CREATE STAGE {table}_STAGE")
    stack.service.sql(f"CREATE PIPE {table}_PIPE AS COPY INTO {table} FROM @{table}_STAGE")
    put(
        stack.service, tmp_path, f"{table}_STAGE", {"a.csv": "1\n2\n", "b.csv": "3\n", "bad.csv": "4\nfive\n"}
    )
    return table


def start(stack: Stack, run_id: str, **conf: Any) -> None:
    """Run the DAG up to the point where the triggerer waits."""
    api = stack.airflow.api
    api.trigger(WAITING, run_id, conf)
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


def test_downstream_starts_when_copy_has_loaded_the_last_file(stack: Stack, staged: str) -> None:
    start(stack, "by_copy", table=staged, files=["a.csv", "b.csv"])
    stack.service.sql(f"COPY INTO {staged} FROM @{staged}_STAGE FILES = ('a.csv')")
    (row,) = stack.service.sql(f"SELECT COUNT(*) AS N FROM {staged}")
    assert int(row["N"]) == 2
    assert stack.airflow.api.task(WAITING, "by_copy", "loaded")["state"] == "deferred"
    stack.service.sql(f"COPY INTO {staged} FROM @{staged}_STAGE FILES = ('b.csv')")

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


def test_a_file_that_the_pipe_could_not_load_fails_the_run(stack: Stack, staged: str) -> None:
    start(stack, "by_pipe", table=staged, pipe=f"{staged}_PIPE", files=["a.csv", "bad.csv"])
    submit(stack.service, f"LOCAL.PUBLIC.{staged}_PIPE", "a.csv", "bad.csv")

    assert stack.airflow.api.wait_for_run(WAITING, "by_pipe", RUN_SECONDS) == "failed"
    assert stack.airflow.api.task(WAITING, "by_pipe", "loaded")["state"] == "failed"
    text = log_of(stack, "by_pipe")
    assert "load_failed: 1 of 2 files did not load: 'bad.csv' is LOAD_FAILED" in text
    assert "'five'" in text
    assert "(line 2, character 1" in text


def test_days_are_backfilled_once_however_often_they_are_asked_for(stack: Stack) -> None:
    api = stack.airflow.api
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


def test_each_run_loads_what_came_since_the_run_before(stack: Stack, tmp_path: Path) -> None:
    api = stack.airflow.api
    names = {"table": "CAUGHT_UP", "data_dir": str(tmp_path), "ship_lines": 0}

    def ship(file: str, text: str) -> None:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.read_text() + text if path.exists() else text)

    def lines(host: str, first: int, count: int) -> str:
        return "".join(json.dumps({"HOST": host, "LINE": first + n}) + "\n" for n in range(count))

    ship("web1/01.ndjson", lines("web1", 0, 100) + '{"HOST": "web1", ')
    ship("web2/01.ndjson", lines("web2", 0, 50))
    api.trigger(CATCH_UP, "one", names)
    assert api.wait_for_run(CATCH_UP, "one", RUN_SECONDS) == "success"
    assert api.xcom(CATCH_UP, "one", "stream")["rows"] == 150

    ship("web1/01.ndjson", '"LINE": 100}\n')
    ship("web2/02.ndjson", lines("web2", 50, 25))
    api.trigger(CATCH_UP, "two", names)
    assert api.wait_for_run(CATCH_UP, "two", RUN_SECONDS) == "success"
    assert api.xcom(CATCH_UP, "two", "stream")["rows"] == 26

    rows = stack.service.sql(
        "SELECT HOST, COUNT(*) AS N, COUNT(DISTINCT LINE) AS D FROM CAUGHT_UP GROUP BY 1"
    )
    assert {row["HOST"]: (int(row["N"]), int(row["D"])) for row in rows} == {
        "web1": (101, 101),
        "web2": (75, 75),
    }
