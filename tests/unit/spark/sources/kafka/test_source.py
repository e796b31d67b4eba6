"""The Kafka source and dead letters on librdkafka's mock brokers."""

import itertools
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.kafka import reader
from airflow_provider_snowpipe.spark.sources.registry import open_source, source_spec
from airflow_provider_snowpipe.streaming import errors
from airflow_provider_snowpipe.streaming.checked_values import RowRules
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, DeadLetterError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, IntegerOffset
from airflow_provider_snowpipe.streaming.row_gate import Admission
from airflow_provider_snowpipe.streaming.table_schema import TableColumn

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from tests.kafka_topics import MockCluster, commit_group, group_offsets, keyed_records, numbered, produce

_numbers = itertools.count(1)


@pytest.fixture
def topic(cluster):
    """A topic of four partitions, as many as the mock gives each."""
    name = f"source{next(_numbers)}"
    cluster.make_topic(name)
    return name


@pytest.fixture
def source(cluster, topic):
    def make(secrets=None, **changes):
        values = {"kind": "kafka", "bootstrap_servers": cluster.address, "topics": [topic], **changes}
        spec = source_spec({"timeout_seconds": 30.0, **values})
        return open_source(spec, "fail", SourceSecrets(secrets or {}))

    return make


@pytest.fixture
def write(cluster, topic):
    """Write numbered rows into a partition; None is a tombstone."""

    def records(ids, partition=0):
        values = [one if one is None else numbered([one])[0] for one in ids]
        produce(cluster.address, topic, values, partition=partition)

    return records


@pytest.fixture
def committed(cluster, topic):
    return lambda group: group_offsets(cluster.address, group, topic, 4)


def _read(partition, committed=None, limits=None):
    position = partition.resume(committed)
    return [] if position is None else list(partition.read(position, limits or BatchLimits()))


def _ids(parts):
    return [json.loads(line)["ID"] for part in parts for line in bytes(part.body).splitlines()]


def test_every_topic_partition_is_a_partition_read_in_order_to_its_fixed_end(source, write, topic):
    write(range(1000), partition=lambda row: row % 2)
    zero, one, *_ = source().partitions()
    write(range(1000, 1100))

    assert (zero.name, one.name) == (f"{topic}_0", f"{topic}_1")
    assert (zero.gaps_legal, zero.is_quick(None)) == (True, True)
    assert _ids(_read(zero)) == list(range(0, 1000, 2))
    parts = _read(one, limits=BatchLimits(rows=100))
    assert _ids(parts) == list(range(1, 1000, 2))
    assert all(part.rows <= 100 for part in parts)
    assert (str(parts[0].start), str(parts[-1].end)) == ("0", "499")
    assert _ids(_read(zero, IntegerOffset(489))) == list(range(980, 1000, 2))
    assert _read(zero, IntegerOffset(499)) == []
    assert [zero.behind(one).rows for one in (IntegerOffset(489), None)] == [10, 500]


def test_the_metadata_of_a_row_are_those_of_its_message(source, cluster, topic):
    produce(cluster.address, topic, [b'{"A":1}'], key=b"k", timestamp=5, headers=[("h", b"v")])
    (part,) = _read(source(record_metadata="M", metadata={"AT": "timestamp", "K": "key"}).partitions()[0])
    message = {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "CreateTime": 5,
        "key": "k",
        "headers": {"h": "v"},
    }
    assert json.loads(bytes(part.body)) == {"AT": "1970-01-01T00:00:00.005Z", "K": "k", "M": message, "A": 1}


def test_partition_travels_to_an_executor_and_shows_no_secret(source, write):
    write(range(3))
    opened = source({"ssl.key.password": "hunter2"})
    (partition, *_) = pickle.loads(pickle.dumps(opened.partitions()))  # noqa: S301  our own
    assert "hunter2" not in repr(partition)
    assert "ssl.key.password" in repr(partition)
    assert partition.settings.config()["ssl.key.password"] == "hunter2"
    assert _ids(_read(partition)) == [0, 1, 2]


def test_secrets_that_kafka_does_not_know_are_refused(source):
    with pytest.raises(errors.ConfigurationError, match="'password'") as caught:
        source({"password": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(errors.ConfigurationError, match=r"SourceSecrets\(a\)"):
        open_source(source_spec({"path": "/data"}), "fail", SourceSecrets({"a": "hunter2"}))


class TestGroup:
    def test_remembers_where_the_end_was_that_latest_begins_at(self, source, write, committed, topic):
        write(range(5))
        first = source(start="latest", group_id=f"g-{topic}")
        assert [_read(one) for one in first.partitions()] == [[]] * 4
        first.finish({})
        assert committed(f"g-{topic}") == [5, 0, 0, 0]
        write(range(5, 8))
        write([8], partition=1)
        second = source(start="latest", group_id=f"g-{topic}")
        assert [_ids(_read(one)) for one in second.partitions()] == [[5, 6, 7], [8], [], []]

    def test_shows_a_partition_that_was_added_and_begins_with_its_first_record(
        self, source, write, cluster, topic
    ):
        write(range(4), partition=1)
        commit_group(cluster.address, f"g-{topic}", topic, 0, 0)
        (_, added, *_) = source(start="latest", group_id=f"g-{topic}").partitions()
        assert _ids(_read(added)) == [0, 1, 2, 3]

    def test_stands_in_for_a_missing_token_and_only_moves_forward(
        self, source, write, cluster, committed, topic
    ):
        write(range(10))
        commit_group(cluster.address, f"g-{topic}", topic, 0, 4)
        opened = source(group_id=f"g-{topic}")
        (zero, *_) = opened.partitions()
        assert _ids(_read(zero)) == list(range(4, 10))
        for end in (7, 5):
            opened.finish({zero.name: IntegerOffset(end)})
            assert committed(f"g-{topic}") == [8, 0, 0, 0]

    def test_that_is_not_given_commits_nothing(self, source, committed, topic):
        opened = source()
        opened.partitions()
        opened.finish({f"{topic}_0": IntegerOffset(3)})
        assert committed("airflow-provider-snowpipe") == [None] * 4


def test_committed_position_behind_the_end_is_another_topic(source, write):
    write(range(3))
    (zero, *_) = source().partitions()
    with pytest.raises(errors.SourcePositionError, match=r"offset 3.*partition 0.* 3"):
        zero.check(IntegerOffset(3))
    zero.check(IntegerOffset(2))
    with pytest.raises(errors.SourcePositionError, match="Kafka"):
        zero.check(FileLineOffset("a", 1))


def test_topics_are_found_by_name_or_pattern_or_named(source, cluster, topic):
    cluster.make_topic(f"{topic}x")
    found = source(topics=[], topic_pattern=f"{topic}.?").partitions()
    assert {one.topic for one in found} == {topic, f"{topic}x"}
    with pytest.raises(errors.SourcePositionError, match="'nothing'"):
        source(topics=[], topic_pattern="nothing").partitions()
    with pytest.raises(errors.SourcePositionError, match="'nowhere'"):
        source(topics=["nowhere"]).partitions()


def _bindings(source):
    return {one.binding.source_digest for one in source.partitions()}


def test_topic_that_was_deleted_and_created_again_has_another_binding(source, topic, monkeypatch, caplog):
    def bindings(topic_id):
        caplog.clear()
        monkeypatch.setattr(reader.KafkaCluster, "topic_ids", lambda _, names: dict.fromkeys(names, topic_id))
        return _bindings(source())

    before = bindings("old-id")
    assert len(before) == 4
    assert bindings("old-id") == before
    assert not bindings("new-id") & before
    assert "no id" not in caplog.text
    bindings(None)
    assert f"no id of topic {topic}" in caplog.text


def test_topics_of_one_name_in_two_clusters_differ_where_brokers_know_no_ids_of_topics(source, topic):
    other = MockCluster()
    other.make_topic(topic)
    assert _bindings(source()) == _bindings(source())
    assert not _bindings(source()) & _bindings(source(bootstrap_servers=other.address))


class TestEnd:
    @staticmethod
    def longer(partition):
        return replace(partition, bounds=replace(partition.bounds, end=5, high=5))

    def test_of_tombstones_is_a_part_of_the_partition(self, source, write):
        write([0, 1, 2, None, None])
        (zero, *_) = source(tombstones="drop").partitions()
        parts = _read(zero)
        assert (_ids(parts), str(parts[-1].end)) == ([0, 1, 2], "4")
        assert self.longer(zero).behind(parts[-1].end).rows == 0

    @pytest.mark.parametrize("start", [3, 4])
    def test_of_offsets_that_are_no_records_is_passed_by_a_part_without_rows(
        self, source, write, monkeypatch, start
    ):
        write(range(3))
        (zero, *_) = source().partitions()
        silent = SimpleNamespace(blocks=lambda _: iter(()), close=lambda: None)
        monkeypatch.setattr(reader, "_Reader", lambda *_: silent)
        (part,) = self.longer(zero).read(start, BatchLimits())
        assert (part.body, str(part.start), str(part.end), part.rows) == (b"", str(start), "4", 0)


def test_brokers_that_do_not_answer_are_named_in_time_also_while_reading(source, write):
    away = {"bootstrap_servers": "127.0.0.1:1", "timeout_seconds": 0.1}
    with pytest.raises(errors.SourceUnavailableError, match=r"127.0.0.1:1: topic 't'"):
        source(topics=["t"], **away).partitions()
    write(range(3))
    (zero, *_) = source().partitions()
    for name, value in away.items():
        object.__setattr__(zero.settings.spec, name, value)
    with pytest.raises(errors.SourceUnavailableError, match=r"offset 0.* 3"):
        _read(zero)


def test_setting_that_the_client_refuses_is_named_without_a_secret(source):
    with pytest.raises(errors.ConfigurationError, match=r'"security.protocol"'):
        source(options={"security.protocol": "HUSH"}).partitions()


COLUMNS = (TableColumn("ID", "NUMBER(38,0)"), TableColumn("NOTE", "VARCHAR"))

_letters = itertools.count(1)


class Letters:
    """A topic, and the topic of its rows that do not fit."""

    def __init__(self, cluster):
        self.address, self.topic = cluster.address, f"letters{next(_letters)}"
        self.aside = f"{self.topic}-rejected"
        for name in (self.topic, self.aside):
            cluster.make_topic(name)

    def write(self, values, **fields):
        produce(self.address, self.topic, values, **fields)

    def partition(self):
        values = {"kind": "kafka", "bootstrap_servers": self.address, "topics": [self.topic]}
        (partition, *_) = open_source(source_spec({"timeout_seconds": 30.0, **values}), "fail").partitions()
        return partition

    def gate(self, partition):
        rules = RowRules(COLUMNS, f"kafka:{self.aside}", "app")
        return Admission(rules, (), "ignore", "shop_t_0", IntegerOffset, None, partition.open_dead_letters)

    def load(self):
        """Admit all rows: how many were put aside, and the ids of the others."""
        partition = self.partition()
        gate = self.gate(partition)
        parts = partition.read(partition.resume(None), BatchLimits(rows=30))
        good = [part for part in map(gate.admit, parts) if part is not None]
        gate.settle(good[-1].end)
        lines = [line for part in good for line in bytes(part.body).splitlines()]
        return gate.dead_lettered, [json.loads(line)["ID"] for line in lines]

    def put_aside(self, count, **options):
        return keyed_records(self.address, self.aside, count, **options)


@pytest.fixture
def letters(cluster):
    return Letters(cluster)


def test_bad_rows_are_records_with_position_reason_and_payload_and_an_attempt_repeats_them_by_key(letters):
    letters.write(json.dumps({"ID": one if one % 4 else f"no {one}"}).encode() for one in range(100))
    bad = range(0, 100, 4)

    assert letters.load() == (len(bad), [one for one in range(100) if one % 4])

    first = letters.put_aside(len(bad))
    values = {key: json.loads(value) for key, value, _ in first}
    assert values == {f"shop_t_0:{one}": {"ID": f"no {one}"} for one in bad}
    headers = next(headers for key, _, headers in first if key == "shop_t_0:8")
    assert "NUMBER" in headers.pop("snowpipe.reason")
    assert headers == {
        "snowpipe.channel": "shop_t_0",
        "snowpipe.position": "8",
        "snowpipe.column": "ID",
        "snowpipe.application": "app",
    }

    letters.load()

    both = letters.put_aside(2 * len(bad))
    assert len(both) == 2 * len(bad)
    assert {(key, value) for key, value, _ in both} == {(key, value) for key, value, _ in first}
    # The partition depends on the key alone: only so can compaction find the earlier record.
    positions = {key: [at for at, one in enumerate(both) if one[0] == key] for key, _, _ in both}
    order = sorted(positions, key=lambda key: positions[key][0])
    assert sorted(positions, key=lambda key: positions[key][1]) == order


def test_record_that_cannot_be_decoded_is_put_aside_as_it_came(letters):
    letters.write([b'{"ID":0}', b"\x01 no json"], key=b"k\xff", headers=[("h", b"v")])

    assert letters.load() == (1, [0])

    ((key, value, headers),) = letters.put_aside(1, decoded=False)
    assert (key, value) == (b"shop_t_0:1", b"\x01 no json")
    assert "a JSON object" in headers.pop("snowpipe.reason").decode()
    assert headers == {
        "h": b"v",
        "snowpipe.key": b"k\xff",
        "snowpipe.channel": b"shop_t_0",
        "snowpipe.position": b"1",
        "snowpipe.application": b"app",
    }


def test_brokers_that_do_not_take_dead_letters_are_named_before_a_row_is_sent(letters):
    partition, letters.aside = letters.partition(), "away"
    object.__setattr__(partition.settings.spec, "timeout_seconds", 0.1)
    object.__setattr__(partition.settings.spec, "bootstrap_servers", "127.0.0.1:1")
    with pytest.raises(DeadLetterError, match=r"'shop_t_0'.*'away'.*127.0.0.1:1"):
        letters.gate(partition)


def test_topic_that_cannot_take_the_dead_letters_is_refused_with_the_plan():
    for source, path, error in [
        ({"topics": ["orders", "returns"]}, "kafka:returns", "which the source reads itself"),
        ({"topic_pattern": "orders.*"}, "kafka:orders-rejected", "which the source reads itself"),
        ({"topics": ["orders"]}, "kafka:no topic", "must be a topic's name"),
        ({"topics": ["orders"]}, "kafka://k1:9092/rejected", "must be a topic's name"),
        (None, "kafka:rejected", "brokers"),
    ]:
        kafka = {"kind": "kafka", "bootstrap_servers": "k:1", **(source or {})}
        spec = source_spec(kafka if source else {"kind": "files", "path": "/data"})
        rules = {"credentials_variable": "V", "on_error": "dead_letter", "dead_letter_path": path}
        pipe = PipeName("D", "S", "P")
        with pytest.raises(ConfigurationError, match=error):
            JobPlan("a", "https://x", pipe, "c", spec.default_name, spec, columns=COLUMNS, **rules)
