"""``df.writeStream.format("snowpipe")`` on real Spark against the local service."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

from airflow_provider_snowpipe.spark import register
from airflow_provider_snowpipe.streaming.batch_offset import BatchDigestOffset
from tests.spark_job import numbered_name, wait_until
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

    def run(self, *, partitions=1, checkpoint=None, **options):
        """Load all files that the checkpoint does not know as loaded."""
        plan = self._files()
        plan = plan.coalesce(1) if partitions == 1 else plan.repartition(partitions, "P")
        writer = plan.writeStream.format("snowpipe").options(
            **self.door.options(partitions=partitions, **options)
        )
        self._finish(writer, checkpoint)

    def run_sorted(self, *, checkpoint=None, order=("P", "ID"), **options):
        """The same by foreachBatch, in which rows can be sorted."""
        given = self.door.options(**options)

        def write(rows, batch):
            (
                rows.repartition(2, "P")
                .sortWithinPartitions(*order)
                .write.format("snowpipe")
                .options(**given, batchId=batch)
                .mode("append")
                .save()
            )

        self._finish(self._files().writeStream.foreachBatch(write), checkpoint)

    def start_observed(self):
        """Start the stream with what the how-to has Spark report of each batch."""
        rows = self._files().coalesce(1)
        rows = rows.observe("snowpipe", sf.count(sf.lit(1)).alias("rows"), sf.max("ID").alias("last"))
        writer = rows.writeStream.format("snowpipe").options(**self.door.options(partitions=1))
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def _files(self):
        files = self.spark.readStream.schema("ID BIGINT, P STRING").option("maxFilesPerTrigger", 1)
        return files.json(str(self.source))

    def _finish(self, writer, checkpoint):
        place = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        place.trigger(availableNow=True).start().awaitTermination()

    def refused(self, run=None, **changes):
        """The text of our error that ended a run."""
        with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's classes differ by place
            (run or self.run)(**changes)
        return our_error(caught.value)

    def forget_commit(self, batch):
        """Take back Spark's note that a batch is done, as if the driver had died just before it."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink()

    def batches(self, *parts):
        """Batch and final flag of the channels' tokens."""
        tokens = self.door.tokens(*parts)
        return {
            part: None if token is None else (BatchDigestOffset.parse(token).batch, token.endswith("-end"))
            for part, token in tokens.items()
        }


def _door(service, folder, columns):
    return Door(service, numbered_name("STREAM"), folder / "credentials.json", columns=columns).create()


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


def test_repeated_batch_with_another_order_or_layout_is_refused(stream):
    stream.put("1.json", range(100))
    stream.run()
    stream.forget_commit(0)

    layout = stream.refused(partitions=2)
    stream.put("1.json", reversed(range(100)))
    disorder = stream.refused()

    assert "option partitions is 2" in layout
    assert "SourcePositionError" in disorder
    assert "another order" in disorder
    assert stream.door.ids() == list(range(100))

    stream.put("1.json", range(100))
    stream.run()

    assert stream.door.ids() == list(range(100))


@pytest.mark.parametrize("sort", [False, True], ids=["writeStream", "foreachBatch"])
def test_restart_without_the_checkpoint_is_refused_and_nothing_is_doubled(stream, sort):
    run, how = (stream.run_sorted if sort else stream.run), {"partitions": 2}
    stream.put("1.json", range(0, 100, 2))  # one channel stays empty
    run(**how)
    stream.put("2.json", range(1, 100, 2))

    text = stream.refused(run, **how, checkpoint=stream.checkpoint.with_name("fresh"))

    assert "another query" in text
    assert "checkpoint" in text
    assert stream.door.ids() == list(range(0, 100, 2))


def test_restart_without_the_checkpoint_resumes_by_the_offset_column(stream):
    keys = {"offsetColumn": "ID", "partitions": 1}
    stream.put("1.json", range(100))
    stream.run(**keys)
    stream.put("2.json", range(100, 160))
    stream.run(**keys, checkpoint=stream.checkpoint.with_name("fresh"))

    assert stream.door.ids() == list(range(160))
    assert stream.door.tokens(0) == {0: "159/1"}


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


def test_older_copy_of_the_checkpoint_sends_nothing(stream):
    stream.put("1.json", range(50))
    stream.run()
    copy = stream.checkpoint.with_name("copy")
    shutil.copytree(stream.checkpoint, copy)
    stream.put("2.json", range(50, 100))
    stream.put("3.json", range(100, 150))
    stream.run()

    text = stream.refused(checkpoint=copy)

    assert "WriterActiveError: batch=1: channel 'ds_0'" in text
    assert "has committed batch 2 of this query already, so nothing was sent" in text
    assert stream.door.ids() == list(range(150))


def test_rejected_rows_stop_the_stream_until_they_are_accepted(spark, local_service, tmp_path):
    columns = "ID NUMBER, P NUMBER"
    door = Door(
        local_service, numbered_name("REJECTED"), tmp_path / "credentials.json", columns=columns
    ).create()
    stream = Stream(spark, door, tmp_path)
    stream.put("1.json", range(10))

    first = stream.refused()
    again = stream.refused()
    stream.run(onError="continue")

    for text in (first, again):
        assert "RowsRejectedError: the service skipped 10 row(s) on 1 channel(s)" in text
    assert door.ids() == []


def test_bad_rows_at_the_end_of_each_batch_are_put_aside_once(spark, local_service, tmp_path):
    stream = Stream(spark, _door(local_service, tmp_path, "ID NUMBER, P NUMBER(3,0)"), tmp_path)
    letters = tmp_path / "dead letters"
    bad = {18, 19, *range(20, 40), 59}
    for batch in range(3):
        numbers = range(batch * 20, batch * 20 + 20)
        stream.put(f"{batch}.json", numbers, lambda number: "1000" if number in bad else "1")
    for _ in range(2):
        stream.run(onError="dead_letter", deadLetterPath=letters)
        stream.forget_commit(2)

    assert stream.door.ids() == [*range(18), *range(40, 59)]
    found = [row for file in letters.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert Counter(json.loads(row["payload"])["ID"] for row in found) == dict.fromkeys(bad, 1)


def test_rate_source_goes_on_where_it_was_stopped(spark, local_service, tmp_path):
    door = Door(
        local_service, numbered_name("RATE"), tmp_path / "credentials.json", columns="ID NUMBER, P VARCHAR"
    )
    door.create()
    register(spark)
    rate = spark.readStream.format("rate").option("rowsPerSecond", 300).option("numPartitions", 2).load()
    rows = rate.selectExpr("value AS ID", "'r' AS P").writeStream.format("snowpipe")
    writer = rows.options(**door.options(partitions=2)).option("checkpointLocation", str(tmp_path / "ck"))

    for least in (300, 900):
        query = writer.start()
        wait_until(lambda least=least: len(door.ids()) >= least, seconds=300, what=f"{least} rows")
        query.stop()
    writer.trigger(availableNow=True).start().awaitTermination()

    found = door.ids()
    assert sorted(found) == list(range(len(found)))
    assert len(found) >= 900
