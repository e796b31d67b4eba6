"""A Kafka cluster: settings of its clients, what their errors mean, what the driver asks, dead letters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.spark.source import SourceSecrets, required_module
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadLetterError,
    SnowpipeError,
    SourcePositionError,
    SourceUnavailableError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.offsets import Offset
from airflow_provider_snowpipe.streaming.row_gate import DeadLetter, DeadLetterStore

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSource


# -- Settings of librdkafka's clients, and what their errors mean ----------------------------------------


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client of the cluster is made from; pickled to executors, its repr shows no secret."""

    spec: KafkaSource
    secrets: SourceSecrets = field(default_factory=SourceSecrets)

    def config(self) -> dict[str, Any]:
        """Librdkafka's settings that all clients have in common."""
        secret = {
            name: value
            for name, value in self.secrets.values.items()
            if not name.startswith("schema.registry.")
        }
        return {
            "client.id": "airflow-provider-snowpipe",
            **self.spec.options,
            **secret,
            "bootstrap.servers": self.spec.bootstrap_servers,
            "log_level": 2,
        }

    def consumer_config(self) -> dict[str, Any]:
        """The settings of a consumer that commits nothing by itself.

        The brokers' access rules need a group; under a name of ours nothing is ever committed.
        """
        return {
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": 32 * 1024,
            **self.config(),
            "group.id": self.spec.group_id or "airflow-provider-snowpipe",
            "isolation.level": self.spec.isolation,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }

    def client(
        self, kind: Callable[[dict[str, Any]], Any], config: Mapping[str, Any], last_error: LastError
    ) -> Any:
        """Make a client."""
        from confluent_kafka import KafkaException

        try:
            return kind({**config, "error_cb": last_error})
        except (KafkaException, ValueError, TypeError) as error:
            given: Any = error.args[0] if error.args else ""
            text = given.str() if hasattr(given, "str") else str(error)
        if any(secret and secret in text for secret in self.secrets.values.values()):
            text = "a value that is a secret is not usable"
        raise ConfigurationError(f"the Kafka client refuses its settings ({text}): fix the source's options")


def require_client() -> None:
    """Make sure that the client library is there."""
    required_module("confluent_kafka", "the Kafka source", "confluent-kafka", "kafka")


class LastError:
    """The last error that librdkafka reported of its connections, which no answer carries."""

    def __init__(self) -> None:
        self.text = ""
        self.refused = False

    def __call__(self, error: Any) -> None:
        """Take an error, as ``error_cb``."""
        from confluent_kafka import KafkaError

        self.text = error.str()
        self.refused = self.refused or error.code() == KafkaError._AUTHENTICATION


def kafka_error(error: Any, what: str, settings: ClientSettings, last_error: str = "") -> SnowpipeError:
    """Find our error for one of librdkafka's."""
    from confluent_kafka import KafkaError

    where = f"Kafka at {settings.spec.bootstrap_servers}: {what}"
    reason = f"{error.str()}{f'; {last_error}' if last_error else ''}"
    code = error.code()
    if (
        code in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
        or "uthentication" in last_error
    ):
        return AuthenticationError(
            f"{where}: the brokers refuse the credentials ({reason}): fix the connection"
        )
    if code in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ):
        return AuthenticationError(f"{where}: not allowed ({reason}): grant the user READ and DESCRIBE on it")
    if code in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
    ):
        return WriterActiveError(
            f"{where}: the group has members ({reason}), so another consumer, such as the connector, reads "
            "for it: stop that one, or use another group_id. Rows and tokens are committed; the next run "
            "moves the group's offsets"
        )
    return SourceUnavailableError(
        f"{where}: no answer to go on with ({reason}): check that the brokers run and can be reached from "
        "here"
    )


# -- What the driver asks a Kafka cluster: its partitions, how far they reach, and a group's offsets -----

TopicAndNumber = tuple[str, int]
_INTERNAL = "__"
_NO_OFFSET = 0
_LATEST, _EARLIEST = -1, -2
"""Instead of a timestamp (Kafka protocol: ListOffsets; observed with librdkafka 2.16 and Kafka 4.1)."""
_SAMPLED = 500
"""Records whose size stands for that of all."""
_SAMPLE_SECONDS = 5.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a topic-partition reached when the run began.

    :param end: the offset behind the last record that may be read; with ``read_committed`` it stops ahead of
        an open transaction
    :param high: the offset behind the last record that is there
    """

    earliest: int
    end: int
    high: int


class KafkaCluster:
    """A cluster as the driver asks it; a context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        require_client()
        self._settings = settings
        self._timeout = settings.spec.timeout_seconds
        self._last_error = LastError()
        self._consumer = self._open_consumer()

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def partitions(self, topics: Iterable[str], pattern: str | None) -> list[TopicAndNumber]:
        """List the topic-partitions of some topics, or of those that match a pattern, ordered."""
        from confluent_kafka import KafkaError

        names = list(topics) if pattern is None else self._matching(pattern)
        found: list[TopicAndNumber] = []
        for name in names:
            ask = partial(self._consumer.list_topics, name, timeout=self._timeout)
            topic = self._ask(f"topic {name!r}", ask).topics[name]
            if topic.error is not None:
                if topic.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    raise SourcePositionError(
                        f"topic {name!r} does not exist on {self._settings.spec.bootstrap_servers}: create "
                        "it or fix the name. Nothing was read or sent"
                    )
                raise kafka_error(topic.error, f"topic {name!r}", self._settings)
            found += [(name, number) for number in topic.partitions]
        return sorted(found)

    def bounds(self, partitions: Iterable[TopicAndNumber]) -> dict[TopicAndNumber, Bounds]:
        """Read how far each partition reaches."""
        required = list(partitions)
        low = self._offsets(self._consumer, required, _EARLIEST)
        end = self._offsets(self._consumer, required, _LATEST)
        high = end
        if self._settings.spec.isolation == "read_committed":
            # A consumer asks at its own isolation level, and an open transaction hides what is behind it.
            consumer = self._open_consumer(**{"isolation.level": "read_uncommitted"})
            with closing(consumer):
                high = self._offsets(consumer, required, _LATEST)
        return {one: Bounds(low[one], min(end[one], high[one]), high[one]) for one in required}

    def offsets_at(
        self, bounds: Mapping[TopicAndNumber, Bounds], milliseconds: int
    ) -> dict[TopicAndNumber, int]:
        """Find the first record not older than milliseconds since 1970 UTC; a partition's end without one."""
        found = self._offsets(self._consumer, bounds, milliseconds)
        return {
            one: bounds[one].end if offset < 0 else max(offset, bounds[one].earliest)
            for one, offset in found.items()
        }

    def group_offsets(self, partitions: Iterable[TopicAndNumber]) -> dict[TopicAndNumber, int]:
        """Read the group's committed offsets: the next record to read, by partition; others have none."""
        from confluent_kafka import TopicPartition

        required = [TopicPartition(topic, number) for topic, number in partitions]
        found = self._ask(
            f"offsets of group {self._settings.spec.group_id!r}",
            lambda: self._consumer.committed(required, timeout=self._timeout),
        )
        self._refuse_error(found)
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= _NO_OFFSET}

    def cluster_id(self) -> str | None:
        """Read the id of the cluster; None from brokers that report none."""
        found: str | None = self._ask(
            "topics", lambda: self._consumer.list_topics(timeout=self._timeout)
        ).cluster_id
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str | None]:
        """Read the ids of topics; None for one whose brokers report none.

        Brokers before Kafka 2.8 have no ids, and some that only speak its protocol give every topic the id 0.
        Without a controller nobody answers (librdkafka's mock has none), which is not waited for.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient

        names = sorted(set(topics))
        known = self._ask("topics", lambda: self._consumer.list_topics(timeout=self._timeout))
        if not names or known.controller_id not in known.brokers:
            return dict.fromkeys(names)
        admin = AdminClient({**self._settings.config(), "error_cb": self._last_error})
        answers = admin.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        found: dict[str, str | None] = {}
        for name in names:
            try:
                uuid = answers[name].result(self._timeout + 1).topic_id
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:
                    raise kafka_error(
                        error.args[0], f"topic {name!r}", self._settings, self._last_error.text
                    ) from None
                found[name] = None
                continue
            bits = uuid.get_most_significant_bits() or uuid.get_least_significant_bits()
            found[name] = str(uuid) if bits else None
        return found

    def mean_bytes(self, partition: TopicAndNumber, start: int) -> float | None:
        """Estimate the bytes of a record's value from the first ones after an offset; None for no record."""
        from confluent_kafka import TopicPartition

        topic, number = partition
        self._consumer.assign([TopicPartition(topic, number, start)])
        sizes: list[int] = []
        deadline = time.monotonic() + min(self._timeout, _SAMPLE_SECONDS)
        has_more = True
        while has_more and len(sizes) < _SAMPLED and time.monotonic() < deadline:
            found = self._ask(
                f"partition {number} of topic {topic!r}",
                lambda: self._consumer.consume(_SAMPLED, _POLL_SECONDS),
            )
            sizes += [len(one.value() or b"") for one in found if one.error() is None]
            # The end of the partition comes as an error, and so does everything else that ends a poll.
            has_more = all(one.error() is None for one in found)
        return sum(sizes) / len(sizes) if sizes else None

    def move_group(self, offsets: Mapping[TopicAndNumber, int]) -> None:
        """Move the group's offsets to the next records to read; one that is further already stays."""
        from confluent_kafka import TopicPartition

        known = self.group_offsets(offsets)
        ahead = [
            TopicPartition(topic, number, offset)
            for (topic, number), offset in sorted(offsets.items())
            if known.get((topic, number), -1) < offset
        ]
        if ahead:
            moved = self._ask(
                f"offsets of group {self._settings.spec.group_id!r}",
                lambda: self._consumer.commit(offsets=ahead, asynchronous=False),
            )
            self._refuse_error(moved or ())

    def _refuse_error(self, answers: Iterable[Any]) -> None:
        for one in answers:
            if one.error is not None:
                raise kafka_error(one.error, f"group {self._settings.spec.group_id!r}", self._settings)

    def _matching(self, pattern: str) -> list[str]:
        every = self._ask("topics", lambda: self._consumer.list_topics(timeout=self._timeout)).topics
        names = [
            name
            for name in every
            if not name.startswith(_INTERNAL) and re.fullmatch(pattern, name) is not None
        ]
        if not names:
            raise SourcePositionError(
                f"no topic of {self._settings.spec.bootstrap_servers} matches {pattern!r} ({len(every)} "
                "topics are there to see): check the pattern and the user's rights. Nothing was read or sent"
            )
        return sorted(names)

    def _open_consumer(self, **more: str) -> Any:
        from confluent_kafka import Consumer

        config = {**self._settings.consumer_config(), "auto.offset.reset": "error", **more}
        return self._settings.client(Consumer, config, self._last_error)

    def _offsets(
        self, consumer: Any, partitions: Iterable[TopicAndNumber], timestamp: int
    ) -> dict[TopicAndNumber, int]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(topic, number, timestamp) for topic, number in partitions]
        if not asked:
            return {}
        found = self._ask(
            "offsets", lambda: consumer.offsets_for_times(asked, timeout=self._timeout), consumer
        )
        for one in found:
            if one.error is not None:
                what = f"partition {one.partition} of topic {one.topic!r}"
                raise kafka_error(one.error, what, self._settings, self._last_error.text)
        return {(one.topic, one.partition): one.offset for one in found}

    def _ask(self, what: str, question: Callable[[], Any], consumer: Any = None) -> Any:
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            (consumer or self._consumer).poll(0)
            raise kafka_error(error.args[0], what, self._settings, self._last_error.text) from None


# -- Rows that were put aside, as records of a topic ----------------------------------------------------
#
# A record's key is the row's channel and position, so that another attempt at the same row writes the same
# record again: whoever goes by the key, as a compacted topic does, has each row once. Its value is the row as
# it would have been sent, and headers have the rest.

_REMEDY = "make the topic, and grant the user WRITE and DESCRIBE on it"
_READERS_OWN = ("check.", "fetch.", "max.partition.", "queued.")
"""How settings begin that a producer has no use for."""


class DeadLetterTopic(DeadLetterStore):
    """A topic for the bad rows of one channel.

    The producer is idempotent: what it repeats over a bad connection is in the topic once, in order.
    """

    def __init__(self, topic: str, channel: str, settings: ClientSettings) -> None:
        require_client()
        from confluent_kafka import KafkaException, Producer

        self._topic, self._channel, self._settings = topic, channel, settings
        self._last_error = LastError()
        self._failed: Any = None
        config = {
            **{name: value for name, value in settings.config().items() if not name.startswith(_READERS_OWN)},
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "message.timeout.ms": round(settings.spec.timeout_seconds * 1000),
        }
        self._producer = settings.client(Producer, config, self._last_error)
        try:
            found = self._producer.list_topics(topic, timeout=settings.spec.timeout_seconds)
        except KafkaException as error:
            self._producer.poll(0)
            raise self._refused(error.args[0]) from None
        problem = found.topics[topic].error
        if problem is not None:
            raise self._refused(problem)

    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Produce the bad rows of one part, and wait until the brokers have them."""
        from confluent_kafka import KafkaException

        try:
            for dead_letter in dead_letters:
                self._produce(dead_letter, application)
        except KafkaException as error:
            raise self._refused(error.args[0]) from None
        left = self._producer.flush(self._settings.spec.timeout_seconds + 1)
        if self._failed is not None:
            raise self._refused(self._failed)
        if left:
            raise self._refused(None)

    def pass_by(self, start: Offset, end: Offset) -> None:
        """Nothing: a topic's records stay, and this attempt's have the same keys."""

    def settle(self, committed: Offset) -> None:
        """Nothing, as above."""

    def _produce(self, dead_letter: DeadLetter, application: str) -> None:
        assert dead_letter.position is not None  # noqa: S101  parts of topics have their rows' positions
        texts = {
            "snowpipe.channel": self._channel,
            "snowpipe.position": str(dead_letter.position),
            "snowpipe.column": dead_letter.column,
            "snowpipe.reason": dead_letter.reason,
            "snowpipe.application": application,
        }
        headers = [(name, text.encode()) for name, text in texts.items() if text is not None]
        if dead_letter.key is not None:
            headers.append(("snowpipe.key", dead_letter.key))
        key = f"{self._channel}:{dead_letter.position}"

        def delivered(error: Any, _: Any) -> None:
            self._failed = self._failed or error

        while True:
            try:
                self._producer.produce(
                    self._topic,
                    dead_letter.payload,
                    key.encode(),
                    headers=[*dead_letter.headers, *headers],
                    on_delivery=delivered,
                )
            except BufferError:
                self._producer.poll(1)
            else:
                return

    def _refused(self, error: Any) -> DeadLetterError:
        """Describe an error; the row that it is about is not repeated."""
        reason = "no answer in time" if error is None else error.str()
        reason_of_client = f"; {self._last_error.text}" if self._last_error.text else ""
        return DeadLetterError(
            f"channel {self._channel!r}: dead letters cannot be written to topic {self._topic!r} of "
            f"{self._settings.spec.bootstrap_servers} ({reason}{reason_of_client}): {_REMEDY}"
        )
