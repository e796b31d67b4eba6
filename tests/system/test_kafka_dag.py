"""The example DAG of a Kafka topic under a real Airflow, with a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from conftest import Stack
from flights_run import RUN_SECONDS

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.checkpoints import shown
from tests.kafka_broker import KafkaBroker, broker_jars
from tests.kafka_topics import create_topic, group_offsets, numbered, produce
from tests.noida_broker import NoidaBroker

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

DAG = "kafka_to_snowflake"
# The DAG's own defaults: the scheduler may start a run by its schedule as soon as the DAG is unpaused.
TABLE, TOPIC, GROUP = "EVENTS", "events", "snowpipe-events"


@pytest.fixture
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker: the small one, or Apache Kafka from Maven Central; skipped without both."""
    folder = tmp_path_factory.mktemp("broker")
    with ExitStack() as running:
        try:
            yield running.enter_context(NoidaBroker(folder)).address
        except pytest.skip.Exception:
            yield running.enter_context(KafkaBroker(folder, broker_jars())).address


# integration/test_kafka_job submits a Kafka load daily; here are two submissions.
@pytest.mark.nightly
def test_each_record_is_loaded_once_over_two_runs_and_the_group_follows(stack: Stack, brokers: str) -> None:
    api = stack.airflow.api
    stack.service.sql(f"DROP TABLE IF EXISTS {TABLE}")  # other tests' rows are of no topic
    create_topic(brokers, TOPIC, 2)
    produce(brokers, TOPIC, numbered(range(200)), partition=lambda row: row % 2)
    produce(brokers, TOPIC, [None], partition=0)  # a tombstone, which the DAG drops and the token passes
    api.add_connection("kafka_default", {"conn_type": "kafka", "extra": {"bootstrap.servers": brokers}})
    stack.unpause(DAG)

    _run(stack, "first")

    assert _ids(stack) == list(range(200))
    assert group_offsets(brokers, GROUP, TOPIC, 2) == [101, 100]

    produce(brokers, TOPIC, numbered(range(200, 210)), partition=1)
    _run(stack, "second")
    api.pause(DAG)

    assert _ids(stack) == list(range(210))
    assert group_offsets(brokers, GROUP, TOPIC, 2) == [101, 110]
    with stack.service.client(TABLE) as client:
        names = [f"{DAG}_{TOPIC}_{number}" for number in range(2)]
        found = client.channel_statuses(names)
    assert [shown(found[name].committed) for name in names] == ["100", "109"]


def _run(stack: Stack, run_id: str) -> None:
    api = stack.airflow.api
    api.trigger(DAG, run_id)
    state = api.wait_for_run(DAG, run_id, 2 * RUN_SECONDS)
    logs = [
        f"{task['task_id']}: {line}"
        for task in api.tasks(DAG, run_id)
        if task["state"] == "failed"
        for line in api.task_log(DAG, run_id, task["task_id"], task["try_number"])[-30:]
    ]
    assert state == "success", "\n".join(logs)


def _ids(stack: Stack) -> list[int]:
    return [int(row["ID"]) for row in stack.service.sql(f"SELECT ID FROM {TABLE} ORDER BY ID")]
