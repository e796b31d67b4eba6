"""A stream of one topic into a table, started as often as a test likes; each run ends at what is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_snowpipe.streaming.channel import Channel
from airflow_provider_snowpipe.streaming.offsets import IntegerOffset
from tests.kafka_topics import numbered
from tests.spark_session import Door

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class TopicStream:
    """The stream.

    :param spark: the session
    :param door: the table
    :param brokers: their address
    :param topic: the topic
    :param checkpoint: the query's directory
    """

    spark: SparkSession
    door: Door
    brokers: str
    topic: str
    checkpoint: Path

    def run(self, **options: Any) -> int:
        """Load what the topic has; the number of records that were read."""
        query = self._start(options)
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)

    def refused(self, **options: Any) -> str:
        """The text of our error that ended a run."""
        with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's classes differ by place
            self._start(options).awaitTermination()
        found = re.findall(r"airflow_provider_snowpipe[\w.]*\.(\w+: .*)$", str(caught.value), re.MULTILINE)
        assert found, str(caught.value)[-3000:]
        return found[-1]

    def tokens(self, partitions: int) -> Sequence[str | None]:
        """The channels' committed tokens."""
        return list(self.door.tokens(*(f"{self.topic}_{number}" for number in range(partitions))).values())

    def batches(self) -> list[int]:
        """The micro-batches that Spark has noted as done."""
        names = (path.name for path in (self.checkpoint / "commits").iterdir())
        return sorted(int(name) for name in names if name.isdigit())

    def forget_commit(self, batch: int) -> None:
        """Take back Spark's note that a batch is done, as if the driver had died just before it."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink()

    def append(self, number: int, ids: Iterable[int]) -> None:
        """Send rows through a partition's channel as another writer does; a row's number is its offset."""
        with self.door.service.client(self.door.table) as client:
            client.pipe_info()
            with Channel.open(client, self._channel(number), IntegerOffset, gaps_legal=True) as channel:
                for one in ids:
                    channel.append(numbered([one])[0] + b"\n", IntegerOffset(one), IntegerOffset(one), rows=1)
                channel.flush()
                channel.wait_for_commit(IntegerOffset(one), timeout=30)

    def set_token(self, number: int, token: str) -> None:
        """Set a committed token as an administrator does."""
        self.door.service.sql(
            f"SELECT SYSTEM$SNOWPIPE_STREAMING_UPDATE_CHANNEL_OFFSET_TOKEN('LOCAL.PUBLIC.{self.door.table}', "
            f"'{self._channel(number)}', '{token}')"
        )

    def _channel(self, number: int) -> str:
        return f"{self.door.prefix}_{self.topic}_{number}"

    def _start(self, options: dict[str, Any]) -> Any:
        sink = self.door.options()
        common = {name: value for name, value in sink.items() if name != "commitTimeout"}
        records = (
            self.spark.readStream.format("snowpipe_kafka")
            .options(
                **common, bootstrapServers=self.brokers, topics=self.topic, timeoutSeconds="20", **options
            )
            .load()
        )
        rows = records.selectExpr(
            "channel", "offset", "from_json(CAST(value AS STRING), 'ID BIGINT, NOTE STRING') AS row"
        ).select("channel", "offset", "row.ID", "row.NOTE")
        return (
            rows.writeStream.format("snowpipe")
            .options(**sink, channelColumn="channel", offsetColumn="offset", omitColumns="channel,offset")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
