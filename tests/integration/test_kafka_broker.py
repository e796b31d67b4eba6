"""The Kafka source on a real Apache Kafka broker: transactions, compaction, retention, rights, groups.

Beside it, in real Spark: Spark's own Kafka source, in a job and as a stream.
"""

import json
import re
import shutil
import time
from dataclasses import replace

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    SourceChangedError,
    SourcePositionError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.checkpoints import shown
from tests.local_connection import ids
from tests.memory_source import InProcessSpark
from tests.spark_groups import load
from tests.spark_job import SparkJob, numbered_name
from tests.waiting import wait_until

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.kafka_stream import TopicStream
from tests.kafka_topics import commit_group, create_topic, group_offsets, numbered, produce, transaction
from tests.maven_jars import SPARK_KAFKA, maven_jars
from tests.spark_session import Door

pytestmark = pytest.mark.spark  # of Java, in any case


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def topic():
    return numbered_name("BROKER")


def _spec(broker, topic, **changes):
    values = {"bootstrap_servers": broker.address, "topics": [topic], "timeout_seconds": 30.0}
    return source_spec({"kind": "kafka", **values, **changes})


def _source(broker, topic, on_data_loss="fail", **changes):
    return open_source(_spec(broker, topic, **changes), on_data_loss)


def _parts(partition, committed=None):
    position = partition.resume(committed)
    return [] if position is None else list(partition.read(position, BatchLimits()))


def _ids(parts):
    return [json.loads(line)["ID"] for part in parts for line in bytes(part.body).splitlines()]


def test_rows_of_aborted_and_open_transactions_are_left_out_and_the_end_is_found_behind_markers(
    broker, topic
):
    create_topic(broker.address, topic)
    transaction(broker.address, topic, range(10), end="commit")
    transaction(broker.address, topic, range(100, 150), end="abort")
    transaction(broker.address, topic, range(10, 20), end="commit")
    transaction(broker.address, topic, range(200, 210), end="abort")
    (partition,) = _source(broker, topic).partitions()

    parts = _parts(partition)

    assert _ids(parts) == list(range(20))
    last = parts[-1].end
    assert (last.value, parts[-1].rows) == (partition.bounds.end - 1, 0), "nobody reads what ends the topic"
    assert _parts(partition, last) == []

    producer = transaction(broker.address, topic, range(20, 30), end="later")
    (behind_open,) = _source(broker, topic).partitions()
    assert behind_open.bounds.end == partition.bounds.end < behind_open.bounds.high
    assert _parts(behind_open, last) == []
    producer.commit_transaction(30)
    (after_commit,) = _source(broker, topic).partitions()
    assert _ids(_parts(after_commit, last)) == list(range(20, 30))

    (everything,) = _source(broker, topic, isolation="read_uncommitted").partitions()
    assert len(_ids(_parts(everything))) == 90


def test_compacted_records_leave_gaps_that_are_passed(broker, topic):
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    create_topic(broker.address, topic, config=config)
    for begin in range(0, 400, 100):
        produce(broker.address, topic, numbered(range(begin, begin + 100)), key=b"same")
        time.sleep(0.3)  # segments roll by age
    produce(broker.address, topic, numbered([400]), key=b"other")

    def partition():
        (found,) = _source(broker, topic).partitions()
        return found

    compacted = "the cleaner has taken all but the last record of the key"
    wait_until(lambda: _ids(_parts(partition())) == [399, 400], seconds=300, what=compacted)

    (part,) = _parts(partition(), IntegerOffset(5))
    assert (_ids([part]), str(part.start), str(part.end)) == ([399, 400], "399", "400")


def test_retention_beyond_the_committed_token_is_refused_or_skipped(broker, topic):
    create_topic(broker.address, topic)
    produce(broker.address, topic, numbered(range(100)))
    (before,) = _source(broker, topic).partitions()
    admin = _admin(broker)
    for future in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        future.result(30)

    (partition,) = _source(broker, topic).partitions()
    with pytest.raises(SourcePositionError, match=r"40 .*60.*on_data_loss='skip'"):
        partition.check(IntegerOffset(40))
    partition.check(IntegerOffset(59))
    assert _ids(_parts(partition)) == list(range(60, 100)), "nothing is committed: the first that is there"
    (skipping,) = _source(broker, topic, "skip").partitions()
    assert _ids(_parts(skipping, IntegerOffset(40))) == list(range(60, 100))

    with pytest.raises(SourcePositionError, match="offset 0"):
        _parts(before)
    commit_group(broker.address, f"g-{topic}", topic, 0, 10)
    (grouped,) = _source(broker, topic, group_id=f"g-{topic}").partitions()
    with pytest.raises(SourcePositionError, match="offset 10"):
        grouped.check(None)


def test_timestamp_start_takes_records_that_are_not_older(broker, topic):
    create_topic(broker.address, topic)
    for second, numbers in ((1_700_000_000, range(5)), (1_700_000_060, range(5, 9))):
        produce(broker.address, topic, numbered(numbers), timestamp=second * 1000)
    for since, numbers in {
        "2023-11-14T22:13:21+00:00": [5, 6, 7, 8],
        "2023-11-14T23:13:20+01:00": list(range(9)),
        "2030-01-01T00:00:00Z": [],
    }.items():
        (partition,) = _source(broker, topic, start="timestamp", start_timestamp=since).partitions()
        assert _ids(_parts(partition)) == numbers


def test_group_with_members_keeps_its_offsets_and_the_error_states_it(broker, topic):
    create_topic(broker.address, topic)
    produce(broker.address, topic, numbered(range(3)))
    group = f"g-{topic}"
    member = Consumer({"bootstrap.servers": broker.address, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    wait_until(lambda: member.poll(0.2) is None and bool(member.assignment()), seconds=300, what="a member")
    source = _source(broker, topic, group_id=group)
    (partition,) = source.partitions()

    with pytest.raises(WriterActiveError, match="members"):
        source.finish({partition.name: IntegerOffset(2)})

    member.close()
    source.finish({partition.name: IntegerOffset(2)})
    assert group_offsets(broker.address, group, topic, 1) == [3]


def test_topic_that_was_deleted_made_again_and_has_outgrown_the_token_is_another_source(
    broker, topic, local_service, tmp_path, capfd
):
    service, spark = local_service, InProcessSpark()
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR)")
    job = SparkJob(service, tmp_path / "runs", topic, _spec(broker, topic, group_id=f"g-{topic}"))
    create_topic(broker.address, topic)
    produce(broker.address, topic, numbered(range(50)))
    load(job, spark)
    assert "no id" not in capfd.readouterr().err

    admin = _admin(broker)
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, seconds=60, what="no topic")
    create_topic(broker.address, topic)
    produce(broker.address, topic, numbered(range(100, 180)))

    with pytest.raises(SourceChangedError, match=re.escape(_topic_id(broker, topic))):
        load(job, spark)
    assert (ids(service, topic), job.committed("0")) == (list(range(50)), {"0": "49"})

    load(job, spark, rebind="restart")
    load(job, spark)
    assert ids(service, topic) == [*range(50), *range(100, 180)]


def test_job_with_the_right_password_loads_committed_transactions_and_shows_no_secret(
    broker, topic, spark, local_service, tmp_path, capfd
):
    service = local_service
    service.sql(f"CREATE TABLE LOCAL.PUBLIC.{topic} (ID NUMBER, NOTE VARCHAR, META VARIANT)")
    create_topic(broker.address, topic, 2)
    transaction(broker.address, topic, range(0, 500), end="commit")
    transaction(broker.address, topic, range(9000, 9100), end="abort")
    produce(broker.address, topic, numbered(range(500, 1000)), partition=1, headers=[("h", b"v")])
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    changes = {"bootstrap_servers": broker.sasl_address, "record_metadata": "META", "options": options}
    spec = _spec(broker, topic, group_id=f"g-{topic}", **changes)
    wrong = SourceSecrets({"sasl.password": "guessed!"})
    with pytest.raises(AuthenticationError, match="credentials") as caught:
        open_source(replace(spec, timeout_seconds=5.0), "fail", wrong).partitions()
    assert "guessed!" not in str(caught.value)
    secrets = SourceSecrets({"sasl.password": PASSWORD})
    job = SparkJob(service, tmp_path / "runs", topic, spec, secrets=secrets)
    capfd.readouterr()

    load(job, spark.sparkContext)

    printed = capfd.readouterr()
    assert PASSWORD not in printed.out + printed.err
    assert ids(service, topic) == list(range(1000))
    assert job.committed("1") == {"1": "499"}
    assert group_offsets(broker.address, f"g-{topic}", topic, 2)[1] == 500
    produce(broker.address, topic, numbered(range(1000, 1010)), partition=1)
    assert [one.rows for one in load(job, spark.sparkContext).channels] == [0, 10]
    assert ids(service, topic) == list(range(1010))
    (row,) = service.sql(f"SELECT META FROM LOCAL.PUBLIC.{topic} WHERE ID = 500")
    assert (row["META"]["headers"], row["META"]["offset"], row["META"]["topic"]) == ({"h": "v"}, 0, topic)


def test_stream_of_sparks_own_source_is_exact_with_its_checkpoint_and_without_and_is_handed_to_a_job(
    broker, topic, spark, local_service, tmp_path
):
    maven_jars(*SPARK_KAFKA)
    service = local_service
    door = Door(service, topic, tmp_path / "credentials.json", columns="ID NUMBER, NOTE VARCHAR").create()
    stream = TopicStream(spark, door, broker.address, topic, tmp_path / "checkpoint")
    create_topic(broker.address, topic, 2)
    transaction(broker.address, topic, range(100), end="commit")
    transaction(broker.address, topic, range(9000, 9100), end="abort")
    produce(broker.address, topic, numbered(range(100, 200)), partition=1)

    assert stream.run(maxOffsetsPerTrigger=150) == 200
    assert list(map(shown, stream.tokens(2))) == ["99", "99"]

    shutil.rmtree(stream.checkpoint)
    produce(broker.address, topic, numbered(range(200, 203)), partition=0)
    assert stream.run() == 203
    assert sorted(door.ids()) == list(range(203))

    produce(broker.address, topic, numbered(range(203, 208)), partition=1)
    spec = source_spec({"kind": "kafka", "bootstrap_servers": broker.address, "topics": [topic]})
    job = SparkJob(service, tmp_path / "runs", topic, spec, {"channel_prefix": door.prefix})
    with pytest.raises(SourceChangedError):
        load(job, spark.sparkContext)
    again = load(job, spark.sparkContext, rebind="continue")
    assert [one.rows for one in again.channels] == [0, 5]
    assert sorted(door.ids()) == list(range(208))


def _admin(broker):
    return AdminClient({"bootstrap.servers": broker.address})


def _topic_id(broker, topic):
    admin = _admin(broker)  # an answer is lost with its client
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    return str(found.topic_id)
