"""Rows that do not fit the table, put aside in a topic of librdkafka's mock brokers."""

import itertools
import json

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, DeadLetterError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from airflow_provider_snowpipe.streaming.row_gate import Admission
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, keyed_records, produce

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("NOTE", "VARCHAR"))


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def topic(cluster):
    name = f"letters{next(_numbers)}"
    cluster.make_topic(name)
    return name


def _source(cluster, topic, **changes):
    values = {"kind": "kafka", "bootstrap_servers": cluster.address, "topics": [topic], **changes}
    return source_spec({"timeout_seconds": 30.0, **values})


def _gate(partition, dead_letters):
    rules = RowRules(COLUMNS, f"kafka:{dead_letters}", "app")
    return Admission(rules, (), "ignore", "shop_t_0", IntegerOffset, None, partition.open_dead_letters)


def _values(ids):
    return [json.dumps({"ID": f"no {one}" if one % 4 == 0 else one}).encode() for one in ids]


def _admitted(partition, dead_letters):
    gate = _gate(partition, dead_letters)
    parts = partition.read(partition.resume(None), BatchLimits(rows=30))
    good = [part for part in map(gate.admit, parts) if part is not None]
    gate.settle(good[-1].end)
    return gate, [json.loads(line)["ID"] for part in good for line in bytes(part.body).splitlines()]


def test_bad_rows_are_records_with_position_reason_and_payload_and_an_attempt_repeats_them_by_key(
    cluster, topic
):
    produce(cluster.address, topic, _values(range(100)))
    dead_letters = f"{topic}-rejected"
    cluster.make_topic(dead_letters)
    (partition, *_) = open_source(_source(cluster, topic), "fail").partitions()
    bad = [one for one in range(100) if one % 4 == 0]

    gate, good = _admitted(partition, dead_letters)

    assert good == [one for one in range(100) if one % 4]
    assert gate.dead_lettered == len(bad)
    first = keyed_records(cluster.address, dead_letters, len(bad))
    assert {key: json.loads(value) for key, value, _ in first} == {
        f"shop_t_0:{one}": {"ID": f"no {one}"} for one in bad
    }
    headers = next(headers for key, _, headers in first if key == "shop_t_0:8")
    assert "NUMBER" in headers.pop("snowpipe.reason")
    assert headers == {
        "snowpipe.channel": "shop_t_0",
        "snowpipe.position": "8",
        "snowpipe.column": "ID",
        "snowpipe.application": "app",
    }

    _admitted(partition, dead_letters)

    both = keyed_records(cluster.address, dead_letters, 2 * len(bad))
    assert len(both) == 2 * len(bad)
    assert {(key, value) for key, value, _ in both} == {(key, value) for key, value, _ in first}


def test_partition_of_a_dead_letter_depends_on_its_key_alone(cluster, topic):
    """Only so can compaction find the earlier record."""
    produce(cluster.address, topic, _values(range(40)))
    dead_letters = f"{topic}-rejected"
    cluster.make_topic(dead_letters)
    (partition, *_) = open_source(_source(cluster, topic), "fail").partitions()
    _admitted(partition, dead_letters)
    once = [key for key, _, _ in keyed_records(cluster.address, dead_letters, 10)]
    _admitted(partition, dead_letters)

    twice = [key for key, _, _ in keyed_records(cluster.address, dead_letters, 20)]

    assert len(set(twice)) == 10
    positions = {key: [position for position, one in enumerate(twice) if one == key] for key in once}
    order = sorted(once, key=lambda key: positions[key][0])
    assert sorted(once, key=lambda key: positions[key][1]) == order


def test_brokers_that_do_not_take_dead_letters_are_named_before_a_row_is_sent(cluster, topic):
    (partition, *_) = open_source(_source(cluster, topic), "fail").partitions()
    object.__setattr__(partition.settings.spec, "timeout_seconds", 0.1)
    object.__setattr__(partition.settings.spec, "bootstrap_servers", "127.0.0.1:1")

    with pytest.raises(DeadLetterError, match=r"channel 'shop_t_0': dead letters .* 'away' of 127.0.0.1:1"):
        _gate(partition, "away")


@pytest.mark.parametrize(
    ("source", "path", "error"),
    [
        ({"topics": ["orders", "returns"]}, "kafka:returns", "which the source reads itself"),
        ({"topic_pattern": "orders.*"}, "kafka:orders-rejected", "which the source reads itself"),
        ({"topics": ["orders"]}, "kafka:no topic", "must be a topic's name"),
        ({"topics": ["orders"]}, "kafka://k1:9092/rejected", "must be a topic's name"),
        ({"kind": "files", "path": "/data"}, "kafka:rejected", "brokers"),
    ],
    ids=["own-topic", "own-pattern", "blank", "address", "files"],
)
def test_topic_that_cannot_take_the_dead_letters_is_refused_with_the_plan(source, path, error):
    values = {"kind": "kafka", "bootstrap_servers": "k:1", **source}
    if values["kind"] == "files":
        values = {"kind": "files", "path": "/data"}
    spec = source_spec(values)
    with pytest.raises(ConfigurationError, match=error):
        JobPlan(
            application="a",
            account_url="https://x",
            pipe=PipeName("D", "S", "P"),
            channel_prefix="c",
            source_name=spec.default_name,
            source=spec,
            credentials_variable="V",
            on_error="dead_letter",
            dead_letter_path=path,
            columns=COLUMNS,
        )


def test_record_that_cannot_be_decoded_is_put_aside_as_it_came(cluster, topic):
    produce(cluster.address, topic, [b'{"ID":0}', b"\x01 no json"], key=b"k\xff", headers=[("h", b"v")])
    dead_letters = f"{topic}-rejected"
    cluster.make_topic(dead_letters)
    (partition, *_) = open_source(_source(cluster, topic), "fail").partitions()

    gate, good = _admitted(partition, dead_letters)

    assert (good, gate.dead_lettered) == ([0], 1)
    ((key, value, headers),) = keyed_records(cluster.address, dead_letters, 1, decoded=False)
    assert (key, value) == (b"shop_t_0:1", b"\x01 no json")
    assert "no JSON object" in headers.pop("snowpipe.reason").decode()
    assert headers == {
        "h": b"v",
        "snowpipe.key": b"k\xff",
        "snowpipe.channel": b"shop_t_0",
        "snowpipe.position": b"1",
        "snowpipe.application": b"app",
    }
