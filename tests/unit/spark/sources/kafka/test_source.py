"""The Kafka source on librdkafka's mock brokers."""

import itertools
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka import reader
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming.errors import (
    ConfigurationError,
    SourcePositionError,
    SourceUnavailableError,
)
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, IntegerOffset

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, commit_group, group_offsets, numbered, produce

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster():
    return MockCluster()


@pytest.fixture
def brokers(cluster):
    return cluster.address


@pytest.fixture
def topic(cluster):
    """A topic of four partitions, as many as the mock gives each."""
    name = f"source{next(_numbers)}"
    cluster.make_topic(name)
    return name


def _source(brokers, topic, on_data_loss="fail", **changes):
    values = {"kind": "kafka", "bootstrap_servers": brokers, "topics": [topic], "timeout_seconds": 30.0}
    return open_source(source_spec({**values, **changes}), on_data_loss)


def _read(partition, committed=None, limits=None):
    position = partition.resume(committed)
    return [] if position is None else list(partition.read(position, limits or BatchLimits()))


def _ids(parts):
    return [json.loads(line)["ID"] for part in parts for line in bytes(part.body).splitlines()]


def test_every_topic_partition_is_a_partition_read_in_order_to_its_fixed_end(brokers, topic):
    produce(brokers, topic, numbered(range(1000)), partition=lambda row: row % 2)
    zero, one, *_ = _source(brokers, topic).partitions()
    produce(brokers, topic, numbered(range(1000, 1100)), partition=0)

    assert (zero.name, one.name) == (f"{topic}_0", f"{topic}_1")
    assert zero.gaps_legal
    assert zero.is_quick(None)
    assert _ids(_read(zero)) == list(range(0, 1000, 2))
    parts = _read(one, limits=BatchLimits(rows=100))
    assert _ids(parts) == list(range(1, 1000, 2))
    assert all(part.rows <= 100 for part in parts)
    assert (str(parts[0].start), str(parts[-1].end)) == ("0", "499")
    assert _ids(_read(zero, IntegerOffset(489))) == list(range(980, 1000, 2))
    assert _read(zero, IntegerOffset(499)) == []
    assert zero.behind(IntegerOffset(489)).rows == 10
    assert zero.behind(None).rows == 500


def test_partition_travels_to_an_executor_and_shows_no_secret(brokers, topic):
    spec = source_spec(
        {"kind": "kafka", "bootstrap_servers": brokers, "topics": [topic], "timeout_seconds": 30.0}
    )
    produce(brokers, topic, numbered(range(3)))
    source = open_source(spec, "fail", SourceSecrets({"ssl.key.password": "hunter2"}))

    (partition, *_) = pickle.loads(pickle.dumps(source.partitions()))  # noqa: S301  our own

    assert "hunter2" not in repr(partition)
    assert "ssl.key.password" in repr(partition)
    assert partition.settings.config()["ssl.key.password"] == "hunter2"
    assert _ids(_read(partition)) == [0, 1, 2]


def test_secrets_that_kafka_does_not_know_are_refused(brokers, topic):
    spec = source_spec({"kind": "kafka", "bootstrap_servers": brokers, "topics": [topic]})
    with pytest.raises(ConfigurationError, match=r"takes no secret 'password'") as caught:
        open_source(spec, "fail", SourceSecrets({"password": "hunter2"}))
    assert "hunter2" not in str(caught.value)
    files = source_spec({"path": "/data"})
    with pytest.raises(ConfigurationError, match=r"takes no secrets, but was given SourceSecrets\(a\)"):
        open_source(files, "fail", SourceSecrets({"a": "hunter2"}))


def test_latest_begins_at_the_end_and_the_group_remembers_where_that_was(brokers, topic):
    produce(brokers, topic, numbered(range(5)))
    first = _source(brokers, topic, start="latest", group_id=f"g-{topic}")
    assert [_read(one) for one in first.partitions()] == [[]] * 4
    first.finish({})
    assert group_offsets(brokers, f"g-{topic}", topic, 4) == [5, 0, 0, 0]

    produce(brokers, topic, numbered(range(5, 8)))
    produce(brokers, topic, numbered(range(8, 9)), partition=1)
    second = _source(brokers, topic, start="latest", group_id=f"g-{topic}")
    assert [_ids(_read(one)) for one in second.partitions()] == [[5, 6, 7], [8], [], []]


def test_partition_added_to_a_known_topic_begins_with_its_first_record_also_with_latest(brokers, topic):
    produce(brokers, topic, numbered(range(4)), partition=1)
    commit_group(brokers, f"g-{topic}", topic, 0, 0)

    (_, added, *_) = _source(brokers, topic, start="latest", group_id=f"g-{topic}").partitions()

    assert _ids(_read(added)) == [0, 1, 2, 3]


def test_groups_offset_stands_in_for_a_missing_token_and_only_moves_forward(brokers, topic):
    produce(brokers, topic, numbered(range(10)))
    group = f"g-{topic}"
    commit_group(brokers, group, topic, 0, 4)
    source = _source(brokers, topic, group_id=group)

    (zero, *_) = source.partitions()
    assert _ids(_read(zero)) == list(range(4, 10))

    source.finish({zero.name: IntegerOffset(7)})
    assert group_offsets(brokers, group, topic, 4) == [8, 0, 0, 0]
    source.finish({zero.name: IntegerOffset(5)})
    assert group_offsets(brokers, group, topic, 4) == [8, 0, 0, 0]


def test_without_a_group_nothing_is_committed(brokers, topic):
    source = _source(brokers, topic)
    source.partitions()
    source.finish({f"{topic}_0": IntegerOffset(3)})
    assert group_offsets(brokers, "airflow-provider-snowpipe", topic, 4) == [None] * 4


def test_committed_position_behind_the_end_is_another_topic(brokers, topic):
    produce(brokers, topic, numbered(range(3)))
    (zero, *_) = _source(brokers, topic).partitions()
    with pytest.raises(SourcePositionError, match=r"offset 3 is committed, but partition 0 .* ends before 3"):
        zero.check(IntegerOffset(3))
    zero.check(IntegerOffset(2))
    with pytest.raises(SourcePositionError, match=r"no Kafka offset"):
        zero.check(FileLineOffset("a", 1))


def test_missing_topic_is_named(brokers):
    with pytest.raises(SourcePositionError, match=r"topic 'nowhere' does not exist on"):
        _source(brokers, "nowhere").partitions()


def test_topics_are_found_by_pattern(brokers, topic, cluster):
    cluster.make_topic(f"{topic}x")
    source = _source(brokers, topic, topics=[], topic_pattern=f"{topic}.?")
    assert {one.topic for one in source.partitions()} == {topic, f"{topic}x"}
    with pytest.raises(SourcePositionError, match=r"no topic of .* matches 'nothing'"):
        _source(brokers, topic, topics=[], topic_pattern="nothing").partitions()


def test_topic_that_was_deleted_and_created_again_has_another_binding(brokers, topic, monkeypatch, caplog):
    def sources(topic_id):
        caplog.clear()
        monkeypatch.setattr(
            reader.KafkaCluster, "topic_ids", lambda _, topics: dict.fromkeys(topics, topic_id)
        )
        return {one.binding.source_digest for one in _source(brokers, topic).partitions()}

    before = sources("old-id")
    assert len(before) == 4
    assert sources("old-id") == before
    assert not sources("new-id") & before
    assert "no id" not in caplog.text
    sources(None)
    assert f"no id of topic {topic}" in caplog.text


def test_topics_of_one_name_in_two_clusters_differ_where_brokers_know_no_ids_of_topics(brokers, topic):
    other = MockCluster()
    other.make_topic(topic)

    def bindings(address):
        return {one.binding.source_digest for one in _source(address, topic).partitions()}

    assert bindings(brokers) == bindings(brokers)
    assert not bindings(brokers) & bindings(other.address)


def test_tombstones_and_markers_at_the_end_are_parts_of_the_partition(brokers, topic):
    produce(brokers, topic, [*numbered(range(3)), None, None])
    (zero, *_) = _source(brokers, topic, tombstones="drop").partitions()

    parts = _read(zero)

    assert (_ids(parts), str(parts[-1].end)) == ([0, 1, 2], "4")
    ended = replace(zero, bounds=replace(zero.bounds, end=5, high=5))
    assert ended.behind(parts[-1].end).rows == 0


@pytest.mark.parametrize("start", [3, 4])
def test_offsets_at_the_end_that_are_no_records_are_passed_by_a_part_without_rows(
    brokers, topic, monkeypatch, start
):
    produce(brokers, topic, numbered(range(3)))
    (zero, *_) = _source(brokers, topic).partitions()
    zero = replace(zero, bounds=replace(zero.bounds, end=5, high=5))
    silent = SimpleNamespace(blocks=lambda _: iter(()), close=lambda: None)
    monkeypatch.setattr(reader, "_Reader", lambda *_: silent)

    (part,) = zero.read(start, BatchLimits())
    assert (part.body, str(part.start), str(part.end), part.rows) == (b"", str(start), "4", 0)


def test_brokers_that_do_not_answer_are_named_in_time():
    source = _source("127.0.0.1:1", "t", timeout_seconds=0.1)
    with pytest.raises(SourceUnavailableError, match=r"Kafka at 127.0.0.1:1: topic 't': no answer"):
        source.partitions()


def test_silence_while_reading_ends_with_an_error(brokers, topic):
    produce(brokers, topic, numbered(range(3)))
    (zero, *_) = _source(brokers, topic).partitions()
    object.__setattr__(zero.settings.spec, "timeout_seconds", 0.1)
    object.__setattr__(zero.settings.spec, "bootstrap_servers", "127.0.0.1:1")
    with pytest.raises(SourceUnavailableError, match=r"nothing came for . s at offset 0, ahead of the end 3"):
        _read(zero)


def test_setting_that_the_client_refuses_is_named_without_a_secret(brokers, topic):
    with pytest.raises(ConfigurationError, match=r"refuses its settings.*security.protocol"):
        _source(brokers, topic, options={"security.protocol": "HUSH"}).partitions()
