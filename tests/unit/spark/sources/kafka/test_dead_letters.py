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

from tests.kafka_topics import keyed_records, produce

COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("NOTE", "VARCHAR"))

_numbers = itertools.count(1)


class Letters:
    """A topic, and the topic of its rows that do not fit."""

    def __init__(self, cluster):
        self.address, self.topic = cluster.address, f"letters{next(_numbers)}"
        self.aside = f"{self.topic}-rejected"
        for name in (self.topic, self.aside):
            cluster.make_topic(name)

    def write(self, values, **fields):
        produce(self.address, self.topic, values, **fields)

    def partition(self):
        values = {"kind": "kafka", "bootstrap_servers": self.address, "topics": [self.topic]}
        (partition, *_) = open_source(source_spec({"timeout_seconds": 30.0, **values}), "fail").partitions()
        return partition

    def gate(self, partition):
        rules = RowRules(COLUMNS, f"kafka:{self.aside}", "app")
        return Admission(rules, (), "ignore", "shop_t_0", IntegerOffset, None, partition.open_dead_letters)

    def load(self):
        """Admit all rows: how many were put aside, and the ids of the others."""
        partition = self.partition()
        gate = self.gate(partition)
        parts = partition.read(partition.resume(None), BatchLimits(rows=30))
        good = [part for part in map(gate.admit, parts) if part is not None]
        gate.settle(good[-1].end)
        lines = [line for part in good for line in bytes(part.body).splitlines()]
        return gate.dead_lettered, [json.loads(line)["ID"] for line in lines]

    def put_aside(self, count, **options):
        return keyed_records(self.address, self.aside, count, **options)


@pytest.fixture
def letters(cluster):
    return Letters(cluster)


def test_bad_rows_are_records_with_position_reason_and_payload_and_an_attempt_repeats_them_by_key(letters):
    letters.write(json.dumps({"ID": one if one % 4 else f"no {one}"}).encode() for one in range(100))
    bad = range(0, 100, 4)

    assert letters.load() == (len(bad), [one for one in range(100) if one % 4])

    first = letters.put_aside(len(bad))
    values = {key: json.loads(value) for key, value, _ in first}
    assert values == {f"shop_t_0:{one}": {"ID": f"no {one}"} for one in bad}
    headers = next(headers for key, _, headers in first if key == "shop_t_0:8")
    assert "NUMBER" in headers.pop("snowpipe.reason")
    assert headers == {
        "snowpipe.channel": "shop_t_0",
        "snowpipe.position": "8",
        "snowpipe.column": "ID",
        "snowpipe.application": "app",
    }

    letters.load()

    both = letters.put_aside(2 * len(bad))
    assert len(both) == 2 * len(bad)
    assert {(key, value) for key, value, _ in both} == {(key, value) for key, value, _ in first}
    # The partition depends on the key alone: only so can compaction find the earlier record.
    positions = {key: [at for at, one in enumerate(both) if one[0] == key] for key, _, _ in both}
    order = sorted(positions, key=lambda key: positions[key][0])
    assert sorted(positions, key=lambda key: positions[key][1]) == order


def test_record_that_cannot_be_decoded_is_put_aside_as_it_came(letters):
    letters.write([b'{"ID":0}', b"\x01 no json"], key=b"k\xff", headers=[("h", b"v")])

    assert letters.load() == (1, [0])

    ((key, value, headers),) = letters.put_aside(1, decoded=False)
    assert (key, value) == (b"shop_t_0:1", b"\x01 no json")
    assert "no JSON object" in headers.pop("snowpipe.reason").decode()
    assert headers == {
        "h": b"v",
        "snowpipe.key": b"k\xff",
        "snowpipe.channel": b"shop_t_0",
        "snowpipe.position": b"1",
        "snowpipe.application": b"app",
    }


def test_brokers_that_do_not_take_dead_letters_are_named_before_a_row_is_sent(letters):
    partition, letters.aside = letters.partition(), "away"
    object.__setattr__(partition.settings.spec, "timeout_seconds", 0.1)
    object.__setattr__(partition.settings.spec, "bootstrap_servers", "127.0.0.1:1")
    with pytest.raises(DeadLetterError, match=r"channel 'shop_t_0': dead letters .* 'away' of 127.0.0.1:1"):
        letters.gate(partition)


def test_topic_that_cannot_take_the_dead_letters_is_refused_with_the_plan():
    for source, path, error in [
        ({"topics": ["orders", "returns"]}, "kafka:returns", "which the source reads itself"),
        ({"topic_pattern": "orders.*"}, "kafka:orders-rejected", "which the source reads itself"),
        ({"topics": ["orders"]}, "kafka:no topic", "must be a topic's name"),
        ({"topics": ["orders"]}, "kafka://k1:9092/rejected", "must be a topic's name"),
        (None, "kafka:rejected", "brokers"),
    ]:
        kafka = {"kind": "kafka", "bootstrap_servers": "k:1", **(source or {})}
        spec = source_spec(kafka if source else {"kind": "files", "path": "/data"})
        rules = {"credentials_variable": "V", "on_error": "dead_letter", "dead_letter_path": path}
        pipe = PipeName("D", "S", "P")
        with pytest.raises(ConfigurationError, match=error):
            JobPlan("a", "https://x", pipe, "c", spec.default_name, spec, columns=COLUMNS, **rules)
