"""The job on a Kafka source against a real local service.

The brokers are librdkafka's mock, which serves other processes too.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from tests.checkpoints import shown
from tests.spark_job import SparkJob, ids_in, numbered_name

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


def _all(topic):
    return tuple(str(number) for number in range(PARTITIONS))


def test_job_loads_a_topic_once_and_the_next_run_only_what_came(job, topic, cluster):
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
    assert [(shown(c.from_token), shown(c.to_token), c.rows) for c in second.report.channels] == [
        ("999", "999", 0),
        ("999", "999", 0),
        ("999", "1009", 10),
        ("999", "999", 0),
    ]
    assert ids_in(job.service, topic) == list(range(4010))
    numbers = f"SELECT DISTINCT KAFKA_OFFSET * 4 + KAFKA_PARTITION - ID N FROM LOCAL.PUBLIC.{topic}"
    assert [int(row["N"]) for row in job.service.sql(f"{numbers} WHERE ID < 4000")] == [0]


CONNECTOR = """
import json, os, sys, time
from snowflake.ingest.streaming import StreamingIngestClient

table, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = StreamingIngestClient(
    "connector", "LOCAL", "PUBLIC", f'"{table}-STREAMING"', profile_json=None,
    properties={
        "account": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
        "user": os.environ["SNOWPIPE_LOCAL_USER"],
        "url": os.environ["SNOWPIPE_LOCAL_URL"],
        "private_key": open(os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]).read(),
    })
channel, status = client.open_channel(f"TEST_{table}_0")
print("OPENED", json.dumps(status.latest_committed_offset_token))
for offset in range(first, last + 1):
    channel.append_row({"ID": offset, "NOTE": "connector"}, str(offset))
channel.wait_for_commit(lambda seen: seen is not None and int(seen) >= last, timeout_seconds=60)
channel.close()
client.close()
"""


def _connector(service, table, first, last):
    """Load records as the Kafka connector v4: by its SDK, to a quoted pipe, with the offset as the token."""
    done = subprocess.run(
        [sys.executable, "-c", CONNECTOR, table, str(first), str(last)],
        env=service.process_env({**os.environ, "SS_LOG_LEVEL": "warn"}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    opened = next(line for line in done.stdout.splitlines() if line.startswith("OPENED "))
    return json.loads(opened.removeprefix("OPENED "))


def test_job_takes_over_from_the_connector_and_hands_back(job, topic, cluster):
    pytest.importorskip("snowflake.ingest.streaming", reason="the SDK is not installed")
    produce(cluster.address, topic, numbered(range(30), note="job"), partition=0)
    assert _connector(job.service, topic, 0, 9) is None
    job.source, job.options = replace(job.source, connector_name="test"), {"channel_prefix": "TEST"}

    finished = job.run()

    assert finished.code == 0, finished.err[-3000:]
    first = finished.report.channels[0]
    assert (first.from_token, first.to_token, first.rows) == ("9", "29", 20)
    assert group_offsets(cluster.address, f"g-{topic}", topic, PARTITIONS) == [30, 0, 0, 0]
    assert _connector(job.service, topic, 30, 34) == "29"
    assert job.committed("0") == {"0": "34"}
    rows = job.service.sql(f"SELECT ID, NOTE FROM LOCAL.PUBLIC.{topic} ORDER BY ID")
    notes = [row["NOTE"] for row in rows]
    assert [int(row["ID"]) for row in rows] == list(range(35))
    assert notes == ["connector"] * 10 + ["job"] * 20 + ["connector"] * 5
