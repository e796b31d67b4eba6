"""``df.writeStream.format("snowpipe")`` on real Spark against the local service."""

import json
import os

import pytest
from pyspark.errors import StreamingQueryException

from airflow_provider_snowpipe.spark import register
from airflow_provider_snowpipe.streaming.checkpoint import Checkpoint
from tests.spark_job import numbered_name
from tests.spark_session import Door, our_error

pytestmark = pytest.mark.spark


class Stream:
    """A stream of JSON files, one a micro-batch, into a table of its own."""

    def __init__(self, spark, door, folder):
        register(spark)
        self.spark = spark
        self.door = door
        self.source = folder / "source"
        self.source.mkdir()
        self.checkpoint = folder / "checkpoint"
        self._files_put = 0

    def put(self, name, numbers):
        """Add a file; Spark takes files in the order of their times."""
        rows = [json.dumps({"ID": number, "P": "ab"[number % 2]}) for number in numbers]
        (self.source / name).write_text("\n".join(rows) + "\n")
        self._files_put += 1
        os.utime(self.source / name, (self._files_put, self._files_put))

    def run(self):
        """Load all files that the checkpoint does not know as loaded."""
        files = self.spark.readStream.schema("ID BIGINT, P STRING").option("maxFilesPerTrigger", 1)
        rows = files.json(str(self.source)).repartition(2, "P")
        writer = rows.writeStream.format("snowpipe").options(**self.door.options(partitions=2))
        with_checkpoint = writer.option("checkpointLocation", str(self.checkpoint))
        with_checkpoint.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(self, batch):
        """Take back Spark's note that a batch is done, as if the driver had died just before it."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink()

    def batches(self, *parts):
        """Batch and final flag of the channels' positions."""
        tokens = self.door.tokens(*parts)
        found = {part: token and Checkpoint.parse(token).position for part, token in tokens.items()}
        return {part: position and (position.batch, position.final) for part, position in found.items()}


@pytest.fixture
def stream(spark, local_service, tmp_path):
    door = Door(
        local_service, numbered_name("STREAM"), tmp_path / "credentials.json", columns="ID NUMBER, P VARCHAR"
    ).create()
    return Stream(spark, door, tmp_path)


def test_stream_goes_on_from_its_checkpoint_and_a_repeated_batch_sends_nothing(stream):
    stream.put("1.json", range(100))
    stream.put("2.json", range(100, 200, 2))  # rows of one partition only
    stream.run()

    assert stream.door.ids("P = 'a'") == list(range(0, 200, 2))
    assert stream.door.ids("P = 'b'") == list(range(1, 100, 2))
    assert sorted(stream.batches(0, 1).values()) == [(0, True), (1, True)]
    stream.forget_commit(1)
    stream.put("3.json", range(201, 301, 2))
    stream.run()

    assert stream.door.ids("P = 'a'") == list(range(0, 200, 2))
    assert stream.door.ids("P = 'b'") == [*range(1, 100, 2), *range(201, 301, 2)]
    assert sorted(stream.batches(0, 1).values()) == [(1, True), (2, True)]


def test_a_repeated_batch_whose_channels_have_expired_is_refused(stream, tmp_path):
    stream.door.common = {"offsetBackup": str(tmp_path / "offsets.json")}
    stream.put("1.json", range(10))
    stream.run()
    stream.forget_commit(0)
    with stream.door.service.client(stream.door.table) as client:
        for part in (0, 1):
            client.drop_channel(f"{stream.door.prefix}_{part}")
    with pytest.raises(StreamingQueryException) as refused:
        stream.run()
    assert "SourcePositionError" in our_error(refused.value)
    assert sorted(stream.door.ids()) == list(range(10))
