"""The job on a Kafka source against a real local service.

The brokers are librdkafka's mock, which serves other processes too.
"""

import json
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.admin import open_when_committed
from tests.local_connection import append
from tests.spark_job import SparkJob, numbered_name

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, group_offsets, numbered, produce

pytestmark = pytest.mark.spark
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def topic(cluster):
    name = numbered_name("KAFKA_JOB")
    cluster.make_topic(name)
    return name


@pytest.fixture
def job(local_service, tmp_path, topic, cluster, shared_spark):
    """A job on one topic and a table of the same name."""
    columns = "ID NUMBER, NOTE VARCHAR, KAFKA_PARTITION NUMBER, KAFKA_OFFSET NUMBER"
    local_service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} ({columns})")
    given = {"bootstrap_servers": cluster.address, "topics": [topic], "group_id": f"g-{topic}"}
    source = source_spec({"kind": "kafka", **given, "metadata": ["partition", "offset"]})
    return SparkJob(local_service, tmp_path / "runs", topic, source, spark=shared_spark)


def _connect(service, table, channel, ids):
    """Load records as the Kafka connector v4, with the offset as the token; where the channel stood."""
    with service.client(table) as client:
        found = client.open_channel(channel).status.committed
        rows = [json.dumps({"ID": one, "NOTE": "connector"}) for one in ids]
        append(service, table, channel, list(map(str, ids)), rows=rows)
        open_when_committed(client, channel, 60)
    return found


def test_job_takes_over_from_the_connector_and_hands_back(job, topic, cluster):
    produce(cluster.address, topic, numbered(range(30), note="job"), partition=0)
    channel = f"TEST_{topic}_0"
    assert _connect(job.service, topic, channel, range(10)) is None
    job.source, job.options = replace(job.source, connector_name="test"), {"channel_prefix": "TEST"}

    finished = job.load()

    first = finished.report.channels[0]
    assert (first.from_token, first.to_token, first.rows) == ("9", "29", 20)
    assert group_offsets(cluster.address, f"g-{topic}", topic, PARTITIONS) == [30, 0, 0, 0]
    assert _connect(job.service, topic, channel, range(30, 35)) == "29"
    assert job.committed("0") == {"0": "34"}
    rows = job.service.sql(f"SELECT ID, NOTE FROM LOCAL.PUBLIC.{topic} ORDER BY ID")
    notes = [row["NOTE"] for row in rows]
    assert [int(row["ID"]) for row in rows] == list(range(35))
    assert notes == ["connector"] * 10 + ["job"] * 20 + ["connector"] * 5
