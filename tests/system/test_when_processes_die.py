"""kill -9 of a worker, the scheduler and the triggerer of one Airflow, with loads and waits on their way.

The last module: a task that the scheduler had queued as it died is found again after minutes only.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import psutil
import pytest
import requests
from airflow_database import events_of, partitions_of, query
from conftest import Stack
from flights_run import RUN_SECONDS, wait_for, wait_until_left
from load_run import ROWS, ROWS_EACH, LoadRun

from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

SENSED = "sensed_load"


@dataclass
class Deaths:
    """A load that waits for its commit, and two waits in the triggerer; what was seen of them.

    :param load: its worker dies after it has submitted, and the scheduler while the driver waits
    :param deferred: a load that waits in the triggerer, which dies
    """

    load: LoadRun
    deferred: LoadRun
    driver: int = 0
    spark_page: str = ""
    link: str | None = None
    retry_log: str = ""
    rows_without_scheduler: int = 0
    downstream_without_scheduler: str | None = None
    waits_after_death: list[str] = field(default_factory=list)
    rows_after_death: int = -1
    drivers_of_deferred: int = -1
    committed_at: float = 0.0
    sensed_state: str = ""


@pytest.fixture(scope="module")
def deaths(stack: Stack) -> Deaths:
    api = stack.airflow.api
    wait_for(lambda: _busy(stack) == 0, "tasks of other runs do not end", RUN_SECONDS)
    stack.service.sql("CREATE TABLE SENSED (N INTEGER)")
    stack.unpause(SENSED)
    with stack.held_commits():
        seen = Deaths(
            LoadRun(stack, "durable_load", "ORPHANED", stack.folder),
            LoadRun(stack, "deferred_load", "DEFERRED", stack.folder),
        )
        api.trigger(SENSED, "sensed", {"table": "SENSED"})
        _kill_worker(seen)
        _kill_triggerer_and_scheduler(stack, seen)
    load = seen.load
    wait_for(lambda: load.rows() == ROWS, "the load did not go on without a scheduler", RUN_SECONDS)
    load.wait_for_state("stream", "success")
    seen.rows_without_scheduler = load.rows()
    seen.downstream_without_scheduler = load.task("downstream")["start_date"]
    stack.airflow.start_process("scheduler")
    load.wait()
    seen.deferred.wait()
    seen.sensed_state = api.wait_for_run(SENSED, "sensed", RUN_SECONDS)
    return seen


def _kill_worker(seen: Deaths) -> None:
    """Kill the worker of the load, and wait until the retry waits for the same driver."""
    load = seen.load
    load.wait_until_begun()
    driver = load.driver()
    seen.driver = driver.pid
    wait_for(lambda: bool(load.xcom("stream", "spark_ui")), "no address of Spark's page", RUN_SECONDS)
    page = load.xcom("stream", "spark_ui")
    seen.spark_page = requests.get(f"{page}/environment/", timeout=30).text
    seen.link = load.links("stream")["Spark UI"]
    assert seen.link == page
    worker = driver.parent()
    assert worker is not None
    worker.kill()
    psutil.wait_procs([worker], timeout=120)
    assert driver.is_running()
    wait_for(
        lambda: load.task("stream")["try_number"] == 2 and "nothing is submitted" in "\n".join(load.log()),
        "the retry did not find the driver",
        RUN_SECONDS,
    )
    seen.retry_log = "\n".join(load.log())


def _kill_triggerer_and_scheduler(stack: Stack, seen: Deaths) -> None:
    """Kill both while two waits are deferred; another triggerer takes these over, without a scheduler."""
    api, deferred = stack.airflow.api, seen.deferred

    def sensed() -> dict[str, object]:
        return api.task(SENSED, "sensed", "wait_for_commit")

    def triggerers() -> set[int | None]:
        return {(task.get("triggerer_job") or {}).get("id") for task in (sensed(), deferred.task("stream"))}

    deferred.wait_for_state("stream", "deferred")
    wait_for(lambda: sensed()["state"] == "deferred", "the sensor did not defer", RUN_SECONDS)
    wait_until_left(stack.airflow, deferred.dag_id, deferred.run_id, "stream")
    wait_until_left(stack.airflow, SENSED, "sensed", "wait_for_commit")
    wait_for(lambda: None not in triggerers(), "nobody took the triggers", RUN_SECONDS)
    first = triggerers()
    stack.airflow.kill_process("triggerer")
    stack.airflow.kill_process("scheduler")
    stack.airflow.start_process("triggerer")
    wait_for(lambda: not triggerers() & {None, *first}, "nobody took the triggers over", RUN_SECONDS)
    seen.waits_after_death = [str(task["state"]) for task in (sensed(), deferred.task("stream"))]
    seen.rows_after_death = deferred.rows()
    seen.drivers_of_deferred = len(deferred.spark_processes())
    seen.committed_at = time.time()


def _busy(stack: Stack) -> int:
    statement = "SELECT COUNT(*) FROM task_instance WHERE state IN ('scheduled', 'queued', ?)"
    ((count,),) = query(stack, statement, "running")
    return int(count)


def test_a_retry_goes_on_with_the_driver_that_the_killed_worker_started(stack: Stack, deaths: Deaths) -> None:
    deaths.load.assert_every_row_is_there_once()
    assert deaths.load.task("stream")["try_number"] == 2
    assert deaths.load.applications == 1
    # Java and Python of the driver, by their numbers, which begin again at some time.
    assert re.search(rf"\(process (\d+, )*{deaths.driver}\b", deaths.retry_log)
    assert deaths.load.xcom("stream")["rows"] == ROWS
    assert "snowpipe progress total done=" in "\n".join(deaths.load.log())


def test_a_load_ends_without_its_scheduler_and_the_next_one_goes_on(stack: Stack, deaths: Deaths) -> None:
    assert deaths.rows_without_scheduler == ROWS
    assert deaths.downstream_without_scheduler is None
    assert deaths.load.xcom("downstream") == ROWS


def test_a_link_leads_to_sparks_page_while_the_driver_lives(stack: Stack, deaths: Deaths) -> None:
    assert deaths.load.application in deaths.spark_page
    assert deaths.link
    assert not psutil.pid_exists(deaths.driver)
    assert not deaths.load.links("stream")["Spark UI"]


def test_waits_go_on_in_another_triggerer_and_end_after_the_commit(stack: Stack, deaths: Deaths) -> None:
    assert deaths.waits_after_death == ["deferred", "deferred"]
    assert (deaths.rows_after_death, deaths.drivers_of_deferred) == (0, 0)
    deaths.deferred.assert_every_row_is_there_once()
    assert deaths.deferred.applications == 1
    assert deaths.committed_at < deaths.deferred.started("downstream")
    assert deaths.sensed_state == "success"
    assert stack.airflow.api.xcom(SENSED, "sensed", "downstream") == 3


def test_the_asset_events_of_a_deferred_load_hold_its_tokens(stack: Stack, deaths: Deaths) -> None:
    deferred = deaths.deferred
    value = deferred.xcom("stream")
    assert value["rows"] == ROWS
    tokens = {name: channel["to"] for name, channel in value["channels"].items()}
    assert set(map(shown, tokens.values())) == {f"1.ndjson:{ROWS_EACH}"}
    facts = {"pipe": "LOCAL.PUBLIC.DEFERRED-STREAMING", "committed": True}
    assert events_of(stack, "deferred_rows") == [{**facts, "tokens": tokens, "rows": ROWS}]
    one = {deferred.channels[0]: tokens[deferred.channels[0]]}
    assert events_of(stack, "deferred_channel") == [{**facts, "tokens": one, "rows": ROWS_EACH}]
    assert partitions_of(stack, "deferred_channel") == ["a"]
