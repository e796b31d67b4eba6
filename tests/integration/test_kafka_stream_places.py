"""What Spark asks of ``format("snowpipe_kafka")``, asked here: librdkafka's mock and the local service."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from airflow_provider_snowpipe.spark.sources.kafka.stream import KafkaStreamReader, StreamOptions
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.kafka_stream import TopicStream
from tests.kafka_topics import MockCluster, group_offsets, numbered, produce
from tests.spark_job import numbered_name
from tests.spark_session import Door

EVERYTHING = ReadAllAvailable()


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def stream(cluster, local_service, tmp_path):
    """A topic with 100 records in each of its four partitions; channel 1 has committed 40 of them."""
    name = numbered_name("TOPIC")
    cluster.make_topic(name)
    produce(cluster.address, name, numbered(range(400)), partition=lambda row: row // 100)
    door = Door(
        local_service, name, tmp_path / "credentials.json", columns="ID NUMBER, NOTE VARCHAR"
    ).create()
    found = TopicStream(None, door, cluster.address, name, tmp_path / "checkpoint")
    found.append(1, range(40))
    return found


def _reader(stream, **options):
    place = {name: value for name, value in stream.door.options().items() if name != "commitTimeout"}
    own = {"bootstrapServers": stream.brokers, "topics": stream.topic, "timeoutSeconds": "10"}
    return KafkaStreamReader(StreamOptions.parse({**place, **own, **options}))


def _at(stream, *offsets):
    return {stream.topic: {str(number): offset for number, offset in enumerate(offsets)}}


def _ranges(reader, start, end):
    return [
        (one.value.number, one.value.first, one.value.bounds.end) for one in reader.partitions(start, end)
    ]


def test_query_without_a_checkpoint_begins_behind_the_tokens_and_its_group_remembers_that(stream):
    reader = _reader(stream, groupId=f"g-{stream.topic}")

    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)

    assert start == _at(stream, 0, 40, 0, 0)
    assert end == _at(stream, 100, 100, 100, 100)
    assert _ranges(reader, start, end) == [(0, 0, 100), (1, 40, 100), (2, 0, 100), (3, 0, 100)]
    assert group_offsets(stream.brokers, f"g-{stream.topic}", stream.topic, 4) == [0, 40, 0, 0]
    rows = [
        row
        for one in reader.partitions(start, end)[1:2]
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows] == list(range(40, 100))
    assert {row["channel"] for row in rows} == {f"{stream.topic}_1"}

    stream.append(1, range(40, 100))
    reader.commit(end)
    assert group_offsets(stream.brokers, f"g-{stream.topic}", stream.topic, 4) == [0, 100, 0, 0]


@pytest.mark.parametrize("checkpoint", [10, 40, 70], ids=["behind", "level", "ahead"])
def test_first_micro_batch_goes_by_the_token_and_later_ones_by_spark(stream, checkpoint):
    reader = _reader(stream)
    start, end = _at(stream, 100, checkpoint, 30, 100), _at(stream, 100, 80, 60, 100)

    assert _ranges(reader, start, end) == [(1, 40, 80), (2, 30, 60)], "channel 2 has no token"

    later = reader.latestOffset(end, EVERYTHING)
    assert _ranges(reader, end, later) == [(1, 80, 100), (2, 60, 100)]


def test_limit_is_shared_out_by_what_is_left_and_everything_comes_in_the_end(stream):
    reader = _reader(stream, maxOffsetsPerTrigger="60")
    at = reader.initialOffset()
    sizes = []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        sizes.append(sum(stop - first for _, first, stop in _ranges(reader, at, end)))
        at = end

    assert reader.getDefaultReadLimit() == ReadMaxRows(60)
    assert sum(sizes) == 360
    assert max(sizes) <= 60


def test_end_that_was_fixed_is_not_passed_while_the_topic_grows(stream):
    reader = _reader(stream)
    reader.prepareForTriggerAvailableNow()
    produce(stream.brokers, stream.topic, numbered(range(10)), partition=0)

    assert reader.latestOffset(reader.initialOffset(), EVERYTHING) == _at(stream, 100, 100, 100, 100)


def test_partition_that_is_new_to_the_query_is_read_from_its_beginning(stream):
    reader = _reader(stream)
    start = {stream.topic: {"0": 100, "1": 100, "2": 100}}

    end = reader.latestOffset(start, EVERYTHING)

    assert end == _at(stream, 100, 100, 100, 100)
    assert (3, 0, 100) in _ranges(reader, start, end)


def test_topic_that_is_shorter_than_its_token_or_checkpoint_is_refused(stream):
    reader = _reader(stream)
    with pytest.raises(SourcePositionError, match="offset 150"):
        reader.latestOffset(_at(stream, 0, 40, 150, 0), EVERYTHING)

    stream.append(0, [500])
    with pytest.raises(SourcePositionError, match="offset 500"):
        _reader(stream).partitions(_at(stream, 0, 0, 0, 0), _at(stream, 9, 9, 9, 9))


def test_partition_that_is_gone_is_named(stream):
    gone = {"GONE": {"0": 5}}
    with pytest.raises(SourcePositionError, match="GONE"):
        _reader(stream).partitions(gone, {"GONE": {"0": 9}})
