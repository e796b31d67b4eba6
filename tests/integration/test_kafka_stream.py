"""``format("snowpipe_kafka")`` into ``format("snowpipe")``: librdkafka's mock, Spark and local service."""

from __future__ import annotations

import shutil
import zlib

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_stream import TopicStream
from tests.kafka_topics import MockCluster, group_offsets, numbered, produce
from tests.spark_session import Door, session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session(tmp_path_factory.mktemp("spark"), "local[2,4]") as running:
        yield running


@pytest.fixture
def stream(spark, cluster, local_service, tmp_path, request):
    name = f"T_{zlib.crc32(request.node.nodeid.encode()):08X}"
    cluster.make_topic(name)
    door = Door(
        local_service, name, tmp_path / "credentials.json", columns="ID NUMBER, NOTE VARCHAR"
    ).create()
    return TopicStream(spark, door, cluster.address, name, tmp_path / "checkpoint")


def _spread(row):
    return row % PARTITIONS


def test_stream_goes_on_from_its_checkpoint_and_without_it_from_the_committed_tokens(stream, cluster):
    group = {"groupId": f"g-{stream.topic}"}
    produce(cluster.address, stream.topic, numbered(range(400)), partition=_spread)

    assert stream.run(**group) == 400
    assert sorted(stream.door.ids()) == list(range(400))
    assert stream.tokens(PARTITIONS) == ["99"] * 4

    produce(cluster.address, stream.topic, numbered(range(400, 410)), partition=2)
    assert stream.run(**group) == 10
    assert stream.tokens(PARTITIONS) == ["99", "99", "109", "99"]
    assert group_offsets(cluster.address, group["groupId"], stream.topic, PARTITIONS) == [100] * 4

    shutil.rmtree(stream.checkpoint)
    produce(cluster.address, stream.topic, numbered(range(410, 415)), partition=0)
    assert stream.run(**group) == 5
    assert sorted(stream.door.ids()) == list(range(415))
    assert stream.run(**group) == 0


def test_micro_batch_that_comes_again_sends_only_what_is_not_committed(stream, cluster):
    produce(cluster.address, stream.topic, numbered(range(100)), partition=1)
    assert stream.run(maxOffsetsPerTrigger=40) == 100
    assert stream.batches() == [0, 1, 2]
    stream.forget_commit(2)
    produce(cluster.address, stream.topic, numbered(range(100, 103)), partition=1)

    assert stream.run() == 3
    assert stream.door.ids() == list(range(103))


def test_tokens_win_over_the_checkpoint_whichever_is_ahead(stream, cluster):
    produce(cluster.address, stream.topic, numbered(range(50)), partition=3)
    assert stream.run() == 50
    produce(cluster.address, stream.topic, numbered(range(50, 60)), partition=3)
    stream.append(3, range(50, 55))

    assert stream.run() == 5
    assert stream.door.ids() == list(range(60))

    stream.door.service.sql(f"DELETE FROM LOCAL.PUBLIC.{stream.door.table} WHERE ID >= 45")
    stream.set_token(3, "44")
    produce(cluster.address, stream.topic, numbered(range(60, 62)), partition=3)
    assert stream.run() == 17
    assert stream.door.ids() == list(range(62))


def test_token_of_another_topic_and_a_secret_in_the_options_end_the_query(stream, cluster):
    produce(cluster.address, stream.topic, numbered(range(5)), partition=0)
    stream.append(0, [90])

    assert "is committed, but partition 0 of topic" in stream.refused()
    assert "is a secret" in stream.refused(**{"kafka.sasl.password": "hunter2"})
    assert stream.door.ids() == [90]
