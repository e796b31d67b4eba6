"""The Kafka source on a broker without Java and Maven: transactions, groups and dead letters."""

import json

import pytest

from airflow_provider_snowpipe.spark.row_gate import RowGate
from airflow_provider_snowpipe.spark.row_rules import RowRules
from airflow_provider_snowpipe.spark.sources import open_source, source_spec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.table_columns import TableColumn

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import create_topic, group_offsets, keyed_records, numbered, produce, transaction
from tests.noida_broker import NoidaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with NoidaBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic(request):
    return "t" + str(abs(hash(request.node.nodeid)) % 10**9)


def _source(broker, topic, on_data_loss="fail", **changes):
    values = {
        "kind": "kafka",
        "bootstrap_servers": broker.address,
        "topics": [topic],
        "timeout_seconds": 20.0,
    }
    return open_source(source_spec({**values, **changes}), on_data_loss)


def _read(partition, committed=None):
    place = partition.resume(committed)
    parts = [] if place is None else partition.read(place, BatchLimits())
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


def test_groups_offsets_follow_the_committed_tokens_and_stand_in_for_a_missing_one(broker, topic):
    create_topic(broker.address, topic, 3)
    produce(broker.address, topic, numbered(range(30)), partition=lambda row: row % 3)
    source = _source(broker, topic, group_id=f"g-{topic}")
    zero, one, two = source.partitions()
    assert [_read(each) for each in (zero, one, two)] == [list(range(first, 30, 3)) for first in range(3)]

    source.finish({zero.name: IntegerOffset(9), two.name: IntegerOffset(4)})

    assert group_offsets(broker.address, f"g-{topic}", topic, 3) == [10, 0, 5]
    again = _source(broker, topic, group_id=f"g-{topic}").partitions()
    assert [len(_read(each)) for each in again] == [0, 10, 5]


def test_dead_letters_are_in_their_topic_before_the_good_rows_go_on(broker, topic):
    letters = f"{topic}-rejected"
    create_topic(broker.address, topic)
    create_topic(broker.address, letters, 2, {"cleanup.policy": "compact"})
    produce(broker.address, topic, [b'{"ID":1}', b'{"ID":"one"}', b'{"ID":2}'])
    (partition,) = _source(broker, topic).partitions()
    rules = RowRules((TableColumn("ID", "NUMBER(38,0)"),), f"kafka:{letters}", "app")
    gate = RowGate(rules, f"shop_{topic}_0", IntegerOffset, None, partition.open_letters)

    (good,) = [gate.admit(part) for part in partition.read(0, BatchLimits())]

    assert [json.loads(line)["ID"] for line in bytes(good.body).splitlines()] == [1, 2]
    ((key, value, headers),) = keyed_records(broker.address, letters, 1)
    assert (key, value) == (f"shop_{topic}_0:1", '{"ID":"one"}')
    assert headers["snowpipe.position"] == "1"
