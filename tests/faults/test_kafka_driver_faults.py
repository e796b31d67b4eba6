"""A driver that is killed while it loads topics of a real broker, with transactions."""

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from tests.kafka_broker import KafkaBroker, broker_jars
from tests.kafka_topics import create_topic, group_offsets, numbered, produce, transaction
from tests.spark_job import SparkJob, ids_in, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture
def broker(tmp_path):
    with KafkaBroker(tmp_path / "kafka", broker_jars()) as running:
        yield running


def test_killed_driver_loses_and_doubles_nothing_over_two_topics_with_transactions(
    broker, local_service, tmp_path
):
    service, topic = local_service, "KILLED_TOPIC"
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR)")
    other = f"{topic}X"
    create_topic(broker.address, topic, 2)
    create_topic(broker.address, other, 1)
    transaction(broker.address, topic, range(0, 1500), end="commit")
    transaction(broker.address, topic, range(90_000, 90_500), end="abort")
    produce(broker.address, topic, numbered(range(1500, 3000)), partition=1)
    produce(broker.address, other, numbered(range(3000, 4500)))
    spec = source_spec(
        {
            "kind": "kafka",
            "bootstrap_servers": broker.address,
            "topics": [topic, other],
            "group_id": f"g-{topic}",
            "timeout_seconds": 30.0,
        }
    )
    job = SparkJob(
        service,
        tmp_path / "runs",
        topic,
        spec,
        {
            "source_name": spec.default_name,
            "limits": BatchLimits(rows=50, requests_per_second=4.0),
        },
    )
    channels = [f"test_{topic}_0", f"test_{topic}_1", f"test_{other}_0"]

    def tokens():
        with service.client(topic) as client:
            return {name: one.committed for name, one in client.channel_statuses(channels).items()}

    with job.start() as running:
        wait_until(lambda: any(tokens().values()), seconds=300, what="the first commit of the first run")
        running.kill_all()
        assert group_offsets(broker.address, f"g-{topic}", topic, 2) == [None, None]
        finished = job.run(limits=BatchLimits())

    assert finished.code == 0, finished.err[-3000:]
    assert ids_in(service, topic) == list(range(4500))
    # Behind the last row of the first partition lie the mark of a commit, 500 aborted records and theirs.
    assert tokens() == dict(zip(channels, ("2001", "1499", "1499"), strict=True))
    assert 0 < finished.report.rows < 4500
    assert group_offsets(broker.address, f"g-{topic}", topic, 2) == [2002, 1500]
