"""``df.writeStream.format("snowpipe")`` on real Spark against the local service."""

from __future__ import annotations

import json
import os

import pytest
from pyspark.sql import functions as sf

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

    def put(self, name, numbers, text=lambda number: "ab"[number % 2]):
        """Add a file; Spark takes files in the order of their times."""
        rows = [json.dumps({"ID": number, "P": text(number)}) for number in numbers]
        (self.source / name).write_text("\n".join(rows) + "\n")
        self._files_put += 1
        os.utime(self.source / name, (self._files_put, self._files_put))

    def run(self, *, partitions=1, **options):
        """Load all files that the checkpoint does not know as loaded."""
        plan = self._files()
        plan = plan.coalesce(1) if partitions == 1 else plan.repartition(partitions, "P")
        writer = plan.writeStream.format("snowpipe").options(
            **self.door.options(partitions=partitions, **options)
        )
        self._finish(writer)

    def run_sorted(self, *, order=("P", "ID"), **options):
        """The same by foreachBatch, in which rows can be sorted."""
        given = self.door.options(**options)

        def write(rows, batch):
            rows = rows.repartition(2, "P").sortWithinPartitions(*order)
            rows.write.format("snowpipe").options(**given, batchId=batch).mode("append").save()

        self._finish(self._files().writeStream.foreachBatch(write))

    def start_observed(self):
        """Start the stream with what the how-to has Spark report of each batch."""
        rows = self._files().coalesce(1)
        rows = rows.observe("snowpipe", sf.count(sf.lit(1)).alias("rows"), sf.max("ID").alias("last"))
        writer = rows.writeStream.format("snowpipe").options(**self.door.options(partitions=1))
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def _files(self):
        files = self.spark.readStream.schema("ID BIGINT, P STRING").option("maxFilesPerTrigger", 1)
        return files.json(str(self.source))

    def _finish(self, writer):
        with_checkpoint = writer.option("checkpointLocation", str(self.checkpoint))
        with_checkpoint.trigger(availableNow=True).start().awaitTermination()

    def refused(self, run=None, **changes):
        """The text of our error that ended a run."""
        with pytest.raises(Exception) as caught:  # noqa: PT011  the class depends on how Spark runs
            (run or self.run)(**changes)
        return our_error(caught.value)

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


def test_progress_of_the_query_has_the_batches_rows_where_the_author_observes_them(stream):
    stream.put("1.json", range(100))
    stream.put("2.json", range(100, 130))

    query = stream.start_observed()
    query.awaitTermination()

    seen = {
        one.batchId: one.observedMetrics["snowpipe"] for one in query.recentProgress if one.observedMetrics
    }
    assert {batch: (row.rows, row.last) for batch, row in seen.items()} == {0: (100, 99), 1: (30, 129)}
    assert stream.door.ids() == list(range(130))


def test_stream_goes_on_from_its_checkpoint_and_a_repeated_batch_sends_nothing(stream):
    stream.put("1.json", range(100))
    stream.put("2.json", range(100, 200, 2))  # rows of one partition only
    stream.run(partitions=2)

    assert stream.door.ids("P = 'a'") == list(range(0, 200, 2))
    assert stream.door.ids("P = 'b'") == list(range(1, 100, 2))
    assert sorted(stream.batches(0, 1).values()) == [(0, True), (1, True)]
    before = stream.door.tokens(0, 1)

    stream.forget_commit(1)
    stream.run(partitions=2)

    assert stream.door.tokens(0, 1) == before
    assert len(stream.door.ids()) == 150

    stream.put("3.json", range(201, 301, 2))
    stream.run(partitions=2)

    assert stream.door.ids("P = 'b'") == [*range(1, 100, 2), *range(201, 301, 2)]
    assert sorted(stream.batches(0, 1).values()) == [(1, True), (2, True)]


def test_batches_sorted_in_foreach_batch_are_exactly_once_too(stream):
    stream.put("1.json", reversed(range(100)))
    stream.put("2.json", range(100, 200))
    stream.run_sorted(channelColumn="P")
    stream.forget_commit(1)
    disorder = stream.refused(stream.run_sorted, channelColumn="P", order=("P", sf.expr("ID % 7")))
    stream.run_sorted(channelColumn="P")

    assert "another order" in disorder
    assert stream.door.ids("P = 'a'") == list(range(0, 200, 2))
    assert stream.door.ids("P = 'b'") == list(range(1, 200, 2))
    assert stream.batches("a", "b") == {"a": (1, True), "b": (1, True)}
