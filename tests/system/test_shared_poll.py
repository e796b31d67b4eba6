"""Hundreds of deferred sensors on one pipe, under a real scheduler and triggerer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from conftest import Stack
from waiting import POLL_SECONDS, RUN_ID, Waiting, worst_count

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


def test_all_sensors_share_one_poll_and_end_within_two_intervals_of_their_commits(waiting: Waiting) -> None:
    requests = waiting.watch(INTERVALS)

    assert worst_count(requests, INTERVALS, waiting.requests_per_round) <= 1
    assert {len(request.channels) for request in requests} == {100, 50}
    committed = waiting.commit(waiting.channels, 1)
    ended = waiting.ended(waiting.sensors_of(waiting.channels, 1), 60)
    assert max(ended.values()) - committed <= 2 * POLL_SECONDS

    waiting.commit(waiting.channels, 2)
    for dag_id in waiting.dags:
        assert waiting.airflow.api.wait_for_run(dag_id, RUN_ID, 120) == "success"
    value = waiting.airflow.api.xcom(waiting.dags[0], RUN_ID, "sensor_0000")
    # Airflow 3.3.2 stores what a trigger ends a task with as JSON text.
    assert (json.loads(value) if isinstance(value, str) else value) == {"w0000": "1"}
    assert waiting.watch(2) == []
