"""Hundreds of deferred sensors on one pipe, under a real scheduler and triggerer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Stack
from waiting import POLL_SECONDS, RUN_ID, Waiting, until, worst_count

from tests.counting_proxy import counting_proxy

# It compares timestamps, and 300 tasks take their time to start: not for a machine with other work.
pytestmark = [pytest.mark.airflow, pytest.mark.nightly]

DAGS, SENSORS = 20, 300
INTERVALS = 6


@pytest.fixture(scope="module")
def waiting(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    with counting_proxy(stack.service, tmp_path_factory.mktemp("proxy")) as proxy:
        waiting = Waiting(stack.airflow, proxy, DAGS, SENSORS)
        waiting.prepare()
        waiting.start()
        yield waiting
    stack.service.restart()


def test_all_sensors_share_one_poll_and_end_within_two_intervals_of_their_commits(waiting: Waiting) -> None:
    requests = waiting.watch(INTERVALS)

    assert worst_count(requests, INTERVALS, waiting.requests_per_round) <= 1
    assert {len(request.channels) for request in requests} == {100, 50}
    committed = waiting.commit(waiting.channels[:100], 1)
    ended = waiting.ended(waiting.sensors_of(waiting.channels[:100], 1), 60)
    assert max(ended.values()) - committed <= 2 * POLL_SECONDS


def test_a_restart_and_an_answer_503_harm_nobody_and_the_poll_ends_with_the_last_sensor(
    waiting: Waiting,
) -> None:
    waiting.proxy.service.restart("answer-status=503x1")
    seen = waiting.proxy.requests
    until(lambda: seen[-1].status == 200 and 503 in {request.status for request in seen}, 60)

    waiting.commit(waiting.channels[100:], 1)
    waiting.commit(waiting.channels, 2)

    assert len(waiting.ended([f"sensor_{number:04}" for number in range(SENSORS)], 120)) == SENSORS
    for dag_id in waiting.dags:
        assert waiting.airflow.api.wait_for_run(dag_id, RUN_ID, 60) == "success"
    assert _value(waiting, waiting.dags[0], "sensor_0000") == {"w0000": "1"}
    assert waiting.watch(2) == []


def test_targets_from_an_xcom_are_rendered_in_the_triggerer(waiting: Waiting) -> None:
    api = waiting.airflow.api
    api.wait_for_dag("waiting_for_xcom")
    api.unpause("waiting_for_xcom")
    api.trigger("waiting_for_xcom", RUN_ID)
    until(lambda: api.task("waiting_for_xcom", RUN_ID, "wait")["state"] == "deferred", 60)

    waiting.commit(["x0"], 7)

    assert api.wait_for_run("waiting_for_xcom", RUN_ID, 60) == "success"
    assert _value(waiting, "waiting_for_xcom", "wait") == {"x0": "7"}


def _value(waiting: Waiting, dag_id: str, task_id: str) -> Any:
    """The task's value; Airflow 3.3.2 stores what a trigger ends a task with as JSON text."""
    value = waiting.airflow.api.xcom(dag_id, RUN_ID, task_id)
    return json.loads(value) if isinstance(value, str) else value
