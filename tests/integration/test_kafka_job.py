"""The job on a Kafka source against a real local service.

The brokers are librdkafka's mock, which serves other processes too.
"""

import base64
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_snowpipe.spark.sources.kafka.spec import connector_prefix
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.table_schema import TableColumn
from tests.checkpoints import shown
from tests.spark_deeds import Deed, deeds_of, doing
from tests.spark_groups import LIMITS, load
from tests.spark_job import SparkJob, ids_in, numbered_name

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, group_offsets, keyed_records, numbered, produce

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
    return SparkJob(
        service=local_service, directory=tmp_path / "runs", table=topic, source=source, spark=shared_spark
    )


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
    rows = job.service.sql(f"SELECT ID, KAFKA_PARTITION, KAFKA_OFFSET FROM LOCAL.PUBLIC.{topic}")
    assert all(
        int(row["KAFKA_OFFSET"]) == int(row["ID"]) // 4 and int(row["KAFKA_PARTITION"]) == int(row["ID"]) % 4
        for row in rows
        if int(row["ID"]) < 4000
    )


def test_killed_worker_of_a_job_loses_and_doubles_no_row_and_no_dead_letter(
    spark, cluster, local_service, tmp_path
):
    service, topic = local_service, numbered_name("KILLED")
    dead_letters = f"{topic}-rejected"
    cluster.make_topic(topic)
    cluster.make_topic(dead_letters)
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR)")
    bad = [row for row in range(800) if row % 100 == 1]
    values = [json.dumps({"ID": f"no {row}" if row in bad else row}).encode() for row in range(800)]
    produce(cluster.address, topic, values, partition=lambda row: row % PARTITIONS)
    source = {
        "kind": "kafka",
        "bootstrap_servers": cluster.address,
        "topics": [topic],
        "timeout_seconds": 30.0,
    }
    options = {
        "on_error": "dead_letter",
        "dead_letter_path": f"kafka:{dead_letters}",
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
        expected = [row for row in range(number, 800, PARTITIONS) if row not in bad]
        assert [row for row in rows if row % PARTITIONS == number] == expected
    assert len(rows) == 800 - len(bad)
    assert [one.committed for one in run.channels] == [True] * PARTITIONS
    found = keyed_records(cluster.address, dead_letters, len(bad))
    assert {(key, value) for key, value, _ in found} == {
        (f"test_{topic}_1:{row // PARTITIONS}", json.dumps({"ID": f"no {row}"})) for row in bad
    }


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


@pytest.mark.nightly  # unit/spark/sources/kafka has some of Java's hashes daily
@pytest.mark.skipif(shutil.which("javac") is None, reason="a Java compiler (a JDK) is not on the path")
def test_hash_in_the_connectors_channel_names_is_the_one_that_java_gives():
    draw = random.Random(11)
    dead_letters = [*"abz09._- \t$\"'é\u0131\u7fff", "\U0001f600", "\U0010ffff"]
    names = ["-" + "".join(draw.choices(dead_letters, k=draw.randint(1, 40))) for _ in range(300)]
    given = "\n".join(base64.b64encode(name.encode("utf-16-be")).decode() for name in names)
    program = Path(__file__).parents[1] / "clients" / "NameHash.java"

    done = subprocess.run(["java", str(program)], input=given, capture_output=True, text=True, check=True)

    assert [connector_prefix(name).rpartition("_")[2] for name in names] == done.stdout.split()
