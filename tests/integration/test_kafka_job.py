"""The job on a Kafka source, under a real ``spark-submit`` against a real local service.

The brokers are librdkafka's mock, which serves other processes too.
"""

import pytest

from airflow_provider_snowpipe.spark.sources import source_spec
from tests.spark_job import SparkJob, ids_in

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, group_offsets, numbered, produce

pytestmark = pytest.mark.spark
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def topic(request, cluster):
    name = "T" + str(abs(hash(request.node.nodeid)) % 10**9)
    cluster.make_topic(name)
    return name


@pytest.fixture
def job(local_service, tmp_path, topic, cluster):
    """A job on one topic and a table of the same name."""
    local_service.sql(
        f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR, KAFKA_PARTITION NUMBER, KAFKA_OFFSET "
        f"NUMBER)"
    )
    source = source_spec(
        {
            "kind": "kafka",
            "bootstrap_servers": cluster.address,
            "topics": [topic],
            "group_id": f"g-{topic}",
            "metadata": ["partition", "offset"],
            "timeout_seconds": 20.0,
        }
    )
    return SparkJob(service=local_service, directory=tmp_path / "runs", table=topic, source=source)


def _all(topic):
    return tuple(str(number) for number in range(PARTITIONS))


def test_topic_loads_once_then_nothing_then_only_what_came(job, topic, cluster):
    produce(cluster.address, topic, numbered(range(4000)), partition=lambda row: row % PARTITIONS)

    first = job.run()

    assert first.code == 0, first.err[-3000:]
    assert ids_in(job.service, topic) == list(range(4000))
    assert job.committed(*_all(topic)) == dict.fromkeys(_all(topic), "999")
    assert [(c.channel, c.partition, c.rows, c.committed) for c in first.report.channels] == [
        (f"test_{topic}_{number}", f"{topic}_{number}", 1000, True) for number in range(PARTITIONS)
    ]
    assert group_offsets(cluster.address, f"g-{topic}", topic, PARTITIONS) == [1000] * PARTITIONS

    produce(cluster.address, topic, numbered(range(4000, 4010)), partition=2)
    second = job.run()

    assert second.code == 0, second.err[-3000:]
    assert [(c.from_token, c.to_token, c.rows) for c in second.report.channels] == [
        ("999", "999", 0),
        ("999", "999", 0),
        ("999", "1009", 10),
        ("999", "999", 0),
    ]
    assert ids_in(job.service, topic) == list(range(4010))
    rows = job.service.sql(f"SELECT ID, KAFKA_PARTITION, KAFKA_OFFSET FROM LOCAL.PUBLIC.{topic}")
    assert all(
        int(row["KAFKA_OFFSET"]) == int(row["ID"]) // 4 and int(row["KAFKA_PARTITION"]) == int(row["ID"]) % 4
        for row in rows
        if int(row["ID"]) < 4000
    )
