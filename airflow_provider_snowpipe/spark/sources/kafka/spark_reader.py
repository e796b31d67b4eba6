"""Topics read by Spark's own Kafka source: the same channels, tokens and rows, without a client on executors.

The driver lists the partitions and fixes their ends as for the other reader; Spark makes one task for each
topic-partition and delivers its records in order ("Structured Streaming + Kafka Integration Guide", batch
queries with ``assign``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.driver.frames import CHANNEL, FramePartition, FrameSource, FrameWork
from airflow_provider_snowpipe.spark.driver.layout import pin_layout
from airflow_provider_snowpipe.spark.driver.session import is_connect
from airflow_provider_snowpipe.spark.sources.kafka.cluster import ClientSettings
from airflow_provider_snowpipe.spark.sources.kafka.reader import KafkaPartition, KafkaSource
from airflow_provider_snowpipe.spark.sources.kafka.records import Records
from airflow_provider_snowpipe.spark.sources.kafka.rows import RowWriter
from airflow_provider_snowpipe.spark.sources.kafka.spec import KafkaSourceSpec
from airflow_provider_snowpipe.spark.sources.source import (
    Behind,
    OnDataLoss,
    Partition,
    Source,
    SourceSecrets,
)
from airflow_provider_snowpipe.spark.task.dead_letters import DeadLetterStore
from airflow_provider_snowpipe.streaming.batch import Part
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset, Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- Settings under the names of Kafka's Java client -----------------------------------------------------

_SAME = frozenset(
    {
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.kerberos.service.name",
        "security.protocol",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
    }
)
_RENAMED = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
_PEM_STORES = {
    "ssl.truststore.location": "ssl.truststore.type",
    "ssl.truststore.certificates": "ssl.truststore.type",
    "ssl.keystore.key": "ssl.keystore.type",
}
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN_KEYS = frozenset({"sasl.username", "sasl.password"})
_NOT_FOR_JAVA = frozenset({"client.id", "log_level", "bootstrap.servers"})


def java_settings(settings: ClientSettings) -> dict[str, str]:
    """Translate a source's settings.

    :param settings: in librdkafka's words
    :return: in the Java client's words, with secrets
    :raises ConfigurationError: for a setting that the Java client does not have in this form
    """
    given = {name: value for name, value in settings.config().items() if name not in _NOT_FOR_JAVA}
    found: dict[str, str] = {"bootstrap.servers": settings.bootstrap_servers}
    for name, value in given.items():
        if name in _LOGIN_KEYS:
            continue
        java = name if name in _SAME else _RENAMED.get(name)
        if java is None:
            raise ConfigurationError(
                f"source option {name!r} has no translation for Spark's own Kafka source: leave it out, or "
                "use reader='client'"
            )
        found[java] = str(value)
        if java in _PEM_STORES:
            found[_PEM_STORES[java]] = "PEM"
    if _LOGIN_KEYS & set(given):
        found["sasl.jaas.config"] = _login(
            found, str(given.get("sasl.username", "")), given.get("sasl.password")
        )
    return found


def _login(found: dict[str, str], user: str, password: object) -> str:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism not in _LOGINS:
        raise ConfigurationError(
            f"source option 'sasl.mechanism' is {mechanism!r}: Spark's own Kafka source takes a user and a "
            f"password with one of {sorted(_LOGINS)}; use reader='client'"
        )
    quoted = [f'"{_escaped(text)}"' for text in (user, str(password or ""))]
    return f"{_LOGINS[mechanism]} required username={quoted[0]} password={quoted[1]};"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# Topics read by Spark's own Kafka source: the same channels, tokens and rows, without a client on executors
#
# The driver lists the partitions and fixes their ends as for the other reader; Spark makes one task for
# each topic-partition and delivers its records in order ("Structured Streaming + Kafka Integration Guide",
# batch queries with ``assign``).

_CLASSES = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.spark.kafka010.KafkaConfigUpdater": "spark-token-provider-kafka-0-10",
    "org.apache.kafka.clients.consumer.KafkaConsumer": "kafka-clients",
    "org.apache.commons.pool2.KeyedObjectPool": "commons-pool2",
}
"""A class of each jar that Spark's Kafka source is made of, none of which comes with Spark."""
_COLUMNS = ("offset", "value", "timestamp", "timestampType", "key", "headers")
_LOG_APPEND_TIME = 1


class KafkaFrameSource(FrameSource):
    """Topics of a cluster, read by Spark.

    :param spec: the source
    :param on_data_loss: what to do if retention has taken the record after the committed one
    """

    def __init__(self, spec: KafkaSourceSpec, on_data_loss: OnDataLoss) -> None:
        self._spec = spec
        self._on_data_loss = on_data_loss
        self._topics = KafkaSource(spec, on_data_loss)
        self._session: SparkSession

    def take_secrets(self, secrets: SourceSecrets) -> None:
        """Take passwords and keys; Spark gets them as options of the query, which it redacts."""
        self._topics.take_secrets(secrets)

    def without_spark(self) -> Source:
        """The topics are listed by the other reader's client."""
        return self._topics

    def finish(self, committed: Mapping[str, Offset]) -> None:
        """Move the group's offsets behind the committed records."""
        self._topics.finish(committed)

    def check_identity(
        self,
        client: SnowpipeClient,
        partitions: Mapping[str, Partition],
        committed: Mapping[str, Offset | None],
    ) -> None:
        """Refuse topics that were deleted and made again, as the other reader does."""
        own = {
            name: one.partition for name, one in partitions.items() if isinstance(one, KafkaFramePartition)
        }
        self._topics.check_identity(client, own, committed)

    def use(self, session: SparkSession) -> None:
        """Take the session, and make sure that it has Spark's Kafka source."""
        pin_layout(session)
        missing = missing_jars(session)
        if missing:
            raise ConfigurationError(
                f"source reader is 'spark', and Spark has no jar of {', '.join(missing)}: give the operator "
                f"packages='org.apache.spark:spark-sql-kafka-0-10_2.13:{session.version}', put that jar and "
                "what it needs into spark.jars, or use reader='client'"
            )
        self._session = session

    def partitions(self) -> tuple[KafkaFramePartition, ...]:
        """List the topic-partitions and how far they reach now."""
        return tuple(KafkaFramePartition(one.name, one) for one in self._topics.partitions())

    def locate(self, works: Sequence[FrameWork]) -> list[FrameWork]:
        """Find the channels that have records behind their tokens."""
        located = ((work, _start(work)) for work in works)
        return [
            replace(work, partition=KafkaFramePartition(work.partition.name, _topic_partition(work), start))
            for work, start in located
            if start is not None
        ]

    def frame(self, works: Sequence[FrameWork]) -> DataFrame:
        """Make the query for some channels."""
        begun = [(_topic_partition(work), _start(work)) for work in works]
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for one, start in begun:
            begin = one.bounds.end if start is None else start
            starts.setdefault(one.topic, {})[str(one.number)] = begin
            ends.setdefault(one.topic, {})[str(one.number)] = one.bounds.end
        settings = java_settings(begun[0][0].settings)
        assign = {topic: sorted(map(int, numbers)) for topic, numbers in starts.items()}
        rows = (
            self._session.read.format("kafka")
            .options(**{f"kafka.{name}": value for name, value in settings.items()})
            .option("kafka.isolation.level", self._spec.isolation)
            .option("assign", json.dumps(assign))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("failOnDataLoss", "false" if self._on_data_loss == "skip" else "true")
            .option("includeHeaders", "true")
            .load()
        )
        return with_channels(rows, [one.name for one, _ in begun])


@dataclass(frozen=True, slots=True)
class KafkaFramePartition(FramePartition):
    """One topic-partition whose records arrive as Arrow batches.

    :param name: ``<topic>_<number>``
    :param partition: the same as the other reader knows it
    :param start: the first offset that the query delivers, 0 until it is known
    """

    name: str
    partition: KafkaPartition
    start: int = 0
    offset_class: ClassVar[type[Offset]] = IntegerOffset
    gaps_legal: ClassVar[bool] = True

    def check(self, committed: Offset | None) -> None:
        """Make sure that the next record has not been taken by retention, and that the topic is the same."""
        self.partition.check(committed)

    def behind(self, committed: str | None) -> Behind:
        """Count the offsets up to the end; some may be no records."""
        return self.partition.behind(committed)

    def open_dead_letters(
        self, path: str, channel: str, offset_class: type[Offset], after: Offset | None
    ) -> DeadLetterStore:
        """Open a folder or a topic, as the other reader does: executors then need librdkafka for a topic."""
        return self.partition.open_dead_letters(path, channel, offset_class, after)

    def parts(
        self, batches: Iterator[pa.RecordBatch], committed: Offset | None, limits: BatchLimits
    ) -> Iterator[Part]:
        """Write the records behind a committed position as rows."""
        one = self.partition
        required = one.resume(committed)
        if required is not None and required < self.start:
            raise SourcePositionError(
                f"the channel's token was {self.start - 1} or later when the run began and is "
                f"{'NULL' if committed is None else repr(str(committed))} now: somebody has reset it. "
                "Nothing was sent; run again"
            )
        writer = RowWriter(one.spec, one.topic, one.number, one.settings.secrets)
        after = -1 if committed is None else int(str(committed))
        for batch in batches:
            records = _records(batch, writer.fields)
            if len(records) and records.offsets[0] <= after:
                records = records.taken(records.offsets > after)
            for piece in records.pieces(writer.piece_bytes(limits), limits.rows):
                yield writer.part(piece)


class KafkaAutoSource(KafkaSource):
    """Topics of a cluster, read by Spark where it can; by librdkafka there and wherever Spark is not."""

    def with_spark(self, session: Callable[[], Any]) -> Source:
        """Choose the reader. Channels, tokens and rows are the same, so that each run may choose anew."""
        spark = session()
        if is_connect(spark) or missing_jars(spark) or not self._has_translation():
            print("snowpipe reader client", flush=True)
            return self
        print("snowpipe reader spark", flush=True)
        chosen = KafkaFrameSource(self._spec, self._on_data_loss)
        chosen.take_secrets(self._settings.secrets)
        chosen.use(spark)
        return chosen

    def _has_translation(self) -> bool:
        try:
            java_settings(self._settings)
        except ConfigurationError:
            return False
        return True


_READERS: dict[str, type[KafkaSource] | type[KafkaFrameSource]] = {
    "auto": KafkaAutoSource,
    "client": KafkaSource,
    "spark": KafkaFrameSource,
}


def kafka_source(spec: KafkaSourceSpec, on_data_loss: OnDataLoss) -> KafkaSource | KafkaFrameSource:
    """Make the source with the reader that the spec names.

    :param spec: the source
    :param on_data_loss: what to do if retention has taken the record after the committed one
    """
    return _READERS[spec.reader](spec, on_data_loss)


def missing_jars(session: SparkSession) -> list[str]:
    """What a session lacks of Spark's own Kafka source; nothing if it can read topics.

    :param session: a session that is not one of Spark Connect
    """
    java: Any = session.sparkContext._jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    return [
        jar for name, jar in _CLASSES.items() if loader.getResource(name.replace(".", "/") + ".class") is None
    ]


def with_channels(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Number the records by their channel, and leave out the columns that nobody needs.

    :param rows: records with the columns of Spark's Kafka source
    :param names: of the topic-partitions, in the order of their numbers
    """
    from pyspark.sql import functions as sf

    numbered = (column for row, name in enumerate(names) for column in (sf.lit(name), sf.lit(row)))
    name = sf.concat(rows["topic"], sf.lit("_"), rows["partition"].cast("string"))
    return rows.select(sf.create_map(*numbered)[name].alias(CHANNEL), *(rows[column] for column in _COLUMNS))


def _topic_partition(work: FrameWork) -> KafkaPartition:
    assert isinstance(work.partition, KafkaFramePartition)  # noqa: S101  this source made it
    return work.partition.partition


def _start(work: FrameWork) -> int | None:
    return _topic_partition(work).resume(work.committed)


def _records(batch: pa.RecordBatch, fields: frozenset[str]) -> Records:
    """Take Spark's columns as ours."""
    stamps = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    headers = batch.column("headers").to_pylist() if "headers" in fields else None
    return Records(
        np.asarray(batch.column("offset"), np.int64),
        batch.column("value").cast(pa.large_binary()),
        stamps if "timestamp" in fields else None,
        pc.equal(batch.column("timestampType"), _LOG_APPEND_TIME) if "timestamp" in fields else None,
        batch.column("key").cast(pa.large_binary()) if "key" in fields else None,
        headers and [found and [(one["key"], one["value"]) for one in found] for found in headers],
        partial(_details, batch),
    )


def _details(batch: pa.RecordBatch, offset: int) -> tuple[bytes | None, list[tuple[str, bytes | None]]]:
    row = int(np.searchsorted(np.asarray(batch.column("offset"), np.int64), offset))
    headers = batch.column("headers")[row].as_py() or ()
    return batch.column("key")[row].as_py(), [(one["key"], one["value"]) for one in headers]
