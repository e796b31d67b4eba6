"""Topics of librdkafka's mock brokers in real Spark: our stream, and a job whose Python worker is killed."""

from __future__ import annotations

import json
import shutil

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.kafka_stream import TopicStream
from tests.kafka_topics import MockCluster, group_offsets, keyed_records, numbered, produce
from tests.spark_deeds import Deed, deeds_of, doing
from tests.spark_groups import LIMITS, load
from tests.spark_job import SparkJob, numbered_name
from tests.spark_session import Door

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")


pytestmark = pytest.mark.spark
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def stream(spark, cluster, local_service, tmp_path):
    name, columns = numbered_name("TOPIC"), "ID NUMBER, NOTE VARCHAR"
    cluster.make_topic(name)
    door = Door(local_service, name, tmp_path / "credentials.json", columns=columns).create()
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

    shutil.rmtree(stream.checkpoint)
    produce(cluster.address, stream.topic, numbered(range(410, 415)), partition=0)
    assert stream.run(**group) == 5
    assert sorted(stream.door.ids()) == list(range(415))
    assert group_offsets(cluster.address, group["groupId"], stream.topic, PARTITIONS)[1:] == [100, 110, 100]


def test_micro_batch_that_comes_again_sends_only_what_is_not_committed(stream, cluster):
    produce(cluster.address, stream.topic, numbered(range(100)), partition=1)
    assert stream.run(maxOffsetsPerTrigger=40) == 100
    assert stream.batches() == [0, 1, 2]
    stream.forget_commit(2)
    produce(cluster.address, stream.topic, numbered(range(100, 103)), partition=1)

    assert stream.run() == 3
    assert stream.door.ids() == list(range(103))


def test_token_of_another_topic_and_a_secret_in_the_options_end_the_query(stream, cluster):
    produce(cluster.address, stream.topic, numbered(range(5)), partition=0)
    stream.append(0, [90])

    assert "offset 91 is the next one of partition 0 of topic" in stream.refused()
    assert "is a secret" in stream.refused(**{"kafka.sasl.password": "hunter2"})
    assert stream.door.ids() == [90]


def test_killed_worker_of_a_job_loses_and_doubles_no_row_and_no_letter(
    spark, cluster, local_service, tmp_path
):
    service, topic = local_service, numbered_name("KILLED")
    letters = f"{topic}-rejected"
    cluster.make_topic(topic)
    cluster.make_topic(letters)
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR)")
    bad = [row for row in range(800) if row % 100 == 1]
    values = [json.dumps({"ID": f"no {row}" if row in bad else row}).encode() for row in range(800)]
    produce(cluster.address, topic, values, partition=_spread)
    source = {
        "kind": "kafka",
        "bootstrap_servers": cluster.address,
        "topics": [topic],
        "timeout_seconds": 30.0,
    }
    options = {
        "on_error": "dead_letter",
        "dead_letter_path": f"kafka:{letters}",
        "columns": (TableColumn("ID", "NUMBER(38,0)"), TableColumn("NOTE", "VARCHAR")),
        "limits": LIMITS,
    }
    job = SparkJob(service, tmp_path / "runs", topic, source_spec(source), options)
    deeds = deeds_of(tmp_path / "deeds", [Deed("kill-worker", "received", f"{topic}_1")])

    with doing(deeds):
        run = load(job, spark.sparkContext)

    assert len(deeds.notes("kill-worker")) == 1
    rows = [int(row["ID"]) for row in service.sql(f"SELECT ID FROM LOCAL.PUBLIC.{topic}")]
    for number in range(PARTITIONS):
        wanted = [row for row in range(number, 800, PARTITIONS) if row not in bad]
        assert [row for row in rows if row % PARTITIONS == number] == wanted
    assert len(rows) == 800 - len(bad)
    assert [one.committed for one in run.channels] == [True] * PARTITIONS
    found = keyed_records(cluster.address, letters, len(bad))
    assert {(key, value) for key, value, _ in found} == {
        (f"test_{topic}_1:{row // PARTITIONS}", json.dumps({"ID": f"no {row}"})) for row in bad
    }
