"""Rows that do not fit the table, through ``format("snowpipe")`` of real Spark: each is put aside once."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter

import pyarrow.parquet as pq
import pytest

from airflow_provider_snowpipe.spark.report import RunReport
from tests.spark_session import Door, session

pytestmark = pytest.mark.spark

BAD = frozenset({0, 7, 8, 51, 198, 199})


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with session(
        tmp_path_factory.mktemp("spark"), "local[2,4]", spark_sql_execution_arrow_maxRecordsPerBatch="20"
    ) as running:
        yield running


class BadRows:
    """A table, and the place for what does not fit it."""

    def __init__(self, service, folder, name):
        table = f"T_{zlib.crc32(name.encode()):08X}"
        self.door = Door(service, table, folder / "credentials.json", columns="ID NUMBER, N NUMBER(3,0)")
        self.door.create()
        self.path = folder / "dead letters"

    def options(self, **more):
        return self.door.options(
            **{"partitions": 1, "onError": "dead_letter", "deadLetterPath": self.path, **more}
        )

    def letters(self):
        files = sorted(self.path.rglob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def put_aside(self):
        """The bad rows' numbers, with how often each was put aside."""
        return Counter(json.loads(letter["payload"])["ID"] for letter in self.letters())


@pytest.fixture
def bad_rows(local_service, tmp_path, request):
    return BadRows(local_service, tmp_path, request.node.nodeid)


def _rows(spark, numbers, bad=BAD):
    rows = [(n, "1000" if n in bad else str(n % 7)) for n in numbers]
    return spark.createDataFrame(rows, "ID long, N string").coalesce(1).sortWithinPartitions("ID")


def _write(df, options):
    df.write.format("snowpipe").options(**options).mode("append").save()


def _good(numbers, bad=BAD):
    return [n for n in numbers if n not in bad]


def test_bad_rows_are_put_aside_once_and_the_repeat_adds_none(spark, bad_rows, tmp_path):
    report = tmp_path / "report.json"
    options = bad_rows.options(batchId=3)
    _write(_rows(spark, range(200)), {**options, "reportPath": str(report)})
    _write(_rows(spark, range(200)), options)

    told = RunReport.read(report)
    assert [(one.rows, one.rejected, one.dead_lettered) for one in told.channels] == [
        (200 - len(BAD), 0, len(BAD))
    ]
    assert bad_rows.door.ids() == _good(range(200))
    assert bad_rows.put_aside() == dict.fromkeys(BAD, 1)
    found = {json.loads(letter["payload"])["ID"]: letter for letter in bad_rows.letters()}
    assert found[7]["column"] == "N"
    assert found[7]["reason"] == "the value cannot be converted to NUMBER(3,0)"
    assert found[7]["channel"] == "ds_0"
    assert found[7]["position"].startswith("3:8/1-")
    assert found[7]["application"] == "ds batch=3"
    assert json.loads(found[7]["payload"]) == {"ID": 7, "N": "1000"}


@pytest.mark.parametrize("column", [None, "ID"], ids=["digest", "offset-column"])
def test_stream_keeps_the_bad_rows_at_the_end_of_each_batch(spark, bad_rows, tmp_path, column):
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run():
        files = spark.readStream.schema("ID BIGINT, N STRING").option("maxFilesPerTrigger", 1)
        writer = files.json(str(source)).coalesce(1).writeStream.format("snowpipe")
        writer = writer.options(**bad_rows.options(offsetColumn=column))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    for number, bad in enumerate([{18, 19}, set(range(20, 40)), {59}]):
        rows = [{"ID": n, "N": "1000" if n in bad else "1"} for n in range(number * 20, number * 20 + 20)]
        path = source / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (number + 1, number + 1))
    run()
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "commits" / ".2.crc").unlink()
    run()

    assert bad_rows.door.ids() == [*range(18), *range(40, 59)]
    assert bad_rows.put_aside() == dict.fromkeys([18, 19, *range(20, 40), 59], 1)
