"""Reads one topic-partition from an offset to a fixed end.

A consumer is assigned its partition and joins no group, so that nothing rebalances and nothing is committed.
The client hands its records over one by one (a Python object and a call for each of its fields); everything
behind that is Arrow's.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.kafka.client import (
    ClientSettings,
    LastError,
    kafka_error,
    refused_settings,
    require_client,
)
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.streaming.errors import (
    AuthenticationError,
    SourcePositionError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.source import OnDataLoss

_BLOCK_BYTES = 4 << 20
_MOST_RECORDS = 20_000
_FEWEST_RECORDS = 8
_LOOK_SECONDS = 0.1
_NO_TIMESTAMP, _LOG_APPEND_TIME = 0, 2


def read_records(
    settings: ClientSettings,
    topic: str,
    number: int,
    start: int,
    end: int,
    *,
    fields: Set[str],
    on_data_loss: OnDataLoss,
) -> Generator[Records, None, None]:
    """Read the records from an offset up to an end, whether or not the last offsets are records.

    The end has come with the first record at or behind it, or when the broker says that nothing is left
    ahead of an offset at or behind it: offsets of transaction markers and of compacted records are never
    delivered. The partition may grow meanwhile; nothing behind the end is returned.

    :param settings: of the client
    :param topic: the topic
    :param number: the partition
    :param start: the first offset
    :param end: the offset behind the last one that is wanted, at most the partition's end
    :param fields: what is wanted of a record besides its value: ``timestamp``, ``key``, ``headers``
    :param on_data_loss: ``skip`` allows that retention takes records while they are read
    :raises SourcePositionError: if retention has taken records that were to be read
    :raises SourceUnavailableError: if the brokers say nothing for too long
    """
    reader = _Reader(settings, topic, number, start, end, on_data_loss)
    try:
        yield from reader.blocks(fields)
    finally:
        reader.close()


class _Reader:
    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        number: int,
        start: int,
        end: int,
        on_data_loss: OnDataLoss,
    ) -> None:
        require_client()
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        self._settings = settings
        self._what = f"partition {number} of topic {topic!r}"
        self._next = start
        self._end = end
        self._on_data_loss = on_data_loss
        self._said = LastError()
        self._found_end = False
        config = {
            **settings.consumer_config(),
            "auto.offset.reset": "earliest" if on_data_loss == "skip" else "error",
            "error_cb": self._said,
        }
        try:
            self._consumer = Consumer(config)
        except (KafkaException, ValueError, TypeError) as error:
            raise refused_settings(error, settings) from None
        self._consumer.assign([TopicPartition(topic, number, start)])

    def close(self) -> None:
        self._consumer.close()

    def blocks(self, fields: Set[str]) -> Iterator[Records]:
        count = _FEWEST_RECORDS
        heard = time.monotonic()
        while not self._found_end:
            messages = self._consumer.consume(count, _LOOK_SECONDS)
            if not messages:
                self._refuse_silence(time.monotonic() - heard)
                continue
            heard = time.monotonic()
            wanted = self._wanted(messages)
            if wanted:
                records = _columns(wanted, fields)
                yield records
                mean = max(records.bytes // len(records), 1)
                count = min(max(_BLOCK_BYTES // mean, _FEWEST_RECORDS), _MOST_RECORDS)
                heard = time.monotonic()

    def _wanted(self, messages: list[Any]) -> list[Any]:
        """Leave out the client's notices and what lies behind the end."""
        if any(message.error() is not None for message in messages):
            messages = [message for message in messages if not self._is_notice(message)]
        if not messages:
            return messages
        last = messages[-1].offset()
        self._next = last + 1
        if last + 1 >= self._end:
            self._found_end = True
            while messages and messages[-1].offset() >= self._end:
                messages.pop()
        return messages

    def _is_notice(self, message: Any) -> bool:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._found_end = self._found_end or message.offset() >= self._end
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            if self._on_data_loss != "skip":
                raise SourcePositionError(
                    f"{self._what}: offset {self._next} was there when the run began and is not any more "
                    f"({error.str()}): retention has taken it, or the topic was made anew. What was sent "
                    "before it is kept; on_data_loss='skip' goes on with what is left"
                )
        elif not error.retriable():
            raise kafka_error(error, self._what, self._settings, self._said.text)
        return True

    def _refuse_silence(self, seconds: float) -> None:
        if self._said.refused:
            raise AuthenticationError(
                f"Kafka at {self._settings.bootstrap_servers}: {self._what}: the brokers refuse the "
                f"credentials "
                f"({self._said.text}): mend the connection"
            )
        if seconds > self._settings.timeout_seconds:
            raise SourceUnavailableError(
                f"Kafka at {self._settings.bootstrap_servers}: {self._what}: nothing came for "
                f"{seconds:.0f} s at offset {self._next}, ahead of the end {self._end}"
                f"{f' ({self._said.text})' if self._said.text else ''}: check the brokers, or raise the "
                f"source's "
                "timeout_seconds"
            )


def _columns(messages: list[Any], fields: Set[str]) -> Records:
    offsets = np.fromiter((message.offset() for message in messages), np.int64, len(messages))
    values = pa.array([message.value() for message in messages], pa.large_binary())
    stamps = [message.timestamp() for message in messages] if "timestamp" in fields else None
    return Records(
        offsets,
        values,
        stamps and pa.array([None if kind == _NO_TIMESTAMP else at for kind, at in stamps], pa.int64()),
        stamps and pa.array([kind == _LOG_APPEND_TIME for kind, _ in stamps], pa.bool_()),
        pa.array([message.key() for message in messages], pa.large_binary()) if "key" in fields else None,
        [message.headers() for message in messages] if "headers" in fields else None,
        partial(_details, offsets, messages),
    )


def _details(
    offsets: np.ndarray, messages: list[Any], offset: int
) -> tuple[bytes | None, list[tuple[str, bytes | None]] | None]:
    message = messages[int(np.searchsorted(offsets, offset))]
    return message.key(), message.headers()
