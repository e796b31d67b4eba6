"""A stream from Spark's own Kafka source into a table, started as often as a test likes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark_session import Door


@dataclass
class TopicStream:
    """The stream; each run ends at what is there."""

    spark: Any
    door: Door
    brokers: str
    topic: str
    checkpoint: Path

    def run(self, **options: Any) -> int:
        """Load what the topic has; the number of records that were read."""
        kafka = {
            "kafka.bootstrap.servers": self.brokers,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.topic,
            "startingOffsets": "earliest",
        }
        records = self.spark.readStream.format("kafka").options(**kafka, **options).load()
        rows = records.selectExpr(
            "concat_ws('_', topic, partition) AS channel",
            "offset",
            "from_json(CAST(value AS STRING), 'ID BIGINT, NOTE STRING') AS row",
        ).select("channel", "offset", "row.ID", "row.NOTE")
        keys = {"channelColumn": "channel", "offsetColumn": "offset", "omitColumns": "channel,offset"}
        writer = rows.writeStream.format("snowpipe").options(
            **self.door.options(), **keys, fixedSpread="true"
        )
        with_checkpoint = writer.option("checkpointLocation", str(self.checkpoint))
        query = with_checkpoint.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)

    def tokens(self, partitions: int) -> list[str | None]:
        return list(self.door.tokens(*(f"{self.topic}_{number}" for number in range(partitions))).values())
