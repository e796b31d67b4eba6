"""kill -9 of a worker, the scheduler and the triggerer of one Airflow, with loads and waits on their way.

The last module: a task that the scheduler had queued as it died is found again after minutes only.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import requests
from conftest import Stack
from runs import ROWS, ROWS_EACH, DagRun, LoadRun, query, wait_for

from tests.checkpoints import shown

pytestmark = [pytest.mark.airflow, pytest.mark.spark]


@dataclass
class Deaths:
    """A load that waits for its commit, and two waits in the triggerer; what was seen of them.

    :param load: its worker dies after it has submitted, and the scheduler while the driver waits
    :param deferred: a load that waits in the triggerer, which dies
    """

    load: LoadRun
    deferred: LoadRun
    sensed: DagRun
    driver: int = 0
    spark_page: str = ""
    link: str | None = None
    retry_log: str = ""
    downstream_without_scheduler: str | None = None
    after_death: tuple[Any, ...] = ()
    committed_at: float = 0.0


@pytest.fixture(scope="module")
def deaths(stack: Stack) -> Deaths:
    busy = "SELECT COUNT(*) FROM task_instance WHERE state IN ('scheduled', 'queued', ?)"
    wait_for(lambda: query(stack, busy, "running") == [(0,)], "tasks of other runs do not end")
    stack.service.sql("CREATE TABLE SENSED (N INTEGER)")
    with stack.held(commits=True):
        seen = Deaths(
            LoadRun(stack, "durable_load", "ORPHANED", stack.folder),
            LoadRun(stack, "deferred_load", "DEFERRED", stack.folder),
            DagRun(stack, "sensed_load", "sensed"),
        )
        _kill_worker(seen)
        _kill_triggerer_and_scheduler(stack, seen)
    load = seen.load
    wait_for(lambda: load.rows() == ROWS, "the load did not go on without a scheduler")
    load.wait_for_state("stream", "success")
    seen.downstream_without_scheduler = load.task("downstream")["start_date"]
    stack.airflow.start_process("scheduler")
    for run in (load, seen.deferred, seen.sensed):
        run.wait()
    return seen


def _kill_worker(seen: Deaths) -> None:
    """Kill the worker of the load, and wait until the retry waits for the same driver."""
    load = seen.load
    wait_for(lambda: all(one.exists for one in load.statuses().values()), "the driver opens no channels")
    driver = load.driver()
    seen.driver = driver.pid
    wait_for(lambda: load.xcom("stream", "spark_ui"), "no address of Spark's page")
    page = load.xcom("stream", "spark_ui")
    seen.spark_page = requests.get(f"{page}/environment/", timeout=30).text
    seen.link = load.spark_link()
    assert seen.link == page
    worker = driver.parent()
    assert worker is not None
    worker.kill()
    psutil.wait_procs([worker], timeout=120)
    assert driver.is_running()
    wait_for(
        lambda: (
            load.task("stream")["try_number"] == 2 and "nothing is submitted" in "\n".join(load.log("stream"))
        ),
        "the retry did not find the driver",
    )
    seen.retry_log = "\n".join(load.log("stream"))


def _kill_triggerer_and_scheduler(stack: Stack, seen: Deaths) -> None:
    """Kill both while two waits are deferred; another triggerer takes these over, without a scheduler."""
    waits = ((seen.sensed, "wait_for_commit"), (seen.deferred, "stream"))

    def triggerers() -> set[int | None]:
        return {run.triggerer(task_id) for run, task_id in waits}

    for run, task_id in waits:
        run.wait_until_waiting(task_id)
    wait_for(lambda: None not in triggerers(), "nobody took the triggers")
    first = triggerers()
    stack.airflow.kill_process("triggerer")
    stack.airflow.kill_process("scheduler")
    stack.airflow.start_process("triggerer")
    wait_for(lambda: not triggerers() & {None, *first}, "nobody took the triggers over")
    states = [run.task(task_id)["state"] for run, task_id in waits]
    seen.after_death = (*states, seen.deferred.rows(), seen.deferred.spark_processes())
    seen.committed_at = time.time()


def test_a_retry_goes_on_with_the_driver_that_the_killed_worker_started(deaths: Deaths) -> None:
    load = deaths.load
    load.assert_every_row_is_there_once()
    assert (load.task("stream")["try_number"], load.applications) == (2, 1)
    # Java and Python of the driver, by their numbers, which begin again at some time.
    assert re.search(rf"\(process (\d+, )*{deaths.driver}\b", deaths.retry_log)
    assert load.xcom("stream")["rows"] == ROWS
    assert "snowpipe progress total done=" in "\n".join(load.log("stream"))
    assert deaths.downstream_without_scheduler is None


def test_a_link_leads_to_sparks_page_while_the_driver_lives(deaths: Deaths) -> None:
    assert deaths.load.application in deaths.spark_page
    assert deaths.link
    assert not psutil.pid_exists(deaths.driver)
    assert not deaths.load.spark_link()


def test_waits_go_on_in_another_triggerer_and_end_after_the_commit(deaths: Deaths) -> None:
    assert deaths.after_death == ("deferred", "deferred", 0, [])
    deaths.deferred.assert_every_row_is_there_once()
    assert deaths.deferred.applications == 1
    assert deaths.committed_at < deaths.deferred.started("downstream")
    assert deaths.sensed.xcom("downstream") == 3


def test_the_asset_events_of_a_deferred_load_hold_its_tokens(stack: Stack, deaths: Deaths) -> None:
    def events(uri: str) -> list[tuple[Any, str | None]]:
        joined = "asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.uri = ? ORDER BY e.id"
        found = query(stack, f"SELECT e.extra, e.partition_key FROM {joined}", uri)
        return [(json.loads(extra), key) for extra, key in found]

    deferred, table = deaths.deferred, "snowpipe://local/LOCAL/PUBLIC/DEFERRED"
    value = deferred.xcom("stream")
    assert value["rows"] == ROWS
    tokens = {name: channel["to"] for name, channel in value["channels"].items()}
    assert set(map(shown, tokens.values())) == {f"1.ndjson:{ROWS_EACH}"}
    facts = {"pipe": "LOCAL.PUBLIC.DEFERRED-STREAMING", "committed": True}
    assert events(table) == [({**facts, "tokens": tokens, "rows": ROWS}, None)]
    first = deferred.channels[0]
    of_channel = {**facts, "tokens": {first: tokens[first]}, "rows": ROWS_EACH}
    assert events(f"{table}/{first}") == [(of_channel, "a")]
