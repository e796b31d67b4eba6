"""The Kafka source on a broker without Java and Maven: transactions, groups and dead letters."""

import json

import pytest

from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import create_topic, transaction
from tests.spark_job import numbered_name


@pytest.fixture
def broker(small_broker):
    return small_broker


@pytest.fixture
def topic():
    return numbered_name("small")


def _source(broker, topic, on_data_loss="fail", **changes):
    values = {
        "kind": "kafka",
        "bootstrap_servers": broker.address,
        "topics": [topic],
        "timeout_seconds": 20.0,
    }
    return open_source(source_spec({**values, **changes}), on_data_loss)


def _read(partition, committed=None):
    position = partition.resume(committed)
    parts = [] if position is None else partition.read(position, BatchLimits())
    return [json.loads(line)["ID"] for part in parts for line in bytes(part.body).splitlines()]


def test_rows_of_aborted_and_open_transactions_are_left_out(broker, topic):
    create_topic(broker.address, topic)
    transaction(broker.address, topic, range(10), end="commit")
    transaction(broker.address, topic, range(100, 150), end="abort")
    transaction(broker.address, topic, range(10, 20), end="commit")
    (partition,) = _source(broker, topic).partitions()

    assert _read(partition) == list(range(20))
    assert _read(partition, IntegerOffset(partition.bounds.end - 1)) == []

    producer = transaction(broker.address, topic, range(20, 30), end="later")
    (behind_open,) = _source(broker, topic).partitions()
    assert _read(behind_open) == list(range(20))
    producer.commit_transaction(30)
    (after_commit,) = _source(broker, topic).partitions()
    assert _read(after_commit) == list(range(30))
    (everything,) = _source(broker, topic, isolation="read_uncommitted").partitions()
    assert len(_read(everything)) == 80
