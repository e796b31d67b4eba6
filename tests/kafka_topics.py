"""Topics on a broker for tests: librdkafka's mock in this process, or a real one by its address."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

_SECONDS = 300


class MockCluster:
    """Librdkafka's mock brokers; they live as long as this object, for other processes too."""

    def __init__(self) -> None:
        self._holder = Producer({"test.mock.num.brokers": 1, "log_level": 2})
        (broker,) = self._holder.list_topics(timeout=60).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def make_topic(self, topic: str) -> None:
        """Make a topic of four partitions, which is all that the mock knows."""
        self._holder.list_topics(topic, timeout=60)


def wait_for_broker(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a broker's process answers; its log says why where it does not."""
    deadline = time.monotonic() + _SECONDS
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    while True:
        try:
            admin.list_topics(timeout=2)
        except KafkaException:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text()[-3000:]) from None
        else:
            return


def create_topic(
    address: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
    made = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([made], operation_timeout=20)[topic].result(30)


def produce(
    address: str,
    topic: str,
    values: Iterable[bytes | None],
    partition: int | Callable[[int], int] = 0,
    config: Mapping[str, Any] | None = None,
    **fields: Any,
) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 2, **(config or {})})
    for row, value in enumerate(values):
        target = partition if isinstance(partition, int) else partition(row)
        while True:
            try:
                producer.produce(topic, value, partition=target, on_delivery=_delivered, **fields)
                break
            except BufferError:
                producer.poll(0.5)
    assert producer.flush(60) == 0


def transaction(address: str, topic: str, ids: Iterable[int], *, end: str) -> Producer:
    """Write numbered rows in a transaction: ``commit`` or ``abort`` ends it, else it stays open."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-{end}", "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in numbered(ids):
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)
    return producer


def keyed_records(
    address: str, topic: str, count: int, *, decoded: bool = True
) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Key, value and headers of all records, in order by their partitions, once there are so many."""
    consumer = _consumer(address, "reader", **{"enable.partition.eof": True, "fetch.wait.max.ms": 10})
    unread = set(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in unread])
    found: list[Any] = []
    deadline = time.monotonic() + _SECONDS
    while (len(found) < count or unread) and time.monotonic() < deadline:
        if (message := consumer.poll(0.2)) is None:
            continue
        if message.error() is None:
            unread.add(message.partition())
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            unread.discard(message.partition())
    consumer.close()
    found.sort(key=lambda message: (message.partition(), message.offset()))
    text = bytes.decode if decoded else bytes
    return [
        (text(one.key()), text(one.value()), {name: text(value) for name, value in one.headers()})
        for one in found
    ]


def numbered(ids: Iterable[int], note: str = "") -> list[bytes]:
    return [json.dumps({"ID": number, "NOTE": note}).encode() for number in ids]


def group_offsets(address: str, group: str, topic: str, partitions: int) -> list[int | None]:
    """What a group has committed, None for nothing."""
    consumer = _consumer(address, group)
    found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=20)
    consumer.close()
    return [one.offset if one.offset >= 0 else None for one in found]


def commit_group(address: str, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = _consumer(address, group)
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def _consumer(address: str, group: str, **settings: Any) -> Consumer:
    return Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 2, **settings})


def _delivered(error: Any, _: Any) -> None:
    assert error is None, error
