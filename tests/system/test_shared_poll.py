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


def test_status_requests_are_those_of_one_poll_of_all_channels(waiting: Waiting) -> None:
    requests = waiting.watch(INTERVALS)

    assert worst_count(requests, INTERVALS, waiting.requests_per_round) <= 1
    assert {len(request.channels) for request in requests} == {100, 50}


def test_each_sensor_ends_within_two_poll_intervals_of_its_commit(waiting: Waiting) -> None:
    for group in (waiting.channels[:50], waiting.channels[50:100]):
        committed = waiting.commit(group, 1)

        ended = waiting.ended(waiting.sensors_of(group, 1), 60)

        assert max(ended.values()) - committed <= 2 * POLL_SECONDS
    assert waiting.ended(waiting.sensors_of(waiting.channels[:100], 1), 1)


def test_a_restart_and_an_answer_503_harm_nobody(waiting: Waiting) -> None:
    service = waiting.proxy.service
    service.restart("answer-status=503x1")
    until(lambda: waiting.proxy.requests[-1].status == 200 and 503 in _statuses(waiting), 60)
    waiting.reopen()

    waiting.commit(waiting.channels[100:], 1)
    waiting.commit(waiting.channels, 2)

    assert len(waiting.ended([f"sensor_{number:04}" for number in range(SENSORS)], 120)) == SENSORS
    for dag_id in waiting.dags:
        assert waiting.airflow.api.wait_for_run(dag_id, RUN_ID, 60) == "success"
    assert _value(waiting, waiting.dags[0], "sensor_0000") == {"w0000": "1"}


def test_the_poll_ends_with_the_last_sensor(waiting: Waiting) -> None:
    requests = waiting.watch(2)

    assert requests == []


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


def _statuses(waiting: Waiting) -> set[int]:
    return {request.status for request in waiting.proxy.requests}
