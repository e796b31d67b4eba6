"""Rows that were put aside, as records of a Kafka topic.

A record's key is the row's channel and position, so that another attempt at the same row writes the same
record again: whoever goes by the key, as a compacted topic does, has each row once. Its value is the row as
it would have been sent, and headers tell the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_snowpipe.spark.sources.kafka.cluster import (
    ClientSettings,
    LastError,
    refused_settings,
    require_client,
)
from airflow_provider_snowpipe.spark.task.dead_letters import DeadLetter, DeadLetterStore
from airflow_provider_snowpipe.streaming.errors import DeadLetterError
from airflow_provider_snowpipe.streaming.offsets import Offset

_REMEDY = "make the topic, and grant the user WRITE and DESCRIBE on it"
_READERS_OWN = ("check.", "fetch.", "max.partition.", "queued.")
"""How settings begin that a producer has no use for."""


class DeadLetterTopic(DeadLetterStore):
    """A topic for the bad rows of one channel.

    The producer is idempotent: what it repeats over a bad connection is in the topic once, in order.

    :param topic: the topic
    :param channel: the channel's name
    :param settings: of the source's clients
    :raises DeadLetterError: if the topic is not there
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
            "message.timeout.ms": round(settings.timeout_seconds * 1000),
            "error_cb": self._last_error,
        }
        try:
            self._producer = Producer(config)
        except (KafkaException, ValueError, TypeError) as error:
            raise refused_settings(error, settings) from None
        self._require_topic()

    def write(self, start: Offset, end: Offset, dead_letters: Sequence[DeadLetter], application: str) -> None:
        """Produce the bad rows of one part, and wait until the brokers have them.

        :raises DeadLetterError: if they do not take one
        """
        from confluent_kafka import KafkaException

        try:
            for dead_letter in dead_letters:
                self._produce(dead_letter, application)
        except KafkaException as error:
            raise self._refused(error.args[0]) from None
        left = self._producer.flush(self._settings.timeout_seconds + 1)
        if self._failed is not None:
            raise self._refused(self._failed)
        if left:
            raise self._refused(None)

    def pass_by(self, start: Offset, end: Offset) -> None:
        """Nothing: a topic's records stay, and this attempt's have the same keys."""

    def settle(self, committed: Offset) -> None:
        """Nothing, as above."""

    def _produce(self, dead_letter: DeadLetter, application: str) -> None:
        assert dead_letter.position is not None  # noqa: S101  parts of topics tell the positions of their rows
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
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    dead_letter.payload,
                    key.encode(),
                    headers=[*dead_letter.headers, *headers],
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(1)
            else:
                return

    def _delivered(self, error: Any, _: Any) -> None:
        self._failed = self._failed or error

    def _require_topic(self) -> None:
        from confluent_kafka import KafkaException

        try:
            found = self._producer.list_topics(self._topic, timeout=self._settings.timeout_seconds)
        except KafkaException as error:
            self._producer.poll(0)
            raise self._refused(error.args[0]) from None
        problem = found.topics[self._topic].error
        if problem is not None:
            raise self._refused(problem)

    def _refused(self, error: Any) -> DeadLetterError:
        """Word an error; the row that it is about is not repeated."""
        reason = "no answer in time" if error is None else error.str()
        reason_of_client = f"; {self._last_error.text}" if self._last_error.text else ""
        return DeadLetterError(
            f"channel {self._channel!r}: dead letters cannot be written to topic {self._topic!r} of "
            f"{self._settings.bootstrap_servers} ({reason}{reason_of_client}): {_REMEDY}"
        )
